"""A model's layers get weights that are stored as they are, and that lose less than rounding."""

import copy
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.linalg import hadamard
from torch import Tensor, nn
from torch.nn.utils import parametrizations, prune
from torch.nn.utils.parametrizations import weight_norm

import fewbits as fb
from fewbits.errors import ArgumentError, DataError
from fewbits.files.matrix_view import matrix_shape
from fewbits.ptq import model as engine
from fewbits.ptq import quantize_model

torch.set_num_threads(1)


def images() -> tuple[nn.Module, list[Tensor]]:
    """Convolutions of several kinds, and linear layers of which one follows another at once."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1, stride=2, padding_mode="reflect"),
        nn.ReLU(),
        nn.Conv2d(32, 16, 3, groups=4, padding="same", dilation=2),
        nn.Conv2d(16, 16, 1),
        nn.Flatten(2),
        nn.Conv1d(16, 4, 5, stride=3),
        nn.Flatten(),
        nn.Linear(80, 64),
        nn.Linear(64, 32),
        nn.ReLU(),
        nn.Linear(32, 10),
    )
    return model, [torch.randn(6, 3, 16, 16) for _ in range(3)]


def mixed(samples: int, n: int) -> Tensor:
    """Inputs that hang together, some of them large."""
    return torch.randn(samples, n) @ torch.randn(n, n) / n**0.5 * torch.exp(torch.randn(n))


class Branches(nn.Module):
    """Three layers that take one input, a sum around two, and a head that shares a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(64, 64, bias=False) for _ in range(3))
        self.up, self.down, self.unused = nn.Linear(64, 96), nn.Linear(96, 64), nn.Linear(64, 2)
        self.embedding, self.head = nn.Embedding(20, 64), nn.Linear(64, 20, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.query(x)) * self.key(x) + self.value(x)
        middle = self.up(x)
        result: Tensor = self.head(x + self.down(middle) + middle[..., :64])
        return result


def branches() -> tuple[nn.Module, list[Tensor]]:
    torch.manual_seed(1)
    return Branches(), [mixed(40, 64) for _ in range(4)]


WAYS: list[dict[str, Any]] = [
    {"method": "round"},
    {"method": "gptq"},
    {"method": "gpfq"},
    {"method": "round", "scale": "search"},
    {"method": "gptq", "scale": "search", "hadamard": 32},
    {"method": "gptq", "activation": "mxfp6_e2m3"},
    {"method": "gpfq", "activation": "mxfp4", "hadamard": 16},
]


@pytest.mark.parametrize("how", WAYS, ids=str)
@pytest.mark.parametrize("made", [images, branches])
def test_no_layer_is_worse_than_rounded_and_all_are_stored_as_they_are(
    made: Any, how: dict[str, Any]
) -> None:
    model, batches = made()
    model, report = quantize_model(model, batches, "mxfp4", **how)
    for layer in report.layers:
        if layer.format is None or not layer.vectors:
            continue
        assert layer.loss <= layer.rounding_loss
        w = model.get_submodule(layer.layer).weight
        rows = w.detach().reshape(matrix_shape(tuple(w.shape)))
        q = fb.quantize(rows, "mxfp4", axis=1)
        assert torch.equal(q.dequantize(), rows)
    if how["method"] != "round" or "scale" in how:
        assert sum(x.loss < x.rounding_loss for x in report.layers if x.vectors) >= 4


@pytest.mark.parametrize(
    "format",
    ["nvfp4", "mx6", "mxfp8_e4m3", "int4_channel", "int8_tensor", "vsq4", "fp8_e4m3", "posit8_1", "ternary"],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_kind_of_format_is_stored_as_it_is(format: str, dtype: torch.dtype) -> None:
    torch.manual_seed(2)
    model = nn.Linear(80, 24).to(dtype)
    batches = [mixed(100, 80).to(dtype) for _ in range(2)]
    model, report = quantize_model(model, batches, format, scale="search")
    w = model.weight.detach()
    assert w.dtype == dtype
    assert torch.equal(fb.quantize(w, format).dequantize(), w)
    assert report.layers[0].loss <= report.layers[0].rounding_loss


@pytest.mark.parametrize("activation", [None, "mxfp4"])
def test_the_loss_is_that_of_the_layers_outputs(activation: str | None) -> None:
    model, batches = images()
    wide = copy.deepcopy(model)
    model, report = quantize_model(model, batches, "mxfp4", include="0", activation=activation)
    (layer,) = report.layers
    error = power = 0.0
    for x in batches:
        exact = wide[0](x).double()
        bias = wide[0].bias.detach()[:, None, None]
        error += (model[0](x).double() - exact).square().sum().item()
        power += (exact - bias).square().sum().item()
    assert layer.loss == pytest.approx(error / power, rel=1e-4)
    assert layer.vectors == 3 * 6 * 8 * 8


@pytest.mark.parametrize("index", [2, 3, 5, 7])
def test_each_kind_of_layer_is_calibrated_on_what_it_multiplies(index: int) -> None:
    model, batches = images()
    wide = copy.deepcopy(model)
    _, report = quantize_model(model, batches, "mxfp4", include=str(index))
    error = power = 0.0
    for x in batches:
        inputs = wide[:index](x)
        bias = wide[index].bias.detach()
        exact = wide[index](inputs).double().movedim(1, -1) - bias
        error += (model[index](inputs).double().movedim(1, -1) - bias - exact).square().sum().item()
        power += exact.square().sum().item()
    assert report.layers[0].loss == pytest.approx(error / power, rel=1e-4)


def test_layers_are_calibrated_behind_those_already_chosen() -> None:
    model, batches = branches()
    wide = copy.deepcopy(model)
    _, whole = quantize_model(model, batches, "mxfp4")
    _, alone = quantize_model(wide, batches, "mxfp4", include="down")
    assert [x.layer for x in whole.layers] == ["query", "key", "value", "up", "down", "unused", "head"]
    together = next(x for x in whole.layers if x.layer == "down")
    assert together.loss != alone.layers[0].loss  # its inputs are those of rounded layers


def test_two_parameters_in_one_memory_share_their_weight() -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
    model[2].weight = nn.Parameter(model[0].weight.data)
    kept = model[0].weight.detach().clone()
    _, report = quantize_model(model, [torch.randn(8, 64)], "mxfp4")
    assert {x.layer: "shares its weight" in x.reason for x in report.layers} == {
        "0": True,
        "2": True,
        "4": False,
    }
    assert torch.equal(model[2].weight, kept)


def test_what_is_left_is_said() -> None:
    model, batches = branches()
    head = model.head.weight.detach().clone()
    _, report = quantize_model(model, batches, "mxfp4")
    reasons = {x.layer: x.reason for x in report.layers if x.reason}
    assert set(reasons) == {"unused", "head"}
    assert "the first batch does not reach it" in reasons["unused"]
    assert "shares its weight" in reasons["head"]
    assert torch.equal(model.head.weight, head)
    assert torch.equal(fb.fake_quantize(model.unused.weight, "mxfp4"), model.unused.weight)


def test_a_rotation_changes_no_output_but_by_rounding() -> None:
    for made in (images, branches):
        model, batches = made()
        exact = model(batches[0])
        model, report = quantize_model(model, batches, "bf16", method="round", hadamard=32)
        assert (model(batches[0]) - exact).norm() < 1e-2 * exact.norm()
        assert any(x.hadamard for x in report.layers)


def rotated(x: Tensor, size: int) -> Tensor:
    """The product with a block-diagonal Hadamard matrix, written out."""
    blocks = [torch.tensor(hadamard(size) / size**0.5)] * (x.shape[-1] // size) if size else []
    return (x.double() @ torch.block_diag(*blocks)).to(x.dtype) if size else x


@pytest.mark.parametrize("activation", [None, "mxfp6_e2m3"])
@pytest.mark.parametrize("outliers", [True, False])
def test_a_layer_takes_the_rotation_with_which_it_loses_least(activation: str | None, outliers: bool) -> None:
    torch.manual_seed(0)
    layer, x = nn.Linear(128, 24, bias=False), mixed(300, 128)
    w = layer.weight.data
    w.copy_(w * torch.exp(2 * torch.randn(128)) if outliers else fb.fake_quantize(w, "mxfp4"))
    alone = {}
    for size in (0, 16, 32, 64):
        turned = nn.Linear(128, 24, bias=False)
        turned.weight.data = rotated(w, size).clone()
        _, report = quantize_model(turned, [rotated(x, size)], "mxfp4", activation=activation)
        alone[size] = report.layers[0].loss
    exact = x.double() @ w.double().T
    layer, report = quantize_model(layer, [x], "mxfp4", activation=activation, hadamard=64)
    size = report.layers[0].hadamard
    assert (size > 0) == outliers or activation
    # Rotated in float32 here and in double precision there, some weights round to other values.
    assert alone[size] <= 1.05 * min(alone.values())
    assert report.layers[0].loss == pytest.approx(alone[size], rel=0.05, abs=1e-12)
    error = (layer(x).double() - exact).square().sum() / exact.square().sum()
    assert report.layers[0].loss == pytest.approx(error.item(), rel=1e-4, abs=1e-12)


def test_a_rotation_that_loses_more_is_not_folded() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.Linear(64, 16))
    model[1].weight.data = fb.fake_quantize(model[1].weight.data, "mxfp4")
    kept = model[1].weight.detach().clone()
    _, report = quantize_model(model, [mixed(200, 32)], "mxfp4", hadamard=64)
    assert (report.layers[1].hadamard, report.layers[1].folded) == (0, None)
    assert torch.equal(model[1].weight, kept)


def test_a_rotation_is_folded_where_only_a_linear_layer_lies_before() -> None:
    model, batches = images()
    _, report = quantize_model(model, batches, "mxfp4", hadamard=32)
    how = {x.layer: (x.hadamard, x.folded) for x in report.layers}
    assert how["8"] == (32, "7")
    assert how["10"] == (32, None)
    assert how["0"] == (0, None)  # three channels
    assert not model[8]._forward_pre_hooks
    model, batches = branches()
    _, report = quantize_model(model, batches, "mxfp4", hadamard=32)
    # what lies before it is read by another sum as well
    assert next(x for x in report.layers if x.layer == "down").folded is None


class Shown(nn.Module):
    """Two layers, one after the other, of which the first is an output too."""

    def __init__(self, *, shows: bool) -> None:
        super().__init__()
        self.over, self.last, self.shows = nn.Linear(64, 64), nn.Linear(64, 10), shows

    def forward(self, x: Tensor) -> dict[str, Any]:
        hidden = self.over(x)
        return {"y": self.last(hidden), "others": (None, [hidden if self.shows else x])}


@pytest.mark.parametrize("shows", [False, True])
def test_a_rotation_is_not_folded_where_any_output_of_the_model_would_be_rotated(shows: bool) -> None:
    torch.manual_seed(0)
    model, x = Shown(shows=shows), torch.randn(128, 64)
    model.over.weight.data[:4] *= 30
    before = model(x)["others"][1][0].detach()
    _, report = quantize_model(model, [x], "mxint8", hadamard=32)
    assert [layer.folded for layer in report.layers] == [None, None if shows else "over"]
    assert report.layers[1].hadamard == 32
    assert (model(x)["others"][1][0] - before).norm() < 1e-2 * before.norm()


def test_formats_follow_the_map_and_others_stay() -> None:
    model, batches = images()
    kept = model[7].weight.detach().clone()
    _, report = quantize_model(model, batches, None, map={"0": "mxfp8_e4m3", "8": "mx6"})
    assert {x.layer: x.format for x in report.layers} == {"0": "mxfp8_e4m3", "8": "mx6"}
    assert torch.equal(model[7].weight, kept)


class Twice(nn.Module):
    """A layer that has two names."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(32, 32)
        self.blocks = nn.ModuleDict({"same": self.first, "last": nn.Linear(32, 4)})

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.blocks["last"](torch.relu(self.first(x)))
        return result


def test_a_layer_with_two_names_is_meant_by_either_of_them() -> None:
    def formats(**how: Any) -> dict[str, str | None]:
        _, report = quantize_model(Twice(), [torch.randn(9, 32)], how.pop("format", "mxfp4"), **how)
        return {x.layer: x.format for x in report.layers}

    assert formats(include="blocks.same") == {"first": "mxfp4"}
    assert formats(include="blocks") == {"first": "mxfp4", "blocks.last": "mxfp4"}
    assert formats(exclude="*.same") == {"blocks.last": "mxfp4"}
    assert formats(map={"blocks.same": "mxint8"}) == {"first": "mxint8", "blocks.last": "mxfp4"}
    assert formats(format=None, map={"blocks.same": "mxint8"}) == {"first": "mxint8"}


def test_a_stopped_job_goes_on_and_gives_the_same_bits(tmp_path: Path, monkeypatch: Any) -> None:
    model, batches = images()
    whole, _ = quantize_model(copy.deepcopy(model), batches, "mxfp4", hadamard=16, activation="mxfp6_e2m3")
    real, calls = engine.choose_rotation, []

    def stopped(*given: Any) -> Any:
        calls.append(given)
        if len(calls) == 4:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(engine, "choose_rotation", stopped)
    how: dict[str, Any] = {"hadamard": 16, "activation": "mxfp6_e2m3", "folder": tmp_path / "work"}
    with pytest.raises(KeyboardInterrupt):
        quantize_model(copy.deepcopy(model), batches, "mxfp4", **how)
    again, report = quantize_model(copy.deepcopy(model), batches, "mxfp4", **how)
    assert len(calls) == 4 + len(report.layers) - 3  # three were there, the fourth was chosen anew
    for a, b in zip(whole.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)
    assert any(x.hadamard and not x.folded for x in report.layers[:3])
    assert torch.equal(whole(batches[0]), again(batches[0]))
    quantize_model(copy.deepcopy(model), batches, "mxfp4", **how)
    assert len(calls) == 1 + len(report.layers)  # nothing was left to choose
    quantize_model(copy.deepcopy(model), [x + 1 for x in batches], "mxfp4", **how)
    assert len(calls) == 1 + 2 * len(report.layers)  # other batches, another job


@pytest.mark.parametrize(
    ("other", "how"),
    [(1, {}), (None, {"scale": "amax"}), (None, {"method": "round"}), (None, {"damping": 0.5})],
    ids=["weights", "scale", "method", "damping"],
)
def test_what_another_job_left_in_the_folder_is_not_taken(
    other: int | None, how: dict[str, Any], tmp_path: Path
) -> None:
    torch.manual_seed(0)
    model, batches = nn.Sequential(nn.Linear(64, 8), nn.Linear(8, 3)), [mixed(20, 64)]
    quantize_model(copy.deepcopy(model), batches, "mxfp4", method="gptq", folder=tmp_path)
    if other is not None:
        with torch.no_grad():
            model[other].weight += 1
    how = {"method": "gptq"} | how
    again, _ = quantize_model(copy.deepcopy(model), batches, "mxfp4", **how, folder=tmp_path)
    alone, _ = quantize_model(copy.deepcopy(model), batches, "mxfp4", **how)
    for a, b in zip(alone.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_damaged_file_of_a_layer_is_chosen_again(tmp_path: Path) -> None:
    model, batches = images()
    whole, _ = quantize_model(copy.deepcopy(model), batches, "mxfp4", folder=tmp_path)
    for file in tmp_path.iterdir():
        file.write_bytes(file.read_bytes()[:100])
    again, _ = quantize_model(copy.deepcopy(model), batches, "mxfp4", folder=tmp_path)
    for a, b in zip(whole.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)


def test_inputs_are_rounded_from_then_on() -> None:
    model, batches = branches()
    model, _ = quantize_model(model, batches, "mxfp4", activation="mxfp4", include="query")
    x = batches[0]
    assert torch.equal(model.query(x), model.query(fb.fake_quantize(x, "mxfp4")))
    assert not torch.equal(model.query(x), x @ model.query.weight.T)


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 8)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        result: Tensor = self.layer(input=first) + self.layer(second)
        return result


def test_batches_by_name_and_in_tuples_and_layers_called_twice() -> None:
    torch.manual_seed(0)
    model, a, b = Named(), mixed(20, 32), mixed(20, 32)
    one, first = quantize_model(copy.deepcopy(model), [{"first": a, "second": b}], "mxfp4")
    two, second = quantize_model(copy.deepcopy(model), [(a, b)], "mxfp4")
    assert first.layers[0].vectors == second.layers[0].vectors == 40
    assert torch.equal(one.layer.weight, two.layer.weight)


class Again(nn.Module):
    """Three layers of one input, of which two take others afterwards."""

    def __init__(self) -> None:
        super().__init__()
        self.plain, self.turned, self.bent = (nn.Linear(32, 8, bias=False) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        first = self.plain(x) + self.turned(x) + self.bent(x)
        result: Tensor = first + self.turned(x.flip(-1)) + self.bent(x.exp())
        return result


def test_layers_of_one_input_that_take_others_besides_share_nothing() -> None:
    torch.manual_seed(0)
    model, x = Again(), mixed(40, 32)
    whole, report = quantize_model(copy.deepcopy(model), [x], "mxfp4", method="gptq")
    assert {r.layer: r.vectors for r in report.layers} == {"plain": 40, "turned": 80, "bent": 80}
    for name, inputs in {"plain": [x], "turned": [x, x.flip(-1)], "bent": [x, x.exp()]}.items():
        layer = nn.Sequential(copy.deepcopy(getattr(model, name)))
        alone, _ = quantize_model(layer, inputs, "mxfp4", method="gptq")
        assert torch.equal(getattr(whole, name).weight, alone[0].weight)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"method": "magic"}, "method='magic' is not one of round, gptq, gpfq"),
        ({"scale": "best"}, "scale='best' is not one of amax, search"),
        ({"hadamard": 48}, "hadamard=48 is not one of"),
        ({"damping": -1.0}, "damping=-1.0"),
        ({"damping": "1"}, "damping='1' is no part"),
        ({"batches": []}, "no batch to calibrate on"),
        ({"batches": 3}, "batches is of type int; expected a list"),
        (
            {"batches": torch.ones(2, 8)},
            r"batches is of type Tensor; expected a list of batches, as in \[x\]",
        ),
        ({"batches": {"x": torch.ones(2, 8)}}, "batches is of type dict; expected a list"),
        ({"batches": iter([torch.ones(2, 8)])}, "batches is of type list_iterator; expected a list"),
        ({"batches": {0, 1}}, "batches is of type set; expected a list, as list"),
        ({"map": 3}, "map=3 is no mapping of names"),
        ({"map": {3: "mxfp4"}}, "is no mapping of names"),
        ({"include": 3}, "include has 3 where a pattern of names was expected"),
        ({"format": None}, "no format was given"),
        ({"include": "nobody"}, "fits no module"),
        ({"exclude": "*"}, "no linear or convolution layer"),
        ({"scale_rule": "rceil", "format": "fp8_e4m3"}, "has none"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, Any], message: str) -> None:
    model, batches = images()
    arguments: dict[str, Any] = {"batches": batches, "format": "mxfp4"} | given
    with pytest.raises(ArgumentError, match=message.replace("(", r"\(")):
        quantize_model(model, arguments.pop("batches"), arguments.pop("format"), **arguments)


def test_values_that_are_not_finite_are_refused_by_name() -> None:
    model, batches = images()
    with pytest.raises(DataError, match=r"^0 takes NaN"):
        quantize_model(model, [x * float("nan") for x in batches], "mxfp4")
    model[7].weight.data[0, 0] = float("inf")
    with pytest.raises(DataError, match="the weight of 7 holds NaN or infinity"):
        quantize_model(model, batches, "mxfp4")


@pytest.mark.parametrize(
    ("format", "beyond", "largest"), [("fp16", 7e4, 65504.0), ("fp8_e5m2", 1e5, 57344.0)]
)
@pytest.mark.parametrize("method", ["round", "gptq", "gpfq"])
def test_weights_beyond_a_format_with_infinities_become_its_largest_value(
    format: str, beyond: float, largest: float, method: str
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 4))
    model[0].other = nn.Linear(32, 4)  # which no batch reaches
    layers = (model[0], model[0].other)
    for layer in layers:
        layer.weight.data[1, 3] = -beyond
    assert fb.fake_quantize(model[0].weight.detach(), format)[1, 3] == -torch.inf
    _, report = quantize_model(model, [torch.randn(64, 32)], format, method=method)
    for layer in layers:
        assert bool(torch.isfinite(layer.weight).all())
        assert layer.weight[1, 3] == -largest
        assert torch.equal(fb.fake_quantize(layer.weight, format), layer.weight)
    assert report.layers[0].loss <= report.layers[0].rounding_loss < 1


def test_weights_that_cannot_be_written_are_refused_before_any_is() -> None:
    def with_last(layer: nn.Module) -> nn.Module:
        return nn.Sequential(nn.Linear(32, 32), layer)

    spread = nn.Linear(32, 32)
    spread.weight = nn.Parameter(torch.randn(1, 32).expand(32, 32))
    for last, said in (
        (spread, "1.weight has several values in one place of memory"),
        (nn.Linear(32, 32, device="meta"), "1.weight is on the meta device, without values"),
        (nn.LazyLinear(32), "1.weight has no values yet; call the model once"),
    ):
        model = with_last(last)
        before = model[0].weight.detach().clone()
        with pytest.raises(fb.ArgumentError, match=re.escape(said)):
            quantize_model(model, [torch.randn(40, 32)], "mxfp4")
        assert torch.equal(model[0].weight, before)


def test_a_prepared_model_is_refused() -> None:
    model, batches = images()
    with pytest.raises(ArgumentError, match="prepared"):
        quantize_model(fb.prepare(model, "mxfp6"), batches, "mxfp4")


def test_a_format_that_holds_no_weights_is_refused() -> None:
    model, batches = images()
    with pytest.raises(DataError, match="has no values for these weights"):
        quantize_model(model, batches, "e8m0")


def test_hugging_faces_conv1d_has_its_inputs_first() -> None:
    conv1d = pytest.importorskip("transformers.pytorch_utils").Conv1D
    torch.manual_seed(0)
    model = nn.Sequential(conv1d(48, 32))
    x = mixed(100, 32)
    exact = model(x).double() - model[0].bias
    model, report = quantize_model(model, [x], "mxfp4", hadamard=16)
    w = model[0].weight.detach()
    assert torch.equal(fb.quantize(w, "mxfp4").dequantize(), w)  # in blocks along the outputs, as cast does
    error = (model(x).double() - model[0].bias - exact).square().sum() / exact.square().sum()
    assert report.layers[0].loss == pytest.approx(error.item(), rel=1e-4)
    assert report.layers[0].loss < 0.8 * report.layers[0].rounding_loss


@pytest.mark.parametrize("hadamard", [0, 16])
def test_an_input_that_is_given_by_name_is_rounded_and_rotated_too(hadamard: int) -> None:
    class Named(nn.Module):
        def __init__(self, by_name: bool) -> None:
            super().__init__()
            self.one, self.two, self.by_name = nn.Linear(32, 32), nn.Linear(32, 32), by_name

        def forward(self, x: Tensor) -> Tensor:
            for layer in (self.one, self.two):
                x = torch.relu(layer(input=x) if self.by_name else layer(x))
            return x

    models = []
    for by_name in (False, True):
        torch.manual_seed(0)
        models.append(
            quantize_model(Named(by_name), [mixed(40, 32)], "mxfp4", activation="mxfp4", hadamard=hadamard)[0]
        )
    x = mixed(7, 32)
    by_place, by_name = (model(x) for model in models)
    assert torch.equal(by_place, by_name)


class Several(nn.Module):
    """Layers that are changed beside matrices that are not."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.up = nn.Embedding(9, 32), nn.ConvTranspose1d(32, 32, 3)
        self.encoder = nn.TransformerEncoderLayer(32, 2, 64, batch_first=True)
        self.over, self.last = nn.GRU(32, 32, batch_first=True), nn.Linear(32, 4)
        self.places = nn.Parameter(torch.randn(6, 32))

    def forward(self, x: Tensor) -> Tensor:
        y = self.up((self.table(x) + self.places).mT).mT
        result: Tensor = self.last(self.over(self.encoder(y))[0])
        return result


def test_matrices_that_are_left_are_in_the_record() -> None:
    torch.manual_seed(0)
    model = Several().eval()
    before = copy.deepcopy(model.state_dict())
    left = {"places", "up", "encoder.self_attn.in_proj_weight", "over.weight_ih_l0", "over.weight_hh_l0"}
    _, report = quantize_model(model, [torch.randint(9, (3, 6))], "mxfp4")
    reasons = {x.layer: x.reason for x in report.layers if x.format is None}
    assert set(reasons) == left
    (never_called,) = (x for x in report.layers if x.layer == "encoder.self_attn.out_proj")
    w, wide = model.encoder.self_attn.out_proj.weight, before["encoder.self_attn.out_proj.weight"]
    assert (never_called.format, never_called.vectors) == ("mxfp4", 0)
    assert torch.equal(w, fb.quantize(wide, "mxfp4").dequantize())
    assert reasons["up"] == "ConvTranspose1d is no linear or convolution layer that is known: left as it is"
    matrices = {name for name, p in before.items() if p.ndim > 1 and name != "table.weight"}
    changed = {name for name in matrices if not torch.equal(before[name], model.state_dict()[name])}
    named = {x.layer for x in report.layers if x.format is not None}
    assert changed == {f"{name}.weight" for name in named}
    assert matrices - changed == {
        name if "." in name or name == "places" else f"{name}.weight" for name in left
    }
    _, report = quantize_model(Several().eval(), [torch.randint(9, (3, 6))], "mxfp4", include="last")
    assert [x.layer for x in report.layers] == ["last"]


def test_a_computed_weight_of_a_layer_that_is_left_is_in_the_record() -> None:
    model = nn.Sequential(nn.Linear(8, 8), weight_norm(nn.ConvTranspose1d(8, 4, 3)))
    _, report = quantize_model(model, [torch.randn(2, 8, 8)], "mxint8")
    left = {x.layer: (x.shape, x.reason.split()[0]) for x in report.layers if x.format is None}
    assert left == {"1": ((8, 4, 3), "ParametrizedConvTranspose1d")}


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")
@pytest.mark.parametrize(
    "computed",
    [
        nn.utils.weight_norm,
        nn.utils.spectral_norm,
        lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
        weight_norm,
        parametrizations.orthogonal,
    ],
)
def test_a_layer_whose_weight_is_computed_in_each_call_is_left_and_said_to_be(computed: Any) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(computed(nn.Linear(32, 32)), nn.Linear(32, 4)).eval()
    before = copy.deepcopy(model[0].state_dict())
    _, report = quantize_model(model, [torch.randn(40, 32)], "mxfp4")
    reasons = {x.layer: x.reason for x in report.layers}
    assert reasons == {"0": "its weight is computed from others: left as it is", "1": ""}
    assert all(torch.equal(model[0].state_dict()[name], held) for name, held in before.items())
