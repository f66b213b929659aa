"""The columns about profiles of training steps, and what their tables say in words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isnan, nan

from fewbits.records import ProfiledOperation, StepProfile
from fewbits.records.profiling import CLASSES, REST
from fewbits.report import quantities as q
from fewbits.report.columns.column import Column


@dataclass(frozen=True)
class ClassRow:
    """The time of one class in one profile or more."""

    kind: str
    seconds: tuple[float, ...]
    shares: tuple[float, ...]
    between: tuple[float, ...]  # seconds of it in which no operation ran


@dataclass(frozen=True)
class LayerRow:
    """The time of one layer by class."""

    layer: str
    seconds: dict[str, float]
    share: float

    @property
    def total(self) -> float:
        """Seconds of all classes."""
        return sum(self.seconds.values())


@dataclass(frozen=True)
class OperationRow:
    """One operation of one class, in all layers."""

    operations: tuple[ProfiledOperation, ...]
    share: float

    @property
    def name(self) -> str:
        """As PyTorch calls it."""
        return self.operations[0].name

    @property
    def kind(self) -> str:
        """The class."""
        return self.operations[0].kind

    @property
    def label(self) -> str:
        """The name, with what is inside of it."""
        return f"{self.name}, rounding inside" if any(o.rounds_inside for o in self.operations) else self.name

    @property
    def calls(self) -> int:
        """In a step."""
        return sum(o.calls for o in self.operations)

    @property
    def seconds(self) -> float:
        """In a step."""
        return sum(o.seconds for o in self.operations)

    @property
    def moved_bytes(self) -> float:
        """Operands and results."""
        return sum(o.moved_bytes for o in self.operations)

    @property
    def flops(self) -> float:
        """See the record."""
        return sum(o.flops for o in self.operations)

    @property
    def fraction(self) -> float:
        """Part of the limit; nan where nothing was counted."""
        limit = sum(o.limit_seconds for o in self.operations)
        return limit / self.seconds if limit and self.seconds else nan

    @property
    def bound(self) -> str:
        """The limit that most of the time meets."""
        return max(self.operations, key=lambda o: o.limit_seconds).bound


def class_columns(profiles: Sequence[StepProfile]) -> list[Column[ClassRow]]:
    """Return the columns of time by class: of one profile, or of some beside each other."""
    first: Column[ClassRow] = Column(
        "class", "class", "What the time is for.", lambda r: r.kind, lambda r: r.kind, is_name=True
    )
    columns = [first]
    for i, profile in enumerate(profiles):
        of = "" if len(profiles) == 1 else f", {q.visible(profile.recipe)}"
        name = f"{profile.recipe[:14]}\n" if of else ""
        columns += [
            Column(f"ms{of}", f"{name}ms", "Milliseconds of a step.", _cell(i, _ms), _order(i, "seconds")),
            Column(f"%{of}", f"{name}%", "Of the step.", _cell(i, _percent), _order(i, "shares")),
        ]
        if not of:
            columns.append(
                Column("between (ms)", "between\nms", "Of it, between operations: Python and autograd.",
                       lambda r: _three(1e3 * r.between[0]), lambda r: r.between[0])
            )  # fmt: skip
    return columns


def _cell(i: int, text: Callable[[ClassRow, int], str]) -> Callable[[ClassRow], str]:
    return lambda row: text(row, i)


def _ms(row: ClassRow, i: int) -> str:
    return _three(1e3 * row.seconds[i])


def _percent(row: ClassRow, i: int) -> str:
    return q.percent(row.shares[i])


def _order(i: int, field: str) -> Callable[[ClassRow], float]:
    return lambda row: float(getattr(row, field)[i])


def _of_class(kind: str, short: str) -> Column[LayerRow]:
    return Column(
        f"{kind} (ms)", f"{short}\nms", f"Of class {kind}.", lambda r: _three(1e3 * r.seconds.get(kind, 0.0)),
        lambda r: r.seconds.get(kind, 0.0), spare=1 if kind in ("optimizer", "communication") else 0,
    )  # fmt: skip


LAYER_COLUMNS: list[Column[LayerRow]] = [
    Column("layer", "layer", "Name of the module whose own operations these are; the last row: of none.",
           lambda r: q.visible(r.layer) or "outside of layers", lambda r: r.layer, is_name=True),
    Column("ms", "ms", "Milliseconds of a step.", lambda r: _three(1e3 * r.total), lambda r: r.total),
    Column("%", "%", "Of the step.", lambda r: q.percent(r.share), lambda r: r.share),
    _of_class("forward", "forward"), _of_class("backward", "backward"), _of_class("rounding", "rounding"),
    _of_class("optimizer", "opt."), _of_class("communication", "comm."),
]  # fmt: skip

OPERATION_COLUMNS: list[Column[OperationRow]] = [
    Column("operation", "operation", "As PyTorch calls it; its own functions, layers' Python and autograd,"
           " too.", lambda r: q.visible(r.label), lambda r: r.label, is_name=True),
    Column("class", "class", "What the time is for.", lambda r: r.kind, lambda r: r.kind, is_name=True),
    Column("calls", "calls", "In a step; - of time between operations.",
           lambda r: str(r.calls or "-"), lambda r: r.calls or nan, spare=2),
    Column("ms", "ms", "Milliseconds of a step.", lambda r: _three(1e3 * r.seconds), lambda r: r.seconds),
    Column("%", "%", "Of the step.", lambda r: q.percent(r.share), lambda r: r.share),
    Column("GB/s", "GB/s", "Operands and results, as they lie in memory.",
           lambda r: _rate(r.moved_bytes, r.seconds), lambda r: _per_second(r.moved_bytes, r.seconds)),
    Column("GFLOP/s", "GFLOP\n/s", "Of products two for each multiplication and addition, else one for"
           " each value.", lambda r: _rate(r.flops, r.seconds), lambda r: _per_second(r.flops, r.seconds),
           spare=1),
    Column("of limit (%)", "of\nlimit\n%", "The time it would take at the limit of this machine over the"
           " time it took; above 100 operands lie in a cache, or the limit is too low.",
           lambda r: _limit(r.fraction), lambda r: r.fraction),
    Column("bound", "bound", "The limit that it meets: bytes of memory, compute, or the cost of a call.",
           lambda r: r.bound or "-", lambda r: r.bound, is_name=True),
]  # fmt: skip


def class_rows(profiles: Sequence[StepProfile]) -> list[ClassRow]:
    """Return a row for each class that takes time in one of the profiles."""
    rows = []
    for kind in (*CLASSES, REST):
        seconds = tuple(p.seconds_of[kind] for p in profiles)
        shares = tuple(s / p.seconds for s, p in zip(seconds, profiles, strict=True))
        between = tuple(
            sum(o.seconds for o in p.operations if o.kind == kind and not o.calls) for p in profiles
        )
        if any(seconds) or kind == REST:
            rows.append(ClassRow(kind, seconds, shares, between))
    return rows


def layer_rows(profile: StepProfile) -> list[LayerRow]:
    """Return a row for each layer, the longest first; what no layer did is the last one."""
    layers: dict[str, dict[str, float]] = {}
    for o in profile.operations:
        of = layers.setdefault(o.layer, {})
        of[o.kind] = of.get(o.kind, 0.0) + o.seconds
    rows = [LayerRow(name, of, sum(of.values()) / profile.seconds) for name, of in layers.items()]
    return sorted(rows, key=lambda r: (not r.layer, -r.total, r.layer))


def operation_rows(profile: StepProfile) -> list[OperationRow]:
    """Return a row for each operation of a class, the longest first; what was not counted apart."""
    alike: dict[tuple[str, str, bool], list[ProfiledOperation]] = {}
    for o in profile.operations:
        alike.setdefault((o.name, o.kind, o.counted), []).append(o)
    rows = [OperationRow(tuple(of), sum(o.seconds for o in of) / profile.seconds) for of in alike.values()]
    return sorted(rows, key=lambda r: (-r.seconds, r.name, r.kind))


def profile_name(profile: StepProfile) -> str:
    """Name what was profiled."""
    by = f", {q.visible(profile.recipe)}" if profile.recipe else ""
    several = f", {profile.processes} processes" if profile.processes > 1 else ""
    return f"{q.visible(profile.task)}{by}{several}"


def about_profile(profile: StepProfile) -> list[str]:
    """Say what a step takes, how much of it has a class, what the limits are, and what to do."""
    limits = profile.limits
    rates = ", ".join(f"{name} {rate / 1e9:.0f}" for name, rate in limits.product_flops.items())
    threads = f"{limits.threads} thread{'s' * (limits.threads > 1)}"
    inside = sum(o.seconds for o in profile.operations if o.rounds_inside)
    steps = "" if profile.alike == profile.steps else f", of {profile.steps} that are not alike,"
    found = [
        f"{profile_name(profile)}: a step takes {_three(1e3 * profile.plain_seconds)} ms by the clock, and"
        f" {_three(1e3 * profile.profiled_seconds)} ms under the profiler ({profile.overhead:.2f} times)."
        f" Shown are {_three(1e3 * profile.seconds)} ms: medians of {profile.alike} steps{steps} part by"
        " part."
        f" {100 * profile.accounted:.1f} % of it has a class.",
        f"Limits of this machine with {threads}, measured: copies {limits.copy_bytes / 1e9:.1f} GB/s, reads"
        f" {limits.read_bytes / 1e9:.1f} GB/s; products in GFLOP/s: {rates}; a call"
        f" {1e6 * limits.call_seconds:.1f} us.",
    ]
    if profile.uncounted >= 5e-4:
        found.append(
            f"{100 * profile.uncounted:.1f} % of it are calls that were not found among the counted ones, as"
            " where shapes change from step to step; their bytes and limits are not known."
        )
    if inside:
        found.append(
            f"Products that round their operands inside take {_three(1e3 * inside)} ms; that is not in the"
            " row of rounding."
        )
    if profile.others_seconds:
        found.append(f"Other threads worked {_three(1e3 * profile.others_seconds)} ms beside this one.")
    return found + [f"{i}. {q.visible(text)}." for i, text in enumerate(profile.advice, 1)]


def _three(value: float) -> str:
    return "0" if value == 0 else f"{value:.2f}" if value < 9.995 else q.three_digits(value)


def _per_second(amount: float, seconds: float) -> float:
    return amount / seconds if amount and seconds else nan


def _rate(amount: float, seconds: float) -> str:
    rate = _per_second(amount, seconds)
    return "-" if isnan(rate) else f"{1e-9 * rate:.1f}"


def _limit(fraction: float) -> str:
    return "-" if isnan(fraction) else f"{100 * fraction:.0f}"
