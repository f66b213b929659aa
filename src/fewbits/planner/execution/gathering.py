"""Parameters that ``fully_shard`` (FSDP2) deals out, and the module that gathers them for an operation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import distributed, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.fx import Node

from fewbits.errors import ArgumentError
from fewbits.planner.capture import Exported
from fewbits.planner.capture.gatherable import placeholders
from fewbits.planner.sharding import shardable


@dataclass(frozen=True)
class Gathering:
    """What is gathered, and when.

    Attributes:
        modules: for each operation that reads sharded parameters, the qualified name of their module.
        parameters: the qualified name of the parameter that each placeholder of the program stands for.
    """

    modules: Mapping[Node, str]
    parameters: Mapping[Node, str]


def gathering(
    exported: Exported,
    splits: Mapping[str, Mapping[str, int]],
    sharded: Collection[str],
    devices: int,
) -> Gathering:
    """Return which modules gather the weights of the layers that are sharded.

    Args:
        exported: the model's program and graph.
        splits: parts by dimension, for each layer that is split.
        sharded: names of layers.
        devices: of the mesh.

    Raises:
        ArgumentError: a layer whose split leaves no whole weights to share out, or weights that are not all
            of one module, read whole and once.
    """
    modules: dict[Node, str] = {}
    found: dict[Node, str] = {}
    nodes = placeholders(exported.program)
    for layer in exported.walk.graph.layers:
        if layer.name not in sharded:
            continue
        if layer.unsharded:
            raise ArgumentError(
                f"the weights of {layer.name} cannot be sharded: {layer.unsharded}; plan this model anew"
            )
        split = np.array([[splits.get(layer.name, {}).get(d.name, 1) for d in layer.space]])
        if not shardable(layer, split, devices)[0]:
            raise ArgumentError(
                f"{layer.name} ({layer.kind}) cannot have its weights sharded: all of them have to be"
                f" trained, and its split has to share the samples out to all {devices} devices"
            )
        for weight in layer.weights:
            node = nodes[weight.name]
            (reader,) = node.users
            modules[reader] = weight.name.rpartition(".")[0]
            found[node] = weight.name
    return Gathering(modules, found)


def deal_out(model: nn.Module, modules: Iterable[str], mesh: Any) -> None:
    """Apply ``fully_shard`` to modules, with their own parameters alone, and to the model, with none.

    Gradients are summed, not averaged: those of pieces of a batch add up to that of its loss.

    Args:
        model: changed in place. Parameters are taken from the first process.
        modules: qualified names.
        mesh: of one axis.
    """
    everyone = set(model.parameters())
    for name in sorted(modules):
        module = model.get_submodule(name)
        own = set(module.parameters(recurse=False))
        for parameter in module.parameters(recurse=False):
            whole = parameter.detach().contiguous()  # fully_shard takes no other
            if not whole.is_meta:
                whole = whole.to(mesh.device_type)
                distributed.broadcast(whole, group=mesh.get_group(), group_src=0)
            parameter.data = whole
        fully_shard(module, mesh=mesh, reshard_after_forward=True, ignored_params=everyone - own)
        gatherer = cast(FSDPModule, module)
        gatherer.set_gradient_divide_factor(1.0)
        gatherer.set_force_sum_reduction_for_comms(True)
    fully_shard(model, mesh=mesh, ignored_params=set(model.parameters()))


def gathered(module: nn.Module, compute: Callable[..., Any], pieces: Sequence[torch.Tensor | None]) -> Any:
    """Return what `compute` makes of the pieces while the module holds its parameters whole."""
    vars(module)["forward"] = compute
    try:
        return module(*pieces)
    finally:
        del vars(module)["forward"]
