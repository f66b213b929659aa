"""The task that tells a recipe which loses small gradients or updates from one that keeps them."""

from functools import cache

import pytest
import torch

from fewbits.train import recipe_trainer, seeded
from fewbits.train.tasks import task as read_task

LEAST = 0.05  # nats that a broken recipe loses; a sound one is nearer to FP32 than that


@cache
def loss_after(name: str, seed: int, steps: int) -> float:
    """Return the loss on held-out digits."""
    task = read_task("faint")
    with seeded(task, seed):
        trainer = recipe_trainer(task, name, seed=seed, steps=steps)
        for _ in trainer:
            pass
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
    task = read_task("faint")
    model = task.create(0)
    batch = task.draw_batch(torch.Generator().manual_seed(3), 32)
    with torch.no_grad():
        wanted = float(task.loss(model, batch))
        assert 0 < wanted < 4 * 2.0**-20
        for p in (model.first.weight, model.first.bias, model.second.weight, model.second.bias):
            p.mul_(4)
        assert float(task.loss(model, batch)) == pytest.approx(wanted, rel=1e-4)
