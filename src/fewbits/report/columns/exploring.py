"""The columns about a design space of formats, and what their tables say in words."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fewbits.records import (
    Exploration,
    ExploredData,
    ExploredFormat,
    Finalist,
    FormatChoice,
    FrontSensitivity,
    PlacedFormat,
)
from fewbits.report import quantities as q
from fewbits.report.columns.column import BITS, QSNR, Column

_SHORT_TABLE = 8  # values that are written out
_PROXY = (
    "Multiplier area times memory relative to FP8 E4M3, counted in bits; a proxy, not a synthesis result."
)
_BELOW = "How far below the best QSNR of the space for no more {}; 0: on the front, negative: beyond it."


def written(format: str) -> str:
    """Write a format without the values of a long table, which --json has."""

    def shorter(found: re.Match[str]) -> str:
        count = found[1].count(",") + 1
        return found[0] if count <= _SHORT_TABLE else f"lookup({count}-values)"

    return q.visible(re.sub(r"lookup\(([^()]*)\)", shorter, format))


def proxy(value: float) -> str:
    """Write a proxy with two significant digits."""
    return f"{value:.2g}" if value < 0.995 else f"{value:.1f}"


def _db(value: float) -> str:
    """Write a difference of decibels with two digits; what only rounds to zero has no sign."""
    if math.isnan(value):
        return "n/a"
    text = f"{value:.2f}"
    return text if text.strip("-0.") else "0"


def _below(
    title: str, short: str, among: str, value: Callable[[PlacedFormat], float], spare: int = 0
) -> Column[PlacedFormat]:
    return Column(title, short, _BELOW.format(among), lambda p: _db(value(p)), value, spare=spare)


PLACED_COLUMNS: list[Column[PlacedFormat]] = [
    Column("format", "format", "Number format, as --formats takes it.",
           lambda p: written(p.format.format), lambda p: p.format.format, is_name=True),
    Column("bits per value", "bits/\nvalue", BITS,
           lambda p: q.bits(p.format.bits_per_value), lambda p: p.format.bits_per_value),
    Column("QSNR (dB)", "QSNR\ndB", QSNR, lambda p: q.decibels(p.format.qsnr_db), lambda p: p.format.qsnr_db),
    _below("below the front (dB)", "below\nfront\ndB", "bits", lambda p: p.below_db),
    _below("below that of powers of two (dB)", "below\n2^k's\ndB",
           "bits, of formats whose scales are powers of two", lambda p: p.below_power_of_two_db),
    Column("proxy", "proxy", _PROXY, lambda p: proxy(p.format.proxy), lambda p: p.format.proxy),
    _below("by proxy: below the front (dB)", "proxy:\nbelow\ndB", "proxy", lambda p: p.below_proxy_db, 1),
    _below("by proxy: below that of powers of two (dB)", "proxy:\n2^k's\ndB",
           "proxy, of formats whose scales are powers of two", lambda p: p.below_power_of_two_proxy_db, 2),
]  # fmt: skip


@dataclass(frozen=True)
class BestWithin:
    """The best formats of the space within so many bits per value."""

    bits: float
    best: ExploredFormat
    power_of_two: ExploredFormat | None


BEST_COLUMNS: list[Column[BestWithin]] = [
    Column("within (bits)", "with-\nin\nbits", "Bits per value that a format may take.",
           lambda b: f"{b.bits:g}", lambda b: b.bits),
    Column("best format", "best format", "The highest QSNR of the space within these bits.",
           lambda b: written(b.best.format), lambda b: b.best.format, is_name=True),
    Column("its bits", "its\nbits", BITS,
           lambda b: q.bits(b.best.bits_per_value), lambda b: b.best.bits_per_value, spare=1),
    Column("its QSNR (dB)", "QSNR\ndB", QSNR, lambda b: q.decibels(b.best.qsnr_db), lambda b: b.best.qsnr_db),
    Column("best with powers of two", "best with powers of two",
           "The same of formats whose scales are powers of two.",
           lambda b: "-" if b.power_of_two is None else written(b.power_of_two.format),
           lambda b: "" if b.power_of_two is None else b.power_of_two.format, is_name=True),
    Column("QSNR of that (dB)", "QSNR\ndB", QSNR,
           lambda b: "-" if b.power_of_two is None else q.decibels(b.power_of_two.qsnr_db),
           lambda b: math.nan if b.power_of_two is None else b.power_of_two.qsnr_db),
]  # fmt: skip

SENSITIVITY_COLUMNS: list[Column[FrontSensitivity]] = [
    Column("parameter", "", "Of BDR, which may have one value only.",
           lambda s: f"{s.parameter} = {s.value}", lambda s: f"{s.parameter} = {s.value}", is_name=True),
    Column("formats", "formats", "Formats of the space with that value.",
           lambda s: str(s.formats), lambda s: s.formats),
    Column("mean loss (dB)", "mean\nloss\ndB", "How far their front lies below that of all BDR, over bits.",
           lambda s: _db(s.mean_db), lambda s: s.mean_db),
    Column("largest loss (dB)", "largest\nloss\ndB", "The same where it is largest.",
           lambda s: _db(s.worst_db), lambda s: s.worst_db),
    Column("by proxy: mean (dB)", "proxy:\nmean\ndB", "The same, of the fronts over the proxy.",
           lambda s: _db(s.proxy_mean_db), lambda s: s.proxy_mean_db),
    Column("by proxy: largest (dB)", "proxy:\nlargest\ndB", "The same where it is largest.",
           lambda s: _db(s.proxy_worst_db), lambda s: s.proxy_worst_db),
]  # fmt: skip

_KINDS = {"table": "table fitted here", "named": "named"}

FINALIST_COLUMNS: list[Column[Finalist]] = [
    Column("format", "format", "The best of its kind on the half that chose, or one that was named.",
           lambda f: written(f.format.format), lambda f: f.format.format, is_name=True),
    Column("kind", "kind", "Kind of elements of which it was the best; or why else it takes part.",
           lambda f: _KINDS.get(f.kind, f.kind), lambda f: f.kind, is_name=True),
    Column("bits per value", "bits/\nvalue", BITS,
           lambda f: q.bits(f.format.bits_per_value), lambda f: f.format.bits_per_value),
    Column("QSNR, chosen on (dB)", "QSNR\nchosen on\ndB", "On the half of the vectors that it was chosen on.",
           lambda f: f"{f.format.qsnr_db:.2f}", lambda f: f.format.qsnr_db),
    Column("QSNR, held out (dB)", "QSNR\nheld out\ndB", "On the other half, which decides.",
           lambda f: f"{f.held_out_db:.2f}", lambda f: f.held_out_db),
    Column("proxy", "proxy", _PROXY, lambda f: proxy(f.format.proxy), lambda f: f.format.proxy, spare=1),
]  # fmt: skip


def best_within(exploration: Exploration) -> list[BestWithin]:
    """Return the best formats within every half bit per value that has any."""
    formats = exploration.formats
    widest = max(f.bits_per_value for f in formats)
    rows: list[BestWithin] = []
    for half in range(1, math.ceil(2 * widest) + 1):
        within = [f for f in formats if f.bits_per_value <= half / 2]
        powers = [f for f in within if f.scale == "power of two"]
        row = BestWithin(half / 2, _best(within), _best(powers) if powers else None) if within else None
        if row is not None and (
            not rows or row.best != rows[-1].best or row.power_of_two != rows[-1].power_of_two
        ):
            rows.append(row)
    return rows


def _best(formats: Sequence[ExploredFormat]) -> ExploredFormat:
    return max(formats, key=lambda f: (f.qsnr_db, -f.bits_per_value))


def about_data(data: ExploredData) -> str:
    """Say what the vectors are."""
    return (
        f"{data.vectors} vectors of {data.length} values, {q.visible(data.name)}: {q.visible(data.about)};"
        f" seed {data.seed}, scale rule {data.scale_rule}. A scale per channel is one per vector, and counted"
        " in its bits."
    )


def about_exploration(exploration: Exploration) -> str:
    """Say what was measured, and that the proxy is one."""
    return (
        f"{len(exploration.formats)} formats, each on {about_data(exploration.data)} QSNR is that of all"
        " vectors together; the proxy counts bits of multipliers, shifters, adders and memory: nothing was"
        " synthesized."
    )


def bound_sentence(exploration: Exploration) -> str:
    """Say whether the formats of BDR keep the lower bound that their paper proves."""
    bounded = [f for f in exploration.formats if not math.isnan(f.bound_db)]
    below = [f for f in bounded if f.qsnr_db < f.bound_db]
    if not below:
        return (
            f"All {len(bounded)} BDR formats lie above the lower bound of theorem 1 of their paper, by the"
            " QSNR of all vectors together; single vectors were not held to it."
        )
    return (
        f"By the QSNR of all vectors together {len(below)} of {len(bounded)} BDR formats lie below the lower"
        " bound of theorem 1, which holds"
        " while the shared exponent is in the scale's range; the data leave that of"
        f" {written(below[0].format)}."
    )


SENSITIVITY_SENTENCE = (
    "What the front of BDR loses with one value of a parameter only, at its points but for those with the"
    " most mantissa bits. d1 is the range of scales: tensors of many magnitudes need more of it than vectors"
    " of one kind do."
)


def about_choice(choice: FormatChoice) -> str:
    """Say what was tried on what, and what decided."""
    return (
        f"{choice.tried} formats of at most {choice.budget:g} bits per value, and {choice.tables} tables"
        f" fitted to the data: one half of {about_data(choice.data)} The best of each kind went on to the"
        " other half, which decides."
    )


def winner_sentence(choice: FormatChoice) -> str:
    """Name the winner, by how much, and how to write it."""
    first, *others = choice.finalists
    if not others or not math.isfinite(first.held_out_db):
        return "Best on held-out data:"
    lead = first.held_out_db - others[0].held_out_db
    return f"Best on held-out data, {lead:.2f} dB before {written(others[0].format.format)}:"
