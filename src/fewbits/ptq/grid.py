"""The values that the weights of a layer may take, with the scales of their blocks fixed.

What is chosen has to be stored without another rounding: quantizing it has to find the same scales again. A
power of two that only becomes smaller costs nothing, where all values of the old grid are on the finer one.
Otherwise one value of each block, its *anchor*, holds the scale where it is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import torch
from torch import Tensor

from fewbits.formats import Element, Format
from fewbits.kernels import has_scale_rule
from fewbits.kernels.reference.dequantize.dequantize import multiplier
from fewbits.ptq.blocks import anchors, scale_size
from fewbits.tensor import fake_quantize, quantize

_SETTLING = 8  # rounds until quantizing changes nothing; each moves scales by one unit in the last place


@dataclass(frozen=True)
class Target:
    """A format, and how its power-of-two scales are chosen."""

    format: Format
    scale_rule: str = "floor"

    def rounded(self, w: Tensor) -> Tensor:
        """Return w, (rows, n) with blocks along rows, rounded to nearest even with its own scales."""
        y: Tensor = fake_quantize(w, self.format, axis=1, scale_rule=self._rule)
        return y

    def nearest(self, w: Tensor) -> Tensor | None:
        """Return w, (rows, n), rounded and settled; beyond the format's largest value that one."""
        y: Tensor = fake_quantize(w, self.format, axis=1, scale_rule=self._rule, overflow="saturate")
        return self.settled(y)

    def settled(self, w: Tensor) -> Tensor | None:
        """Return values near w that rounding leaves as they are, bit for bit; None if it finds none."""
        for _ in range(_SETTLING):
            y = self.rounded(w)
            if torch.equal(y, w):
                return w
            w = y
        return None

    def multipliers(self, w: Tensor) -> Tensor:
        """Return what each element of w, (rows, n), is multiplied by after quantizing: float64, exact.

        It is computed on the CPU, once for each layer, from a copy of w, and lies there.
        """
        if self.format.groups.scales is None:
            return torch.ones(w.shape, dtype=torch.float64)
        parts = quantize(w.cpu(), self.format, axis=1, scale_rule=self._rule).parts()
        factors = torch.from_numpy(multiplier(parts, self.format))
        return factors.expand(w.shape).contiguous()

    @property
    def _rule(self) -> str:
        return self.scale_rule if has_scale_rule(self.format) else "floor"


@dataclass(frozen=True)
class Grid:
    """The values that each weight of a layer may take: the elements of a format times a fixed number.

    Attributes:
        element: the format of each value.
        scales: what each value is multiplied by; float64, any shape.
        least: the smallest magnitude that a value may have before it is multiplied: zero, but for anchors.
        most: the largest such magnitude; infinite where the element's own limits do.
    """

    element: Element
    scales: Tensor
    least: Tensor
    most: float

    def nearest(self, w: Tensor, columns: Tensor | slice = slice(None)) -> Tensor:
        """Return the nearest value of the grid for each weight, ties to even; float64.

        Args:
            w: (rows, k) float64, weights of the columns.
            columns: which of the grid's columns they are; default: all.
        """
        scales, least = self.scales[:, columns], self.least[:, columns]
        codes = (w / scales).nan_to_num(nan=0.0)
        sign = torch.where(codes < 0, -1.0, 1.0).double()
        held = sign * codes.abs().clamp(max=self.most).maximum(least)
        values: Tensor = fake_quantize(held, self.element, overflow="saturate")
        return values * scales

    def arranged(self, arrange: Callable[[Tensor], Tensor]) -> Grid:
        """Return the grid with its numbers in another arrangement."""
        return Grid(self.element, arrange(self.scales), arrange(self.least), self.most)

    def of_group(self, index: int) -> Grid:
        """Return the grid of one of several matrices; each of its columns lies in one piece."""
        return self.arranged(lambda x: x[index].t().contiguous().t())


def grid(w: Tensor, target: Target, like: Tensor | None = None) -> Grid:
    """Return the grid of a matrix, whose scales are those that quantizing it finds.

    Args:
        w: (rows, n), blocks along rows.
        target: the format and its scale rule.
        like: (rows, n), a matrix that has the scales in the place of w.
    """
    element = target.format.element
    scales = target.multipliers(w if like is None else like).to(w.device)
    least = torch.zeros(w.shape, dtype=torch.float64, device=w.device)
    held = _held(target.format)
    if held:
        least[anchors(w, scale_size(target.format))] = held
    # A block has no value below minus its largest: the scale that quantizing finds would hold it otherwise.
    most = inf if target.format.groups.scales is None else element.max
    return Grid(element, scales, least, most)


def _held(format: Format) -> float:
    """Return the magnitude below which no anchor may fall, before it is multiplied; 0 if none is needed."""
    element = format.element
    if format.groups.scales is None:
        return 0.0
    if not has_scale_rule(format):
        return element.max
    # Where every significand is there up to the largest, the grid of half the scale has all smaller values.
    shape = element.grid
    if shape is not None and element.max == (2 - 2.0**-shape.mantissa_bits) * 2.0**element.emax:
        return 0.0
    return float(2.0**element.emax)
