"""What to do about the operations that lose most: each sentence from a measurement of the step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from fewbits.profiling.attribution import waits
from fewbits.records import MachineLimits, ProfiledOperation

_WORST = 3
_FAR = 0.3  # of the limit of products: another dtype is not what is lacking
_MET = {"memory": "memory", "compute": "products", "calls": "calls"}
_WAITS = 50  # times the cost of a call on few values: it waited for something
_NEAR = 0.7  # of the limit: nothing is to be had from the operation itself
_FASTER = 1.2  # times; less is within the noise of a shared machine


@dataclass(frozen=True)
class _Group:
    """One operation in all layers."""

    operations: list[ProfiledOperation]

    @property
    def first(self) -> ProfiledOperation:
        return self.operations[0]

    @property
    def seconds(self) -> float:
        return sum(o.seconds for o in self.operations)

    @property
    def limit(self) -> float:
        return sum(o.limit_seconds for o in self.operations)

    @property
    def calls(self) -> int:
        return sum(o.calls for o in self.operations)

    @property
    def lost(self) -> float:
        """Seconds above the limit; none where an operation is faster than it."""
        return sum(max(o.seconds - o.limit_seconds, 0.0) for o in self.operations)


def advise(
    operations: Sequence[ProfiledOperation],
    seconds: float,
    limits: MachineLimits,
    thread_seconds: Sequence[tuple[int, float]] = (),
) -> tuple[str, ...]:
    """Say what to do about the three operations that lose most time to the limits, the longest of none.

    Args:
        operations: of a step.
        seconds: of the step.
        limits: of the machine.
        thread_seconds: the time of a step with other numbers of threads, the first as it was profiled.
    """
    alike: dict[tuple[str, str, bool], list[ProfiledOperation]] = {}
    for o in sorted(operations, key=lambda o: -o.limit_seconds):  # the bound is that of the largest
        alike.setdefault((_name(o), o.kind, o.counted), []).append(o)
    groups = sorted((_Group(of) for of in alike.values()), key=lambda g: (-g.lost, -g.seconds))
    said = [_sentence(g, seconds, limits) for g in groups[:_WORST]]
    return (*_threads(thread_seconds), *said)  # too many threads make everything else slow


def _name(operation: ProfiledOperation) -> str:
    """Return the name of an operation; all that Python does between them is one."""
    return operation.name if operation.calls or operation.name == "autograd" else "Python"


def _sentence(group: _Group, seconds: float, limits: MachineLimits) -> str:
    first, name = group.first, _name(group.first)
    times = "1 call" if group.calls == 1 else f"{group.calls} calls"
    takes = f"{1e3 * group.seconds:.2f} ms, {group.seconds / seconds:.0%} of the step"
    head = f"{name} ({first.kind}): {takes}"
    if first.kind == "communication" and waits(first.name):
        return (
            f"{head}: mostly waiting for the other processes; send fewer bytes by a codec, or exchange less"
            " often by local steps"
        )
    if not first.calls and first.kind == "data":
        return (
            f"{head}, between operations: drawing a batch in Python; draw it ahead, as a DataLoader's workers"
            " do, or keep the batches in memory"
        )
    if not first.calls:
        return (
            f"{head}, between operations: each costs as much for few values as for many; give a step more"
            " samples, or let torch.compile put operations together"
        )
    head += f", in {times}"
    if not first.counted:
        return f"{head}: its bytes were not counted; no limit is known for it"
    if not group.limit:
        return f"{head}: it moves no bytes; call it less often"
    part = f"{group.limit / group.seconds:.0%} of the limit"
    each = group.seconds / group.calls
    if first.bound == "calls" and each > _WAITS * limits.call_seconds:
        return (
            f"{head}, {1e6 * each:.0f} us each, where the least call takes {1e6 * limits.call_seconds:.1f}:"
            " it waits, for threads or for other programs on these cores; take fewer threads"
        )
    if first.bound == "calls":
        return (
            f"{head}, {1e6 * each:.1f} us each, where the least call takes"
            f" {1e6 * limits.call_seconds:.1f}: too few values in a call; give a step more samples, or fuse"
            " the calls with torch.compile or a foreach operation"
        )
    if group.limit > group.seconds:
        return (
            f"{head}, {part} of {_MET[first.bound]}: its operands lie in a cache, or the limit is too low, as"
            " one that was measured while others worked; nothing is lost there"
        )
    if first.bound == "compute":
        return f"{head}, {part} of {first.dtype or 'narrow'} products: {_of_products(group, limits)}"
    if group.limit > _NEAR * group.seconds:
        return (
            f"{head}, {part} of memory: it cannot be much faster; fuse it with what comes before or after,"
            " or hold its operands in fewer bits"
        )
    strided = sum(o.seconds for o in group.operations if o.strided)
    if strided > 0.5 * group.seconds:
        what = (
            "blocks run across the axis along which values lie"
            if first.kind == "rounding"
            else "it reads across"
        )
        return (
            f"{head}, {part} of memory: {what}; lay out the operand so that its last axis is the one it needs"
        )
    if first.kind == "rounding":
        return (
            f"{head}, {part} of memory: a recipe that rounds fewer operands, or to one format along the last"
            " axis, saves it; see `fewbits recipes`"
        )
    return f"{head}, {part} of memory: fuse it with what comes before or after, as torch.compile does"


def _of_products(group: _Group, limits: MachineLimits) -> str:
    rates, dtype = limits.product_flops, group.first.dtype
    narrow = rates.get("bfloat16", 0.0) / rates.get("float32", math.inf)
    if group.limit < _FAR * group.seconds:
        return (
            "the matrices are too small for the units, or their threads wait; give a step more samples, join"
            " products that share an operand, or try another number of threads"
        )
    if dtype == "float32" and narrow > _FASTER:
        return (
            f"bfloat16 products are {narrow:.1f} times as fast on this machine; take a recipe of bfloat16,"
            " as amp-bf16"
        )
    if group.limit > _NEAR * group.seconds:
        return "it cannot be much faster here; fewer or smaller products only"
    return "give a step more samples, or join products that share an operand: larger ones come nearer"


def _threads(thread_seconds: Sequence[tuple[int, float]]) -> tuple[str, ...]:
    """Say which number of threads was fastest, if it was not that of the profile."""
    if len(thread_seconds) < 2:
        return ()
    now, best = thread_seconds[0], min(thread_seconds, key=lambda pair: pair[1])
    if now[1] < _FASTER * best[1]:
        return ()
    return (
        f"threads: a step takes {1e3 * now[1]:.2f} ms with {now[0]} and {1e3 * best[1]:.2f} ms with"
        f" {best[0]}; take {best[0]}, by torch.set_num_threads",
    )
