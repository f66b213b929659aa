"""A sparse NarrowTensor behaves as the dense one of the same values does."""

import copy

import numpy as np
import pytest
import torch
from torch.nn import functional

import fewbits as fb
from fewbits.errors import ArgumentError, DataError, FormatError


def sparse(*shape: int, seed: int = 0) -> torch.Tensor:
    w = torch.randn(*shape[:-1], shape[-1] // 4, 4, generator=torch.Generator().manual_seed(seed))
    return w.scatter(-1, w.abs().argsort(-1)[..., :2], 0.0).reshape(shape)


@pytest.mark.parametrize("name", ["bf16", "int8_channel", "mxfp4", "nvfp4", "mx9"])
@pytest.mark.parametrize("batch", [1, 5, 16, 17, 40])
def test_linear_is_that_of_the_dense_tensor_for_every_batch(name: str, batch: int) -> None:
    w, bias = sparse(24, 640).bfloat16(), torch.randn(24).bfloat16()
    x = torch.randn(2, batch, 640, generator=torch.Generator().manual_seed(1)).bfloat16()
    q, dense = fb.quantize(w, name, sparsity="2:4"), fb.quantize(w, name)
    y, wanted = functional.linear(x, q, bias), functional.linear(x, dense, bias)
    # Both round sums of float32 to bfloat16: they may part by one unit in its last place.
    torch.testing.assert_close(y, wanted, rtol=2.0**-7, atol=1e-5)
    torch.testing.assert_close(q @ x[0].mT, dense @ x[0].mT, rtol=2.0**-7, atol=1e-5)
    other = functional.linear(x, fb.quantize(w.flip(0), name), bias)
    assert not torch.allclose(y, other, rtol=2.0**-7, atol=1e-5)


def test_any_axis_and_shape_round_trip() -> None:
    for shape, axis in (((8,), 0), ((0, 8), 1), ((3, 0), 1), ((2, 3, 516), 2), ((516, 3), 0), ((2, 8, 5), 1)):
        w = (
            sparse(*(n for n in shape if n != shape[axis]), shape[axis])
            if 0 not in shape
            else torch.zeros(shape)
        )
        w = w if 0 in shape else w.movedim(-1, axis)
        q = fb.quantize(w, "mxfp8_e4m3", axis=axis, sparsity="2:4")
        assert torch.equal(q.dequantize(), fb.fake_quantize(w, "mxfp8_e4m3", axis=axis))
        assert q.shape == w.shape


def test_numpy_arrays_come_back_as_numpy_arrays() -> None:
    w = sparse(4, 64).numpy()
    q = fb.quantize(w, "mxint8", sparsity="2:4")
    assert isinstance(q.dequantize(), np.ndarray)
    assert np.array_equal(q.dequantize(), fb.quantize(w, "mxint8").dequantize())


def test_pieces_copies_and_views_keep_the_sparsity() -> None:
    w = sparse(6, 2048)
    q, wide = fb.quantize(w, "mxfp4", sparsity="2:4"), fb.fake_quantize(w, "mxfp4")
    for piece, wanted in (
        (q[2:5], wide[2:5]),
        (q[3], wide[3]),
        (q[:, 512:1536], wide[:, 512:1536]),
        (q[:, 1024:], wide[:, 1024:]),
        (q.t(), wide.t()),
        (q.view(2, 3, 2048), wide.view(2, 3, 2048)),
        (q[torch.tensor([5, 0])], wide[[5, 0]]),
        (q.clone(), wide),
        (q.to(torch.bfloat16), wide.bfloat16()),
        (copy.deepcopy(q), wide),
    ):
        assert str(piece.sparsity) == "2:4"
        assert torch.equal(piece.dequantize(), wanted)
    with pytest.raises(ArgumentError, match="start and end at multiples of 512"):
        q[:, 4:]
    assert "sparsity=2:4" in repr(q)
    assert torch.equal(q.with_all_codes(), fb.quantize(w, "mxfp4"))
    assert not torch.equal(q, fb.quantize(w, "mxfp4").compressed("3:4"))


def test_a_module_takes_it_and_a_compiled_one_gives_the_same() -> None:
    layer = torch.nn.Linear(512, 16, bias=False)
    with torch.no_grad():
        layer.weight.copy_(sparse(16, 512))
    x = torch.randn(3, 512, requires_grad=True)
    q = fb.quantize(layer.weight.detach(), "mxfp4", sparsity="2:4")
    wanted = functional.linear(x, q.dequantize())
    layer.weight = torch.nn.Parameter(q, requires_grad=False)
    torch.testing.assert_close(layer(x), wanted, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(torch.compile(layer, backend="aot_eager")(x), wanted, rtol=1e-5, atol=1e-5)
    layer(x).sum().backward()
    torch.testing.assert_close(x.grad, q.dequantize().sum(0).expand(3, 512), rtol=1e-5, atol=1e-5)
    other = copy.deepcopy(layer)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other.weight, layer.weight)


def test_copy_takes_sparse_values_and_refuses_others() -> None:
    q = fb.quantize(sparse(4, 64), "mxfp4", sparsity="2:4")
    w = sparse(4, 64, seed=1)
    q.copy_(w)
    assert torch.equal(q, fb.quantize(w, "mxfp4", sparsity="2:4"))
    with pytest.raises(DataError, match="line 0 has a group of 4 with more than 2 values"):
        q.copy_(torch.ones(4, 64))
    with pytest.raises(ArgumentError, match="one format, axis and sparsity"):
        q.copy_(fb.quantize(w, "mxfp4"))
    assert torch.equal(q.dequantize(), fb.fake_quantize(w, "mxfp4"))


def test_what_cannot_be_is_one_clear_error() -> None:
    w, q = sparse(4, 64), fb.quantize(sparse(4, 64), "mxfp4", sparsity="2:4")
    with pytest.raises(ArgumentError, match=r"30 values along the axis of .*; 2:4 needs a multiple of 4"):
        fb.quantize(torch.zeros(2, 30), "mxfp4", sparsity="2:4")
    with pytest.raises(FormatError, match="a pattern is written N:M"):
        fb.quantize(w, "mxfp4", sparsity="half")
    with pytest.raises(ArgumentError, match="it is sparse already"):
        q.compressed("2:4")
    with pytest.raises(ArgumentError, match="a sparse result is a new tensor"):
        fb.quantize(w, "mxfp4", sparsity="2:4", out=fb.quantize(w, "mxfp4"))
    with pytest.raises(ArgumentError, match="expected a NarrowTensor as an earlier call returned it"):
        fb.quantize(w, "mxfp4", out=q)
    parts = {"format": q.format, "shape": (4, 64), "axis": 1, "dtype": torch.float32}
    with pytest.raises(ArgumentError, match=r"codes of shape \(4, 24\); mxfp4 of shape"):
        fb.NarrowTensor.from_parts(*q.pieces, **parts)
    with pytest.raises(ArgumentError, match=r"codes of shape \(4, 23\); mxfp4 with 2:4 of shape"):
        fb.NarrowTensor.from_parts(q.codes[:, 1:], *q.pieces[1:], **parts, sparsity="2:4")
    damaged = q.codes.clone()
    damaged[2, 0] ^= 1
    with pytest.raises(DataError, match="line 2 has a mask that does not keep 2 of each 4"):
        fb.NarrowTensor.from_parts(damaged, *q.pieces[1:], **parts, sparsity="2:4")
