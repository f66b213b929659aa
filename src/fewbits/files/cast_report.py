"""The report of a cast: bytes and errors of each tensor and of each format."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from math import inf, nan

from fewbits.files.step import Step
from fewbits.metrics import Tally
from fewbits.records import CastFormat, CastReport, CastTensor


def cast_report(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    steps: Sequence[Step],
    tallies: Mapping[str, Tally],
    scale_rule: str,
    *,
    restored: bool,
) -> CastReport:
    """Return the report of a cast or a restoration.

    Args:
        source: the checkpoint that was read.
        destination: the one that was written.
        steps: its tensors.
        tallies: the errors of those that were rounded, by name.
        scale_rule: how power-of-two scales were chosen.
        restored: whether narrow tensors became ordinary ones.
    """
    tensors = tuple(_cast_tensor(step, tallies.get(step.tensor.name)) for step in steps)
    groups: dict[str | None, list[CastTensor]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.format, []).append(tensor)
    return CastReport(
        source=os.fspath(source),
        destination=os.fspath(destination),
        restored=restored,
        scale_rule=scale_rule,
        formats=tuple(
            _summed(fmt, groups[fmt], tallies) for fmt in sorted(groups, key=lambda f: (f is None, f or ""))
        ),
        tensors=tensors,
    )


def _cast_tensor(step: Step, tally: Tally | None) -> CastTensor:
    layout = step.layout
    return CastTensor(
        tensor=step.tensor.name,
        shape=step.tensor.shape if layout is None else layout.shape,
        dtype=step.tensor.dtype,
        format=None if layout is None else layout.format.name,
        bytes_before=step.tensor.stored_bytes,
        bytes_after=sum(part.nbytes for part in step.entries.values()),
        error=None if tally is None else tally.error(),
        sparsity=None if layout is None or layout.pattern is None else str(layout.pattern),
    )


def _summed(format: str | None, group: Sequence[CastTensor], tallies: Mapping[str, Tally]) -> CastFormat:
    rounded = [t for t in group if t.error is not None]
    together = Tally()
    for t in rounded:
        together.add_all(tallies[t.tensor])
    worst = min(rounded, key=lambda t: t.error.qsnr_db if t.error else inf, default=None)
    return CastFormat(
        format=format,
        tensors=len(group),
        bytes_before=sum(t.bytes_before for t in group),
        bytes_after=sum(t.bytes_after for t in group),
        qsnr_db=together.error().qsnr_db if rounded else inf if format is None else nan,
        worst_tensor=worst.tensor if worst else None,
        worst_qsnr_db=worst.error.qsnr_db if worst and worst.error else nan,
    )
