"""The evidence for the solution of a dense system: error estimates and the condition of the matrix."""

from __future__ import annotations

import math

import torch

from fewbits.solvers.dense import condition
from fewbits.solvers.dense.fallback import Attempt, Outcome
from fewbits.solvers.solution import Solution
from fewbits.typing import Array


def solution(x: Array, outcome: Outcome) -> Solution[Array]:
    """Return x, (n,) or (n, k), as a :class:`Solution` with its stages and errors.

    Args:
        x: the columns of the outcome, as an array or tensor like the right-hand side.
        outcome: one with residuals. For a complex b and a real A it has 2 k columns: real parts, then
            imaginary parts.
    """
    last: Attempt = outcome.attempts[-1]
    errors: list[torch.Tensor] = _errors(last, x.shape[1] if x.ndim == 2 else 1)

    def with_evidence(x: Array, of: slice, columns: tuple[Solution[Array], ...]) -> Solution[Array]:
        residual, backward, componentwise, ahead = (float(e[of].max()) for e in errors)
        return Solution(
            x,
            last.stage.code >= 0,
            residual,
            max(last.stage.code, 0),
            tuple(attempt.stage for attempt in outcome.attempts),
            last.stage.history,
            backward_error=backward,
            componentwise_error=componentwise,
            forward_error=ahead,
            condition=last.factored.condition,
            columns=columns,
        )

    k = x.shape[1] if x.ndim == 2 else 0
    return with_evidence(x, slice(None), tuple(with_evidence(x[:, i], slice(i, i + 1), ()) for i in range(k)))


def nothing(x: Array) -> Solution[Array]:
    """Return x, (n,) or (n, k) without a number in it, as the :class:`Solution` of a system of none."""

    def exact(x: Array, columns: tuple[Solution[Array], ...]) -> Solution[Array]:
        return Solution(
            x,
            True,
            0.0,
            backward_error=0.0,
            componentwise_error=0.0,
            forward_error=0.0,
            columns=columns,
        )

    k = x.shape[1] if x.ndim == 2 else 0
    return exact(x, tuple(exact(x[:, i], ()) for i in range(k)))


def _errors(last: Attempt, k: int) -> list[torch.Tensor]:
    """Return the residuals and the normwise, componentwise and forward errors of k columns."""
    assert last.state is not None
    assert last.factors is not None
    system, state = last.system, last.state
    inverse = last.factored.inverse_norm(doubtful=last.stage.inner > 0)
    stretch = inverse.norm / inverse.seen if inverse.seen else 1.0
    if last.stage.code >= 0:
        forward = stretch * condition.forward_error(system, last.factors, state)
    else:
        forward = torch.full((k,), math.inf, dtype=torch.float64, device=last.b.device)
    others = system.normwise(state, last.b), state.errors, forward
    residuals = system.relative_residuals(state, last.b, last.top, together=k)
    return [residuals, *(_worst(e, k) for e in others)]


def _worst(errors: torch.Tensor, k: int) -> torch.Tensor:
    """Return the errors of k columns, given those of k columns or of their real and imaginary parts."""
    return errors.reshape(-1, k).amax(0)
