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

from fewbits.errors import ArgumentError, DTypeError
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

    def __post_init__(self) -> None:
        """Raise ArgumentError for a size that is no power of two."""
        if type(self.size) is not int or self.size < 1 or self.size & (self.size - 1):
            raise ArgumentError(f"BlockHadamard(size={self.size!r}); expected a power of two, such as 32")

    def rotated(self, x: Tensor) -> Tensor:
        """Return a tensor rotated, in its dtype; twice gives it back, up to rounding.

        Raises:
            DTypeError: x holds no floating-point numbers.
            ArgumentError: the size does not divide the axis.
        """
        if not (x.is_floating_point() or x.is_complex()):
            raise DTypeError(
                f"a rotation of {x.dtype}; expected floating point: rotate what a layer multiplies"
            )
        moved = x.movedim(self.axis, -1)
        if moved.shape[-1] % self.size:
            raise ArgumentError(
                f"blocks of {self.size} along axis {self.axis} of shape {tuple(x.shape)}; expected a size"
                " that divides its length: take a smaller one"
            )
        # Of no rows a length left to reshape could be any.
        blocks = moved.unflatten(-1, (moved.shape[-1] // self.size, self.size)) @ _matrix(self.size, x)
        rotated: Tensor = blocks.flatten(-2).movedim(-1, self.axis)
        return rotated


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
