"""A model whose weights are what ``fewbits cast`` would store, inside a ``with`` block."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from fewbits import kernels
from fewbits.compare.casting import Cast, CountedRounding, FormatQuantizer, LayerTally, counts
from fewbits.errors import ArgumentError
from fewbits.formats import Format
from fewbits.names import check_fits, within
from fewbits.ptq import quantize_model
from fewbits.ptq.data_flow import Batch
from fewbits.ptq.grid import Target
from fewbits.ptq.layers import ProductLayer, is_plain, product_layer
from fewbits.ptq.model import RoundedInput
from fewbits.tensor.arrays import widened


@dataclass(frozen=True)
class WeightCast:
    """How the weights of a model become narrow, and whether the inputs of its layers do.

    Attributes:
        method: ``round`` to nearest, ``gptq`` or ``gpfq``.
        scale: ``amax`` or ``search``.
        batches: what weights are chosen on; none are needed to round with the scale ``amax``.
        activations: whether the inputs of the layers are rounded, too.
        scale_rule: how power-of-two scales are chosen; formats with other scales keep their own rule.
        include: name patterns of modules whose layers are cast; empty for all.
        exclude: name patterns of modules to leave as they are.
    """

    method: str = "round"
    scale: str = "amax"
    batches: Sequence[Batch] = ()
    activations: bool = False
    scale_rule: str = "floor"
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()

    @property
    def is_rounding(self) -> bool:
        """Whether each weight becomes its nearest value, which takes no data."""
        return self.method == "round" and self.scale == "amax"

    def of(self, format: Format) -> WeightCast:
        """Return the same with a scale rule that the format has."""
        return self if kernels.has_scale_rule(format) else replace(self, scale_rule="floor")

    def layers(self, model: nn.Module) -> dict[str, ProductLayer]:
        """Return the layers that are cast: linear and convolution ones that share no weight.

        Raises:
            ArgumentError: a pattern fits no module, no layer is left, or a stack of matrices, as of experts,
                is no layer and would stay wide.
        """
        names = [name for name, _ in model.named_modules()]
        check_fits("include", self.include, names)
        check_fits("exclude", self.exclude, names)
        users: dict[int, int] = {}
        for module in model.modules():
            for p in module.parameters(recurse=False):
                users[id(p)] = users.get(id(p), 0) + 1
        found: dict[str, ProductLayer] = {}
        for name, module in model.named_modules():
            layer = product_layer(module)
            selected = (not self.include or within(name, self.include)) and not within(name, self.exclude)
            if layer is None and selected:
                _check_no_stack(name, module)
            if layer is None or not selected or not is_plain(module.weight):
                continue
            if users[id(module.weight)] == 1:
                found[name] = layer
        if not found:
            raise ArgumentError(
                f"{type(model).__name__} has no linear or convolution layer with a weight of its own that is"
                " selected; check include and exclude"
            )
        return found


def _check_no_stack(name: str, module: nn.Module) -> None:
    for own, p in module.named_parameters(recurse=False):
        if p.ndim > 2:
            raise ArgumentError(
                f"{name}.{own}, {tuple(p.shape)}, is a stack of matrices in no layer: it would stay wide,"
                f" while fewbits cast stores it narrow; exclude {name} to compare the layers alone"
            )


@contextmanager
def cast_weights(model: nn.Module, format: Format, weights: WeightCast) -> Iterator[Cast]:
    """Give the layers of a model narrow weights; on exit, also by an exception, it is what it was before.

    Args:
        model: any module, in the mode in which it is evaluated.
        format: of the weights and, where asked, of the inputs of their layers.
        weights: the method, and which layers.

    Yields:
        The statistics; those of inputs are updated by the first call of each layer.
    """
    weights = weights.of(format)
    layers = weights.layers(model)
    originals = {name: layer.module.weight for name, layer in layers.items()}
    cast = Cast(
        tuple(LayerTally(name) for name in layers), *counts(model, [x.module for x in layers.values()])
    )
    handles = []
    try:
        for layer in layers.values():
            layer.module.weight = nn.Parameter(layer.weight.clone(), requires_grad=False)
        _cast(model, layers, format, weights)
        quantizer = FormatQuantizer(format, weights.scale_rule)
        for tally, (name, layer) in zip(cast.layers, layers.items(), strict=True):
            original = layer.in_blocks_of(_detached(originals[name]))
            tally.weight.add(widened(original), widened(layer.in_blocks))
            tally.weight.saturated = quantizer.tally(original, original, 1).saturated
            if weights.activations:
                hook = CountedRounding(quantizer, layer.input_axis, tally.activation, 1)
                handles.append(layer.module.register_forward_pre_hook(hook))
        yield cast
    finally:
        for handle in handles:
            handle.remove()
        for name, layer in layers.items():
            layer.module.weight = originals[name]


def _cast(model: nn.Module, layers: Mapping[str, ProductLayer], format: Format, weights: WeightCast) -> None:
    """Change the weights in place; no hook stays."""
    if weights.is_rounding:
        target = Target(format, weights.scale_rule)
        for layer in layers.values():
            layer.weight.copy_(target.rounded(layer.in_blocks).reshape(layer.weight.shape))
        return
    try:
        quantize_model(
            model,
            weights.batches,
            format,
            method=weights.method,
            scale=weights.scale,
            scale_rule=weights.scale_rule,
            activation=format if weights.activations else None,
            include=weights.include or "*",
            exclude=weights.exclude,
        )
    finally:
        for layer in layers.values():
            _unhook(layer.module)


def _unhook(module: nn.Module) -> None:
    hooks = module._forward_pre_hooks
    for key in [key for key, hook in hooks.items() if isinstance(hook, RoundedInput)]:
        del hooks[key]


def _detached(weight: object) -> Tensor:
    assert isinstance(weight, torch.Tensor)
    return weight.detach()
