"""Steps under PyTorch's profiler, as trees of plain spans."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from fewbits.profiling.counting import Shapes
from fewbits.profiling.marks import STEP, marked_modules

# Kineto, below the profiler, logs each start and stop to the error stream; it asks when first used.
os.environ.setdefault("KINETO_LOG_LEVEL", "99")


@dataclass
class Span:
    """From when to when something ran, and what ran inside of it, one after the other."""

    name: str
    start: int  # nanoseconds
    end: int
    children: list[Span] = field(default_factory=list)
    shapes: Shapes = ()  # of operands that are tensors with axes
    sequence: int = -1  # joins a backward node to the forward call that made it; -1: none

    @property
    def duration(self) -> int:
        """Nanoseconds."""
        return self.end - self.start


@dataclass(frozen=True)
class Recording:
    """One step: what its thread did, and what others did meanwhile."""

    step: Span
    beside: tuple[Span, ...]


def record(step: Callable[[], object], steps: int, trace: Path | None = None) -> list[Recording]:
    """Run a step so many times under the profiler, after one that does not count.

    Args:
        step: is called.
        steps: how many are returned.
        trace: where a Chrome trace of all of them is written; None: nowhere.
    """
    with marked_modules(), profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiler:
        for _ in range(steps + 1):
            with record_function(STEP):
                step()
    if trace is not None:
        profiler.export_chrome_trace(str(trace))
    events = list(profiler.events() or ())
    found = sorted((e for e in events if e.name == STEP), key=lambda e: e.time_range.start)
    others = [e for e in events if found and e.thread != found[0].thread and e.cpu_parent is None]
    return [Recording(_span(e), tuple(_within(e, others))) for e in found[1:]]


def _within(step: Any, others: Iterable[Any]) -> Iterable[Span]:
    low, high = step.time_range.start, step.time_range.end
    return (_span(e) for e in others if low <= e.time_range.start and e.time_range.end <= high)


def _span(event: Any) -> Span:
    start, end = (round(1e3 * t) for t in (event.time_range.start, event.time_range.end))
    shapes = tuple(
        tuple(shape) for shape in event.input_shapes or () if shape and all(isinstance(n, int) for n in shape)
    )
    children = [_span(child) for child in sorted(event.cpu_children, key=lambda e: e.time_range.start)]
    children = [c for c in children if start <= c.start and c.end <= end]
    return Span(event.name, start, end, children, shapes, event.sequence_nr)


def profiles() -> bool:
    """Return whether another profiler is on, beside which this one cannot be."""
    return bool(torch.autograd._profiler_enabled())  # type: ignore[attr-defined]  # imported there, not exported
