"""Direct casting: what is rounded, along which axis, what is counted, and that the model comes back."""

from contextlib import suppress
from math import inf, isnan, log10, nan
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

import fewbits as fb
from fewbits import kernels
from fewbits.compare import WeightCast, direct_cast
from fewbits.compare.casting import rounded
from fewbits.compare.weight_cast import cast_weights
from fewbits.formats import parse


class By:
    """Any rounding, and what it could have kept."""

    def __init__(self, rounding: Any, limits: Any = lambda x, axis: inf) -> None:
        self.round, self.limits = rounding, limits

    def tally(self, x: Any, y: Any, axis: int) -> kernels.ErrorSums:
        return kernels.tally_values(x.detach().numpy(), y.detach().numpy(), self.limits(x, axis))


class Recorder:
    """A quantizer that rounds to a grid of 1/4 and remembers what it was given."""

    def __init__(self) -> None:
        self.seen = []

    def __call__(self, x: Any, axis: int) -> Any:
        self.seen.append((tuple(x.shape), axis))
        return (x * 4).round() / 4


def quarter(x: Any, axis: int) -> Any:
    return (x * 4).round() / 4


class Model(nn.Module):
    """An embedding tied to the head, a convolution over time, a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 6)
        self.conv = nn.Conv1d(6, 6, 3, padding=1)
        self.norm = nn.LayerNorm(6)
        self.head = nn.Linear(6, 10)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Any) -> Any:
        x = self.conv(self.embedding(tokens).transpose(1, 2)).transpose(1, 2)
        return self.head(self.norm(x))


@pytest.fixture
def model() -> Any:
    torch.manual_seed(0)
    return Model()


TOKENS = torch.arange(8).reshape(2, 4)


def test_weights_and_inputs_are_rounded_along_the_axis_that_the_product_sums_over(model: Any) -> None:
    quantizer = Recorder()
    with rounded(model, By(quantizer)):
        model(TOKENS)
    assert quantizer.seen == [((6, 6, 3), 1), ((10, 6), -1), ((2, 6, 4), -2), ((2, 4, 6), -1)]


@pytest.mark.parametrize(
    ("layer", "shape", "axes"),
    [
        (nn.Linear(6, 3), (5, 6), (-1, -1)),
        (nn.Conv1d(6, 3, 1), (2, 6, 5), (1, -2)),
        (nn.Conv2d(6, 3, 1), (2, 6, 5, 5), (1, -3)),
        (nn.Conv2d(6, 3, 1), (6, 5, 5), (1, -3)),  # no batch axis
        (nn.Conv3d(6, 3, 1), (2, 6, 5, 5, 5), (1, -4)),
    ],
)
def test_the_reduction_axis_of_each_layer_has_its_input_channels(layer: Any, shape: Any, axes: Any) -> None:
    quantizer = Recorder()
    with rounded(layer, By(quantizer)):
        layer(torch.ones(shape))
    (weight, weight_axis), (x, input_axis) = quantizer.seen
    assert (weight_axis, input_axis) == axes
    assert weight[weight_axis] == x[input_axis] == 6


def test_the_output_is_that_of_rounded_operands(model: Any) -> None:
    layer = nn.Linear(6, 3)
    x = torch.randn(4, 6)
    expected = nn.functional.linear(quarter(x, -1), quarter(layer.weight, -1), layer.bias)
    with rounded(layer, By(quarter)):
        assert torch.equal(layer(x), expected)
    assert not torch.equal(layer(x), expected)


@pytest.mark.parametrize("fails", [False, True])
def test_the_model_is_afterwards_what_it_was_also_after_an_exception(model: Any, fails: Any) -> None:
    parameters = dict(model.named_parameters())
    values = {name: p.detach().clone() for name, p in parameters.items()}
    before = model(TOKENS)
    try:
        with rounded(model, By(quarter)):
            assert not torch.equal(model(TOKENS), before)
            if fails:
                raise KeyboardInterrupt
    except KeyboardInterrupt:
        pass
    assert model.head.weight is model.embedding.weight
    for name, parameter in model.named_parameters():
        assert parameter is parameters[name]
        assert torch.equal(parameter, values[name])
        assert parameter.requires_grad
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert torch.equal(model(TOKENS), before)


def test_a_quantizer_that_fails_on_the_second_weight_leaves_the_model_whole(model: Any) -> None:
    def fussy(x: Any, axis: int) -> Any:
        if axis == -1:
            raise ValueError("no rows")
        return x

    original = model.conv.weight
    with pytest.raises(ValueError, match="no rows"), rounded(model, By(fussy)):
        pass
    assert model.conv.weight is original
    assert not model.conv._forward_pre_hooks


def pruned(layer: nn.Linear) -> nn.Module:
    module: nn.Module = prune.l1_unstructured(layer, "weight", 0.5)
    return module


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize(
    "computed",
    [nn.utils.weight_norm, pruned, parametrizations.weight_norm, parametrizations.orthogonal],
)
def test_a_layer_whose_weight_is_computed_from_others_stays_as_it_is_and_is_named(computed: Any) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(computed(nn.Linear(8, 8)), nn.Linear(8, 4)).eval(), torch.randn(3, 8)
    before, wide = {k: v.clone() for k, v in model.state_dict().items()}, model(x).detach()
    first, total = model[0].weight.detach().clone(), sum(p.numel() for p in model.parameters())
    with suppress(KeyboardInterrupt), rounded(model, By(quarter)) as cast:
        assert [layer.layer for layer in cast.layers] == ["1"]
        assert cast.left_wide == (("0.weight", 64 / total),)
        assert torch.equal(model[1].weight, quarter(before["1.weight"], -1))
        hidden = model[0](x)
        assert torch.equal(hidden, nn.functional.linear(x, first, model[0].bias))
        assert torch.equal(
            model(x), nn.functional.linear(quarter(hidden, -1), model[1].weight, model[1].bias)
        )
        raise KeyboardInterrupt
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert torch.equal(model(x), wide)


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize("computed", [nn.utils.weight_norm, pruned, parametrizations.weight_norm])
@pytest.mark.parametrize("method", ["round", "gptq"])
def test_a_computed_weight_is_no_matrix_of_its_layer_that_a_file_would_hold(
    computed: Any, method: str
) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(computed(nn.Linear(8, 8)), nn.Linear(8, 4)).eval(), torch.randn(20, 8)
    before, wide = {k: v.clone() for k, v in model.state_dict().items()}, model(x).detach()
    with cast_weights(model, parse("mxfp4"), WeightCast(method=method, batches=[x])) as cast:
        assert "1" in {layer.layer for layer in cast.layers}
        assert "0" not in {layer.layer for layer in cast.layers}
        model(x)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert torch.equal(model(x), wide)


def test_an_embedding_stays_in_fp32_also_where_a_linear_shares_it(model: Any) -> None:
    with rounded(model, By(quarter)) as cast:
        assert not torch.equal(model.embedding.weight, quarter(model.embedding.weight, -1))
        assert torch.equal(model.head.weight, quarter(model.embedding.weight, -1))
    assert cast.cast_parameters == 6 * 6 * 3
    assert cast.other_parameters == 10 * 6 + 6 + 6 + 6 + 10  # the tied weight once, two biases, a norm


def test_a_weight_shared_by_two_linears_counts_once() -> None:
    pair = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    pair[1].weight = pair[0].weight
    with rounded(pair, By(quarter)) as cast:
        pass
    assert (cast.cast_parameters, cast.other_parameters) == (16, 0)


def test_qsnr_is_signal_over_noise_of_weights_and_of_inputs() -> None:
    layer = nn.Linear(2, 1, bias=False)
    layer.weight.data = torch.tensor([[1.0, 0.125]])  # an eighth lies halfway and becomes zero
    with rounded(layer, By(quarter)) as cast:
        layer(torch.tensor([[3.0, 4.125]]))
    assert cast.weight_qsnr_db == pytest.approx(10 * log10((1 + 1 / 64) * 64))
    assert cast.activation_qsnr_db == pytest.approx(10 * log10((9 + 4.125**2) * 64))
    assert cast.layers[0].weight.error().qsnr_db == pytest.approx(cast.weight_qsnr_db)
    assert cast.flushed_fraction == 1 / 4
    assert cast.saturated_fraction == 0  # without limits nothing is known to be


def test_saturation_is_counted_against_the_limits_with_the_same_axis() -> None:
    layer = nn.Linear(2, 1, bias=False)
    layer.weight.data = torch.tensor([[1.0, 0.5]])
    axes = []

    def limits(x: Any, axis: int) -> float:
        axes.append(axis)
        return 2.0

    with rounded(layer, By(lambda x, axis: x.clamp(-2, 2), limits)) as cast:
        layer(torch.tensor([[3.0, -4.0], [1.0, 2.0]]))
    assert axes == [-1, -1]
    assert cast.saturated_fraction == 2 / 6


def test_the_model_qsnr_averages_noise_over_layers_and_ignores_exact_ones() -> None:
    pair = nn.Sequential(nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False))
    pair[0].weight.data, pair[1].weight.data = torch.tensor([[1.0]]), torch.tensor([[1.1]])
    with rounded(pair, By(quarter)) as cast:
        pass
    assert cast.layers[0].weight.error().qsnr_db == inf
    assert cast.weight_qsnr_db == pytest.approx(cast.layers[1].weight.error().qsnr_db + 10 * log10(2))


@pytest.mark.parametrize("value", [nan, inf])
@pytest.mark.parametrize("format", ["mxfp4", "bf16"])
def test_weights_and_inputs_that_are_not_finite_have_no_qsnr(value: float, format: str) -> None:
    model, x = nn.Sequential(nn.Linear(32, 4), nn.Linear(4, 4)), torch.randn(2, 32)
    with direct_cast(model, format) as cast:
        model(torch.full((2, 32), value))
    assert isnan(cast.activation_qsnr_db)
    assert 0 < cast.weight_qsnr_db < inf
    with torch.no_grad():
        model[0].weight[0, 0] = value
    for way in (direct_cast(model, format), cast_weights(model, parse(format), WeightCast())):
        with way as cast:
            assert isnan(cast.weight_qsnr_db)
    with direct_cast(model, format) as cast:
        model[1](x[:, :4])
    assert 0 < cast.activation_qsnr_db < inf


def test_a_format_that_changes_nothing_has_infinite_qsnr_and_the_same_output(model: Any) -> None:
    before = model(TOKENS)
    with rounded(model, By(lambda x, axis: x)) as cast:
        assert torch.equal(model(TOKENS), before)
    assert cast.weight_qsnr_db == cast.activation_qsnr_db == inf
    assert cast.flushed_fraction == 0


@pytest.mark.parametrize(("calls", "counted"), [(0, 0), (1, 6), (2, 12)])
def test_activations_are_counted_in_the_first_calls_only_and_rounded_in_all(calls: Any, counted: Any) -> None:
    layer = nn.Linear(6, 3)
    x = torch.full((1, 6), 0.9)
    with rounded(layer, By(quarter), measured_calls=calls) as cast:
        outputs = [layer(x) for _ in range(3)]
    assert cast.layers[0].activation.count == counted
    assert all(torch.equal(y, outputs[0]) for y in outputs)


def test_a_format_is_rounded_to_as_fake_quantize_does_and_counts_what_saturates() -> None:
    layer, x = nn.Linear(64, 8), torch.randn(4, 64)
    expected = nn.functional.linear(
        fb.fake_quantize(x, "mxfp4", scale_rule="rceil"),
        fb.fake_quantize(layer.weight.detach(), "mxfp4", scale_rule="rceil"),
        layer.bias,
    )
    with direct_cast(layer, "mxfp4", scale_rule="rceil") as cast:
        assert torch.equal(layer(x), expected)
    assert cast.saturated_fraction == 0
    with direct_cast(layer, "mxfp4") as cast:  # whose scales are rounded down
        assert not torch.equal(layer(x), expected)
    assert cast.saturated_fraction > 0


def test_modules_are_included_and_excluded_by_patterns_of_their_names() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    names = {
        (("1",), ()): ["1.0", "1.1"],
        ((), ("1",)): ["0"],
        (("1",), ("*.1",)): ["1.0"],
        ((), ()): ["0", "1.0", "1.1"],
    }
    for (include, exclude), expected in names.items():
        with direct_cast(model, "mxfp4", include=include, exclude=exclude) as cast:
            assert [layer.layer for layer in cast.layers] == expected
    with (
        pytest.raises(fb.ArgumentError, match="include='q' fits no module"),
        direct_cast(model, "mxfp4", include="q"),
    ):
        pass


def test_a_layer_with_two_names_is_meant_by_either_of_them() -> None:
    model = nn.ModuleDict({"a": nn.Linear(4, 4), "b": nn.Linear(4, 4)})
    model["c"] = model["a"]
    for names, expected in (({"include": "c"}, ["a"]), ({"exclude": "c"}, ["b"])):
        with direct_cast(model, "mxfp4", **names) as cast:
            assert [layer.layer for layer in cast.layers] == expected
        weights = WeightCast(**{key: (name,) for key, name in names.items()})
        with cast_weights(model, parse("mxfp4"), weights) as cast:
            assert [layer.layer for layer in cast.layers] == expected
