"""The user's own model as MODULE:FUNCTION: what the function may return, and what becomes of it."""

import itertools
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fewbits.bench import benchmark
from fewbits.errors import ArgumentError
from fewbits.recipes import recipe
from fewbits.train import recipe_trainer
from fewbits.train.tasks.task import Hyperparameters
from fewbits.train.tasks.user_model import call_model, is_user_model, load_user_model, user_task

MODULE = """
import torch
from torch import nn

def batches():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(20, 16, 8, generator=g)
    return [{"x": x[i], "y": x[i].sum(-1, keepdim=True)} for i in range(20)]

def loss(model, batch):
    return nn.functional.mse_loss(model(batch["x"]), batch["y"])

def load():
    return nn.Linear(8, 1), batches(), loss

def without_loss():
    return nn.Linear(8, 1), [torch.ones(2, 8)]

def one_batch():
    return nn.Linear(8, 1), batches()[:1], loss

def sized(width, depth=2, *more, heads, **others):
    return load()

def with_defaults(width=8, *more, **others):
    return load()

no_batches = lambda: (nn.Linear(2, 2), [])
no_model = lambda: (1, [2])
no_call = lambda: (nn.Linear(2, 2), [torch.ones(2)], 3)
text = "a text"

def loss_of_rows():
    return nn.Linear(8, 1), batches(), lambda model, batch: (model(batch["x"]) - batch["y"]).square().mean(-1)

def loss_of_python():
    return nn.Linear(8, 1), batches(), lambda model, batch: 0.5

def loss_in_a_list():
    return nn.Linear(8, 1), batches(), lambda model, batch: loss(model, batch)[None]
"""
_NUMBERS = itertools.count()


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The name of a module in the current folder; each has its own, as Python keeps what it imported."""
    name = f"own_models_{next(_NUMBERS)}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return name


def test_a_function_gives_a_model_its_batches_and_a_loss(module: Any) -> None:
    given = load_user_model(f"{module}:load")
    assert isinstance(given.model, nn.Linear)
    assert len(given.batches) == 20
    assert given.loss is not None
    assert load_user_model(f"{module}:without_loss").loss is None


def test_the_task_holds_out_the_last_tenth_and_seeds_draw_other_weights(module: Any) -> None:
    task = user_task(f"{module}:load")
    a, b, again = task.create(0), task.create(1), task.create(0)
    assert torch.equal(a.weight, again.weight)
    assert not torch.equal(a.weight, b.weight)
    given = load_user_model(f"{module}:load")
    expected = sum(float(given.loss(a, batch).detach()) for batch in given.batches[-2:]) / 2
    assert task.evaluate(a) == expected
    draws = (task.draw_batch(torch.Generator().manual_seed(i), 1) for i in range(400))
    drawn = {float(task.loss(a, batch).detach()) for batch in draws}
    assert drawn == {float(given.loss(a, batch).detach()) for batch in given.batches[:-2]}


def test_the_task_trains_by_a_recipe(module: Any) -> None:
    task = user_task(f"{module}:load", Hyperparameters(steps=60, batch_size=1, lr=3e-2))
    trainer = recipe_trainer(task, recipe("amp-bf16"), seed=0)
    before = trainer.evaluate()
    assert len(list(trainer)) == 60
    assert trainer.evaluate() < 0.9 * before


def test_a_batch_is_one_argument_several_or_named_ones() -> None:
    class Sum(nn.Module):
        def forward(self, x: Any, y: Any = 1) -> Any:
            return x + y

    batches = (torch.ones(1), (torch.ones(1), 2), {"x": torch.ones(1), "y": 3})
    assert [float(call_model(Sum(), batch)) for batch in batches] == [2, 3, 4]


@pytest.mark.parametrize(
    ("function", "said"),
    [
        ("gone", "has no function gone; write one that returns"),
        ("text", "has no function text"),
        ("no_model", "has to return (model, batches)"),
        ("no_batches", "a list of one batch at least"),
        ("no_call", "cannot be called; expected loss(model, batch)"),
    ],
)
def test_what_does_not_fit_the_contract_is_refused(module: Any, function: Any, said: str) -> None:
    with pytest.raises(ArgumentError, match=re.escape(said)):
        load_user_model(f"{module}:{function}")


@pytest.mark.parametrize(
    ("function", "said"),
    [("without_loss", "returns no loss"), ("one_batch", "returns one batch; expected two at least")],
)
def test_a_task_needs_a_loss_and_two_batches(module: Any, function: Any, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        user_task(f"{module}:{function}")


@pytest.mark.parametrize(("function", "said"), [("rows", r"shape \(16,\)"), ("python", "float")])
def test_a_loss_is_one_value_in_training_and_in_evaluation(module: Any, function: Any, said: str) -> None:
    task = user_task(f"{module}:loss_of_{function}")
    model, batch = task.create(0), task.draw_batch(torch.Generator(), 1)
    for computed in (lambda: task.loss(model, batch), lambda: task.evaluate(model)):
        with pytest.raises(ArgumentError, match=f"returned {said}; expected the mean loss"):
            computed()


def test_a_function_that_needs_arguments_is_refused_before_it_is_called(module: Any) -> None:
    said = rf"{module}:sized takes width, heads, and is called without arguments; write one that takes none"
    for read in (load_user_model, user_task, benchmark):
        with pytest.raises(ArgumentError, match=said):
            read(f"{module}:sized")
    assert isinstance(load_user_model(f"{module}:with_defaults").model, nn.Linear)


def test_a_loss_may_have_axes_of_one_value(module: Any) -> None:
    plain, listed = (user_task(f"{module}:{function}") for function in ("load", "loss_in_a_list"))
    model, batch = plain.create(0), plain.draw_batch(torch.Generator(), 2)
    assert torch.equal(listed.loss(model, batch), plain.loss(model, batch))


def test_a_module_that_is_not_there_is_named_and_one_that_it_misses_is_pythons_own_error(module: Any) -> None:
    with pytest.raises(ArgumentError, match=r"no module 'gone' in .*write my_models:load"):
        load_user_model("gone:load")
    Path("needy_models.py").write_text("import a_library_that_nobody_has\n")
    with pytest.raises(ModuleNotFoundError, match="a_library_that_nobody_has"):
        load_user_model("needy_models:load")


@pytest.mark.parametrize(
    ("name", "fits"),
    [("a:b", True), ("a.b:c", True), ("a", False), ("a/b.py:c", False), (":c", False), ("mxfp6:x=y", False)],
)
def test_the_form_of_the_name(name: str, fits: Any) -> None:
    assert is_user_model(name) == fits
    if not fits:
        with pytest.raises(ArgumentError, match="is not MODULE:FUNCTION"):
            load_user_model(name)


def test_a_function_may_return_a_task_of_its_own(module: Any, tmp_path: Path) -> None:
    path = tmp_path / f"{module}_task.py"
    path.write_text(
        "from fewbits.train.tasks import digits_task\n\ndef load():\n    return digits_task()\n",
    )
    assert user_task(f"{module}_task:load").name == "digits"


def test_a_step_takes_as_many_of_the_users_batches_as_are_asked_for(module: Any) -> None:
    task = user_task(f"{module}:load")
    model = task.create(0)
    one, four = (task.draw_batch(torch.Generator().manual_seed(1), n) for n in (1, 4))
    assert len(four[0]) == 4
    each = [float(task.loss(model, (four[0][i : i + 1],)).detach()) for i in range(4)]
    assert float(task.loss(model, four).detach()) == pytest.approx(sum(each) / 4)
    assert float(task.loss(model, one).detach()) in each
