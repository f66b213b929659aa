"""Which precisions ``auto`` tries, and when a narrow one is worth it, as data."""

from __future__ import annotations

from fewbits.solvers.precision import Precision
from fewbits.solvers.precision import precision as read
from fewbits.tensor.narrow.products import has_tiles

# From so many unknowns on, what to try before double precision. Only what a matrix unit multiplies is faster
# than float32: instructions for pairs of bfloat16 (AVX512_BF16) halve the time of a product, and what that
# leaves does not make up for the steps of refinement.
FROM: dict[int, tuple[str, ...]] = {1200: ("fp32",)}
FROM_WITH_TILES: dict[int, tuple[str, ...]] = {
    4000: ("bf16", "bf16x2", "bf16x3"),
    2000: ("bf16x2", "fp32"),
    **FROM,
}


def chain(precision: str | Precision, n: int) -> tuple[Precision, ...]:
    """Return the precisions to try on n unknowns, in order; the last one is double."""
    last = read("fp64")
    if precision != "auto":
        one = read(precision)
        return (one,) if one.factor == "fp64" else (one, last)
    least = FROM_WITH_TILES if has_tiles() else FROM
    names: tuple[str, ...] = next((names for unknowns, names in least.items() if n >= unknowns), ())
    return (*map(read, names), last)


def is_worth_it(n: int, columns: int) -> bool:
    """Whether refining so many right-hand sides takes less time than a narrow factorization saves.

    Measured at 1000 and 2000 unknowns: with n / 100 of them it takes more.
    """
    return columns == 1 or columns * 250 <= n


def most_inner(n: int) -> int:
    """Return the iterations of GMRES that take about a third of the time of LAPACK's double precision.

    One reads three matrices; the factorization computes 2/3 n^3 at about 70 operations for each number read.
    """
    return 8 + n // 128
