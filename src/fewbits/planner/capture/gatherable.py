"""Which layers have weights that a module can gather for one operation, as ``fully_shard`` (FSDP2) does."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence

from torch import nn
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Node

from fewbits.planner.graph import Layer


def placeholders(program: ExportedProgram) -> dict[str, Node]:
    """Return what stands for each parameter in the program, by its qualified name."""
    specs = program.graph_signature.input_specs
    names = {spec.arg.name: str(spec.target) for spec in specs if spec.kind is InputKind.PARAMETER}
    return {names[node.name]: node for node in program.graph.nodes if node.name in names}


def why_whole(
    model: nn.Module, program: ExportedProgram, layers: Sequence[Layer], operations: Collection[Node]
) -> Iterator[str]:
    """Yield for each layer why its weights cannot be sharded, however it is split; empty where they can.

    A module gathers all of its own parameters for one call, and holds nothing whole before and after it: so
    one operation of one layer has to read all of them.

    Args:
        model: that was exported.
        program: what it was exported as.
        layers: of its graph.
        operations: those that compute a layer; others, as views, do not wait for a module.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    read = {name: list(node.users) for name, node in placeholders(program).items()}
    names, of_module = defaultdict(list), defaultdict(list)
    for name, parameter in parameters.items():
        names[id(parameter)].append(name)
        of_module[name.rpartition(".")[0]].append(name)

    def reason(layer: Layer) -> str:
        own = {weight.name for weight in layer.weights}
        for weight in layer.weights:
            name, parameter = weight.name, parameters[weight.name]
            owner, users = name.rpartition(".")[0], read[name]
            if not owner:
                return f"{name}: it is the model's own; put what holds it into a module of the model"
            if len(users) != 1 or users[0] not in operations or weight.shape != tuple(parameter.shape):
                return f"{name}: a module of the model is to read it whole, once"
            if other := next((alias for alias in names[id(parameter)] if alias != name), None):
                return f"{name}: it is {other} as well"
            if other := next((other for other in of_module[owner] if other not in own), None):
                return f"{name}: {other} of the same module is not of the layer"
            if any(read[other] != users for other in of_module[owner]):
                return f"{name}: several operations read the parameters of the module"
        return ""

    return map(reason, layers)
