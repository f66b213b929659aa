"""Plans as files, and what ties a plan to the network that it is for."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import partial
from hashlib import sha256
from math import isfinite, isnan, prod
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from fewbits.errors import ArgumentError, DataError
from fewbits.files.atomic import write_text
from fewbits.files.json_objects import unique_keys
from fewbits.planner.graph import Graph
from fewbits.records import Machine, MachineLink, PlannedEdge, PlannedLayer, PlannedStrategy, PlanRecord

if TYPE_CHECKING:
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

    from fewbits.planner.capture import Inputs

    Model = TypeVar("Model", bound=nn.Module)

SCHEMA = 1  # of both kinds of files
_Record = TypeVar("_Record")


@dataclass(frozen=True)
class Plan(PlanRecord):
    """A plan that can be stored, read again and held against a network."""

    def save(self, path: str | PathLike[str]) -> None:
        """Write the plan as JSON, whole or not at all.

        Raises:
            OSError: the file cannot be written.
        """
        _write_json("plan", self, path)

    @classmethod
    def load(cls, path: str | PathLike[str]) -> Plan:
        """Read a plan that :meth:`save` wrote, or ``fewbits plan --json``.

        Raises:
            DataError: the file is no plan, or one of another version.
            OSError: the file cannot be read.
        """
        return _read_plan(read_json(path, "plan"), fspath(path))

    def apply(self, model: Model, mesh: DeviceMesh, example_inputs: Inputs) -> Model:
        """Have a model run as planned, and return it: parameters in pieces, each layer in its split.

        Weights that the plan has sharded are dealt out by ``torch.distributed.fsdp.fully_shard``.

        It computes in the dtypes that it has: the formats of a plan are set beforehand, for evaluation by
        :func:`fewbits.nn.prepare`, whose backward pass cannot be exported. What a model then takes and gives
        is in :func:`fewbits.planner.execution.split_model`.

        Args:
            model: that of the plan; changed in place.
            mesh: of as many devices as the plan has.
            example_inputs: arguments of the model, of the shapes that were planned.

        Raises:
            ArgumentError: the plan is for another model, other shapes or another number of devices, or has a
                split that does not run; nothing is changed then.
        """
        from fewbits.planner.capture import export
        from fewbits.planner.execution import split_exported

        exported = export(model, example_inputs)
        self.check_fits(exported.walk.graph, mesh.size())
        splits = {layer.name: dict(zip(layer.dimensions, layer.split, strict=True)) for layer in self.layers}
        sharded = [layer.name for layer in self.layers if layer.sharded]
        return split_exported(exported, splits, model, mesh, sharded)

    def check_fits(self, graph: Graph, devices: int) -> None:
        """Raise unless the plan is for this network and number of devices.

        Raises:
            ArgumentError: it is for another one.
            DataError: its layers or edges are not those of the network that it says it is for.
        """
        if self.devices != devices:
            raise ArgumentError(
                f"the plan is for {self.devices} devices and {devices} were asked for; make a new one with"
                " fewbits plan"
            )
        if self.model != fingerprint(graph):
            own, others = [layer.name for layer in self.layers], [layer.name for layer in graph.layers]
            different = next((f"{a!r} and {b!r}" for a, b in zip(own, others, strict=False) if a != b), "")
            where = f"; the first layers that differ are {different}" if different else ""
            raise ArgumentError(
                f"the plan is for another model, {self.network!r} with {len(own)} layers, than this one with"
                f" {len(others)}{where}; layers, shapes and edges have to be the same"
            )
        spaces = [(layer.name, tuple(d.name for d in layer.space)) for layer in graph.layers]
        edges = [(edge.producer, edge.consumer, edge.operand) for edge in graph.edges]
        if spaces != [(layer.name, layer.dimensions) for layer in self.layers] or edges != [
            (edge.producer, edge.consumer, edge.operand) for edge in self.edges
        ]:
            raise DataError(
                f"the plan of {self.network!r} has other layers, dimensions or edges than the model that it"
                " is for: it is damaged; make a new one with fewbits plan"
            )


def fingerprint(graph: Graph) -> str:
    """Return a text that is equal for equal networks: of layers, shapes and edges, not of warnings."""
    return sha256(repr((graph.layers, graph.edges)).encode()).hexdigest()[:16]


def save_machine(machine: Machine, path: str | PathLike[str]) -> None:
    """Write a machine as JSON, as :func:`load_machine` reads it."""
    _write_json("machine", machine, path)


def load_machine(path: str | PathLike[str]) -> Machine:
    """Read a machine that ``fewbits plan --measure`` wrote.

    Raises:
        DataError: the file describes no machine.
    """
    return _read_machine(read_json(path, "machine"), fspath(path))


def read_json(path: str | PathLike[str], kind: str) -> Mapping[str, object]:
    """Return the record in a file of one of our kinds, as an object.

    Raises:
        DataError: the file is no JSON, of another kind or of another version.
    """
    try:
        found = json.loads(
            Path(path).read_text("utf-8"), object_pairs_hook=partial(unique_keys, fspath(path))
        )
    except (ValueError, RecursionError) as error:
        raise DataError(f"{fspath(path)} is no JSON: {error}") from error
    if not isinstance(found, dict) or found.get("kind") != kind or not isinstance(found.get(kind), dict):
        raise DataError(f"{fspath(path)} is no {kind}; expected a file that fewbits plan wrote")
    if found.get("schema") != SCHEMA:
        raise DataError(
            f"{fspath(path)} is a {kind} of schema {found.get('schema')!r}; this fewbits reads {SCHEMA}"
        )
    record: Mapping[str, object] = found[kind]
    return record


def _write_json(kind: str, record: object, path: str | PathLike[str]) -> None:
    document = {"kind": kind, "schema": SCHEMA, kind: _plain_fields(record)}
    write_text(path, json.dumps(document, indent=1, allow_nan=False) + "\n")


def _plain(value: object) -> object:
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    if is_dataclass(value):
        return _plain_fields(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return {k: _plain(v) for k, v in value.items()} if isinstance(value, Mapping) else value


def _plain_fields(record: object) -> dict[str, object]:
    return {f.name: _plain(getattr(record, f.name)) for f in fields(record)}  # type: ignore[arg-type]  # one of ours


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        raise TypeError(f"{value!r} is no number")
    if isnan(float(value)):
        raise ValueError(f"{value!r} is no number")
    return float(value)


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{value!r} is no whole number")
    return value


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise TypeError(f"{value!r} is neither true nor false")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _items(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r:.40} is no list")
    return value


_READ: dict[str, Callable[[object], object]] = {
    "str": _text,
    "int": _whole,
    "bool": _truth,
    "float": _number,
    "float | None": lambda v: None if v is None else _number(v),
    "tuple[int, ...]": lambda v: tuple(map(_whole, _items(v))),
    "tuple[str, ...]": lambda v: tuple(map(_text, _items(v))),
    "Mapping[str, float]": lambda v: {_text(k): _number(n) for k, n in dict(v).items()},  # type: ignore[call-overload]  # fails by TypeError
    "tuple[MachineLink, ...]": lambda v: tuple(_record(MachineLink, item) for item in _items(v)),
    "tuple[PlannedLayer, ...]": lambda v: tuple(_record(PlannedLayer, item) for item in _items(v)),
    "tuple[PlannedEdge, ...]": lambda v: tuple(_record(PlannedEdge, item) for item in _items(v)),
    "tuple[PlannedStrategy, ...]": lambda v: tuple(_record(PlannedStrategy, item) for item in _items(v)),
    "Machine": lambda v: _record(Machine, v),
}  # by the type of a field, as it is written


def _record(of: type[_Record], value: object) -> _Record:
    if not isinstance(value, Mapping):
        raise TypeError(f"{value!r:.40} is no object")
    found = {f.name: _READ[str(f.type)](value[f.name]) for f in fields(of)}  # type: ignore[arg-type]  # one of ours
    return of(**found)


def _read_plan(document: Mapping[str, object], path: str) -> Plan:
    try:
        plan = _record(Plan, document)
    except (KeyError, OverflowError, TypeError, ValueError) as error:
        raise DataError(f"{path} is no plan: {type(error).__name__}: {error}") from error
    if plan.devices < 1:
        raise DataError(f"{path} is no plan: it is for {plan.devices} devices; expected a number from 1 up")
    for layer in plan.layers:
        fits = len(layer.split) == len(layer.dimensions) and min(layer.split, default=1) >= 1
        if not fits or plan.devices % prod(layer.split):
            raise DataError(
                f"{path}: the layer {layer.name!r} has the split {layer.split} of the dimensions"
                f" {layer.dimensions}; expected a number from 1 up for each, whose product divides the"
                f" {plan.devices} devices"
            )
    for edge in plan.edges:
        if not (0 <= edge.producer < len(plan.layers) and 0 <= edge.consumer < len(plan.layers)):
            raise DataError(
                f"{path} is no plan: an edge from layer {edge.producer} to {edge.consumer} of"
                f" {len(plan.layers)}"
            )
    return plan


def _read_machine(document: Mapping[str, object], path: str) -> Machine:
    try:
        return _record(Machine, document)
    except (KeyError, OverflowError, TypeError, ValueError) as error:
        raise DataError(f"{path} is no machine: {type(error).__name__}: {error}") from error
