"""Where the time of a training step goes, and how far each operation is from the limits of a machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

CLASSES = ("forward", "backward", "optimizer", "rounding", "communication", "data")
REST = "Python and the rest"  # the class of what nothing else claims


@dataclass(frozen=True)
class MachineLimits:
    """What this machine can do, measured here with so many threads."""

    threads: int
    copy_bytes: float  # in a second, read and written, of arrays beyond the caches
    read_bytes: float  # in a second, read alone
    product_flops: Mapping[str, float]  # in a second, by the dtype of both operands
    call_seconds: float  # of an operation on a single value: below it no call comes


@dataclass(frozen=True)
class ProfiledOperation:
    """What one operation took in one layer, in one step, under the profiler."""

    name: str  # as PyTorch calls it, "aten::mm"; or what Python or autograd does, in words
    kind: str  # one of CLASSES, or REST
    layer: str  # name of the module; "" outside of all modules
    calls: int
    seconds: float
    moved_bytes: float = 0.0  # operands and results, as they lie in memory
    flops: float = 0.0  # of a product: two for each multiplication and addition; else one for each value
    limit_seconds: float = 0.0  # at the limit of the machine that it meets first; 0: nothing was counted
    bound: str = ""  # that limit: "memory", "compute" or "calls"
    dtype: str = ""  # of the widest floating-point operand
    rounds_inside: bool = False  # the product rounds its operands on their way in
    counted: bool = True  # calls of it were found among those whose bytes were counted
    strided: bool = False  # it reads or rounds across the axis along which values lie, or has gaps

    @property
    def fraction(self) -> float | None:
        """Part of the limit that is reached; None where nothing was counted."""
        return self.limit_seconds / self.seconds if self.limit_seconds and self.seconds else None


@dataclass(frozen=True)
class FlameNode:
    """A node of the tree of a step: what ran inside of what."""

    name: str
    parent: int  # index of the node around it; -1: the step
    kind: str
    seconds: float  # with all that ran inside


@dataclass(frozen=True)
class StepProfile:
    """One training step under the profiler."""

    task: str  # or the function of the user
    recipe: str
    processes: int
    steps: int  # that were profiled
    alike: int  # of them did the same in the same order; each part here takes the median of theirs
    plain_seconds: float  # of a step without the profiler, by the clock: the median of twice as many
    profiled_seconds: float  # of a whole step under the profiler: the median of all that were profiled
    seconds: float  # of the step that is shown: its parts together, which may be less
    operations: tuple[ProfiledOperation, ...]  # the longest first; their seconds add up to those of the step
    flame: tuple[FlameNode, ...]
    limits: MachineLimits
    others_seconds: float = 0.0  # of communication in other threads, while this one went on
    advice: tuple[str, ...] = ()

    @property
    def seconds_of(self) -> dict[str, float]:
        """Seconds by class, all classes."""
        return {kind: sum(o.seconds for o in self.operations if o.kind == kind) for kind in (*CLASSES, REST)}

    @property
    def accounted(self) -> float:
        """Part of the step that has a class."""
        return 1 - self.seconds_of[REST] / self.seconds

    @property
    def uncounted(self) -> float:
        """Part of the step in calls whose bytes were not counted."""
        return sum(o.seconds for o in self.operations if o.calls and not o.counted) / self.seconds

    @property
    def overhead(self) -> float:
        """The step under the profiler over the step without it."""
        return self.profiled_seconds / self.plain_seconds
