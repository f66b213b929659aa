"""How far the inverse magnifies: condition estimates, and bounds of the error of a solution."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from fewbits.solvers.dense.factors import Factors
from fewbits.solvers.dense.refinement import EPS
from fewbits.solvers.dense.system import State, System, magnitudes, matvec, residuals, times_power

_PROBES = 2  # random signs: that both miss the direction that counts has a chance of one in hundreds
_MOST_STEPS = 12  # of the search for a vector that A makes small; each gains digits until there are no more
# Factors of a singular matrix that were rounded to u have a condition of about 1 / u: from a fiftieth of that
# on they do not tell whether there is more.
_DOUBTED = 0.02
_LITTLE = 0.25  # of a solution, which a step of refinement changes


@dataclass(frozen=True)
class Inverse:
    """Lower bounds of the infinity norm of R A C's inverse, which are rarely below a third of it.

    Attributes:
        norm: of the inverse itself.
        seen: as far as the factors tell; less than ``norm`` where narrow ones hide a small singular value.
    """

    norm: float
    seen: float


def probes(a: torch.Tensor) -> torch.Tensor:
    """Return right-hand sides, (n, 2) of a's dtype, whose solutions tell how far the inverse magnifies."""
    return _signs((len(a), _PROBES)).to(a.dtype)


def harmless(system: System, factors: Factors, roundoff: float, answers: torch.Tensor) -> bool:
    """Whether the solutions of :func:`probes` leave no doubt that the matrix is regular.

    A row of the inverse is up to sqrt(n) times as long as what random signs find of it; where it hides a
    singular matrix, each of them misses that with a chance of one in sixty.
    """
    estimate = math.sqrt(len(system.a)) * float(magnitudes(answers).max()) * system.norm
    if not estimate <= certain(len(system.a)):
        return False
    return estimate * roundoff <= _DOUBTED or _contracts(system.a, factors, answers)


def inverse_norm(
    system: System, factors: Factors, roundoff: float, answers: torch.Tensor, *, doubtful: bool
) -> Inverse:
    """Estimate the norm of R A C's inverse.

    A row of the inverse that random signs find (Hager, Condition Estimates, 1984); where narrow factors
    cannot tell singular matrices from others, and refinement of the answers does not either, the vector that
    A itself makes smallest, in a space that they span.

    Args:
        system: R A C.
        factors: of about that, substitutions in double precision.
        roundoff: of the narrowest operands in their making.
        answers: the solutions of :func:`probes` that the factors give.
        doubtful: whether refinement is known not to contract.
    """
    a = system.a
    y = magnitudes(answers)
    if not bool(torch.isfinite(y).all()):
        return Inverse(math.inf, math.inf)
    row = int(y.amax(1).argmax())
    unit = torch.zeros(len(a), 1, dtype=a.dtype)
    unit[row] = 1
    seen = max(float(y.max()), float(magnitudes(factors.adjoint().solve(unit)).sum()))
    if not math.isfinite(seen):
        return Inverse(math.inf, math.inf)
    if roundoff <= EPS or seen * system.norm * roundoff <= _DOUBTED:
        return Inverse(seen, seen)
    if not doubtful and _contracts(a, factors, answers):
        return Inverse(seen, seen)
    start = probes(a)[:, y.amax(0).argmax()]
    return Inverse(max(seen, _largest_magnification(a, factors, start)), seen)


def _signs(shape: tuple[int, ...]) -> torch.Tensor:
    generator = torch.Generator().manual_seed(shape[0])
    return torch.randint(0, 2, shape, generator=generator).double() * 2 - 1


def _contracts(a: torch.Tensor, factors: Factors, answers: torch.Tensor) -> bool:
    """Whether a step of refinement changes the larger answer to the probes little.

    What narrow factors hide of a singular matrix is most of that answer, and A takes it to nothing: the step
    would change it by as much.
    """
    sizes = magnitudes(answers).amax(0)
    of = sizes.argmax()[None]
    change = factors.solve(residuals(a, answers[:, of], probes(a)[:, of])[0])
    return bool(magnitudes(change).max() <= _LITTLE * sizes.max())


def _largest_magnification(a: torch.Tensor, factors: Factors, start: torch.Tensor) -> float:
    """Return the norm of the inverse, as far as the vector tells that A makes smallest in a Krylov space."""
    v = start[:, None] / torch.linalg.vector_norm(start)
    basis, directions = v, torch.zeros(len(a), 0, dtype=a.dtype)
    images = directions  # A times the directions, which are orthonormal
    best = 0.0
    for _ in range(_MOST_STEPS):
        z = factors.solve(v)
        if not bool(torch.isfinite(z.abs()).all()):
            return math.inf
        new = _orthogonal(z, directions)
        directions, images = torch.cat([directions, new], 1), torch.cat([images, matvec(a, new)], 1)
        before, best = best, max(best, _magnification(directions, images))
        v = _orthogonal(images @ (directions.mH @ z), basis)
        if best <= 2 * before or not bool(torch.isfinite(v.abs()).all()):
            break
        basis = torch.cat([basis, v], 1)
    return best


def _orthogonal(z: torch.Tensor, basis: torch.Tensor) -> torch.Tensor:
    """Return the direction of z, (n, 1), that an orthonormal basis leaves; nan where there is none."""
    for _ in range(2):
        z = z - basis @ (basis.mH @ z)
    direction: torch.Tensor = z / torch.linalg.vector_norm(z)
    return direction


def _magnification(directions: torch.Tensor, images: torch.Tensor) -> float:
    """Return the largest norm of z w^H / |w|^2, w = A z, of the singular vectors z of A on a space."""
    turned = torch.linalg.svd(images, full_matrices=False)[2].mH
    z, w = magnitudes(directions @ turned), magnitudes(images @ turned)
    norms = z.amax(0) * w.sum(0) / w.square().sum(0)
    return float(torch.where(w.amax(0) > 0, norms, math.inf).max())


def certain(n: int) -> float:
    """Return the condition from which on no digit is certain, and no estimate of it is.

    A factorization of n unknowns rounds by up to about 4 sqrt(n) 2^-53.
    """
    return 1 / (4 * math.sqrt(n) * EPS)


def forward_error(system: System, factors: Factors, state: State) -> torch.Tensor:
    """Return an estimate of max |x - x'| / max |x'|, (k,), in A's unknowns.

    x is the exact solution and x' the one found: the norm of |A^-1| |r|, as in LAPACK's GERFS, whose other
    term is what rounds the residual; that does not count here.
    """
    if not bool(torch.isfinite(state.x.abs()).all()):
        return torch.full(state.x.shape[1:], math.inf, dtype=torch.float64)
    residual = magnitudes(state.residual)
    units = system.near_one(state.x)
    y = magnitudes(factors.solve((_signs(tuple(residual.shape)) * residual).to(system.a.dtype)))
    sizes = times_power(y, units)
    worst, each = sizes.argmax(0), torch.arange(sizes.shape[1])
    ones = torch.zeros(residual.shape, dtype=system.a.dtype)
    ones[worst, each] = 1
    rows = magnitudes(factors.adjoint().solve(ones))
    bounds = torch.maximum(sizes.amax(0), times_power((rows * residual).sum(0), units[worst, each]))
    lengths = times_power(magnitudes(state.x), units).amax(0)
    return torch.where(bounds > 0, bounds / lengths, 0.0)
