"""Rotate the inputs of layers throughout a model, without a change of what it computes but for rounding."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from fewbits.ptq.data_flow import Stage
from fewbits.ptq.hadamard import BlockHadamard, fitting, rotate_outputs, rotate_weight
from fewbits.ptq.layers import LinearLayer, ProductLayer

_CLOSE = 1e-3  # largest relative change of the outputs by a rotation that is one: rounding leaves far less


@dataclass(frozen=True)
class Rotated:
    """How the inputs of a layer are rotated.

    Attributes:
        size: of the blocks; 0 for none.
        folded: the layer whose weight rotates them; None for an operator on the layer's input.
    """

    size: int = 0
    folded: str | None = None


@torch.no_grad()
def rotate(
    layers: Mapping[str, ProductLayer], flow: Sequence[Stage], most: int, run: Callable[[], object]
) -> dict[str, Rotated]:
    """Rotate the inputs of all layers that data flows through, in place; return how, by name.

    Where the input of a layer is the output of a linear one, that one's weight is rotated in the place of the
    input, if the outputs of the model stay what they were; else a forward pre-hook rotates it.

    Args:
        layers: by name.
        flow: which of them take the same input.
        most: the largest size of the blocks; a layer takes the largest one that divides its inputs.
        run: returns what the model makes of a batch.
    """
    how: dict[str, Rotated] = {}
    for stage in flow:
        size = min(fitting(layers[name], most) for name in stage.layers)
        if not size:
            how |= dict.fromkeys(stage.layers, Rotated())
            continue
        folded = _folded(layers, stage, size, run)
        how |= dict.fromkeys(stage.layers, Rotated(size, folded))
        if folded is not None:
            continue
        for name in stage.layers:
            layer = layers[name]
            rotate_weight(layer, size)
            layer.module.register_forward_pre_hook(BlockHadamard(size, layer.input_axis), with_kwargs=True)
    return how


def _folded(
    layers: Mapping[str, ProductLayer], stage: Stage, size: int, run: Callable[[], object]
) -> str | None:
    """Fold the rotation into the layer before, and return its name; None if the model does not allow it."""
    source = layers.get(stage.source or "")
    ends = [layers[name] for name in stage.layers]
    if not isinstance(source, LinearLayer) or not all(isinstance(end, LinearLayer) for end in ends):
        return None
    changed = [p.detach() for layer in (source, *ends) for p in layer.module.parameters()]
    before, held = _first(run()), [p.clone() for p in changed]
    rotate_outputs(source, size)
    for end in ends:
        rotate_weight(end, size)
    after = _first(run())
    if before is not None and after is not None and (after - before).norm() <= _CLOSE * before.norm():
        return stage.source
    for p, original in zip(changed, held, strict=True):
        p.copy_(original)
    return None


def _first(returned: object) -> Tensor | None:
    leaves = tree_leaves(dict(returned) if isinstance(returned, Mapping) else returned)
    return next((x.double() for x in leaves if isinstance(x, Tensor) and x.is_floating_point()), None)
