"""The task that tells a recipe which loses small gradients or updates from one that keeps them."""

from functools import cache

import pytest
import torch

from fewbits.recipes import recipe
from fewbits.train.tasks import trained_task
from fewbits.train.tasks.training import one_thread
from fewbits.train.trainer import Trainer

LEAST = 0.05  # nats that a broken recipe loses; a sound one is nearer to FP32 than that


@cache
def loss_after(name: str, seed: int, steps: int) -> float:
    """Return the loss on held-out digits."""
    with one_thread(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        trainer = Trainer(trained_task("faint"), recipe(name), seed=seed, steps=steps)
        for _ in range(steps):
            trainer.step()
        return trainer.evaluate()


def apart(broken: str, sound: list[str], seeds: int, steps: int) -> None:
    for seed in range(seeds):
        wanted = loss_after("fp32", seed, steps)
        assert wanted < loss_after("fp32", seed, 1) - 0.1
        assert loss_after(broken, seed, steps) > wanted + LEAST
        for name in sound:
            assert loss_after(name, seed, steps) == pytest.approx(wanted, abs=LEAST / 2)


@pytest.mark.parametrize(
    ("broken", "sound"),
    [("fp16-no-scaling", ["fp16-master"]), ("bf16-only-nearest", ["bf16-only"])],
)
def test_a_broken_recipe_loses_and_its_remedy_does_not(broken: str, sound: list[str]) -> None:
    apart(broken, sound, 1, 80)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "sound"),
    [
        ("fp16-no-scaling", ["fp16-master", "fp16-master-static"]),
        ("bf16-only-nearest", ["bf16-only", "bf16-only-kahan"]),
        ("fp16-no-master", ["fp16-master"]),
    ],
)
def test_it_does_so_for_three_seeds(broken: str, sound: list[str]) -> None:
    apart(broken, sound, 3, 400)


def test_what_the_task_computes_does_not_depend_on_the_size_of_its_weights() -> None:
    task = trained_task("faint")
    model = task.create(0)
    draw = torch.Generator().manual_seed(3)
    with torch.no_grad():
        wanted = float(task.loss(model, draw))
        assert 0 < wanted < 4 * 2.0**-20
        for p in (model.first.weight, model.first.bias, model.second.weight, model.second.bias):
            p.mul_(4)
        assert float(task.loss(model, draw.manual_seed(3))) == pytest.approx(wanted, rel=1e-4)
