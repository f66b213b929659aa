"""A model whose weights are what ``fewbits cast`` would store, inside a ``with`` block."""

from __future__ import annotations

import glob
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from fewbits import kernels
from fewbits.compare.bare_parameters import BareParameter, bare_parameters
from fewbits.compare.casting import Cast, CountedRounding, FormatQuantizer, LayerTally, counts, mark_unbounded
from fewbits.errors import ArgumentError
from fewbits.formats import Format
from fewbits.names import Selection
from fewbits.ptq import quantize_model
from fewbits.ptq.data_flow import Batch
from fewbits.ptq.grid import Target
from fewbits.ptq.layers import ProductLayer, holds_weight, is_plain, product_layer
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
        stored_rows: by the names of parameters that a checkpoint stores as several tensors, how many rows of
            their last axis each has, in order; None for one whose tensors are unknown: it stays as it is.
    """

    method: str = "round"
    scale: str = "amax"
    batches: Sequence[Batch] = ()
    activations: bool = False
    scale_rule: str = "floor"
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    stored_rows: Mapping[str, Sequence[int] | None] = field(default_factory=dict)

    @property
    def is_rounding(self) -> bool:
        """Whether each weight becomes its nearest value, which takes no data."""
        return self.method == "round" and self.scale == "amax"

    def of(self, format: Format) -> WeightCast:
        """Return the same with a scale rule that the format has."""
        return self if kernels.has_scale_rule(format) else replace(self, scale_rule="floor")

    def matrices(self, model: nn.Module) -> tuple[dict[str, ProductLayer], dict[str, BareParameter]]:
        """Return the layers that are cast, and the matrices outside of layers; none of them is shared.

        Raises:
            ArgumentError: a pattern fits no module or matrix, or nothing is left.
        """
        users: dict[int, int] = {}
        for module in model.modules():
            for p in module.parameters(recurse=False):
                users[id(p)] = users.get(id(p), 0) + 1
        bare = bare_parameters(model, users, self.stored_rows)
        named = dict(model.named_modules(remove_duplicate=False))
        selection = Selection.of(self.include or "*", self.exclude, named, bare)
        found: dict[str, ProductLayer] = {}
        for name, module in model.named_modules():
            layer = product_layer(module)
            if layer is None or name not in selection:
                continue
            if not holds_weight(module) or not is_plain(module.weight):
                continue
            if users[id(module.weight)] == 1:
                found[name] = layer
        bare = {name: x for name, x in bare.items() if name in selection}
        if not found and (not bare or self.method != "round" or self.scale != "amax"):
            raise ArgumentError(
                f"{type(model).__name__} has no linear or convolution layer with a weight of its own that is"
                " selected; check include and exclude"
            )
        return found, bare


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
    layers, bare = weights.matrices(model)
    originals = {name: layer.module.weight for name, layer in layers.items()}
    held = {name: one.original for name, one in bare.items()}
    narrow, wide = counts(model, [x.module for x in layers.values()])
    more = sum(p.numel() for p in held.values())
    cast = Cast(
        tuple(LayerTally(name) for name in (*layers, *bare)),
        narrow + more,
        wide - more,
        _left_wide(model, [*originals.values(), *held.values()]),
    )
    tallies = {tally.layer: tally for tally in cast.layers}
    handles = []
    try:
        for layer in layers.values():
            layer.module.weight = nn.Parameter(layer.weight.clone(), requires_grad=False)
        if layers:
            _cast(model, layers, format, weights)
        for one in bare.values():
            chosen = one.rounded(Target(format, weights.scale_rule))
            setattr(one.module, one.key, nn.Parameter(chosen, requires_grad=False))
        quantizer = FormatQuantizer(format, weights.scale_rule)
        for name, layer in layers.items():
            tally, original = tallies[name], layer.in_blocks_of(_detached(originals[name]))
            _add(tally, quantizer, original, layer.in_blocks)
            if weights.activations:
                hook = CountedRounding(quantizer, layer.input_axis, tally.activation, 1)
                handles.append(layer.module.register_forward_pre_hook(hook, with_kwargs=True))
        for name, one in bare.items():
            parts = zip(one.stored(held[name].detach()), one.stored(one.original.detach()), strict=True)
            for before, after in parts:
                _add(tallies[name], quantizer, before, after)
        yield cast
    finally:
        for handle in handles:
            handle.remove()
        for name, layer in layers.items():
            layer.module.weight = originals[name]
        for name, one in bare.items():
            setattr(one.module, one.key, held[name])


def _add(tally: LayerTally, quantizer: FormatQuantizer, before: Tensor, after: Tensor) -> None:
    """Count what became of a matrix with blocks along its rows."""
    saturated = tally.weight.saturated + quantizer.tally(before, before, 1).saturated
    tally.weight.add(widened(before), widened(after))
    tally.weight.saturated = saturated
    mark_unbounded(tally.weight, before)


def _left_wide(model: nn.Module, narrow: Sequence[object]) -> tuple[tuple[str, float], ...]:
    """Return the matrices that stay as they are, with their shares of all values; the largest first."""
    cast = {id(weight) for weight in narrow}
    total = sum(p.numel() for p in model.parameters())
    left = [(n, p.numel() / total) for n, p in model.named_parameters() if p.ndim >= 2 and id(p) not in cast]
    return tuple(sorted(left, key=lambda entry: -entry[1]))


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
            include=[glob.escape(name) for name in layers],
        )
    finally:
        for layer in layers.values():
            _unhook(layer.module)


def _unhook(module: nn.Module) -> None:
    hooks = module._forward_pre_hooks
    for key in [key for key, hook in hooks.items() if isinstance(hook, RoundedInput)]:
        del hooks[key]
        module._forward_pre_hooks_with_kwargs.pop(key, None)


def _detached(weight: object) -> Tensor:
    assert isinstance(weight, torch.Tensor)
    return weight.detach()
