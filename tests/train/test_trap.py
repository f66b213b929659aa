"""The known trap: under the rule floor a power-of-two batch clamps the gradient of the logits.

The softmax gradient of the target is just below 1/batch. Where that is a power of two, the block's largest
value lies where the scale of OCP MX v1.0, section 6.3, cuts it off; rows no longer sum to zero and logits
drift.
"""

from functools import lru_cache

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fewbits.nn import RoundingObserver, prepare
from fewbits.train.tasks.text import library_text

TRAP = "mx:weight=mxfp8_e4m3,activation=mxfp8_e4m3,gradient=mxfp8_e4m3"
SEEN, STEPS = 8, 300  # bytes that the model sees; steps


class Model(nn.Module):
    """Predict a byte from the ones before it."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, 16)
        self.layers = nn.Sequential(
            nn.Linear(16 * SEEN, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 256)
        )

    def forward(self, x: Tensor) -> Tensor:
        logits: Tensor = self.layers(self.embedding(x).flatten(1))
        return logits


@lru_cache
def text() -> tuple[Tensor, Tensor]:
    found = library_text()
    return tuple(
        torch.frombuffer(bytearray(t), dtype=torch.uint8).long() for t in (found.train, found.held_out)
    )


@lru_cache
def trained(recipe: str, batch: int = 256) -> tuple[float, tuple[str, ...]]:
    """Return the loss on held-out text, and what the watch said."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    train, held_out = text()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        observer = RoundingObserver(25)
        model = prepare(Model(), recipe, observer=observer)
        optimizer = torch.optim.Adam(model.parameters(), 2e-3)
        generator = torch.Generator().manual_seed(0)
        for _ in range(STEPS):
            start = torch.randint(len(train) - SEEN - 1, (batch,), generator=generator)
            loss = functional.cross_entropy(
                model(train[start[:, None] + torch.arange(SEEN)]), train[start + SEEN]
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            observer.next_step()
        with torch.no_grad():
            start = torch.arange(0, len(held_out) - SEEN - 1, 97)[:4000]
            logits = model(held_out[start[:, None] + torch.arange(SEEN)])
            value = float(functional.cross_entropy(logits, held_out[start + SEEN]))
    torch.set_num_threads(threads)
    return value, tuple(observer.warnings)


def test_the_trap_diverges_and_the_user_is_warned() -> None:
    value, warnings = trained(TRAP)
    assert value > trained("fp32")[0] + 0.5
    assert any("the gradient of the logits is clamped in layers.4" in w and "rceil" in w for w in warnings)


@pytest.mark.parametrize(
    ("recipe", "batch"),
    [("mxfp8", 256), (TRAP + ",logit_gradient=no", 256), (TRAP, 200)],
    ids=["rceil", "logit gradient left alone", "another batch"],
)
def test_each_of_three_remedies_restores_it(recipe: str, batch: int) -> None:
    value, warnings = trained(recipe, batch)
    assert value < trained("fp32")[0] + 0.1
    assert not any("clamped" in w for w in warnings)


@pytest.mark.parametrize(
    "recipe",
    [
        "mxfp6",
        "mx6",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ("mxfp4w-mxfp6", "mxint8", "mx9")),
    ],
)
def test_the_recipes_of_the_catalogue_do_not_fall_into_it(recipe: str) -> None:
    value, warnings = trained(recipe)
    assert value < trained("fp32")[0] + 0.15
    assert not any("clamped" in w for w in warnings)
