"""Operations on flat tensors: results are those of the kernels, and what they cannot read is refused."""

import numpy as np
import pytest
import torch

import fewbits as fb
from fewbits.errors import ArgumentError, DataError, DTypeError
from fewbits.formats import Format, parse
from fewbits.kernels import ops
from fewbits.kernels.bits.layout import layout
from fewbits.kernels.bits.options import Choices
from fewbits.kernels.reference.top_k.top_k import top_k
from tests import cases


def normal(n: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(n)).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("n", "k"), [(0, 0), (1, 1), (5000, 0), (5000, 50), (5000, 5000)])
def test_top_k_gives_rising_indices_of_the_largest_magnitudes(dtype: torch.dtype, n: int, k: int) -> None:
    x = normal(n, dtype).requires_grad_()
    found = ops.top_k(x, k)
    assert (found.dtype, found.shape) == (torch.int64, (k,))
    assert np.array_equal(found.numpy(), top_k(x.detach().float().numpy(), k))


def test_top_k_refuses_what_it_cannot_count() -> None:
    for k in (-1, 9):
        with pytest.raises(ArgumentError, match=f"k={k} of 8 values; expected 0 to 8"):
            ops.top_k(torch.ones(8), k)


@pytest.mark.parametrize(
    "x",
    [
        torch.ones(4, 2),
        torch.ones(8)[::2],
        torch.tensor(1.0),
        torch.ones(8).to_sparse(),
    ],
    ids=["matrix", "strided", "scalar", "sparse"],
)
def test_what_is_not_flat_is_refused(x: torch.Tensor) -> None:
    remedy = "to_dense" if x.is_sparse else "contiguous"
    with pytest.raises(ArgumentError, match=rf"expected a flat one.* side by side: x\.{remedy}\(\)\.flatten"):
        ops.top_k(x, 1)
    assert len(ops.top_k(getattr(x, remedy)().flatten(), 1)) == 1


def test_tensors_on_several_devices_are_refused() -> None:
    x, residual = torch.ones(8), torch.ones(8, device="meta")
    with pytest.raises(ArgumentError, match=r"residual is on meta; expected cpu, where the rest is"):
        ops.quantize_with_feedback(x, residual, "int8", Choices(), 0, [torch.zeros(8, dtype=torch.uint8)])
    pieces = [torch.zeros(8, dtype=torch.uint8, device="meta"), None, None, None]
    with pytest.raises(ArgumentError, match=r"pieces\[0\] is on meta; expected cpu"):
        ops.dequantize_add(pieces, "int8", 8, x)


def test_other_dtypes_are_refused() -> None:
    with pytest.raises(DTypeError, match=r"torch\.float64; expected torch\.float32 or torch\.bfloat16"):
        ops.top_k(torch.ones(8).double(), 1)


def views(fmt: Format, n: int) -> list[torch.Tensor | None]:
    """Return the pieces of n values as views of one buffer of bytes, at multiples of four."""
    buffer, at, pieces = torch.zeros(8 * n + 64, dtype=torch.uint8), 4, []
    for shape, dtype in zip(layout(fmt, (n,), 0), (torch.uint8,) * 3 + (torch.float32,), strict=True):
        size = 0 if shape is None else shape[0] * (4 if dtype == torch.float32 else 1)
        pieces.append(None if shape is None else buffer[at : at + size].view(dtype))
        at += -(-size // 4) * 4
    return pieces


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("n", [1, 33, 5000])
@pytest.mark.parametrize("fmt", cases.FORMATS, ids=str)
def test_feedback_is_rounding_the_sum_and_keeping_the_difference(
    fmt: Format, n: int, dtype: torch.dtype
) -> None:
    rounding = "stochastic" if n == 33 else "nearest_even"
    x, residual, pieces = normal(n, dtype), normal(n + 1)[:n] * 0.01, views(fmt, n)
    v = x.float() + residual
    ops.quantize_with_feedback(x, residual, fmt, Choices(rounding), 5, pieces)
    q = fb.quantize(v, fmt, rounding=rounding, generator=5 if rounding == "stochastic" else None)
    for mine, theirs in zip(pieces, q.pieces, strict=True):
        assert (mine is None) == (theirs is None)
        assert mine is None or theirs is None or torch.equal(mine, theirs)
    left = v - q.dequantize()
    assert torch.equal(residual, torch.where(left.isfinite(), left, 0))


@pytest.mark.parametrize("fmt", cases.FORMATS, ids=str)
def test_dequantize_add_is_decoding_and_then_adding(fmt: Format) -> None:
    for n in (1, 33, 5000):
        q, into = fb.quantize(normal(n), fmt), normal(n + 1)[:n].clone()
        wanted = into + q.dequantize()
        ops.dequantize_add(q.pieces, fmt.grammar, n, into)
        assert torch.equal(into.isnan(), wanted.isnan())
        assert torch.equal(into.nan_to_num(), wanted.nan_to_num())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("fmt", cases.FORMATS, ids=str)
def test_flat_conversions_write_what_quantize_and_dequantize_return(fmt: Format, dtype: torch.dtype) -> None:
    for n, rounding in ((1, "nearest_even"), (33, "stochastic"), (5000, "nearest_even")):
        x, pieces = normal(n, dtype), views(fmt, n)
        ops.quantize_flat(x, fmt.grammar, Choices(rounding), 5, pieces)
        q = fb.quantize(x, fmt, rounding=rounding, generator=5 if rounding == "stochastic" else None)
        for mine, theirs in zip(pieces, q.pieces, strict=True):
            assert (mine is None) == (theirs is None)
            assert mine is None or theirs is None or torch.equal(mine, theirs)
        out = torch.full((n,), torch.nan, dtype=dtype)
        ops.dequantize_flat(pieces, fmt, out)
        assert torch.equal(out.isnan(), q.dequantize().isnan())
        assert torch.equal(out.nan_to_num(), q.dequantize().nan_to_num())


def test_an_infinity_that_decides_about_a_shared_scale_is_the_largest_number() -> None:
    x, pieces = torch.tensor([1.0, torch.inf]), views(parse("int8_tensor"), 2)
    ops.quantize_flat(x, "int8_tensor", Choices(nonfinite="saturate"), 0, pieces)
    wanted = fb.quantize(x, "int8_tensor", nonfinite="saturate").pieces
    for mine, theirs in zip(pieces, wanted, strict=True):
        assert mine is None or theirs is None or torch.equal(mine, theirs)
    with pytest.raises(DataError, match="holds"):
        ops.quantize_flat(x, "int8_tensor", Choices(nonfinite="raise"), 0, pieces)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_the_largest_finite_magnitude_and_whether_all_are(dtype: torch.dtype) -> None:
    x = normal(5000, dtype)
    assert ops.largest_finite(x) == (float(x.abs().max()), True)
    x[17], x[18] = torch.nan, -torch.inf
    assert ops.largest_finite(x) == (float(x[x.isfinite()].abs().max()), False)
    assert ops.largest_finite(x[:0]) == (0.0, True)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32, torch.bfloat16, torch.float64])
def test_kept_memory_is_nobody_elses_while_it_is_held(dtype: torch.dtype) -> None:
    first = ops.empty_kept(3 << 20, dtype).fill_(1)
    second = ops.empty_kept(3 << 20, dtype).fill_(2)
    assert (first.dtype, first.shape) == (dtype, (3 << 20,))
    part = first[5:7]
    del first
    third = ops.empty_kept(3 << 20, dtype).fill_(3)
    assert part.tolist() == [1, 1]
    assert second[:2].tolist() == [2, 2]
    place = third.data_ptr()
    del third
    again = [ops.empty_kept(3 << 20, dtype) for _ in range(32)]  # what earlier tests left may come first
    assert place in {x.data_ptr() for x in again}


def test_no_values_are_no_work() -> None:
    q = fb.quantize(torch.empty(0), "mxfp4")
    ops.quantize_flat(torch.empty(0), "mxfp4", Choices(), 0, q.pieces)
    ops.dequantize_flat(q.pieces, "mxfp4", torch.empty(0))
    ops.dequantize_add(q.pieces, "mxfp4", 0, torch.empty(0))
    ops.quantize_with_feedback(torch.empty(0), torch.empty(0), "mxfp4", Choices(), 0, q.pieces)


def test_a_refused_nan_leaves_the_residual_as_it_was() -> None:
    x, residual = torch.tensor([1.0, torch.nan]), torch.tensor([0.25, 0.5])
    with pytest.raises(DataError, match="holds 1 NaN"):
        ops.quantize_with_feedback(
            x, residual, "int8_tensor", Choices(nonfinite="raise"), 0, views(parse("int8_tensor"), 2)
        )
    assert residual.tolist() == [0.25, 0.5]


def test_pieces_of_other_tensors_are_refused() -> None:
    q, into = fb.quantize(normal(64), "mxfp4"), torch.zeros(64)
    with pytest.raises(ArgumentError, match=r"pieces are .*64 values of fp8_e4m3 have .*NarrowTensor"):
        ops.dequantize_add(q.pieces, "fp8_e4m3", 64, into)
    with pytest.raises(ArgumentError, match=r"pieces\[0\] has 32 items; expected 64"):
        ops.dequantize_add(q.pieces, "mxfp8_e4m3", 64, into)
    with pytest.raises(ArgumentError, match="into has 64 items; expected 32"):
        ops.dequantize_add(q.pieces, "mxfp4", 32, into)
    with pytest.raises(ArgumentError, match="residual has 3 items; expected 4"):
        ops.quantize_with_feedback(torch.ones(4), torch.ones(3), "mxfp4", Choices(), 0, q.pieces)
    with pytest.raises(DTypeError, match=r"pieces\[0\] is a tensor of torch\.int8; expected torch\.uint8"):
        ops.dequantize_add([q.codes.view(torch.int8), q.scales, None, None], "mxfp4", 64, into)
    with pytest.raises(DTypeError, match=r"into is a tensor of torch\.float64; expected torch\.float32"):
        ops.dequantize_add(q.pieces, "mxfp4", 64, into.double())
