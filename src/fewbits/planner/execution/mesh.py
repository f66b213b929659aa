"""Groups of processes for sums that go over several axes of a mesh at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.distributed.device_mesh import DeviceMesh

from fewbits.planner.execution.layout import Assignment, Layout, summed
from fewbits.planner.graph import Graph, Layer


def joined(graph: Graph, layout: Layout, mesh: Any, all_axes: bool = False) -> Any:
    """Return the mesh with a group for each set of its axes that a layer sums over, or for all of them.

    One all-reduce over q processes sends 2 (q - 1) / q of what it reduces; one for each axis would send more.
    """
    wanted = {
        axes
        for layer in graph.layers
        for axes in _sums(layer, layout.assignments[layer.name])
        if len(axes) > 1
    }
    if all_axes and mesh.ndim > 1:
        wanted.add(tuple(range(mesh.ndim)))
    if not wanted:
        return mesh
    names = mesh.mesh_dim_names
    if names is None:
        names = tuple(f"axis{m}" for m in range(mesh.ndim))
        mesh = DeviceMesh(mesh.device_type, mesh.mesh, mesh_dim_names=names)
    for axes in sorted(wanted):  # in the same order everywhere
        mesh[tuple(names[m] for m in axes)]._flatten()
    return mesh


def flat(mesh: Any) -> Any:
    """Return the mesh of one axis of all devices, which :func:`joined` has made."""
    return mesh if mesh.ndim == 1 else mesh._flatten()


def _sums(layer: Layer, assignment: Assignment) -> Iterator[tuple[int, ...]]:
    yield tuple(m for m, d in enumerate(assignment) if d is not None and d not in layer.output.axes)
    for operand in (*layer.inputs, *layer.weights):
        yield tuple(m for m, yes in enumerate(summed(layer, operand.axes, assignment)) if yes)
