"""Direct casting: run a trained FP32 model with weights and activations rounded, without retraining.

Each operand of a matrix product is rounded along the axis that the product sums over (Microscaling Data
Formats for Deep Learning, figure 2): a Linear's weight and input along their last axis, a convolution's along
its input channels. Everything else stays in FP32: biases, norms, embeddings, and the two products inside
attention, whose operands are not the weight or input of a layer. A Linear that shares an embedding's weight
rounds a copy of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from math import inf, isnan, log10, nan
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from fewbits import kernels
from fewbits.formats import Format, parse
from fewbits.kernels import ops
from fewbits.metrics import Tally
from fewbits.names import Selection, listed
from fewbits.ptq.layer_input import Arguments, with_input
from fewbits.ptq.layers import holds_weight
from fewbits.tensor import fake_quantize


class Quantizer(Protocol):
    """Rounds a tensor in blocks along an axis, and counts what that did."""

    def round(self, x: Tensor, axis: int) -> Tensor:
        """Return the rounded tensor, of the same shape and dtype."""

    def tally(self, x: Tensor, y: Tensor, axis: int) -> kernels.ErrorSums:
        """Return what became of ``x`` when it was rounded to ``y``."""


@dataclass(frozen=True)
class FormatQuantizer:
    """Rounds to a format with round to nearest even."""

    format: Format
    scale_rule: str = "floor"

    def round(self, x: Tensor, axis: int) -> Tensor:
        """Return the rounded tensor, of the same shape and dtype."""
        y: Tensor = fake_quantize(x, self.format, axis=axis, scale_rule=self.scale_rule)
        return y

    def tally(self, x: Tensor, y: Tensor, axis: int) -> kernels.ErrorSums:
        """Return what became of ``x`` when it was rounded to ``y``."""
        options = kernels.options(self.format, scale_rule=self.scale_rule)
        return ops.tally(x, self.format, axis % x.ndim, options)


# Layer type: reduction axes of weight and input, negative, so that inputs need no batch axis.
_AXES: tuple[tuple[type[nn.Module], int, int], ...] = (
    (nn.Linear, -1, -1),
    (nn.Conv1d, 1, -2),
    (nn.Conv2d, 1, -3),
    (nn.Conv3d, 1, -4),
)


@dataclass(frozen=True)
class LayerTally:
    """Rounding errors of the weight and of the inputs so far of one layer."""

    layer: str  # its name in the model
    weight: Tally = field(default_factory=Tally)
    activation: Tally = field(default_factory=Tally)


@dataclass(frozen=True)
class Cast:
    """Rounding errors of a model so far, and how much of the model is rounded."""

    layers: tuple[LayerTally, ...]
    cast_parameters: int  # values held in the narrow format
    other_parameters: int  # values that stay in FP32
    left_wide: tuple[tuple[str, float], ...] = ()  # matrices that do, as named; shares of all values

    @property
    def weight_qsnr_db(self) -> float:
        """QSNR of the weights: noise relative to signal, averaged over layers; nan if one is not finite."""
        return _mean_qsnr([layer.weight for layer in self.layers])

    @property
    def activation_qsnr_db(self) -> float:
        """QSNR of the layers' inputs: noise relative to signal, averaged over layers; nan likewise."""
        return _mean_qsnr([layer.activation for layer in self.layers])

    @property
    def saturated_fraction(self) -> float:
        """Fraction of all weights and activations beyond the range of the format; 0 without limits."""
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
    # Powers are averaged instead of decibels, because an exactly represented layer has infinite decibels.
    noise = [t.noise / (t.signal or 1.0) for t in tallies if t.signal > 0 or isnan(t.noise)]
    mean = sum(noise) / len(noise) if noise else 0.0
    return mean if isnan(mean) else -10 * log10(mean) if mean > 0 else inf


def direct_cast(
    model: nn.Module,
    format: str | Format,
    *,
    scale_rule: str = "floor",
    include: str | Iterable[str] = (),
    exclude: str | Iterable[str] = (),
    measured_calls: int = 1,
) -> AbstractContextManager[Cast]:
    """Round the weights and inputs of every Linear and Conv1d, 2d, 3d of ``model`` inside a ``with`` block.

    On exit, also by an exception, the original parameters are restored and all hooks are removed. Inputs are
    rounded only if a layer is called as a module, which nn.MultiheadAttention does not do for its own. A
    layer whose weight is computed from others, as by parametrizations, weight norm or torch's pruning, stays
    as it is: ``left_wide`` of the statistics names its weight.

    Args:
        model: any module; its weights are rounded once, its inputs at each call, both to nearest even.
        format: a format or its text.
        scale_rule: how power-of-two scales are chosen; formats with other scales keep their own rule.
        include: name patterns of modules to round, with all their submodules; empty for all.
        exclude: name patterns of modules to leave unrounded.
        measured_calls: the statistics of activations are taken from this many first calls of each layer.
            Taking them costs more than rounding.

    Returns:
        A context manager whose value holds the statistics; those of activations are updated by the first
        calls.

    Raises:
        FormatError: no such format.
        ArgumentError: no such scale rule, or a pattern matches no module.

    >>> from torch import nn, ones
    >>> model = nn.Linear(64, 2)
    >>> with direct_cast(model, "mxfp6_e2m3") as cast:
    ...     outputs = model(ones(1, 64))
    >>> cast.cast_parameters, cast.other_parameters, cast.weight_qsnr_db > 20
    (128, 2, True)
    """
    fmt = parse(format)
    kernels.check_scale_rule(scale_rule, [fmt])
    quantizer = FormatQuantizer(fmt, scale_rule if kernels.has_scale_rule(fmt) else "floor")
    return rounded(model, quantizer, include=include, exclude=exclude, measured_calls=measured_calls)


@contextmanager
def rounded(
    model: nn.Module,
    quantizer: Quantizer,
    *,
    include: str | Iterable[str] = (),
    exclude: str | Iterable[str] = (),
    measured_calls: int = 1,
) -> Iterator[Cast]:
    """Round weights and inputs as :func:`direct_cast` does, with any quantizer.

    Args:
        model: any module.
        quantizer: rounds along an axis, and counts its errors.
        include: name patterns of modules to round, with all their submodules; empty for all.
        exclude: name patterns of modules to leave unrounded.
        measured_calls: number of first calls of each layer from which statistics are taken.

    Yields:
        The statistics.

    Raises:
        ArgumentError: a pattern matches no module.
    """
    named = dict(model.named_modules(remove_duplicate=False))
    selection = Selection.of(listed("include", include) or "*", exclude, named)
    selected = {name: module for name, module in model.named_modules() if _axes(module) and name in selection}
    layers = {name: module for name, module in selected.items() if holds_weight(module)}
    computed = {name: module for name, module in selected.items() if name not in layers}
    tallies = tuple(LayerTally(name) for name in layers)
    cast = Cast(tallies, *counts(model, list(layers.values())), _shares(model, computed))
    originals = [module.weight for module in layers.values()]
    hooks: list[RemovableHandle] = []
    try:
        for module, tally in zip(layers.values(), cast.layers, strict=True):
            weight_axis, input_axis = _axes(module)
            of_weight = CountedRounding(quantizer, weight_axis, tally.weight, 1)
            of_input = CountedRounding(quantizer, input_axis, tally.activation, measured_calls)
            module.weight = nn.Parameter(of_weight.rounded(module.weight.detach()), requires_grad=False)
            hooks.append(module.register_forward_pre_hook(of_input, with_kwargs=True))
        yield cast
    finally:
        for handle in hooks:
            handle.remove()
        for module, original in zip(layers.values(), originals, strict=True):
            module.weight = original


def _axes(module: nn.Module) -> tuple[int, ...]:
    """Return the reduction axes of a layer's weight and input; () for a module that is not cast."""
    return next(((weight, x) for kind, weight, x in _AXES if isinstance(module, kind)), ())


def _shares(model: nn.Module, layers: Mapping[str, nn.Module]) -> tuple[tuple[str, float], ...]:
    """Return the names of the weights of layers, with their shares of all values of the model."""
    total = sum(p.numel() for p in model.parameters())
    shares = []
    for name, module in layers.items():
        assert isinstance(module.weight, Tensor)
        shares.append((f"{name}.weight".lstrip("."), module.weight.numel() / total))
    return tuple(shares)


@dataclass
class CountedRounding:
    """Rounds tensors along one axis, and counts the errors of the first few; a forward pre-hook."""

    quantizer: Quantizer
    axis: int
    tally: Tally
    measured_calls: int

    def __call__(self, module: nn.Module, inputs: tuple[Tensor, ...], named: dict[str, Tensor]) -> Arguments:
        """Round the input of a layer before its forward."""
        return with_input(inputs, named, self.rounded)

    def rounded(self, x: Tensor) -> Tensor:
        """Return a tensor rounded."""
        y = self.quantizer.round(x, self.axis)
        if self.measured_calls > 0:
            self.measured_calls -= 1
            self.tally.include(self.quantizer.tally(x, y, self.axis), x.numel())
            mark_unbounded(self.tally, x)
        return y


def mark_unbounded(tally: Tally, x: Tensor) -> None:
    """Make the noise of a tally nan where values of ``x`` are not finite: its sums leave such values out."""
    if not bool(torch.isfinite(x).all()):
        tally.noise = nan


def counts(model: nn.Module, layers: list[nn.Module]) -> tuple[int, int]:
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
