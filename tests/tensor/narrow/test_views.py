"""Views: the values are those of the same view of the dequantized tensor, and no part is copied."""

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fewbits as fb
from fewbits.errors import ArgumentError
from tests import cases
from tests.tensor.packed import packed, same

View = Callable[[torch.Tensor], Any]


@pytest.mark.parametrize("fmt", cases.FORMATS, ids=cases.label)
def test_every_permutation_of_axes_moves_the_values_and_the_block_axis(fmt: cases.Format) -> None:
    for axis in range(3):
        q = packed(fmt, (2, 3, 40), axis)
        for order in itertools.permutations(range(3)):
            view = q.permute(order)
            assert view.axis == order.index(axis)
            assert same(view.dequantize(), q.dequantize().permute(order))
            back = view.permute([order.index(d) for d in range(3)])
            assert torch.equal(back, q)


@pytest.mark.parametrize("fmt", cases.FORMATS, ids=cases.label)
def test_views_that_keep_lines_keep_values_and_share_bytes(fmt: cases.Format) -> None:
    views: tuple[View, ...] = (
        lambda x: x.view(6, 40),
        lambda x: x.reshape(-1, 40),
        lambda x: x.flatten(0, 1),
        lambda x: x.unflatten(0, (2, 1)),
        lambda x: x.view(3, 2, 40),
        lambda x: x.unsqueeze(0),
        lambda x: x.unsqueeze(-1),
        lambda x: x[:, None],
        lambda x: x.unsqueeze(1).squeeze(1),
        lambda x: x[None].squeeze(),
        lambda x: x[None, :, None].squeeze((0, 2)),
        lambda x: x.mT,
        lambda x: x.transpose(0, -1).transpose(1, 2),
        lambda x: x.movedim(0, 1),
        lambda x: x[None].expand(4, -1, 3, 40),
        lambda x: x.contiguous(),
    )
    q = packed(fmt, (2, 3, 40))
    for view in views:
        found = view(q)
        assert isinstance(found, fb.NarrowTensor)
        assert same(found.dequantize(), view(q.dequantize()))
        assert found.codes.untyped_storage().data_ptr() == q.codes.untyped_storage().data_ptr()


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "int8_tensor", "vsq6", "mx9"])
def test_a_view_shares_bytes_or_is_refused_and_reshape_copies_where_torch_does(
    name: str, inference: bool
) -> None:
    pieces: tuple[View, ...] = (
        lambda x: x,
        lambda x: x.permute(1, 0, 2),
        lambda x: x.permute(1, 2, 0),
        lambda x: x.permute(2, 1, 0),
        lambda x: x[:, :2],
        lambda x: x[:, ::2],
        lambda x: x[..., :64],
        lambda x: x[:1].expand(2, 4, 128),
        lambda x: x.permute(1, 0, 2).contiguous(),
    )
    with torch.inference_mode(inference):
        for piece in pieces:
            q = piece(packed(name, (2, 4, 128)))
            rows = q.movedim(q.axis, -1).shape
            for lead in ((-1,), (1, *rows[:2]), (rows[0], 2, -1)):
                ordinary = torch.empty_strided(q.shape, q.stride()).movedim(q.axis, -1)
                shape, view = (*lead, rows[-1]), q.movedim(q.axis, -1)
                found = view.reshape(shape)
                assert same(found.dequantize(), view.dequantize().reshape(shape))
                shares = ordinary.reshape(shape).data_ptr() == ordinary.data_ptr()
                assert shares == (found.codes.data_ptr() == q.codes.data_ptr())
                if shares:
                    assert torch.equal(view.view(shape), found)
                else:
                    with pytest.raises(ArgumentError, match=r"view size is not compatible.*use .reshape"):
                        view.view(shape)


def test_what_is_written_into_a_view_is_in_the_whole_and_into_a_copy_is_not() -> None:
    q = fb.quantize(torch.zeros(2, 3, 32), "mxfp4")
    q.view(6, 32)[1].copy_(torch.ones(32))
    q.permute(1, 0, 2).view(3, 1, 2, 32)[2, 0, 1].copy_(torch.ones(32))
    assert q.dequantize().sum() == 64
    q.permute(1, 0, 2).flatten(0, 1).copy_(torch.zeros(6, 32))
    assert q.dequantize().sum() == 64


@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "int8_tensor", "vsq6", "posit8_1"])
@pytest.mark.parametrize("axis", [0, 1])
def test_a_matrix_a_vector_and_a_scalar_can_be_transposed(name: str, axis: int) -> None:
    q = packed(name, (4, 33), axis)
    assert q.t().axis == q.T.axis == 1 - axis
    assert same(q.t().dequantize(), q.dequantize().t())
    assert same(q.T.dequantize(), q.dequantize().T)
    assert torch.equal(q.t().t(), q)
    for shape in ((33,), ()):
        q = packed(name, shape)
        assert same(q.t().dequantize(), q.dequantize().t())
        assert same(q.unsqueeze(0).dequantize(), q.dequantize()[None])
        assert same(q.unsqueeze(0).reshape(shape).dequantize(), q.dequantize())


def test_a_block_axis_in_the_middle_stays_where_the_values_before_it_are() -> None:
    q = packed("mxfp4", (2, 3, 64, 5), axis=2)
    found = q.reshape(6, 64, 5)
    assert found.axis == 1
    assert same(found.dequantize(), q.dequantize().reshape(6, 64, 5))
    assert same(q.view(3, 2, 64, 1, 5).dequantize(), q.dequantize().view(3, 2, 64, 1, 5))


@pytest.mark.parametrize("shape", [(3, 1, 1), (1, 1, 1), (1, 3, 1), (0, 32, 32), (0, 0, 4), (2, 0, 0), (1,)])
def test_a_view_to_the_own_shape_is_the_tensor(shape: tuple[int, ...]) -> None:
    for axis in range(len(shape)):
        q = packed("mxfp4", shape, axis)
        for view in (q.view(shape), q.reshape(shape), q.view_as(q)):
            assert view.axis == axis
            assert torch.equal(view, q)
            view.copy_(q)


def test_a_block_axis_beside_axes_of_length_one_stays_among_its_neighbours() -> None:
    for shape, axis, seen, wanted in (
        ((3, 1, 1), 2, (1, 3, 1, 1), 3),
        ((3, 1, 1), 1, (1, 3, 1, 1), 2),
        ((3, 1, 1), 2, (3, 1), 1),
        ((1, 1, 5), 0, (1, 5), 0),
        ((1, 1, 4, 6), 1, (1, 1, 24), 1),
        ((1, 1, 4, 6), 0, (1, 1, 24), 0),
        ((0, 32, 32), 2, (1, 0, 32, 32), 3),
        ((0, 32, 32), 1, (1, 0, 32, 32), 2),
        ((0, 32, 32), 2, (0, 32), 1),
        ((0, 32, 5), 1, (0, 32, 7), 1),
    ):
        assert packed("mxfp4", shape, axis).view(seen).axis == wanted


@pytest.mark.parametrize(
    ("shape", "view"),
    [
        ((0, 4, 32), lambda x: x.reshape(0, -1, 32)),
        ((0, 4, 32), lambda x: x.view(0, -1, 32)),
        ((0,), lambda x: x.view(-1, 0)),
        ((4, 32), lambda x: x.view(-2, -2, 32)),
        ((4, 32), lambda x: x.reshape(-2, -2, 32)),
        ((4, 32), lambda x: x.view(-1, -1, 32)),
        ((4, 32), lambda x: x.view(-1, 0, 32)),
        ((4, 32), lambda x: x.view(3, -1, 32)),
        ((4, 32), lambda x: x.expand(-2, 32)),
        ((1, 32), lambda x: x.expand(-2, 32)),
        ((4, 32), lambda x: x.expand(3, 32)),
        ((4, 32), lambda x: x.expand(2, -3, 32)),
        ((1, 32), lambda x: x.expand(-1, 0, 32)),
    ],
)
def test_a_shape_that_torch_refuses_is_refused(shape: tuple[int, ...], view: View) -> None:
    with pytest.raises(RuntimeError):
        view(torch.zeros(shape))
    with pytest.raises(ArgumentError, match=r"cannot be (seen|expanded)"):
        view(packed("mxfp4", shape))


def test_empty_tensors_keep_their_shapes() -> None:
    for shape, axis in (((0, 5), 1), ((5, 0), 1), ((0, 5), 0)):
        q = packed("mxfp4", shape, axis)
        for view in (q.t(), q.unsqueeze(0), q.unsqueeze(-1), q[None].expand(2, *shape)):
            assert view.dequantize().shape == view.shape
    for shape, seen in (((0, 4, 32), (-1, 32)), ((0, 4, 32), (-1, 4, 32)), ((5, 0), (5, -1))):
        assert packed("mxfp4", shape).view(seen).shape == torch.empty(shape).view(seen).shape
    assert packed("mxfp4", (1, 32)).expand(0, 32).shape == (0, 32)


@pytest.mark.parametrize(
    ("view", "message"),
    [
        (
            lambda q: q.flatten(),
            r"cannot be seen in the shape \(192,\): its block axis of 64 values must stay one",
        ),
        (lambda q: q.view(3, 2, 32), r"cannot be seen in the shape \(3, 2, 32\).*call .dequantize\(\) first"),
        (lambda q: q.view(64, 3), r"with as many values before it"),
        (lambda q: q.view(3, 65), r"cannot be seen in the shape \(3, 65\)"),
        (lambda q: q.t()[None].t(), r"t\(\) of .* takes at most 2 axes: use transpose or permute"),
        (lambda q: q[None].t(), r"takes at most 2 axes"),
        (lambda q: q.unsqueeze(4), r"dim=4 is out of range for .*; use -3 to 2"),
        (lambda q: q.permute(0, 0), r"permute\(0, 0\) of .*; name each of its 2 axes once"),
        (lambda q: q.permute(0), r"name each of its 2 axes once"),
        (lambda q: q.expand(3, 128), r"cannot be expanded to \(3, 128\): its block axis keeps its length"),
        (lambda q: q.expand(-1, *q.shape), r"cannot be expanded to \(-1, .*: give each new axis its length"),
        (lambda q: packed("mxfp4", (3, 1)).squeeze(), r"squeeze of .* would drop its block axis"),
    ],
)
def test_a_view_that_would_cut_a_line_says_so(view: View, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        view(packed("mxfp4", (3, 64)))
