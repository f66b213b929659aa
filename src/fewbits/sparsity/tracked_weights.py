"""The weights that training tracks: the k that have changed most, selected without holding all changes."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

AT_ONCE = 1 << 18  # changes that are compared at once


@dataclass
class Tracked:
    """Where tracked weights lie among all, how far each is from its initial value, and its velocity."""

    index: torch.Tensor  # int32 (n,), rising; int64 where there are more than 2^31 weights
    change: torch.Tensor  # float32 (n,)
    velocity: torch.Tensor | None  # float32 (n,) with momentum

    @staticmethod
    def none(weights: int, device: torch.device, momentum: bool) -> Tracked:
        """Return an empty set for a model of ``weights`` weights."""
        dtype = torch.int32 if weights <= 2**31 else torch.int64
        empty = torch.empty(0, device=device)
        return Tracked(torch.empty(0, dtype=dtype, device=device), empty, empty if momentum else None)

    def within(self, start: int, stop: int) -> slice:
        """Return the slice of tracked weights whose index lies from ``start`` to ``stop - 1``."""
        # Inclusive: the exclusive bound may be 2^31, which int32 cannot hold.
        bounds = torch.tensor([start, stop - 1], dtype=self.index.dtype, device=self.index.device)
        first = int(torch.searchsorted(self.index, bounds[0]))
        return slice(first, int(torch.searchsorted(self.index, bounds[1], right=True)))

    def __getitem__(self, which: slice | torch.Tensor) -> Tracked:
        velocity = None if self.velocity is None else self.velocity[which]
        return Tracked(self.index[which], self.change[which], velocity)

    def __len__(self) -> int:
        return len(self.index)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the tensors by name."""
        named = {"index": self.index, "change": self.change}
        return named if self.velocity is None else {**named, "velocity": self.velocity}


def joined(parts: list[Tracked]) -> Tracked:
    """Concatenate the parts, and empty the list, so that each tensor is freed once it is copied."""
    indices, changes = [part.index for part in parts], [part.change for part in parts]
    velocities = [part.velocity for part in parts if part.velocity is not None]
    parts.clear()
    index = torch.cat(indices)
    indices.clear()
    change = torch.cat(changes)
    changes.clear()
    return Tracked(index, change, torch.cat(velocities) if velocities else None)


def strongest(candidates: Tracked, budget: int) -> Tracked:
    """Return the ``budget`` that have changed most; of equal changes, those of the lowest index.

    A NaN counts as infinite, so that it is seen rather than forgotten.
    """
    if len(candidates) <= budget:
        return candidates
    size = candidates.change.abs().nan_to_num(nan=torch.inf, posinf=torch.inf)
    threshold = size.kthvalue(len(size) - budget + 1).values
    above = size > threshold
    equal = (size == threshold).nonzero().flatten()
    above[equal[candidates.index[equal].argsort()[: budget - int(above.sum())]]] = True
    return candidates[above]


@dataclass
class Selection:
    """Selects the strongest of candidates that arrive in parts, in any order, in bounded memory."""

    budget: int
    parts: list[Tracked] = field(default_factory=list)
    floor: float = 0.0  # smaller changes cannot be among the strongest
    held: int = 0

    def add(self, candidates: Tracked) -> None:
        """Add candidates; those that have not changed are ignored."""
        size = candidates.change.abs()
        admitted = candidates[(size >= self.floor) & (size > 0) | size.isnan()]
        self.parts.append(admitted)
        self.held += len(admitted)
        if self.held > self.budget + max(self.budget // 2, AT_ONCE):
            self._reduce()

    def keep(self, candidates: Tracked) -> None:
        """Add weights that are kept in any case, at most ``budget`` of them."""
        self.parts.append(candidates)

    def _reduce(self) -> None:
        best = strongest(joined(self.parts), self.budget)
        self.parts, self.held = [best], len(best)
        if len(best) == self.budget:
            self.floor = float(best.change.abs().nan_to_num(nan=torch.inf).min())

    def result(self) -> Tracked:
        """Return the strongest, by rising index."""
        self._reduce()
        best = self.parts[0]
        return best[best.index.argsort()]


def moved(tracked: Tracked, start: int, gradient: torch.Tensor, lr: float, momentum: float) -> Tracked:
    """Return every weight from ``start`` on after a step of SGD along its flat ``gradient``, as candidates.

    What is not tracked starts from its initial value, without velocity.
    """
    inside = tracked[tracked.within(start, start + len(gradient))]
    local = inside.index - start
    velocity = gradient.float()
    if inside.velocity is not None:
        velocity = velocity.clone()
        velocity[local] += inside.velocity * momentum
    change = velocity * -lr
    change[local] += inside.change
    index = torch.arange(start, start + len(gradient), dtype=tracked.index.dtype, device=gradient.device)
    return Tracked(index, change, velocity if inside.velocity is not None else None)


def moved_alone(tracked: Tracked, start: int, gradient: torch.Tensor, lr: float, momentum: float) -> Tracked:
    """Return the tracked weights from ``start`` on after the same step, without new candidates."""
    inside = tracked[tracked.within(start, start + len(gradient))]
    velocity = gradient.float()[inside.index - start]
    if inside.velocity is not None:
        velocity = velocity + inside.velocity * momentum
    change = velocity * -lr + inside.change
    return Tracked(inside.index, change, velocity if inside.velocity is not None else None)
