"""Products with a lower triangular matrix: what they leave out changes no bit, NaN and infinity stay."""

import numpy as np
import pytest
import torch

from fewbits.formats import parse
from fewbits.kernels import native, ops
from fewbits.kernels.bits.options import Choices
from tests.cases import pairs

LOWER = ("result", "left", "left transposed", "right")
UNITS = ("float32", "integers16", "integers", "bfloat16")
# Below a tile and above it, off its edges; stacks for each thread alone; more columns than an item has.
SHAPES = (
    *((1, 5, 5, 5), (3, 95, 95, 17), (1, 31, 64, 40), (9, 70, 70, 70), (1, 300, 600, 90), (1, 6, 300, 33)),
    *((1, 300, 6, 33), (1, 40, 700, 1600), (1, 700, 300, 1700)),
)


def factors(shape: tuple[int, ...], lower: str, order: str) -> tuple[np.ndarray, np.ndarray]:
    """Return small integers, which every unit multiplies exactly, with zeros beyond the diagonal."""
    batch, m, k, n = shape
    draw = np.random.default_rng(m + k + n)
    a, b = (draw.integers(-16, 17, (batch, *s)).astype(np.float32) for s in ((m, k), (k, n)))
    a = np.tril(a) if lower == "left" else np.triu(a) if lower == "left transposed" else a
    b = np.tril(b) if lower == "right" else b
    turn = (
        (lambda x: np.ascontiguousarray(x.transpose(0, 2, 1)).transpose(0, 2, 1))
        if order == "columns"
        else np.ascontiguousarray
    )
    return turn(a), turn(b)


def product(a: np.ndarray, b: np.ndarray, unit: str, threads: int, lower: str) -> np.ndarray:
    y = np.full((len(a), a.shape[1], b.shape[2]), np.nan, np.float32)
    assert native.product(a, b, y, unit, threads=threads, lower=lower)
    return y


@pytest.mark.parametrize(
    ("shape", "lower", "unit", "order", "threads"), pairs(SHAPES, LOWER, UNITS, ("rows", "columns"), (1, 2))
)
def test_a_product_with_a_triangle_is_that_of_the_whole_bit_for_bit(
    shape: tuple[int, ...], lower: str, unit: str, order: str, threads: int, isa: str
) -> None:
    if unit == "bfloat16" and not native.has_unit(unit):
        pytest.skip(f"{isa} has no products of bfloat16")
    a, b = factors(shape, lower, order)
    if unit == "float32":  # whose sums are rounded: their order shows
        a, b = a * np.float32(1.1), b / np.float32(3)
    # Memory is kept from product to product: one of NaN shows what is read there and was never written.
    product(a * np.float32(np.nan), b * np.float32(np.nan), unit, threads, "")
    found, whole = product(a, b, unit, threads, lower), product(a, b, unit, threads, "")
    if lower == "result":
        beyond = np.triu(np.ones(found.shape[1:], bool), 1)
        assert ((found == whole) | (found == 0))[:, beyond].all()
        found, whole = np.tril(found), np.tril(whole)
    assert found.tobytes() == whole.tobytes()


@pytest.mark.parametrize("order", ["rows", "columns"])
@pytest.mark.parametrize("unit", UNITS)
def test_columns_on_both_sides_of_128_find_all_that_their_panel_needs(
    unit: str, order: str, isa: str
) -> None:
    """A panel of 48 goes on to column 144 and needs values from before 128: no window ends in it."""
    if unit == "bfloat16" and not native.has_unit(unit):
        pytest.skip(f"{isa} has no products of bfloat16")
    for batch, threads in ((1, 1), (1, 2), (12, 2)):
        a, b = factors((batch, 40, 200, 200), "right", order)
        product(a * np.float32(np.nan), b * np.float32(np.nan), unit, threads, "")
        found = product(a, b, unit, threads, "right")
        assert np.array_equal(found, a.astype(np.float64) @ b)


def test_what_lies_beyond_the_diagonal_is_left_out(isa: str) -> None:
    a = np.ones((1, 300, 300), np.float32)
    for lower, corner in (
        ("result", (0, 299)),
        ("left", (0, 0)),
        ("left transposed", (299, 0)),
        ("right", (0, 299)),
    ):
        # Ones where a caller promises zeros: what is left out shows as a smaller sum.
        assert product(a, a, "float32", 1, "")[0][corner] == 300
        assert product(a, a, "float32", 1, lower)[0][corner] < 100, lower


@pytest.mark.parametrize("value", [np.inf, np.nan])
@pytest.mark.parametrize("lower", LOWER[1:])
def test_zeros_times_what_is_not_finite_are_nan_as_without_a_triangle(
    lower: str, value: float, isa: str
) -> None:
    a, b = factors((2, 100, 100, 100), lower, "rows")
    (a if lower == "right" else b)[1, 50, 50] = value
    for unit in ("float32", "integers16"):
        results = []
        for named in (lower, ""):
            y = np.empty((2, 100, 100), np.float32)
            done = native.product(a, b, y, unit, threads=1, lower=named)
            results.append((done, y.tobytes() if done else b""))
        assert results[0] == results[1]
    assert np.isnan(product(a, b, "float32", 1, lower)[1]).any()


@pytest.mark.parametrize(
    "name", ["mxfp8_e4m3", "mxfp6_e3m2", "mx9", "block(element=fp8_e4m3,scale=e8m0,size=128)"]
)
@pytest.mark.parametrize("lower", LOWER)
def test_blocks_across_the_diagonal_are_rounded_as_they_are_in_the_whole(
    name: str, lower: str, isa: str
) -> None:
    fmt = parse(name)
    a, b = (torch.from_numpy(x).bfloat16() * 1.1 for x in factors((2, 170, 170, 170), lower, "rows"))

    def rounded(a: torch.Tensor, b: torch.Tensor, lower: str) -> torch.Tensor:
        return ops.rounded_product(a, b, (fmt, fmt), (Choices(), Choices()), torch.bfloat16, lower=lower)

    rounded(a * torch.nan, b * torch.nan, "")  # as above
    found, whole = rounded(a, b, lower), rounded(a, b, "")
    if lower == "result":
        whole, found = whole.tril(), found.tril()
    assert torch.equal(found, whole)


def test_a_matrix_of_no_known_place_is_refused() -> None:
    a = np.ones((1, 2, 2), np.float32)
    with pytest.raises(ValueError, match="left transposed"):
        product(a, a, "float32", 1, "upper")


def test_the_operator_takes_a_triangle_as_torch_has_it() -> None:
    a = torch.ones(2, 9, 9).tril().requires_grad_()
    b = torch.ones(2, 9, 9).requires_grad_()
    given = (a, b, "", "", "", "", torch.float32, None, None, None, None, "left")
    torch.library.opcheck(torch.ops.fewbits.rounded_product, given)
    batch = torch.vmap(lambda x, y: ops.rounded_product(x, y, (None, None), lower="left"))(a, b)
    assert torch.equal(batch, a @ b)
