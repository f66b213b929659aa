"""Block Hadamard rotations of what layers take: outliers are spread over the values of a block.

With R orthogonal, W x = (W R) (R^T x), so a layer may take rotated inputs and hold a rotated weight. R is
block-diagonal, a Sylvester-Hadamard matrix over the square root of its size in each block, and its own
transpose (Egiazarov et al., "Bridging the Gap Between Promise and Performance for Microscaling FP4
Quantization", arXiv 2509.23202, section 4, on why blocks suit formats with shared scales).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import torch
from scipy.linalg import hadamard
from torch import Tensor, nn

from fewbits.errors import ArgumentError
from fewbits.ptq.layer_input import Arguments, with_input
from fewbits.ptq.layers import ConvolutionLayer, LinearLayer, ProductLayer

SIZES = (16, 32, 64, 128)


@dataclass(frozen=True)
class BlockHadamard:
    """Rotates blocks of a tensor along an axis; as a forward pre-hook with keyword arguments, inputs.

    Attributes:
        size: values in a block, a power of two that divides the axis.
        axis: the axis.
    """

    size: int
    axis: int = -1

    def __call__(self, module: nn.Module, inputs: tuple[Tensor, ...], named: dict[str, Tensor]) -> Arguments:
        """Return the arguments of a layer with its input rotated."""
        return with_input(inputs, named, self.rotated)

    def rotated(self, x: Tensor) -> Tensor:
        """Return a tensor rotated, in its dtype; twice gives it back, up to rounding."""
        moved = x.movedim(self.axis, -1)
        blocks = moved.reshape(*moved.shape[:-1], -1, self.size) @ _matrix(self.size, x)
        return blocks.reshape(moved.shape).movedim(-1, self.axis)


def check_size(size: int) -> None:
    """Raise ArgumentError for a size of blocks that is not offered."""
    if size and size not in SIZES:
        raise ArgumentError(f"hadamard={size} is not one of 0 (no rotation), {', '.join(map(str, SIZES))}")


def fitting(layer: ProductLayer, most: int) -> tuple[int, ...]:
    """Return 0, for no rotation, and the sizes up to ``most`` whose blocks fill the inputs of a layer."""
    if isinstance(layer, ConvolutionLayer):
        count = layer.convolution.in_channels if layer.convolution.groups == 1 else 0
    else:
        count = layer.matrices(layer.weight).shape[-1]
    return (0, *(size for size in SIZES if size <= most and count and count % size == 0))


def rotate_weight(layer: ProductLayer, size: int) -> None:
    """Multiply the weight of a layer by the rotation of its inputs, in place."""
    layer.weight.copy_(BlockHadamard(size, layer.weight_axis).rotated(layer.weight.double()))


def rotate_outputs(layer: LinearLayer, size: int) -> None:
    """Let a linear layer give rotated outputs: rotate its weight and bias along their outputs, in place."""
    layer.weight.copy_(BlockHadamard(size, 1 - layer.weight_axis).rotated(layer.weight.double()))
    bias = layer.module.bias
    if isinstance(bias, Tensor):
        bias.detach().copy_(BlockHadamard(size).rotated(bias.detach().double()))


def _matrix(size: int, like: Tensor) -> Tensor:
    return torch.tensor(hadamard(size) / sqrt(size), dtype=like.dtype, device=like.device)
