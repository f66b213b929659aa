"""The published storage against PyTorch's own conversion, byte for byte."""

import pytest
import torch
from torch.sparse import _semi_structured_conversions as pytorch

from fewbits.errors import ArgumentError, DataError, DTypeError
from fewbits.sparsity import compress, decompress

SHAPES = {
    torch.float16: ((32, 32), (64, 96), (96, 160)),
    torch.bfloat16: ((32, 32), (64, 96), (96, 160)),
    torch.int8: ((16, 64), (48, 192)),
    torch.float32: ((32, 16), (64, 48)),
}
CASES = [(dtype, shape) for dtype, shapes in SHAPES.items() for shape in shapes]


def sparse(dtype: torch.dtype, shape: tuple[int, int]) -> torch.Tensor:
    """Return small integers, zeros among what is kept, with at most half of each group not zero."""
    generator = torch.Generator().manual_seed(shape[0])
    group = 2 if dtype == torch.float32 else 4
    values = torch.randint(-2, 3, (shape[0], shape[1] // group, group), generator=generator)
    kept = torch.rand(values.shape, generator=generator).argsort(-1) < group // 2
    return (values * kept).reshape(shape).to(dtype)


@pytest.mark.parametrize(("dtype", "shape"), CASES, ids=str)
def test_values_and_metadata_are_those_of_pytorch(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    w = sparse(dtype, shape)
    theirs = pytorch.sparse_semi_structured_from_dense_cutlass(w)
    mine = compress(w)
    assert [t.dtype for t in mine] == [t.dtype for t in theirs]
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))
    assert torch.equal(decompress(*theirs), w)
    assert torch.equal(pytorch.sparse_semi_structured_to_dense_cutlass(*mine), w)
    one = w.clone()
    one[0, :4] = torch.tensor([0, 1, 0, 1])
    other = one.clone()
    other[0, :4] = torch.tensor([1, 0, 1, 0] if dtype != torch.float32 else [1, 0, 0, 1])
    assert not torch.equal(compress(one)[1], compress(other)[1])  # the comparison sees another pattern


def test_every_pattern_of_a_group_is_encoded_as_pytorch_does() -> None:
    w = torch.zeros(32, 64)
    for row in range(32):
        for group in range(16):
            kept = [p for p in range(4) if (row + 5 * group) >> p & 1][:2]
            w[row, [4 * group + p for p in kept]] = 1.0
    mine, theirs = compress(w.half()), pytorch.sparse_semi_structured_from_dense_cutlass(w.half())
    assert all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True))


@pytest.mark.parametrize(
    ("dtype", "columns", "words"),
    [(torch.float16, 64, 4), (torch.bfloat16, 32, 2), (torch.int8, 128, 4), (torch.float32, 32, 4)],
    ids=str,
)
def test_a_matrix_without_rows_has_the_columns_of_any_other(
    dtype: torch.dtype, columns: int, words: int
) -> None:
    w = torch.zeros(0, columns, dtype=dtype)
    values, metadata = compress(w)
    assert (values.shape, metadata.shape) == ((0, columns // 2), (0, words))
    assert decompress(values, metadata).shape == w.shape
    empty = torch.zeros(32, 0, dtype=dtype)
    assert decompress(*compress(empty)).shape == empty.shape


def test_special_values_come_back_bit_for_bit() -> None:
    w = torch.zeros(32, 32, dtype=torch.bfloat16)
    w[0, 0], w[1, 5], w[2, 9], w[3, 3] = float("nan"), float("inf"), -1e-40, -3.0
    assert torch.equal(decompress(*compress(w)).view(torch.int16), w.view(torch.int16))


@pytest.mark.parametrize(
    ("w", "error", "message"),
    [
        (torch.ones(32, 32).half(), DataError, "row 0 has a group of 4 with more than 2 values"),
        (torch.ones(32, 16), DataError, "row 0 has a group of 2 with more than 1 values"),
        (torch.zeros(30, 32).half(), ArgumentError, "a multiple of 32 rows and of 32 columns"),
        (torch.zeros(16, 32).to(torch.int8), ArgumentError, "a multiple of 16 rows and of 64 columns"),
        (torch.zeros(32).half(), ArgumentError, "expected a matrix"),
        (torch.zeros(32, 32).double(), DTypeError, "expected float16, bfloat16, int8 or float32"),
    ],
    ids=lambda v: "",
)
def test_what_cannot_be_stored_is_one_clear_error(w: torch.Tensor, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        compress(w)


def test_parts_that_do_not_belong_together_are_refused() -> None:
    values, metadata = compress(sparse(torch.float16, (32, 32)))
    with pytest.raises(DTypeError, match=r"metadata of torch\.int32 for values of torch\.float16"):
        decompress(values, metadata.int())
    with pytest.raises(ArgumentError, match=r"metadata of shape \(32, 1\)"):
        decompress(values, metadata[:, :1])
    with pytest.raises(DataError, match="indices that do not rise"):
        decompress(values, torch.zeros_like(metadata))
