"""DropBack as it reads: every weight, its initial value and its change in memory, and a sort at each step."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fewbits.kernels.reference.values.counter_uniform import counter_uniform


def strongest(change: NDArray[np.float32], budget: int) -> NDArray[np.bool_]:
    """Mark the largest changes: those that a full sort puts first, of equal ones the first in order."""
    order = np.lexsort((np.arange(len(change)), -np.abs(change)))
    kept = np.zeros(len(change), bool)
    kept[order[:budget]] = True
    return kept


def published(change: NDArray[np.float32], budget: int) -> NDArray[np.bool_]:
    """Mark what the published code does: its threshold partitions at the wrong end."""
    size = np.abs(change)
    return size > np.partition(size, budget)[-budget]


class DenseDropBack:
    """The same as fewbits.sparsity.DropBack on a plain model, with no thought of memory."""

    def __init__(
        self,
        model: nn.Module,
        budget: int,
        *,
        lr: float,
        momentum: float = 0.0,
        seed: int = 0,
        gain: float = 1.0,
    ) -> None:
        self.parameters = list(model.parameters())
        self.budget, self.lr, self.momentum = budget, np.float32(-lr), np.float32(momentum)
        self.initial = np.concatenate(self._initial(model, seed, gain))
        self.change, self.velocity = np.zeros_like(self.initial), np.zeros_like(self.initial)
        self.choose = strongest
        self.rest = np.float32(0)  # the change of what is not tracked: to zero it would be -initial
        self.frozen: NDArray[np.bool_] | None = None
        self.kept = np.zeros(len(self.initial), bool)
        self._write(self.initial)

    def _initial(self, model: nn.Module, seed: int, gain: float) -> list[NDArray[np.float32]]:
        start, found = 0, []
        for name, p in model.named_parameters():
            n = p.numel()
            if p.dim() > 1:
                unit = gain * (np.sqrt(3 / (n // len(p))) / 2**24)
                found.append(counter_uniform(seed, start, n, unit))
            else:
                found.append(np.full(n, float(name.endswith("weight")), np.float32))
            start += n
        return found

    @torch.no_grad()
    def _write(self, values: NDArray[np.float32]) -> None:
        start = 0
        for p in self.parameters:
            p.copy_(torch.from_numpy(values[start : start + p.numel()].copy()).view(p.shape))
            start += p.numel()

    def zero_grad(self) -> None:
        for p in self.parameters:
            p.grad = None

    def step(self) -> None:
        gradient = np.concatenate(
            [(torch.zeros_like(p) if p.grad is None else p.grad).flatten().numpy() for p in self.parameters]
        )
        velocity = gradient + self.velocity * self.momentum
        change = velocity * self.lr + self.change
        self.kept = self.choose(change, self.budget) if self.frozen is None else self.frozen
        self.change = np.where(self.kept, change, self.rest)
        self.velocity = np.where(self.kept, velocity, np.float32(0))
        self._write(self.initial + self.change)
