"""Rotate the inputs of layers by the weights of those before, without a change of what a model computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from fewbits.ptq.data_flow import Stage
from fewbits.ptq.hadamard import rotate_outputs, rotate_weight
from fewbits.ptq.layers import LinearLayer, ProductLayer

_CLOSE = 1e-3  # largest relative change of the outputs by a rotation that is one: rounding leaves far less


@torch.no_grad()
def fold(
    layers: Mapping[str, ProductLayer],
    flow: Sequence[Stage],
    best_size: Callable[[Stage], int],
    run: Callable[[], object],
) -> dict[str, tuple[int, str]]:
    """Fold rotations into the layers before, in place; return their sizes and those layers, by name.

    That is possible where the input of linear layers is the output of another, and of use to them alone: the
    outputs of the model stay what they were.

    Args:
        layers: by name.
        flow: which of them take the same input.
        best_size: the size of blocks that is best for the layers of a stage; 0 for no rotation.
        run: returns what the model makes of a batch.
    """
    how: dict[str, tuple[int, str]] = {}
    for stage in flow:
        if stage.source is None:
            continue
        source, ends = layers.get(stage.source), [layers[name] for name in stage.layers]
        if not isinstance(source, LinearLayer) or not all(isinstance(end, LinearLayer) for end in ends):
            continue
        size = best_size(stage)
        if size and _is_folded(source, ends, size, run):
            how |= dict.fromkeys(stage.layers, (size, stage.source))
    return how


def _is_folded(
    source: LinearLayer, ends: Sequence[ProductLayer], size: int, run: Callable[[], object]
) -> bool:
    """Fold a rotation into a layer, and return whether that left the model what it was; else undo it."""
    changed = [p.detach() for layer in (source, *ends) for p in layer.module.parameters()]
    before, held = _floats(run()), [p.clone() for p in changed]
    rotate_outputs(source, size)
    for end in ends:
        rotate_weight(end, size)
    after = _floats(run())
    if before and len(before) == len(after) and all(map(_is_close, after, before)):
        return True
    for p, original in zip(changed, held, strict=True):
        p.copy_(original)
    return False


def _is_close(after: Tensor, before: Tensor) -> bool:
    return after.shape == before.shape and bool((after - before).norm() <= _CLOSE * before.norm())


def _floats(returned: object) -> list[Tensor]:
    """Return copies of all floating-point tensors that a model returns."""
    leaves = tree_leaves(dict(returned) if isinstance(returned, Mapping) else returned)
    return [x.to(torch.float64, copy=True) for x in leaves if isinstance(x, Tensor) and x.is_floating_point()]
