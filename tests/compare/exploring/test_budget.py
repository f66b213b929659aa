"""The best format within a budget: held-out data decide, and what suits only the chosen half loses."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import fewbits as fb
from fewbits.compare import best_format
from fewbits.compare.exploring.sweep import qsnr_of
from fewbits.compare.exploring.vectors import vectors_of
from fewbits.errors import ArgumentError, DataError
from fewbits.formats import parse
from fewbits.records import Finalist, FormatChoice


@pytest.fixture(scope="module")
def chosen() -> FormatChoice:
    return best_format(3.5, "laplace", ["bdr(m=1)"], vectors=400)


def kinds(choice: FormatChoice) -> dict[str, Finalist]:
    return {f.kind: f for f in choice.finalists}


def test_a_table_fitted_to_the_data_wins_where_it_is_best(chosen: FormatChoice) -> None:
    first = chosen.finalists[0]
    assert first.kind == "table"
    assert first.held_out_db > kinds(chosen)["lookup"].held_out_db + 0.2
    assert parse(chosen.winner).bits_per_value <= 3.5
    assert str(parse(chosen.winner)) == chosen.winner


def test_each_family_has_its_best_and_named_formats_take_part(chosen: FormatChoice) -> None:
    assert set(kinds(chosen)) == {"table", "lookup", "bdr", "float", "int", "posit", "named"}
    assert kinds(chosen)["named"].format.format == "bdr(m=1)"
    held_out = [f.held_out_db for f in chosen.finalists]
    assert held_out == sorted(held_out, reverse=True)
    assert all(f.format.bits_per_value <= 3.5 for f in chosen.finalists)
    assert chosen.tried > 300
    assert chosen.tables > 10


def test_both_halves_are_what_they_are_said_to_be(chosen: FormatChoice) -> None:
    values = vectors_of("laplace", 400, 0, "floor").values
    for finalist in chosen.finalists:
        f = finalist.format.format
        assert finalist.format.qsnr_db == pytest.approx(qsnr_of(values[:200], parse(f), "floor"))
        y = fb.fake_quantize(values[200:], f)
        assert finalist.held_out_db == pytest.approx(fb.qsnr(values[200:], y), abs=1e-6)


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_table_that_learned_its_data_by_heart_loses(seed: int, tmp_path: Path) -> None:
    # Two vectors: 256 values to choose on, and up to 256 in a table, which then holds nearly all of them.
    random = np.random.default_rng(seed)
    np.save(tmp_path / "tiny.npy", random.standard_normal((2, 256)))
    choice = best_format(8.5, tmp_path / "tiny.npy")
    table = kinds(choice)["table"]
    assert table.format.qsnr_db > max(f.format.qsnr_db for f in choice.finalists if f is not table) + 3
    assert table.held_out_db < table.format.qsnr_db - 3
    assert choice.finalists[0] is not table
    assert choice.winner != table.format.format
    # With the half that it was fitted to as the judge it would have won: the held-out half is what decides.
    by_heart = max(choice.finalists, key=lambda f: f.format.qsnr_db)
    assert by_heart is table


def test_data_of_a_few_values_get_the_table_that_holds_them_exactly(tmp_path: Path) -> None:
    values = np.array([-1, -0.3125, 0.15625, 1])
    rows = np.random.default_rng(0).choice(values, (64, 256))
    np.save(tmp_path / "few.npy", rows)
    choice = best_format(2.5, tmp_path / "few.npy")
    assert choice.finalists[0].kind == "table"
    assert choice.finalists[0].held_out_db == np.inf


@pytest.mark.parametrize("budget", [0.5, -1, float("nan"), float("inf")])
def test_a_budget_that_nothing_meets_is_refused(budget: float) -> None:
    with pytest.raises(ArgumentError, match=r"a budget of .* bits per value; expected at least 1$"):
        best_format(budget, vectors=2)


def test_rows_shorter_than_a_block_keep_the_budget_in_what_is_stored(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).standard_normal((64, 8)).astype(np.float32)
    np.save(tmp_path / "rows.npy", rows)
    own = "block(element=int(3,coding=symmetric),scale=e8m0,size=32)"
    choice = best_format(4.5, tmp_path / "rows.npy", [own])
    for finalist in choice.finalists:
        stored = fb.quantize(rows, finalist.format.format).nbytes
        outer = 4 if "outer" in finalist.format.format else 0
        # Rows end on a byte: half a bit per value for a scale of four bits.
        assert 0 <= 8 * (stored - outer) / rows.size - finalist.format.bits_per_value <= 0.5
        assert finalist.format.bits_per_value <= 4.5
    with pytest.raises(ArgumentError, match=r"mxfp4 takes 5 bits per value, more than the budget of 4.5"):
        best_format(4.5, tmp_path / "rows.npy", ["mxfp4"])


def test_a_budget_of_just_the_bits_has_room_for_the_format(tmp_path: Path) -> None:
    # Rows of 250 values: the float that a sum of 6 and 16 scales / 250 gives lies above 6.512.
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).standard_normal((4, 250)))
    own = "block(element=int(6,coding=symmetric),scale=e8m0,size=16)"
    assert own in {f.format.format for f in best_format(6.512, tmp_path / "rows.npy", [own]).finalists}


def test_a_budget_of_just_the_bits_has_room_for_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Rows of 100 values, four scales each: in floats 2.32 - 0.32 is below the 2 bits of a table.
    np.save(tmp_path / "rows.npy", np.random.default_rng(0).standard_normal((4, 100)))
    fitted: set[Any] = set()

    def recorded(*given: Any) -> None:
        fitted.add(given[1:4])

    monkeypatch.setattr("fewbits.compare.exploring.budget.fitted_table", recorded)
    best_format(2.32, tmp_path / "rows.npy")
    assert {(size, bits) for bits, scale, size in fitted if scale == fb.e8m0} == {(32, 2), (64, 2), (128, 2)}


def test_equal_vectors_of_tied_tensors_are_not_in_both_halves(tmp_path: Path) -> None:
    w = torch.randn(3, 256, generator=torch.Generator().manual_seed(0))
    save_file({"embed": w, "head": w.clone()}, tmp_path / "tied.safetensors")
    choice = best_format(8.5, tmp_path / "tied.safetensors")
    assert choice.data.vectors == 3
    assert choice.data.about == "6 of 6 pieces of the rows of 2 tensors; 3 equal to others left out"
    # One vector chose, and none of the judges is it: a table of its values has learned by heart and loses.
    table = kinds(choice)["table"]
    assert table.held_out_db < table.format.qsnr_db - 3
    save_file({"embed": w[:1], "head": w[:1].clone()}, tmp_path / "one.safetensors")
    with pytest.raises(ArgumentError, match="one vector; expected at least 2"):
        best_format(8.5, tmp_path / "one.safetensors")


@pytest.mark.parametrize("zero", [0, 1])
def test_a_half_of_zeros_is_refused(tmp_path: Path, zero: int) -> None:
    rows = np.random.default_rng(0).standard_normal((2, 256))
    rows[zero] = 0
    np.save(tmp_path / "z.npy", rows)
    with pytest.raises(DataError, match="all vectors of one half are zero"):
        best_format(4.5, tmp_path / "z.npy")


def test_tables_are_fitted_by_the_scale_rule_that_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    rules: set[Any] = set()

    def recorded(*given: Any) -> None:
        rules.add(given[5])

    monkeypatch.setattr("fewbits.compare.exploring.budget.fitted_table", recorded)
    best_format(2.25, vectors=2, scale_rule="ceil")
    assert rules == {"ceil"}


def test_wrong_requests_are_refused() -> None:
    with pytest.raises(
        ArgumentError, match=r"mx6 takes 6 bits per value, more than the budget of 4.5; leave"
    ):
        best_format(4.5, formats=["mx6"], vectors=2)
    with pytest.raises(ArgumentError, match=r"int4_channel takes 4.125 bits per value, more than"):
        best_format(4, formats=["int4_channel"], vectors=2)
    with pytest.raises(ArgumentError, match="one vector; expected at least 2"):
        best_format(4.5, vectors=1)


def test_a_budget_without_room_for_tables_goes_without() -> None:
    choice = best_format(1.9, vectors=2)
    assert choice.tables == 0
    assert choice.winner == "binary"


def test_the_same_seed_gives_the_same_choice_and_progress_is_told() -> None:
    seen: list[Any] = []
    first = best_format(2.5, vectors=4, progress=lambda *told: seen.append(told))
    assert {what for what, _, _ in seen} == {"measuring formats", "fitting tables"}
    last = {what: (done, total) for what, done, total in seen}
    assert all(done == total for done, total in last.values())
    assert best_format(2.5, vectors=4) == first
    other = best_format(2.5, vectors=4, seed=1)
    assert replace(other.data, seed=0) == first.data
    assert other.finalists != first.finalists
