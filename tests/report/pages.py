"""Every page, of records that look like real ones, and with names as long as they come."""

import math
from dataclasses import replace

from fewbits.records import Provenance, PrunedModel, SolveScore, Stage, TaskScore, TrainRun
from fewbits.report import (
    benchmark_page,
    checkpoint_page,
    choice_page,
    codecs_page,
    explore_page,
    matrices_page,
    plan_page,
    profile_page,
    prune_page,
    scale_page,
    solve_page,
    tasks_page,
    train_page,
)
from tests.report import benchmark, exploring, fake, planning, profiling, scaling
from tests.report.test_pruning import PRODUCTS, REPORT
from tests.report.test_pruning import model as pruned

ORIGIN = Provenance("fewbits solve " + "a/very/long/path/" * 9, (("python", "3"),), (0,))
FIRST = "fp64", "fp32", "tf32", "fp16", "bf16", "bf16x2", "bf16x3", "int8x2", "int8x3", "dsgesv"
PRECISIONS = (*FIRST, *(f"{name}-classical" for name in FIRST))


def solved() -> list[SolveScore]:
    """Twenty precisions, as of `fewbits solve --compare`; the second leaves a stage, two have one history."""
    scores = []
    for i, name in enumerate(PRECISIONS):
        history = tuple(10.0 ** (-2 - (1 + i % 10) * k / 3 - i / 7) for k in range(3 + i % 10))
        if i == 7:
            history = scores[6].stages[0].history
        stages = (Stage(name, "LU", len(history), 0, 0.1, 0.1, "", history),)
        if i == 1:
            left = Stage(
                "bf16", "LU", -50, 8, 0.5, 0.25, "GMRES stagnated after a while", (1e-3, 1e-4, math.nan)
            )
            stages = (left, *stages)
        scores.append(
            SolveScore("A", 150, name, stages, 3, 1e-16, 1e3, 0.1, 0.5, 1e-15, "|b - A x| / (|A| |x|)")
        )
    return scores


def long_names() -> PrunedModel:
    """A pruned model whose tensors are named as those of large models are."""
    names = [
        f"model.language_model.layers.{i}.block_sparse_moe.experts.{i}.down_proj.weight" for i in (3, 17)
    ]
    tensors = tuple(replace(t, tensor=name) for t, name in zip(REPORT.pruned, names, strict=True))
    return replace(pruned(products=PRODUCTS), report=replace(REPORT, pruned=tensors))


def long_formats() -> list[TaskScore]:
    """Scores of models cast to formats and trained in them, two of which have long names."""
    names = {"mx9": "block(element=float(e=2,m=1),scale=e8m0,size=32)", "fp8_e4m3": "fp8_e4m3_tensor"}
    return [replace(s, format=names.get(s.format, s.format)) for s in fake.tasks(train=True)]


def trained(seeds: int = 3) -> list[TrainRun]:
    """Runs of recipes; one is better than FP32, one broke."""
    recipes = {
        "fp32": 0.0, "mxfp6": -0.4, "fp16-master": -0.03, "hybrid-fp8-stochastic": -2.5, "muppet": 0.2,
        "mxfp6:gradient=mxfp8_e5m2/rceil,activation=mxfp8_e4m3": -1.1,
    }  # fmt: skip
    runs = []
    for i, (name, loss) in enumerate(recipes.items()):
        for seed in range(seeds):
            noise = math.sin(7.0 * seed + i)
            losses = tuple(2.4 * math.exp(-k / 30) + 0.02 * i + 0.01 * noise + 0.02 for k in range(100))
            runs.append(
                TrainRun(
                    "digits", "accuracy", False, name, seed, 400, 97.5 + loss + 0.1 * noise, losses[-1],
                    0.01 * (1 + i), 16.0 - 2 * i, ("the loss scale fell below 1",) if i == 3 else (),
                    100 / 897, losses, 4,
                )
            )  # fmt: skip
    return runs


PAGES = {
    "tasks": lambda: tasks_page(fake.tasks(), fake.PROVENANCE),
    "checkpoint": lambda: checkpoint_page(fake.checkpoint(), fake.PROVENANCE),
    "tasks trained": lambda: tasks_page(long_formats(), fake.PROVENANCE),
    "codecs": lambda: codecs_page([scaling.comparison()], fake.PROVENANCE),
    "explore": lambda: explore_page(exploring.exploration(), ORIGIN),
    "choice": lambda: choice_page(exploring.choice(), ORIGIN),
    "scale": lambda: scale_page(scaling.prediction(), ORIGIN),
    "plan": lambda: plan_page(planning.record(), ORIGIN),
    "profile": lambda: profile_page([profiling.record()], ORIGIN),
    "profile two": lambda: profile_page(profiling.beside(), ORIGIN),
    "matrices": lambda: matrices_page(fake.matrices(), fake.PROVENANCE),
    "solve": lambda: solve_page(solved(), ORIGIN),
    "train": lambda: train_page(trained(), ORIGIN),
    "train one": lambda: train_page(trained(seeds=1)[1:2], ORIGIN),
    "benchmark": lambda: benchmark_page(
        benchmark.report(("mxfp6", "mxfp6:gradient=mxfp8_e5m2/rceil,activation=mxfp8_e4m3"), failed=2), ORIGIN
    ),
    "prune": lambda: prune_page([long_names()], ORIGIN),
    "prune checkpoint": lambda: prune_page([replace(long_names(), stages=())], ORIGIN),
}
