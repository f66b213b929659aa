"""How far the inverse magnifies: condition estimates, and bounds of the error of a solution."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from fewbits.solvers.dense.factors import Factors
from fewbits.solvers.dense.refinement import EPS, MOST_INNER, refine
from fewbits.solvers.dense.system import State, System, magnitudes, times_power

_WHOLE = 16  # unknowns up to which the inverse itself is computed
# Multiples fill a square evenly (Roberts, The Unreasonable Effectiveness of Quasirandom Sequences, 2018).
_STEPS = torch.tensor([0.7548776662466927, 0.5698402909980532], dtype=torch.float64)
_PATIENCE = 2  # steps of the Krylov search beyond twice those that its last gain took
# Factors of a singular matrix, rounded with unit roundoff u, have a condition of about 1 / u. Above a
# fiftieth of that, the factors cannot tell an ill-conditioned matrix from a singular one.
_DOUBTED = 0.02
_LITTLE = 0.25  # relative change of a solution by one step of refinement that counts as small


@dataclass(frozen=True)
class Inverse:
    """Lower bounds on the infinity norm of (R A C)^-1; they are rarely below a third of it.

    Of up to 16 unknowns they are the norm itself.

    Attributes:
        norm: the bound for the inverse itself.
        seen: the bound from the factors alone; less than ``norm`` if narrow factors hide a small singular
            value.
    """

    norm: float
    seen: float


def probes(a: torch.Tensor) -> torch.Tensor:
    """Return right-hand sides whose solutions tell the norm of the inverse: units, or :func:`mixed`."""
    n = len(a)
    return (torch.eye(n, dtype=torch.float64) if n <= _WHOLE else mixed(n)).to(a.device, a.dtype)


def mixed(n: int) -> torch.Tensor:
    """Return two vectors of random signs with magnitudes from 1/2 to 1, (n, 2) float64.

    With magnitudes of one, rows of an inverse with few entries would often cancel. No two unknowns have
    nearly the same magnitudes in both.
    """
    order = torch.randperm(n, generator=torch.Generator().manual_seed(n))
    sizes = torch.exp2((order.double()[:, None] * _STEPS).frac())  # curved: no sums of them are alike
    return _signs((n, 2)) * sizes / 2


def shown(answers: torch.Tensor) -> float:
    """Return what the solutions of :func:`probes` show of the infinity norm of the inverse."""
    sizes = magnitudes(answers)
    return float((sizes.sum(1) if len(answers) <= _WHOLE else sizes.amax(1)).max())


def harmless(system: System, factors: Factors, roundoff: float, answers: torch.Tensor) -> bool:
    """Return whether the solutions of :func:`probes` show beyond doubt that the matrix is nonsingular.

    The norm of a row of the inverse is up to about sqrt(n) times what a random vector shows of it. Each
    vector misses a singular matrix with a probability of one in sixty.
    """
    estimate = _magnification_bound(system, answers)
    if not estimate <= certain(len(system.a)):
        return False
    return estimate * roundoff <= _DOUBTED or _contracts(system, factors, answers)


def _magnification_bound(system: System, answers: torch.Tensor) -> float:
    """Return what the condition may be, given the solutions of :func:`probes`; see :func:`harmless`."""
    n = len(system.a)
    return (1 if n <= _WHOLE else math.sqrt(n)) * shown(answers) * system.norm


def resolved(system: System, factors: Factors, answers: torch.Tensor, most_inner: int | None) -> bool:
    """Return whether solutions of :func:`probes`, refined, show that the matrix is nonsingular.

    What narrow factors hide is in them: a probe has about one part in sqrt(n) along any singular vector, and
    the residual that refinement leaves is far below it. This takes as many iterations as the solution itself
    took, a search for the smallest singular value many more.
    """
    done = refine(system, probes(system.a), answers, factors, "gmres", strictly=False, most_inner=most_inner)
    return done.code >= 0 and _magnification_bound(system, done.state.x) <= certain(len(system.a))


def inverse_norm(
    system: System, factors: Factors, roundoff: float, answers: torch.Tensor, *, doubtful: bool
) -> Inverse:
    """Estimate the infinity norm of (R A C)^-1.

    The estimate uses a row of the inverse, chosen with random signs (Hager, Condition Estimates, 1984). If
    narrow factors cannot tell whether the matrix is singular, and a step of refinement cannot either, it uses
    the vector z of a Krylov space for which |A z| is smallest.

    Args:
        system: R A C.
        factors: approximate factors of R A C; substitutions run in double precision.
        roundoff: unit roundoff of the narrowest operands in the factorization.
        answers: the solutions that the factors give for :func:`probes`.
        doubtful: whether refinement is known not to contract.
    """
    a = system.a
    y = magnitudes(answers)
    if not bool(torch.isfinite(y).all()):
        return Inverse(math.inf, math.inf)
    row = int(y.amax(1).argmax())
    unit = a.new_zeros(len(a), 1)
    unit[row] = 1
    seen = max(shown(answers), float(magnitudes(factors.adjoint().solve(unit)).sum()))
    if not math.isfinite(seen):
        return Inverse(math.inf, math.inf)
    if roundoff <= EPS or seen * system.norm * roundoff <= _DOUBTED:
        return Inverse(seen, seen)
    if not doubtful and _contracts(system, factors, answers):
        return Inverse(seen, seen)
    start = probes(a)[:, y.amax(0).argmax()]
    return Inverse(max(seen, _largest_magnification(system, factors, start)), seen)


def _signs(shape: tuple[int, ...]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(shape[0])
    return torch.randint(0, 2, shape, generator=generator).double() * 2 - 1


def _contracts(system: System, factors: Factors, answers: torch.Tensor) -> bool:
    """Return whether a step of refinement changes the larger of the answers only a little.

    If narrow factors hide a singular matrix, that answer is mostly a null vector of A, so the step would
    change it by about its own size.
    """
    sizes = magnitudes(answers).amax(0)
    of = sizes.argmax()[None]
    change = factors.solve(system.residuals(answers[:, of], probes(system.a)[:, of])[0])
    return bool(magnitudes(change).max() <= _LITTLE * sizes.max())


def _largest_magnification(system: System, factors: Factors, start: torch.Tensor) -> float:
    """Return a lower bound on the norm of A^-1: from the z in a Krylov space for which |A z| is smallest.

    The factors may hide several small singular values. The bound stays at one of them while the space finds
    the next, for about as many steps as it took to get there: the search ends when it has gained nothing for
    that long, and after as many steps as GMRES takes.
    """
    v = start[:, None] / torch.linalg.vector_norm(start)
    basis, directions = v, v.new_zeros(len(v), 0)
    images = directions  # A times the directions, which are orthonormal
    best, gained, at = 0.0, 0, 0.0
    for step in range(1, min(MOST_INNER, len(v)) + 1):
        z = factors.solve(v)
        if not bool(torch.isfinite(z.abs()).all()):
            return math.inf
        new = _orthogonal(z, directions)
        if not bool(torch.isfinite(new.abs()).all()):  # the space is complete: z lies in it
            break
        directions, images = torch.cat([directions, new], 1), torch.cat([images, system.matvec(new)], 1)
        best = max(best, _magnification(directions, images))
        if best > 2 * at:
            gained, at = step, best
        v = _orthogonal(images @ (directions.mH @ z), basis)
        if step >= 2 * gained + _PATIENCE or not bool(torch.isfinite(v.abs()).all()):
            break
        basis = torch.cat([basis, v], 1)
    return best


def _orthogonal(z: torch.Tensor, basis: torch.Tensor) -> torch.Tensor:
    """Return the unit vector of the part of z, (n, 1), orthogonal to the basis; nan if that part is zero."""
    for _ in range(2):
        z = z - basis @ (basis.mH @ z)
    direction: torch.Tensor = z / torch.linalg.vector_norm(z)
    return direction


def _magnification(directions: torch.Tensor, images: torch.Tensor) -> float:
    """Return the largest norm of z w^H / |w|^2, w = A z, over the singular vectors z of A on a subspace."""
    turned = torch.linalg.svd(images, full_matrices=False)[2].mH
    z, w = magnitudes(directions @ turned), magnitudes(images @ turned)
    norms = z.amax(0) * w.sum(0) / w.square().sum(0)
    return float(torch.where(w.amax(0) > 0, norms, math.inf).max())


def certain(n: int) -> float:
    """Return the condition number above which no digit of x is certain, nor any estimate of the condition.

    A factorization with n unknowns has a relative rounding error of up to about 4 sqrt(n) 2^-53.
    """
    return 1 / (4 * math.sqrt(n) * EPS)


def forward_error(system: System, factors: Factors, state: State) -> torch.Tensor:
    """Return an estimate of max |x - x'| / max |x'|, (k,), in the unknowns of A.

    x is the exact solution and x' the computed one. The estimate is the norm of |A^-1| |r|, as in LAPACK's
    GERFS; its other term, the rounding error of r, is negligible here because r is computed in about twice
    the precision.
    """
    if not bool(torch.isfinite(state.x.abs()).all()):
        return torch.full(state.x.shape[1:], math.inf, dtype=torch.float64, device=state.x.device)
    residual = magnitudes(state.residual)
    units = system.near_one(state.x)
    signs = _signs(tuple(residual.shape)).to(residual.device)
    y = magnitudes(factors.solve((signs * residual).to(system.a.dtype)))
    sizes = times_power(y, units)
    worst, each = sizes.argmax(0), torch.arange(sizes.shape[1], device=sizes.device)
    ones = system.a.new_zeros(residual.shape)
    ones[worst, each] = 1
    rows = magnitudes(factors.adjoint().solve(ones))
    bounds = torch.maximum(sizes.amax(0), times_power((rows * residual).sum(0), units[worst, each]))
    lengths = times_power(magnitudes(state.x), units).amax(0)
    return torch.where(bounds > 0, bounds / lengths, 0.0)
