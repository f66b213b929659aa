"""Train a task model, prune it and retrain it, and measure the metric at each stage."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import fmean

from torch import Tensor, nn

from fewbits.compare.sparse_products import sparse_products
from fewbits.compare.whole_numbers import check_whole
from fewbits.errors import ArgumentError
from fewbits.formats import Format, Pattern, parse
from fewbits.recipes import Recipe
from fewbits.recipes import recipe as read
from fewbits.records import PrunedModel, PruneReport, PruneStage
from fewbits.sparsity import SR_STE, Frozen, Gradual, Recomputed, Schedule, remove_masks, sparsify
from fewbits.train import Task, recipe_trainer, seeded
from fewbits.typing import Progress

Weights = Mapping[str, Tensor]


@dataclass(frozen=True)
class Retraining:
    """A pruning schedule for the steps of a retraining, and its starting weights."""

    schedule: Callable[[int], Schedule]
    from_scratch: bool = False  # from initial weights, not from trained ones


RETRAININGS = {
    "frozen": Retraining(lambda steps: Frozen()),
    "recomputed": Retraining(lambda steps: Recomputed(every=max(1, steps // 40))),
    "gradual": Retraining(lambda steps: Gradual(max(1, steps // 2), every=max(1, steps // 40))),
    "sr_ste": Retraining(lambda steps: SR_STE, from_scratch=True),
}


def prune_task(
    task: Task,
    pattern: str | Pattern,
    *,
    recipes: Sequence[str] = ("fp32",),
    schedule: str = "frozen",
    seeds: int = 1,
    steps: int = 0,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    transposable: str | None = None,
    start: Weights | None = None,
    control: bool = False,
    format: str | Format | None = None,
    progress: Progress | None = None,
) -> tuple[PrunedModel, Weights]:
    """Train a dense model for each seed, prune it, and train it again by each recipe.

    Retraining repeats the dense training: the same hyperparameters, batches and number of steps, with a new
    optimizer.

    Args:
        task: what to train, and how.
        pattern: ``N:M``, such as ``2:4``.
        recipes: those for retraining; empty for pruning alone.
        schedule: a key of :data:`RETRAININGS`.
        seeds: of the initial weights: 0, 1, ...
        steps: of each training; 0: as many as the task says.
        include: name patterns of the modules to prune; empty for all.
        exclude: patterns of modules to leave dense.
        transposable: as in :func:`fewbits.sparsity.sparsify`.
        start: weights of a dense model, instead of training one.
        control: also retrain each dense model without pruning, to measure the effect of retraining alone.
        format: the format of values for measuring sizes and products; None for no measurement.
        progress: called as work goes on.

    Returns:
        The record, and the weights of seed 0 and the last recipe; without recipes, those that were pruned.

    Raises:
        ArgumentError: no such recipe or schedule, a schedule without recipes, nothing to prune, weights of
            another model, no seeds, steps below 0, or several seeds with ``start``.
    """
    if schedule not in RETRAININGS:
        raise ArgumentError(f"schedule={schedule!r} is unknown; expected one of {', '.join(RETRAININGS)}")
    if schedule != "frozen" and not recipes:
        raise ArgumentError(
            f"schedule={schedule!r} says when masks are made in retraining, and without a recipe there is"
            " none; give a recipe, or leave the schedule out"
        )
    check_whole("seeds", seeds)
    check_whole("steps", steps, least=0)
    if start is not None and seeds > 1:
        raise ArgumentError(
            f"seeds={str(seeds)!r} beside weights to start from: models of several seeds differ by their"
            " initial weights, and these are given; take one seed, or train the dense models"
        )
    chosen, steps = [read(name) for name in recipes], steps or task.hyper.steps
    how, trainings = RETRAININGS[schedule], seeds * (len(recipes) + (start is None) + control)
    measured, done = None if format is None else parse(format), 0
    prune = partial(
        sparsify, pattern=pattern, include=include or "*", exclude=exclude, transposable=transposable
    )
    prune(task.create(0))  # raises errors before hours of work

    def trained(recipe: Recipe, seed: int, begin: Callable[[nn.Module], object] | None) -> _Trained:
        nonlocal done

        def advance(part: float) -> None:
            if progress is not None:
                progress(f"{task.name}: training", done + part, trainings)

        result = _train(task, recipe, seed, steps, begin, advance)
        done += 1
        return result

    def sparse(model: nn.Module, weights: Weights | None, made: Schedule) -> PruneReport:
        if weights is not None:
            _load(model, weights)
        return prune(model, schedule=made)

    rows: list[list[_Trained]] = []  # one for each seed, in the order of the stages
    reports = []
    for seed in range(seeds):
        dense = trained(read("fp32"), seed, None) if start is None else _given(task, seed, start)
        pruned = task.create(seed)
        reports.append(sparse(pruned, dense.weights, Frozen()))
        remove_masks(pruned)
        rows.append([dense, _Trained(task.evaluate(pruned.eval()), pruned.state_dict())])
        if control:
            rows[-1].append(trained(read("fp32"), seed, partial(_load, weights=dense.weights)))
        for recipe in chosen:
            begin = partial(
                sparse, weights=None if how.from_scratch else dense.weights, made=how.schedule(steps)
            )
            rows[-1].append(trained(recipe, seed, begin))
    stages = [("dense", "fp32"), ("pruned", "fp32"), *[("dense again", "fp32")] * control]
    stages += [("from scratch" if how.from_scratch else "retrained", r.name) for r in chosen]
    weights = rows[0][-1 if chosen else 1].weights
    record = PrunedModel(
        model=task.name,
        metric=task.metric,
        lower_is_better=task.lower_is_better,
        schedule=schedule,
        steps=steps if trainings else 0,
        seeds=tuple(range(seeds)),
        stages=tuple(
            PruneStage(*names, tuple(r.value for r in column), fmean(r.flip_rate for r in column))
            for names, column in zip(stages, zip(*rows, strict=True), strict=True)
        ),
        report=reports[0],
        products=() if measured is None else sparse_products(weights, reports[0], measured),
        resolution=task.resolution,
    )
    return record, weights


@dataclass(frozen=True)
class _Trained:
    value: float
    weights: Weights
    flip_rate: float = 0.0  # mean over steps


def _train(
    task: Task,
    recipe: Recipe,
    seed: int,
    steps: int,
    begin: Callable[[nn.Module], object] | None,
    advance: Callable[[float], None],
) -> _Trained:
    with seeded(task, seed):
        trainer = recipe_trainer(task, recipe, seed=seed, steps=steps, observe_every=steps, begin=begin)
        flips = 0.0
        for step in trainer:
            flips += getattr(trainer.optimizer, "flip_rate", 0.0)
            advance(step.step / steps)
        value = trainer.evaluate()
        if hasattr(trainer.model, "fewbits_sparsity"):
            remove_masks(trainer.model)
        return _Trained(value, trainer.plain_model().state_dict(), flips / steps)


def _given(task: Task, seed: int, weights: Weights) -> _Trained:
    model = task.create(seed)
    _load(model, weights)
    return _Trained(task.evaluate(model.eval()), model.state_dict())


def _load(model: nn.Module, weights: Weights) -> None:
    try:
        model.load_state_dict(dict(weights))
    except RuntimeError as error:
        raise ArgumentError(
            f"the weights are not those of this task's model: {str(error).splitlines()[-1].strip()}"
        ) from None
