"""A prepared model says what has become of each layer, and names whatever still multiplies wide."""

import pytest
import torch
from torch import nn

from fewbits.errors import ArgumentError
from fewbits.nn import Summary, narrow_products, prepare, summary


def layers(model: nn.Module, *inputs: torch.Tensor) -> dict[str, tuple[str, str]]:
    """Return the state and the notes of each layer."""
    return {one.name: (one.state, "; ".join(one.notes)) for one in summary(model, *inputs).layers}


class OwnAttention(nn.Module):
    """Attention that is written as functions, a tied head, a matrix among the buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.qkv, self.head = nn.Embedding(11, 8), nn.Linear(8, 24), nn.Linear(8, 11)
        self.head.weight = self.table.weight
        self.register_buffer("mix", torch.eye(8))
        self.bias = nn.Parameter(torch.zeros(4, 8))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.table(tokens)).chunk(3, -1)
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        y = y @ self.mix.to(y.dtype) + (q @ k.mT).sum()
        logits: torch.Tensor = self.head(y)
        return logits


def test_each_layer_is_listed_with_the_formats_of_its_operands() -> None:
    model = nn.Sequential(nn.Embedding(5, 8), nn.Linear(8, 8), nn.ReLU(), nn.PReLU(), nn.Linear(8, 4))
    found = summary(prepare(model, "mxfp4w-mxfp6", exclude="4"))
    assert [one.name for one in found.layers] == ["0", "1", "3", "4"]
    embedding, linear, slope, head = found.layers
    assert embedding.operands == {"forward_weight": "mxfp4"}
    assert linear.operands["dx_weight"] == "mxfp4"
    assert linear.operands["dw_gradient"] == "mxfp6_e3m2/rceil"
    assert len(linear.operands) == 6
    assert (slope.operands, slope.state) == ({}, "narrow")
    assert (head.state, head.kind, head.notes) == ("wide", "Linear", ("excluded",))
    assert str(found).splitlines() == [
        "mxfp4w-mxfp6: bf16 between products",
        "0  Embedding  narrow  weight=mxfp4",
        "1  Linear     narrow  weight=mxfp4, activation=mxfp6_e3m2, gradient=mxfp6_e3m2/rceil",
        "3  PReLU      narrow",
        "4  Linear     wide  excluded",
    ]


def test_what_a_recipe_spares_is_said_with_the_reason() -> None:
    def made() -> nn.Module:
        return nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 4))

    found = layers(prepare(made(), "fp8-stochastic"))
    assert found == {
        "0": ("kept", "kept as the first layer"),
        "1": ("narrow", ""),
        "2": ("kept", "kept as the last layer"),
    }
    assert layers(prepare(made(), "mx9"))["2"] == (
        "narrow",
        "gives the logits: their gradient is not rounded",
    )


def test_what_stays_wide_without_being_a_layer_is_named() -> None:
    model = prepare(nn.ModuleDict({"attention": OwnAttention()}), "mxfp6", exclude="attention.bias")
    found = layers(model)
    assert found["attention"] == ("wide", "products of activations in its forward are not seen")
    assert found["attention.mix"] == ("wide", "products with it are not seen")
    assert found["attention.bias"] == ("wide", "excluded")
    tied = "a weight is that of attention.head, attention.table"
    assert found["attention.table"] == found["attention.head"] == ("narrow", tied)


def test_a_run_names_every_product_outside_of_narrow_layers() -> None:
    model = prepare(OwnAttention(), "mxfp6", exclude=("bias", "qkv"))
    found = layers(model, torch.arange(6).reshape(1, 6))
    assert found["qkv"] == ("wide", "excluded; multiplies by addmm")
    state, notes = found[""]
    assert state == "wide"
    assert notes.endswith("multiplies by bmm, mm")
    assert "multiplies" not in found["head"][1] + found["table"][1]
    whole = nn.Sequential(nn.Linear(8, 8), nn.Conv1d(2, 2, 1), nn.LSTM(8, 8))
    assert all(
        state == "narrow" for state, _ in layers(prepare(whole, "mxfp6"), torch.randn(3, 2, 8)).values()
    )


class Reads(nn.Module):
    """Multiplies by the weight of a layer that it never calls, as Hugging Face's Mamba does."""

    def __init__(self) -> None:
        super().__init__()
        self.called, self.read = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.called(x).float() @ self.read.weight
        return y


def test_a_run_names_layers_whose_weight_is_read_by_somebody_else() -> None:
    found = layers(prepare(Reads(), "mxfp6"), torch.randn(2, 8))
    assert found[""] == ("wide", "multiplies by mm")
    assert found["called"] == ("narrow", "")
    assert found["read"] == ("narrow", "did not run: see who reads its weight")


class Scores(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.q(x).float() @ self.k(x).float().mT


@pytest.mark.parametrize("by_torch", [False, True])
@pytest.mark.parametrize("chosen", ["mxfp8", "posit16", "fp16-no-scaling"])
def test_products_that_were_made_narrow_are_not_called_wide(
    chosen: str, by_torch: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever multiplies the rounded operands; those that no format rounds are as wide as before."""
    monkeypatch.setattr("fewbits.nn.layer_precision._has_fast_bfloat16", lambda: by_torch)
    for exclude in ((), ("1",)):
        model = prepare(nn.Sequential(Scores(), Scores()), chosen)
        model = narrow_products(model, exclude=exclude)
        found = layers(model, torch.randn(2, 8, 8))
        wide = {name for name, (_, notes) in found.items() if "multiplies by" in notes}
        assert wide == ({"0", "1"} if chosen == "fp16-no-scaling" else set(exclude))


def test_a_run_leaves_the_model_as_it_was() -> None:
    model = prepare(OwnAttention(), "mxfp6", exclude="bias")
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()]
    summary(model, torch.arange(6).reshape(1, 6))
    with pytest.raises(TypeError):
        summary(model, 1, 2)
    assert [len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules()] == hooks


@pytest.mark.parametrize("chosen", ["fp32", "amp-bf16"])
def test_recipes_that_leave_layers_alone_have_a_summary_too(chosen: str) -> None:
    found = summary(prepare(nn.Sequential(nn.Linear(4, 4)), chosen))
    assert isinstance(found, Summary)
    assert [(one.name, one.state) for one in found.layers] == [("0", "wide")]
    assert ("torch.autocast" in str(found)) is (chosen == "amp-bf16")


def test_a_summary_is_of_this_moment() -> None:
    model = prepare(nn.Sequential(nn.Linear(4, 4)), "mxfp6")
    model[0].precision.recipe = model[0].precision.recipe.extended(weight="mxfp4")
    assert summary(model).layers[0].operands["dx_weight"] == "mxfp4"


def test_a_model_that_is_not_prepared_has_no_summary() -> None:
    with pytest.raises(ArgumentError, match=r"Linear is not prepared; call fewbits\.nn\.prepare"):
        summary(nn.Linear(2, 2))


def test_a_run_leaves_averages_and_random_numbers_as_they_were() -> None:
    layers = [nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 4)]
    model = prepare(nn.Sequential(*layers), "mxfp6")
    model.register_buffer("one", torch.ones(1).expand(4))
    with torch.inference_mode():
        model.register_buffer("fixed", torch.ones(4))  # which nobody changes outside of that mode
    before = {name: x.clone() for name, x in model.state_dict().items()}
    torch.manual_seed(5)
    drawn = torch.rand(3)
    torch.manual_seed(5)
    summary(model, torch.randn(6, 8, generator=torch.Generator().manual_seed(1)) + 3)
    assert torch.equal(torch.rand(3), drawn)
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
    with pytest.raises(IndexError):  # the norm has run when the last layer fails
        summary(model.append(nn.Flatten(9)), torch.ones(6, 8))
    assert all(torch.equal(x, before[name]) for name, x in model.state_dict().items())
