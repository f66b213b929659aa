"""Residuals in twice the precision: all instruction sets equal the definition, that equals the fractions."""

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from fewbits.kernels import native
from fewbits.kernels.reference.dense import residuals as reference

SHAPES = [(1, 1), (3, 7), (5, 8), (4, 9), (2, 0), (31, 33), (64, 640)]


def system(m: int, n: int, k: int = 2) -> Any:
    """Return A, x and b of very different sizes, whose residuals cancel to the last bits."""
    generator = np.random.default_rng(m + n)
    a = generator.standard_normal((m, n)) * 10.0 ** generator.integers(-20, 20, (m, n))
    x = generator.standard_normal((k, n)) * 10.0 ** generator.integers(-20, 20, (k, n))
    return a, x, x @ a.T


def powers_of_two(m: int, n: int) -> tuple[Any, Any]:
    """Return those of m rows and of n columns."""
    generator = np.random.default_rng(m * n)
    rows, columns = (np.ldexp(1.0, generator.integers(-90, 90, count)) for count in (m, n))
    return rows, columns


@pytest.mark.parametrize("shape", SHAPES)
def test_every_instruction_set_equals_the_definition(isa: str, shape: tuple[int, int]) -> None:
    a, x, b = system(*shape)
    padded = np.empty((shape[0], shape[1] + 3))
    padded[:, : shape[1]] = a
    expected = reference.residuals(a, x, b)
    for held in (a, padded[:, : shape[1]]):
        for threads in (1, 2):
            for part, whole in zip(native.residuals(held, x, b, threads), expected, strict=True):
                assert part.tobytes() == whole.tobytes()
            for powers in (None, powers_of_two(*shape)):
                found = native.extents(held, threads, None, powers)
                for part, whole in zip(found, reference.extents(a, powers), strict=True):
                    assert part.tobytes() == whole.tobytes()


@pytest.mark.parametrize("shape", SHAPES[:6])
def test_the_definition_is_exact_to_a_rounding_of_the_residual(shape: tuple[int, int]) -> None:
    a, x, b = system(*shape)
    found, sizes = reference.residuals(a, x, b)
    for c in range(len(x)):
        for i in range(shape[0]):
            products = [Fraction(a[i, j]) * Fraction(x[c, j]) for j in range(shape[1])]
            exact, size = Fraction(b[c, i]) - sum(products), sum(map(abs, products)) + abs(Fraction(b[c, i]))
            allowed = abs(exact) * Fraction(2) ** -53 + (shape[1] + 8) ** 2 * size * Fraction(2) ** -104
            assert abs(Fraction(found[c, i]) - exact) <= allowed
            assert float(size) == pytest.approx(sizes[c, i])


def test_in_double_precision_alone_nothing_of_such_a_residual_is_right() -> None:
    """The negative control of the one above."""
    a, x, b = system(31, 33)
    plain, found = b - x @ a.T, reference.residuals(a, x, b)[0]
    assert np.abs(plain - found).max() > 0.5 * np.abs(found).max()


@pytest.mark.usefixtures("isa")
@pytest.mark.parametrize("n", [1, 7, 8, 9, 64, 83])
def test_the_values_come_along_in_float32(n: int) -> None:
    """All magnitudes, ties and those that float32 does not hold; NumPy's conversion is the yardstick."""
    rng = np.random.default_rng(n)
    bits = rng.integers(0, 2**63, (5, n), dtype=np.int64) | rng.integers(0, 2, (5, n)) << 63
    a = np.where(rng.random((5, n)) < 0.5, bits.view(float), rng.standard_normal((5, n)))
    a[0] = 1 + 2.0**-24
    single = np.full((5, n), np.nan, np.float32)
    native.extents(a, 2, single)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        expected = a.astype(np.float32)
    assert np.array_equal(single, expected, equal_nan=True)
    powers = powers_of_two(5, n)
    native.extents(a, 2, single, powers)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        rows, columns = (np.log2(power).astype(int) for power in powers)
        expected = np.ldexp(a, rows[:, None] + columns).astype(np.float32)
    assert np.array_equal(single, expected, equal_nan=True)
    with pytest.raises(ValueError, match="a rounded value for each value"):
        native.extents(a, 1, single[:4])


def test_nan_shows_in_the_sums() -> None:
    a = np.ones((3, 20))
    a[1, 5], a[2, 18] = np.nan, np.inf
    largest, sums, columns = native.extents(a, 1)
    assert np.isfinite(sums).tolist() == [True, False, False]
    assert largest[:2].tolist() == [1, 1]
    assert np.isinf(columns[18])
    assert np.isnan(native.residuals(a, np.ones((1, 20)), np.ones((1, 3)), 1)[0][0]).tolist()[1]


def test_what_does_not_fit_is_refused() -> None:
    a, x, b = system(4, 9)
    with pytest.raises(ValueError, match="follow each other"):
        native.residuals(a.T, b, x, 1)
    with pytest.raises(ValueError, match="a value of x for each column"):
        native.residuals(a, x[:, :8].copy(), b, 1)
    with pytest.raises(ValueError, match="as many right-hand sides"):
        native.residuals(a, x[:1], b, 1)
    with pytest.raises(ValueError, match="for each row"):
        native.residuals(a, x, b[:, :3].copy(), 1)
    rows, columns = powers_of_two(4, 9)
    with pytest.raises(ValueError, match="a power of two for each row and column"):
        native.extents(a, 1, None, (columns, rows))
