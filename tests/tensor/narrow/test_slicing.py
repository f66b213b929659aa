"""Pieces: the values are those of the same piece of the dequantized tensor; a cut block is refused."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional

import fewbits as fb
from fewbits.errors import ArgumentError
from fewbits.formats import Bdr, Block, Element
from fewbits.tensor.narrow.slicing import boundary
from tests import cases
from tests.tensor.packed import packed, same

MORE = (Bdr(3, 5, 12, 3, 4), Bdr(3, d2=0), fb.format("block(element=fp4_e2m1,scale=exponent(5),size=3)"))
Index = Callable[[torch.Tensor], Any]
BESIDE: tuple[Index, ...] = (
    lambda x: x[0],
    lambda x: x[-1],
    lambda x: x[1:],
    lambda x: x[:0],
    lambda x: x[::2],
    lambda x: x[1:4:2, 1],
    lambda x: x[2, 1],
    lambda x: x[:, -2:],
    lambda x: x[..., :],
    lambda x: x[[3, 0, 0]],
    lambda x: x[torch.tensor([[1, 2], [-1, 0]])],
    lambda x: x[torch.tensor([True, False, False, True])],
    lambda x: x.index_select(1, torch.tensor([2, 2, 0])),
    lambda x: x.narrow(0, 1, 2),
    lambda x: x.select(1, -1),
)


@pytest.mark.parametrize("fmt", [*cases.FORMATS, *MORE], ids=cases.label)
def test_any_index_beside_the_block_axis_gives_the_same_values(fmt: cases.Format) -> None:
    last = packed(fmt, (4, 3, 37))
    middle = packed(fmt, (4, 37, 3), axis=1).transpose(1, 2)
    for q in (last, middle):
        for index in BESIDE:
            piece = index(q)
            assert isinstance(piece, fb.NarrowTensor)
            assert same(piece.dequantize(), index(q.dequantize()))
    first = packed(fmt, (37, 4, 3), axis=0)
    for index in BESIDE[:6]:
        assert same(index(first.movedim(0, -1)).dequantize(), index(first.dequantize().movedim(0, -1)))


@pytest.mark.parametrize("fmt", [*cases.FORMATS, *MORE], ids=cases.label)
def test_cuts_at_every_boundary_and_only_there(fmt: cases.Format) -> None:
    whole = boundary(fmt)
    n = 2 * whole + 1
    for axis in (0, 1):
        q = packed(fmt, (2, n) if axis else (n, 2), axis)
        y = q.dequantize()
        for start in range(n + 1):
            for end in (start, n) if start % whole else (start, start + whole, n):
                legal = all(place % whole == 0 or place >= n for place in (start, end))
                if legal:
                    piece = q.narrow(axis, start, min(end, n) - start)
                    assert same(piece.dequantize(), y.narrow(axis, start, min(end, n) - start))
                else:
                    with pytest.raises(ArgumentError, match=f"at multiples of {whole} or at its end, {n}"):
                        q.narrow(axis, start, min(end, n) - start)


@pytest.mark.parametrize("fmt", [*cases.FORMATS, *MORE], ids=cases.label)
def test_a_boundary_starts_a_block_and_a_byte_of_every_part(fmt: cases.Format) -> None:
    whole = boundary(fmt)
    if isinstance(fmt, Element):
        legal = [n for n in range(1, whole + 1) if n * fmt.bits % 8 == 0]
    else:
        assert isinstance(fmt, Block | Bdr)
        size = fmt.size if isinstance(fmt.size, int) else 1
        counted = (size, fmt.scale.bits) if isinstance(fmt.size, int) else (1, 8)
        shifts = (fmt.k2, fmt.d2) if isinstance(fmt, Bdr) else (1, 8)
        legal = [
            n
            for n in range(size, whole + 1, size)
            if all(n % k == 0 and n // k * b % 8 == 0 for k, b in ((1, fmt.element.bits), counted, shifts))
        ]
    assert legal == [whole]


@pytest.mark.parametrize("fmt", cases.FORMATS, ids=cases.label)
def test_pieces_share_the_bytes_of_the_whole(fmt: cases.Format) -> None:
    whole = boundary(fmt)
    q = packed(fmt, (4, 2 * whole))
    for piece in (q[1], q[1:3], q[::2], q[:, whole:], *q.split(whole, dim=1), *q.unbind(), *q.chunk(2)):
        assert piece.codes.untyped_storage().data_ptr() == q.codes.untyped_storage().data_ptr()
    assert [p.shape for p in q.split(3)] == [(3, 2 * whole), (1, 2 * whole)]
    assert [same(p.dequantize(), y) for p, y in zip(q, q.dequantize(), strict=True)] == [True] * 4
    first, second = q.split([1, 3])
    assert same(second.dequantize(), q.dequantize()[1:])
    assert first.nbytes < q.nbytes


@pytest.mark.parametrize("shape", [(0, 64), (4, 0)])
def test_an_axis_of_no_values_splits_as_torchs(shape: tuple[int, int]) -> None:
    x = torch.zeros(shape)
    q, dim = fb.quantize(x, "mxfp4"), shape.index(0)
    for split in (lambda t: t.split(2, dim), lambda t: t.split(0, dim), lambda t: t.chunk(3, dim)):
        assert [p.shape for p in split(q)] == [p.shape for p in split(x)]


@pytest.mark.parametrize("name", ["int8_tensor", "nvfp4"])
def test_a_scale_of_the_whole_tensor_stays_with_every_piece(name: str) -> None:
    q = packed(name, (4, 64))
    part = "scales" if name == "int8_tensor" else "outer"
    for piece in (q[1:2], q[:, :32], q[::2], q[[1, 1]]):
        assert torch.equal(getattr(piece, part), getattr(q, part))
    assert torch.equal(getattr(q[1], part), getattr(q, part)[0])


@pytest.mark.parametrize(
    ("name", "index", "message"),
    [
        (
            "mxfp4",
            lambda q: q[:, 3],
            "the index 3 along the block axis 1 of NarrowTensor(mxfp4, shape=(4, 70)",
        ),
        ("mxfp4", lambda q: q[..., [0, 1]], "an index tensor along the block axis 1"),
        ("mxfp4", lambda q: q[:, 0], "slice it at multiples of 32, or call .dequantize() first"),
        ("mxfp4", lambda q: q[:, 16:48], "[16:48:1] along the block axis 1"),
        ("mxfp4", lambda q: q[:, ::2], "[0:70:2] along the block axis 1"),
        ("mxfp4", lambda q: q[:, :31], "start and end at multiples of 32 or at its end, 70"),
        ("fp4_e2m1", lambda q: q[:, 1:], "start and end at multiples of 2 or at its end, 70"),
        ("mx6", lambda q: q[:, 2:], "start and end at multiples of 16 or at its end, 70"),
        ("mxfp4", lambda q: q[[0, 1], [2, 3]], "2 index tensors for NarrowTensor(mxfp4"),
        ("mxfp4", lambda q: q[torch.ones(4, 70).bool()], "a mask of shape (4, 70) for axis 0"),
        ("mxfp4", lambda q: q.unbind(1), "unbind along the block axis 1"),
        ("mxfp4", lambda q: q.split([1, 1]), "pieces of [1, 1] for an axis of 4; lengths from 0 up whose"),
        ("mxfp4", lambda q: q.split([-1, 5]), "pieces of [-1, 5] for an axis of 4; lengths from 0 up whose"),
        ("mxfp4", lambda q: q.split([]), "pieces of [] for an axis of 4; lengths from 0 up whose"),
        ("mxfp4", lambda q: q.split(0), "pieces of 0 for an axis of 4; give a length from 1 up"),
    ],
)
def test_an_index_that_cuts_a_block_says_where_to_cut(name: str, index: Index, message: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(message)):
        index(packed(name, (4, 70)))


def test_an_index_out_of_range_is_pythons_own_error() -> None:
    with pytest.raises(IndexError):
        packed("mxfp4", (4, 64))[4]
    with pytest.raises(IndexError):
        packed("mxfp4", (4, 64))[[4]]


def test_scalars_cut_to_nothing() -> None:
    q = packed("fp8_e4m3", (3, 10))
    assert q[:, 10:].shape == (3, 0)
    assert q[:, 5:2].dequantize().shape == (3, 0)


INDICES = [
    *([0, 3, 0], [], 2, [-1], [4], [[1, 0], [3, 2]]),
    *(torch.tensor([True, False, True, False]), torch.tensor([1, 0, 1, 0], dtype=torch.uint8)),
    *(torch.tensor([1, 2], dtype=torch.int32), torch.tensor([1, 2], dtype=torch.int16), torch.tensor([1.0])),
]


@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "int8_tensor", "posit8_1"])
@pytest.mark.parametrize("index", INDICES, ids=str)
def test_index_select_and_embedding_take_and_refuse_the_indices_that_torch_does(
    name: str, index: Any
) -> None:
    where = index if isinstance(index, torch.Tensor) else torch.tensor(index, dtype=torch.int64)
    uses: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
        lambda x: x.index_select(0, where),
        lambda x: x[None].index_select(1, where),
        lambda x: functional.embedding(where, x),
    )
    q = packed(name, (4, 64))
    for use in uses:
        try:
            wanted = use(q.dequantize())
        except (IndexError, RuntimeError) as error:
            with pytest.raises(type(error), match=re.escape(str(error))):
                use(q)
        else:
            found = use(q)
            assert same(found.dequantize() if isinstance(found, fb.NarrowTensor) else found, wanted)


def test_an_embedding_takes_the_rows_of_a_matrix_only() -> None:
    with pytest.raises(RuntimeError, match="'weight' must be 2-D"):
        functional.embedding(torch.tensor([0]), packed("mxfp4", (2, 4, 64)))
