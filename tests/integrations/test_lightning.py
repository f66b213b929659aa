"""Lightning's Trainer trains by every recipe as a plain loop does, clips, scales, saves and goes on."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader

from fewbits.errors import ArgumentError
from fewbits.optim import AdamW
from tests.integrations.plain import (
    BATCH,
    NORM,
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
    import lightning

    from fewbits.integrations.lightning import RecipePrecision
pytestmark = pytest.mark.filterwarnings("ignore")


class Module(lightning.LightningModule):
    def __init__(self, recipe: str) -> None:
        super().__init__()
        self.recipe, self.net = recipe, model(recipe)

    def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
        return self.net(**batch).loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return optimizer(self.net, self.recipe)


def trainer(folder: Path, recipe: str, **more: Any) -> Any:
    options = {"plugins": RecipePrecision(recipe), "max_epochs": 2, "gradient_clip_val": NORM} | more
    return lightning.Trainer(
        accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=folder, **options,
    )  # fmt: skip


def data() -> DataLoader[Any]:
    return DataLoader([*Rows()][: BATCH * STEPS // 2], BATCH)


def fit(folder: Path, recipe: str, epochs: int = 2, resume: Path | None = None) -> tuple[Module, Any]:
    made, lead = Module(recipe), trainer(folder, recipe, max_epochs=epochs)
    made.net.first = 0 if resume is None else STEPS // 2
    lead.fit(made, data(), ckpt_path=resume, weights_only=True)
    return made, lead


def losses_are_a_plain_loops(folder: Path, recipe: str) -> None:
    made, _ = fit(folder, recipe)
    assert len(made.net.losses) == STEPS
    assert made.net.losses == plain_losses(recipe)


@pytest.mark.parametrize("recipe", SAMPLE)
def test_losses_are_those_of_a_plain_loop(recipe: str, tmp_path: Path) -> None:
    losses_are_a_plain_loops(tmp_path, recipe)


def test_a_schedule_sees_and_keeps_what_it_does_in_a_plain_loop(tmp_path: Path) -> None:
    _, lead = fit(tmp_path, "muppet")
    check_muppet(lead.precision_plugin.schedule)
    lead.save_checkpoint(tmp_path / "end.ckpt")
    made, again = Module("muppet"), trainer(tmp_path, "muppet", max_epochs=2)
    again.fit(made, data(), ckpt_path=tmp_path / "end.ckpt", weights_only=True)
    check_muppet(again.precision_plugin.schedule)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [*TWELVE, *SCHEDULED])
def test_losses_of_every_recipe_are_those_of_a_plain_loop(recipe: str, tmp_path: Path) -> None:
    losses_are_a_plain_loops(tmp_path, recipe)


def goes_on(folder: Path, recipe: str) -> None:
    whole, _ = fit(folder, recipe)
    first, lead = fit(folder, recipe, epochs=1)
    lead.save_checkpoint(folder / "half.ckpt")
    rest, _ = fit(folder, recipe, resume=folder / "half.ckpt")
    assert first.net.losses + rest.net.losses == whole.net.losses
    for a, b in zip(whole.parameters(), rest.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_checkpoint_with_packed_states_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    goes_on(tmp_path, "fp8-lm")


@pytest.mark.slow
@pytest.mark.parametrize("recipe", [*TWELVE, *SCHEDULED])
def test_a_checkpoint_of_every_recipe_goes_on_with_the_same_bits(recipe: str, tmp_path: Path) -> None:
    goes_on(tmp_path, recipe)


def test_without_the_plugin_lightning_clips_packed_gradients_too(tmp_path: Path) -> None:
    made = Module("fp8-lm")
    trainer(tmp_path, "fp8-lm", plugins=None).fit(made, data())
    assert made.net.losses == plain_losses("fp8-lm")


def test_a_recipe_that_scales_is_refused_without_the_plugin(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="no loss scaler takes this step"):
        trainer(tmp_path, "fp16-master", plugins=None).fit(Module("fp16-master"), data())


def test_a_schedule_needs_an_end(tmp_path: Path) -> None:
    lead = trainer(tmp_path, "muppet", max_epochs=-1)
    with pytest.raises(ArgumentError, match="give it max_epochs or max_steps"):
        lead.fit(Module("muppet"), data())


def test_a_batch_that_training_step_leaves_out_is_no_step(tmp_path: Path) -> None:
    class Skips(Module):
        def training_step(self, batch: dict[str, torch.Tensor], index: int) -> Any:
            found = super().training_step(batch, index)
            return found if index else None

    made = Skips("fp8-lm")
    before = [p.detach().clone() for p in made.parameters()]
    trainer(tmp_path, "fp8-lm", max_epochs=1, limit_train_batches=1).fit(made, data())
    assert all(torch.equal(p, b) for p, b in zip(made.parameters(), before, strict=True))


def test_torchs_optimizer_of_a_storing_recipe_is_refused(tmp_path: Path) -> None:
    class Forgets(Module):
        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.AdamW(self.parameters())

    with pytest.raises(ArgumentError, match=r"fewbits\.optim\.AdamW"):
        trainer(tmp_path, "fp8-lm").fit(Forgets("fp8-lm"), data())


def test_the_optimizer_of_a_checkpoint_is_packed_again(tmp_path: Path) -> None:
    _, lead = fit(tmp_path, "fp8-lm")
    (found,) = lead.optimizers
    assert isinstance(found, AdamW)
    sizes = found.nbytes()
    values = sum(p.numel() for p in found.param_groups[0]["params"])
    assert sizes["first_moment"] < 1.1 * values
    assert isinstance(lead.lightning_module, nn.Module)


@pytest.mark.parametrize(("of_model", "of_trainer"), [("posit8", "mxfp6"), ("mxfp6", "posit8")])
def test_a_recipe_other_than_the_modules_is_refused(of_model: str, of_trainer: str, tmp_path: Path) -> None:
    made = Module(of_model)
    with pytest.raises(
        ArgumentError, match=f"a schedule of recipe '{of_trainer}', and net was prepared with"
    ):
        trainer(tmp_path, of_trainer).fit(made, data())
    assert made.net.losses == []


def test_a_fit_of_no_steps_is_none(tmp_path: Path) -> None:
    made = Module("posit8")
    trainer(tmp_path, "posit8", max_epochs=None, max_steps=0).fit(made, data())
    assert made.net.losses == []
