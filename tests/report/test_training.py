"""Tables of training, and that every command judges the same numbers alike."""

import math
import runpy
from dataclasses import replace
from pathlib import Path

import pytest

from fewbits.evidence import paired
from fewbits.records import PrunedModel, PrunedTensor, PruneReport, PruneStage, TrainRun
from fewbits.report import prune_table, tasks_json, tasks_table, train_page, train_table
from fewbits.report.columns.tasks import task_columns
from fewbits.report.columns.training import TRAIN_COLUMNS
from fewbits.report.recipe_runs import grouped
from tests.report import fake
from tests.report.test_json_text import strict
from tests.report.test_table import printed

IMAGE = 100 / 897
BASE = (97.1, 98.2, 97.9, 98.4, 97.5)
PAGE = runpy.run_path(str(Path(__file__).parents[2] / "tools" / "recipes_page.py"))


def runs(recipe: str, values: tuple[float, ...], seeds: range | None = None) -> list[TrainRun]:
    return [
        TrainRun("digits", "accuracy", False, recipe, seed, 10, value, 0.5, 0.01, 16.0, (), IMAGE)
        for seed, value in zip(seeds or range(len(values)), values, strict=True)
    ]


def trained(values: tuple[float, ...]) -> str:
    base = BASE[: len(values)]
    return printed(train_table([*runs("fp32", base), *runs("mxfp6", values)]), 120)


def cast(values: tuple[float, ...]) -> str:
    score = next(s for s in fake.tasks() if s.task == "digits" and s.format == "mxfp4")
    score = replace(score, values=values, baseline=BASE[: len(values)], resolution=IMAGE)
    return printed(tasks_table([score]), 120)


def pruned(values: tuple[float, ...]) -> str:
    stages = (
        PruneStage("dense", "fp32", BASE[: len(values)], 0.0),
        PruneStage("retrained", "fp32", values, 0.0),
    )
    report = PruneReport("2:4", (PrunedTensor("w", (4, 4), 1, 0.5, 0.8),), ())
    seeds = tuple(range(len(values)))
    model = PrunedModel("digits", "accuracy", False, "frozen", 10, seeds, stages, report, (), IMAGE)
    return printed(prune_table(model), 120)


@pytest.mark.parametrize(
    ("flips", "marked"),
    [
        ((-3, -1, -2, -5, -5), True),
        ((1, 1), False),
        ((-1, -1), False),
        ((9, -8, 7), False),
        ((40, 41, 39), True),
    ],
)
def test_every_command_and_the_page_of_recipes_judge_alike(flips: tuple[int, ...], marked: bool) -> None:
    values = tuple(b + k * IMAGE for b, k in zip(BASE, flips, strict=False))
    for text in (cast(values), trained(values), pruned(values)):
        rows = text.replace("* marks", "")
        assert ("*" in rows) == marked
        assert f"paired over {len(flips)} seeds" in " ".join(text.split())
    said = PAGE["_said"]("mxfp6", PAGE["_evidence"](runs("mxfp6", values), runs("fp32", BASE[: len(values)])))
    assert (said != "no evidence") == marked


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_what_broke_as_its_baseline_did_differs_by_nothing_in_every_form(broken: float) -> None:
    score = replace(fake.tasks()[0], format="mxfp4", values=(broken,) * 3, baseline=(broken,) * 3)
    score = replace(score, trained=(broken,) * 3, trained_baseline=(broken,) * 3)
    assert score.difference == score.trained_difference == score.evidence.mean == 0
    found = strict(tasks_json([score], fake.PROVENANCE))["scores"][0]
    assert found["difference"] == found["trained_difference"] == found["evidence"]["mean"] == 0
    assert [c.text(score) for c in task_columns([score]) if "FP32" in c.title] == ["0", "0"]
    stages = (PruneStage("dense", "fp32", (broken,), 0.0), PruneStage("pruned", "fp32", (broken,), 0.0))
    model = PrunedModel("m", "nll", True, "frozen", 1, (0,), stages, PruneReport("2:4", (), ()), ())
    assert model.differences == (0, 0)


def test_one_seed_claims_nothing_and_prints_no_interval() -> None:
    for text in (cast((90.0,)), trained((90.0,)), pruned((90.0,))):
        assert "One seed ran, and no difference here is evidence. Use --seeds 5." in " ".join(text.split())
        assert "*" not in text
        assert "nan" not in text.lower()


def row(runs_of: list[TrainRun]) -> list[str]:
    lines = [line.split() for line in printed(train_table(runs_of), 120).splitlines()]
    (found,) = [line for line in lines if line[:1] == ["mxfp6"]]
    return found


def test_runs_are_paired_by_their_seed_and_not_by_their_order() -> None:
    mine = runs("mxfp6", tuple(b - 1 for b in reversed(BASE)), range(4, -1, -1))
    flips = paired([0.0] * 5, [1.0] * 5, IMAGE)  # all differ by one point
    assert row([*runs("fp32", BASE), *mine])[2:4] == ["-1.0000*", f"{flips.margin:.4f}"]
    assert row([*runs("fp32", (97.0,), range(7, 8)), *runs("mxfp6", BASE)])[2:4] == ["-", "-"]


def test_the_page_sorts_recipes_by_the_means_that_it_shows() -> None:
    first, other = runs("fp32", BASE[:2]), runs("mxfp6", BASE[:2])
    first = [replace(r, final_loss=x, seconds_per_step=x) for r, x in zip(first, (0.5, 0.9), strict=True)]
    other = [replace(r, final_loss=x, seconds_per_step=x) for r, x in zip(other, (0.6, 0.7), strict=True)]
    rows = grouped([*other, *first])
    for title, shown in (("final loss", ["0.6500", "0.7000"]), ("ms per step", ["650.0", "700.0"])):
        column = next(c for c in TRAIN_COLUMNS if c.title == title)
        assert [column.text(r) for r in rows] == shown
        assert [column.order(r) for r in rows] == pytest.approx([0.65, 0.7])


def test_the_page_says_what_travelled_as_the_terminal_does() -> None:
    sent = {"processes": 2, "codec": "mxfp4", "bytes_sent": 0.5e6, "bytes_wide": 4e6}
    made = [replace(r, **sent) for r in runs("mxfp6", BASE)]
    said = (
        "mxfp6: 2 processes, mxfp4: each sent 0.500 MB in a step, 4.000 MB as the values are: 8.0 times fewer"
    )
    assert " ".join(printed(train_table(made), 200).split()).count(said) == 1
    assert train_page(made, fake.PROVENANCE).count(said) == 1
    assert "each sent" not in train_page(runs("mxfp6", BASE), fake.PROVENANCE)
