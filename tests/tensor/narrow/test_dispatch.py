"""What torch asks of a tensor: copies, conversions, comparison, and a refusal of everything else."""

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fewbits as fb
from fewbits.errors import ArgumentError, DataError
from tests import cases
from tests.tensor.packed import packed, same, values

Use = Callable[[fb.NarrowTensor], object]
SHARED = ("int8_tensor", "int8_channel", "nvfp4", "vsq6")


def flipped(q: fb.NarrowTensor, name: str) -> fb.NarrowTensor:
    """Return a clone with one bit of one part changed."""
    other = q.clone()
    getattr(other, name).view(torch.uint8).view(-1)[-1] ^= 1
    return other


@pytest.mark.parametrize("fmt", cases.FORMATS, ids=cases.label)
def test_a_clone_is_equal_and_shares_nothing_and_one_flipped_bit_makes_it_unequal(fmt: cases.Format) -> None:
    q = packed(fmt, (3, 40))
    assert torch.equal(q, q.clone())
    for name, part in zip(("codes", "scales", "shifts", "outer"), q.pieces, strict=True):
        if part is not None:
            assert not torch.equal(q, flipped(q, name))
    assert torch.equal(q, packed(fmt, (3, 40)))
    assert torch.equal(q, q.detach())
    assert q.detach().codes.data_ptr() == q.codes.data_ptr()
    for attribute in (q, q.clone(), q.detach()):
        assert (attribute.format, attribute.axis, attribute.dtype) == (fmt, 1, torch.float32)


def test_equal_compares_format_axis_and_shape_too() -> None:
    q = packed("mxfp8_e4m3", (32, 32))
    assert not torch.equal(q, packed("mxfp8_e5m2", (32, 32)))
    assert not torch.equal(q, q.t())
    assert not torch.equal(q, q[:16])
    other = fb.NarrowTensor.from_parts(
        *q.pieces, format=fb.mxfp8_e5m2, shape=(32, 32), axis=1, dtype=torch.float32
    )
    assert not torch.equal(q, other)
    assert torch.equal(q.to(torch.float64), q)
    with pytest.raises(ArgumentError, match=r"torch.equal of a NarrowTensor and an ordinary tensor"):
        torch.equal(q, q.dequantize())


def test_an_outer_scale_that_is_nan_equals_itself() -> None:
    q = packed("nvfp4", (2, 32))
    assert q.outer is not None
    q.outer.fill_(torch.nan)
    assert torch.equal(q, q.clone())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_another_dtype_changes_what_dequantize_gives_and_no_byte(dtype: torch.dtype) -> None:
    q = packed("mxfp8_e4m3", (3, 40))
    found = q.to(dtype)
    assert (found.dtype, q.dtype) == (dtype, torch.float32)
    assert torch.equal(found, q)
    assert same(found.dequantize(), q.dequantize().to(dtype))
    assert torch.equal(found.to(torch.float32).dequantize(), q.dequantize())  # nothing was lost on the way
    assert found.codes.data_ptr() != q.codes.data_ptr()
    assert q.to(torch.float32) is q


def test_half_bfloat16_cpu_and_meta_are_conversions_too() -> None:
    q = packed("nvfp4", (3, 40))
    assert (q.half().dtype, q.bfloat16().dtype, q.double().dtype) == (
        torch.half,
        torch.bfloat16,
        torch.double,
    )
    assert q.cpu() is q
    meta = q.to("meta")
    assert (meta.device.type, meta.codes.device.type, meta.nbytes) == ("meta", "meta", q.nbytes)
    assert meta.dequantize().shape == (3, 40)


@pytest.mark.parametrize("fmt", cases.FORMATS, ids=cases.label)
def test_copy_takes_bytes_of_its_own_format_and_quantizes_an_ordinary_tensor(fmt: cases.Format) -> None:
    for axis in (0, 1):
        q, other = packed(fmt, (3, 40), axis), packed(fmt, (3, 40), axis, seed=1)
        assert not torch.equal(q, other)
        assert q.copy_(other) is q
        assert torch.equal(q, other)
        x = values(fmt, (3, 40), seed=2)
        q.copy_(x.double())
        assert torch.equal(q, fb.quantize(x.double(), fmt, axis=axis))
        assert q.dtype == torch.float32


def test_a_copy_into_a_piece_changes_the_whole() -> None:
    q, other = packed("mxfp4", (4, 64)), packed("mxfp4", (64,), seed=1)
    kept = q.clone()
    q[2].copy_(other)
    assert torch.equal(q[2], other)
    assert torch.equal(q[3], kept[3])
    q[:, 32:].copy_(torch.zeros(4, 32))
    assert q.dequantize()[:, 32:].count_nonzero() == 0
    assert torch.equal(q[:2, :32], kept[:2, :32])


def frozen(q: Any) -> Any:
    return torch.nn.Parameter(q, requires_grad=False).data


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("name", SHARED)
def test_nothing_is_written_into_a_piece_that_shares_its_scale(name: str, inference: bool) -> None:
    with torch.inference_mode(inference):
        q = packed(name, (4, 128))
        kept = q.clone()
        pieces = (
            [q[:1, 64:]]
            if name in ("int8_channel", "vsq6")
            else [q[1], q[:1, 64:], q[:2], q.view(2, 2, 128)[0]]
        )
        pieces += [change(piece) for piece in pieces for change in (torch.Tensor.detach, copy.copy, frozen)]
        for piece in pieces:
            x = torch.ones(piece.shape)
            with pytest.raises(
                ArgumentError, match=f"copy_ into a piece of {name} would change a scale that other"
            ):
                piece.copy_(x)
            with pytest.raises(ArgumentError, match=f"out is a piece of a {name} tensor and shares a scale"):
                fb.quantize(x, name, out=piece)
        assert torch.equal(q, kept)
        q.t().copy_(torch.ones(128, 4))
        assert torch.equal(q.dequantize(), torch.ones(4, 128))


@pytest.mark.parametrize("name", ["int8_channel", "vsq6"])
def test_whole_channels_are_written_with_their_scales(name: str) -> None:
    q, x = packed(name, (4, 128)), values(name, (4, 128), seed=2)
    q[1].copy_(x[1])
    fb.quantize(x[2:], name, out=q[2:])
    assert same(q[1:].dequantize(), fb.fake_quantize(x, name)[1:])


@pytest.mark.parametrize("name", SHARED)
def test_what_an_index_tensor_gives_is_a_copy_with_its_scales(name: str) -> None:
    q = packed(name, (4, 128))
    kept = q.clone()
    q[torch.tensor([0, 2])].copy_(torch.full((2, 128), 100.0))
    q.index_select(0, torch.tensor([1])).copy_(torch.full((1, 128), 100.0))
    assert torch.equal(q, kept)


def test_a_copy_that_does_not_fit_is_refused_and_changes_nothing() -> None:
    q = packed("fp8_e4m3", (32, 32))
    kept = q.clone()
    cases_: tuple[tuple[torch.Tensor, str], ...] = (
        (torch.ones(3), r"copy_ of shape \(3,\) into .*; expected \(32, 32\)"),
        (packed("fp8_e5m2", (32, 32)), "expected one format, axis and sparsity"),
        (q.t(), "expected one format, axis and sparsity"),
    )
    for source, message in cases_:
        with pytest.raises(ArgumentError, match=message):
            q.copy_(source)
    with pytest.raises(DataError, match="nonfinite='raise' refuses them for int8"):
        packed("int8", (2,)).copy_(torch.tensor([torch.nan, 1]))
    with pytest.raises(ArgumentError, match=r"into an ordinary tensor: call .dequantize\(\) on it first"):
        torch.ones(32, 32).copy_(q)
    assert torch.equal(q, kept)


@pytest.mark.parametrize(
    ("use", "name"),
    [
        (lambda q: q + 1, "aten.add.Tensor"),
        (lambda q: 1 - q, "aten.rsub.Scalar"),
        (lambda q: q * q, "aten.mul.Tensor"),
        (lambda q: torch.ones(2, 32) * q, "aten.mul.Tensor"),
        (lambda q: q.mul_(2), "aten.mul_.Tensor"),
        (lambda q: q.zero_(), "aten.zero_.default"),
        (lambda q: q.sum(), "aten.sum.default"),
        (lambda q: q.abs(), "aten.abs.default"),
        (lambda q: torch.softmax(q, -1), "aten._softmax.default"),
        (lambda q: torch.cat([q, q]), "aten.cat.default"),
        (lambda q: q.flip(0), "aten.flip.default"),
        (torch.zeros_like, "aten.zeros_like.default"),
        (lambda q: q[0].fill_(1), "aten.fill_.Scalar"),
        (lambda q: q == q.clone(), "aten.eq.Tensor"),
    ],
)
def test_an_operation_on_values_refuses_by_name_and_says_what_to_do(use: Use, name: str) -> None:
    message = f"{name} needs the values of a NarrowTensor, which are packed: call .dequantize() first"
    for grad in (True, False):
        with pytest.raises(ArgumentError, match=re.escape(message)), torch.inference_mode(not grad):
            use(packed("mxfp4", (2, 32)))


@pytest.mark.parametrize(
    "use",
    [
        lambda of, q: of[q],
        lambda of, q: of[:, q],
        lambda of, q: of.index_select(0, q[0]),
        lambda of, q: torch.nn.functional.embedding(q, of),
    ],
)
def test_a_packed_index_is_refused(use: Callable[[torch.Tensor, fb.NarrowTensor], object]) -> None:
    q = packed("mxfp4", (2, 32))
    for of in (torch.ones(2, 32), q):
        with pytest.raises(
            ArgumentError, match=r"^NarrowTensor.* as an index; expected an ordinary tensor of"
        ):
            use(of, q)


def test_the_sum_of_no_values_is_that_of_torch() -> None:
    for dtype in (None, torch.float64):
        found, wanted = (
            f(torch.zeros(0, 32)).sum(dtype=dtype) for f in (lambda x: fb.quantize(x, "mxfp4"), torch.clone)
        )
        assert same(found, wanted)


def test_a_comparison_with_equals_points_to_torch_equal() -> None:
    q = packed("mxfp4", (2, 32))
    with pytest.raises(ArgumentError, match=r"dequantize\(\) first, or compare with torch.equal"):
        _ = q == q.clone()


@pytest.mark.parametrize("dtype", [torch.int32, torch.float8_e4m3fn, torch.complex64])
def test_a_dtype_that_values_do_not_have_is_refused(dtype: torch.dtype) -> None:
    with pytest.raises(
        ArgumentError, match=f"to {dtype}; its values are float32, bfloat16, float16 or float64"
    ):
        packed("mxfp4", (2, 32)).to(dtype)


def test_a_packed_summand_is_refused() -> None:
    q = packed("mxfp4", (8, 8))
    with pytest.raises(ArgumentError, match=r"as the summand of addmm: call .dequantize"):
        torch.addmm(q, torch.ones(8, 8), torch.ones(8, 8))


def test_in_inference_mode_views_and_copies_work_on_tensors_of_either_kind() -> None:
    q = packed("mxfp4", (4, 64))
    with torch.inference_mode():
        made = packed("mxfp4", (4, 64))
        for t in (q, made):
            assert same(t[1:, :32].dequantize(), q.dequantize()[1:, :32])
            assert same(t.t().reshape(64, 2, 2).dequantize(), q.dequantize().t().reshape(64, 2, 2))
            assert torch.equal(t.clone(), q)
            assert same(t.half().dequantize(), q.dequantize().half())
            assert same(t.flatten(0, 0).dequantize(), q.dequantize())
