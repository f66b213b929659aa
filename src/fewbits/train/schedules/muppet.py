"""Precision switching on gradient diversity: Rajagopal et al., MuPPET, ICML 2020, section 4."""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy

import torch
from torch import nn

from fewbits.errors import ArgumentError
from fewbits.kernels.ops.sharding import gathered
from fewbits.recipes import Recipe
from fewbits.train.schedules.schedule import Schedule
from fewbits.typing import StateDict

LEVELS = (8, 12, 14, 16, 32)  # bits of dynamic fixed point; 32 is float32
EPOCHS = 60  # into which the steps are divided, where the paper has passes over ImageNet
RESOLUTION = 3  # epochs that one value of the diversity spans
PATIENCE = 2  # violations before a switch
ALPHA, BETA, LAMBDA = 1.0, 1.5, 0.1  # of the threshold


def diversity(squares: Sequence[float], sums: Sequence[torch.Tensor]) -> float:
    """Return the mean over parameters of sum_k |g_k|^2 / |sum_k g_k|^2, of gradients g_k.

    One for gradients at right angles to each other, one over their number for equal ones. Parameters whose
    gradients add up to zero say nothing.

    Args:
        squares: sum_k |g_k|^2 of each parameter.
        sums: sum_k g_k of each parameter.
    """
    totals = [float(gathered(s.square().sum())) for s in sums]
    ratios = [square / total for square, total in zip(squares, totals, strict=True) if total > 0]
    return sum(ratios) / len(ratios) if ratios else 0.0


def threshold(epoch: int) -> float:
    """Return the ratio of diversities that is a violation in an epoch, counted from 0."""
    return ALPHA + BETA * math.exp(-LAMBDA * epoch)


def level_recipe(recipe: Recipe, bits: int) -> Recipe:
    """Return ``recipe`` with every operand in dynamic fixed point of ``bits`` bits."""
    if bits == 32:
        return recipe.extended(weight=None, activation=None, gradient=None)
    fixed = f"block(element=int({bits}),scale=e8m0,size=tensor)/stochastic/rceil"
    return recipe.extended(weight=fixed, activation=fixed, gradient=fixed)


class Muppet(Schedule):
    """Starts with 8 bits and goes up when the gradients of successive epochs grow alike.

    The diversity is that of the last batch's gradients in each of three epochs. It is compared with the
    largest since the last switch; twice a ratio above the threshold of the epoch is a switch. Of sharded
    gradients all processes judge the whole, and switch together.

    Raises:
        ArgumentError: the recipe rounds operands itself, which none would follow.
    """

    def __init__(self, model: nn.Module, recipe: Recipe, steps: int) -> None:
        given = next(((role, how) for role, how in recipe.operands.items() if how is not None), None)
        if given is not None:
            raise ArgumentError(
                f"{given[0]}={given[1]} in recipe {recipe.name!r}, whose schedule chooses the formats of all"
                " operands itself; leave it out, or take another schedule"
            )
        super().__init__(model, recipe, steps)
        self.recipes = [level_recipe(recipe, bits) for bits in LEVELS]
        self.level, self.violations, self.largest = 0, 0, 0.0
        # Since the last look, by the parameter's number: some may have a gradient in few epochs only.
        self.squares: dict[str, float] = {}
        self.sums: dict[str, torch.Tensor] = {}
        self.apply()

    @property
    def _epoch(self) -> int:
        return max(1, self.steps // EPOCHS)

    def after_backward(self) -> None:
        """Add up the gradients of an epoch's last batch, and switch where their diversity says so."""
        if (self.step + 1) % self._epoch or self.level == len(LEVELS) - 1:
            return
        for i, p in enumerate(self.model.parameters()):
            if p.grad is not None:
                number, gradient = str(i), p.grad.detach().float()
                square = float(gathered(gradient.square().sum()))
                self.squares[number] = self.squares.get(number, 0.0) + square
                self.sums[number] = self.sums.get(number, torch.zeros_like(gradient)) + gradient
        epoch = self.step // self._epoch
        if (epoch + 1) % RESOLUTION == 0:
            numbers = sorted(self.sums, key=int)  # a mean in one order, whatever came first or was loaded
            squares, sums = [self.squares[n] for n in numbers], [self.sums[n] for n in numbers]
            self._judge(diversity(squares, sums), threshold(epoch))
            self.squares, self.sums = {}, {}

    def _judge(self, now: float, most: float) -> None:
        if now >= self.largest:
            self.largest = now
        elif now > 0 and self.largest / now > most:
            self.violations += 1
        if self.violations >= PATIENCE:
            self.level, self.violations, self.largest = self.level + 1, 0, 0.0

    def apply(self) -> None:
        """Give each layer the recipe of the current step."""
        for precision in self.precision.values():
            precision.recipe = self.recipes[self.level]

    def state_dict(self) -> StateDict:
        """Return what :meth:`load_state_dict` takes, but for :attr:`sums`, which are tensors."""
        names = ("level", "violations", "largest", "squares")
        return super().state_dict() | {name: copy(getattr(self, name)) for name in names}

    def _restore(self, state_dict: StateDict) -> None:
        super()._restore(state_dict)
        for name in ("level", "violations", "largest", "squares"):
            setattr(self, name, copy(state_dict[name]))

    def tensors(self) -> dict[str, torch.Tensor]:
        """Return the sums of gradients, by the number of their parameter."""
        return dict(self.sums)

    def load_tensors(self, tensors: dict[str, torch.Tensor]) -> None:
        """Take over the sums of gradients."""
        self.sums = dict(tensors)
