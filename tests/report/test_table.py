import io
import math
import re
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console, RenderableType

from fewbits.report import checkpoint_table, matrices_table, recipe_table, recipes_table, tasks_table
from fewbits.report.quantities import decibels
from fewbits.report.tensor_kinds import by_kind
from fewbits.report.terminal.formats import catalogue_table
from tests.report import fake

LONG = "block(element=float(e=2,m=1),scale=e8m0,size=32)"


def printed(renderable: RenderableType, width: int = 80, *, colour: bool = False) -> str:
    console = Console(
        file=io.StringIO(), width=width, force_terminal=colour, color_system="standard" if colour else None
    )
    console.print(renderable)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize(
    "table",
    [
        tasks_table(fake.tasks()),
        tasks_table(fake.tasks(train=True)),
        checkpoint_table(fake.checkpoint()),
        matrices_table(fake.matrices()),
    ],
    ids=["tasks", "trained", "checkpoint", "matrices"],
)
def test_tables_fit_the_terminal_without_cutting_a_word(table: RenderableType, width: int) -> None:
    text = printed(table, width)
    assert "…" not in text
    assert max(len(line) for line in text.splitlines()) <= width


@pytest.mark.parametrize("width", [12, 20, 30, 40])
@pytest.mark.parametrize("name", ["tasks", "checkpoint", "matrices"])
def test_no_terminal_is_so_narrow_that_a_number_is_cut(name: str, width: int) -> None:
    records: Any = {"tasks": fake.tasks()[:14], "matrices": fake.matrices(), "checkpoint": fake.checkpoint(1)}
    table: Any = {"tasks": tasks_table, "matrices": matrices_table, "checkpoint": checkpoint_table}[name]
    whole, shown = (printed(table(records[name]), w) for w in (250, width))
    number = r"(?<![\w.*+-])[-+]?\d+(?:\.\d+)?(?:e[-+]\d+)?(?: [KMG]?i?B)?(?![\w.])"
    cells = {
        found
        for part in shown.split("\u2500\n")[1:]
        for line in part.split("\n\n")[0].split("No room")[0].splitlines()
        for found in re.findall(number, line)
    }
    assert cells
    assert cells <= set(re.findall(number, whole))
    assert "No room here for" in " ".join(shown.split())


@pytest.mark.parametrize("width", [24, 40, 80])
def test_catalogues_fold_what_has_no_room_and_cut_nothing(width: int) -> None:
    rows = [("block(element=float(e=2,m=1),scale=e8m0,size=32)", 17.33, 3.40282e38, "what_it_is" * 4, "")]
    recipe = [("a-recipe-with-a-name", "block(element=fp8_e4m3,scale=e8m0,size=tensor)/rceil", "A source")]
    for table, cells in (
        (catalogue_table(rows), (rows[0][0], "17.33", "3.40282e+38", rows[0][3])),
        (recipes_table(recipe), recipe[0][:2]),
        (recipe_table([], [recipe[0][:2]]), recipe[0][:2]),
    ):
        lines = [
            re.split("[\u2502\u2503]", line.strip("\u2502\u2503"))
            for line in printed(table, width).splitlines()
        ]
        columns = zip(*(line for line in lines if len(line) > 1), strict=True)
        whole = ["".join(part.strip() for part in column) for column in columns]
        for cell in cells:
            assert any(cell in text for text in whole)


def test_a_task_shows_fp32_first_the_proxy_by_name_and_every_format_on_one_line() -> None:
    lines = printed(tasks_table(fake.tasks())).splitlines()
    rows = [line.split()[0] for line in lines if re.match(r"[a-z0-9_]+ +\d+\.\d\d ", line)]
    assert rows[0] == "fp32"
    assert set(rows) == {name for name, *_ in fake.FORMATS}
    assert len(rows) == 28
    assert any(line.endswith("proxy") for line in lines)


def test_differences_that_are_evidence_carry_an_asterisk_and_a_line_explains_it() -> None:
    scores = fake.tasks()
    base = scores[9].baseline
    scores[9] = replace(scores[9], values=(base[0] + 0.004, base[1] - 0.003, base[2] + 0.002))
    text = printed(tasks_table(scores))
    assert "+0.0644*" in text
    assert "+0.0010 " in text
    said = " ".join(text.split())
    assert "* marks a difference whose 95 % interval, paired over 3 seeds, leaves zero out;" in said
    assert "Seeds that others would take, if they go on so: mxfp6_e2m3 53." in said


def test_with_one_seed_nothing_is_marked() -> None:
    text = printed(tasks_table(fake.tasks(1)))
    assert "*" not in text
    assert "One seed ran" in text


def test_worse_is_red_and_better_is_green() -> None:
    scores = fake.tasks()[:2]
    better = replace(scores[1], values=(1.0, 1.0, 1.0))
    worse = replace(scores[1], values=(math.nan, 2.0, 2.0))
    assert "\x1b[32m" in printed(tasks_table([scores[0], better]), colour=True)
    assert "\x1b[31m" in printed(tasks_table([scores[0], worse]), colour=True)
    assert "NaN*" in printed(tasks_table([worse]))


def test_a_loss_of_thirty_digits_leaves_the_other_columns_their_room() -> None:
    scores = [replace(s, values=(1.8e30, 1.9e30, 2e30), baseline=(1.7e30,) * 3) for s in fake.tasks()[:2]]
    shown = printed(tasks_table(scores))
    assert {"fp32", "bf16", "1.900e+30", "+2.000e+29", "51.2"} <= set(shown.split())
    assert "it may lose up to 4.484e+29 nats/byte" in " ".join(shown.split())


def test_a_long_format_folds_at_80_columns_and_fits_at_120() -> None:
    scores = [replace(fake.tasks()[0], format=LONG)]
    assert LONG in printed(tasks_table(scores), 120)
    folded = "".join(
        line.split()[0] for line in printed(tasks_table(scores), 80).splitlines()[5:] if line.strip()
    )
    assert folded.startswith(LONG)


def test_a_checkpoint_shows_its_largest_tensors_and_counts_the_others() -> None:
    report = fake.checkpoint()
    text = printed(checkpoint_table(report, largest=10), 200)
    assert "The whole checkpoint would weigh 361 MiB instead of 938 MiB, 2.60 times less." in text
    assert "The 10 largest kinds are shown, 8 smaller are left out; --json has all." in text
    assert "lm_head.weight" in text
    assert "input_layernorm" not in text
    one = printed(checkpoint_table(report, largest=17), 200)
    assert "1 smaller is left out" in one
    assert "left out" not in printed(checkpoint_table(report, largest=18), 200)


def test_the_mean_qsnr_below_the_kinds_is_that_of_all_tensors() -> None:
    report = fake.checkpoint()
    said, merged = (decibels(r.weight_qsnr_db) for r in (report, by_kind(report)))
    assert said != merged
    text = " ".join(printed(checkpoint_table(report), 200).split())
    assert f"The mean QSNR of its tensors is then {said} dB." in text


def test_a_wide_terminal_gets_one_table_and_a_narrow_one_all_columns_in_several() -> None:
    report = fake.checkpoint(1)
    wide, narrow = printed(checkpoint_table(report), 220), printed(checkpoint_table(report), 80)
    assert wide.count("model.safetensors") == 1
    assert narrow.count("QSNR in each format") == 2
    for text in (wide, narrow):
        assert all(qsnr in text for qsnr in ("69.3", "15.1", "exact"))  # fp16, mx4, bf16 of the first tensor
        assert "keep" in text


def test_one_long_name_does_not_give_each_format_a_table_of_its_own() -> None:
    report = fake.checkpoint(1)
    long = replace(report.tensors[0], tensor="very_long_name_" * 20)
    shown = printed(checkpoint_table(replace(report, tensors=(long, *report.tensors[1:]))), 80)
    assert shown.count("QSNR in each format") == 2 < len(fake.FORMATS)


def test_a_matrix_shows_its_condition_and_notes_below() -> None:
    text = printed(matrices_table(fake.matrices()))
    assert "bcsstk14.mtx  condition in FP64: 1.19e+10" in text
    assert "singular" in text
    assert "fp16: largest entry beyond the format" in text


def test_a_hostile_name_is_printed_and_not_obeyed() -> None:
    name = "[red]x[/red]\x1b[2J\n"
    report = fake.checkpoint(1)
    report = replace(report, path=name, tensors=(replace(report.tensors[0], tensor=name),))
    text = printed(checkpoint_table(report), 250, colour=True)
    assert r"[red]x[/red]\x1b[2J\n" in text
    assert "\x1b[2J" not in text


def test_training_has_a_column_where_it_was_measured_only() -> None:
    assert "trained" not in printed(tasks_table(fake.tasks()), 120)
    text = printed(tasks_table(fake.tasks(train=True)), 120)
    assert "trained" in text
    assert "+0.0960*" in text  # mx4, half of what the cast costs and beyond the spread
    broken = [replace(s, trained=(math.nan,) * 3) for s in fake.tasks(train=True)[:14]]
    assert "NaN*" in printed(tasks_table(broken), 120)


@pytest.mark.parametrize("width", [30, 40, 60])
def test_numbers_are_whole_on_a_narrow_terminal_and_names_are_broken_instead(width: int) -> None:
    text = printed(checkpoint_table(fake.checkpoint()), width)
    assert max(len(line) for line in text.splitlines()) <= width
    assert "51.6 MiB" in text
    assert "3.91 MiB" in text
    assert not re.search(r" [KMG]i?$", text, re.MULTILINE)
