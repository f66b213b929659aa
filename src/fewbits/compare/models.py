"""What narrow formats do to the built-in models, cast directly or trained in them, on held-out data."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

from torch import Tensor, nn

from fewbits import kernels
from fewbits.compare.direct_cast import Cast, direct_cast
from fewbits.compare.from_scratch import Trained, from_scratch
from fewbits.errors import ArgumentError
from fewbits.formats import Format, area_memory_proxy, parse
from fewbits.kernels import Options
from fewbits.records import LayerScore, TaskScore
from fewbits.tensor import fake_quantize
from fewbits.tensor.arrays import widened
from fewbits.train import Task, fp32_model
from fewbits.train.tasks import task
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

_Measured = tuple[float, Cast]  # the metric, and what the cast did


def compare_models(
    tasks: Sequence[str],
    formats: Sequence[Format | str],
    *,
    seeds: int = 3,
    data: Path | None = None,
    scale_rule: str = "floor",
    train: bool = False,
    progress: Progress | None = None,
) -> tuple[TaskScore, ...]:
    """Train each task's model with ``seeds`` seeds and evaluate it in each format.

    Args:
        tasks: names from :data:`fewbits.train.tasks.TASKS`.
        formats: formats, or their texts.
        seeds: how many models to train per task; seeds are 0, 1, ...
        data: the user's own text for the task ``bytes``.
        scale_rule: how power-of-two scales are chosen, which one of the formats at least has.
            Training in a format has rules of its own, those of :func:`fewbits.recipes.uniform_recipe`.
        train: also train a model in each format from scratch, for each seed.
        progress: called as work goes on.

    Returns:
        One score for each task and format, in the order given.

    Raises:
        ArgumentError: an unknown task or scale rule, no task, or ``data`` without the task that reads it.
        DataError: the user's text cannot be read or is too short.
        MissingDependencyError: a task's data is in a package that is not installed.
    """
    if not tasks:
        raise ArgumentError("no task to measure; expected bytes, digits or both")
    if data is not None and "bytes" not in tasks:
        raise ArgumentError(
            f"--data {data} is the text of the task bytes, and the tasks are {', '.join(tasks)}; add bytes"
        )
    fmts = [parse(f) for f in formats]
    kernels.check_scale_rule(scale_rule, fmts)
    chosen = [kernels.options(f, scale_rule=_rule_of(f, scale_rule)) for f in fmts]
    found = [task(name, data) for name in dict.fromkeys(tasks)]
    told = progress or _silent
    scores = []
    for t in found:
        trained = from_scratch(t, fmts, seeds, told) if train else [Trained()] * len(fmts)
        scores += _scores(t, fmts, chosen, trained, seeds, told)
    return tuple(scores)


def _scores(
    t: Task,
    fmts: list[Format],
    chosen: list[Options],
    trained: list[Trained],
    seeds: int,
    progress: Progress,
) -> list[TaskScore]:
    baseline: list[float] = []
    measured: list[list[_Measured]] = [[] for _ in fmts]
    for seed in range(seeds):
        model = fp32_model(t, seed, progress=partial(_of_seeds, progress, t.name, seed, seeds))
        progress(f"{t.name}: training {seeds} models", seed + 1, seeds)
        baseline.append(t.evaluate(model))
        for i, (fmt, options) in enumerate(zip(fmts, chosen, strict=True)):
            measured[i].append(_evaluate(t, model, fmt, options))
            progress(f"{t.name}: evaluating formats", seed * len(fmts) + i + 1, seeds * len(fmts))
    rows = zip(fmts, measured, trained, strict=True)
    return [_score(t, fmt, baseline, runs, own) for fmt, runs, own in rows]


def _evaluate(t: Task, model: nn.Module, fmt: Format, options: Options) -> _Measured:
    def quantizer(x: Tensor, axis: int) -> Tensor:
        return fake_quantize(x, fmt, axis=axis, scale_rule=options.scale_rule)  # type: ignore[no-any-return]

    def limits(x: Tensor, axis: int) -> Any:
        return kernels.limits(widened(x), fmt, axis % x.ndim, options)

    with direct_cast(model, quantizer, limits=limits) as cast:
        value = t.evaluate(model)
    return value, cast


def _score(t: Task, fmt: Format, baseline: list[float], runs: list[_Measured], trained: Trained) -> TaskScore:
    casts = [cast for _, cast in runs]
    parameters = casts[0].cast_parameters * fmt.bits_per_value / 8 + casts[0].other_parameters * 4
    return TaskScore(
        task=t.name,
        metric=t.metric,
        format=str(fmt),
        bits_per_value=fmt.bits_per_value,
        model_bytes=parameters,
        values=tuple(value for value, _ in runs),
        baseline=tuple(baseline),
        weight_qsnr_db=fmean(c.weight_qsnr_db for c in casts),
        activation_qsnr_db=fmean(c.activation_qsnr_db for c in casts),
        saturated_fraction=fmean(c.saturated_fraction for c in casts),
        flushed_fraction=fmean(c.flushed_fraction for c in casts),
        area_memory_proxy=area_memory_proxy(fmt),
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
        resolution=t.resolution,
    )


def _rule_of(fmt: Format, scale_rule: str) -> str:
    """Return the user's rule for formats that choose a power of two, and the default for the others."""
    return scale_rule if kernels.has_scale_rule(fmt) else "floor"


def _of_seeds(
    progress: Progress, name: str, seed: int, seeds: int, what: str, done: float, total: float
) -> None:
    """Report the training of one model as a part of that of all seeds."""
    progress(f"{name}: training {seeds} models", seed + done / total, seeds)


def _silent(what: str, done: float, total: float) -> None:
    """Show nothing."""
