"""Parameters that ``fully_shard`` (FSDP2) deals out, and the module that gathers them for an operation."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import distributed, nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.export.graph_signature import InputKind
from torch.fx import Node

from fewbits.errors import ArgumentError
from fewbits.planner.capture import Exported
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
    model: nn.Module,
    exported: Exported,
    splits: Mapping[str, Mapping[str, int]],
    sharded: Collection[str],
    devices: int,
) -> Gathering:
    """Return which modules gather the weights of the layers that are sharded.

    Args:
        model: whose parameters they are.
        exported: its program and graph.
        splits: parts by dimension, for each layer that is split.
        sharded: names of layers.
        devices: of the mesh.

    Raises:
        ArgumentError: a layer whose split leaves no whole weights to share out, or weights that are not all
            of one module, read whole and once.
    """
    modules: dict[Node, str] = {}
    found: dict[Node, str] = {}
    placeholders = {
        str(spec.target): spec.arg.name
        for spec in exported.program.graph_signature.input_specs
        if spec.kind is InputKind.PARAMETER
    }
    nodes = {node.name: node for node in exported.program.graph.nodes}
    names = [name for name, _ in model.named_parameters(remove_duplicate=False)]
    for layer in exported.walk.graph.layers:
        if layer.name not in sharded:
            continue
        split = np.array([[splits.get(layer.name, {}).get(d.name, 1) for d in layer.space]])
        if not shardable(layer, split, devices)[0]:
            raise ArgumentError(
                f"{layer.name} ({layer.kind}) cannot have its weights sharded: all of them have to be"
                f" trained, and its split has to share the samples out to all {devices} devices"
            )
        for weight in layer.weights:
            owner = weight.name.rpartition(".")[0]
            node = nodes[placeholders[weight.name]]
            readers = list(node.users)
            own = [name for name in names if name.rpartition(".")[0] == owner]
            parameter = model.get_parameter(weight.name)
            is_whole = weight.shape == tuple(parameter.shape)
            aliases = [name for name in names if model.get_parameter(name) is parameter]
            if not owner or len(readers) != 1 or readers[0] not in exported.walk.steps or not is_whole:
                raise _refused(layer.name, weight.name, "a module of the model is to read it whole, once")
            if len(aliases) > 1:
                raise _refused(layer.name, weight.name, f"it is {aliases[1]} as well")
            modules[readers[0]] = owner
            found[node] = weight.name
            if other := next((name for name in own if name not in {w.name for w in layer.weights}), None):
                raise _refused(layer.name, weight.name, f"{other} of the same module is not of the layer")
    twice = [name for name in modules.values() if list(modules.values()).count(name) > 1]
    if twice:
        raise _refused(twice[0], twice[0], "several operations read the parameters of the module")
    return Gathering(modules, found)


def _refused(layer: str, weight: str, reason: str) -> ArgumentError:
    return ArgumentError(
        f"the weights of {layer} cannot be sharded: {weight}: {reason}; plan with sharded='never'"
    )


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
