"""No layer that multiplies stays wide without a word: it is narrow, or refused with all others at once."""

import copy
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize, prune

from fewbits import quantize
from fewbits.errors import ArgumentError
from fewbits.nn import prepare
from fewbits.nn.layers import LAYERS


class Named(nn.Linear):
    """A linear layer that computes as all do."""

    def __init__(self, width: int) -> None:
        super().__init__(width, width)


class Doubled(nn.Linear):
    """A linear layer that computes something else."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return super().forward(input) * 2


class Twofold(nn.Conv1d):
    """A convolution that is changed in two places."""

    def _conv_forward(
        self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        return super()._conv_forward(input, weight + 1, bias)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(input)


class Shifted(nn.Conv1d):
    """A convolution whose arithmetic is changed behind its forward."""

    def _conv_forward(
        self, input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None
    ) -> torch.Tensor:
        return super()._conv_forward(input, weight + 1, bias)


class Wrapped(nn.Linear):
    def __call__(self, *args: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = super().__call__(*args) + 1
        return found


class Mixture(nn.Module):
    """A matrix of its own, and with ``layers`` a child besides."""

    def __init__(self, layers: bool = False) -> None:
        super().__init__()
        self.experts = nn.Parameter(torch.randn(3, 8, 8) / 8)
        self.start = nn.Parameter(torch.ones(1, 1, 8))  # a vector: it is added
        self.norm, self.inner = nn.LayerNorm((2, 8)), nn.Linear(8, 8) if layers else nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.inner(x)
        return y.float() @ self.experts.sum(0)


def replaced() -> nn.Linear:
    layer = nn.Linear(8, 8)
    layer.forward = lambda x: nn.functional.linear(x, layer.weight)
    return layer


def packed() -> nn.Linear:
    layer = nn.Linear(8, 8)
    layer.weight = nn.Parameter(quantize(layer.weight.detach(), "mxfp6_e2m3"), requires_grad=False)
    return layer


REFUSED: dict[str, tuple[Callable[[], nn.Module], str, str]] = {
    "forward": (lambda: Doubled(8, 8), "a Linear with a forward of its own", "odd"),
    "behind forward": (lambda: Shifted(8, 8, 1), "a Conv1d with a _conv_forward of its own", "odd"),
    "both": (lambda: Twofold(8, 8, 1), "a Conv1d with a forward of its own", "odd"),
    "call": (lambda: Wrapped(8, 8), "a Linear with a __call__ of its own", "odd"),
    "instance": (replaced, "its forward was replaced on the instance", "odd"),
    "matrix": (lambda: nn.ParameterList([torch.ones(2, 2)]), "it holds 0 itself", "odd"),
    "matrix beside norm": (Mixture, "it holds experts itself", "odd.experts"),
    "matrix beside layer": (lambda: Mixture(layers=True), "it holds experts itself", "odd.experts"),
    "script": (
        lambda: torch.jit.trace(nn.Linear(8, 8), torch.ones(1, 8)),
        "it holds weight itself",
        "odd",
    ),
    "packed": (packed, "its weights are packed already", "odd"),
    "lazy": (lambda: nn.LazyLinear(8), "it has no weights yet", "odd"),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace")
@pytest.mark.parametrize("case", REFUSED)
def test_what_multiplies_and_has_no_narrow_form_is_refused_by_name_until_excluded(case: str) -> None:
    make, why, advice = REFUSED[case]
    model = nn.ModuleDict({"known": nn.Linear(8, 8), "odd": make()})
    kind = type(model["odd"]).__name__
    with pytest.raises(ArgumentError) as error:
        prepare(model, "mxfp6")
    assert str(error.value).startswith(f"odd is a {kind}, which has no narrow form ({why}")
    assert str(error.value).endswith(f"; leave it as it is with exclude={advice!r}")
    assert type(model["known"]) is nn.Linear
    prepare(model, "mxfp6", exclude=advice)
    assert type(model["known"]) is LAYERS[nn.Linear]


def test_the_layers_beside_an_excluded_matrix_are_narrow() -> None:
    model = prepare(nn.Sequential(nn.Linear(8, 8), Mixture(layers=True)), "mxfp6", exclude="1.experts")
    assert type(model[1].inner) is LAYERS[nn.Linear]
    model(torch.randn(4, 8)).sum().backward()
    assert model[1].experts.grad is not None


def test_everything_that_has_to_be_excluded_is_named_at_once() -> None:
    blocks = [nn.ModuleDict({"mix": Mixture(layers=True), "odd": Doubled(8, 8)}) for _ in range(3)]
    model = nn.ModuleDict({"blocks": nn.ModuleList(blocks), "free": nn.Linear(8, 8), "alone": replaced()})
    with pytest.raises(ArgumentError) as error:
        prepare(model, "mxfp6", exclude="free")
    *said, advice = str(error.value).splitlines()
    assert said == [
        "blocks.*.mix is a Mixture, which has no narrow form (it holds experts itself); 3 of them",
        "blocks.*.odd is a Doubled, which has no narrow form (a Linear with a forward of its own); 3 of them",
        "alone is a Linear, which has no narrow form (its forward was replaced on the instance)",
    ]
    wanted = ("free", "blocks.*.mix.experts", "blocks.*.odd", "alone")
    assert advice == f"leave them as they are with exclude={wanted!r}"
    prepare(model, "mxfp6", exclude=wanted)


def test_a_pattern_is_advised_only_where_it_fits_nothing_else() -> None:
    model = nn.Sequential(nn.Linear(8, 8), Doubled(8, 8), Doubled(8, 8))
    with pytest.raises(ArgumentError, match=r"exclude=\('1', '2'\)"):
        prepare(model, "mxfp6")


def test_a_model_that_is_nothing_but_such_a_layer_has_nothing_to_exclude() -> None:
    with pytest.raises(ArgumentError, match=r"the model is a Doubled.*exclude='weight'"):
        prepare(Doubled(8, 8), "mxfp6")


@pytest.mark.parametrize("chosen", ["mxfp6", "fp8-stochastic", "bf16-only"])
def test_a_subclass_that_computes_the_same_is_narrow_and_stays_what_it_was(chosen: str) -> None:
    torch.manual_seed(0)
    layer, plain = Named(33), nn.Linear(33, 33)
    plain.load_state_dict(layer.state_dict())
    x, found = torch.randn(4, 33), []
    for model in (prepare(nn.Sequential(layer), chosen), prepare(nn.Sequential(plain), chosen)):
        torch.manual_seed(1)
        y = model(x)
        found.append([y, *torch.autograd.grad(y.square().sum(), list(model.parameters()))])
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)
    assert isinstance(layer, Named)
    for one in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):  # noqa: S301 - our own
        assert type(one) is type(layer)
        assert torch.equal(one.weight, layer.weight)


def test_a_weight_that_is_computed_from_others_is_rounded_as_it_is_used() -> None:
    torch.manual_seed(0)
    layer = parametrizations.weight_norm(nn.Linear(33, 35))
    plain = nn.Linear(33, 35)
    plain.load_state_dict({"weight": layer.weight.detach(), "bias": layer.bias.detach()})
    model, x = prepare(nn.Sequential(layer), "mxfp4"), torch.randn(4, 33)
    y = model(x)
    assert torch.equal(y, prepare(nn.Sequential(plain), "mxfp4")(x))
    y.sum().backward()
    assert all(p.grad is not None and bool(p.grad.any()) for p in model.parameters())
    with pytest.raises(ArgumentError, match="its weight is computed from others"):
        prepare(nn.Sequential(parametrizations.weight_norm(nn.Linear(8, 8))), "bf16-only")


@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
@pytest.mark.parametrize("chosen", ["bf16-only", "fp16-master", "posit-stages"])
def test_norms_of_the_older_kind_are_not_held_narrow_either(chosen: str) -> None:
    for norm in (torch.nn.utils.weight_norm, torch.nn.utils.spectral_norm):
        layers = nn.Linear(8, 8), norm(nn.Linear(8, 8)), norm(nn.GRU(8, 8), "weight_hh_l0")
        held = {name: p.clone() for name, p in nn.Sequential(*layers).named_parameters()}
        with pytest.raises(ArgumentError, match=r"computed from others(.|\n)*exclude=\('1', '2'\)"):
            prepare(nn.Sequential(*layers), chosen)
        assert all(torch.equal(p, held[name]) for name, p in nn.Sequential(*layers).named_parameters())
        torch.manual_seed(1)
        narrow = prepare(norm(nn.Linear(8, 8)), "mxfp6")  # which holds none
        assert narrow(torch.ones(2, 8)).isfinite().all()
    pruned = prune.l1_unstructured(nn.Linear(8, 8), "weight", amount=0.5)  # zeros are in every format
    assert prepare(nn.Sequential(pruned), chosen)(torch.ones(2, 8)).isfinite().all()


@pytest.mark.parametrize("kind", [lambda: nn.Linear(33, 33), lambda: Named(33)])
def test_a_parametrization_can_be_removed_and_the_layer_stays_narrow(kind: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(parametrizations.weight_norm(kind()), parametrizations.weight_norm(kind()))
    prepare(model, "mxfp4")
    x = torch.randn(4, 33)
    y = copy.deepcopy(model)(x)
    for layer in model:
        parametrize.remove_parametrizations(layer, "weight")
        assert isinstance(layer, type(kind()))
    assert torch.equal(model(x), y)
    assert "0.weight" in model.state_dict()
    assert torch.equal(copy.deepcopy(model)(x), y)


class Scan(nn.Module):
    """Multiplies what a layer returns by a tensor of its own, as state-space models do."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.decay = nn.Parameter(torch.eye(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.inner(x) @ self.decay
        return y


def test_a_module_that_mixes_dtypes_is_named_with_what_helps() -> None:
    model = prepare(nn.Sequential(Scan(), nn.Linear(8, 8)), "mxfp6", exclude="*.decay")
    with pytest.raises(RuntimeError, match=r"0 \(Scan\) cannot compute with.*vector=fp32.*exclude='0'"):
        model(torch.randn(2, 8))
    for how in ({"exclude": "*.decay", "recipe": "mxfp6:vector=fp32"}, {"exclude": "0", "recipe": "mxfp6"}):
        prepare(nn.Sequential(Scan(), nn.Linear(8, 8)), **how)(torch.randn(2, 8)).sum().backward()


def test_errors_of_other_kinds_stay_as_they_are() -> None:
    model = prepare(nn.Sequential(nn.Linear(8, 8)), "mxfp6")
    with pytest.raises(RuntimeError) as error:
        model(torch.randn(2, 9))
    assert "cannot compute" not in str(error.value)
