"""Which layers are pruned, which are named and left alone, and what is in the model afterwards."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

import fewbits as fb
from fewbits.errors import ArgumentError, DTypeError, FormatError
from fewbits.sparsity import (
    Frozen,
    Gradual,
    MaskedOptimizer,
    Recomputed,
    is_sparse,
    kept_magnitude,
    mask,
    remove_masks,
)


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 6, 3), nn.BatchNorm2d(6), nn.Flatten(), nn.Linear(24, 10)
    )


def test_each_layer_is_pruned_along_what_its_product_sums_over() -> None:
    model, dense = network(), network()
    report = fb.sparsify(model, "2:4")
    assert [(t.tensor, t.axis) for t in report.pruned] == [("2.weight", 1), ("5.weight", 1)]
    for name in ("2", "5"):
        before, after = dense.get_submodule(name).weight, model.get_submodule(name).weight
        kept = mask(before, "2:4", axis=1)
        assert torch.equal(after, before * kept)
        assert torch.equal(model.get_submodule(name).weight_mask, kept)
    first = report.pruned[0]
    assert first.kept_magnitude == kept_magnitude(dense[2].weight, model[2].weight_mask)
    assert first.density == report.density == 0.5
    assert first.shape == (6, 8, 3, 3)


def test_what_does_not_fit_is_named_and_left_alone() -> None:
    model, dense = network(), network()
    report = fb.sparsify(model, "2:4")
    assert report.left_alone == (("0.weight", "axis 1 of (8, 1, 3, 3) is no multiple of 4"),)
    assert torch.equal(model[0].weight, dense[0].weight)
    assert not hasattr(model[0], "weight_mask")


@pytest.mark.parametrize(
    ("choices", "pruned"),
    [
        ({"include": "2"}, ["2.weight"]),
        ({"exclude": ("2",)}, ["5.weight"]),
        ({"include": ("2", "5"), "exclude": "5"}, ["2.weight"]),
        ({"transposable": "optimal"}, []),
    ],
)
def test_names_choose_what_is_pruned(choices: Any, pruned: Any) -> None:
    if pruned:
        assert [t.tensor for t in fb.sparsify(network(), "2:4", **choices).pruned] == pruned
    else:  # neither 6 nor 10 outputs are a multiple of 4
        with pytest.raises(ArgumentError, match=r"no layer to prune to 2:4; 0.weight: axis 1 of \(8, 1, 3"):
            fb.sparsify(network(), "2:4", **choices)


def test_patterns_hold_for_all_that_lies_within() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.TransformerEncoderLayer(16, 2, 32), nn.Linear(16, 16))
    report = fb.sparsify(model, "2:4", exclude="0.self_attn")
    assert [t.tensor for t in report.pruned] == ["0.linear1.weight", "0.linear2.weight", "1.weight"]


@pytest.mark.parametrize(
    ("layer", "names"),
    [
        (nn.MultiheadAttention(8, 2), ["in_proj_weight", "out_proj.weight"]),
        (nn.MultiheadAttention(8, 2, kdim=4), ["q_proj_weight", "k_proj_weight", "v_proj_weight"]),
        (nn.LSTM(8, 4), ["weight_ih_l0", "weight_hh_l0"]),
        (nn.GRU(8, 4, num_layers=2), ["weight_ih_l0", "weight_hh_l0", "weight_ih_l1", "weight_hh_l1"]),
        (nn.LSTMCell(8, 4), ["weight_ih", "weight_hh"]),
        (nn.GRUCell(8, 4), ["weight_ih", "weight_hh"]),
        (nn.Conv1d(8, 3, 3), ["weight"]),
        (nn.Conv3d(8, 3, 3), ["weight"]),
    ],
)
def test_attention_recurrent_and_other_layers_are_pruned_too(layer: Any, names: Any) -> None:
    report = fb.sparsify(layer, "2:4")
    assert [t.tensor for t in report.pruned][: len(names)] == names
    assert all(is_sparse(layer.get_parameter(t.tensor), "2:4", axis=t.axis) for t in report.pruned)


def test_the_layer_of_hugging_face_that_has_its_inputs_first_is_pruned_along_them() -> None:
    class Conv1D(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.randn(40, 24)), nn.Parameter(torch.zeros(24))

    Conv1D.__module__, Conv1D.__qualname__ = "transformers.pytorch_utils", "Conv1D"  # known by its name
    layer = Conv1D()
    report = fb.sparsify(layer, "2:4")
    assert [(t.tensor, t.axis) for t in report.pruned] == [("weight", 0)]
    assert is_sparse(layer.weight, "2:4", axis=0)
    assert not is_sparse(layer.weight, "2:4", axis=1)


def test_recurrent_layers_compute_with_their_pruned_weights() -> None:
    torch.manual_seed(0)
    layer, x = nn.LSTM(8, 4), torch.randn(3, 2, 8)
    twin = nn.LSTM(8, 4)
    fb.sparsify(layer, "2:4")
    twin.load_state_dict({k: v for k, v in layer.state_dict().items() if not k.endswith("_mask")})
    assert torch.equal(layer(x)[0], twin(x)[0])


def test_weights_that_are_an_embedding_too_stay_dense() -> None:
    model = nn.Module()
    model.embedding, model.body, model.head = (
        nn.Embedding(12, 8),
        nn.Linear(8, 8),
        nn.Linear(8, 12, bias=False),
    )
    model.head.weight = model.embedding.weight
    report = fb.sparsify(model, "2:4")
    assert [t.tensor for t in report.pruned] == ["body.weight"]
    assert dict(report.left_alone) == {
        "embedding.weight": "it is an embedding, whose rows are looked up",
        "head.weight": "it is embedding.weight too, which is summed otherwise",
    }


def test_a_matrix_that_two_layers_share_is_pruned_once() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    model[1].weight = model[0].weight
    report = fb.sparsify(model, "2:4")
    assert [t.tensor for t in report.pruned] == ["0.weight"]
    assert report.left_alone == (("1.weight", "it is 0.weight too"),)


@pytest.mark.parametrize("included", ["0", "1", ["1", "0"]])
def test_a_matrix_that_two_layers_share_is_pruned_by_either_name(included: Any) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8))
    model[1].weight = model[0].weight
    report = fb.sparsify(model, "2:4", include=included)
    owner = "1.weight" if included == "1" else "0.weight"
    assert [t.tensor for t in report.pruned] == [owner]
    assert report.left_alone == ((("1.weight", "it is 0.weight too"),) if len(included) > 1 else ())
    assert bool(((model[0].weight != 0).view(8, 2, 4).sum(-1) == 2).all())
    assert f"{owner}_mask" in model.state_dict()


def test_parameters_that_share_memory_are_one_weight_or_stay_dense() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8))
    model[1].weight = nn.Parameter(model[0].weight.data)
    report = fb.sparsify(model, "2:4")
    assert [t.tensor for t in report.pruned] == ["0.weight", "2.weight"]
    assert report.left_alone == (("1.weight", "it is 0.weight too"),)

    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8))
    model[1].weight = nn.Parameter(model[0].weight.data.t())  # each would be pruned by the mask of the other
    report = fb.sparsify(model, "2:4")
    assert [(t.tensor, t.density) for t in report.pruned] == [("2.weight", 0.5)]
    assert [name for name, why in report.left_alone if "shares memory" in why] == ["0.weight", "1.weight"]
    assert [int((layer.weight != 0).sum()) for layer in model] == [64, 64, 32]


def test_parameters_that_have_no_one_place_in_memory_are_told_apart() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    model.sparse = nn.Parameter(torch.eye(8).to_sparse())
    model.empty = nn.ParameterList([nn.Parameter(torch.ones(0)), nn.Parameter(torch.ones(0))])
    whole = torch.randn(16, 8)
    model[0].weight, model[1].weight = (nn.Parameter(half) for half in whole.split(8))
    assert [t.tensor for t in fb.sparsify(model, "2:4").pruned] == ["0.weight", "1.weight"]
    assert int((whole != 0).sum()) == 64


@pytest.mark.parametrize(("excluded", "owner"), [("2", "0"), ("0", "2")])
def test_a_matrix_that_an_excluded_layer_shares_stays_dense(excluded: str, owner: str) -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 8))
    model[2].weight = model[0].weight
    before = model[0].weight.clone()
    report = fb.sparsify(model, "2:4", exclude=excluded)
    assert [t.tensor for t in report.pruned] == ["1.weight"]
    assert report.left_alone == ((f"{owner}.weight", f"it is {excluded}.weight too, which is excluded"),)
    assert torch.equal(model[0].weight, before)


def test_a_layer_with_two_names_stays_dense_if_one_is_excluded() -> None:
    shared = nn.Linear(8, 8)
    model = nn.ModuleDict({"a": shared, "b": nn.Linear(8, 8), "c": shared})
    report = fb.sparsify(model, "2:4", exclude="c")
    assert [t.tensor for t in report.pruned] == ["b.weight"]
    assert report.left_alone == (("a.weight", "it is c.weight too, which is excluded"),)


@pytest.mark.parametrize(
    ("included", "pruned"), [("c", ["a.weight"]), (["c", "b"], ["a.weight", "b.weight"]), ("b", ["b.weight"])]
)
def test_a_layer_with_two_names_is_pruned_by_either_of_them(included: Any, pruned: list[str]) -> None:
    shared = nn.Linear(8, 8)
    model = nn.ModuleDict({"a": shared, "b": nn.Linear(8, 8), "c": shared})
    report = fb.sparsify(model, "2:4", include=included)
    assert [t.tensor for t in report.pruned] == pruned


def with_a_mask() -> nn.Module:
    layer = nn.Linear(8, 8)
    layer.weight_mask = torch.ones(8, 8)
    return layer


def of_inference() -> nn.Module:
    with torch.inference_mode():
        return nn.Linear(8, 8)


def complex_layer() -> nn.Module:
    return nn.Linear(8, 8, dtype=torch.complex64)


def expanded_layer() -> nn.Module:
    layer = nn.Linear(8, 8)
    layer.weight = nn.Parameter(torch.randn(1, 8).expand(8, 8))
    return layer


def windows_layer() -> nn.Module:
    layer = nn.Linear(8, 8)
    layer.weight = nn.Parameter(torch.randn(15).unfold(0, 8, 1))  # each row begins one value later
    return layer


def layer_without_values() -> nn.Module:
    return nn.Linear(8, 8, device="meta")


@pytest.mark.parametrize(
    ("last", "said"),
    [
        (expanded_layer, r"1\.weight has several values in one place of memory"),
        (windows_layer, r"1\.weight has several values in one place of memory"),
        (layer_without_values, r"1\.weight is on the meta device"),
        (with_a_mask, r"1\.weight_mask is there already"),
        (of_inference, r"1\.weight was made in torch.inference_mode"),
        (complex_layer, "expected floating-point numbers"),
    ],
)
@pytest.mark.parametrize("schedule", [Frozen(), Recomputed(), Gradual(2)])
def test_a_model_that_is_refused_is_as_it_was(last: Any, said: str, schedule: Any) -> None:
    model = nn.Sequential(nn.Linear(8, 8), last())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises((ArgumentError, DTypeError), match=said):
        fb.sparsify(model, "2:4", schedule=schedule)
    after = model.state_dict()
    assert list(after) == list(before)
    assert all(torch.equal(after[name], value) for name, value in before.items() if not value.is_meta)
    assert [t.tensor for t in fb.sparsify(model, "2:4", exclude="1").pruned] == ["0.weight"]


def test_a_model_with_lazy_layers_is_refused_until_they_have_values() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.LazyLinear(8))
    with pytest.raises(ArgumentError, match=r"1\.weight has no values yet; call the model once"):
        fb.sparsify(model, "2:4")
    model(torch.ones(1, 8))
    assert [t.tensor for t in fb.sparsify(model, "2:4").pruned] == ["0.weight", "1.weight"]


@pytest.mark.parametrize("step", [1, 2, 8, 16])
def test_a_layer_whose_weight_is_a_part_of_a_larger_tensor_is_pruned(step: int) -> None:
    layer, whole = nn.Linear(8, 8), torch.randn(16, 16, 16)
    layer.weight = nn.Parameter(whole.as_strided((8, 8), (128 // step, 1) if step < 8 else (1, step)))
    fb.sparsify(layer, "2:4")
    assert is_sparse(layer.weight, "2:4")
    assert int((whole == 0).sum()) == 32


def test_a_model_with_a_counter_of_that_name_is_refused_as_it_was() -> None:
    model = nn.Linear(8, 8)
    model.sparsity_step = 3
    before = model.weight.clone()
    with pytest.raises(ArgumentError, match="has something named sparsity_step"):
        fb.sparsify(model, "2:4", schedule=Recomputed())
    assert torch.equal(model.weight, before)
    assert fb.sparsify(model, "2:4").density == 0.5  # which counts nothing


@pytest.mark.parametrize("schedule", ["gradual", Gradual, Recomputed, None])
def test_what_is_no_schedule_is_refused(schedule: Any) -> None:
    model = nn.Linear(8, 8)
    with pytest.raises(ArgumentError, match=r"is no schedule; expected one of fewbits\.sparsity"):
        fb.sparsify(model, "2:4", schedule=schedule)
    assert list(model.state_dict()) == ["weight", "bias"]


def test_transposable_masks_hold_both_ways() -> None:
    model = nn.Linear(16, 8)
    fb.sparsify(model, "2:4", transposable="greedy")
    assert is_sparse(model.weight, "2:4")
    assert is_sparse(model.weight.mT, "2:4")
    other = nn.Linear(16, 8)
    fb.sparsify(other, "2:4")
    assert not is_sparse(other.weight.mT, "2:4")


def test_masks_are_in_the_state_and_in_copies() -> None:
    model = network()
    fb.sparsify(model, "2:4")
    again = network()
    fb.sparsify(again, "2:4")
    model[5].weight_mask.logical_not_()
    again.load_state_dict(model.state_dict())
    copied = copy.deepcopy(model)
    assert torch.equal(again[5].weight_mask, model[5].weight_mask)
    assert torch.equal(copied[5].weight_mask, model[5].weight_mask)
    assert copied[5].weight_mask is not model[5].weight_mask


@pytest.mark.parametrize("schedule", [Recomputed(), Gradual(10)])
def test_removing_masks_leaves_a_plain_model(schedule: Any) -> None:
    model = network()
    keys = list(model.state_dict())
    fb.sparsify(model, "2:4", schedule=schedule)
    assert list(model.state_dict()) != keys
    remove_masks(model)
    assert list(model.state_dict()) == keys
    fb.sparsify(model, "1:2")  # and it can be pruned again
    assert is_sparse(model[5].weight, "1:2")


def test_recomputed_masks_keep_the_dense_weights_beside() -> None:
    model, dense = network(), network()
    fb.sparsify(model, "2:4", schedule=Recomputed())
    assert torch.equal(model[5].weight_dense, dense[5].weight)
    assert is_sparse(model[5].weight, "2:4")


def test_a_gradual_schedule_begins_dense() -> None:
    model, dense = network(), network()
    report = fb.sparsify(model, "2:4", schedule=Gradual(10))
    assert torch.equal(model[5].weight, dense[5].weight)
    assert model[5].weight_mask.all()
    assert report.density == 0.5  # of what it will be


def test_misuse_is_refused_with_advice() -> None:
    model = network()
    with pytest.raises(FormatError, match="written N:M"):
        fb.sparsify(model, "2/4")
    with pytest.raises(ArgumentError, match="include='conv' fits no module; the first of them are 0, 1"):
        fb.sparsify(model, "2:4", include="conv")
    with pytest.raises(ArgumentError, match="exclude='conv' fits no module"):
        fb.sparsify(model, "2:4", exclude="conv")
    with pytest.raises(ArgumentError, match="transposable='best' is not one of greedy, optimal"):
        fb.sparsify(model, "2:4", transposable="best")
    with pytest.raises(ArgumentError, match="ReLU has no layer to prune to 2:4; expected a linear"):
        fb.sparsify(nn.ReLU(), "2:4")
    with pytest.raises(ArgumentError, match=r"Sequential is not sparse; call fewbits.sparsify"):
        remove_masks(model)
    assert not any("mask" in key for key in model.state_dict())
    fb.sparsify(model, "2:4")
    with pytest.raises(ArgumentError, match=r"sparse already; call fewbits.sparsity.remove_masks"):
        fb.sparsify(model, "2:4")


def test_a_layer_that_torch_prunes_already_is_refused() -> None:
    from torch.nn.utils import prune

    model = nn.Linear(8, 8)
    prune.l1_unstructured(model, "weight", 0.5)
    with pytest.raises(ArgumentError, match="no layer to prune"):  # its weight is no parameter any more
        fb.sparsify(model, "2:4")
    other = nn.Linear(8, 8)
    other.weight_mask = torch.ones(8, 8)
    with pytest.raises(ArgumentError, match="weight_mask is there already"):
        fb.sparsify(other, "2:4")


class Experts(nn.Module):
    """A stack of experts, as transformers has them, with a bias for each."""

    def __init__(self) -> None:
        super().__init__()
        self.down_proj, self.down_proj_bias = (
            nn.Parameter(torch.randn(2, 4, 8)),
            nn.Parameter(torch.randn(2, 4)),
        )


@pytest.mark.parametrize(
    ("layer", "names"),
    [
        (nn.ConvTranspose2d(8, 8, 3), ["weight"]),
        (nn.Bilinear(4, 4, 4), ["weight"]),
        (nn.Embedding(8, 4), ["weight"]),
        (nn.EmbeddingBag(8, 4), ["weight"]),
        (Experts(), ["down_proj"]),
        (nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)), ["parametrizations.weight.original1"]),
        (nn.LayerNorm((4, 4)), ["weight"]),
        (nn.BatchNorm2d(8), []),
        (nn.PReLU(8), []),
    ],
)
def test_every_matrix_that_stays_dense_is_named_unless_it_was_excluded(layer: Any, names: Any) -> None:
    make = lambda: nn.Sequential(nn.Linear(8, 8), copy.deepcopy(layer))  # noqa: E731
    report = fb.sparsify(make(), "2:4")
    assert [t.tensor for t in report.pruned] == ["0.weight"]
    assert [name for name, _ in report.left_alone] == [f"1.{name}" for name in names]
    assert fb.sparsify(make(), "2:4", exclude="1").left_alone == ()


def test_every_matrix_of_a_mixture_of_experts_is_pruned_or_named() -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "num_local_experts": 2}
    model = transformers.MixtralForCausalLM(transformers.MixtralConfig(**sizes, **heads))
    report = fb.sparsify(model, "2:4")
    told = {t.tensor for t in report.pruned} | {name for name, _ in report.left_alone}
    assert told == {name for name, p in model.named_parameters() if p.dim() > 1}
    assert "experts.down_proj" in " ".join(name for name, _ in report.left_alone)


WRAPPERS = {
    "compiled": lambda model: torch.compile(model, backend="eager"),
    "parallel": nn.DataParallel,
    "averaged": torch.optim.swa_utils.AveragedModel,
    "compiled, in a module": lambda model: nn.Sequential(torch.compile(model, backend="eager")),
    "a part is compiled": lambda model: nn.Sequential(
        torch.compile(model, backend="eager"), nn.Linear(10, 4)
    ),
}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=list(WRAPPERS))
def test_what_holds_a_sparse_model_is_taken_for_it(wrap: Any) -> None:
    plain = network()
    fb.sparsify(plain, "2:4")
    model = wrap(plain)
    optimizer = MaskedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    optimizer.step()
    masked = [m for m in model.modules() if "weight_mask" in m._buffers]
    assert len(masked) == 2
    assert all(is_sparse(m.weight, "2:4", axis=1) for m in masked)
    remove_masks(model)
    assert not [m for m in model.modules() if "weight_mask" in m._buffers]


@pytest.mark.parametrize("layer", [network(), nn.Linear(8, 8)])
def test_a_compiled_model_is_pruned_as_the_model_within(layer: Any) -> None:
    plain = copy.deepcopy(layer)
    compiled = torch.compile(layer, backend="eager")
    reports = [fb.sparsify(model, "2:4", schedule=Recomputed()) for model in (plain, compiled)]
    assert reports[0] == reports[1]
    assert layer.state_dict().keys() == plain.state_dict().keys()
    for model in (layer, compiled):
        parameters = model.parameters()
        assert MaskedOptimizer(torch.optim.SGD(parameters, lr=0.1), model)._layers
        with pytest.raises(ArgumentError, match="sparse already"):
            fb.sparsify(model, "2:4")
