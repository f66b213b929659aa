"""Hugging Face's Trainer trains by every recipe as a plain loop does, clips, scales, saves and goes on."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fewbits.errors import ArgumentError
from fewbits.optim import LARS, AdamW
from tests.integrations.plain import (
    BATCH,
    NORM,
    RATE,
    SAMPLE,
    SCHEDULED,
    STEPS,
    TWELVE,
    Rows,
    check_muppet,
    model,
    optimizer,
    plain_losses,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its imports warn
    import transformers

    from fewbits.integrations.transformers import RecipeTrainer
pytestmark = pytest.mark.filterwarnings("ignore")


def arguments(folder: Path, **more: Any) -> Any:
    options = {
        "max_steps": STEPS, "per_device_train_batch_size": BATCH, "max_grad_norm": NORM,
        "learning_rate": RATE, "lr_scheduler_type": "constant", "use_cpu": True,
        "report_to": [], "disable_tqdm": True, "logging_strategy": "no", "save_strategy": "no",
    }  # fmt: skip
    return transformers.TrainingArguments(str(folder), **(options | more))


def trainer(made: nn.Module, folder: Path, recipe: str, kind: Any = RecipeTrainer, **more: Any) -> Any:
    found = kind(
        made, arguments(folder, **more), train_dataset=Rows(), optimizers=(optimizer(made, recipe), None)
    )
    found.model_accepts_loss_kwargs = False  # the mean of a batch, as in a plain loop
    return found


def losses_are_a_plain_loops(folder: Path, recipe: str) -> None:
    made = model(recipe)
    trainer(made, folder, recipe).train()
    assert len(made.losses) == STEPS
    assert made.losses == plain_losses(recipe)


@pytest.mark.parametrize("recipe", SAMPLE)
def test_losses_are_those_of_a_plain_loop(recipe: str, tmp_path: Path) -> None:
    losses_are_a_plain_loops(tmp_path, recipe)


def test_a_schedule_sees_the_gradients_that_it_sees_in_a_plain_loop(tmp_path: Path) -> None:
    made = trainer(model("muppet"), tmp_path, "muppet")
    made.train()
    check_muppet(made.schedule)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [*TWELVE, *SCHEDULED])
def test_losses_of_every_recipe_are_those_of_a_plain_loop(recipe: str, tmp_path: Path) -> None:
    losses_are_a_plain_loops(tmp_path, recipe)


def goes_on(folder: Path, recipe: str) -> None:
    whole, rest = model(recipe), model(recipe)
    trainer(whole, folder, recipe, save_strategy="steps", save_steps=STEPS // 2).train()
    rest.first = STEPS // 2
    trainer(rest, folder, recipe).train(resume_from_checkpoint=str(folder / f"checkpoint-{STEPS // 2}"))
    assert rest.losses == whole.losses[STEPS // 2 :]
    for a, b in zip(whole.parameters(), rest.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("recipe", ["fp8-lm", "muppet"])
def test_a_checkpoint_goes_on_with_the_same_bits(recipe: str, tmp_path: Path) -> None:
    goes_on(tmp_path, recipe)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [*TWELVE, *SCHEDULED])
def test_a_checkpoint_of_every_recipe_goes_on_with_the_same_bits(recipe: str, tmp_path: Path) -> None:
    goes_on(tmp_path, recipe)


def test_the_optimizer_it_makes_has_the_models_recipe_and_the_arguments(tmp_path: Path) -> None:
    made = model("fp8-lm")
    found = RecipeTrainer(made, arguments(tmp_path, adam_beta2=0.9), train_dataset=Rows())
    found.model_accepts_loss_kwargs = False
    found.train()
    adamw = found.optimizer.optimizer
    assert isinstance(adamw, AdamW)
    assert adamw.recipe is made.fewbits_recipe
    assert adamw.param_groups[0]["betas"] == (0.9, 0.9)
    assert adamw.param_groups[0]["lr"] == RATE
    assert made.losses[-1] < made.losses[0]


@pytest.mark.parametrize("recipe", ["fp8-lm", "mxfp6"])
def test_a_recipe_without_scaling_trains_in_their_own_trainer_too(recipe: str, tmp_path: Path) -> None:
    made = model(recipe)
    trainer(made, tmp_path, recipe, transformers.Trainer).train()
    assert made.losses == plain_losses(recipe)


def test_their_own_optimizer_and_a_missing_loss_scale_are_named(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"fewbits\.optim\.AdamW"):
        transformers.Trainer(model("fp8-lm"), arguments(tmp_path), train_dataset=Rows()).train()
    made = model("fp16-master")
    with pytest.raises(ArgumentError, match="no loss scaler takes this step"):
        trainer(made, tmp_path, "fp16-master", transformers.Trainer).train()


def test_a_recipe_with_another_optimizer_wants_it_given(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"recipe 'lars' trains by lars, .*fewbits\.optim\.LARS"):
        RecipeTrainer(model("lars"), arguments(tmp_path), train_dataset=Rows()).train()
    made = model("lars")
    given = LARS(made.parameters(), 2.0, recipe="lars")  # of a thousandth of each norm
    RecipeTrainer(made, arguments(tmp_path), train_dataset=Rows(), optimizers=(given, None)).train()
    assert made.losses[-1] < made.losses[0]


def test_a_model_that_was_not_prepared_and_fp16_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"Linear was not prepared; call fewbits\.nn\.prepare"):
        RecipeTrainer(nn.Linear(2, 2))
    with pytest.raises(ArgumentError, match="leave fp16 out"):
        RecipeTrainer(model("mxfp6"), arguments(tmp_path, fp16=True))
