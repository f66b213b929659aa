"""Which precisions are tried on a dense system, in which order and with which budget, as data."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fewbits.kernels import has_tiles
from fewbits.solvers.precision import Precision
from fewbits.solvers.precision import precision as read

# What to try before double precision, from this number of unknowns on. Only matrix units (AMX) are enough
# faster than float32: instructions for pairs of bfloat16 (AVX512_BF16) halve the time of a product, which
# does not make up for the steps of refinement.
BEFORE_DOUBLE: dict[int, tuple[str, ...]] = {1200: ("fp32",)}
BEFORE_DOUBLE_WITH_TILES: dict[int, tuple[str, ...]] = {
    4000: ("bf16", "bf16x2", "fp32"),
    3000: ("bf16", "fp32"),
    **BEFORE_DOUBLE,
}

_CPU = torch.device("cpu")


@dataclass(frozen=True)
class Step:
    """One precision to try.

    Attributes:
        method: LU, Cholesky or QR.
        precision: of the factorization and of its refinement.
        probed: whether to run the cheap test of :mod:`condition_probe` first.
        max_inner: most iterations of GMRES that are worth their time; None for no limit.
    """

    method: str
    precision: Precision
    probed: bool = False
    max_inner: int | None = None

    @property
    def is_double(self) -> bool:
        """Whether the factorization is LAPACK's in double precision."""
        return self.precision.factor == "fp64"

    @property
    def key(self) -> tuple[str, str]:
        """Identifies the factorization of this step: steps with the same key share it."""
        return self.method, self.precision.factor


@dataclass(frozen=True)
class Plan:
    """The steps for one matrix, in order; each runs only if the one before gave no solution.

    Attributes:
        steps: narrow formats, then LU in double precision, then QR, whose pivots do not grow.
        auto: whether the formats were chosen automatically; they are then left out where they save no time.
    """

    steps: tuple[Step, ...]
    auto: bool

    def for_columns(self, n: int, k: int) -> tuple[Step, ...]:
        """Return the steps that are worth their time for k right-hand sides of n unknowns."""
        if not self.auto or pays(n, k):
            return self.steps
        return tuple(step for step in self.steps if step.is_double)


def plan(precision: str | Precision, assume_a: str, n: int, device: torch.device = _CPU) -> Plan:
    """Return what to try on a matrix of n unknowns.

    Args:
        precision: as in :func:`fewbits.solve`.
        assume_a: ``gen``, or ``pos``, which tries Cholesky before LU.
        n: unknowns.
        device: where the matrix lies.

    Raises:
        ArgumentError: no such precision.
    """
    auto = precision == "auto"
    *narrow, double = precisions(precision, n, device)
    method = "LU" if assume_a == "gen" else "Cholesky"
    budget = most_inner(n) if auto else None
    steps = [Step(method, tried, probed=auto, max_inner=budget) for tried in narrow]
    if method == "Cholesky":
        steps.append(Step(method, double))
    return Plan((*steps, Step("LU", double), Step("QR", double)), auto)


def precisions(precision: str | Precision, n: int, device: torch.device = _CPU) -> tuple[Precision, ...]:
    """Return the precisions to try on n unknowns, in order; the last one is double.

    Raises:
        ArgumentError: no such precision.
    """
    double = read("fp64")
    if precision != "auto":
        first = read(precision)
        return (first,) if first.factor == "fp64" else (first, double)
    table = BEFORE_DOUBLE_WITH_TILES if device.type == "cpu" and has_tiles() else BEFORE_DOUBLE
    names: tuple[str, ...] = next((names for unknowns, names in table.items() if n >= unknowns), ())
    return (*map(read, names), double)


def pays(n: int, k: int) -> bool:
    """Whether refining k right-hand sides takes less time than a narrow factorization saves.

    Measured at 1000 and 2000 unknowns: with n / 100 of them it takes more.
    """
    return k == 1 or k * 250 <= n


def most_inner(n: int) -> int:
    """Return the iterations of GMRES that take about a third of the time of LAPACK's double precision.

    An iteration reads three matrices. The factorization takes 2/3 n^3 multiplications and additions, at about
    70 per number read.
    """
    return 8 + n // 128
