"""``fewbits.plan``: the fastest way to split a network over devices, by a model of what it costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import isfinite
from os import PathLike
from typing import TYPE_CHECKING

import numpy as np

from fewbits.errors import ArgumentError
from fewbits.planner.graph import Graph
from fewbits.planner.limited import cheapest, leanest, within
from fewbits.planner.machines import machine as find_machine
from fewbits.planner.options import Forbidden, Options, Pins, Sharded, layer_options
from fewbits.planner.planned import Plan, fingerprint
from fewbits.planner.role_bits import read_layer_recipe, role_bits
from fewbits.planner.rules import strategies
from fewbits.planner.tables import Tables, tables
from fewbits.recipes import Codec, Recipe
from fewbits.recipes import codec as read_codec
from fewbits.records import Machine, PlannedEdge, PlannedLayer, PlannedStrategy

if TYPE_CHECKING:
    from torch import nn

_MOST_DEVICES = 10**12  # of which the divisors are found at once

Sensitivities = Mapping[str, Mapping[str, float]]
"""What each format costs in quality, by layer and then by the name of the format."""


def plan(
    model: nn.Module | Graph,
    example_inputs: Sequence[object] | None = None,
    *,
    devices: int,
    machine: str | Machine = "h100",
    memory: float | None = None,
    recipe: str | Recipe = "fp32",
    formats: Sequence[str] = (),
    sensitivity: Sensitivities | None = None,
    max_sensitivity: float | None = None,
    codec: str | Codec | None = None,
    pins: Pins | None = None,
    forbid: Forbidden | None = None,
    sharded: Sharded = "never",
    reuse: Plan | str | PathLike[str] | None = None,
    compare: bool = False,
    executable: bool = False,
    name: str = "",
    memory_bytes: int = 2**30,
) -> Plan:
    """Return the fastest plan: for each layer over how many devices each of its dimensions is split.

    The time of a step is what the devices compute and what they send, one after the other. The choice is
    exact: no other that is allowed takes less in that model (PaSE, Elango 2021). With `memory` or
    `max_sensitivity` the plan says by its bound how far it may be from the best. Peak rates make times too
    short, all alike.

    Args:
        model: a network as a :class:`Graph`, or a torch module, which is captured.
        example_inputs: of a module; tensors on the meta device are enough.
        devices: how many share the network out.
        machine: what they are: a name of `MACHINES`, or a Machine.
        memory: bytes that one device may hold; None: that of the machine. Infinite for no cap.
        recipe: formats by role of all layers, or the name of one format; with `formats`, of layers without
            products.
        formats: recipes or formats of which each product takes one, with its split, in any order; none:
            `recipe`.
        sensitivity: what each of `formats` costs in quality, by layer: what ``fewbits compare`` measures.
        max_sensitivity: the most that the sum of these may be.
        codec: in what weights' gradients travel; None: as the recipe holds them.
        pins: splits that are fixed, as in ``{"fc1": {"b": 8}, "conv*": (8, 1, 1, 1, 1)}``, by name or glob.
        forbid: dimensions that stay whole, as in ``{"*": ("h", "w")}``.
        sharded: whether weights that a split leaves whole on all devices, as those of layers that split
            samples alone, are shared out with their gradients and states, as by ``fully_shard``: "never";
            "allowed", where a cap on memory asks for it, as it sends more values, or where its fewer messages
            take less; or "always".
        reuse: a plan, or the path of one, whose splits and formats are taken; the costs are computed anew.
            With it there are no `pins`, nothing to `forbid`, and `sharded` is as the plan has it.
        compare: whether strategies that others use are set beside it; none that keeps the caps is faster.
        executable: whether only splits are chosen that :meth:`Plan.apply` can run.
        name: of the network, for people.
        memory_bytes: the most that one table of the search may take.

    Raises:
        ArgumentError: no devices, a pin that fits nothing, a cap below what any plan takes, a plan for
            another network, products wider than all that the machine has rates for, messages over a
            link of 0 Gbit/s, or with `executable` a model that no plan can run.
        DataError: the file of a plan is damaged.
    """
    if type(devices) is not int or not 1 <= devices <= _MOST_DEVICES:  # True and 8.0 are none
        raise ArgumentError(f"devices={devices!r:.80}; expected a whole number from 1 up to 10^12")
    if any(not isinstance(name, str) for name in formats) or isinstance(formats, str):
        raise ArgumentError(
            f"formats={formats!r:.80}; expected names of recipes or formats, as in ('fp32', 'mxfp8')"
        )
    if not _is_number(memory_bytes) or not memory_bytes >= 1:
        raise ArgumentError(f"memory_bytes={memory_bytes!r}; expected a number of bytes from 1 up")
    graph = model if isinstance(model, Graph) else _captured(model, example_inputs)
    if not graph.layers:
        raise ArgumentError("the network has no layers; give one that computes something")
    place = find_machine(machine)
    rest = read_layer_recipe(recipe)
    names = sorted(set(formats)) or [rest.name]
    recipes = [read_layer_recipe(name) for name in names] if formats else [rest]
    if reuse is not None:
        if pins or forbid or sharded != "never":
            raise ArgumentError(
                "`reuse` takes all splits as the plan has them; leave `pins`, `forbid` and `sharded` out, or"
                " `reuse`"
            )
        options = _reused(reuse, graph, devices, names)
    else:
        options = layer_options(graph, devices, len(recipes), pins or {}, forbid or {}, sharded)
    if executable:
        if graph.unrunnable:
            raise ArgumentError(f"{graph.unrunnable}; or leave `executable` out")
        options = _executable(graph, options)
    cap = place.memory if memory is None else memory
    limits = _limits(cap, max_sensitivity)
    found = tables(
        graph,
        options,
        devices,
        place,
        [role_bits(r, codec) for r in (*recipes, rest)],
        _sensitivities(graph, names, sensitivity, max_sensitivity),
    )
    others = strategies(found, devices, place.per_node)
    best = cheapest(found, limits, memory_bytes, others.values())
    if best is None:
        raise _impossible(found, limits, memory_bytes)
    if not isfinite(best.seconds):
        raise ArgumentError(
            f"no plan that was found ever ends on the machine {place.name!r}: it has a link of 0 Gbit/s that"
            " `pins`, `reuse`, `forbid` or a cap make devices send over; leave them out, or give it a link"
        )
    return Plan(
        network=name or "network",
        model=fingerprint(graph),
        devices=devices,
        machine=place,
        recipe=",".join(names),
        others=rest.name,
        codec="" if codec is None else str(read_codec(codec)),
        layers=_layers(found, best.options, names),
        edges=_edges(found, best.options),
        seconds=best.seconds,
        bound=min(best.bound, best.seconds),
        memory_cap=cap if isfinite(cap) else None,
        sensitivity_cap=max_sensitivity,
        strategies=tuple(
            _strategy(found, name, choice, limits) for name, choice in others.items() if compare
        ),
        warnings=graph.warnings + (() if sharded == "never" else _unsharded(graph)),
    )


def _unsharded(graph: Graph) -> tuple[str, ...]:
    """Say which layers could not have their weights sharded, if there are some."""
    kept = [layer for layer in graph.layers if layer.unsharded]
    if not kept:
        return ()
    more = f", and so are those of {len(kept) - 1} more" if kept[1:] else ""
    return (f"the weights of {kept[0].name} are not sharded{more}: {kept[0].unsharded}",)


def _captured(model: nn.Module, example_inputs: Sequence[object] | None) -> Graph:
    from fewbits.planner.capture import capture

    if example_inputs is None:
        raise ArgumentError("a torch module is captured with example_inputs, a tuple of tensors; give them")
    return capture(model, example_inputs)


def _limits(cap: float, max_sensitivity: float | None) -> dict[str, float]:
    if not _is_number(cap) or not cap > 0:
        raise ArgumentError(f"`memory` is {cap!r}; expected bytes of one device, above 0")
    limits = {"memory": float(cap)} if isfinite(cap) else {}
    if max_sensitivity is None:
        return limits
    if not _is_number(max_sensitivity) or not isfinite(max_sensitivity):
        raise ArgumentError(f"`max_sensitivity` is {max_sensitivity!r}; expected a number, or None")
    return limits | {"sensitivity": float(max_sensitivity)}


def _is_number(given: object) -> bool:
    return isinstance(given, (int, float, np.number)) and not isinstance(given, bool)


def _sensitivities(
    graph: Graph, names: Sequence[str], given: Sensitivities | None, most: float | None
) -> dict[str, list[float]]:
    if given is None:
        if most is not None:
            raise ArgumentError("`max_sensitivity` without `sensitivity`; give numbers by layer and format")
        return {}
    products = [layer.name for layer in graph.layers if layer.product]
    if unknown := set(given) - set(products):
        raise ArgumentError(
            f"`sensitivity` names {min(unknown)!r}, which is no product of the network; its first are"
            f" {', '.join(products[:5])}"
        )
    found = {}
    for layer in products:
        numbers = given.get(layer, {})
        missing = [name for name in names if name not in numbers]
        if missing:
            raise ArgumentError(
                f"`sensitivity` has no number for the layer {layer!r} in {missing[0]}; give all"
            )
        own = [numbers[name] for name in names]
        if not all(_is_number(n) and isfinite(n) for n in own):
            raise ArgumentError(f"`sensitivity` of the layer {layer!r} is {own}; expected numbers")
        found[layer] = [float(n) for n in own]
    return found


def _reused(
    reuse: Plan | str | PathLike[str], graph: Graph, devices: int, names: Sequence[str]
) -> list[Options]:
    """Return for each layer the option that a plan has."""
    old = reuse if isinstance(reuse, Plan) else Plan.load(reuse)
    old.check_fits(graph, devices)
    pins = {_literal(layer.name): layer.split for layer in old.layers}
    found = []
    for layer, own in zip(
        old.layers, layer_options(graph, devices, len(names), pins, {}, "allowed"), strict=True
    ):
        if layer.format and layer.format not in names:
            raise ArgumentError(
                f"the plan has the layer {layer.name!r} in {layer.format!r}, which is none of"
                f" {', '.join(names)}; give the formats that it was made with, {old.recipe}"
            )
        kept = own.sharded == layer.sharded
        if layer.format:
            kept &= own.formats == names.index(layer.format)
        if not kept.any():
            raise ArgumentError(
                f"the plan has the weights of {layer.name!r} sharded, which its split does not allow; make a"
                " new one"
            )
        found.append(own.where(kept))
    return found


def _literal(name: str) -> str:
    """Return a glob that fits a name and nothing else."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


def _executable(graph: Graph, options: Sequence[Options]) -> list[Options]:
    """Return the options that run; layers that are alike share theirs."""
    from fewbits.planner.execution.executable import refusal

    known: dict[object, Options] = {}
    found = []
    for layer, own in zip(graph.layers, options, strict=True):
        key = replace(layer, name="", module=""), id(own)
        if key not in known:
            refused = [refusal(layer, tuple(map(int, split))) for split in own.splits]
            runs = np.array([not why for why in refused])
            if not runs.any():
                raise ArgumentError(
                    f"the layer {layer.name!r} has no split that runs: {refused[0]}; leave `executable`"
                    " out, or pin it otherwise"
                )
            known[key] = own.where(runs)
        found.append(known[key])
    return found


def _impossible(found: Tables, limits: Mapping[str, float], memory_bytes: int) -> ArgumentError:
    """Say what is missing, and which layer takes most."""
    for quantity, limit in limits.items():
        lean = leanest(found, quantity, memory_bytes)
        least = found.total(quantity, lean)
        if least <= limit:
            continue
        weights = {quantity: 1.0}
        parts = [float(found.of_layer(i, weights)[k]) for i, k in enumerate(lean)]
        largest = int(np.argmax(parts))
        layer = found.graph.layers[largest]
        if quantity == "memory":
            return ArgumentError(
                f"`memory` of {limit:.0f} bytes is {least - limit:.0f} bytes too little: the leanest plan"
                f" takes {least:.0f}, of which the layer {layer.name!r} takes {parts[largest]:.0f}; take more"
                " devices, more memory, or a recipe with narrower states"
            )
        return ArgumentError(
            f"`max_sensitivity` of {limit:g} is below {least:g}, the least that formats can have; the layer"
            f" {layer.name!r} alone has {parts[largest]:g}"
        )
    stated = " and ".join(f"{quantity} {limit:g}" for quantity, limit in limits.items())
    return ArgumentError(f"no plan was found that keeps {stated} together; each alone can be kept: raise one")


def _layers(found: Tables, choice: Sequence[int], names: Sequence[str]) -> tuple[PlannedLayer, ...]:
    planned = []
    for i, (layer, own, k) in enumerate(zip(found.graph.layers, found.options, choice, strict=True)):
        costs = found.layers[i]
        seconds = found.beside(i, choice, "seconds")
        same = (own.splits == own.splits[k]).all(axis=1)
        others = np.where(same, np.inf, seconds)
        second = int(np.argmin(others))
        planned.append(
            PlannedLayer(
                name=layer.name,
                kind=layer.kind,
                dimensions=tuple(d.name for d in layer.space),
                split=tuple(map(int, own.splits[k])),
                format=names[own.formats[k]] if layer.product else "",
                compute_seconds=float(costs.compute[k]),
                link_seconds=float(costs.link[k]),
                sent_bytes=float(costs.sent[k]),
                memory_bytes=float(costs.memory[k]),
                runner_up=tuple(map(int, own.splits[second])),
                runner_up_seconds=float(others[second] - seconds[k])
                if np.isfinite(others[second])
                else np.inf,
                sensitivity=float(found.sensitivity[i][k]),
                module=layer.module,
                sharded=bool(own.sharded[k]),
            )
        )
    return tuple(planned)


def _edges(found: Tables, choice: Sequence[int]) -> tuple[PlannedEdge, ...]:
    planned = []
    for edge, costs in zip(found.graph.edges, found.edges, strict=True):
        at = costs.rows[choice[edge.producer]], costs.columns[choice[edge.consumer]]
        planned.append(
            PlannedEdge(
                edge.producer,
                edge.consumer,
                edge.operand,
                *(float(part[at]) for part in (costs.seconds, costs.sent, costs.memory)),
            )
        )
    return tuple(planned)


def _strategy(
    found: Tables, name: str, choice: Sequence[int], limits: Mapping[str, float]
) -> PlannedStrategy:
    sent = sum(float(found.layers[i].sent[k]) for i, k in enumerate(choice))
    sent += sum(edge.sent_bytes for edge in _edges(found, choice))
    seconds, memory = found.total("seconds", choice), found.total("memory", choice)
    return PlannedStrategy(name, seconds, sent, memory, within(found, choice, limits))
