"""What each moment of a step was spent on: class, layer and operation."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from statistics import median

from fewbits.profiling.counting import Count, Key, Shapes
from fewbits.profiling.marks import LAYER, PART
from fewbits.profiling.recording import Span
from fewbits.records import FlameNode
from fewbits.records.profiling import REST

_BACKWARD = "autograd::engine::evaluate_function: "
_ROUNDING = re.compile(r"fewbits::(fake_quantize|(de)?quantize(_flat|_add|_with_feedback)?|top_k)$")
_COMMUNICATION = re.compile(
    r"(c10d|_c10d_functional|gloo|mpi|ucc|nccl)::?|record_param_comms|torch\.distributed"
)
_OPERATOR = re.compile(r"\w+::[\w.]+$")
WAITING = "waiting and Python"  # of communication: waiting for others is no operation
_LEAST = 1e-3  # of the step: what takes less has no node of its own in the flame


Path = tuple[tuple[str, str], ...]
"""What is around some time of a step, from the outermost in: names and their classes."""


@dataclass(frozen=True)
class Piece:
    """Some time of a step."""

    name: str
    kind: str
    layer: str
    path: Path  # in the flame
    nanoseconds: int
    count: Count | None = None  # of an operation, where it was counted
    is_call: bool = True  # an operation; else what is left between those inside of it
    shapes: Shapes = ()


class Attribution:
    """Takes a step apart.

    Args:
        step: the span of the step.
        counts: of its calls by name and shapes, in their order.

    Attributes:
        pieces: whose times add up to that of the step.
    """

    def __init__(self, step: Span, counts: Mapping[Key, Sequence[Count]]) -> None:
        self.pieces: list[Piece] = []
        self._counts, self._calls = counts, Counter[Key]()
        self._names = {name for name, _ in counts}
        self._layers: dict[int, str] = {}
        self._find_layers(step, "")
        kinds = _kinds(step.children)
        end, before = step.start, ""
        for child, kind in zip(step.children, kinds, strict=True):
            self._gap(child.start - end, kind if kind == before else REST)
            self._walk(child, kind, "", ((kind, kind),))
            end, before = child.end, kind
        self._gap(step.end - end, REST)

    def _find_layers(self, span: Span, layer: str) -> None:
        """Note for each node of autograd in which layer it was made: by the last call with its number."""
        if span.name.startswith(_BACKWARD):
            return
        if span.name.startswith(LAYER):
            layer = span.name.removeprefix(LAYER)
        if span.sequence >= 0:
            self._layers[span.sequence] = layer
        for child in span.children:
            self._find_layers(child, layer)

    def _gap(self, nanoseconds: int, kind: str) -> None:
        """Note time in which no operation ran: between two of a class it is theirs, else nobody's."""
        name = "autograd" if kind == "backward" else "Python"
        path = ((kind, kind), (name, kind))
        self.pieces.append(Piece(name, kind, "", path, nanoseconds, is_call=False))

    def _walk(self, span: Span, kind: str, layer: str, path: Path) -> None:
        name, label, around = span.name, span.name, layer
        if name.startswith(LAYER):  # one that runs in the backward pass is recomputed there
            layer, name = name.removeprefix(LAYER), "Python"
            label = layer
        elif name.startswith(PART):
            kind, name, label = name.removeprefix(PART), "Python", ""
            name = WAITING if kind == "communication" else name
        elif name.startswith(_BACKWARD):
            kind, name, label = "backward", "autograd", name.removeprefix(_BACKWARD)
            layer = self._layers.get(span.sequence, "")
        else:
            kind = _own_kind(span) or kind
        count = self._counted(span)
        if count is not None and count.narrows and not count.is_product:
            kind = "rounding"
        if layer not in (around, label):
            path += ((layer or "outside of layers", kind),)
        path += ((label, kind),) if label else ()
        left = span.duration
        if count is not None or _ROUNDING.match(span.name) or self._is_unmatched(span):
            self.pieces.append(Piece(name, kind, layer, path, left, count, shapes=span.shapes))
            return
        for child in span.children:
            left -= child.duration
            self._walk(child, kind, layer, path)
        self.pieces.append(Piece(_between(name), kind, layer, path, left, is_call=False))

    def _is_unmatched(self, span: Span) -> bool:
        """Return whether a span is a call of an operator although no count was found for it."""
        is_last = not span.children and _OPERATOR.match(_between(span.name)) is not None
        return span.name in self._names or is_last

    def _counted(self, span: Span) -> Count | None:
        key = (span.name, span.shapes)
        known = self._counts.get(key)
        if not known:
            return None
        self._calls[key] += 1
        return known[(self._calls[key] - 1) % len(known)]


def combined(steps: Sequence[list[Piece]]) -> tuple[list[Piece], int]:
    """Return the pieces of several steps as those of one, and of how many steps they are.

    These are the most common ones among those that did the same things in the same order, on operands of the
    same shapes; each piece takes the median of its times, as no step is without an interruption by others on
    the machine.
    """
    alike: dict[tuple[object, ...], list[list[Piece]]] = {}
    for pieces in steps:
        did = tuple((p.name, p.kind, p.layer, p.path, p.shapes) for p in pieces)
        alike.setdefault(did, []).append(pieces)
    most = max(alike.values(), key=len)
    times = zip(*([p.nanoseconds for p in pieces] for pieces in most), strict=True)
    return [replace(p, nanoseconds=round(median(t))) for p, t in zip(most[0], times, strict=True)], len(most)


def flame(pieces: Sequence[Piece]) -> tuple[FlameNode, ...]:
    """Return the tree of a step, without what takes less than a thousandth of it."""
    spent: dict[Path, int] = {}
    for piece in pieces:
        for depth in range(1, len(piece.path) + 1):
            spent[piece.path[:depth]] = spent.get(piece.path[:depth], 0) + piece.nanoseconds
    least = _LEAST * sum(piece.nanoseconds for piece in pieces)
    kept: dict[Path, int] = {(): -1}
    nodes: list[FlameNode] = []
    for path, nanoseconds in spent.items():  # a parent before its children, which take less than it
        if nanoseconds >= least:
            kept[path] = len(nodes)
            nodes.append(FlameNode(path[-1][0], kept[path[:-1]], path[-1][1], 1e-9 * nanoseconds))
    return tuple(nodes)


def _between(name: str) -> str:
    """Return how the time is called that a span leaves to none of those inside of it."""
    if name.startswith("Optimizer."):
        return "Python"
    return "autograd" if re.search(r"Backward\d+$|AccumulateGrad$", name) else name


def _own_kind(span: Span) -> str:
    """Return the class that the name of a span tells; "" where it tells none."""
    name = span.name
    if name.startswith(PART):
        return name.removeprefix(PART)
    if name.startswith(LAYER):
        return "forward"
    if name.startswith(_BACKWARD):
        return "backward"
    if name.startswith("Optimizer."):
        return "optimizer"
    if name.startswith("enumerate(DataLoader)"):
        return "data"
    if _COMMUNICATION.match(name):
        return "communication"
    return "rounding" if _ROUNDING.match(name) else ""


def waits(name: str) -> bool:
    """Return whether an operation of communication waits for others; else it only prepares for them."""
    return name == WAITING or _COMMUNICATION.match(name) is not None


def _kinds(spans: Sequence[Span]) -> list[str]:
    """Return the class of each span of a step, by those around it where its name tells none."""
    own = [_own_kind(span) for span in spans]
    phases = ("data", "forward", "backward", "optimizer")
    # Gradients are dropped at any place of a step: that tells nothing of what is around it.
    told = [k if k in phases and "zero_grad" not in s.name else "" for k, s in zip(own, spans, strict=True)]
    before, after = list(accumulate(told, _later)), list(accumulate(told[::-1], _later))[::-1]
    return [kind or _phase(b, a) for kind, b, a in zip(own, before, after, strict=True)]


def _later(known: str, told: str) -> str:
    return told or known


def _phase(before: str, after: str) -> str:
    """Return the part of a step between two others."""
    if after == "backward":
        return "backward" if before == "backward" else "forward"  # a loss
    if after == "forward":
        return "forward" if before == "forward" else "data"
    # What is done to gradients between the backward pass and the update, as clipping.
    return "optimizer" if (before, after) == ("backward", "optimizer") else REST
