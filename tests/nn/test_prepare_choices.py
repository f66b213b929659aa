"""What prepare decides: which layer is last, what is left out, what is refused; that models still copy."""

import copy
import pickle
from typing import Any

import pytest
import torch
from torch import nn

from fewbits.errors import ArgumentError
from fewbits.nn import LayerPrecision, RoundingObserver, narrow_products, prepare, summary
from fewbits.recipes import recipe
from fewbits.recipes.parameter_marks import take_unrounded
from fewbits.recipes.recipe import OPERANDS
from fewbits.recipes.step_checks import recipe_of


def _mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))


def test_only_gradients_are_wide_in_a_layer_of_logits() -> None:
    last = LayerPrecision(recipe("mxfp4:logit_gradient=no"), last=True)
    assert [role for role in OPERANDS if last.format_of(role) is None] == ["dw_gradient", "dx_gradient"]


def test_only_gradients_go_to_infinity_where_a_loss_scale_looks_for_it() -> None:
    precision, large = LayerPrecision(recipe("fp8-stochastic:scaling=dynamic")), torch.full((2, 8), 6e4)
    for role in OPERANDS:
        assert precision.round(role, 2 * large, 1).isinf().all() == role.endswith("gradient")


@pytest.mark.parametrize("observer", [3, "RoundingObserver", RoundingObserver, [RoundingObserver()]])
def test_what_cannot_observe_is_refused_before_the_model_is_changed(observer: Any) -> None:
    model = _mlp()
    with pytest.raises(
        ArgumentError, match=r"observer=.*; expected a RoundingObserver, or what has its observe"
    ):
        prepare(model, "mxfp6", observer=observer)
    assert [type(m) for m in model] == [nn.Linear, nn.ReLU, nn.Linear]
    prepare(model, "mxfp6", observer=RoundingObserver())


def test_of_a_frozen_parameter_nothing_wide_is_kept_for_a_master_copy() -> None:
    model = _mlp()
    model[0].requires_grad_(False)
    prepare(model, "fp16-master")
    assert take_unrounded(model[0].weight) is None
    assert take_unrounded(model[2].weight) is not None


class _HeadFirst(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(8, 4)
        self.body = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.head(self.body(x))
        return y


class _Spectral(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(4, 4, dtype=torch.complex64))


@pytest.mark.parametrize("name", ["mxfp6", "fp16-master", "bf16-only", "fixed16"])
@pytest.mark.parametrize("left_out", ["0", "2"])
def test_a_left_out_layer_computes_and_learns(name: str, left_out: str) -> None:
    model = prepare(_mlp(), name, exclude=left_out)
    model(torch.randn(3, 8)).square().sum().backward()
    assert all(p.grad is not None for p in model.parameters())


@pytest.mark.parametrize("name", ["mxfp6", "fp16-master", "bf16-only"])
def test_only_what_is_included_is_changed(name: str) -> None:
    model = nn.Sequential(_mlp(), nn.Sequential(nn.Linear(4, 8), nn.RMSNorm(8)), nn.Linear(8, 4))
    prepare(model, name, include=["0", "1.0"], exclude="0.2")
    kinds = {n: type(m).__name__ for n, m in model.named_modules() if isinstance(m, nn.Linear)}
    assert kinds == {"0.0": "NarrowLinear", "0.2": "Linear", "1.0": "NarrowLinear", "2": "Linear"}
    wide = {one.name for one in summary(model).layers if one.state == "wide"}
    assert wide == {"0.2", "2"}
    y = model(torch.randn(3, 8))
    y.square().sum().backward()
    assert y.dtype == torch.float32
    assert all(p.grad is not None for p in model.parameters())


class _Twice(nn.Module):
    """A layer that has two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.blocks = nn.ModuleDict({"same": self.first, "end": nn.Linear(8, 8)})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.blocks["end"](self.first(x))
        return y


def test_a_layer_with_two_names_is_meant_by_either_of_them() -> None:
    def narrow(**how: str) -> list[str]:
        model = prepare(_Twice(), "mxfp6", **how)
        return [n for n, m in model.named_modules() if type(m).__name__ == "NarrowLinear"]

    assert narrow(include="blocks.same") == ["first"]
    assert narrow(exclude="*.same") == ["blocks.end"]
    model = prepare(_Twice(), "mxfp6", recipes={"blocks.same": "mxfp8"}, last="blocks.same")
    assert [model.first.precision.recipe.name, model.blocks["end"].precision.recipe.name] == [
        recipe(name).name for name in ("mxfp8", "mxfp6")
    ]
    narrow_products(model, exclude="blocks.same")


@pytest.mark.parametrize("norm", [nn.LayerNorm(8), nn.GroupNorm(2, 8), nn.RMSNorm(8)], ids=repr)
@pytest.mark.parametrize(
    ("chosen", "dtype"), [("mxfp6", torch.float16), ("fp16-master", torch.bfloat16), ("tf32", torch.float16)]
)
def test_a_norm_of_other_16_bits_computes_in_its_own(
    norm: nn.Module, chosen: str, dtype: torch.dtype
) -> None:
    model = nn.Sequential(nn.Linear(8, 8), copy.deepcopy(norm), nn.Linear(8, 8)).to(dtype)
    result = prepare(model, chosen)(torch.randn(4, 8))
    result.sum().backward()
    assert result.isfinite().all()
    assert all(p.grad is not None and p.grad.dtype == p.dtype for p in model[1].parameters())


@pytest.mark.parametrize("chosen", ["mxfp6", "mxfp6:vector=fp32", "fp16-master"])
def test_a_left_out_layer_of_a_16_bit_model_computes_in_those(chosen: str) -> None:
    model, seen = _mlp().bfloat16(), list[torch.dtype]()
    model[2].register_forward_hook(lambda *a: seen.append(a[2].dtype))
    assert prepare(model, chosen, exclude="2")(torch.randn(4, 8)).dtype == torch.float32
    assert seen == [torch.bfloat16]


def test_including_all_is_what_happens_without_include() -> None:
    torch.manual_seed(0)
    one, x = _mlp(), torch.randn(3, 8)
    other = copy.deepcopy(one)
    assert torch.equal(prepare(one, "mxfp6")(x), prepare(other, "mxfp6", include=("0", "*"))(x))


def test_a_fused_encoder_is_unfused_where_only_a_part_of_it_is_included() -> None:
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True, dropout=0)
    x, plain = torch.randn(1, 4, 32), copy.deepcopy(model)
    prepare(model, "mxfp4", include="linear1").eval()
    with torch.no_grad():
        assert not torch.equal(model(x), plain.eval()(x))


def test_the_layer_before_a_left_out_head_is_not_the_last() -> None:
    model = prepare(_mlp(), "mx9", exclude="2")
    assert not model[0].precision.last
    assert prepare(_mlp(), "mx9")[2].precision.last


def test_who_registers_the_head_first_names_it() -> None:
    assert prepare(_HeadFirst(), "mx9").body.precision.last
    model = prepare(_HeadFirst(), "mx9", last="head")
    assert model.head.precision.last
    assert not model.body.precision.last


@pytest.mark.parametrize(
    ("model", "name", "options", "said"),
    [
        (nn.Sequential(nn.ReLU()), "mxfp6", {}, "no layer that mxfp6 could change"),
        (_mlp(), "mxfp6", {"include": "3"}, "include='3' fits no module"),
        (_mlp(), "mxfp6", {"include": "0", "exclude": "0"}, "that is included and not excluded"),
        (_mlp(), "amp-bf16", {"include": "2"}, "leave include and exclude out"),
        (nn.ConvTranspose1d(4, 4, 1), "add-multiply", {}, "train it by another recipe"),
        (_mlp().double(), "mxfp6", {}, r"call model.float\(\) first"),
        (_mlp(), "amp-bf16", {"exclude": "2"}, "leave include and exclude out"),
        (_mlp(), "mxfp6", {"last": "head"}, "last='head' fits no module"),
        (_mlp(), "fp8-stochastic", {"last": "1"}, "last='1' fits no layer .*of which the last are 0, 2"),
        (nn.ModuleList([nn.Linear(4, 4, dtype=torch.cfloat)]), "mxfp6", {}, "are complex.*exclude='0'"),
        (nn.ModuleList([_Spectral(), nn.Linear(4, 4)]), "mxfp6", {}, "holds w itself.*exclude='0'"),
    ],
)
def test_what_cannot_be_is_refused(model: nn.Module, name: str, options: dict[str, str], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        prepare(model, name, **options)


@pytest.mark.parametrize("layer", [nn.Linear(4, 4), nn.Conv1d(4, 4, 1), nn.PReLU(), nn.Bilinear(4, 4, 4)])
def test_a_complex_input_is_refused_and_not_made_real(layer: nn.Module) -> None:
    inputs = (torch.ones(4, 4), torch.ones(4, 4, dtype=torch.complex64))
    model = prepare(nn.ModuleDict({"f": layer, "g": nn.Linear(4, 4)}), "mxfp6")
    with pytest.raises(ArgumentError, match="was given complex64; expected real"):
        model["f"](*inputs[not isinstance(layer, nn.Bilinear) :])


@pytest.mark.parametrize("name", ["amp-bf16", "mxfp6"])
def test_a_prepared_model_is_not_prepared_again(name: str) -> None:
    model = prepare(_mlp(), name)
    with pytest.raises(ArgumentError, match="prepared already"):
        prepare(model, "mxfp6")


def test_autocast_ends_with_the_forward_pass_and_travels_with_the_model() -> None:
    model = prepare(_mlp(), "amp-bf16")
    for one in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):  # noqa: S301 - our own
        assert one(torch.randn(2, 8)).dtype == torch.float32
        assert not torch.is_autocast_enabled("cpu")
    with pytest.raises(RuntimeError):
        model(torch.randn(2, 9))
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("name", ["fp32", "amp-bf16", "mxfp6", "fp8-lm"])
def test_every_parameter_and_its_copies_know_the_recipe(name: str) -> None:
    model = nn.Sequential(_mlp(), nn.LayerNorm(4))
    assert {recipe_of(p) for p in model.parameters()} == {None}
    prepare(model, name, **({} if name == "amp-bf16" else {"exclude": "0.2"}))
    for one in (model, copy.deepcopy(model), pickle.loads(pickle.dumps(model))):  # noqa: S301 - our own
        assert {recipe_of(p) for p in one.parameters()} == {recipe(name)}


@pytest.mark.parametrize("given", [None, 3, nn.Linear, [nn.Linear(8, 8)], torch.ones(2)])
def test_what_is_no_module_is_refused(given: Any) -> None:
    with pytest.raises(ArgumentError, match=r"model=(.|\n)*; expected a torch\.nn\.Module"):
        prepare(given, "mxfp6")
    numbered: Any = {0: "mxfp8"}
    with pytest.raises(ArgumentError, match="recipes has 0 where a pattern of names was expected"):
        prepare(_mlp(), "mxfp6", recipes=numbered)


def test_a_second_derivative_is_refused_and_not_wrong() -> None:
    model = prepare(_mlp(), "mxfp6")
    x = torch.randn(2, 8, requires_grad=True)
    with pytest.raises(ArgumentError, match=r"create_graph=True through a prepared layer.*take torch\.func"):
        torch.autograd.grad(model(x).sum(), x, create_graph=True)


def test_a_scaled_gradient_that_overflows_is_seen() -> None:
    chosen = recipe("assigned").extended(schedule="")
    model = prepare(_mlp(), chosen)
    (model(torch.randn(2, 8)).sum() * 2.0**40).backward()
    assert not all(torch.isfinite(p.grad).all() for p in model.parameters())
    model = prepare(_mlp(), chosen.extended(scaling=None))
    (model(torch.randn(2, 8)).sum() * 2.0**40).backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


def test_evaluations_add_nothing_to_what_was_seen() -> None:
    observer = RoundingObserver(1)
    model = prepare(_mlp(), "mxfp6", observer=observer)
    for _ in range(5):
        with torch.no_grad():
            model(torch.randn(2, 8))
    assert len(observer.drained()[0]) == 4


def test_no_batch_at_all_goes_through_sums_of_bit_patterns() -> None:
    model = prepare(nn.Sequential(nn.Conv2d(1, 2, 3)), "add-multiply")
    assert model(torch.empty(0, 1, 8, 8)).shape == (0, 2, 6, 6)


class Rotated(nn.Module):
    """A product with a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("turned", torch.eye(8).flip(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = x @ self.turned
        return y


class Spectrum(nn.Module):
    """A function that torch has for float32 only, without tensors of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.fft(x).real


@pytest.mark.parametrize("kind", [Rotated, Spectrum])
@pytest.mark.parametrize("chosen", ["mxfp6", "fp16-master"])
def test_what_cannot_take_16_bit_floats_is_named_and_runs_where_it_is_left_out(
    kind: type[nn.Module], chosen: str
) -> None:
    def made() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(8, 8), kind(), nn.Linear(8, 4))

    x = torch.randn(3, 8)
    with pytest.raises(
        Exception, match=rf"1 \({kind.__name__}\) cannot compute (.|\n)*; let float32 flow"
    ) as e:
        prepare(made(), chosen)(x)
    assert "with exclude='1'" in str(e.value)
    model = prepare(made(), chosen, exclude="1")
    seen: list[Any] = []
    for layer in model:
        layer.register_forward_hook(lambda *call: seen.append(call[2]))
    model(x).sum().backward()
    assert seen[1].dtype == torch.float32
    assert torch.equal(seen[1], kind()(seen[0].float()))  # its own function, of what came
    assert model[0].weight.grad.any()


def test_a_function_that_nobody_excluded_takes_what_flows() -> None:
    model = prepare(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)), "mxfp6", include=["0", "2"])
    seen: list[Any] = []
    model[1].register_forward_hook(lambda *call: seen.append(call[2]))
    model(torch.randn(3, 8))
    assert seen[0].dtype == torch.bfloat16
