"""Columns of all reports: what has no value sorts last, as `Column.order` says."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from fewbits.report.columns.checkpoint import proposal_columns
from fewbits.report.columns.column import Column
from fewbits.report.columns.matrices import MATRIX_COLUMNS
from fewbits.report.columns.planning import PLAN_COLUMNS, plan_rows
from fewbits.report.columns.profiling import OPERATION_COLUMNS, operation_rows
from fewbits.report.columns.scaling import SCALE_COLUMNS, ranked
from fewbits.report.columns.training import TRAIN_COLUMNS
from fewbits.report.recipe_runs import grouped
from tests.report import fake, pages, planning, profiling, scaling

SINGULAR = [replace(s, condition_fp64=math.inf) for s in fake.matrices()]


@pytest.mark.parametrize(
    ("columns", "rows"),
    [
        (TRAIN_COLUMNS, grouped([r for r in pages.trained() if r.recipe != "fp32"])),
        (SCALE_COLUMNS, ranked(scaling.prediction())),
        (OPERATION_COLUMNS, operation_rows(profiling.record())),
        (PLAN_COLUMNS, plan_rows(planning.record())),
        (MATRIX_COLUMNS, fake.matrices()),
        (MATRIX_COLUMNS, SINGULAR),
    ],
    ids=["training", "scaling", "profile", "plan", "matrices", "singular"],
)
def test_a_dash_has_no_place_among_numbers(columns: Sequence[Column[Any]], rows: Sequence[Any]) -> None:
    places = [c.order(row) for c in columns for row in rows if c.text(row) == "-"]
    assert places
    assert all(math.isnan(place) for place in places if not isinstance(place, str))


def test_nothing_is_told_beside_a_singular_matrix() -> None:
    (column,) = [c for c in MATRIX_COLUMNS if c.title == "times that of FP64"]
    assert {column.text(score) for score in SINGULAR} == {"-"}


def test_the_qsnr_of_a_proposal_is_that_of_its_format() -> None:
    report = fake.checkpoint()
    (column,) = [c for c in proposal_columns(report) if c.title == "its QSNR (dB)"]
    levels = {(score.tensor, score.format): score.error.qsnr_db for score in report.scores}
    proposed = [t for t in report.tensors if t.proposed]
    assert proposed
    for tensor in report.tensors:
        text = f"{levels[tensor.tensor, tensor.proposed]:.1f}" if tensor.proposed else "-"
        assert column.text(tensor) == text
