"""The loop says what goes wrong, and its runs have folders of their own."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from fewbits.recipes import RECIPES, Scaling
from fewbits.train import Settings, Trainer, run
from fewbits.train.log import column
from fewbits.train.runs import folder_name
from fewbits.train.tasks import trained_task


def _trainer(recipe: str, **changes: object) -> Trainer:
    chosen = RECIPES[recipe].extended(**changes)
    return Trainer(trained_task("digits"), chosen, seed=0, steps=20)


def test_a_step_tells_what_happened() -> None:
    record = _trainer("mxfp6").step()
    assert record["step"] == 1
    assert 2.2 < record["loss"] < 2.4
    assert record["learning_rate"] == pytest.approx(5e-3)  # half of the peak: warm-up takes two steps
    assert record["skipped"] is False


def test_a_diverged_run_says_so_and_not_that_a_scale_collapsed() -> None:
    trainer = _trainer("fp32")
    with torch.no_grad():
        trainer.model.head.weight[0, 0] = torch.nan
    trainer.step()
    assert any("training diverged" in w for w in trainer.watch.drained()[1])


def test_a_loss_scale_that_collapses_is_named() -> None:
    trainer = _trainer("fp16-master", scaling=Scaling(2.0**30))
    with torch.no_grad():
        trainer.model.head.weight[0, 0] = torch.nan
    before = trainer.model.conv1.weight.clone()
    skipped = [trainer.step()["skipped"] for _ in range(10)]
    assert all(skipped)
    assert torch.equal(trainer.model.conv1.weight, before)
    assert any("the loss scale collapses" in w for w in trainer.watch.drained()[1])


def test_runs_of_different_seeds_have_different_folders() -> None:
    long = "mx:weight=" + "block(element=float(e=2,m=1),scale=e8m0,size=32)," * 5
    settings = Settings("/some/where/texts", long)
    names = {folder_name(replace(settings, seed=s)) for s in range(3)}
    names |= {folder_name(replace(settings, recipe=long + "x"))}
    assert len(names) == 4
    assert all(len(n) < 200 and "/" not in n for n in names)


def test_a_text_of_ones_own_trains(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_bytes(Path(__file__).read_bytes() * 40)
    run(Settings(str(text), "mx9", steps=8), tmp_path / "run")
    losses = column(tmp_path / "run", "loss")
    assert losses[-1] < losses[0] - 0.1


def test_tensorboard_gets_the_curves(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    run(Settings("digits", "mxfp6", steps=4), tmp_path)
    assert list(tmp_path.glob("events.out.tfevents*"))
