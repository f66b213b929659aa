import json
import math
from dataclasses import replace
from typing import Any

from fewbits.records import Error
from fewbits.report import checkpoint_json, matrices_json, tasks_json
from tests.report import fake


def strict(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(text, parse_constant=refuse)


def test_tasks_carry_their_fields_what_follows_from_them_and_the_provenance() -> None:
    scores = fake.tasks()
    document = strict(tasks_json(scores, fake.PROVENANCE))
    assert list(document) == ["kind", "schema", "provenance", "scores"]
    assert document["kind"] == "tasks"
    assert document["provenance"]["command"] == fake.PROVENANCE.command
    assert document["provenance"]["versions"]["torch"] == "2.13.0"
    assert document["provenance"]["seeds"] == [0, 1, 2]
    assert len(document["scores"]) == len(scores)
    row = document["scores"][12]
    assert row["format"] == "mxfp4"
    assert row["difference"] == scores[12].difference
    assert row["evidence"]["low"] == scores[12].evidence.low
    assert row["evidence"]["differs"] is True
    assert next(iter(row)) == "task"
    assert list(row)[-6:] == [
        "mean", "difference", "evidence", "trained_mean", "trained_difference", "trained_evidence",
    ]  # fmt: skip
    assert row["trained"] == []
    assert row["trained_mean"] is None
    assert len(row["layers"]) == 18


def test_infinities_and_nan_are_strings_that_float_reads_and_none_is_null() -> None:
    score = replace(
        fake.tasks()[0], weight_qsnr_db=math.inf, activation_qsnr_db=-math.inf, saturated_fraction=math.nan
    )
    row = strict(tasks_json([score], fake.PROVENANCE))["scores"][0]
    assert row["weight_qsnr_db"] == "inf"
    assert float(row["activation_qsnr_db"]) == -math.inf
    assert math.isnan(float(row["saturated_fraction"]))
    assert row["area_memory_proxy"] is None


def test_a_checkpoint_keeps_every_tensor_and_its_totals() -> None:
    report = fake.checkpoint(20)
    document = strict(checkpoint_json(report, fake.PROVENANCE))["checkpoint"]
    assert len(document["tensors"]) == len(report.tensors)
    assert len(document["scores"]) == len(report.scores)
    assert document["proposed_bytes"] == report.proposed_bytes
    assert document["scores"][0]["error"]["qsnr_db"] == report.scores[0].error.qsnr_db


def test_any_name_survives_the_way_through_json() -> None:
    name = 'a "quoted" </script> \u202e \ud800 \x1b name'
    score = replace(fake.matrices()[0], matrix=name, error=Error(math.nan, 0, 0, 0, 0))
    text = matrices_json([score], fake.PROVENANCE)
    assert text.isascii()
    assert strict(text)["scores"][0]["matrix"] == name


def test_the_same_records_give_the_same_bytes() -> None:
    assert tasks_json(fake.tasks(), fake.PROVENANCE) == tasks_json(fake.tasks(), fake.PROVENANCE)
