"""The bytes and error of each tensor of a checkpoint in each format, and a proposed format for each."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isnan, lcm, log10, nan, sqrt

from fewbits import kernels
from fewbits.compare.proposal import propose, propose_within
from fewbits.errors import ArgumentError
from fewbits.files.byte_layout import layout_of
from fewbits.files.checkpoint import CHUNK_VALUES, StoredTensor, chunks
from fewbits.files.contents import ordinary_tensors
from fewbits.files.layouts import onnx
from fewbits.files.layouts.onnx_model import Initializer
from fewbits.files.matrix_view import matrix_shape
from fewbits.files.selection import can_cast, check_patterns, is_selected
from fewbits.files.survey import Piece, Survey, survey
from fewbits.formats import Format, parse
from fewbits.metrics import Tally
from fewbits.records import CheckpointReport, TensorScore, TensorSummary
from fewbits.typing import Progress

# Usual formats for weights: MX and BDR formats, NVFP4, and integers with a scale per row, from 9 bits down to
# 4. Scalar 8-bit floats are left out: without a scale, many weights fall below their range.
CHECKPOINT_FORMATS = (
    "mx9", "mxint8", "mxfp8_e4m3", "int8_channel", "mxfp6_e2m3", "mxfp6_e3m2", "mx6", "nvfp4", "mxfp4",
    "int4_channel", "mx4",
)  # fmt: skip

_LEAST_SQUARES = 2.0**-900  # a sum of squares below this may have lost some
_NO_WEIGHT = "the graph does not multiply it as a weight in FP32, FP16 or BF16: kept, as fewbits cast does"


@dataclass
class _Trial:
    """One format under measurement on one tensor."""

    format: Format
    scale_rule: str
    tally: Tally = field(default_factory=Tally)

    def add(self, chunk: Piece, seen: Survey, row: int, is_part: bool) -> None:
        """Round a chunk of (rows, n) and add its errors; ``row`` is the index of its first row."""
        fmt, amax = seen.scale_of(self.format, row, is_part)
        chosen = kernels.options(fmt, scale_rule=self.scale_rule)
        self.tally.include(kernels.tally(chunk, fmt, 1, chosen, amax), chunk.size)


def measure_checkpoint(
    path: str | os.PathLike[str],
    formats: Sequence[str | Format] = CHECKPOINT_FORMATS,
    *,
    min_qsnr_db: float = 30.0,
    budget: float | None = None,
    scale_rule: str = "floor",
    model: str | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    progress: Progress | None = None,
) -> CheckpointReport:
    """Round the tensors of a checkpoint to each format, nearest even, and propose a format for each.

    The proposal covers the tensors that :func:`fewbits.files.cast` casts, and minimizes the bytes that it
    writes: the fewest in total for which the mean relative noise of the tensors meets ``min_qsnr_db``. Large
    tensors therefore get fewer bits than small ones. With a model, the noise of its outputs must meet
    ``min_qsnr_db`` instead: the effect of each tensor is measured by rounding that tensor alone; then the
    whole proposal is measured, and made stricter if it falls short.

    With a budget the proposal is instead the one of least noise, in the same measure, that takes at most so
    many bits per value; no other choice among the formats has less. The noise of a tensor is its relative
    noise, times its sensitivity with a model: the second-order model of the outputs' change.

    Blocks run along the rows of :func:`fewbits.files.matrix_view.matrix_shape`; those of a model in ONNX run
    along the sums of its products, and only its weights are measured. Values are read in pieces, so
    memory does not grow with the checkpoint.

    Args:
        path: a ``.safetensors`` file, an index of several, or a folder of them; a model in ONNX.
        formats: formats or their texts.
        min_qsnr_db: lower bound for the QSNR of the model's outputs, or without a model of the tensors;
            decibels.
        budget: the bits per value that all castable tensors may take on average, scales included; then
            ``min_qsnr_db`` bounds nothing. None for no budget.
        scale_rule: how power-of-two scales are chosen; formats with other scales keep their own rule.
        model: ``MODULE:FUNCTION`` of a function that returns ``(model, batches)``, or ``(model, batches,
            loss)``, as described in :mod:`fewbits.train.tasks.user_model`. The checkpoint's values are put
            into it by name: parameters have the names of the tensors, those that it lacks stay as they are.
        include: patterns of the names to measure; empty for all.
        exclude: patterns of names that are not measured and stay unchanged.
        progress: called as ``progress("measuring tensors", bytes done, all bytes)``, and with a model before
            that as ``progress("measuring the model", tensors done, all tensors)``.

    Returns:
        A report with a summary of each tensor. Tensors that are integer, boolean, empty, excluded or hold NaN
        or infinity stay unchanged, with the reason, and have no scores.

    Raises:
        DataError: the checkpoint cannot be read, or the model has none of its tensors, or one of
            another shape.
        FormatError: no such format.
        ArgumentError: no formats, no such scale rule or one that no format follows, ``min_qsnr_db`` is NaN, a
            budget that no format meets, a pattern that matches no name, no such model, or a checkpoint
            that is quantized already.
    """
    chosen = [parse(f) for f in formats]
    if not chosen:
        raise ArgumentError("no formats to measure; give at least one, for example 'mxfp4'")
    if isnan(min_qsnr_db):
        raise ArgumentError("`min_qsnr_db` is NaN; expected decibels, for example 30")
    if budget is not None and not 0 < budget < inf:
        raise ArgumentError(f"a budget of {budget} is no number of bits per value; expected one such as 4.5")
    rules = [scale_rule if kernels.has_scale_rule(f) else "floor" for f in chosen]
    kernels.check_scale_rule(scale_rule, chosen)
    tensors = ordinary_tensors(path)
    check_patterns([t.name for t in tensors], include, exclude)
    selected = [t for t in tensors if is_selected(t.name, include, exclude)]
    total, done = sum(t.stored_bytes for t in tensors), 0
    summaries: list[TensorSummary] = []
    scores: list[TensorScore] = []
    judge = None if model is None else _Judge(model, path, tensors, selected, chosen, scale_rule, progress)
    for tensor in tensors:

        def advance(fraction: float, tensor: StoredTensor = tensor, done: int = done) -> None:
            if progress is not None:
                progress("measuring tensors", done + fraction * tensor.stored_bytes, total)

        trials = [_Trial(fmt, rule) for fmt, rule in zip(chosen, rules, strict=True)]
        if tensor in selected:
            seen, reason = _measured(tensor, trials, advance)
        else:
            seen, reason = Survey(), "left out by name: kept"
        of_tensor = [] if reason else [_score(tensor, trial) for trial in trials]
        scores += of_tensor
        outlier_ratio = nan if reason else _outlier_ratio(seen.largest, trials[0].tally)
        summaries.append(_summary(tensor, outlier_ratio, reason, judge))
        advance(1.0)
        done += tensor.stored_bytes
    measured_noise = None if judge is None else judge.noise
    if budget is None:
        proposed, noise = propose(summaries, scores, min_qsnr_db, measured_noise)
    else:
        proposed, noise = propose_within(summaries, scores, budget, measured_noise)
    return CheckpointReport(
        os.fspath(path),
        min_qsnr_db,
        tuple(proposed),
        tuple(scores),
        scale_rule,
        model,
        nan if judge is None else decibels(noise),
        nan if budget is None else budget,
    )


class _Judge:
    """Measures on a model how the noise of each tensor affects the outputs."""

    def __init__(
        self,
        model: str,
        path: str | os.PathLike[str],
        tensors: Sequence[StoredTensor],
        measured: Sequence[StoredTensor],
        formats: Sequence[Format],
        scale_rule: str,
        progress: Progress | None,
    ) -> None:
        # Imported here because only the model needs PyTorch.
        from fewbits.compare import sensitivity
        from fewbits.ptq.loaded_weights import fill
        from fewbits.train.tasks.user_model import load_user_model

        shapes = {t.name: t.shape for t in measured if _can_cast(t)}
        by_width = sorted(formats, key=lambda f: f.bits_per_value)
        own = load_user_model(model)
        fill(own.model, {t.name: t for t in tensors}, os.fspath(path))
        self.scale_rule, self.probe = scale_rule, sensitivity.Probe(own.model.eval(), own.batches)
        middle = len(by_width) // 2
        nearest = [by_width[i] for i in sorted(range(len(by_width)), key=lambda i: abs(i - middle))]
        self.sensitivities = sensitivity.sensitivities(self.probe, shapes, nearest, scale_rule, progress)
        self.exact = self.probe.outputs()

    def noise(self, formats: Mapping[str, str]) -> float:
        """Return the relative noise of the outputs with tensors, by name, rounded to these formats."""
        chosen = {name: parse(fmt) for name, fmt in formats.items()}
        return self.probe.noise(self.exact, chosen, self.scale_rule)


def _block_size(format: Format) -> int:
    return format.block_size


def _measured(
    tensor: StoredTensor, trials: list[_Trial], advance: Callable[[float], None]
) -> tuple[Survey, str]:
    """Run the trials of one tensor; return its survey, and the reason if it was not measured, else ""."""
    if not tensor.is_float:
        return Survey(), f"{tensor.dtype} is not floating point: kept"
    if not tensor.count:
        return Survey(), "no values: kept"
    if isinstance(tensor, Initializer):
        if not onnx.LAYOUT.can_cast(tensor):
            return Survey(), _NO_WEIGHT
        tensor = onnx.lines(tensor)
    row = matrix_shape(tensor.shape)[1]
    seen = survey(chunks(tensor, row, values=CHUNK_VALUES), row)
    if seen.nans or seen.infinities:
        return seen, f"{seen.nans} NaN and {seen.infinities} infinite values: kept"
    groups = _groups(trials, row)
    done = 0
    for multiple, group in groups:
        at = 0
        for chunk in chunks(tensor, row, multiple=multiple, values=CHUNK_VALUES):
            where = at // row, chunk.shape[1] < row
            # Format after format, each by all threads of the kernels: a chunk stays in the cache meanwhile.
            for trial in group:
                trial.add(chunk, seen, *where)
            at += chunk.size
            done += chunk.size
            advance(done / (tensor.count * len(groups)))
    return seen, ""


def _can_cast(tensor: StoredTensor) -> bool:
    """Return whether :func:`fewbits.files.cast` casts a tensor; of a model in ONNX its graph decides."""
    return onnx.LAYOUT.can_cast(tensor) if isinstance(tensor, Initializer) else can_cast(tensor)


def _groups(trials: list[_Trial], row: int) -> list[tuple[int, list[_Trial]]]:
    """Group the trials that can share a pass over the data; return each with the multiple for cutting rows.

    A row that fits in a chunk is never cut, so that one pass is enough. A longer row is cut where no block of
    any format is split; block sizes with a very large common multiple need separate passes.
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
    matrix = onnx.lines(tensor) if isinstance(tensor, Initializer) else tensor
    return TensorScore(
        tensor=tensor.name,
        shape=tensor.shape,
        dtype=tensor.dtype,
        format=str(trial.format),
        bits_per_value=trial.format.bits_per_value,
        packed_bytes=layout_of(matrix, trial.format).nbytes,
        error=trial.tally.error(),
    )


def _outlier_ratio(largest: float, tally: Tally) -> float:
    """Return the largest magnitude over the root mean square; nan where squares leave float64's range."""
    return largest / sqrt(tally.signal / tally.count) if _LEAST_SQUARES < tally.signal < inf else nan


def _summary(tensor: StoredTensor, outlier_ratio: float, reason: str, judge: _Judge | None) -> TensorSummary:
    """Return the summary of a tensor before a format is chosen; ``reason`` says why none will be."""
    sensitivity = nan if judge is None else judge.sensitivities.get(tensor.name, nan)
    if not reason and not _can_cast(tensor):
        reason = "fewer than two axes: kept, as fewbits cast does"
    elif not reason and judge is not None and isnan(sensitivity):
        reason = "the model has no parameter of this name: kept"
    return TensorSummary(
        tensor=tensor.name,
        shape=tensor.shape,
        dtype=tensor.dtype,
        stored_bytes=tensor.stored_bytes,
        outlier_ratio=outlier_ratio,
        proposed=None,
        proposed_bytes=tensor.stored_bytes,
        reason=reason,
        castable=_can_cast(tensor),
        sensitivity=sensitivity,
    )


def decibels(noise: float) -> float:
    """Return a relative power of noise as QSNR in dB."""
    return -10 * log10(noise) if noise > 0 else inf
