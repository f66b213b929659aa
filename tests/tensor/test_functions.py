"""The everyday functions: any array, any shape, any axis, and the same bits in every family."""

import itertools
import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import fewbits as fb
from fewbits import _native, kernels
from fewbits.errors import ArgumentError, DataError, DTypeError, FewbitsError, FormatError
from fewbits.formats import Element
from fewbits.kernels import Packed, options
from fewbits.kernels.native.jobs.geometry import one_line
from fewbits.kernels.native.jobs.kernel_format import kernel_format
from tests import cases
from tests.formats import strategies

SOME = (
    "fp8_e4m3",
    "int8",
    "posit8_1",
    "mxfp4",
    "mxint8",
    "mx6",
    "nvfp4",
    "vsq6",
    "int8_channel",
    "fp8_e4m3_tensor",
)


def same(a: Any, b: Any) -> bool:
    """Whether two arrays have the same bits, all NaN being one."""
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    here = ~np.isnan(a)
    return np.array_equal(a, b, equal_nan=True) and np.array_equal(np.signbit(a[here]), np.signbit(b[here]))


def normal(shape: tuple[int, ...], fmt: cases.Format | str, seed: int = 0) -> cases.Singles:
    """Return values that suit a format."""
    x = np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
    fmt = fb.format(fmt)
    return np.abs(x) if isinstance(fmt, Element) and fmt.min >= 0 else x


@pytest.mark.parametrize("fmt", cases.FORMATS, ids=cases.label)
def test_fake_quantize_is_quantize_and_back_for_any_shape_and_axis(fmt: cases.Format) -> None:
    for shape in cases.SHAPES:
        x = normal(shape, fmt)
        for axis in range(-max(len(shape), 1), max(len(shape), 1)):
            q = fb.quantize(x, fmt, axis=axis)
            y = fb.fake_quantize(x, fmt, axis=axis)
            assert (y.shape, y.dtype, q.shape) == (shape, np.float32, shape)
            assert same(q.dequantize(), y)
            assert same(fb.dequantize(q), y)


@pytest.mark.parametrize("name", SOME)
def test_awkward_sizes_give_the_same_bits_in_numpy_and_torch(name: str) -> None:
    for n, axis in itertools.product(cases.SIZES, (0, 1)):
        x = normal((3, n), name)
        ours = fb.fake_quantize(x, name, axis=axis)
        theirs = fb.fake_quantize(torch.from_numpy(x), name, axis=axis)
        assert isinstance(theirs, torch.Tensor)
        assert same(ours, theirs.numpy())
        stored = fb.quantize(torch.from_numpy(x), name, axis=axis)
        assert torch.equal(stored, fb.quantize(x, name, axis=axis))
        assert same(stored.dequantize().numpy(), ours)


@pytest.mark.parametrize("fmt", cases.FORMATS, ids=cases.label)
def test_strided_transposed_reversed_and_unaligned_arrays_round_as_their_copies(fmt: cases.Format) -> None:
    base = normal((12, 70), fmt)
    views = (
        base.T,
        base[::2],
        base[:, ::3],
        base[::-1, ::-1],
        np.asfortranarray(base),
        base[3:4, 5:6],
        unaligned(base),
    )
    for view in views:
        for axis in (0, 1):
            expected = fb.fake_quantize(view.copy(order="C"), fmt, axis=axis)
            assert same(fb.fake_quantize(view, fmt, axis=axis), expected)
            assert same(fb.quantize(view, fmt, axis=axis).dequantize(), expected)
    tensor = torch.from_numpy(base)
    for t in (tensor.t(), tensor[::2], tensor[:, ::3], tensor[3:4, 5:6], tensor[None].expand(3, 12, 70)):
        assert same(fb.fake_quantize(t, fmt).numpy(), fb.fake_quantize(t.contiguous().numpy(), fmt))


def unaligned(x: cases.Singles) -> cases.Singles:
    """Return a copy of x at an address that is no multiple of the size of a value."""
    return np.frombuffer(bytearray(b"\0" + x.tobytes()), np.uint8)[1:].view(x.dtype).reshape(x.shape)


@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "vsq6"])
def test_unaligned_parts_are_dequantized_and_unaligned_results_refused(name: str) -> None:
    x = normal((3, 40), name)
    fmt = fb.format(name)
    parts = kernels.quantize(x, fmt, 1, kernels.options(fmt))
    moved = Packed(*(None if part is None else unaligned(part) for part in parts))
    assert same(
        kernels.dequantize(moved, fmt, x.shape, -1, np.float32),
        kernels.dequantize(parts, fmt, x.shape, -1, np.float32),
    )
    with pytest.raises(ArgumentError, match="out is not aligned"):
        fb.fake_quantize(x, name, out=unaligned(x))
    rows = normal((2, 40), name)
    assert same(kernels.gemv(unaligned(rows), moved, fmt, 3), kernels.gemv(rows, parts, fmt, 3))


def test_the_kernels_themselves_refuse_unaligned_values() -> None:
    x = np.ones((1, 32), np.float32)
    fmt = fb.format("mxfp4")
    where, chosen = one_line(32), kernel_format(fmt, options(fmt))
    assert chosen is not None
    _native.fake_quantize(chosen, where, x, np.empty_like(x), 1)
    with pytest.raises(ValueError, match="no multiple of the size"):
        _native.fake_quantize(chosen, where, unaligned(x), np.empty_like(x), 1)


@pytest.mark.parametrize("fmt", cases.FORMATS, ids=cases.label)
def test_half_precision_is_widened_rounded_and_given_back(fmt: cases.Format) -> None:
    x = normal((5, 50), fmt)
    for dtype, torch_dtype in ((np.float16, torch.float16), (ml_dtypes.bfloat16, torch.bfloat16)):
        narrow = x.astype(dtype)
        y = fb.fake_quantize(narrow, fmt)
        assert y.dtype == dtype
        with np.errstate(over="ignore"):
            assert same(y, fb.fake_quantize(narrow.astype(np.float32), fmt).astype(dtype))
        assert same(fb.quantize(narrow, fmt).dequantize(), y)
        tensor = torch.from_numpy(narrow.astype(np.float32)).to(torch_dtype)
        rounded = fb.fake_quantize(tensor, fmt)
        assert rounded.dtype == torch_dtype
        assert same(rounded.float().numpy(), y.astype(np.float32))
        stored = fb.quantize(tensor, fmt).dequantize()
        assert stored.dtype == torch_dtype
        assert torch.equal(stored, rounded)


@pytest.mark.parametrize("fmt", cases.FORMATS, ids=cases.label)
def test_float64_rounds_once_and_keeps_its_dtype(fmt: cases.Format) -> None:
    x = np.random.default_rng(5).standard_normal((5, 50))
    x = np.abs(x) if isinstance(fmt, Element) and fmt.min >= 0 else x
    y = fb.fake_quantize(x, fmt)
    assert y.dtype == np.float64
    assert same(y, fb.quantize(x, fmt).dequantize())
    assert same(fb.fake_quantize(torch.from_numpy(x), fmt).numpy(), y)
    if isinstance(fmt, Element) and fmt.bits <= 16:
        # A double just past a tie would be a tie in float32.
        assert fb.fake_quantize(np.array([1 + 2.0**-60]), "fp8_e4m3", rounding="up").tolist() == [1]
        past = np.array([1.0625 * (1 + 2.0**-50)])
        assert fb.fake_quantize(past, "fp8_e4m3").tolist() == [1.125]
        assert fb.fake_quantize(past.astype(np.float32), "fp8_e4m3").tolist() == [1.0]


def test_float64_beyond_float32_and_below_its_subnormals_follows_the_same_rules() -> None:
    huge = np.array([1e300, -(2.0**200), 2.0**128])
    assert fb.fake_quantize(huge, "fp32").tolist() == [np.inf, -np.inf, np.inf]
    assert fb.fake_quantize(huge, "fp8_e4m3").tolist() == [448, -448, 448]
    assert fb.fake_quantize(huge, "mxfp4").tolist() == [6 * 2.0**127, -6 * 2.0**127, 2.0**128]
    assert fb.fake_quantize(huge, "int8_tensor").tolist()[0] == pytest.approx(float(np.finfo(np.float32).max))
    tiny = np.array([5e-324, -5e-324, 2.0**-1022, 2.0**-150, 2.0**-149])
    assert same(fb.fake_quantize(tiny, "fp32"), [0, -0.0, 0, 0, 2.0**-149])
    assert fb.fake_quantize(tiny, "fp32", rounding="up").tolist() == [
        2.0**-149,
        0,
        2.0**-149,
        2.0**-149,
        2.0**-149,
    ]
    assert same(fb.fake_quantize(tiny[:3], "mxfp8_e5m2"), [0, -0.0, 0])
    up = fb.fake_quantize(tiny[:3], "mxfp8_e5m2", rounding="up")
    assert up.tolist() == [2.0**-143, 0, 2.0**-143]  # 2^-16 under the scale 2^-127: the sign reaches rounding
    assert np.isfinite(fb.fake_quantize(tiny, "nvfp4")).all()
    assert np.isfinite(fb.fake_quantize(tiny, "int8_tensor")).all()


@pytest.mark.parametrize("fmt", cases.FORMATS, ids=cases.label)
def test_big_endian_arrays_and_numpy_scalars_are_taken(fmt: cases.Format) -> None:
    x = normal((40,), fmt)
    for dtype in (">f4", ">f8", ">f2"):
        y = fb.fake_quantize(x.astype(dtype), fmt)
        assert y.dtype == np.dtype(dtype)
        assert same(y, fb.fake_quantize(x.astype(dtype[1:]), fmt))
    assert fb.fake_quantize(np.float32(0.5), "fp8_e4m3") == 0.5
    assert fb.fake_quantize(0.3, "fp4_e2m1").dtype == np.float64


@given(
    strategies.formats,
    st.sampled_from(((), (0,), (1,), (7,), (2, 33), (3, 2, 5))),
    st.sampled_from(cases.ROUNDINGS),
    st.sampled_from((np.float16, np.float32, np.float64)),
    st.integers(-40, 40),
    st.integers(0, 2**32 - 1),
)
@settings(max_examples=250)
def test_any_format_rounds_any_array_without_a_warning_and_stores_it(
    fmt: cases.Format, shape: tuple[int, ...], rounding: str, dtype: type, scale: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    with np.errstate(over="ignore"):
        x = (rng.standard_normal(shape) * 2.0**scale * rng.integers(0, 2, shape)).astype(dtype)
    x = x if np.isfinite(x).all() else np.ones(shape, dtype)
    axis = int(rng.integers(0, max(len(shape), 1)))
    generator = 3 if rounding == "stochastic" else None
    y = fb.fake_quantize(x, fmt, axis=axis, rounding=rounding, generator=generator)
    q = fb.quantize(x, fmt, axis=axis, rounding=rounding, generator=generator)
    assert (y.shape, y.dtype) == (shape, dtype)
    assert same(y, q.dequantize())


@pytest.mark.parametrize("name", SOME)
def test_the_input_is_never_written_to(name: str) -> None:
    x = normal((4, 40), name)
    kept = x.copy()
    x.setflags(write=False)
    for nonfinite in (None, "saturate", "raise"):
        fb.fake_quantize(x, name, nonfinite=nonfinite)
        fb.quantize(x, name, nonfinite=nonfinite)
    assert np.array_equal(x, kept)


@pytest.mark.parametrize(
    ("x", "message"),
    [
        ([1.0, 2.0], "list; expected a numpy.ndarray or a torch.Tensor of floating-point numbers"),
        (None, "NoneType; expected a numpy.ndarray"),
        ("abc", "str; expected a numpy.ndarray"),
        (np.ones(3, np.int32), "an array of int32; expected float16, bfloat16, float32 or float64"),
        (np.ones(3, bool), "an array of bool; expected float16, bfloat16, float32 or float64"),
        (np.ones(3, np.complex64), "an array of complex64; expected"),
        (np.ones(3, np.longdouble), "an array of .*128; expected .* convert it with x.astype\\('float32'\\)"),
        (np.array(["a"]), "an array of <U1; expected"),
        (np.ones(3, ml_dtypes.float8_e5m2), "an array of float8_e5m2; expected"),
    ],
)
def test_what_is_no_array_of_floating_point_is_refused(x: Any, message: str) -> None:
    for function in (fb.fake_quantize, fb.quantize):
        with pytest.raises(DTypeError, match=message):
            function(x, "mxfp4")


@pytest.mark.parametrize(
    ("shape", "axis", "message"),
    [
        ((3,), 1, "axis=1 is out of range for an array of 1 dimensions; use -1 to 0"),
        ((3, 4), -3, "axis=-3 is out of range for an array of 2 dimensions; use -2 to 1"),
        ((), 1, "axis=1 is out of range for an array of 0 dimensions; use -1 to 0"),
        ((3,), 0.5, "axis=0.5 is not an integer"),
        ((3,), True, "axis=True is not an integer"),
        ((3,), None, "axis=None is not an integer"),
    ],
)
def test_an_axis_out_of_range_is_refused(shape: tuple[int, ...], axis: Any, message: str) -> None:
    for function, make in itertools.product((fb.fake_quantize, fb.quantize), (np.ones, torch.ones)):
        with pytest.raises(ArgumentError, match=re.escape(message)):
            function(make(shape), "mxfp4", axis=axis)


@pytest.mark.parametrize("amax", [-1, np.nan, np.inf, 10**400, "3", [1.0]])
def test_an_amax_that_is_no_magnitude_is_refused(amax: Any) -> None:
    for function in (fb.fake_quantize, fb.quantize):
        with pytest.raises(
            ArgumentError, match="is not a finite number from 0 up; leave it out to measure x"
        ):
            function(np.ones(3, np.float32), "int8_tensor", amax=amax)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("name", ["int8_tensor", "nvfp4", "fp8_e4m3_tensor"])
def test_an_amax_below_what_float32_holds_is_not_that_of_zeros(name: str, dtype: Any) -> None:
    x = np.full((1, 16), 100, dtype)
    least = fb.fake_quantize(x, name, amax=2.0**-149)
    assert 0 < np.abs(least).max() < 1
    for amax in (1e-46, 5e-324, torch.tensor(1e-60, dtype=torch.float64)):
        assert same(fb.fake_quantize(x, name, amax=amax), least)
        assert same(fb.quantize(x, name, amax=amax).dequantize(), least)


ABOVE = {  # the largest value of each dtype, and what is no value of it
    "float16": (65504.0, 65505.0),
    "bfloat16": (float.fromhex("0x1.fep127"), 3.4e38),
    "float32": (float.fromhex("0x1.fffffep127"), 1e39),
    "float64": (1.7976931348623157e308, None),
}


@pytest.mark.parametrize("name", ["int8_tensor", "nvfp4", "fp8_e4m3_tensor", "ternary_tensor"])
@pytest.mark.parametrize("dtype", ABOVE)
def test_an_amax_that_no_value_of_the_dtype_reaches_is_refused(dtype: str, name: str) -> None:
    most, beyond = ABOVE[dtype]
    values = np.array([[most / 3, -most / 2, 2.0, 0.0] * 4])
    array = values.astype(getattr(ml_dtypes, dtype, dtype))
    tensor = torch.from_numpy(values).to(getattr(torch, dtype))
    for x, function in itertools.product((array, tensor), (fb.fake_quantize, fb.quantize)):
        function(x, name, amax=most)
        if beyond is None:
            continue
        with pytest.raises(ArgumentError, match=f"above {re.escape(f'{most:.9g}')}, the largest {dtype}"):
            function(x, name, amax=beyond)
    if name == "int8_tensor" and dtype != "float64":
        found = np.asarray(fb.fake_quantize(tensor, name, amax=most).double())
        # Half the scale, amax / 127, and half a unit of the dtype.
        bound = most * (0.5 / 127 + torch.finfo(tensor.dtype).eps / 4)
        assert np.abs(found - np.asarray(tensor.double())).max() <= bound * (1 + 2.0**-20)


@pytest.mark.parametrize("family", ["torch", "numpy"])
def test_a_call_that_is_refused_draws_nothing(family: str) -> None:
    generator: Any = torch.Generator().manual_seed(1) if family == "torch" else np.random.default_rng(1)
    x: Any = torch.ones(4, 64) if family == "torch" else np.ones((4, 64), np.float32)

    def state() -> Any:
        return generator.get_state().tolist() if family == "torch" else generator.bit_generator.state

    before = state()
    wrong: tuple[dict[str, Any], ...] = (
        {"format": "mxfpX"},
        {"axis": 2},
        {"axis": 0.5},
        {"scale_rule": "flor"},
        {"random_bits": 8},
        {"overflow": "inf"},
        {"nonfinite": "element"},
        {"zero_block": "two"},
        {"amax": 3.0},
        {"amax": -1.0, "format": "int8_tensor"},
        {"x": np.ones(3, int)},
        {"out": x.tolist()},
        {"out": x[:, 1:]},
        {"out": fb.quantize(x, "mxfp8_e4m3")},
        {"sparsity": "5:4"},
        {"sparsity": "2:4", "axis": 0, "x": x[:3]},
        {"sparsity": "2:4", "out": fb.quantize(x, "mxfp4")},
        {"sparsity": "2:4", "format": "binary_channel"},
    )
    for function, fault in itertools.product((fb.quantize, fb.fake_quantize), wrong):
        if function is fb.quantize or "sparsity" not in fault:
            arguments = {"x": x, "format": "mxfp4"} | fault
            with pytest.raises(FewbitsError):
                function(**arguments, rounding="stochastic", generator=generator)
            assert str(state()) == str(before), fault
    found = fb.fake_quantize(x / 3, "mxfp4", rounding="stochastic", generator=generator)
    assert str(state()) != str(before)
    again: Any = torch.Generator().manual_seed(1) if family == "torch" else np.random.default_rng(1)
    drawn = (
        int(torch.randint(2**63 - 1, (), generator=again))
        if family == "torch"
        else int(again.integers(2**63 - 1, dtype=np.int64))
    )
    assert same(found, fb.fake_quantize(x / 3, "mxfp4", rounding="stochastic", generator=drawn))


@pytest.mark.parametrize("name", ["int8_tensor", "nvfp4"])
def test_a_given_amax_replaces_the_measured_one(name: str) -> None:
    x = normal((2, 32), name)
    amax = float(np.abs(x).max())
    assert same(fb.fake_quantize(x, name, amax=amax), fb.fake_quantize(x, name))
    assert same(fb.fake_quantize(torch.from_numpy(x), name, amax=amax).numpy(), fb.fake_quantize(x, name))
    clipped = fb.fake_quantize(x, name, amax=amax / 4)
    assert np.abs(clipped).max() == pytest.approx(amax / 4, rel=1e-3)
    assert same(clipped, fb.quantize(x, name, amax=amax / 4).dequantize())


@pytest.mark.parametrize("option", ["overflow", "nonfinite", "zero_block"])
@pytest.mark.parametrize("given", ["", 0, False])
def test_a_choice_that_is_empty_is_no_default(option: str, given: Any) -> None:
    with pytest.raises(ArgumentError, match=f"{option}={given!r} is not one of"):
        fb.fake_quantize(np.ones(4), "mxfp4", **{option: given})


def test_errors_come_before_work_and_name_the_format() -> None:
    with pytest.raises(FormatError, match="there is no format named 'mxfp5'"):
        fb.quantize(np.ones(3), "mxfp5")
    with pytest.raises(FormatError, match="a format is written as text, for example 'mxfp4'; got int"):
        fb.fake_quantize(torch.ones(3), 4)
    with pytest.raises(DataError, match="nonfinite='raise' refuses them for int8"):
        fb.fake_quantize(torch.tensor([torch.nan]), "int8")
    with pytest.raises(DTypeError, match="ndarray; expected the NarrowTensor that"):
        fb.dequantize(np.ones(3))


@pytest.mark.parametrize("fmt", cases.FORMATS, ids=cases.label)
def test_a_result_in_memory_of_the_callers_is_the_result(fmt: cases.Format) -> None:
    x = normal((5, 50), fmt)
    for dtype in (np.float64, np.float32, np.float16, ml_dtypes.bfloat16):
        given = x.astype(dtype)
        out = np.full(given.shape, 9, dtype)
        for axis in (0, 1):
            assert fb.fake_quantize(given, fmt, axis=axis, out=out) is out
            assert same(out, fb.fake_quantize(given, fmt, axis=axis))
    for torch_dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16):
        tensor = torch.from_numpy(x).to(torch_dtype)
        target = torch.full_like(tensor, 9)
        assert fb.fake_quantize(tensor, fmt, out=target) is target
        assert torch.equal(target, fb.fake_quantize(tensor, fmt))
        turned = fb.fake_quantize(tensor.t(), fmt, out=torch.empty(50, 5, dtype=torch_dtype))
        assert torch.equal(turned, fb.fake_quantize(tensor.t(), fmt))


@pytest.mark.parametrize("fmt", cases.FORMATS, ids=cases.label)
def test_packed_parts_of_an_earlier_result_take_the_next(fmt: cases.Format) -> None:
    first, x = normal((5, 50), fmt), normal((5, 50), fmt)[::-1].copy() / 2
    for dtype in (np.float64, np.float32, np.float16, ml_dtypes.bfloat16):
        for axis in (0, 1):
            out = fb.quantize(first.astype(dtype), fmt, axis=axis)
            assert fb.quantize(x.astype(dtype), fmt, axis=axis, out=out) is out
            assert same_parts(out, fb.quantize(x.astype(dtype), fmt, axis=axis))
    for torch_dtype in (torch.float32, torch.bfloat16):
        tensor = torch.from_numpy(x).to(torch_dtype)
        target = fb.quantize(torch.from_numpy(first).to(torch_dtype), fmt)
        assert fb.quantize(tensor, fmt, out=target) is target
        assert same_parts(target, fb.quantize(tensor, fmt))


def same_parts(a: fb.NarrowTensor, b: fb.NarrowTensor) -> bool:
    return all(p is q or torch.equal(p, q) for p, q in zip(a.pieces, b.pieces, strict=True))


def test_packed_parts_that_do_not_fit_are_refused() -> None:
    x = torch.ones(4, 64)
    for out in (
        fb.quantize(x, "mxfp8_e4m3"),
        fb.quantize(x.t().contiguous(), "mxfp4"),
        fb.quantize(x, "mxfp4", axis=0),
        fb.quantize(x.bfloat16(), "mxfp4"),
        fb.quantize(x.numpy(), "mxfp4"),
        x,
    ):
        with pytest.raises(
            ArgumentError, match="expected a NarrowTensor as an earlier call returned it for mxfp4"
        ):
            fb.quantize(x, "mxfp4", out=out)
    scattered = fb.quantize(torch.ones(4, 128), "mxfp4")[:, :64]
    with pytest.raises(ArgumentError, match="are not contiguous or not on cpu"):
        fb.quantize(x, "mxfp4", out=scattered)


def test_a_part_of_a_larger_array_takes_a_result_and_nothing_beside_it_changes() -> None:
    whole = np.full(4 * 40 + 7, 9, np.float32)
    x = normal((4, 40), "mxfp4")
    fb.fake_quantize(x, "mxfp4", out=whole[3:163].reshape(4, 40))
    assert same(whole[3:163].reshape(4, 40), fb.fake_quantize(x, "mxfp4"))
    assert (whole[:3] == 9).all()
    assert (whole[163:] == 9).all()


@pytest.mark.parametrize(
    "out",
    [np.empty((4, 8)), np.empty((8, 4), np.float32), torch.empty(4, 8), [0.0], np.empty((4, 8), np.float16)],
    ids=["dtype", "shape", "family", "list", "half"],
)
def test_memory_that_is_not_like_the_input_is_refused(out: Any) -> None:
    with pytest.raises(
        ArgumentError, match="out is not like the result, a ndarray of float32 and shape \\(4, 8\\)"
    ):
        fb.fake_quantize(np.ones((4, 8), np.float32), "mxfp4", out=out)


@pytest.mark.parametrize(
    ("out", "fault"),
    [
        (np.empty((8, 4), np.float32).T, "is not contiguous"),
        (np.empty((4, 16), np.float32)[:, ::2], "is not contiguous"),
        (np.empty(129, np.int8)[1:].view(np.float32).reshape(4, 8), "is not aligned"),
        (np.broadcast_to(np.float32(1), (4, 8)), "is not contiguous"),
        (np.frombuffer(bytes(128), np.float32).reshape(4, 8), "is read-only"),
        (torch.empty(8, 4).t(), "is not contiguous"),
    ],
)
def test_memory_that_cannot_be_written_through_is_refused_with_the_reason(out: Any, fault: str) -> None:
    x = np.ones((4, 8), np.float32)
    with pytest.raises(ArgumentError, match=f"out {fault}; give a separate, contiguous array"):
        fb.fake_quantize(torch.from_numpy(x) if isinstance(out, torch.Tensor) else x, "mxfp4", out=out)


@pytest.mark.parametrize("dtype", [">f2", ">f4", ">f8"])
def test_memory_in_another_byte_order_is_refused(dtype: str) -> None:
    x = np.linspace(-3, 3, 64).astype(dtype)
    out = np.full(64, 7, dtype)
    with pytest.raises(ArgumentError, match="out is not in the byte order of this machine"):
        fb.fake_quantize(x, "mxfp4", out=out)
    with pytest.raises(ArgumentError, match="out is not in the byte order of this machine"):
        fb.dequantize(fb.quantize(x, "mxfp4"), out=out)
    assert (out == 7).all()


def test_memory_of_a_file_and_of_a_number_takes_a_result(tmp_path: Path) -> None:
    x = np.linspace(-3, 3, 64, dtype=np.float32)
    out = np.memmap(tmp_path / "values", np.float32, "w+", shape=(64,))
    assert fb.fake_quantize(x, "mxfp4", out=out) is out
    assert same(np.asarray(out), fb.fake_quantize(x, "mxfp4"))
    number = np.zeros(())
    assert fb.fake_quantize(1.3, "fp8_e4m3", out=number) is number
    assert number == 1.25
    q = fb.quantize(np.float64(0), "fp8_e4m3")
    assert fb.quantize(1.3, "fp8_e4m3", out=q) is q
    assert q.dequantize() == 1.25
    with pytest.raises(ArgumentError, match="expected a NarrowTensor as an earlier call returned it"):
        fb.quantize(1.3, "fp8_e4m3", out=fb.quantize(np.zeros(2), "fp8_e4m3"))
    with pytest.raises(ArgumentError, match="out is not like the result"):
        fb.fake_quantize(x, "mxfp4", out=np.ma.zeros(64, np.float32))


def test_memory_that_overlaps_the_input_is_refused() -> None:
    x, tensor = np.ones((4, 8), np.float32), torch.ones(4, 8)
    together = torch.ones(5, 8)
    for source, out in (
        (x, x),
        (x, x[:]),
        (tensor, tensor),
        (tensor, tensor.view(4, 8)),
        (together[:4], together[1:]),
    ):
        with pytest.raises(ArgumentError, match="out overlaps what is read; give a separate"):
            fb.fake_quantize(source, "mxfp4", out=out)


def test_torch_notices_that_out_was_written_to() -> None:
    w = torch.randn(4, 64, requires_grad=True)
    kept = torch.randn(4, 64)
    y = w * kept
    fb.fake_quantize(torch.randn(4, 64), "mxfp4", out=kept)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    y = w * kept
    fb.dequantize(fb.quantize(torch.randn(4, 64), "mxfp4"), out=kept)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    q = fb.quantize(torch.randn(4, 64), "mxfp4")
    z = w @ q.t()
    fb.quantize(torch.randn(4, 64), "mxfp4", out=q)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.sum().backward()
    before = [part._version for part in q.pieces if part is not None]
    fb.quantize(torch.randn(4, 64), "mxfp4", out=q)
    assert [part._version for part in q.pieces if part is not None] == [n + 1 for n in before]
    with torch.inference_mode():  # where nothing is counted
        fb.fake_quantize(torch.ones(4, 64), "mxfp4", out=torch.empty(4, 64))


@pytest.mark.parametrize("name", ["x", "out", "made of one"])
def test_out_beside_a_tensor_that_requires_a_gradient_is_refused_as_torch_does(name: str) -> None:
    x, out = torch.randn(4, 64), torch.empty(4, 64)
    (x if name == "x" else out).requires_grad_()
    if name == "made of one":
        out = out * 1
    with pytest.raises(RuntimeError, match="don't support automatic differentiation"):
        torch.neg(x, out=out)
    with pytest.raises(ArgumentError, match="out= was given with a tensor that requires a gradient"):
        fb.fake_quantize(x, "mxfp4", out=out)
    with torch.no_grad():
        assert torch.equal(fb.fake_quantize(x, "mxfp4", out=out), fb.fake_quantize(x, "mxfp4"))


def test_out_that_has_no_plain_memory_is_refused() -> None:
    with pytest.raises(ArgumentError, match="out is a negated view"):
        fb.fake_quantize(torch.ones(4), "mxfp4", out=torch.ones(4, dtype=torch.complex64).conj().imag)
    for out in (torch.empty(4), fb.quantize(torch.ones(4), "mxfp4")):
        call = fb.quantize if isinstance(out, fb.NarrowTensor) else fb.fake_quantize
        with pytest.raises(ArgumentError, match="inside of a transform of"):
            torch.func.grad(lambda x, call=call, out=out: call(x, "mxfp4", out=out).sum())(torch.ones(4))


def test_a_wrong_out_is_named_without_its_values() -> None:
    x = torch.randn(3, 64)
    for wrong in (x, x.numpy(), 3):
        with pytest.raises(ArgumentError, match=r"^out is a (Tensor|ndarray|int); expected a NarrowTensor"):
            fb.quantize(x, "mxfp4", out=wrong)
