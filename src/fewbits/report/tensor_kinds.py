"""Groups the tensors of a checkpoint by kind of layer: names that differ only in the block number."""

from __future__ import annotations

import re
from dataclasses import replace
from math import nan

from fewbits.records import CheckpointReport, TensorScore, TensorSummary

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")  # between dots, or at an end of the name


def by_kind(report: CheckpointReport) -> CheckpointReport:
    """Return the report with one tensor in place of all of one kind, shape, dtype and proposal.

    Bytes are those of all, the QSNR in each format and the outlier ratio those of the worst. A kind of one
    tensor keeps its name.
    """
    groups: dict[tuple[object, ...], list[TensorSummary]] = {}
    for tensor in report.tensors:
        name = _NUMBER.sub("*", tensor.tensor)
        groups.setdefault((name, tensor.shape, tensor.dtype, tensor.proposed), []).append(tensor)
    names = {
        t.tensor: group[0].tensor if len(group) == 1 else f"{key[0]} ({len(group)})"
        for key, group in groups.items()
        for t in group
    }
    # Two groups of as many tensors of one name differ in their proposals only: a number tells them apart.
    seen: dict[str, int] = {}
    for group in groups.values():
        name = names[group[0].tensor]
        seen[name] = seen.get(name, 0) + 1
        if seen[name] > 1:
            names |= {t.tensor: f"{name} {seen[name]}" for t in group}
    merged = tuple(_merged(names[group[0].tensor], group) for group in groups.values())
    return replace(report, tensors=merged, scores=_worst(report, names))


def _merged(name: str, group: list[TensorSummary]) -> TensorSummary:
    ratios = [t.outlier_ratio for t in group if t.outlier_ratio == t.outlier_ratio]
    return replace(
        group[0],
        tensor=name,
        stored_bytes=sum(t.stored_bytes for t in group),
        outlier_ratio=max(ratios, default=nan),
        proposed_bytes=sum(t.proposed_bytes for t in group),
    )


def _worst(report: CheckpointReport, names: dict[str, str]) -> tuple[TensorScore, ...]:
    worst: dict[tuple[str, str], TensorScore] = {}
    for score in report.scores:
        key = names.get(score.tensor, score.tensor), score.format
        if key not in worst or score.error.qsnr_db < worst[key].error.qsnr_db:
            worst[key] = replace(score, tensor=key[0])
    return tuple(worst.values())
