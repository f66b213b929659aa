"""Tables and pages about pruned models."""

import json
from io import StringIO
from typing import Any

from rich.console import Console

from fewbits.records import Provenance, PrunedModel, PrunedProduct, PrunedTensor, PruneReport, PruneStage
from fewbits.report import prune_json, prune_page, prune_table

STAGES = (
    PruneStage("dense", "fp32", (96.0, 97.0), 0.0),
    PruneStage("pruned", "fp32", (91.0, 94.0), 0.0),
    PruneStage("retrained", "mxint8", (96.5, 97.0), 0.0123),
)
REPORT = PruneReport(
    "2:4",
    (
        PrunedTensor("a\x1b[31m.w", (8, 64), 1, 0.5, 0.745),
        PrunedTensor("b.w", (4, 4), 1, 0.25, 0.9),
    ),
    (("c.w", "axis 1 of (8, 1, 3, 3) is no multiple of 4"),),
)
PRODUCTS = (PrunedProduct("b.w", "bf16", 2048, 1280, 12.5e-6, 8.25e-6),)
ORIGIN = Provenance("fewbits prune", (("python", "3"),), (0, 1))


def model(stages: Any = STAGES, products: Any = ()) -> PrunedModel:
    return PrunedModel("digits", "accuracy", False, "frozen", 60, (0, 1), stages, REPORT, products)


def printed(table: Any, width: int = 120) -> str:
    console = Console(width=width, record=True, file=StringIO())
    console.print(table)
    return console.export_text()


def row(text: str, name: str) -> list[str]:
    (line,) = (line for line in text.splitlines() if line.strip().startswith(name))
    return line.split()


def test_a_stage_is_a_row_with_its_difference_from_dense() -> None:
    text = printed(prune_table(model()))
    assert row(text, "dense") == ["dense", "fp32", "96.50", "0", "0.00", "0"]
    assert row(text, "pruned  ") == ["pruned", "fp32", "92.50", "-4.00", "12.71", "0"]
    assert row(text, "retrained") == ["retrained", "mxint8", "96.75", "+0.25", "3.18", "1.23"]
    assert "*" not in text.replace("* marks", "")
    told = "Seeds that others would take, if they go on so: pruned fp32 3, retrained mxint8 11."
    assert told in " ".join(printed(prune_table(model()), 200).split())


def test_a_tensor_is_a_row_and_names_are_visible() -> None:
    text = printed(prune_table(model()))
    assert row(text, "a\\x1b[31m.w") == ["a\\x1b[31m.w", "8x64", "1", "50.0", "74.5"]
    assert "left alone: c.w, axis 1 of (8, 1, 3, 3) is no multiple of 4" in text
    assert "2 tensors, 528 values, 49.2 % of them kept" in text


def test_products_are_shown_where_they_were_measured() -> None:
    text = printed(prune_table(model(products=PRODUCTS)))
    assert row(text, "a\\x1b")[5:] == ["-", "-", "-", "-", "-"]
    assert row(text, "b.w")[5:] == ["bf16", "2.00", "KiB", "1.25", "KiB", "12.5", "8.2"]
    assert "; 2.00 KiB dense, 1.25 KiB compressed" in text
    assert "compr." not in printed(prune_table(model()))


def test_a_checkpoint_has_no_stages() -> None:
    text = printed(prune_table(model(stages=())))
    assert "stage" not in text
    assert "pruned to 2:4" in text


def test_json_has_every_stage_and_tensor_and_what_follows_from_them() -> None:
    (told,) = json.loads(prune_json([model()], ORIGIN))["models"]
    assert told["spread"] == 1.0
    assert told["differences"] == [0.0, -4.0, 0.25]
    assert told["report"]["pruned"][1]["values"] == 16
    (told,) = json.loads(prune_json([model(stages=())], ORIGIN))["models"]
    assert told["spread"] == "nan"
    assert told["differences"] == []


def test_the_page_shows_what_the_tables_do() -> None:
    text = prune_page([model(products=PRODUCTS)], ORIGIN)
    for said in ("retrained", "mxint8", "74.5", "1.25 KiB", "left alone: c.w", "What structured sparsity"):
        assert said in text
    assert "\x1b" not in text
    assert "Stages" not in prune_page([model(stages=())], ORIGIN)
