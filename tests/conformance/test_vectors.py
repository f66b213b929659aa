"""Byte vectors from specifications, hardware and other implementations, as literals.

FP4 bytes hold the first code in the low half. Scales are E8M0 codes. The MXFP4 vector of 32 values agrees
with AMD MI355 hardware; the E8M0 vector is the conversion that NVIDIA's cvt.rp instruction makes; the ramp
and the tie table follow OCP MX v1.0, section 6.3, with ties to even.
"""

import numpy as np
import pytest

import fewbits as fb
from fewbits.formats import decode, parse
from fewbits.kernels import reference

MI355_VALUES = (
    "0.3463 -0.0499 0.3794 -2.3764 0.3960 0.5989 -0.6250 -0.4239 -0.6192 0.2761 -0.3746 0.1462 0.5216 "
    "-0.5194 -0.8497 -0.8237 0.5145 0.3508 0.0298 -0.3462 0.3917 0.1096 1.4494 1.7009 -0.5473 -2.0851 1.8099 "
    "0.3587 1.4622 -2.3143 0.3412 -0.8931"
)
MI355_BYTES = [129, 226, 34, 170, 26, 25, 162, 187, 18, 144, 2, 85, 234, 22, 229, 193]

RAMP = (np.arange(32) / 2 - 5).astype(np.float32)
RAMP_CODES = {
    "mxfp4": (128, "C C C C B A A A 9 8 0 0 1 2 2 2 3 4 4 4 4 5 5 5 6 6 6 6 6 6 6 7"),
    "mxfp6_e2m3": (
        128,
        "32 31 30 2E 2C 2A 28 26 24 22 00 02 04 06 08 0A 0C 0E 10 11 12 13 14 15 16 17 18 18 19 1A 1A 1A",
    ),
    "mxfp6_e3m2": (
        126,
        "39 38 38 37 36 35 34 32 30 2C 00 0C 10 12 14 15 16 17 18 18 19 1A 1A 1A 1B 1C 1C 1C 1C 1D 1D 1D",
    ),
    "mxfp8_e5m2": (
        115,
        "F5 F4 F4 F3 F2 F1 F0 EE EC E8 00 68 6C 6E 70 71 72 73 74 74 75 76 76 76 77 78 78 78 78 79 79 79",
    ),
}

E8M0_UP = [
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
]


@pytest.mark.parametrize(
    ("given", "wanted"),
    [(0.25, 0), (0.75, 1), (1.25, 1), (1.75, 2), (2.5, 2), (3.5, 4), (5, 4), (6.1, 6)],
)
def test_fp4_ties_go_to_even_on_both_sides(given, wanted):
    x = np.array([given, -given], np.float32)
    assert fb.fake_quantize(x, "fp4_e2m1").tolist() == [wanted, -wanted]


def test_fp4_packs_the_first_code_into_the_low_half():
    x = np.array([0, 0.5, 4, -0.0, -0.0, 1, -6, 3], np.float32)
    assert fb.quantize(x, "fp4_e2m1").codes.tobytes().hex(" ") == "10 86 28 5f"


def test_mxfp4_equals_the_bytes_of_hardware():
    q = fb.quantize(np.array(MI355_VALUES.split(), np.float32), "mxfp4")
    assert q.scales.tolist() == [126]
    assert q.codes.tolist() == MI355_BYTES


@pytest.mark.parametrize("name", RAMP_CODES)
def test_the_ramp_has_these_codes(name):
    scale, codes = RAMP_CODES[name]
    parts = fb.quantize(RAMP, name).parts()
    assert parts.scales.tolist() == [scale]
    assert parts.codes.tolist() == [int(code, 16) for code in codes.split()]


@pytest.mark.parametrize(("rule", "scale", "last"), [("floor", 118, 0x7B), ("rceil", 119, 0x78)])
def test_e5m2_below_a_power_of_two_clamps_under_floor_and_rounds_under_rceil(rule, scale, last):
    x = np.array([*range(1, 32), 127.99999], np.float32)
    parts = fb.quantize(x, "mxfp8_e5m2", scale_rule=rule).parts()
    assert (parts.scales[0], parts.codes[-1]) == (scale, last)


@pytest.mark.parametrize(("bits", "code"), E8M0_UP)
def test_e8m0_rounded_up_from_float32(bits, code):
    x = np.array([bits], np.uint32).view(np.float32).astype(np.float64)
    assert reference.encode(parse("e8m0"), x, "up", "nan", None).tolist() == [code]


def test_nvfp4_follows_the_formula_of_transformer_engine():
    """In float32: g = 2688 / amax; s = E4M3(amax_block (g (1/6))); element = x / (s / g)."""
    f32 = np.float32
    rng = np.random.default_rng(3)
    x = (rng.standard_normal((4, 64)) * np.exp(3 * rng.standard_normal((4, 1)))).astype(f32)
    parts = fb.quantize(x, "nvfp4").parts()
    gain = f32(2688) / np.abs(x).max()
    e4m3, e2m1 = parse("fp8_e4m3"), parse("fp4_e2m1")
    for row in range(4):
        for block in range(4):
            values = x[row, 16 * block : 16 * block + 16]
            wanted = np.float64(np.abs(values).max() * (gain * (f32(1) / f32(6))))
            scale = reference.encode(e4m3, np.array([wanted]), "nearest_even", "saturate", None)
            assert parts.scales[row, block] == scale[0]
            scaled = values / (decode(e4m3, scale).astype(f32) / gain)
            codes = reference.encode(e2m1, scaled.astype(np.float64), "nearest_even", "saturate", None)
            assert parts.codes[row, 16 * block : 16 * block + 16].tolist() == codes.tolist()
