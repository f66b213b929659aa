"""Lightning's loop drives a prepared model and an optimizer of ours as it drives any other."""

import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from fewbits.nn import prepare
from fewbits.optim import AdamW

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its imports warn
    lightning = pytest.importorskip("lightning")
pytestmark = pytest.mark.filterwarnings("ignore")

RECIPE = "mxfp6:first_moment=bf16"


class Classifier(lightning.LightningModule):
    """Two layers, prepared; the losses of all steps are kept."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.net = prepare(nn.Sequential(nn.Linear(40, 64), nn.ReLU(), nn.Linear(64, 10)), RECIPE)
        self.losses: list[float] = []

    def training_step(self, batch: list[torch.Tensor], index: int) -> torch.Tensor:
        loss = nn.functional.cross_entropy(self.net(batch[0]), batch[1])
        self.losses.append(float(loss.detach()))
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return AdamW(self.parameters(), lr=1e-2, recipe=RECIPE)


def data() -> DataLoader:
    draw = torch.Generator().manual_seed(1)
    x, y = torch.randn(64, 40, generator=draw), torch.randint(10, (64,), generator=draw)
    return DataLoader(TensorDataset(x, y), batch_size=32)


def fit(folder: Path, epochs: int, resume: Path | None = None) -> tuple[Classifier, Path]:
    model, last = Classifier(), folder / "last.ckpt"
    trainer = lightning.Trainer(
        max_epochs=epochs, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, gradient_clip_val=1.0, default_root_dir=folder,
    )  # fmt: skip
    trainer.fit(model, data(), ckpt_path=None if resume is None else str(resume), weights_only=False)
    trainer.save_checkpoint(last)
    return model, last


def test_lightning_trains_as_a_plain_loop_does(tmp_path: Path) -> None:
    found, _ = fit(tmp_path, 5)
    plain = Classifier()
    optimizer = plain.configure_optimizers()
    for _ in range(5):
        for i, batch in enumerate(data()):
            loss = plain.training_step(batch, i)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
            optimizer.step()
    assert found.losses == plain.losses
    assert found.losses[-1] < 0.8 * found.losses[0]


def test_its_checkpoint_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    whole, _ = fit(tmp_path, 4)
    _, saved = fit(tmp_path, 2)
    rest, _ = fit(tmp_path, 4, saved)
    assert rest.losses == whole.losses[len(whole.losses) // 2 :]
    for a, b in zip(whole.parameters(), rest.parameters(), strict=True):
        assert torch.equal(a, b)
