"""Model, optimizer, scaler and schedule that do not follow one recipe are found at the first step."""

import copy
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from fewbits.errors import ArgumentError
from fewbits.nn import prepare
from fewbits.optim import LARS, SGD, AdamW, scaler
from fewbits.recipes import RECIPES, Recipe, recipe, step_checks
from fewbits.sparsity import MaskedOptimizer, sparsify
from fewbits.train import schedule

X = torch.randn(8, 32, generator=torch.Generator().manual_seed(0))
STORING = [  # recipes that keep something narrow between steps, so that an optimizer has to know of it
    "fp16-master", "fp16-master-static", "fp16-no-scaling", "fp16-no-master", "lars", "fp8-stochastic",
    "fp8-lm-o1", "fp8-lm-o2", "fp8-lm", "bf16-only", "bf16-only-kahan", "bf16-only-nearest", "fp16-only",
    "fixed16", "posit-stages",
]  # fmt: skip
SCALING = [
    "amp-fp16", "fp16-master", "fp16-master-static", "fp16-no-master", "lars", "fp8-stochastic",
    "fp16-only", "assigned",
]  # fmt: skip
SCHEDULED = ["posit8", "muppet", "assigned"]


def prepared(name: str) -> nn.Module:
    torch.manual_seed(0)
    return prepare(nn.Sequential(nn.Linear(32, 32), nn.LayerNorm(32), nn.Linear(32, 32)), name)


def adamw(model: nn.Module, name: str | Recipe) -> AdamW:
    return AdamW(model.parameters(), recipe=name)


def step(model: nn.Module, optimizer: Any, scale: Any = None, changes: Any = None) -> None:
    scale = scale or torch.amp.GradScaler("cpu", enabled=False)
    optimizer.zero_grad()
    scale.scale(model(X).square().mean()).backward()
    if changes is not None:
        changes.after_backward()
    scale.step(optimizer)
    scale.update()
    if changes is not None:
        changes.after_step()


def test_the_lists_of_this_file_are_those_of_the_catalogue() -> None:
    plain = Recipe("")
    stored = ("parameter", "held_gradient", "first_moment", "second_moment")
    assert [n for n, r in RECIPES.items() if any(getattr(r, s) for s in stored)] == STORING
    assert [n for n, r in RECIPES.items() if r.scaling != plain.scaling] == SCALING
    assert [n for n, r in RECIPES.items() if r.schedule] == SCHEDULED


@pytest.mark.parametrize("name", [n for n in RECIPES if RECIPES[n].product == "exact"])
def test_one_recipe_throughout_trains(name: str) -> None:
    model = prepared(name)
    optimizer, scale, changes = adamw(model, name), scaler(name), schedule(model, name, 100)
    for _ in range(3):
        step(model, optimizer, scale, changes)


@pytest.mark.parametrize("name", STORING)
@pytest.mark.parametrize("copied", [False, True])
def test_a_recipe_forgotten_in_the_optimizer_is_named(name: str, copied: bool) -> None:
    model = prepared(name)
    model = copy.deepcopy(model) if copied else model
    said = rf"prepared with recipe '{name}', and AdamW was made with recipe='fp32'.*recipe='{name}'\)"
    optimizer = AdamW(model.parameters())
    before = [p.detach().clone() for p in model.parameters()]
    for _ in range(2):  # it is no better the second time
        with pytest.raises(ArgumentError, match=said):
            step(model, optimizer, scaler(name))
    assert all(torch.equal(p, b) for p, b in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize("name", STORING)
@pytest.mark.parametrize("kind", [torch.optim.AdamW, torch.optim.SGD])
def test_torchs_optimizers_are_refused_where_they_would_store_wide(name: str, kind: Any) -> None:
    model = prepared(name)
    said = rf"recipe '{name}', whose .* {kind.__module__}.{kind.__name__} does not know.*fewbits.optim.AdamW"
    with pytest.raises(ArgumentError, match=said):
        step(model, kind(model.parameters(), lr=0.1))


@pytest.mark.parametrize("name", [n for n in RECIPES if n not in {*STORING, *SCHEDULED, "add-multiply"}])
def test_torchs_optimizers_are_welcome_where_nothing_is_stored(name: str) -> None:
    model = prepared(name)
    scale = torch.amp.GradScaler("cpu", enabled=name in SCALING)
    for _ in range(2):
        step(model, optimizer := torch.optim.AdamW(model.parameters()), scale)
    assert optimizer.state


@pytest.mark.parametrize("name", SCALING)
@pytest.mark.parametrize("scale", [None, torch.amp.GradScaler("cpu", enabled=False)], ids=["none", "off"])
def test_a_forgotten_scaler_is_named(name: str, scale: Any) -> None:
    model = prepared(name)
    kinds: list[Callable[..., Any]] = [lambda: adamw(model, name)]
    kinds += [] if name in STORING else [lambda: torch.optim.AdamW(model.parameters())]
    changes = schedule(model, name, 100)
    for kind in kinds:
        with pytest.raises(
            ArgumentError, match=rf"'{name}', which scales the loss.*optim.scaler\('{name}'\)"
        ):
            step(model, kind(), scale, changes)
    name_without = f"{name}:scaling=none"
    other = prepared(name_without)
    changes = schedule(other, name_without, 100)
    step(other, adamw(other, name_without), scale, changes)


@pytest.mark.parametrize("name", SCHEDULED)
def test_a_forgotten_schedule_is_named(name: str) -> None:
    model, said = (
        prepared(name),
        rf"'{name}', whose formats change .*train.schedule\(model, '{name}', steps\)",
    )
    with pytest.raises(ArgumentError, match=said):
        step(model, adamw(model, name), scaler(name))
    if name != "assigned":  # whose watchers keep it
        schedule(model, name, 100)  # and is gone
        with pytest.raises(ArgumentError, match=said):
            step(model, adamw(model, name), scaler(name))
    kept = schedule(model, name, 100)
    twin = copy.deepcopy(model)  # whose layers it does not change
    with pytest.raises(ArgumentError, match=said):
        step(twin, adamw(twin, name), scaler(name))
    optimizer, scale = adamw(model, name), scaler(name)
    step(model, optimizer, scale)
    with pytest.raises(ArgumentError, match=r"not told of the first step; call schedule.after_step\(\)"):
        step(model, optimizer, scale)
    kept.after_step()
    step(model, optimizer, scale)
    without = prepared(f"{name}:schedule=")
    step(without, adamw(without, f"{name}:schedule="), scaler(name))


@pytest.mark.parametrize("name", SCHEDULED)
@pytest.mark.parametrize("after", [True, False])
def test_a_schedule_is_found_where_other_parameters_took_the_place_of_those_that_it_was_made_with(
    name: str, after: bool
) -> None:
    model, plain = prepared(name), prepared("fp32").state_dict()
    changes = schedule(model, name, 100) if after else None
    model.load_state_dict({key: value.clone() for key, value in plain.items()}, assign=True)
    changes = changes or schedule(model, name, 100)
    optimizer, scale = adamw(model, name), scaler(name)
    for _ in range(3):
        step(model, optimizer, scale, changes)
    del changes
    if name != "assigned":  # whose watchers keep it
        with pytest.raises(ArgumentError, match="nothing changes them"):
            step(model, adamw(model, name), scaler(name))


def test_what_was_looked_at_in_two_steps_is_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = []
    monkeypatch.setattr(step_checks, "_check_stored", lambda recipe, optimizer: looks.append(recipe.name))
    model = prepared("mxfp6")
    optimizer = adamw(model, "mxfp6")
    for _ in range(4):
        step(model, optimizer)
    assert looks == ["mxfp6"] * 2


def test_recipes_that_differ_only_in_their_products_agree() -> None:
    model = prepared("mxfp6")
    step(model, adamw(model, "mxfp4"))
    with pytest.raises(ArgumentError, match="they differ in first_moment"):
        step(model, adamw(model, "mxfp6:first_moment=bf16"))
    both = prepared("mxfp6:first_moment=bf16")
    step(both, adamw(both, "mxfp6:first_moment=bf16"))


def test_an_optimizer_made_before_the_model_was_prepared_is_named() -> None:
    model = nn.Linear(32, 32)
    optimizer = adamw(model, "fp8-lm")
    prepare(model, "fp8-lm")
    with pytest.raises(ArgumentError, match=r"became fp16 after AdamW was made; call prepare"):
        step(model, optimizer)


def test_a_wrapped_optimizer_is_looked_at_too() -> None:
    model = nn.Linear(32, 32)
    sparsify(model, "2:4")
    prepare(model, "fp16-master")
    with pytest.raises(ArgumentError, match="was made with recipe='fp32'"):
        step(model, MaskedOptimizer(SGD(model.parameters(), 0.1), model), scaler("fp16-master"))
    optimizer = MaskedOptimizer(SGD(model.parameters(), 0.1, recipe="fp16-master"), model)
    with pytest.raises(ArgumentError, match="scales the loss"):
        step(model, optimizer)
    step(model, optimizer, scaler("fp16-master"))


def test_models_that_were_never_prepared_are_nobodys_business() -> None:
    model = nn.Linear(32, 32)
    step(model, torch.optim.SGD(model.parameters(), 0.1))
    step(model, AdamW(model.parameters(), recipe="fp8-lm-o2"))


STATES: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "torch's AdamW": lambda m: torch.optim.AdamW(m.parameters()),
    "torch's SGD": lambda m: torch.optim.SGD(m.parameters(), 0.1, momentum=0.9),
    "SGD": lambda m: SGD(m.parameters(), 0.1, momentum=0.9),
    "LARS": lambda m: LARS(m.parameters(), 0.1),
    "AdamW": lambda m: AdamW(m.parameters()),
}


@pytest.mark.parametrize("saved", STATES)
@pytest.mark.parametrize("into", ["SGD", "LARS", "AdamW"])
def test_the_state_of_another_optimizer_is_refused(saved: str, into: str) -> None:
    model = nn.Linear(32, 32)
    optimizer, other = STATES[saved](model), STATES[into](model)
    step(model, optimizer)
    if saved == into:
        other.load_state_dict(optimizer.state_dict())
        return
    before = other.state_dict()
    with pytest.raises(
        ArgumentError, match=re.escape(f"expected one that fewbits.optim.{into} with recipe=")
    ):
        other.load_state_dict(optimizer.state_dict())
    assert other.state_dict() == before


@pytest.mark.parametrize(
    ("saved", "into", "said"),
    [
        ("fp16-master", "fp16-no-master", "the state has master"),
        ("fp16-no-master", "fp16-master", "the state has no master"),
        ("bf16-only-kahan", "bf16-only", "the state has compensation"),
        ("bf16-only", "bf16-only-kahan", "the state has no compensation"),
    ],
)
def test_the_state_of_another_recipe_is_refused(saved: str, into: str, said: str) -> None:
    model, other = prepared(saved), prepared(into)
    optimizer = adamw(model, saved)
    step(model, optimizer, scaler(saved))
    with pytest.raises(ArgumentError, match=said):
        adamw(other, into).load_state_dict(optimizer.state_dict())


def test_the_name_with_a_change_is_one_that_can_be_read() -> None:
    model = prepared("fp16-master:vector=fp32")
    with pytest.raises(ArgumentError, match="or prepare with 'fp16-master:vector=fp32,scaling=none'"):
        step(model, adamw(model, "fp16-master:vector=fp32"))
    assert recipe("fp16-master:vector=fp32,scaling=none").scaling is None
