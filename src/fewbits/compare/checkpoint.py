"""What each tensor of a checkpoint costs in each format, and the narrowest format that is good enough."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import inf, isnan, lcm, log10, nan, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fewbits import kernels
from fewbits.compare.proposal import propose
from fewbits.errors import ArgumentError
from fewbits.files.checkpoint import CHUNK_VALUES, StoredTensor, chunks
from fewbits.files.contents import ordinary_tensors
from fewbits.files.lines import lines
from fewbits.files.plan import can_narrow
from fewbits.files.stored import as_lines
from fewbits.formats import Format, for_one_channel, parse, shares_scale
from fewbits.metrics import Tally
from fewbits.records import CheckpointReport, TensorScore, TensorSummary

# What weights are stored in: the MX and BDR formats, NVFP4, and integers with a scale per row, from 9 bits
# down to 4. Scalar 8-bit floats are not here: without a scale it is their range that decides, and many
# weights fall below.
CHECKPOINT_FORMATS = (
    "mx9", "mxint8", "mxfp8_e4m3", "int8_channel", "mxfp6_e2m3", "mxfp6_e3m2", "mx6", "nvfp4", "mxfp4",
    "int4_channel", "mx4",
)  # fmt: skip

_PIECE = 1 << 16  # values worked on at once: their float64 temporaries stay in cache

Array = NDArray[Any]
Progress = Callable[[float, float, str], None]


@dataclass
class _Survey:
    """What one reading of a tensor says: what its scales depend on, and whether it can be measured."""

    power: float = 0.0  # sum of squares
    largest: float = 0.0
    nans: int = 0
    infinities: int = 0
    largest_of_row: dict[int, float] = field(default_factory=dict)  # only of rows longer than a chunk


@dataclass
class _Trial:
    """One format under measurement on one tensor."""

    format: Format
    scale_rule: str
    tally: Tally = field(default_factory=Tally)

    def add(self, chunk: Array, whole_rows: bool, largest: float, largest_of_row: float) -> None:
        """Round a chunk of (rows, n) and count what happened."""
        fmt, amax = self.format, largest
        if not whole_rows and shares_scale(fmt, "channel"):
            # A part of one row: the survey knows the largest value that shares the scale, as it does for a
            # tensor.
            fmt, amax = for_one_channel(fmt), largest_of_row
        chosen = kernels.options(fmt, scale_rule=self.scale_rule)
        step = max(1, _PIECE // chunk.shape[1])
        for start in range(0, chunk.shape[0], step):
            x = chunk[start : start + step]
            y = kernels.fake_quantize(x, fmt, 1, chosen, amax)
            self.tally.add(x, y, kernels.limits(x, fmt, 1, chosen, amax))


def measure_checkpoint(
    path: str | os.PathLike[str],
    formats: Sequence[str | Format],
    *,
    min_qsnr_db: float,
    scale_rule: str = "floor",
    model: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
    model_progress: Progress | None = None,
) -> CheckpointReport:
    """Round the tensors of a checkpoint to each format, nearest even, and propose a format for each.

    The proposal is for what :func:`fewbits.files.cast` narrows, in the bytes that it writes: the fewest for
    all tensors together such that their mean relative noise is that of the QSNR asked for, so that a large
    tensor takes fewer bits than a small one. With a model it is the noise of its outputs that has to keep
    that QSNR: what each tensor does to it is measured by rounding that tensor alone, and then the proposal
    as a whole is measured, and made stricter where it falls short.

    Blocks run along the lines of :func:`fewbits.files.lines.lines`. Values are read in pieces, so memory does
    not grow with the checkpoint.

    Args:
        path: what :func:`fewbits.files.checkpoint.read_checkpoint` takes.
        formats: formats or their texts.
        min_qsnr_db: the QSNR that the proposal keeps, of the model's outputs or of the tensors; decibels.
        scale_rule: how power-of-two scales are chosen; formats with other scales keep their own rule.
        model: a Python file for :func:`fewbits.compare.sensitivity.load`.
        progress: called with (bytes done, all bytes, name of the tensor).
        model_progress: called with (tensors done, all tensors, name of the tensor) while the model runs.

    Returns:
        One summary for each tensor. Integers, booleans, tensors with NaN or infinity, and empty ones are
        kept, with the reason, and have no scores.

    Raises:
        DataError: the checkpoint cannot be read.
        FormatError: no such format.
        ArgumentError: no formats, no such scale rule or one that no format follows, ``min_qsnr_db`` is NaN,
            or no such model.
    """
    chosen = [parse(f) if isinstance(f, str) else f for f in formats]
    if not chosen:
        raise ArgumentError("no formats to measure; give at least one, for example 'mxfp4'")
    if isnan(min_qsnr_db):
        raise ArgumentError("min_qsnr_db is NaN; expected decibels, for example 30")
    rules = [scale_rule if kernels.has_scale_rule(f) else "floor" for f in chosen]
    kernels.check_scale_rule(scale_rule, chosen)
    tensors = ordinary_tensors(path)
    total, done = sum(t.stored_bytes for t in tensors), 0
    summaries: list[TensorSummary] = []
    scores: list[TensorScore] = []
    judge = None if model is None else _Judge(model, tensors, chosen, scale_rule, model_progress or _silent)
    with ThreadPoolExecutor(kernels.threads()) as pool:
        for tensor in tensors:

            def told(fraction: float, tensor: StoredTensor = tensor, done: int = done) -> None:
                if progress is not None:
                    progress(done + fraction * tensor.stored_bytes, total, tensor.name)

            trials = [_Trial(fmt, rule) for fmt, rule in zip(chosen, rules, strict=True)]
            survey, reason = _measured(tensor, trials, pool, told)
            found = [] if reason else [_score(tensor, trial) for trial in trials]
            scores += found
            summaries.append(_summary(tensor, survey, found, reason, judge))
            told(1.0)
            done += tensor.stored_bytes
    proposed, noise = propose(summaries, scores, min_qsnr_db, None if judge is None else judge.noise)
    return CheckpointReport(
        os.fspath(path),
        min_qsnr_db,
        tuple(proposed),
        tuple(scores),
        scale_rule,
        None if model is None else os.fspath(model),
        nan if judge is None else decibels(noise),
    )


class _Judge:
    """A model that says what the noise of each tensor does to its outputs."""

    def __init__(
        self,
        model: str | os.PathLike[str],
        tensors: Sequence[StoredTensor],
        formats: Sequence[Format],
        scale_rule: str,
        progress: Progress,
    ) -> None:
        from fewbits.compare import sensitivity  # needs PyTorch, and a checkpoint alone does not

        shapes = {t.name: t.shape for t in tensors if can_narrow(t)}
        by_width = sorted(formats, key=lambda f: f.bits_per_value)
        self.scale_rule, self.probe = scale_rule, sensitivity.load(model)
        middle = by_width[len(by_width) // 2]
        self.sensitivities = sensitivity.sensitivities(self.probe, shapes, middle, scale_rule, progress)
        self.exact = self.probe.outputs()

    def noise(self, formats: Mapping[str, str]) -> float:
        """Return the relative noise of the outputs with formats for tensors."""
        chosen = {name: parse(fmt) for name, fmt in formats.items()}
        return self.probe.noise(self.exact, chosen, self.scale_rule)


def _block_size(fmt: Format) -> int:
    return fmt.block_size


def _measured(
    tensor: StoredTensor, trials: list[_Trial], pool: ThreadPoolExecutor, told: Callable[[float], None]
) -> tuple[_Survey, str]:
    """Fill in the trials of one tensor; return what it is like, and why it was not measured if it was not."""
    if not tensor.is_float:
        return _Survey(), f"{tensor.dtype} is not floating point: kept"
    if not tensor.count:
        return _Survey(), "no values: kept"
    row = lines(tensor.shape)[1]
    survey = _survey(tensor, row)
    if survey.nans or survey.infinities:
        return survey, f"{survey.nans} NaN and {survey.infinities} infinite values: kept"
    groups = _groups(trials, row)
    done = 0
    for multiple, group in groups:
        at = 0
        for chunk in chunks(tensor, row, multiple=multiple, values=CHUNK_VALUES):
            of_row = survey.largest_of_row.get(at // row, 0.0)
            whole = chunk.shape[1] == row
            # One thread at a time adds to a format's sums, in order, so the result does not depend on how
            # many run.
            jobs = [pool.submit(trial.add, chunk, whole, survey.largest, of_row) for trial in group]
            for job in jobs:
                job.result()
            at += chunk.size
            done += chunk.size
            told(done / (tensor.count * len(groups)))
    return survey, ""


def _survey(tensor: StoredTensor, row: int) -> _Survey:
    survey, at = _Survey(), 0
    for chunk in chunks(tensor, row, values=CHUNK_VALUES):
        survey.nans += int(np.count_nonzero(np.isnan(chunk)))
        survey.infinities += int(np.count_nonzero(np.isinf(chunk)))
        largest = kernels.largest(chunk)
        survey.largest = max(survey.largest, largest)
        survey.power += float(np.square(chunk, dtype=np.float64).sum())
        if chunk.shape[1] < row:
            survey.largest_of_row[at // row] = max(largest, survey.largest_of_row.get(at // row, 0.0))
        at += chunk.size
    return survey


def _groups(trials: list[_Trial], row: int) -> list[tuple[int, list[_Trial]]]:
    """Return the trials that can share a reading, and the multiple at which it may cut a row.

    A row within a chunk is never cut and one reading serves all. A longer one is cut where no block of any
    format is split; sizes with a very large common multiple need a reading of their own.
    """
    groups: list[tuple[int, list[_Trial]]] = []
    for trial in trials:
        size = _block_size(trial.format) if row > CHUNK_VALUES else 1
        for i, (multiple, group) in enumerate(groups):
            if lcm(multiple, size) <= CHUNK_VALUES:
                groups[i] = (lcm(multiple, size), [*group, trial])
                break
        else:
            groups.append((size, [trial]))
    return groups


def _score(tensor: StoredTensor, trial: _Trial) -> TensorScore:
    return TensorScore(
        tensor=tensor.name,
        shape=tensor.shape,
        dtype=tensor.dtype,
        format=str(trial.format),
        bits_per_value=trial.format.bits_per_value,
        packed_bytes=as_lines(tensor, trial.format).nbytes,
        error=trial.tally.error(),
    )


def _summary(
    tensor: StoredTensor, survey: _Survey, scores: list[TensorScore], reason: str, judge: _Judge | None
) -> TensorSummary:
    """Return what is known of a tensor before a format is chosen; a reason says why none will be."""
    sensitivity = nan if judge is None else judge.sensitivities.get(tensor.name, nan)
    if not reason and not can_narrow(tensor):
        reason = "fewer than two axes: kept, as fewbits cast does"
    elif not reason and judge is not None and isnan(sensitivity):
        reason = "the model has no parameter of this name: kept"
    rms = sqrt(survey.power / tensor.count) if tensor.count else 0.0
    return TensorSummary(
        tensor=tensor.name,
        shape=tensor.shape,
        dtype=tensor.dtype,
        stored_bytes=tensor.stored_bytes,
        outlier_ratio=survey.largest / rms if scores and rms else nan,
        proposed=None,
        proposed_bytes=tensor.stored_bytes,
        reason=reason,
        castable=can_narrow(tensor),
        sensitivity=sensitivity,
    )


def _silent(done: float, total: float, name: str) -> None:
    """Show nothing."""


def decibels(noise: float) -> float:
    """Return a relative power of noise as QSNR in dB."""
    return -10 * log10(noise) if noise > 0 else inf
