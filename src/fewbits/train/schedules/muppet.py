"""Precision switching on gradient diversity: Rajagopal et al., MuPPET, ICML 2020, section 4."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from fewbits.recipes import Recipe
from fewbits.train.schedules.schedule import Schedule

LEVELS = (8, 12, 14, 16, 32)  # bits of dynamic fixed point; 32 is float32
EPOCHS = 20  # into which the steps are divided, where the paper has passes over ImageNet
RESOLUTION = 3  # epochs that one value of the diversity spans
PATIENCE = 2  # violations before a switch
ALPHA, BETA, LAMBDA = 1.0, 1.5, 0.1  # of the threshold


def diversity(gradients: list[list[torch.Tensor]]) -> float:
    """Return the mean over layers of sum_k |g_k|^2 / |sum_k g_k|^2, for gradients[k][layer].

    One for gradients at right angles to each other, one over their number for equal ones.
    """
    found = []
    for layer in zip(*gradients, strict=True):
        total = torch.stack(layer).sum(0).square().sum()
        if total > 0:
            found.append(float(sum(g.square().sum() for g in layer) / total))
    return sum(found) / len(found) if found else 0.0


def level_recipe(recipe: Recipe, bits: int) -> Recipe:
    """Return ``recipe`` with every operand in dynamic fixed point of ``bits`` bits."""
    if bits == 32:
        return recipe.extended(weight=None, activation=None, gradient=None)
    fixed = f"block(element=int({bits}),scale=e8m0,size=tensor)/stochastic/rceil"
    return recipe.extended(weight=fixed, activation=fixed, gradient=fixed)


class Muppet(Schedule):
    """Starts with 8 bits and goes up when the gradients of successive epochs grow alike."""

    def __init__(self, model: nn.Module, recipe: Recipe, steps: int) -> None:
        super().__init__(model, recipe, steps)
        self.recipes = [level_recipe(recipe, bits) for bits in LEVELS]
        self.level, self.violations, self.largest, self.since = 0, 0, 0.0, 0
        self.gradients: list[list[torch.Tensor]] = []  # of the last batch of each epoch
        self.apply()

    @property
    def _epoch(self) -> int:
        return max(1, self.steps // EPOCHS)

    def after_backward(self) -> None:
        """Keep the gradients of an epoch's last batch, and switch where their diversity says so."""
        if (self.step + 1) % self._epoch or self.level == len(LEVELS) - 1:
            return
        weights = [p for p in self.model.parameters() if p.ndim > 1 and p.grad is not None]
        self.gradients.append([p.grad.detach().float().clone() for p in weights if p.grad is not None])
        self.gradients = self.gradients[-RESOLUTION:]
        self.since += 1
        if len(self.gradients) < RESOLUTION:
            return
        now = diversity(self.gradients)
        self.largest = max(self.largest, now)
        threshold = ALPHA + BETA * math.exp(-LAMBDA * self.since)
        self.violations += int(now > 0 and self.largest / now > threshold)
        if self.violations >= PATIENCE:
            self.level, self.violations, self.largest, self.since = self.level + 1, 0, 0.0, 0

    def apply(self) -> None:
        """Give each layer the recipe of this moment."""
        for rules in self.rules.values():
            rules.recipe = self.recipes[self.level]

    def state_dict(self) -> dict[str, Any]:
        """Return what :meth:`load_state_dict` takes, but for :attr:`gradients`, which are tensors."""
        names = ("level", "violations", "largest", "since")
        return super().state_dict() | {name: getattr(self, name) for name in names}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where the state was taken."""
        for name in ("level", "violations", "largest", "since"):
            setattr(self, name, state[name])
        super().load_state_dict(state)

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the gradients that are kept, as ``epoch/layer``."""
        return {f"{k}/{i}": g for k, layers in enumerate(self.gradients) for i, g in enumerate(layers)}

    def load_tensors(self, tensors: dict[str, torch.Tensor]) -> None:
        """Take over the gradients that are kept."""
        found: dict[int, dict[int, torch.Tensor]] = {}
        for name, tensor in tensors.items():
            k, i = map(int, name.split("/"))
            found.setdefault(k, {})[i] = tensor
        self.gradients = [[layers[i] for i in sorted(layers)] for _, layers in sorted(found.items())]
