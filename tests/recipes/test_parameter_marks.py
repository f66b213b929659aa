"""A parameter knows its recipe and what it was, and so do its copies and its parts."""

import copy

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from fewbits.nn import prepare
from fewbits.recipes import parameter_marks, step_checks
from fewbits.recipes.parameter_marks import is_rounded, take_unrounded
from fewbits.recipes.step_checks import recipe_of


def made() -> nn.Module:
    torch.manual_seed(0)
    return prepare(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)), "fp16-master")


def names(p: torch.Tensor) -> tuple[str | None, bool]:
    recipe = recipe_of(p)
    return recipe and recipe.name, is_rounded(p)


def test_copies_are_marked_as_their_originals_are() -> None:
    model = made()
    marks = [names(p) for p in model.parameters()]
    assert marks == [("fp16-master", True)] * 2 + [("fp16-master", False)] * 2
    assert [names(p) for p in copy.deepcopy(model).parameters()] == marks
    assert names(nn.Parameter(torch.ones(2))) == (None, False)


@pytest.mark.usefixtures("two")
def test_the_parts_of_a_sharded_model_are_marked_as_it_was() -> None:
    plain, model = made(), made()
    marks = [names(p) for p in model.parameters()]
    mesh = init_device_mesh("cpu", (2,))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    assert [names(p) for p in model.parameters()] == marks
    wide = [take_unrounded(p) for p in model.parameters()]
    for found, p in zip(wide, plain.parameters(), strict=True):
        expected = take_unrounded(p)
        assert (found is None) == (expected is None)
        assert found is None or expected is None or torch.equal(found, expected)
    assert wide[0] is not None


@pytest.mark.usefixtures("two")
def test_a_part_is_looked_for_once_and_only_parts_are(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, model = made(), made()
    own = [p for p in plain.parameters() if recipe_of(p)]
    fully_shard(model, mesh=init_device_mesh("cpu", (2,)), ignored_params=set(model[1].parameters()))
    marked: list[torch.Tensor] = []
    whole = step_checks.PreparedParameters.set
    monkeypatch.setattr(
        step_checks.PreparedParameters, "set", lambda self, name, p: marked.append(p) or whole(self, name, p)
    )
    for _ in range(2):
        assert recipe_of(model[0].weight) is not None
        assert recipe_of(model[0].bias) is not None
        assert recipe_of(own[0]) is not None
    assert {id(p) for p in marked} == {id(p) for p in model[0].parameters()}
    assert len(marked) == 2
    assert not any(hasattr(p, parameter_marks._LOOKED_FOR) for p in own)


def test_the_first_step_of_any_optimizer_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once in a process: whoever prepares the first model registers the look."""

    made()  # so that the look is registered for the tests that follow
    step_checks.look_before_steps.cache_clear()
    hooks = []
    monkeypatch.setattr(step_checks, "register_optimizer_step_pre_hook", hooks.append)
    for _ in range(2):
        made()
    assert hooks == [step_checks._look]
