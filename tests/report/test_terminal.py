"""Tables in 80 columns: no line is longer, nothing is cut, and no name is broken inside a word."""

import re
from dataclasses import replace
from typing import Any

import pytest
from rich.console import RenderableType
from rich.table import Table

from fewbits import report
from fewbits.formats import CATALOGUE
from fewbits.recipes import RECIPES
from fewbits.records import (
    CastFormat,
    CastReport,
    CheckpointReport,
    InspectedTensor,
    InspectReport,
    PrunedModel,
    PrunedProduct,
    PruneStage,
    QuantizedLayer,
    QuantizeReport,
    SolveScore,
    Stage,
    TrainRun,
)
from fewbits.report import (
    benchmark_table,
    cast_table,
    checkpoint_table,
    choice_table,
    codecs_table,
    explore_table,
    history_plot,
    inspect_table,
    logs_table,
    matrices_table,
    plan_table,
    profile_table,
    prune_table,
    quantize_table,
    recipe_table,
    recipes_table,
    scale_table,
    solve_table,
    stages_table,
    tasks_table,
    train_table,
)
from fewbits.report.quantities import pieces
from fewbits.report.terminal.formats import catalogue_table
from tests.report import benchmark, exploring, fake, planning, profiling, scaling
from tests.report.test_pruning import REPORT
from tests.report.test_table import printed

FORMAT = max(CATALOGUE, key=len)
RECIPE = max(RECIPES, key=len)
TENSOR = "model.language_model.layers.17.block_sparse_moe.experts.17.down_proj.weight"
NAMES = (FORMAT, RECIPE, TENSOR)
PRECISION = "bf16x3_classical_gmres"


def checkpoint() -> CheckpointReport:
    report = fake.checkpoint()
    formats = {"mxfp8_e4m3": FORMAT}
    first = report.tensors[2].tensor
    return replace(
        report,
        tensors=tuple(
            replace(t, tensor=TENSOR if t.tensor == first else t.tensor, proposed=t.proposed and FORMAT)
            for t in report.tensors
        ),
        scores=tuple(
            replace(
                s, tensor=TENSOR if s.tensor == first else s.tensor, format=formats.get(s.format, s.format)
            )
            for s in report.scores
        ),
    )


def pruned() -> PrunedModel:
    report = replace(REPORT, pruned=tuple(replace(t, tensor=TENSOR) for t in REPORT.pruned))
    stages = (
        PruneStage("dense", "fp32", (96.0, 97.0), 0.0),
        PruneStage("from scratch", RECIPE, (96.5, 97.0), 0.0123),
    )
    products = (PrunedProduct(TENSOR, FORMAT, 2048, 1280, 12.5e-6, 8.25e-6),)
    return PrunedModel("digits", "accuracy", False, "recomputed", 60, (0, 1), stages, report, products)


def solved() -> list[SolveScore]:
    stages = (
        Stage("bf16", "Cholesky", -50, 8, 0.5, 0.25, "GMRES stagnated after a while", (1e-3, 1e-4)),
        Stage(PRECISION, "Cholesky", 3, 20, 0.5, 0.25, "", (1e-3, 1e-9, 1e-17)),
    )
    measure = "max |b - A x| / (|A| |x| + |b|)"
    return [SolveScore("matrix.mtx", 150, PRECISION, stages, 3, 1e-16, 1e13, 1.25, 12.5, 1e-15, measure)]


def runs() -> list[TrainRun]:
    return [
        TrainRun("digits", "accuracy", False, name, seed, 400, 97.5 - i, 0.02, 0.01, 16.0, ("it broke",))
        for i, name in enumerate(("fp32", RECIPE))
        for seed in (0, 1)
    ]


CAST = CastReport(
    "a/checkpoint/model.safetensors", "narrow.safetensors", False, "floor",
    (
        CastFormat(FORMAT, 12, 1 << 30, 1 << 28, 31.0, TENSOR, 18.5),
        CastFormat(None, 3, 9, 9, 0.0, None, 0.0),
    ), (),
)  # fmt: skip
INSPECT = InspectReport(
    "model.safetensors", (InspectedTensor(TENSOR, (32000, 4096), "BF16", FORMAT, 1 << 26, "2:4"),), ()
)
CODECS, SCALE, PLAN = scaling.comparison(), scaling.prediction(), planning.record()
SPACE, CHOICE = exploring.exploration(), exploring.choice()


def named(record: Any) -> Any:
    """Return the record with the longest name of a format for a codec of blocks."""
    return replace(record, codec=record.codec.replace("mxfp8_e4m3", FORMAT))


QUANTIZED = QuantizeReport(
    "gptq", "searched", "floor", FORMAT, (
        QuantizedLayer(TENSOR, (4096, 11008), FORMAT, 4096, 0.0123, 0.0098, 32, TENSOR, ""),
        QuantizedLayer(TENSOR + ".2", (4096, 11008), None, 0, 0.0, 0.0, 0, None, "no input reached it"),
    ),
)  # fmt: skip
TABLES = {
    "tasks": tasks_table([replace(s, format=FORMAT) for s in fake.tasks()]),
    "tasks trained": tasks_table([replace(s, format=FORMAT) for s in fake.tasks(train=True)]),
    "checkpoint": checkpoint_table(checkpoint(), largest=60),
    "matrices": matrices_table([replace(s, format=FORMAT) for s in fake.matrices()]),
    "prune": prune_table(pruned()),
    "prune checkpoint": prune_table(replace(pruned(), stages=())),
    "train": train_table(runs()),
    "benchmark": benchmark_table(benchmark.report((RECIPE,), failed=1)),
    "logs": logs_table([replace(c, folder=f"measured/logs/{RECIPE}") for c in benchmark.CHECKS]),
    "recipes": recipes_table(
        [(name, "weights mxfp4, activations mxfp4", "A paper, 2024") for name in RECIPES]
    ),
    "recipe": recipe_table([("recipe", RECIPE), ("what is narrow", "weights")], [("first_moment", FORMAT)]),
    "solve": solve_table(solved()),
    "stages": stages_table(solved()),
    "history": history_plot(solved()[0]),
    "plan": plan_table(
        replace(PLAN, layers=(replace(PLAN.layers[0], name=TENSOR, format=FORMAT), *PLAN.layers[1:]))
    ),
    "profile": profile_table([profiling.record(RECIPE)]),
    "profile beside": profile_table([profiling.record(RECIPE), profiling.record()]),
    "cast": cast_table(CAST),
    "quantize": quantize_table(QUANTIZED),
    "codecs": codecs_table([replace(CODECS, scores=tuple(map(named, CODECS.scores)))]),
    "scale": scale_table(
        replace(SCALE, steps=tuple(map(named, SCALE.steps)), limits=tuple(map(named, SCALE.limits)))
    ),
    "explore": explore_table(
        replace(
            SPACE,
            formats=tuple(replace(f, format=FORMAT) for f in SPACE.formats),
            placed=tuple(replace(p, format=replace(p.format, format=FORMAT)) for p in SPACE.placed),
        )
    ),
    "choice": choice_table(
        replace(
            CHOICE,
            finalists=tuple(replace(f, format=replace(f.format, format=FORMAT)) for f in CHOICE.finalists),
        )
    ),
    "inspect": inspect_table(INSPECT),
    "formats": catalogue_table(
        [(name, 4.25, 57344.0, "what it is in a sentence of some words", "a paper") for name in CATALOGUE]
    ),
}


def test_every_table_is_among_them() -> None:
    tables = {name.rpartition("_")[0] for name in report.__all__ if name.endswith(("_table", "_plot"))}
    assert tables | {"formats"} == {name.split()[0] for name in TABLES}


def broken(text: str) -> list[str]:
    """Return the parts of names that lie on two lines; a header may be broken after an underscore."""
    flat = re.sub(r"\s+", "", text)
    shown = [name for name in (*NAMES, PRECISION) if name in flat or name[:8] in text]
    return [piece for name in shown for piece in pieces(name) if piece.strip() not in text]


@pytest.mark.parametrize("name", TABLES)
def test_no_name_is_broken_inside_a_word(name: str) -> None:
    text = printed(TABLES[name], 80)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= 80
    assert broken(text) == []


def test_the_longest_names_are_on_one_line_wherever_they_are_shown() -> None:
    assert len(FORMAT) >= len("fp8_e4m3_tensor")
    for name in (
        "tasks",
        "tasks trained",
        "matrices",
        "prune",
        "cast",
        "inspect",
        "explore",
        "choice",
        "formats",
    ):
        assert FORMAT in printed(TABLES[name], 80), name
    for name in ("train", "recipes", "prune"):
        assert RECIPE in printed(TABLES[name], 80), name


def test_a_table_that_folds_anywhere_is_caught() -> None:
    table: RenderableType = Table()
    table.add_column("format", overflow="fold", width=9)
    table.add_row(FORMAT)
    assert broken(printed(table, 80)) == [FORMAT]


@pytest.mark.parametrize("width", [60, 80])
def test_a_format_wider_than_the_terminal_leaves_rows_their_values(width: int) -> None:
    report, written = (
        fake.checkpoint(),
        "block(element=float(e=2,m=1,bias=1,special=none),scale=fp32,size=32)",
    )
    first = report.scores[0].format
    scores = tuple(replace(s, format=written if s.format == first else s.format) for s in report.scores)
    proposed = tuple(replace(t, proposed=written if t.proposed else None) for t in report.tensors)
    text = printed(checkpoint_table(replace(report, scores=scores, tensors=proposed), largest=3), width)
    assert all(piece in text for piece in pieces(written))
    tables = [part.split("\n\n")[0].splitlines() for part in re.split("─+\n", text)[1:]]
    assert len(tables) > 1
    for rows in tables:
        assert all(re.search(r"\w", row) for row in rows[:1]), text
        assert any(re.search(r"\d\d\.\d", row) for row in rows), text


def test_columns_without_room_are_named_and_the_important_ones_stay() -> None:
    text = printed(TABLES["tasks trained"], 80)
    assert "No room here for: saturated (%), flushed (%)" in text
    assert "minus" in text
    assert "No room" not in printed(TABLES["tasks trained"], 160)
