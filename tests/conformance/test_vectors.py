"""Byte-level vectors: inputs with the codes and scales that they must give, in hexadecimal.

Generated once from exact arithmetic with the OCP floor rule and ties to even unless a test says otherwise,
and agreed with the sources that each test names. FP4 is packed with the first value in the low half of the
byte.
"""

import numpy as np
import pytest

import fewbits as fb
from fewbits.formats import Element, Format, parse, values
from fewbits.kernels.bits.layout import Parts
from fewbits.kernels.bits.packing import pack, unpack
from fewbits.kernels.reference import encode


def quantized(x: object, name: str, **choices: str) -> Parts:
    """Return codes and scales of one row of float32."""
    fmt = parse(name)
    return fb.quantize(np.asarray(x, np.float32), fmt, **choices).parts()


def element_of(fmt: Format) -> Element:
    """Return a format as the element it is."""
    assert isinstance(fmt, Element)
    return fmt


# FP4 ties, OCP MX v1.0 section 5.3.4 with roundTiesToEven; past the largest it saturates.
FP4_TIES = (
    (0.25, 0x0, 0.0),
    (0.75, 0x2, 1.0),
    (1.25, 0x2, 1.0),
    (1.75, 0x4, 2.0),
    (2.5, 0x4, 2.0),
    (3.5, 0x6, 4.0),
    (5.0, 0x6, 4.0),
    (6.1, 0x7, 6.0),
)


@pytest.mark.parametrize(("x", "code", "value"), FP4_TIES)
def test_fp4_ties_go_to_even_on_both_sides_of_zero(x: float, code: int, value: float) -> None:
    element = element_of(parse("fp4_e2m1"))
    assert encode(element, np.array([x, -x]), "nearest_even", "saturate", None).tolist() == [code, code | 8]
    assert values(element)[[code, code | 8]].tolist() == [value, -value]


def test_fp4_packs_the_first_value_into_the_low_half() -> None:
    q = fb.quantize(np.array([0, 0.5, 4, -0.0, -0.0, 1, -6, 3], np.float32), "fp4_e2m1")
    assert q.codes.numpy().tobytes() == bytes.fromhex("10 86 28 5F")
    assert np.array_equal(unpack(q.codes.numpy(), 4, 8), [0, 1, 6, 8, 8, 2, 15, 5])


# One MXFP4 block whose bytes AMD MI355 hardware gives as well.
MXFP4_BLOCK = (
    *(0.3463, -0.0499, 0.3794, -2.3764, 0.3960, 0.5989, -0.6250, -0.4239),
    *(-0.6192, 0.2761, -0.3746, 0.1462, 0.5216, -0.5194, -0.8497, -0.8237),
    *(0.5145, 0.3508, 0.0298, -0.3462, 0.3917, 0.1096, 1.4494, 1.7009),
    *(-0.5473, -2.0851, 1.8099, 0.3587, 1.4622, -2.3143, 0.3412, -0.8931),
)
MXFP4_BYTES = (129, 226, 34, 170, 26, 25, 162, 187, 18, 144, 2, 85, 234, 22, 229, 193)


def test_mxfp4_gives_the_bytes_of_hardware() -> None:
    parts = quantized(MXFP4_BLOCK, "mxfp4")
    assert parts.scales is not None
    assert parts.scales.tolist() == [126]
    assert tuple(pack(parts.codes, 4).tolist()) == MXFP4_BYTES


# E8M0 from float32 bits, rounded up, infinity and what passes 2^127 to NaN: the conversion of NVIDIA's MXFP8
# recipe (arXiv 2506.08027, "RCEIL").
RCEIL = (
    (0x00000000, 0),
    (0x00000001, 0),
    (0x00400000, 0),
    (0x00400001, 1),
    (0x00800000, 1),
    (0x1F800000, 63),
    (0x1F800001, 64),
    (0x3F7FFFFF, 127),
    (0x3F800000, 127),
    (0x3F800001, 128),
    (0x7F000000, 254),
    (0x7F000001, 255),
    (0x7F800000, 255),
    (0x7FC00000, 255),
)


@pytest.mark.parametrize(("bits", "code"), RCEIL)
def test_e8m0_rounds_up_from_float32_bits(bits: int, code: int) -> None:
    x = np.array([bits], np.uint32).view(np.float32)
    assert encode(element_of(parse("e8m0")), x.astype(np.float64), "up", "nan", None).tolist() == [code]
    assert fb.quantize(x, "e8m0", rounding="up").codes.tolist() == [code]


def test_the_rule_rceil_gives_the_same_bytes_for_a_largest_element_of_one() -> None:
    unit = "block(element=lookup(-1,0,1),scale=e8m0,size=1)"
    finite = [(bits, code) for bits, code in RCEIL if 0 < bits < 0x7F000001]
    x = np.array([bits for bits, _ in finite], np.uint32).view(np.float32)
    scales = quantized(x, unit, scale_rule="rceil").scales
    assert scales is not None
    assert scales.tolist() == [code for _, code in finite]


def test_mxfp8_e5m2_clamps_under_floor_and_rounds_to_the_next_binade_under_rceil() -> None:
    x = [*range(1, 32), 127.99999]
    assert np.float32(x[-1]) < 128
    floor, rceil = quantized(x, "mxfp8_e5m2"), quantized(x, "mxfp8_e5m2", scale_rule="rceil")
    assert floor.scales is not None
    assert rceil.scales is not None
    assert (floor.scales.tolist(), hex(floor.codes[-1])) == ([118], "0x7b")
    assert (rceil.scales.tolist(), hex(rceil.codes[-1])) == ([119], "0x78")


# The ramp -5, -4.5 ... 10.5 under the floor rule.
RAMP = np.arange(32) / 2 - 5
RAMPS = (
    (
        "mxfp4",
        128,
        "0C 0C 0C 0C 0B 0A 0A 0A 09 08 00 00 01 02 02 02 03 04 04 04 04 05 05 05 06 06 06 06 06 06 06 07",
    ),
    (
        "mxfp6_e2m3",
        128,
        "32 31 30 2E 2C 2A 28 26 24 22 00 02 04 06 08 0A 0C 0E 10 11 12 13 14 15 16 17 18 18 19 1A 1A 1A",
    ),
    (
        "mxfp6_e3m2",
        126,
        "39 38 38 37 36 35 34 32 30 2C 00 0C 10 12 14 15 16 17 18 18 19 1A 1A 1A 1B 1C 1C 1C 1C 1D 1D 1D",
    ),
    (
        "mxfp8_e5m2",
        115,
        "F5 F4 F4 F3 F2 F1 F0 EE EC E8 00 68 6C 6E 70 71 72 73 74 74 75 76 76 76 77 78 78 78 78 79 79 79",
    ),
)


@pytest.mark.parametrize(("name", "scale", "codes"), RAMPS, ids=[row[0] for row in RAMPS])
def test_the_ramp_gives_these_codes(name: str, scale: int, codes: str) -> None:
    parts = quantized(RAMP, name)
    assert parts.scales is not None
    assert parts.scales.tolist() == [scale]
    assert parts.codes.astype(np.uint8).tobytes() == bytes.fromhex(codes)


def test_nvfp4_follows_transformer_engine_step_by_step() -> None:
    # g = 2688 / amax; scale = E4M3(amax_block (g (1/6))); element = x / (scale / g): every step in float32.
    rng = np.random.default_rng(0)
    x = (rng.standard_normal((4, 64)) * np.exp(rng.normal(0, 2, (4, 1)))).astype(np.float32)
    f32 = np.float32
    g = f32(2688) / np.abs(x).max()
    amax = np.abs(x.reshape(4, 4, 16)).max(axis=-1)
    e4m3, e2m1 = element_of(parse("fp8_e4m3")), element_of(parse("fp4_e2m1"))
    wanted = np.minimum(amax * (g * (f32(1) / f32(6))), f32(448))
    scale_codes = encode(e4m3, wanted.astype(np.float64), "nearest_even", "saturate", None)
    divisor = np.repeat(values(e4m3)[scale_codes].astype(f32) / g, 16, axis=-1)
    codes = encode(e2m1, (x / divisor).astype(np.float64), "nearest_even", "saturate", None)
    parts = quantized(x, "nvfp4")
    assert parts.outer is not None
    assert np.array_equal(parts.scales, scale_codes)
    assert np.array_equal(parts.codes, codes)
    assert parts.outer.tolist() == [[float(f32(1) / g)]]
