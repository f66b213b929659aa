"""Convolutions over one to three axes, and transposed ones."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn
from torch.nn.functional import pad

from fewbits.nn.convolution import convolution
from fewbits.nn.convolution_by_addition import Geometry
from fewbits.nn.layer_precision import LayerPrecision

Convolution = TypeVar("Convolution", nn.Conv1d, nn.Conv2d, nn.Conv3d)
Transposed = TypeVar("Transposed", nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


class NarrowConv1d(nn.Conv1d):
    """A convolution over (batch, channels, length) with narrow operands in all three products."""

    precision: LayerPrecision

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return (batch, out_channels, ...) in the recipe's vector format."""
        return _forward(self, input, self.precision)


class NarrowConv2d(nn.Conv2d):
    """A convolution over (batch, channels, height, width) with narrow operands in all three products."""

    precision: LayerPrecision

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return (batch, out_channels, ...) in the recipe's vector format."""
        return _forward(self, input, self.precision)


class NarrowConv3d(nn.Conv3d):
    """A convolution over (batch, channels, depth, height, width), with narrow operands in all products."""

    precision: LayerPrecision

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return (batch, out_channels, ...) in the recipe's vector format."""
        return _forward(self, input, self.precision)


class NarrowConvTranspose1d(nn.ConvTranspose1d):
    """A transposed convolution over (batch, channels, length) with narrow operands in all products."""

    precision: LayerPrecision

    def forward(self, input: torch.Tensor, output_size: list[int] | None = None) -> torch.Tensor:
        """Return (batch, out_channels, ...), of the spatial sizes given, in the recipe's vector format."""
        return _transposed(self, input, output_size, self.precision)


class NarrowConvTranspose2d(nn.ConvTranspose2d):
    """A transposed convolution over (batch, channels, height, width) with narrow operands in all products."""

    precision: LayerPrecision

    def forward(self, input: torch.Tensor, output_size: list[int] | None = None) -> torch.Tensor:
        """Return (batch, out_channels, ...), of the spatial sizes given, in the recipe's vector format."""
        return _transposed(self, input, output_size, self.precision)


class NarrowConvTranspose3d(nn.ConvTranspose3d):
    """A transposed convolution over (batch, channels, depth, height, width), its operands narrow."""

    precision: LayerPrecision

    def forward(self, input: torch.Tensor, output_size: list[int] | None = None) -> torch.Tensor:
        """Return (batch, out_channels, ...), of the spatial sizes given, in the recipe's vector format."""
        return _transposed(self, input, output_size, self.precision)


def _forward(layer: Convolution, x: torch.Tensor, precision: LayerPrecision) -> torch.Tensor:
    axes = len(layer.kernel_size)
    if x.dim() == axes + 1:
        return _forward(layer, x.unsqueeze(0), precision).squeeze(0)
    padding = layer.padding
    if layer.padding_mode != "zeros" or isinstance(padding, str):
        # Before rounding: what is rounded along channels or the batch is the same at every position.
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        x, padding = pad(x, layer._reversed_padding_repeated_twice, mode), (0,) * axes
    geometry = Geometry(layer.stride, padding, layer.dilation, layer.groups)
    return convolution(x, layer.weight, layer.bias, geometry, precision)


def _transposed(
    layer: Transposed, x: torch.Tensor, output_size: list[int] | None, precision: LayerPrecision
) -> torch.Tensor:
    axes = len(layer.kernel_size)
    if x.dim() == axes + 1:
        sized = None if output_size is None else list(output_size[-axes:])
        return _transposed(layer, x.unsqueeze(0), sized, precision).squeeze(0)
    assert not isinstance(layer.padding, str)  # torch has refused it
    stride, padding, size, dilation = map(
        list, (layer.stride, layer.padding, layer.kernel_size, layer.dilation)
    )
    more = layer._output_padding(x, output_size, stride, padding, size, axes, dilation)
    geometry = Geometry(layer.stride, layer.padding, layer.dilation, layer.groups, tuple(more))
    return convolution(x, layer.weight, layer.bias, geometry, precision)
