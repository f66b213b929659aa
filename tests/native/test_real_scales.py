"""With a real scale the compiled kernel rounds elements only, and still equals the definition bit for bit."""

import numpy as np
import pytest

from fewbits.errors import DataError
from fewbits.formats import CATALOGUE, Block, Exponent, parse
from fewbits.kernels import native, options, reference

REAL = [
    e.name
    for e in CATALOGUE.values()
    if isinstance(e.format, Block) and not isinstance(e.format.scale, Exponent)
]
INVENTED = ["block(element=int(8),scale=fp16,size=32)", "block(element=fp6_e3m2,scale=bf16,size=7)"]


def same(a, b):
    return np.array_equal(
        a.view(np.uint32) | (np.isnan(a) * 0x7FFFFFFF), b.view(np.uint32) | (np.isnan(b) * 0x7FFFFFFF)
    )


def wild(seed, shape=(37, 150)):
    """Values over every exponent of float32, with zero rows, subnormals and the largest floats."""
    rng = np.random.default_rng(seed)
    x = np.ldexp(rng.standard_normal(shape), rng.integers(-149, 127, shape)).astype(np.float32)
    x[: shape[0] // 2] = rng.standard_normal((shape[0] // 2, shape[1]))
    x[3] = 0
    x[4, ::7] = -0.0
    x[5, 3] = np.finfo(np.float32).max
    x[6] = 1e-42
    return x


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", [*REAL, *INVENTED])
def test_the_composed_path_equals_the_definition(name, seed):
    fmt, x = parse(name), wild(seed)
    chosen = options(fmt)
    assert native.supports_real_scale(fmt, chosen, x.dtype)
    wanted = reference.dequantize(reference.quantize(x, fmt, chosen), fmt)
    assert same(native.fake_quantize_real_scale(x, fmt, chosen), wanted)


@pytest.mark.parametrize(
    ("name", "nonfinite"),
    [(n, f) for n in ("nvfp4", "fp8_e4m3_channel", "int8_channel") for f in ("block-nan", "saturate")]
    + [("fp8_e4m3_channel", "element")],
)
def test_nan_and_infinity_follow_the_same_rule(name, nonfinite):
    fmt, x = parse(name), wild(0)
    x[8, 20], x[9, 30], x[10, 40] = np.nan, np.inf, -np.inf
    chosen = options(fmt, nonfinite=nonfinite)
    wanted = reference.dequantize(reference.quantize(x, fmt, chosen), fmt)
    assert same(native.fake_quantize_real_scale(x, fmt, chosen), wanted)


def test_a_refused_nan_raises_as_in_the_definition():
    fmt = parse("int8_channel")
    with pytest.raises(DataError, match="1 NaN and 0 infinities"):
        native.fake_quantize_real_scale(
            np.array([[1, np.nan]], np.float32), fmt, options(fmt, nonfinite="raise")
        )


def test_an_amax_too_small_saturates_as_in_the_definition():
    fmt, x = parse("fp8_e4m3_tensor"), wild(1)
    chosen = options(fmt)
    wanted = reference.dequantize(reference.quantize(x, fmt, chosen, 1e-3), fmt)
    assert same(native.fake_quantize_real_scale(x, fmt, chosen, 1e-3), wanted)


def test_one_wrong_bit_is_seen():
    fmt, x = parse("nvfp4"), wild(0)
    wrong = native.fake_quantize_real_scale(x, fmt, options(fmt)).copy()
    wanted = wrong.copy()
    wrong.view(np.uint32)[11, 11] ^= 1
    assert not same(wrong, wanted)


def test_other_roundings_are_left_to_the_definition():
    fmt = parse("nvfp4")
    assert not native.supports_real_scale(fmt, options(fmt, rounding="up"), np.float32)
    assert not native.supports_real_scale(fmt, options(fmt), np.float64)
