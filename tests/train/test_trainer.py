"""The loop says what goes wrong, and its runs have folders of their own."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fewbits.errors import ArgumentError
from fewbits.recipes import RECIPES, LossScaling
from fewbits.train import Settings, Trainer, recipe_trainer, run
from fewbits.train.log import column
from fewbits.train.runs import folder_name
from fewbits.train.tasks import task as read_task


def _trainer(recipe: str, **changes: object) -> Trainer:
    chosen = RECIPES[recipe].extended(**changes)
    return recipe_trainer(read_task("digits"), chosen, steps=20)


def test_a_step_tells_what_happened() -> None:
    step = _trainer("mxfp6").step()
    assert step.step == 1
    assert 2.2 < step.loss < 2.4
    assert step.lr == pytest.approx(5e-3)  # half of the peak: warm-up takes two steps
    assert step.skipped is False
    assert step.is_finite


@pytest.mark.parametrize("recipe", ["fp32", "fp16-master", "fp16-only", "fp8-lm"])
def test_the_bytes_of_the_first_step_are_those_of_every_other(recipe: str) -> None:
    trainer = _trainer(recipe)
    found = []
    for _ in range(2):
        trainer.step()
        found.append(trainer.bytes_per_value)
    assert found[0] == found[1] >= 4


def test_iteration_ends_with_the_last_step_and_goes_on_from_the_one_before() -> None:
    trainer = _trainer("fp32")
    trainer.step()
    assert [step.step for step in trainer] == list(range(2, 21))
    assert list(trainer) == []


def test_the_plain_model_has_the_trained_weights_and_no_recipe() -> None:
    trainer = _trainer("mxfp6")
    trainer.step()
    plain = trainer.plain_model()
    assert type(plain.head) is torch.nn.Linear
    assert torch.equal(plain.head.weight, trainer.model.head.weight)
    assert not plain.training


def test_a_callback_sees_every_step_before_progress_is_reported(tmp_path: Path) -> None:
    seen: list[object] = []
    run(
        Settings("digits", "fp32", steps=2),
        tmp_path,
        progress=lambda what, done, total: seen.append((what, done, total)),
        callback=lambda step: seen.append(step.step),
    )
    assert seen == [1, ("fp32, seed 0", 1, 2), 2, ("fp32, seed 0", 2, 2)]


def test_a_diverged_run_says_so_and_not_that_a_scale_collapsed() -> None:
    trainer = _trainer("fp32")
    with torch.no_grad():
        trainer.model.head.weight[0, 0] = torch.nan
    assert not trainer.step().is_finite
    assert any("training diverged" in w for w in trainer.observer.drained()[1])


def test_a_loss_scale_that_collapses_is_named() -> None:
    trainer = _trainer("fp16-master", scaling=LossScaling(2.0**30))
    with torch.no_grad():
        trainer.model.head.weight[0, 0] = torch.nan
    before = trainer.model.conv1.weight.clone()
    skipped = [trainer.step().skipped for _ in range(10)]
    assert all(skipped)
    assert torch.equal(trainer.model.conv1.weight, before)
    assert any("the loss scale collapses" in w for w in trainer.observer.drained()[1])


def test_settings_change_rate_batch_and_layers(tmp_path: Path) -> None:
    plain = Settings("digits", "mxfp4", steps=3)
    changes: list[dict[str, object]] = [{}, {"lr": 1e-3}, {"batch_size": 4}]
    changes += [{"exclude": ("conv*",)}, {"include": ("head",)}]
    losses = []
    for change in changes:
        folder = tmp_path / str(len(losses))
        run(replace(plain, **change), folder)
        losses.append(tuple(column(folder, "loss")))
        if "lr" in change:
            assert max(column(folder, "lr")) == 1e-3
    assert losses[3] == losses[4]  # the head is all but the convolutions
    assert len(set(losses)) == 4


def test_settings_of_another_selection_do_not_resume_a_run(tmp_path: Path) -> None:
    settings = Settings("digits", "mxfp4", steps=2, exclude=("conv1",))
    run(settings, tmp_path)
    run(settings, tmp_path, resume=True)
    with pytest.raises(ArgumentError, match="exclude="):
        run(replace(settings, exclude=("conv2",)), tmp_path, resume=True)


@pytest.mark.parametrize(
    "change",
    [
        *({"lr": 0.0}, {"lr": float("nan")}, {"lr": "1"}, {"batch_size": 0}, {"batch_size": 1.5}),
        *({"save_every": 0}, {"save_every": -3}, {"save_every": 0.5}, {"observe_every": 0}),
        *({"seed": 1.5}, {"seed": -1}, {"seed": True}, {"steps": -1}, {"steps": 2.0}, {"steps": False}),
        *({"processes": 0}, {"processes": 1.5}, {"seed": np.int64(3)}),
    ],
)
def test_settings_of_which_nothing_can_be_made_are_refused(change: dict[str, Any]) -> None:
    ((name, value),) = change.items()
    with pytest.raises(ArgumentError, match=f"^{name}={re.escape(repr(value))}; expected "):
        Settings("digits", "mxfp4", **change)


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
