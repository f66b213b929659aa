"""Layers may have recipes of their own, and a recipe's exceptions hold for the layers that it means."""

from typing import Any

import pytest
import torch
from torch import nn

from fewbits.errors import ArgumentError
from fewbits.nn import LayerPrecision, prepare, summary
from fewbits.optim import AdamW
from fewbits.recipes import recipe
from fewbits.recipes.parameter_marks import take_unrounded
from fewbits.recipes.step_checks import recipe_of

OPERANDS = tuple(recipe("fp32").operands)


def made() -> nn.Sequential:
    """An activation of its own parameters lies before the first layer: it multiplies nothing."""
    torch.manual_seed(0)
    return nn.Sequential(nn.PReLU(), *(nn.Linear(32, 32) for _ in range(4)), nn.LayerNorm(32))


def operands(model: nn.Module) -> dict[str, dict[str, str]]:
    """Return what each layer rounds its operands to, taken from the products themselves."""
    seen: dict[str, dict[str, str]] = {}

    class Observer:
        def observe(
            self, precision: LayerPrecision, role: str, x: torch.Tensor, rounded: torch.Tensor, axis: int
        ) -> None:
            if role in OPERANDS:
                seen.setdefault(precision.layer, {})[role] = str(getattr(precision.recipe, role))

    for module in model.modules():
        if isinstance(getattr(module, "precision", None), LayerPrecision):
            module.precision.observer = Observer()
    model(torch.randn(4, 32, requires_grad=True)).square().sum().backward()
    return seen


KEEPING = "mxfp6:keep_first=yes"
KEPT: dict[str, tuple[str, dict[str, object], set[str]]] = {
    "none": ("mxfp6", {}, set()),
    "first": (KEEPING, {}, {"1"}),
    "last": ("mxfp6:keep_last=yes", {}, {"4"}),
    "both": (f"{KEEPING},keep_last=yes", {}, {"1", "4"}),
    "last by name": (f"{KEEPING},keep_last=yes", {"last": "2"}, {"1", "2"}),
    "several last": ("mxfp6:keep_last=yes", {"last": ("2", "3")}, {"2", "3"}),
    "excluded first": (KEEPING, {"exclude": "1"}, {"1"}),
    "excluded last": ("mxfp6:keep_last=yes", {"exclude": "4"}, {"4"}),
    "catalogue": ("fp8-stochastic", {}, {"1", "4"}),
}


@pytest.mark.parametrize("case", KEPT)
def test_the_first_and_the_last_layer_are_kept_where_the_recipe_says_so_and_no_other(case: str) -> None:
    """The first layer is that of the model: the one after an excluded first layer is not it."""
    chosen, how, kept = KEPT[case]
    found = operands(prepare(made(), chosen, **how))
    assert set(found) == {"1", "2", "3", "4"} - kept
    assert all(set(roles) == set(OPERANDS) for roles in found.values())


def test_a_kept_layer_computes_with_its_operands_as_they_are() -> None:
    torch.manual_seed(0)
    model, x = prepare(made(), "mxfp4:keep_first=yes,keep_last=yes,vector=fp32"), torch.randn(4, 32)
    for name in ("1", "4"):
        layer = model.get_submodule(name)
        wanted = nn.functional.linear(x, layer.weight, layer.bias)
        torch.testing.assert_close(layer(x), wanted, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(model[2](x), nn.functional.linear(x, model[2].weight, model[2].bias), atol=1e-3)


def test_only_the_gradient_of_the_logits_is_spared_where_a_recipe_spares_it() -> None:
    found = operands(prepare(made(), "mxfp4"))
    gradients = {"dw_gradient", "dx_gradient"}
    assert {name: set(OPERANDS) - set(roles) for name, roles in found.items()} == {
        "1": set(),
        "2": set(),
        "3": set(),
        "4": gradients,
    }


def test_a_layer_takes_the_recipe_of_the_last_pattern_that_fits() -> None:
    given = {"*": "mxfp8", "3": "mxfp6", "4": "mx9:logit_gradient=yes"}
    found = operands(prepare(made(), "mxfp4", recipes=given))
    assert {name: roles["dw_activation"] for name, roles in found.items()} == {
        "1": "mxfp8_e4m3",
        "2": "mxfp8_e4m3",
        "3": "mxfp6_e3m2",
        "4": "mx9",
    }


def test_a_layers_recipe_computes_what_it_computes_in_a_model_of_its_own() -> None:
    torch.manual_seed(0)
    both, alone = made(), made()
    x = torch.randn(8, 32)
    prepare(both, "mxfp6", recipes={"3": "mxfp4:logit_gradient=yes"})
    prepare(alone, "mxfp4:logit_gradient=yes")
    assert torch.equal(both[3](x), alone[3](x))
    assert not torch.equal(both[2](x), alone[2](x))


@pytest.mark.parametrize(("whole", "one"), [("fp32", "mxfp6"), ("mxfp6", "fp32"), ("fp8-lm", "mxfp4")])
def test_a_model_of_two_recipes_trains_and_its_optimizer_takes_the_models(whole: str, one: str) -> None:
    model = prepare(made(), whole, recipes={"4": one})
    assert {recipe_of(p) for p in model.parameters()} == {recipe(whole)}
    optimizer, x, losses = AdamW(model.parameters(), lr=1e-2, recipe=whole), torch.randn(32, 32), []
    for _ in range(8):
        loss = (model(x) - x.flip(1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]


def test_a_layer_of_another_recipe_has_its_master_copy_from_before_it_was_rounded() -> None:
    model = made()
    before = model[4].weight.detach().clone()
    prepare(model, "fp16-master", recipes={"4": "mxfp4:vector=fp16"})
    wide = take_unrounded(model[4].weight)
    assert wide is not None
    assert torch.equal(wide, before)
    assert model[4].weight.dtype == torch.float16


@pytest.mark.parametrize("vector", ["fp32", "bf16"])
def test_a_layer_whose_recipe_rounds_nothing_computes_as_torchs_does(vector: str) -> None:
    model = prepare(made(), "fp32", recipes={"4": f"mxfp6:vector={vector}"})
    x = torch.randn(4, 32)
    wanted = nn.functional.linear(x, model[2].weight, model[2].bias)
    torch.testing.assert_close(
        model[2](x.to(getattr(torch, {"fp32": "float32"}.get(vector, "bfloat16")))).float(),
        wanted,
        rtol=0.02 if vector == "bf16" else 1e-5,
        atol=0.02 if vector == "bf16" else 1e-5,
    )
    assert {one.name: one.state for one in summary(model).layers} == {
        "0": "wide",
        "1": "wide",
        "2": "wide",
        "3": "wide",
        "4": "narrow",
    }


class Odd(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + 1


def test_what_has_no_narrow_form_may_stay_where_only_other_layers_are_narrow() -> None:
    model = nn.Sequential(Odd(8, 8), nn.Linear(8, 8))
    with pytest.raises(ArgumentError, match="0 is a Odd"):
        prepare(model, "mxfp6")
    assert prepare(model, "fp32", recipes={"1": "mxfp6"})(torch.ones(2, 8)).isfinite().all()


@pytest.mark.parametrize(
    ("whole", "recipes", "said"),
    [
        ("mxfp6", {"head": "mxfp8"}, r"recipes='head' fits no module"),
        ("mxfp6", {"5": "mxfp8"}, r"recipes=\{'5': ...\} changes nothing: no layer of that name multiplies"),
        ("mxfp6", {"3": "mxfp8", "*": "mxfp4"}, r"recipes=\{'3': ...\} changes nothing"),
        ("mxfp6", {"3": "amp-bf16"}, "amp-bf16 has autocast, which is the whole model's"),
        ("mxfp6", {"3": "muppet"}, "muppet has a schedule"),
        ("posit8", {"3": "mxfp6"}, "posit8 has a schedule"),
        (
            "mxfp6",
            {"3": "fp16-master"},
            r"has parameter=fp16, and the model's mxfp6 has None: what is stored",
        ),
        ("mxfp6", {"3": "mxfp8:scaling=dynamic"}, "has scaling=dynamic, from 65536, and the model's mxfp6"),
        ("mxfp6", {"3": "no-such"}, "there is no recipe 'no-such'"),
        ("mxfp6", {"3": None}, "recipe=None; expected a text"),
        ("mxfp6", "mxfp4", "recipes='mxfp4'; expected recipes by patterns of layers"),
        ("mxfp6", ["mxfp4"], r"recipes=\['mxfp4'\]; expected recipes by patterns of layers"),
    ],
)
def test_recipes_that_single_layers_cannot_have_are_refused(whole: str, recipes: Any, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        prepare(made(), whole, recipes=recipes)
