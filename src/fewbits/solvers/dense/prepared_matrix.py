"""A dense matrix with its equilibrated forms, factorizations and condition estimates, each computed once."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch

from fewbits.solvers.dense import cholesky, condition, condition_probe, lu, qr, system
from fewbits.solvers.dense.arrays import check_finite
from fewbits.solvers.dense.factors import Factors, to_single
from fewbits.solvers.dense.plan import Step
from fewbits.solvers.dense.system import System
from fewbits.solvers.precision import roundoff
from fewbits.solvers.solution import REASONS

# They have the range of float32, which holds an equilibrated matrix as it is.
_UNSCALED = ("fp32", "bf16", "bf16x2", "bf16x3")
_EQUILIBRATE = {"LU": system.general, "QR": system.general, "Cholesky": system.definite}


@dataclass
class Factored:
    """One factorization of an equilibrated matrix, or why it failed, and its condition estimates.

    Attributes:
        system: what was factorized.
        factors: None if the factorization failed.
        code: the code of a Stage if the factorization failed.
        reason: the reason that goes with ``code``.
        roundoff: unit roundoff of the narrowest operands.
        seconds: the time it took; counted in the first stage that uses it.
        answers: the solutions of :func:`condition.probes`; None before they are computed.
        inverse: the norm of the inverse; None before it is estimated.
        shown: what :meth:`harmless` has found, by ``doubtful``: it holds for every right-hand side.
    """

    system: System
    factors: Factors | None
    code: int = 0
    reason: str = ""
    roundoff: float = 0.0
    seconds: float = 0.0
    answers: torch.Tensor | None = None
    inverse: condition.Inverse | None = None
    shown: dict[bool, bool] = field(default_factory=dict)

    def spent(self) -> float:
        """Return the seconds of the factorization at the first call, and 0 afterwards."""
        seconds, self.seconds = self.seconds, 0.0
        return seconds

    def inverse_norm(self, *, doubtful: bool) -> condition.Inverse:
        """Return an estimate of the norm of the inverse; see :func:`condition.inverse_norm`."""
        if self.inverse is None:
            assert self.factors is not None
            factors = self.factors.wide()
            if self.answers is None:
                self.answers = factors.solve(condition.probes(self.system.a))
            self.inverse = condition.inverse_norm(
                self.system, factors, self.roundoff, self.answers, doubtful=doubtful
            )
        return self.inverse

    def harmless(self, *, doubtful: bool, most_inner: int | None) -> bool:
        """Return whether the answers to the probes show that the matrix is nonsingular.

        Args:
            doubtful: whether refinement is known not to contract; the answers are then refined by GMRES.
            most_inner: most iterations of it that are worth their time.
        """
        if self.answers is None or self.factors is None:
            return False
        if doubtful not in self.shown:
            factors = self.factors.wide()
            self.shown[doubtful] = (
                condition.resolved(self.system, factors, self.answers, most_inner)
                if doubtful
                else condition.harmless(self.system, factors, self.roundoff, self.answers)
            )
        return self.shown[doubtful]

    @property
    def condition(self) -> float:
        """The condition number of the equilibrated matrix; infinity if it is too large to estimate.

        Call :meth:`inverse_norm` first.
        """
        assert self.inverse is not None
        product = self.system.norm * self.inverse.norm
        return product if product <= condition.certain(len(self.system.a)) else math.inf


class PreparedMatrix:
    """A square matrix with its equilibrated forms and factorizations, which are computed on demand.

    Args:
        a: (n, n) float64 or complex128. It is kept and, in double precision, not copied.
        steps: those of the plan. If one of LU has the range of float32, and its test does not doubt that it
            is worth its time, a copy in float32 is made in the same pass that reads the magnitudes; it is
            factorized if nothing has to be scaled.

    Attributes:
        halves_differ: whether a step of Cholesky, which reads one half, does not see all of the matrix.

    Raises:
        DataError: NaN or infinity in it, or it is not Hermitian and a step is of Cholesky.
    """

    def __init__(self, a: torch.Tensor, steps: Sequence[Step]) -> None:
        self.a = a
        began = time.perf_counter()
        # A copy that nobody factorizes would hold memory while the factors in double precision take theirs.
        single = any(
            step.method == "LU" and step.precision.factor in _UNSCALED and not self._doubt(step)
            for step in steps
        )
        self._tested = time.perf_counter() - began
        self._extents = system.extents(a, single=single)
        if not bool(torch.isfinite(self._extents.sums).all()):
            check_finite(a, "A")  # or only the sums overflow
        by_half = any(step.method == "Cholesky" for step in steps)
        self.halves_differ = by_half and not cholesky.check_hermitian(a)
        self._systems: dict[tuple[str, bool], System] = {}
        self._factored: dict[tuple[str, str], Factored] = {}

    def system(self, method: str, *, adjoint: bool = False) -> System:
        """Return the equilibrated system that ``method`` factorizes, or that of A^H."""
        if (method, adjoint) not in self._systems:
            if adjoint:
                made = self.system(method).adjoint()
            else:
                made, single = _EQUILIBRATE[method](self.a, self._extents)
                self._extents = replace(self._extents, single=single)
            self._systems[method, adjoint] = made
        return self._systems[method, adjoint]

    def factored(self, step: Step) -> Factored:
        """Return the factorization of a step; it is computed once."""
        if step.key not in self._factored:
            began = time.perf_counter()
            factored = self._factorize(step)
            factored.seconds = time.perf_counter() - began + self._tested
            self._tested = 0.0
            self._factored[step.key] = factored
        return self._factored[step.key]

    @cached_property
    def _sampled_pivots(self) -> torch.Tensor:
        return condition_probe.sampled_pivots(self.a)

    def _doubt(self, step: Step) -> str:
        """Return why the step is not worth trying; "" if it is, or is tried without a test."""
        if not step.probed:
            return ""
        return condition_probe.doubt(self._sampled_pivots, len(self.a), roundoff(step.precision.factor))

    def _factorize(self, step: Step) -> Factored:
        method, factor = step.key
        if doubt := self._doubt(step):
            return Factored(self.system(method), None, -1, doubt)
        here, single = self.system(method), self._extents.single
        self._extents = replace(self._extents, single=None)  # the copy is overwritten by its factors
        factors = _factorize(here, method, factor, single)
        if isinstance(factors, Factors):
            return Factored(here, factors, roundoff=roundoff(factor))
        return Factored(here, None, *factors)


def _factorize(
    here: System, method: str, factor: str, single: torch.Tensor | None
) -> Factors | tuple[int, str]:
    """Return factors of an equilibrated matrix, or the code and the reason of a Stage.

    Args:
        here: the matrix.
        method: LU, Cholesky, or in double precision QR.
        factor: of a :class:`Precision`.
        single: the matrix in float32, which is overwritten; None if there is no such copy.
    """
    if method == "Cholesky":
        return _by_cholesky(here.matrix(), factor)
    if method == "QR":
        return qr.factorize_double(here.matrix())
    if factor == "fp64":
        factors = lu.factorize_double(here.matrix(), owned=here.powers is not None)
    else:
        if factor in _UNSCALED and single is not None:
            low, rows, columns = single, None, None
        else:
            low, rows, columns = to_single(here.matrix(), factor, scaled=factor not in _UNSCALED)
        factors = lu.factorize(low, factor, rows, columns)
        if not factors.finite:
            return -2, REASONS[-2]
    if factors.zero_pivot is not None:
        return -3, f"pivot {factors.zero_pivot} of {len(here.a)} is exactly zero"
    return factors


def _by_cholesky(a: torch.Tensor, factor: str) -> Factors | tuple[int, str]:
    if factor == "fp64":
        factors = cholesky.factorize_double(a)
    else:
        low, scale = cholesky.to_shifted_single(a, factor)
        factors = cholesky.factorize(low, factor, scale)
    if factors is None:
        return -3, "a pivot is not positive"
    return factors if factors.finite else (-2, REASONS[-2])
