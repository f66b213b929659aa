"""The optimizer of a recipe, and what it is for: batches as large as half of the data."""

import math
from dataclasses import replace
from functools import partial
from statistics import fmean
from typing import Any

import pytest
import torch
from torch import distributed

from fewbits.optim import LARS, SGD, AdamW, LossScaler
from fewbits.recipes import recipe
from fewbits.recipes.summary import in_words
from fewbits.train import recipe_trainer, seeded
from fewbits.train.learning_rates import linear_warm_up, polynomial
from fewbits.train.tasks import digits_task, task
from fewbits.train.tasks.digits_task import DigitsConfig
from tests.distributed.team import Team


@pytest.mark.parametrize(
    ("name", "kind", "options"),
    [
        ("fp32", AdamW, {"betas": (0.9, 0.98), "weight_decay": 0.1}),
        ("fp32:optimizer=sgd", SGD, {"momentum": 0.9, "weight_decay": 5e-5}),
        ("lars", LARS, {"momentum": 0.9, "weight_decay": 5e-5, "trust_coefficient": 1.0}),
    ],
)
def test_a_recipe_names_its_optimizer_and_the_task_its_options(
    name: str, kind: type, options: dict[str, Any]
) -> None:
    trainer = recipe_trainer(task("digits"), name, steps=2)
    assert type(trainer.optimizer) is kind
    assert trainer.optimizer.recipe == recipe(name)
    group = trainer.optimizer.param_groups[0]
    assert {key: group[key] for key in options} == options
    assert group["lr"] == 1e-2


def test_lars_is_fp16_with_masters_and_a_loss_scale_and_decays_as_a_polynomial() -> None:
    trainer = recipe_trainer(task("digits"), "lars", steps=4)
    rates = [step.lr for step in trainer]
    assert (
        rates == [polynomial(1e-2, i, 4) for i in range(4)] != [linear_warm_up(1e-2, i, 4) for i in range(4)]
    )
    assert isinstance(trainer.scaler, LossScaler)
    masters = [state["master"].dtype for state in trainer.optimizer.state.values()]
    assert masters == [torch.float32] * 8
    assert {p.dtype for p in trainer.model.parameters()} == {torch.float16}
    assert "optimizer lars; polynomial learning rate" in in_words(recipe("lars"))


def shares_norms(rank: int, size: int, local_steps: int) -> None:
    trainer = recipe_trainer(
        task("digits"), "fp32:optimizer=lars", steps=4, codec="fp32", local_steps=local_steps
    )
    assert isinstance(trainer.optimizer, LARS)
    assert trainer.optimizer._group is (None if local_steps else distributed.group.WORLD)
    assert [step.is_finite for step in trainer] == [True] * 4


def test_processes_share_norms_unless_they_train_on_their_own() -> None:
    team = Team(2)
    try:
        team.run(partial(shares_norms, local_steps=0))
        team.run(partial(shares_norms, local_steps=2))
    finally:
        team.end()


def accuracy(name: str, batch: int, lr: float, seed: int, epochs: int = 60) -> float:
    whole = digits_task(DigitsConfig(channels=16))
    steps = epochs * 900 // batch
    hyper = replace(whole.hyper, steps=steps, batch_size=batch, lr=lr, max_norm=math.inf)
    chosen = replace(whole, hyper=hyper)
    with seeded(chosen, seed):
        trainer = recipe_trainer(chosen, name, seed=seed, observe_every=steps)
        for _ in trainer:
            pass
        return trainer.evaluate()


@pytest.mark.slow
def test_half_of_the_data_in_a_batch_is_held_by_lars_and_not_by_the_scaled_rate_of_sgd() -> None:
    seeds, plain = range(3), "fp32:optimizer=sgd,lr_schedule=polynomial"
    small = [accuracy(plain, 32, 0.05, seed) for seed in seeds]
    scaled = [accuracy(plain, 450, 0.05 * 450 / 32, seed) for seed in seeds]
    lars = [accuracy("lars", 450, 0.05, seed) for seed in seeds]
    assert fmean(lars) > fmean(small) - 1.5
    assert fmean(scaled) < fmean(small) - 10
