"""The compiled kernel against its definition, bit for bit, for every instruction set that this CPU runs."""

from functools import lru_cache

import numpy as np
import pytest
import torch

from fewbits.errors import DataError
from fewbits.formats import CATALOGUE, Element, Exponent, Float, parse
from fewbits.kernels import native, reference
from fewbits.kernels.options import RULES, Options, options
from tests.native.inputs import Values, awkward, bits, blocks_of_every_scale

# Formats that nobody catalogued, for the corners: odd sizes, steps below and above one, few scale exponents,
# a mantissa of 22 bits, none at all, exponents at both ends of float32.
INVENTED = (
    "float(e=8,m=22,special=ieee)",
    "float(e=3,m=2,bias=126)",
    "float(e=4,m=0,bias=-110)",
    "fixed(24,frac=3)",
    "fixed(5,frac=-60)",
    "fixed(9,frac=64)",
    "block(element=float(e=5,m=10,special=ieee),scale=e8m0,size=32)",
    "block(element=int(8),scale=e8m0,size=7)",
    "block(element=fixed(6,frac=9),scale=e8m0,size=32)",
    "block(element=float(e=2,m=1),scale=exponent(4),size=16)",
    "block(element=float(e=2,m=1),scale=e8m0,size=100)",
    "bdr(m=3,d1=8,k1=12,d2=2,k2=3)",
    "bdr(m=5,d1=4,k1=16,d2=1,k2=2)",
    "bdr(m=15,d2=4,k2=4)",
    "bdr(m=1,d2=0,k2=16)",
)


def _cases() -> list[tuple[str, Options]]:
    found = []
    for text in (*CATALOGUE, *INVENTED):
        fmt = parse(text)
        if isinstance(fmt, Float):
            overflows = ["saturate", *["inf"] * fmt.has_inf, *["nan"] * fmt.has_nan]
            choices = [options(fmt, overflow=o) for o in overflows]
        elif not isinstance(fmt, Element) and isinstance(fmt.scale, Exponent):
            choices = [options(fmt, scale_rule=rule) for rule in RULES]
        else:
            choices = [options(fmt)]
        found += [(text, chosen) for chosen in choices if native.supports(fmt, chosen, np.float32)]
    return found


CASES = _cases()
IDS = [f"{text}-{chosen.scale_rule}-{chosen.overflow}" for text, chosen in CASES]


@lru_cache(maxsize=2)
def _input(finite: bool) -> Values:
    x = awkward(finite)
    return x[: x.size // 97 * 97].reshape(
        -1, 97
    )  # no block size divides 97: every row ends in a partial block


def _defined(x: Values, text: str, chosen: Options) -> Values:
    fmt = parse(text)
    with np.errstate(all="ignore"):
        return reference.dequantize(reference.quantize(x, fmt, chosen), fmt)


@lru_cache(maxsize=1)
def _expected(text: str, chosen: Options) -> tuple[Values, Values]:
    x = _input(chosen.nonfinite == "raise")
    return _defined(x, text, chosen), _defined(x.reshape(-1), text, chosen)


def _assert_same(x: Values, got: Values, expected: Values) -> None:
    different = np.flatnonzero(bits(got) != bits(expected))
    if different.size:
        i = different[0]
        where = f"{different.size} of {x.size} differ, first at {i}: {float(x.flat[i]).hex()}"
        pytest.fail(f"{where} became {got.flat[i]!r}, the definition says {expected.flat[i]!r}")


@pytest.mark.parametrize(("text", "chosen"), CASES, ids=IDS)
def test_every_isa_equals_the_definition(text: str, chosen: Options) -> None:
    x = _input(chosen.nonfinite == "raise")
    in_rows, in_one_line = _expected(text, chosen)
    for isa in native.available_isas():
        native.force_isa(isa)
        for shape, expected in ((x.shape, in_rows), ((x.size,), in_one_line)):
            result = native.run(x.reshape(shape), parse(text), chosen, threads=2)
            assert result.isa == isa
            _assert_same(x, result.values, expected)


@pytest.mark.parametrize(
    "name", ["mxfp8_e4m3", "mxfp8_e5m2", "mxfp4", "mxint8", "msfp12", "mx9", "mx4", "fp8_e4m3"]
)
def test_the_compiled_kernel_takes_the_catalogue(name: str) -> None:
    fmt = parse(name)
    assert native.supports(fmt, options(fmt), np.float32)


def test_the_comparison_rejects_one_wrong_bit() -> None:
    chosen = options(parse("mxfp4"))
    x = blocks_of_every_scale()
    sabotaged = native.fake_quantize(x, parse("mxfp4"), chosen)
    sabotaged.view(np.uint32)[1234] ^= 1
    with pytest.raises(pytest.fail.Exception, match="1 of 35584 differ, first at 1234"):
        _assert_same(x, sabotaged, _defined(x, "mxfp4", chosen))


def test_the_comparison_rejects_a_lost_sign_of_zero() -> None:
    with pytest.raises(pytest.fail.Exception):
        _assert_same(np.zeros(1, np.float32), np.zeros(1, np.float32), -np.zeros(1, np.float32))


@pytest.mark.parametrize("name", ["mxfp4", "mx6", "fp8_e5m2", "int8"])
@pytest.mark.parametrize("shape", [(0,), (1,), (), (3, 0), (1, 31), (2, 32), (5, 33), (2, 3, 47), (1, 1, 1)])
def test_any_shape(name: str, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    chosen = options(parse(name))
    got = native.fake_quantize(x, parse(name), chosen)
    assert got.shape == shape
    _assert_same(x, got, _defined(np.atleast_1d(x), name, chosen).reshape(shape))


@pytest.mark.parametrize("name", ["mxfp4", "mx9", "fp8_e4m3"])
def test_strided_and_unaligned_input(name: str) -> None:
    x = blocks_of_every_scale().reshape(-1, 64)
    chosen = options(parse(name))
    unaligned = np.frombuffer(b"\0" + x.tobytes(), np.uint8)[1:].view(np.float32).reshape(x.shape)
    for view in (x.T, x[::3, 1:50:2], x[:, ::-1], unaligned):
        _assert_same(view, native.fake_quantize(view, parse(name), chosen), _defined(view, name, chosen))


@pytest.mark.parametrize("name", ["mxfp6_e2m3", "mx6", "bf16"])
def test_threads_do_not_change_the_result(name: str) -> None:
    x = np.random.default_rng(0).standard_normal((1001, 333)).astype(np.float32)
    chosen = options(parse(name))
    one = native.fake_quantize(x, parse(name), chosen, threads=1)
    for threads in (2, 3, 7):
        _assert_same(x, native.fake_quantize(x, parse(name), chosen, threads=threads), one)


@pytest.mark.parametrize("name", ["mxfp8_e5m2", "mx9", "bf16"])
def test_subnormals_survive_a_thread_that_flushes_them(name: str) -> None:
    x = np.array([2.0**-149, -3 * 2.0**-149, 2.0**-130, 2.0**-127] * 8, np.float32)
    chosen = options(parse(name))
    expected = _defined(x, name, chosen)
    assert np.count_nonzero(expected) > 0
    assert torch.set_flush_denormal(True)
    try:
        got = native.fake_quantize(x, parse(name), chosen)
    finally:
        torch.set_flush_denormal(False)
    _assert_same(x, got, expected)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("name", ["int8", "fp4_e2m1"])
def test_raise_refuses_what_is_not_finite(name: str, bad: float) -> None:
    x = np.ones(100_000, np.float32)
    x[-1] = bad
    with pytest.raises(DataError, match="refuses them"):
        native.fake_quantize(x, parse(name), options(parse(name)), threads=2)


def test_raise_refuses_in_blocks_too() -> None:
    x = np.full(64, np.inf, np.float32)
    with pytest.raises(DataError, match="64 infinities"):
        native.fake_quantize(x, parse("mxfp4"), options(parse("mxfp4"), nonfinite="raise"))


@pytest.mark.parametrize(
    ("text", "changes", "dtype"),
    [
        ("mxfp4", {}, np.float64),
        ("mxfp4", {"rounding": "stochastic"}, np.float32),
        ("mxfp4", {"nonfinite": "saturate"}, np.float32),
        ("mxfp8_e5m2", {"overflow": "inf"}, np.float32),
        ("fp8_e4m3", {"nonfinite": "saturate"}, np.float32),
        ("mx9", {"nonfinite": "saturate"}, np.float32),
        ("nvfp4", {}, np.float32),
        ("posit8_1", {}, np.float32),
        ("fp32", {}, np.float32),
        ("block(element=bf16,scale=e8m0,size=32)", {}, np.float32),
        ("block(element=float(e=2,m=1),scale=e8m0,size=channel)", {}, np.float32),
    ],
)
def test_what_the_kernel_does_not_compute_it_does_not_claim(
    text: str, changes: dict[str, str], dtype: type
) -> None:
    fmt = parse(text)
    assert not native.supports(fmt, options(fmt, **changes), dtype)  # type: ignore[arg-type]
