"""Tables about files: what a cast did to a checkpoint, and what a checkpoint holds."""

from __future__ import annotations

import math

from rich.console import Group, RenderableType
from rich.text import Text

from fewbits.records import CastFormat, CastReport, InspectedTensor, InspectReport
from fewbits.report import quantities as q
from fewbits.report.columns.column import Column
from fewbits.report.terminal.sheet import Heading, Sheet, Wrapped

_KEPT = "kept as it is"


def _kind(t: InspectedTensor) -> str:
    if t.format is None:
        return q.visible(t.dtype)
    return q.visible(f"{t.format}{'' if t.sparsity is None else f' {t.sparsity}'} for {t.dtype}")


_CAST: list[Column[CastFormat]] = [
    Column("format", "format", "Number format.", lambda f: _format(f.format), lambda f: _format(f.format),
           is_name=True),
    Column("tensors", "tensors", "Number of tensors.",
           lambda f: str(f.tensors), lambda f: f.tensors, spare=1),
    Column("before", "before", "Bytes in the source.", lambda f: q.size(f.bytes_before),
           lambda f: f.bytes_before),
    Column("after", "after", "Bytes in the destination.", lambda f: q.size(f.bytes_after),
           lambda f: f.bytes_after),
    Column("ratio", "ratio", "Bytes before over bytes after.",
           lambda f: _ratio(f.bytes_before, f.bytes_after), lambda f: f.bytes_before),
]  # fmt: skip
_ROUNDED: list[Column[CastFormat]] = [
    Column("QSNR (dB)", "QSNR\ndB", "Of all values together.", lambda f: q.decibels(f.qsnr_db),
           lambda f: f.qsnr_db),
    Column("worst QSNR (dB)", "worst\ndB", "Of the worst tensor.",
           lambda f: q.decibels(f.worst_qsnr_db) if f.worst_tensor else "-", lambda f: f.worst_qsnr_db),
    Column("worst tensor", "worst tensor", "The one with the lowest QSNR.",
           lambda f: q.visible(f.worst_tensor or "-"), lambda f: f.worst_tensor or "", is_name=True),
]  # fmt: skip
_HELD: list[Column[InspectedTensor]] = [
    Column("tensor", "tensor", "Name in the file.", lambda t: q.visible(t.tensor), lambda t: t.tensor,
           is_name=True),
    Column("shape", "shape", "Extents.", lambda t: q.shape(t.shape), lambda t: t.stored_bytes, spare=2),
    Column("stored as", "stored as", "Data type, or narrow format and the data type it stands for.",
           _kind, _kind, is_name=True),
    Column("size", "size", "Bytes in the file.", lambda t: q.size(t.stored_bytes), lambda t: t.stored_bytes),
    Column("bits per value", "bits/\nvalue", "Scales counted.", lambda t: _bits(t.bits_per_value),
           lambda t: t.bits_per_value, spare=1),
]  # fmt: skip


def cast_table(report: CastReport) -> Group:
    """Lay out one row per format, and the size of the whole below."""
    verb = "restored to" if report.restored else "cast to"
    heading = Heading(report.source, f"{verb} {report.destination}")
    columns = _CAST if report.restored else _CAST + _ROUNDED
    count = "1 tensor" if len(report.tensors) == 1 else f"{len(report.tensors)} tensors"
    total = (
        f"{count}, {q.size(report.bytes_before)} before, {q.size(report.bytes_after)} after: "
        f"ratio {_ratio(report.bytes_before, report.bytes_after)}"
    )
    return Group(Sheet(heading, columns, report.formats), Text(), Wrapped(total, "bold"), Text())


def inspect_table(report: InspectReport) -> Group:
    """Lay out one row per tensor, and the totals below."""
    narrow = sum(t.format is not None for t in report.tensors)
    count = "1 tensor" if len(report.tensors) == 1 else f"{len(report.tensors)} tensors"
    total = f"{count}, {narrow} narrow, {report.values} values in {q.size(report.stored_bytes)}"
    bits = f": {q.bits(8 * report.stored_bytes / report.values)} bits per value" if report.values else ""
    parts: list[RenderableType] = [Sheet(Heading(report.path, ""), _HELD, report.tensors)]
    return Group(*parts, Text(), Wrapped(total + bits, "bold"), Text())


def _format(name: str | None) -> str:
    return _KEPT if name is None else q.visible(name)


def _bits(value: float) -> str:
    return "-" if math.isnan(value) else q.bits(value)


def _ratio(before: int, after: int) -> str:
    return f"{before / after:.2f}" if after else "-"
