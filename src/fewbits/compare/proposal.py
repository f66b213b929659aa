"""Proposal of a format for each tensor of a checkpoint, from a bound on the noise or on the bits in total."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from math import ceil, floor, inf, isnan, prod

from fewbits.compare.allocation import Choice, allocate, allocate_within
from fewbits.errors import ArgumentError
from fewbits.records import TensorScore, TensorSummary

_LARGEST_POWER = 300.0  # exponent of ten; larger noise counts as unbounded
_ROUNDS = 6  # measurements of a whole proposal; each tightens the bound by the excess


def propose(
    tensors: Sequence[TensorSummary],
    scores: Sequence[TensorScore],
    min_qsnr_db: float,
    measured_noise: Callable[[Mapping[str, str]], float] | None = None,
) -> tuple[list[TensorSummary], float]:
    """Return the summaries with proposals, and the noise of the outputs; nan without a model.

    Args:
        tensors: those of a checkpoint; their sensitivities are nan without a model.
        scores: one for each tensor and format.
        min_qsnr_db: lower bound for the mean of all tensors, or with a model for its outputs; decibels.
        measured_noise: returns the relative noise of the model's outputs, given formats by tensor name.
    """
    bound = _noise(min_qsnr_db)
    proposals, target = _allocated(tensors, scores, bound), bound
    if measured_noise is None:
        return proposals, inf
    noise = measured_noise(_formats(proposals))
    for _ in range(_ROUNDS):
        if noise <= bound:
            break
        # The joint effect of all tensors on the outputs is not the sum of their single effects.
        target *= 0.9 * bound / noise
        proposals = _allocated(tensors, scores, target)
        noise = measured_noise(_formats(proposals))
    return proposals, noise


def propose_within(
    tensors: Sequence[TensorSummary],
    scores: Sequence[TensorScore],
    bits_per_value: float,
    measured_noise: Callable[[Mapping[str, str]], float] | None = None,
) -> tuple[list[TensorSummary], float]:
    """Return the summaries with the proposals of least noise within bits per value, and the outputs' noise.

    Args:
        tensors: those of a checkpoint; their sensitivities are nan without a model.
        scores: one for each tensor and format.
        bits_per_value: the mean over all values of the tensors whose format can be chosen, scales included.
        measured_noise: returns the relative noise of the model's outputs, given formats by tensor name.

    Raises:
        ArgumentError: no format is so narrow.
    """
    free = _free(tensors)
    values = sum(prod(t.shape) for t in free)
    smallest = {t.tensor: t.stored_bytes for t in free}
    for score in scores:
        if score.tensor in smallest:
            smallest[score.tensor] = min(smallest[score.tensor], score.packed_bytes)
    # As it was typed: the double of 4.35 is less, and 800 values would get 434 bytes.
    fewest, most = sum(smallest.values()), floor(Fraction(str(bits_per_value)) * values / 8)
    if fewest > most:
        raise ArgumentError(
            f"a budget of {bits_per_value:g} bits per value is less than the narrowest of the formats take,"
            f" {ceil(Fraction(80_000 * fewest, values)) / 10_000:g}; allow as many, or"
            " measure narrower `formats`"
        )
    proposals = _chosen(tensors, scores, lambda choices: allocate_within(choices, most))
    return proposals, inf if measured_noise is None else measured_noise(_formats(proposals))


def _formats(tensors: Sequence[TensorSummary]) -> dict[str, str]:
    return {t.tensor: t.proposed for t in tensors if t.proposed is not None}


def _allocated(
    tensors: Sequence[TensorSummary], scores: Sequence[TensorScore], most_noise: float
) -> list[TensorSummary]:
    return _chosen(tensors, scores, lambda choices: allocate(choices, most_noise))


def _chosen(
    tensors: Sequence[TensorSummary],
    scores: Sequence[TensorScore],
    allocated: Callable[[Sequence[Sequence[Choice]]], list[int]],
) -> list[TensorSummary]:
    stored = {t.tensor: t.stored_bytes for t in _free(tensors)}
    free: dict[str, list[TensorScore]] = {name: [] for name in stored}
    for score in scores:
        if score.packed_bytes < stored.get(score.tensor, 0):
            free[score.tensor].append(score)
    weights = _weights(tensors)
    choices = [
        [
            Choice(t.stored_bytes, 0.0),
            *(Choice(s.packed_bytes, _weighted(weights[t.tensor], s.error.qsnr_db)) for s in free[t.tensor]),
        ]
        for t in tensors
        if t.tensor in free
    ]
    chosen = iter(allocated(choices))
    return [_with(t, free[t.tensor], next(chosen)) if t.tensor in free else t for t in tensors]


def _free(tensors: Sequence[TensorSummary]) -> list[TensorSummary]:
    """Return the tensors whose format can be chosen."""
    return [t for t in tensors if t.castable and not t.reason]


def _weights(tensors: Sequence[TensorSummary]) -> dict[str, float]:
    """Return the weight of each tensor's relative noise: its sensitivity; equal without a model."""
    free = _free(tensors)
    return {t.tensor: 1 / len(free) if isnan(t.sensitivity) else t.sensitivity for t in free}


def _with(tensor: TensorSummary, scores: Sequence[TensorScore], choice: int) -> TensorSummary:
    if choice == 0:
        best = max((s.error.qsnr_db for s in scores), default=-inf)
        why = f"no format is good enough, the best has {best:.1f} dB" if scores else "no format saves bytes"
        return replace(tensor, proposed=None, proposed_bytes=tensor.stored_bytes, reason=f"{why}: kept")
    score = scores[choice - 1]
    reason = f"{score.error.qsnr_db:.1f} dB at {score.bits_per_value:.4g} bits per value"
    return replace(tensor, proposed=score.format, proposed_bytes=score.packed_bytes, reason=reason)


def _weighted(weight: float, qsnr_db: float) -> float:
    """Return a contribution to the noise: none of what is exact, however much all else may change."""
    noise = _noise(qsnr_db)
    return weight * noise if noise else 0.0


def _noise(qsnr_db: float) -> float:
    """Return the relative power of noise."""
    return float(10.0 ** min(-qsnr_db / 10, _LARGEST_POWER)) if qsnr_db < inf else 0.0
