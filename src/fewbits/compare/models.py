"""The metric of task models, cast to narrow formats or trained in them, on held-out data."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean

from torch import nn

from fewbits import kernels
from fewbits.compare.casting import Cast, direct_cast
from fewbits.compare.from_scratch import Trained, from_scratch
from fewbits.compare.whole_numbers import check_whole
from fewbits.errors import ArgumentError
from fewbits.formats import Format, area_memory_proxy, parse
from fewbits.records import LayerScore, TaskScore
from fewbits.train import Task, fp32_model
from fewbits.train.tasks import task as read_task
from fewbits.train.tasks.user_model import is_user_model
from fewbits.typing import Progress

TASK_FORMATS = (
    "fp32",
    "bf16",
    "fp8_e4m3_tensor",
    "int8_channel",
    "mxfp8_e4m3",
    "mxfp8_e5m2",
    "mxint8",
    "mx9",
    "posit8_1",
    "mxfp6_e2m3",
    "mxfp6_e3m2",
    "mx6",
    "nvfp4",
    "mxfp4",
    "mx4",
)

_Measured = tuple[float, Cast]  # the metric, and the statistics of the cast


def compare_models(
    tasks: Sequence[str] = ("bytes", "digits"),
    formats: Sequence[str | Format] = TASK_FORMATS,
    *,
    size: str = "small",
    seeds: int = 3,
    scale_rule: str = "floor",
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    train: bool = False,
    progress: Progress | None = None,
) -> tuple[TaskScore, ...]:
    """Train each task's model with ``seeds`` seeds and evaluate it in each format.

    Args:
        tasks: ``bytes``, ``digits``, ``faint``, ``mnist10k``, paths of texts, or ``MODULE:FUNCTION`` of your
            own model (:mod:`fewbits.train.tasks.user_model`), which is used with its weights.
        formats: formats, or their texts.
        size: ``small`` or ``base``, the size of the models of the tasks.
        seeds: how many models to train per task; seeds are 0, 1, ...
        scale_rule: how power-of-two scales are chosen; at least one of the formats must have such scales.
            Training uses the rules of :func:`fewbits.recipes.uniform_recipe` instead.
        include: name patterns of modules to round, with all their submodules; empty for all.
        exclude: name patterns of modules that stay in FP32.
        train: also train a model in each format from scratch, for each seed.
        progress: called as work goes on.

    Returns:
        One score for each task and format, in the order given.

    Raises:
        ArgumentError: a task, size or scale rule is unknown, there is no task or format, fewer than one seed,
            or a pattern matches no module.
        FormatError: no such format.
        DataError: the user's text cannot be read or is too short.
        MissingDependencyError: the package with a task's data is not installed.
    """
    if not tasks:
        raise ArgumentError("no task to measure; expected bytes, digits or both")
    fmts = [parse(f) for f in formats]
    if not fmts:
        raise ArgumentError("no formats to measure; give at least one, for example 'mxfp4'")
    check_whole("seeds", seeds)
    kernels.check_scale_rule(scale_rule, fmts)
    advance = progress or _silent
    casts = [
        partial(
            direct_cast,
            format=fmt,
            scale_rule=scale_rule if kernels.has_scale_rule(fmt) else "floor",
            include=include,
            exclude=exclude,
        )
        for fmt in fmts
    ]
    scores = []
    for name in dict.fromkeys(tasks):
        task = read_task(name, size)
        if Path(name).exists():  # reports name the full path of a user's text
            task = replace(task, name=name)
        trained = from_scratch(task, fmts, seeds, advance) if train else [Trained()] * len(fmts)
        baseline, measured = _measure(task, casts, seeds, advance)
        rows = zip(fmts, measured, trained, strict=True)
        if is_user_model(name):  # by which the command of a report finds it, whatever it calls itself
            task = replace(task, name=name)
        scores += [_score(task, fmt, baseline, runs, own) for fmt, runs, own in rows]
    return tuple(scores)


def _measure(
    task: Task, casts: Sequence[partial[AbstractContextManager[Cast]]], seeds: int, progress: Progress
) -> tuple[list[float], list[list[_Measured]]]:
    """Return the metric in FP32 by seed, and the results of each cast by seed."""
    baseline: list[float] = []
    measured: list[list[_Measured]] = [[] for _ in casts]
    for seed in range(seeds):
        model = _wide_model(task, seed, partial(_of_seeds, progress, task.name, seed, seeds))
        progress(f"{task.name}: training {seeds} models", seed + 1, seeds)
        baseline.append(task.evaluate(model))
        for i, cast in enumerate(casts):
            with cast(model) as statistics:
                value = task.evaluate(model)
            measured[i].append((value, statistics))
            progress(f"{task.name}: evaluating formats", seed * len(casts) + i + 1, seeds * len(casts))
    return baseline, measured


def _wide_model(task: Task, seed: int, progress: Progress) -> nn.Module:
    """Return the model of a task, trained in FP32; a model of the user is not trained."""
    if is_user_model(task.name):
        return task.create(seed).eval()
    return fp32_model(task, seed, progress=progress)


def _score(
    task: Task, format: Format, baseline: list[float], runs: list[_Measured], trained: Trained
) -> TaskScore:
    casts = [cast for _, cast in runs]
    parameters = casts[0].cast_parameters * format.bits_per_value / 8 + casts[0].other_parameters * 4
    return TaskScore(
        task=task.name,
        metric=task.metric,
        format=str(format),
        bits_per_value=format.bits_per_value,
        model_bytes=parameters,
        values=tuple(value for value, _ in runs),
        baseline=tuple(baseline),
        weight_qsnr_db=fmean(c.weight_qsnr_db for c in casts),
        activation_qsnr_db=fmean(c.activation_qsnr_db for c in casts),
        saturated_fraction=fmean(c.saturated_fraction for c in casts),
        flushed_fraction=fmean(c.flushed_fraction for c in casts),
        area_memory_proxy=area_memory_proxy(format),
        layers=tuple(
            LayerScore(
                same[0].layer,
                fmean(layer.weight.error().qsnr_db for layer in same),
                fmean(layer.activation.error().qsnr_db for layer in same),
            )
            for same in zip(*(c.layers for c in casts), strict=True)
        ),
        trained=trained.values,
        trained_baseline=trained.baseline,
        resolution=task.resolution,
        lower_is_better=task.lower_is_better,
        left_wide=casts[0].left_wide,
    )


def _of_seeds(
    progress: Progress, name: str, seed: int, seeds: int, what: str, done: float, total: float
) -> None:
    """Report the training of one model as part of the training for all seeds."""
    progress(f"{name}: training {seeds} models", seed + done / total, seeds)


def _silent(what: str, done: float, total: float) -> None:
    """Show nothing."""
