"""Plans that run: a model's parameters on a device mesh, and its operations on pieces of their tensors."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeVar

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, distribute_tensor

from fewbits.errors import ArgumentError
from fewbits.planner.capture import Exported, Inputs, export
from fewbits.planner.execution.boundary import placements
from fewbits.planner.execution.executable import executable, refusal
from fewbits.planner.execution.gathering import deal_out, gathering
from fewbits.planner.execution.layout import Layout, Places, lay_out, places
from fewbits.planner.execution.mesh import flat, joined
from fewbits.planner.execution.program import Program

Model = TypeVar("Model", bound=nn.Module)


def split_model(
    model: Model,
    splits: Mapping[str, Mapping[str, int]],
    mesh: DeviceMesh,
    example_inputs: Inputs,
    *,
    sharded: Collection[str] = (),
) -> Model:
    """Have a model run split over a mesh; return it.

    Its parameters become DTensors, each in the pieces that its layer works on, and its ``forward`` runs the
    exported operations: every tensor goes to where the next layer needs it, each layer computes its piece,
    and what a split sums is summed over the mesh. Every process gives the whole batch, of the shapes of the
    example inputs. Results that processes hold whole, as a loss, come back as plain tensors, others as
    DTensors.

    Args:
        model: changed in place. Parameters are taken from the first process; those on the meta device stay
            there, in pieces.
        splits: for each layer that is split, by its name in the graph, parts by dimension.
        mesh: of the devices that layers are split over.
        example_inputs: as for :func:`fewbits.planner.capture.capture`.
        sharded: names of layers whose weights ``fully_shard`` deals out: those of which all devices need all,
            each for its own samples. Each module of these is an ``FSDPModule`` then, as the model is.

    Raises:
        ArgumentError: a layer that the model does not have, a split that the mesh cannot make, or one that
            does not run; nothing is changed then.
    """
    return split_exported(export(model, example_inputs), splits, model, mesh, sharded)


def split_exported(
    exported: Exported,
    splits: Mapping[str, Mapping[str, int]],
    model: Model,
    mesh: Any,
    sharded: Collection[str] = (),
) -> Model:
    """Do as :func:`split_model` for a model that has been exported already."""
    graph = exported.walk.graph
    missing = sorted({*splits, *sharded} - {layer.name for layer in graph.layers})
    if missing:
        raise ArgumentError(
            f"the plan splits {missing[0]!r}, which {type(model).__name__} does not have; make the plan for"
            " this model, with these example inputs"
        )
    layout = lay_out(graph, splits, tuple(mesh.shape))
    for layer in graph.layers:
        split = [splits.get(layer.name, {}).get(d.name, 1) for d in layer.space]
        reason = refusal(layer, split)
        if reason:
            given = ", ".join(f"{d.name} by {p}" for d, p in zip(layer.space, split, strict=True) if p > 1)
            raise ArgumentError(
                f"{layer.name} ({layer.kind}) cannot run split {given}: {reason}; ask for a plan with"
                " executable=True"
            )
    if graph.unrunnable:
        raise ArgumentError(graph.unrunnable)
    parts = gathering(exported, splits, sharded, mesh.size())
    mesh = joined(graph, layout, mesh, bool(sharded))
    if sharded:
        deal_out(model, parts.modules.values(), flat(mesh))
    _distribute(model, exported, layout, mesh, set(parts.parameters.values()))
    model.forward = Program(exported, layout, model, mesh, parts)
    return model


def _distribute(
    model: nn.Module, exported: Exported, layout: Layout, mesh: Any, dealt_out: Collection[str]
) -> None:
    """Put each parameter that is not dealt out into the pieces of the first layer that has it."""
    made: dict[int, nn.Parameter] = {}
    dims = {w.name: (layer, w) for layer in reversed(exported.walk.graph.layers) for w in layer.weights}
    for prefix, module in model.named_modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            qualified = f"{prefix}.{name}" if prefix else name
            if qualified in dealt_out:
                continue
            known = next((n for n in _names(model, parameter) if n in dims), qualified)
            held: Places = (None,) * mesh.ndim
            if known in dims:
                layer, weight = dims[known]
                # Of a parameter of which the layer has a part, an axis that is cut stays whole.
                fits = weight.shape == tuple(parameter.shape)
                held = places(layout.assignments[layer.name], weight.axes) if fits else held
            if id(parameter) not in made:
                made[id(parameter)] = nn.Parameter(
                    _in_pieces(parameter, held, mesh), requires_grad=parameter.requires_grad
                )
            module.register_parameter(name, made[id(parameter)])


def _names(model: nn.Module, parameter: nn.Parameter) -> list[str]:
    return [name for name, p in model.named_parameters(remove_duplicate=False) if p is parameter]


def _in_pieces(parameter: nn.Parameter, held: tuple[int | None, ...], mesh: Any) -> DTensor:
    if parameter.device.type != "meta":
        return distribute_tensor(parameter.detach(), mesh, placements(held))
    shape = list(parameter.shape)
    for m, axis in enumerate(held):
        if axis is not None:
            shape[axis] //= mesh.size(m)
    piece = torch.empty(shape, dtype=parameter.dtype, device="meta")
    return DTensor.from_local(piece, mesh, placements(held), run_check=False)


__all__ = ["executable", "split_model"]
