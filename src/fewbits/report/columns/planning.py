"""The columns about plans, and what their tables say in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fewbits.records import PlannedLayer, PlannedStrategy, PlanRecord
from fewbits.report import quantities as q
from fewbits.report.columns.codecs import milliseconds
from fewbits.report.columns.column import Column


@dataclass(frozen=True)
class LayerRow:
    """A layer with the tensors that it receives."""

    layer: PlannedLayer
    moved_seconds: float  # in moving its inputs and their gradients
    moved_bytes: float

    @property
    def sent_bytes(self) -> float:
        """For the layer and its inputs."""
        return self.layer.sent_bytes + self.moved_bytes


PLAN_COLUMNS: list[Column[LayerRow]] = [
    Column("layer", "layer", "The layer's name in the network.",
           lambda r: q.visible(r.layer.name), lambda r: r.layer.name, is_name=True),
    Column("split", "split", "Over how many devices each dimension is shared out; whole: over none. Sharded:"
           " each holds a part of the weights.",
           lambda r: split_text(r.layer), lambda r: split_text(r.layer), is_name=True),
    Column("recipe", "recipe", "Formats of its products; - where it has none.",
           lambda r: q.visible(r.layer.format) or "-", lambda r: r.layer.format, is_name=True, spare=4),
    Column("compute (ms)", "compute\nms", "Of one device in a step, forward and backward.",
           lambda r: plan_ms(r.layer.compute_seconds), lambda r: 1e3 * r.layer.compute_seconds),
    Column("sums (ms)", "sums\nms", "Of its collectives: sums of outputs, statistics and weights' gradients.",
           lambda r: plan_ms(r.layer.link_seconds), lambda r: 1e3 * r.layer.link_seconds),
    Column("inputs (ms)", "inputs\nms", "In moving its inputs to where they are needed, and gradients back.",
           lambda r: plan_ms(r.moved_seconds), lambda r: 1e3 * r.moved_seconds),
    Column("sent", "sent", "Bytes that one device sends or receives for both.",
           lambda r: q.size(r.sent_bytes), lambda r: r.sent_bytes),
    Column("memory", "memory", "Bytes of one device: parameters, gradients, states and what is kept.",
           lambda r: q.size(r.layer.memory_bytes), lambda r: r.layer.memory_bytes, spare=1),
    Column("runner-up", "runner-up", "The split that is best beside this one, all other layers as they are.",
           lambda r: _runner_up(r.layer), lambda r: _runner_up(r.layer), is_name=True, spare=3),
    Column("runner-up (+ms)", "runner-up\n+ms", "That the step takes longer with it.",
           lambda r: _longer(r.layer), lambda r: _seconds_longer(r.layer), spare=2),
]  # fmt: skip

STRATEGY_COLUMNS: list[Column[PlannedStrategy]] = [
    Column("strategy", "strategy", "The plan, or a rule that others use, at the costs of the same model.",
           lambda s: q.visible(s.name), lambda s: s.name, is_name=True),
    Column("ms per step", "ms/\nstep", "Compute and messages, one after the other.",
           lambda s: plan_ms(s.seconds), lambda s: 1e3 * s.seconds),
    Column("sent", "sent", "Bytes that one device sends or receives in a step.",
           lambda s: q.size(s.sent_bytes), lambda s: s.sent_bytes),
    Column("memory", "memory", "Bytes of one device.",
           lambda s: q.size(s.memory_bytes), lambda s: s.memory_bytes),
    Column("cap", "cap", "Whether it keeps the caps of the plan, on memory and on sensitivity.",
           lambda s: "kept" if s.fits else "over", lambda s: "kept" if s.fits else "over", is_name=True),
]  # fmt: skip


def plan_ms(seconds: float) -> str:
    """Write seconds as milliseconds, with two digits or more however few they are.

    >>> plan_ms(0.01234), plan_ms(0.000012), plan_ms(0.00000123)
    ('12.3', '0.01', '0.0012')
    """
    return f"{1e3 * seconds:.2g}" if 0 < seconds < 1e-5 else milliseconds(seconds)


def device_count(plan: PlanRecord) -> str:
    """Write how many devices a plan has: `1 device`."""
    return f"{plan.devices} device{'s' * (plan.devices > 1)}"


def split_text(layer: PlannedLayer) -> str:
    """Write a split as its dimensions that are split: `b 8, n 4`; and whether its weights are sharded."""
    return _split(layer.dimensions, layer.split) + ", sharded" * layer.sharded


def plan_rows(plan: PlanRecord) -> list[LayerRow]:
    """Return a row for each layer, in the order of the network."""
    rows = []
    for i, layer in enumerate(plan.layers):
        edges = [edge for edge in plan.edges if edge.consumer == i]
        rows.append(LayerRow(layer, sum(e.link_seconds for e in edges), sum(e.sent_bytes for e in edges)))
    return rows


def strategy_rows(plan: PlanRecord) -> list[PlannedStrategy]:
    """Return the plan as a strategy, and the others after it."""
    own = PlannedStrategy("this plan", plan.seconds, plan.sent_bytes, plan.memory_bytes)
    return [own, *sorted(plan.strategies, key=lambda strategy: strategy.seconds)]


def about_plan(plan: PlanRecord) -> list[str]:
    """Say what the plan is for, what it takes, and how good it is."""
    machine = plan.machine
    nodes = f", {machine.per_node} in a node" if len(machine.links) == 2 else ""
    found = [
        f"{q.visible(plan.network)} on {device_count(plan)} ({q.visible(machine.name)}{nodes}), recipe"
        f" {q.visible(plan.recipe)}{_rest(plan)}. A prediction from rates and bytes; nothing was run,"
        " nothing overlaps.",
        f"A step takes {plan_ms(plan.seconds)} ms: {plan_ms(plan.compute_seconds)} ms of compute"
        f" and {plan_ms(plan.link_seconds)} ms of messages. Each device sends"
        f" {q.size(plan.sent_bytes)}, and holds {q.size(plan.memory_bytes)}{_cap(plan)}.",
        _optimality(plan),
    ]
    if any(strategy.name == "megatron" for strategy in plan.strategies) and _has_siblings(plan):
        found.append(
            "Products that read one tensor, as query, key and value, each sum their part of its gradient;"
            " Megatron's own adds the parts first, and takes less than its row says."
        )
    if plan.sensitivity_cap is not None:
        found.append(f"Sensitivity: {plan.sensitivity:g} of {plan.sensitivity_cap:g} allowed.")
    return found + [f"{q.visible(warning)}" for warning in plan.warnings]


def kinds(layers: Sequence[PlannedLayer]) -> list[str]:
    """Return the kinds of layers, in the order in which they come."""
    return list(dict.fromkeys(layer.kind for layer in layers))


def _optimality(plan: PlanRecord) -> str:
    if plan.gap <= 1e-9:
        return "No other plan that was allowed takes less in this model."
    return (
        f"No plan within the limits takes less than {plan_ms(plan.bound)} ms: this one is at most"
        f" {q.percent(plan.gap)} % of its time above the best."
    )


def _has_siblings(plan: PlanRecord) -> bool:
    read = [e.producer for e in plan.edges if plan.layers[e.consumer].kind == "product"]
    return len(set(read)) < len(read)


def _rest(plan: PlanRecord) -> str:
    return "" if plan.others in ("", plan.recipe) else f", layers without products {q.visible(plan.others)}"


def _cap(plan: PlanRecord) -> str:
    return "" if plan.memory_cap is None else f" of {q.size(plan.memory_cap)}"


def _split(dimensions: Sequence[str], split: Sequence[int]) -> str:
    parts = [f"{q.visible(name)} {n}" for name, n in zip(dimensions, split, strict=True) if n > 1]
    return ", ".join(parts) or "whole"


def _runner_up(layer: PlannedLayer) -> str:
    return _split(layer.dimensions, layer.runner_up) if math.isfinite(layer.runner_up_seconds) else "-"


def _longer(layer: PlannedLayer) -> str:
    seconds = _seconds_longer(layer)
    return "-" if math.isnan(seconds) else plan_ms(seconds)


def _seconds_longer(layer: PlannedLayer) -> float:
    return layer.runner_up_seconds if math.isfinite(layer.runner_up_seconds) else math.nan
