"""Direct casting: run a trained FP32 model with weights and activations rounded, without retraining.

Each operand of a matrix product is rounded along the axis that the product sums over (Microscaling Data
Formats for Deep Learning, figure 2): a Linear's weight and input along their last axis, a convolution's along
its input channels. Everything else stays in FP32: biases, norms, embeddings (a Linear that shares an
embedding's weight rounds a copy of it, and what is stored stays FP32), and the two products inside attention,
whose operands are no layer's weight or input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import inf, log10
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fewbits.metrics import Tally

# Both take a tensor and the axis along which blocks lie.
Quantizer = Callable[[Tensor, int], Tensor]  # -> the rounded tensor, of the same shape
Limits = Callable[[Tensor, int], Any]  # -> the largest magnitude that each value could keep, broadcastable

# Layer, reduction axis of its weight, and of its input, from the end, so that inputs need no batch axis.
_AXES: tuple[tuple[type[nn.Module], int, int], ...] = (
    (nn.Linear, -1, -1),
    (nn.Conv1d, 1, -2),
    (nn.Conv2d, 1, -3),
    (nn.Conv3d, 1, -4),
)


@dataclass(frozen=True)
class LayerTally:
    """What rounding did to one layer's weight and to the inputs it has seen."""

    layer: str  # its name in the model
    weight: Tally = field(default_factory=Tally)
    activation: Tally = field(default_factory=Tally)


@dataclass(frozen=True)
class Cast:
    """What rounding did to a model so far, and how much of the model is rounded."""

    layers: tuple[LayerTally, ...]
    cast_parameters: int  # values held in the narrow format
    other_parameters: int  # values that stay in FP32

    @property
    def weight_qsnr_db(self) -> float:
        """QSNR of the weights: noise relative to signal, averaged over layers."""
        return _mean_qsnr([layer.weight for layer in self.layers])

    @property
    def activation_qsnr_db(self) -> float:
        """QSNR of the layers' inputs: noise relative to signal, averaged over layers."""
        return _mean_qsnr([layer.activation for layer in self.layers])

    @property
    def saturated_fraction(self) -> float:
        """Fraction of all weights and activations that lay beyond what the format holds; 0 without limits."""
        return sum(t.saturated for t in self._tallies) / max(self._count, 1)

    @property
    def flushed_fraction(self) -> float:
        """Fraction of all weights and activations that were not zero and became zero."""
        return sum(t.flushed for t in self._tallies) / max(self._count, 1)

    @property
    def _tallies(self) -> list[Tally]:
        return [t for layer in self.layers for t in (layer.weight, layer.activation)]

    @property
    def _count(self) -> int:
        return sum(t.count for t in self._tallies)


def _mean_qsnr(tallies: list[Tally]) -> float:
    # Powers, not decibels, are averaged: a layer that the format holds exactly has infinitely many decibels.
    noise = [t.noise / t.signal for t in tallies if t.signal > 0]
    mean = sum(noise) / len(noise) if noise else 0.0
    return -10 * log10(mean) if mean > 0 else inf


@contextmanager
def direct_cast(
    model: nn.Module, quantizer: Quantizer, *, limits: Limits | None = None, measured_calls: int = 1
) -> Iterator[Cast]:
    """Round the weights and inputs of every Linear and Conv1d, 2d, 3d of ``model`` inside a ``with`` block.

    On leaving, also by an exception, the model is what it was: the same parameters, no hooks. Inputs are
    rounded where layers are called as modules; nn.MultiheadAttention does not call its own.

    Args:
        model: any module; its weights are rounded once, its inputs at each call.
        quantizer: rounds along an axis, as ``lambda x, axis: fewbits.fake_quantize(x, fmt, axis=axis)`` does.
        limits: gives the largest magnitude that each value could have kept, with the same blocks; without it
            no value counts as saturated.
        measured_calls: from how many calls of each layer, the first ones, the statistics of activations are
            taken. Counting costs more than rounding.

    Yields:
        The statistics; those of activations grow with the first calls of the model.

    >>> model = nn.Linear(4, 2)
    >>> with direct_cast(model, lambda x, axis: x.round()) as cast:
    ...     outputs = model(torch.ones(1, 4))
    >>> cast.cast_parameters, cast.other_parameters
    (8, 2)
    """
    layers = {name: module for name, module in model.named_modules() if _axes(module)}
    cast = Cast(tuple(LayerTally(name) for name in layers), *_counts(model, list(layers.values())))
    originals = [module.weight for module in layers.values()]
    hooks: list[RemovableHandle] = []
    try:
        for module, tally in zip(layers.values(), cast.layers, strict=True):
            weight_axis, input_axis = _axes(module)
            of_weight = _Rounding(quantizer, limits, weight_axis, tally.weight, 1)
            of_input = _Rounding(quantizer, limits, input_axis, tally.activation, measured_calls)
            module.weight = nn.Parameter(of_weight.rounded(module.weight.detach()), requires_grad=False)
            hooks.append(module.register_forward_pre_hook(of_input))
        yield cast
    finally:
        for handle in hooks:
            handle.remove()
        for module, original in zip(layers.values(), originals, strict=True):
            module.weight = original


def _axes(module: nn.Module) -> tuple[int, ...]:
    """Return the reduction axes of a layer's weight and input; nothing for a module that is not cast."""
    return next(((weight, x) for kind, weight, x in _AXES if isinstance(module, kind)), ())


@dataclass
class _Rounding:
    """Round tensors along one axis, and tally the first few."""

    quantizer: Quantizer
    limits: Limits | None
    axis: int
    tally: Tally
    measured_calls: int

    def __call__(self, module: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        """Round the input of a layer before its forward."""
        x, *rest = inputs
        return (self.rounded(x), *rest)

    def rounded(self, x: Tensor) -> Tensor:
        y = self.quantizer(x, self.axis)
        if self.measured_calls > 0:
            self.measured_calls -= 1
            limit = inf if self.limits is None else self.limits(x, self.axis)
            self.tally.add(_numpy(x), _numpy(y), limit)
        return y


def _numpy(x: Tensor) -> Any:
    return x.detach().float().cpu().numpy()


def _counts(model: nn.Module, layers: list[nn.Module]) -> tuple[int, int]:
    """Return how many values of the model are cast and how many are not; a shared weight counts once."""
    elsewhere = {
        id(parameter)
        for module in model.modules()
        for name, parameter in module.named_parameters(recurse=False)
        if not (module in layers and name == "weight")
    }
    narrow = {id(module.weight) for module in layers} - elsewhere
    sizes = {id(parameter): parameter.numel() for parameter in model.parameters()}
    cast = sum(size for key, size in sizes.items() if key in narrow)
    return cast, sum(sizes.values()) - cast
