"""Linear and convolution layers as matrix products: their weights as matrices, their inputs as rows."""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import prod

import torch
from torch import Tensor, nn
from torch.nn import functional

from fewbits.files.matrix_view import matrix_shape

_CONV1D = "transformers.pytorch_utils.Conv1D"  # by name: importing it would take seconds


class ProductLayer(ABC):
    """A layer that multiplies its inputs by a weight, as one matrix product or one for each group.

    Attributes:
        module: the layer.
        input_axis: the axis of its input along which the product sums, negative.
        weight_axis: the axis of its weight along which inputs, or channels of them, lie.
    """

    input_axis = -1
    weight_axis = 1

    def __init__(self, module: nn.Module) -> None:
        self.module = module

    @property
    def weight(self) -> Tensor:
        """The weight as the layer holds it, without gradient."""
        weight = self.module.weight
        assert isinstance(weight, Tensor)
        return weight.detach()

    @property
    def in_blocks(self) -> Tensor:
        """The weight as :func:`fewbits.files.cast` stores it: a matrix with blocks along its rows."""
        return self.in_blocks_of(self.weight)

    def in_blocks_of(self, weight: Tensor) -> Tensor:
        """Return a tensor of the weight's shape as :attr:`in_blocks`."""
        return weight.reshape(matrix_shape(tuple(weight.shape)))

    def from_blocks(self, matrix: Tensor) -> Tensor:
        """Return what is arranged as :attr:`in_blocks` as matrices."""
        return self.matrices(matrix.reshape(self.weight.shape))

    def to_blocks(self, matrices: Tensor) -> Tensor:
        """Return matrices arranged as :attr:`in_blocks`."""
        return self.in_blocks_of(self.stored(matrices))

    @abstractmethod
    def matrices(self, weight: Tensor) -> Tensor:
        """Return a tensor of the weight's shape as matrices, (groups, outputs, inputs)."""

    @abstractmethod
    def stored(self, matrices: Tensor) -> Tensor:
        """Return matrices in the weight's shape: the inverse of :meth:`matrices`."""

    @abstractmethod
    def rows(self, x: Tensor) -> Tensor:
        """Return an input of the layer as what the matrices are multiplied by, (groups, vectors, inputs)."""


class LinearLayer(ProductLayer):
    """A Linear: weight (outputs, inputs)."""

    def matrices(self, weight: Tensor) -> Tensor:
        """Return the weight as one matrix."""
        return weight[None]

    def stored(self, matrices: Tensor) -> Tensor:
        """Return the one matrix."""
        return matrices[0]

    def rows(self, x: Tensor) -> Tensor:
        """Return all vectors along the last axis."""
        return x.reshape(1, -1, x.shape[-1])


class InputFirstLayer(LinearLayer):
    """Hugging Face's Conv1D: a linear layer with weight (inputs, outputs)."""

    weight_axis = 0

    def matrices(self, weight: Tensor) -> Tensor:
        """Return the weight as one matrix."""
        return weight.T[None]

    def stored(self, matrices: Tensor) -> Tensor:
        """Return the one matrix, inputs first."""
        return matrices[0].T


class ConvolutionLayer(ProductLayer):
    """A convolution: one product for each group, whose inputs are the patches that the kernel sees."""

    def __init__(self, module: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> None:
        super().__init__(module)
        self.convolution, self.input_axis = module, -1 - len(module.kernel_size)

    def matrices(self, weight: Tensor) -> Tensor:
        """Return a matrix for each group; inputs are (channel, place in the kernel)."""
        return weight.reshape(self.convolution.groups, -1, prod(weight.shape[1:]))

    def stored(self, matrices: Tensor) -> Tensor:
        """Return the matrices as one kernel."""
        return matrices.reshape(self.weight.shape)

    def rows(self, x: Tensor) -> Tensor:
        """Return the patches of all images."""
        layer, kernel = self.convolution, self.convolution.kernel_size
        if x.ndim == len(kernel) + 1:
            x = x[None]
        mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
        x = functional.pad(x, layer._reversed_padding_repeated_twice, mode=mode)
        for axis, (size, stride, dilation) in enumerate(
            zip(kernel, layer.stride, layer.dilation, strict=True), 2
        ):
            x = x.unfold(axis, (size - 1) * dilation + 1, stride)[..., ::dilation]
        # (images, channels, places..., kernel...) to (groups, images and places, channels and kernel)
        count = len(kernel)
        x = x.reshape(len(x), layer.groups, -1, *x.shape[2:])
        places, inside = range(3, 3 + count), range(3 + count, 3 + 2 * count)
        return x.permute(1, 0, *places, 2, *inside).flatten(3 + count - 1).flatten(1, -2)


def product_layer(module: nn.Module) -> ProductLayer | None:
    """Return a module as a matrix product; None if it is not known to be one."""
    kind = type(module)
    if "forward" in vars(module):
        return None
    if isinstance(module, nn.Linear) and kind.forward is nn.Linear.forward:
        return LinearLayer(module)
    for known in (nn.Conv1d, nn.Conv2d, nn.Conv3d):
        if isinstance(module, known) and kind.forward is known.forward:
            return ConvolutionLayer(module)
    return InputFirstLayer(module) if f"{kind.__module__}.{kind.__qualname__}" == _CONV1D else None


def holds_weight(module: nn.Module) -> bool:
    """Return whether the weight of a layer is a parameter of it, and not computed from others."""
    return "weight" in module._parameters  # not parametrized, nor set anew by a hook before each call


def is_plain(weight: object) -> bool:
    """Return whether a weight is an ordinary floating-point tensor; one on the meta device may be."""
    return (
        isinstance(weight, Tensor)
        and type(weight) in (Tensor, nn.Parameter)
        and weight.dtype in (torch.float32, torch.float16, torch.bfloat16, torch.float64)
        and weight.numel() > 0
    )
