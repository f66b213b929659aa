"""Convolutions over one and two axes."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn
from torch.nn.functional import pad

from fewbits.nn.convolution import convolution
from fewbits.nn.rules import Rules
from fewbits.nn.unfolded import Geometry

Convolution = TypeVar("Convolution", nn.Conv1d, nn.Conv2d)


class NarrowConv1d(nn.Conv1d):
    """A convolution over (batch, channels, length) with narrow operands in all three products."""

    rules: Rules

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return (batch, out_channels, ...) in the recipe's vector format."""
        return _forward(self, input, self.rules)


class NarrowConv2d(nn.Conv2d):
    """A convolution over (batch, channels, height, width) with narrow operands in all three products."""

    rules: Rules

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return (batch, out_channels, ...) in the recipe's vector format."""
        return _forward(self, input, self.rules)


def _forward(layer: Convolution, x: torch.Tensor, rules: Rules) -> torch.Tensor:
    axes = len(layer.kernel_size)
    if x.dim() == axes + 1:
        return _forward(layer, x.unsqueeze(0), rules).squeeze(0)
    padding = layer.padding
    if layer.padding_mode != "zeros" or isinstance(padding, str):
        # Before rounding: what is rounded along channels or the batch is the same at every position.
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        x, padding = pad(x, layer._reversed_padding_repeated_twice, mode), (0,) * axes
    how = Geometry(layer.stride, padding, layer.dilation, layer.groups)
    return convolution(x, layer.weight, layer.bias, how, rules)
