"""Plain operations of torch give the bits of the definition: every format, choice, dtype, shape, value."""

import sys
import warnings
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import fewbits as fb
from fewbits.errors import ArgumentError
from fewbits.formats import Bdr, Element, Format, Lookup, Posit, parse
from fewbits.kernels import force_backend, portable
from fewbits.kernels.bits.layout import packed
from fewbits.kernels.bits.options import Options, has_scale_rule, options
from fewbits.kernels.portable.values import tables
from fewbits.kernels.reference.quantize.quantize import quantize
from tests import cases
from tests.kernels.portable.conversions import as_bytes, defined, differing, expected, portably

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
ODD: tuple[Format, ...] = (
    parse("block(element=float(e=2,m=2,bias=40,special=ieee),scale=exponent(8,bias=127),size=5)"),
    parse("block(element=float(e=4,m=3,bias=130),scale=e8m0,size=7)"),  # values below 2^-149 under a scale
    parse("block(element=fixed(6,frac=40,coding=symmetric),scale=e8m0,size=4)"),
    parse("block(element=fp32,scale=e8m0,size=3)"),
    parse("block(element=posit(8,es=1),scale=e8m0,size=8)"),
    parse("block(element=posit(8),scale=exponent(2,bias=3),size=4)"),  # quotients beyond the dtype
    parse("block(element=posit(8),scale=float(e=2,m=1,bias=20),size=4)"),
    parse("block(element=lookup(-1,-0.3,0,0.1,1),scale=fp8_e4m3,size=9)"),
    parse("block(element=int(8),scale=exponent(4,bias=7),size=channel)"),
    parse("block(element=uint4,scale=float(e=4,m=3,bias=-20),size=4)"),
    parse("block(element=fp16,scale=fp16,size=6,outer=fp32,outer_size=channel)"),
    parse("bdr(m=5,d1=5,k1=12,d2=3,k2=3)"),
    parse("bdr(m=3,d1=8,k1=6,d2=0,k2=1)"),
    parse("lookup(-1e-40,0,1e-45,1e-39)"),
    parse("fixed(24,frac=64)"),
)
FORMATS = cases.FORMATS + ODD
# Posits of 16 bits take seconds; they have all numbers of 16 bits, and the definition itself, below.
QUICK_FIRST = tuple(
    pytest.param(f, marks=pytest.mark.slow) if isinstance(f, Posit) and f.bits == 16 else f for f in FORMATS
)


def inputs(fmt: Format, shape: tuple[int, ...], dtype: torch.dtype, *, special: bool = True) -> torch.Tensor:
    """Return what tells one rounding from another, blocks of every exponent, and special values."""
    element = fmt.element
    n = int(np.prod(shape))
    near = cases.telling(element) if element.bits <= 12 else cases.every_exponent(4096)
    wide = cases.blocks(-(-n // 32) + 1, 32).reshape(-1)
    x = np.where(np.arange(n) % 64 < 32, np.resize(near, n), wide[:n])
    x = np.where(np.isfinite(x), x, np.float32(1))
    with np.errstate(over="ignore"):
        y = torch.from_numpy(x.reshape(shape)).to(dtype)
    y = torch.where(y.isfinite(), y, 1.0).to(dtype)
    if special and n > 90:
        y.view(-1)[torch.tensor([3, 40, 41, 88])] = torch.tensor(
            [torch.nan, torch.inf, -torch.inf, -0.0], dtype=dtype
        )
    return y


def choices(fmt: Format) -> list[dict[str, Any]]:
    """Return few choices in which each two values of two options meet, but for what the format lacks."""
    rules = cases.SCALE_RULES if has_scale_rule(fmt) else ("floor",)
    found = []
    for row in cases.pairs(
        cases.ROUNDINGS, rules, cases.OVERFLOWS, cases.NONFINITES[:3], cases.ZERO_BLOCKS, (16, 32)
    ):
        names = ("rounding", "scale_rule", "overflow", "nonfinite", "zero_block", "random_bits")
        given = dict(zip(names, row, strict=True))
        if given["rounding"] != "stochastic":
            given["random_bits"] = 16
        for name in ("overflow", "nonfinite"):
            try:
                options(fmt, **given)
            except ArgumentError:
                given[name] = "saturate"
        if given not in found:
            found.append(given)
    return found


@pytest.mark.parametrize("fmt", QUICK_FIRST, ids=cases.label)
def test_every_choice_gives_the_bits_of_the_cpu(fmt: Format) -> None:
    wrong = []
    for i, given in enumerate(choices(fmt)):
        dtype, chosen = DTYPES[i % 4], options(fmt, **given, seed=2**40 + i)
        x = inputs(fmt, (5, 67), dtype)
        if any(differing(portably(x, fmt, 1, chosen), expected(x, fmt, 1, chosen))):
            wrong.append((given, dtype))
    assert wrong == []


@pytest.mark.parametrize("fmt", FORMATS, ids=cases.label)
def test_it_gives_the_bits_of_the_definition_itself(fmt: Format) -> None:
    for dtype, rounding in zip(DTYPES, ("nearest_even", "stochastic", "up", "nearest_even"), strict=True):
        chosen = options(fmt, rounding=rounding, nonfinite="saturate", seed=9)
        x = inputs(fmt, (3, 50), dtype)
        assert not any(differing(portably(x, fmt, 1, chosen), defined(x, fmt, chosen))), dtype


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["nvfp4", "vsq6"])
def test_an_outer_scale_that_is_no_number_makes_values_that_are_none(name: str, dtype: torch.dtype) -> None:
    q = fb.quantize(torch.tensor([[1.5, -3.0, 0.0] * 11]), name)
    within = fb.NarrowTensor.from_parts(
        q.codes, q.scales, None, torch.ones(1, 1), format=q.format, shape=(1, 33), axis=1, dtype=torch.float64
    ).dense()
    for outer in (torch.inf, -torch.inf, torch.nan):
        assert q.outer is not None
        parts = (q.codes, q.scales, None, torch.full_like(q.outer, outer))
        found = portable.dequantize(parts, q.format, (1, 33), 1, dtype)
        # Zero times infinity is NaN in IEEE 754-2019, section 7.2.
        torch.testing.assert_close(found, (within * outer).to(dtype), rtol=0, atol=0, equal_nan=True)
        assert not found.isfinite().any()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "text",
    [
        "block(element=fp8_e3m4,scale=e8m0,size=4)",
        "block(element=fp8_e4m3b11fnuz,scale=exponent(5,bias=31),size=4)",
        "block(element=fixed(7,frac=60,coding=symmetric),scale=exponent(2,bias=100),size=4)",
        "block(element=int(4,coding=unsigned),scale=e8m0,size=4)",
        "block(element=posit(8),scale=exponent(2,bias=3),size=4)",
    ],
)
def test_signs_of_zero_and_infinities_are_those_of_the_definition(text: str, dtype: torch.dtype) -> None:
    fmt = parse(text)
    nan = fmt.element.has_nan
    chosen = options(fmt, scale_rule="ceil", nonfinite="element" if nan else "block_nan")
    special = [[3e38, torch.inf, -torch.inf, 1], [torch.nan, 0, torch.inf, -1]]
    rows = [[3e38, -1, 1e-20, -3e38], [-1, 2, -1e-9, -0.0], [1e-38, -1e-38, -5e-39, 0], *special]
    x = torch.tensor(rows, dtype=torch.float64).to(dtype)
    assert not any(differing(portably(x, fmt, 1, chosen), defined(x, fmt, chosen)))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("scale", ["exponent(2,bias=3)", "float(e=2,m=1,bias=20)"])
def test_a_number_whose_quotient_is_beyond_the_dtype_is_a_number_of_a_posit(
    scale: str, dtype: torch.dtype
) -> None:
    fmt, most = parse(f"block(element=posit(8),scale={scale},size=4)"), torch.finfo(dtype).max
    chosen, x = options(fmt, nonfinite="element"), torch.tensor([[most, -most, torch.inf, 1]], dtype=dtype)
    found = portably(x, fmt, 1, chosen)
    assert not any(differing(found, defined(x, fmt, chosen)))


@pytest.mark.parametrize("bias", range(4))
def test_subnormals_keep_their_last_bits_wherever_the_lowest_binade_lies(bias: int) -> None:
    fmt = parse(f"block(element=fp32,scale=exponent(2,bias={bias}),size=4)")
    x = torch.tensor([[1e-38, 3e-39, 1.0, -1.1e-38], [3e-45, -1e-45, 5.9e-39, 2.0]])
    assert not any(differing(portably(x, fmt, 1, options(fmt)), defined(x, fmt, options(fmt))))


@pytest.mark.parametrize("fmt", QUICK_FIRST, ids=cases.label)
def test_any_shape_any_axis(fmt: Format) -> None:
    for i, shape in enumerate(cases.SHAPES):
        for axis in range(-max(len(shape), 1), 0):
            rounding = cases.ROUNDINGS[(i - axis) % len(cases.ROUNDINGS)]
            chosen = options(fmt, rounding=rounding, nonfinite="saturate", seed=1)
            x = inputs(fmt, shape, DTYPES[i % 4])
            assert not any(differing(portably(x, fmt, axis, chosen), expected(x, fmt, axis, chosen))), (
                shape,
                axis,
            )


@pytest.mark.parametrize("name", ["mxfp4", "mx9", "nvfp4", "int8_tensor", "posit8_1", "vsq4"])
def test_strided_transposed_and_negated_views(name: str) -> None:
    fmt = parse(name)
    x = inputs(fmt, (34, 33), torch.float32, special=False)
    for view in (x.T, x[::2, 1::3], x.flip(0), x.expand(2, 34, 33), torch._neg_view(x)):
        for rounding in ("nearest_even", "stochastic"):
            chosen = options(fmt, rounding=rounding, nonfinite="saturate", seed=3)
            dense = view.resolve_neg().contiguous()
            assert not any(differing(portably(view, fmt, 0, chosen), expected(dense, fmt, 0, chosen)))


@pytest.mark.parametrize("name", ["int8_tensor", "nvfp4", "fp8_e4m3_tensor"])
@pytest.mark.parametrize("amax", [3.0, 1e-3, 7e37, 3.4028235e38])
def test_a_largest_magnitude_that_is_given_chooses_the_scale(name: str, amax: float) -> None:
    fmt = parse(name)
    x, chosen = inputs(fmt, (7, 40), torch.float32, special=False), options(fmt, nonfinite="saturate")
    found = portably(x, fmt, 1, chosen, amax)
    assert not any(differing(found, expected(x, fmt, 1, chosen, amax)))
    assert any(differing(found, portably(x, fmt, 1, chosen)))


@pytest.mark.parametrize("name", ["int8_tensor", "nvfp4"])
def test_a_given_magnitude_beyond_float32_counts_as_in_the_definition(name: str) -> None:
    fmt = parse(name)
    x, chosen = inputs(fmt, (3, 40), torch.float32, special=False), options(fmt)
    with np.errstate(over="ignore"):
        wanted = packed(quantize(x.numpy(), fmt, chosen, 1e39), fmt)
    found = portable.quantize(x, fmt, 1, chosen, 1e39)
    assert not any(differing(as_bytes(found), as_bytes(wanted)))


@pytest.mark.parametrize("text", ["binary_channel", "block(element=posit8_1,scale=e8m0,size=32)"])
@pytest.mark.parametrize("rounding", ["up", "stochastic"])
def test_torch_warns_of_nothing_where_lines_lie_across(
    text: str, rounding: str, request: pytest.FixtureRequest
) -> None:
    request.addfinalizer(partial(torch.set_warn_always, torch.is_warn_always_enabled()))
    torch.set_warn_always(True)  # not once alone
    fmt = parse(text)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        portably(inputs(fmt, (6, 64), torch.float32).t(), fmt, 0, options(fmt, rounding=rounding))


@pytest.mark.parametrize("rounding", ["up", "stochastic"])
def test_tables_of_values_are_copied_to_a_device_once(rounding: str) -> None:
    fmt = parse("posit8_2")
    x, chosen = inputs(fmt, (5, 67), torch.float32), options(fmt, rounding=rounding, nonfinite="saturate")
    tables._copied.cache_clear()
    with torch.inference_mode():
        found = portably(x, fmt, 1, chosen)
    copied = tables._copied.cache_info().misses
    assert 0 < copied <= 4
    assert not any(differing(portably(x, fmt, 1, chosen), found))
    assert tables._copied.cache_info().misses == copied


def every(dtype: torch.dtype) -> torch.Tensor:
    """Return all 65,536 values of a type of 16 bits."""
    return torch.arange(-(2**15), 2**15).to(torch.int16).view(dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("fmt", cases.ELEMENTS, ids=cases.label)
def test_all_numbers_of_16_bits(fmt: Element, dtype: torch.dtype) -> None:
    x = every(dtype)
    for rounding in cases.ROUNDINGS:
        chosen = options(fmt, rounding=rounding, nonfinite=None if fmt.has_nan else "saturate")
        assert not any(differing(portably(x, fmt, 0, chosen), expected(x, fmt, 0, chosen))), rounding


MADE = tuple(f for f in cases.MADE if not isinstance(f, Lookup))


@pytest.mark.parametrize("part", range(8))
def test_elements_that_only_the_grammar_can_name(part: int) -> None:
    wrong = []
    for i, fmt in enumerate(MADE[part::8]):
        rounding = cases.ROUNDINGS[i % len(cases.ROUNDINGS)]
        chosen = options(fmt, rounding=rounding, nonfinite="saturate", seed=i)
        x = inputs(fmt, (600,), DTYPES[i % 2 * 3])
        if any(differing(portably(x, fmt, 0, chosen), expected(x, fmt, 0, chosen))):
            wrong.append((str(fmt), rounding))
    assert wrong == []


def made_blocks(count: int) -> list[Format]:
    """Return random formats with shared scales, of all that the grammar allows."""
    rng = np.random.default_rng(11)
    elements = [f for f in cases.MADE + cases.ELEMENTS if not f.power_of_two]
    scales = ["e8m0", "exponent(5,bias=20)", "fp32", "fp8_e4m3", "float(e=5,m=4)", "bf16"]
    found: list[Format] = []
    while len(found) < count:
        if rng.random() < 0.25:
            k2 = int(rng.integers(1, 6))
            found.append(
                Bdr(
                    int(rng.integers(1, 16)),
                    int(rng.integers(2, 9)),
                    k2 * int(rng.integers(1, 9)),
                    int(rng.integers(0, 5)),
                    k2,
                )
            )
            continue
        size = rng.choice(["channel", "tensor", "1", "3", "16", "40"])
        element = elements[rng.integers(len(elements))]
        text = f"block(element={element},scale={scales[rng.integers(6)]},size={size})"
        found.append(parse(text))
    return found


@pytest.mark.parametrize("part", range(4))
def test_random_formats_with_shared_scales(part: int) -> None:
    wrong = []
    for i, fmt in enumerate(made_blocks(160)[part::4]):
        rule = cases.SCALE_RULES[i % 8] if has_scale_rule(fmt) else "floor"
        rounding = cases.ROUNDINGS[i // 3 % len(cases.ROUNDINGS)]
        chosen = options(fmt, rounding=rounding, scale_rule=rule, nonfinite="saturate", seed=i)
        x = inputs(fmt, (4, 45), DTYPES[i % 4])
        if any(differing(portably(x, fmt, i % 2, chosen), expected(x, fmt, i % 2, chosen))):
            wrong.append((str(fmt), chosen.text))
    assert wrong == []


@pytest.mark.parametrize(
    ("broken", "name"),
    [
        ("fewbits.kernels.portable.values.rounding.nearest_even", "mxfp4"),
        ("fewbits.kernels.portable.values.scales.exponent_of", "mx9"),
        ("fewbits.kernels.portable.quantize.quantize.single", "nvfp4"),
    ],
)
def test_a_step_that_is_off_by_one_is_found(broken: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name_of_module, _, function = broken.rpartition(".")
    module = sys.modules[name_of_module]
    right = getattr(module, function)
    monkeypatch.setattr(module, function, lambda *args: right(*args) + 1)
    fmt = parse(name)
    chosen: Options = options(fmt, nonfinite="saturate")
    x = inputs(fmt, (5, 67), torch.float32)
    assert any(differing(portably(x, fmt, 1, chosen), expected(x, fmt, 1, chosen)))


@pytest.mark.parametrize("name", ["mxfp4", "mx6", "nvfp4", "int8_channel", "posit(3,es=0)", "bf16"])
@pytest.mark.parametrize("shape", [(4, 33, 3), (1, 5, 3), (0, 4, 2)])
def test_what_a_call_returned_is_taken_as_out_by_the_next(name: str, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    wanted = [fb.fake_quantize(-2 * x, name, axis=axis) for axis in range(3)]
    force_backend("portable")
    try:
        for axis in range(3):
            q = fb.quantize(x, name, axis=axis)
            assert fb.quantize(-2 * x, name, axis=axis, out=q) is q
            assert torch.equal(q.dequantize(), wanted[axis])
    finally:
        force_backend(None)


def test_nothing_waits_for_the_device_and_tensors_without_values_pass() -> None:
    x = torch.empty(3, 40, device="meta")
    for fmt in map(parse, ("mxfp8_e4m3", "nvfp4")):
        for rounding in ("nearest_even", "stochastic"):
            chosen = options(fmt, rounding=rounding, nonfinite="saturate")
            assert portable.fake_quantize(x, fmt, 1, chosen, None).is_meta
            parts = iter(portable.quantize(x, fmt, 1, chosen, None))
            whole = [None if group is None else next(parts) for group in fmt.groups]
            assert portable.dequantize(whole, fmt, (3, 40), 1, torch.float32).shape == x.shape


@pytest.mark.parametrize("size", ["channel", "tensor", "7"])
@pytest.mark.parametrize(
    ("element", "rule"), [("ternary", "twn"), ("ternary", "absmean"), ("binary", "absmean")]
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_scales_from_a_mean_are_those_of_the_definition(
    element: str, rule: str, size: str, dtype: torch.dtype
) -> None:
    fmt = parse(f"block(element={element},scale=fp32,size={size})")
    drawn = torch.randn(6, 29, generator=torch.Generator().manual_seed(3)).to(dtype)
    drawn[5] = torch.where(torch.arange(29) % 2 == 1, 2.0, -1.0)
    drawn[4] = -0.0
    broken = drawn.clone()
    broken[0, 3], broken[1, 4] = torch.nan, torch.inf
    for x, nonfinite in ((drawn, "block_nan"), (broken, "block_nan"), (broken, "saturate")):
        chosen = options(fmt, scale_rule=rule, nonfinite=nonfinite)
        found = portably(x, fmt, 1, chosen)
        assert not any(differing(found, defined(x, fmt, chosen)))
    # The control: the largest magnitude is another scale.
    assert any(
        differing(portably(drawn, fmt, 1, options(fmt)), defined(drawn, fmt, options(fmt, scale_rule=rule)))
    )
    with pytest.raises(ArgumentError, match="takes the mean of all values"):
        portable.fake_quantize(drawn, fmt, 1, options(fmt, scale_rule=rule), 2.0)


@pytest.mark.parametrize("rule", ["twn", "absmean"])
def test_a_compiled_graph_takes_scales_from_the_mean(rule: str) -> None:
    x = torch.randn(5, 33, generator=torch.Generator().manual_seed(1))

    def rounded(x: torch.Tensor) -> torch.Tensor:
        return fb.fake_quantize(x, "ternary_channel", scale_rule=rule)

    assert torch.equal(torch.compile(rounded, backend="aot_eager", fullgraph=True)(x), rounded(x))
