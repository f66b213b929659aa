"""Schedules by their papers' precision: warm-up, precision switching on gradient diversity, promotion."""

import json
import math
import pickle
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import fewbits as fb
from fewbits.errors import ArgumentError
from fewbits.nn import prepare
from fewbits.optim import AdamW
from fewbits.recipes import RECIPES, recipe
from fewbits.recipes.recipe import OPERANDS
from fewbits.train.schedules import Assigned, Muppet, Schedule, WarmUp, schedule
from fewbits.train.schedules.muppet import diversity, level_recipe, threshold


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 8))


def _formats(model: nn.Module, name: str) -> list[str]:
    """Return the six operands of a layer as they are now."""
    precision: Any = model.get_submodule(name).precision
    return [str(how) for how in precision.recipe.operands.values()]


# ---- What is asked for: a model that follows the recipe, and a number of steps ----


@pytest.mark.parametrize("name", ["posit8", "mxfp6"])
def test_a_model_with_a_schedule_and_its_optimizer_are_pickled_without_it(name: str) -> None:
    model = prepare(_model(), name)
    running, optimizer = schedule(model, name, 30), AdamW(model.parameters(), recipe=name)
    copied, with_it = pickle.loads(pickle.dumps((model, optimizer)))  # noqa: S301
    x = torch.randn(4, 16)
    assert torch.equal(copied(x), model(x))
    copied(x).sum().backward()
    if name == "posit8":  # the schedule changes the layers of the original alone
        with pytest.raises(ArgumentError, match="nothing changes them"):
            with_it.step()
        running = schedule(copied, name, 30)
    with_it.step()
    assert not torch.equal(copied(x), model(x))
    assert running.step == 0


def test_a_schedule_is_one_of_the_recipe_that_the_model_was_prepared_with() -> None:
    for of_model, of_schedule in (
        ("posit8", "muppet"),
        ("posit8", "mxfp6"),
        ("muppet", "posit8"),
        ("mxfp6", "assigned"),
    ):
        model = prepare(_model(), of_model)
        before = _formats(model, "0")
        said = f"a schedule of recipe '{of_schedule}', and the model was prepared with '{of_model}'; write"
        with pytest.raises(ArgumentError, match=said):
            schedule(model, of_schedule, 30)
        assert _formats(model, "0") == before
    parts = nn.ModuleDict({"g": prepare(_model(), "posit8"), "d": prepare(_model(), "mxfp6")})
    with pytest.raises(ArgumentError, match="'posit8', and d was prepared with 'mxfp6'"):
        schedule(parts, "posit8", 30)
    assert _formats(parts, "d.0") == [str(how) for how in RECIPES["mxfp6"].operands.values()]
    schedule(parts["g"], "posit8", 30)
    with pytest.raises(ArgumentError, match=r"Sequential was not prepared; call fewbits.nn.prepare"):
        schedule(_model(), "posit8", 30)


def test_a_recipe_of_another_name_that_does_the_same_is_the_same() -> None:
    named = recipe("posit8").extended("mine")
    assert isinstance(schedule(prepare(_model(), "posit8"), named, 30), WarmUp)
    changed = recipe("posit8:weight=mxfp8_e4m3")
    assert isinstance(schedule(prepare(_model(), changed), changed, 30), WarmUp)
    # Where no formats change, products may differ, as those of the optimizer's recipe.
    assert type(schedule(prepare(_model(), "mxfp4"), "mxfp6", 30)) is Schedule


@pytest.mark.parametrize("steps", [0, -1, 2.5, True, "30", None])
def test_steps_are_a_whole_number_above_zero(steps: Any) -> None:
    with pytest.raises(ArgumentError, match=re.escape(f"steps={steps!r}; expected for how many")):
        schedule(prepare(_model(), "posit8"), "posit8", steps)
    assert schedule(prepare(_model(), "posit8"), "posit8", np.int64(1)).steps == 1


def test_the_state_of_another_schedule_is_refused_and_changes_nothing() -> None:
    names = ("posit8", "muppet", "assigned")
    for of_state in names:
        given = schedule(prepare(_model(), of_state), of_state, 30)
        given.after_step()
        for name in names:
            model = prepare(_model(), name)
            found = schedule(model, name, 30)
            before = found.state_dict(), _formats(model, "0")
            if name == of_state:
                found.load_state_dict(given.state_dict())
                assert found.step == 1
                continue
            with pytest.raises(ArgumentError, match=rf"expected one that a {type(found).__name__} saved"):
                found.load_state_dict(given.state_dict())
            assert (found.state_dict(), _formats(model, "0")) == before
    with pytest.raises(ArgumentError, match="has a layer 'head', which Sequential lacks"):
        found.load_state_dict({"step": 3, "low": ["0"], "promoted": ["head"]})
    assert found.step == 1


# ---- MuPPET: Rajagopal et al., ICML 2020, and the authors' code (policy.py) ----


def muppet(steps: int = 60) -> tuple[nn.Module, Muppet]:
    model = prepare(_model(), "muppet")
    found = schedule(model, "muppet", steps)
    assert isinstance(found, Muppet)
    return model, found


def epoch_with(model: nn.Module, found: Muppet, *gradients: Sequence[float], steps: int = 1) -> None:
    """Go one epoch whose last batch has these first entries of the parameters' gradients."""
    for i in range(steps):
        for p, values in zip(model.parameters(), gradients, strict=False):
            p.grad = torch.zeros_like(p)
            noise = 0 if i == steps - 1 else 1e3  # of batches that nobody looks at
            p.grad.view(-1)[: len(values)] = torch.tensor(values) + noise
        found.after_backward()
        found.after_step()


def three_epochs_of(model: nn.Module, found: Muppet, wanted: float, steps: int = 1) -> None:
    """Go three epochs whose gradients 1, t and 0 have a diversity (1 + t^2) / (1 + t)^2 from 1/2 to 1."""
    t = 0.0 if wanted == 1 else (wanted - math.sqrt(2 * wanted - 1)) / (1 - wanted)
    for value in (1.0, t, 0.0):
        epoch_with(model, found, [value], steps=steps)


def test_diversity_of_gradients_at_right_angles_of_equal_ones_and_of_several_parameters() -> None:
    a, b, c = torch.eye(3).unbind()
    assert diversity([3.0], [a + b + c]) == pytest.approx(1)
    assert diversity([3.0], [3 * a]) == pytest.approx(1 / 3)
    assert diversity([3.0, 3.0], [a + b + c, 3 * a]) == pytest.approx(2 / 3)
    assert diversity([3.0, 2.0], [3 * a, 0 * b]) == pytest.approx(1 / 3)  # which adds up to zero
    assert diversity([2.0], [0 * b]) == 0.0


def test_the_threshold_falls_from_two_and_a_half_to_one() -> None:
    """1 + 1.5 exp(-0.1 epoch)."""
    wanted = {0: 2.5, 2: 2.2280961, 5: 1.9097960, 10: 1.5518192, 30: 1.0746806}
    assert {e: round(threshold(e), 7) for e in wanted} == wanted


# Checked after epochs 2, 5, 8, 11, 14, 17, 20 (counted from 0), where the threshold is 2.228, 1.9098, 1.6740,
# 1.4993, 1.3699, 1.2740, 1.2030. A violation is a largest diversity over now's that is above it.
SEQUENCES = [
    ([1.0, 0.52, 0.59], [0, 0, 1]),  # 1.923 and 1.695: two violations
    ([1.0, 0.53, 0.59, 0.66], [0, 0, 0, 1]),  # 1.887 is none, 1.695 and 1.515 are
    ([1.0, 0.52, 0.60, 0.66], [0, 0, 0, 1]),  # 1.667 is none, and forgets none
    ([1.0, 0.53, 0.60, 0.67], [0, 0, 0, 0]),
    ([0.6, 1.0, 0.59, 0.66], [0, 0, 0, 1]),  # the largest so far, not the first
    ([0.6, 0.6, 0.6, 0.6, 0.6, 0.6], [0] * 6),  # a ratio of 1 is never one
    ([1.0, 0.52, 0.59, 0.66, 0.50, 0.51, 0.54], [0, 0, 1, 1, 1, 1, 2]),  # the largest since the last switch
]


@pytest.mark.parametrize(("diversities", "levels"), SEQUENCES)
@pytest.mark.parametrize("steps_of_epoch", [1, 3])
def test_precision_switches_after_two_violations_of_the_falling_threshold(
    diversities: list[float], levels: list[int], steps_of_epoch: int
) -> None:
    model, found = muppet(60 * steps_of_epoch)
    seen = []
    for wanted in diversities:
        three_epochs_of(model, found, wanted, steps_of_epoch)
        seen.append(found.level)
    assert seen == levels


def test_it_looks_at_each_third_epoch_and_at_the_mean_over_parameters() -> None:
    model, found = muppet()
    for gradients in ([1.0], [0.0, 1.0]), ([1.0], [0.0, 1.0]), ([1.0], [0.0, 1.0]):
        assert found.largest == 0.0
        epoch_with(model, found, *gradients)
    assert found.largest == pytest.approx(1 / 3)
    for gradients in ([1.0], [1.0]), ([0.0], [1.0]), ([0.0], [1.0]):
        epoch_with(model, found, *gradients)
    assert found.largest == pytest.approx((1 + 1 / 3) / 2)
    assert found.violations == 0
    assert found.sums == {}


def test_a_parameter_may_have_a_gradient_in_some_epochs_only() -> None:
    """Gradients of three epochs by parameter, None where it has none, and their diversity by hand."""
    ways: list[tuple[list[list[float | None]], float]] = [
        ([[1, None], [1, 1], [1, None]], (1 / 3 + 1) / 2),  # 3 / 9 and 1 / 1
        ([[None, 1], [2, None], [1, 3]], (5 / 9 + 10 / 16) / 2),  # one at a time, of other shapes
        ([[None, None], [None, 1], [None, 1]], 1 / 2),
        ([[None, None]] * 3, 0.0),
    ]
    for epochs, wanted in ways:
        model, found = muppet()
        for values in epochs:
            for p, value in zip(list(model.parameters())[1:], values, strict=False):
                p.grad = None if value is None else torch.zeros_like(p)
                if value is not None:
                    p.grad.view(-1)[0] = value
            found.after_backward()
            found.after_step()
        assert found.largest == pytest.approx(wanted)


def test_a_layer_that_is_left_out_of_every_other_batch_trains_and_goes_on_where_it_was_saved() -> None:
    ends = []
    for stop in None, 0, 1:
        torch.manual_seed(0)
        deep = nn.Sequential(*(nn.Linear(8, 8) for _ in range(6)))
        model = prepare(nn.ModuleDict({"a": deep, "b": nn.Linear(8, 4)}), "muppet")
        optimizer, found = AdamW(model.parameters(), recipe="muppet"), schedule(model, "muppet", 60)
        for step in range(3):
            optimizer.zero_grad()
            x = torch.randn(3, 8)
            loss = model["a"](x).square().sum() + (model["b"](x).square().sum() if step % 2 else 0)
            loss.backward()
            found.after_backward()
            optimizer.step()
            found.after_step()
            if step == stop:
                state, tensors = json.loads(json.dumps(found.state_dict())), found.tensors()
                found = schedule(model, "muppet", 60)
                found.load_tensors(dict(reversed(tensors.items())))
                found.load_state_dict(state)
        ends.append((found.state_dict(), [p.tolist() for p in model.parameters()]))
    assert found.state_dict()["largest"] > 0
    assert ends == ends[:1] * 3


def test_a_ratio_that_equals_the_threshold_is_no_violation() -> None:
    _, found = muppet()
    found._judge(6.0, 3.0)
    found._judge(2.0, 3.0)
    assert (found.largest, found.violations) == (6.0, 0)
    found._judge(1.999, 3.0)
    assert found.violations == 1


def test_it_goes_through_8_12_14_and_16_bits_to_float32_and_stays() -> None:
    model, found = muppet()
    seen = []
    for _ in range(5):
        seen.append(_formats(model, "0"))
        for wanted in (1.0, 0.5, 0.5):
            three_epochs_of(model, found, wanted)
    fixed = [f"block(element=int{b},scale=e8m0,size=tensor)/stochastic/rceil" for b in (8, 12, 14, 16)]
    wanted_formats = [[f.replace("int12", "int(12)").replace("int14", "int(14)")] * 6 for f in fixed]
    assert [[f.replace("int(16)", "int16") for f in formats] for formats in seen[:4]] == wanted_formats
    assert seen[4] == ["None"] * 6
    assert _formats(model, "2") == ["None"] * 6
    assert found.level == 4


def test_the_last_level_is_float32_whatever_the_recipe_had() -> None:
    last = level_recipe(recipe("muppet:weight=mx9,activation=mx6,gradient=mxfp4"), 32)
    roles = (
        "forward_weight",
        "dx_weight",
        "forward_activation",
        "dw_activation",
        "dx_gradient",
        "dw_gradient",
    )
    assert [getattr(last, role) for role in roles] == [None] * 6


@pytest.mark.parametrize("chosen", ["muppet:gradient=mxfp6_e3m2", "posit8:schedule=muppet"])
def test_operands_that_the_recipe_rounds_are_refused_and_not_ignored(chosen: str) -> None:
    model = prepare(_model(), chosen)
    before = _formats(model, "0")
    with pytest.raises(
        ArgumentError, match=r"=(mxfp6_e3m2|posit8_1/shift=2) in .* chooses the formats of all"
    ):
        schedule(model, chosen, 30)
    assert _formats(model, "0") == before


def test_gradients_that_add_up_to_zero_say_nothing_and_an_epoch_is_a_sixtieth_of_the_steps() -> None:
    model, found = muppet(119)  # one step each
    three_epochs_of(model, found, 1.0)
    assert found.largest == pytest.approx(1)
    for value in (1.0, -1.0, 0.0):
        epoch_with(model, found, [value])
    assert (found.violations, found.largest) == (0, pytest.approx(1))


@pytest.mark.parametrize("done", range(1, 10))
def test_a_schedule_of_muppet_goes_on_where_it_was_saved(done: int) -> None:
    whole_model, whole = muppet()
    half_model, half = muppet()
    gradients = [[v] for d in (1.0, 0.52, 0.59) for v in (1.0, d, 0.25)]
    for values in gradients[:done]:
        epoch_with(half_model, half, values)
    model, found = muppet()
    found.load_tensors(half.tensors())
    found.load_state_dict(half.state_dict())
    for values in gradients[done:]:
        epoch_with(model, found, values)
    for values in gradients:
        epoch_with(whole_model, whole, values)
    assert found.state_dict() == whole.state_dict()
    assert _formats(model, "0") == _formats(whole_model, "0")


# ---- Lu et al., posit training, 2019: an FP32 warm-up ----


@pytest.mark.parametrize(("steps", "plain"), [(50, 5), (59, 5), (60, 6), (9, 0)])
def test_warm_up_is_plain_for_a_tenth_of_the_steps_and_then_narrow(steps: int, plain: int) -> None:
    model = prepare(_model(), "posit8")
    found = schedule(model, "posit8", steps)
    assert isinstance(found, WarmUp)
    wanted = [str(how) for how in RECIPES["posit8"].operands.values()]
    for step in range(10):
        assert _formats(model, "0") == (["None"] * 6 if step < plain else wanted)
        found.after_step()


# ---- Lee, Sharma and Aiken, Mixed-Precision Assignments, 2023: demotion by size, promotion on overflow ----

LOW = ["hfp8_e4m3", "hfp8_e4m3", "hfp8_e4m3", "fp8_e5m2", "fp8_e5m2", "hfp8_e4m3"]
HIGH = ["fp16_e6m9"] * 6


def assigned(sizes: Sequence[int]) -> tuple[nn.Module, Assigned]:
    """Return layers of so many weights."""
    model = prepare(nn.Sequential(*(nn.Linear(1, n, bias=False) for n in sizes)), "assigned")
    found = schedule(model, "assigned", 50)
    assert isinstance(found, Assigned)
    return model, found


@pytest.mark.parametrize(
    ("sizes", "low"),
    [
        ([50, 40, 10], [0, 1]),  # nine tenths are enough
        ([50, 39, 11], [0, 1, 2]),  # 89 are not
        ([11, 9, 50, 30], [0, 2, 3]),  # the largest first: 50, 80, 91
        ([10, 10, 10], [0, 1, 2]),
        ([91, 9], [0]),
    ],
)
def test_the_largest_layers_are_low_until_nine_tenths_of_the_weights_are(
    sizes: list[int], low: list[int]
) -> None:
    model, found = assigned(sizes)
    assert found.low == {str(i) for i in low}
    for i in range(len(sizes)):
        assert _formats(model, str(i)) == (LOW if i in low else HIGH)


@pytest.mark.parametrize(
    ("beyond", "value", "promoted"),
    [(2, 30.01, True), (1, 1e9, False), (2, 30.0, False), (2, -30.01, True)],
)
def test_one_activation_in_a_hundred_beyond_the_largest_promotes_the_layer_for_good(
    beyond: int, value: float, promoted: bool
) -> None:
    """The largest of the format 1-4-3 with bias 11 (Sun et al., Hybrid 8-bit, 2019) is 30."""
    model = prepare(nn.Sequential(nn.Linear(20, 40), nn.Linear(40, 20)), "assigned")
    found = schedule(model, "assigned", 50)
    assert isinstance(found, Assigned)
    assert found.low == {"0", "1"}
    x = torch.ones(10, 20) * 0.01
    x.view(-1)[:beyond] = value
    model(x)
    assert found.promoted == (["0"] if promoted else [])
    assert _formats(model, "0") == (HIGH if promoted else LOW)  # at once
    for _ in range(3):
        found.after_step()
        model(torch.zeros(10, 20))
        assert _formats(model, "0") == (HIGH if promoted else LOW)
        assert _formats(model, "1") == LOW
    model(x)
    assert found.promoted == (["0"] if promoted else [])
    again = schedule(prepare(nn.Sequential(nn.Linear(20, 40), nn.Linear(40, 20)), "assigned"), "assigned", 50)
    again.load_state_dict(found.state_dict())
    assert again.state_dict() == found.state_dict()
    assert _formats(again.model, "0") == (HIGH if promoted else LOW)


def test_weights_beyond_the_largest_promote_too_and_gradients_never_do() -> None:
    model = prepare(nn.Sequential(nn.Linear(20, 40), nn.Linear(40, 20)), "assigned")
    found = schedule(model, "assigned", 50)
    assert isinstance(found, Assigned)
    (1e9 * model(torch.zeros(10, 20)).sum()).backward()
    assert found.promoted == []
    with torch.no_grad():
        model[1].weight.fill_(31.0)
    model(torch.zeros(10, 20))
    assert found.promoted == ["1"]


@pytest.mark.parametrize("kind", [nn.Linear, nn.Conv1d])
@pytest.mark.parametrize("packs", [True, False])
def test_inputs_that_wait_for_the_backward_pass_keep_the_format_they_were_saved_in(
    kind: Any, packs: bool
) -> None:
    """A layer that runs twice and is promoted by its second input, which is beyond the largest."""
    torch.manual_seed(0)
    layer = kind(64, 4, bias=False) if kind is nn.Linear else kind(64, 4, 1, bias=False)
    model = prepare(nn.Sequential(layer), "assigned", pack_activations=packs)
    found = schedule(model, "assigned", 50)
    assert isinstance(found, Assigned)
    rows = torch.randn(2, 33, 64) * torch.tensor([1.0, 1e3]).reshape(2, 1, 1)
    inputs = rows if kind is nn.Linear else rows.unsqueeze(-1)
    first, second = (model(x.requires_grad_() * 1) for x in inputs)
    assert found.promoted == ["0"]
    gradients = [torch.autograd.grad(y.sum(), [layer.weight])[0].reshape(4, 64) for y in (first, second)]
    operand = recipe("assigned").dw_activation
    for gradient, x, format in zip(gradients, rows, (str(operand), "fp16_e6m9"), strict=True):
        # Of gradients that are all one, the sum over the batch of what was kept.
        kept = fb.fake_quantize(x.detach().numpy(), format, axis=0, overflow="saturate")
        wanted = torch.from_numpy(kept).double().sum(0).expand(4, -1)
        torch.testing.assert_close(gradient.double(), wanted, rtol=1e-5, atol=1e-4)


def test_a_promoted_convolution_is_recomputed_as_it_was() -> None:
    gradients = []
    for again in (False, True):
        torch.manual_seed(0)
        model = prepare(nn.Sequential(nn.Conv1d(8, 4, 1, bias=False)), "assigned")
        found = schedule(model, "assigned", 50)
        x = (1e3 * torch.randn(33, 8, 2)).requires_grad_() * 1
        y = checkpoint(model, x, use_reentrant=False) if again else model(x)
        gradients += torch.autograd.grad(y.sum(), list(model.parameters()))
        assert isinstance(found, Assigned)
        assert found.promoted == ["0"]
    assert torch.equal(*gradients)


def test_roles_that_are_left_wide_stay_so_and_blocks_do_not_overflow() -> None:
    for chosen, weight, promoted in (
        ("assigned:weight=fp32", "None", "None"),
        ("assigned:weight=mxfp4", "mxfp4", "fp16_e6m9"),
    ):
        model = prepare(nn.Sequential(nn.Linear(20, 40)), chosen)
        found = schedule(model, chosen, 50)
        assert isinstance(found, Assigned)
        with torch.no_grad():
            model[0].weight.fill_(1e9)  # which a scale of a block reaches
        model(torch.zeros(10, 20))
        saved = found.state_dict()
        for formats, of_weight, others in (
            (_formats(model, "0"), weight, LOW),
            (found.promote("0") or _formats(model, "0"), promoted, HIGH),
        ):
            wanted = dict(zip(OPERANDS, others, strict=True))
            wanted |= dict.fromkeys(("forward_weight", "dx_weight"), of_weight)
            assert formats == list(wanted.values())
        assert saved == {"step": 0, "low": ["0"], "promoted": []}  # what was saved stays as it was


def test_a_second_schedule_takes_the_place_of_the_first() -> None:
    model = prepare(nn.Sequential(nn.Linear(20, 40), nn.Linear(40, 20)), "assigned")
    first, second = (schedule(model, "assigned", 50) for _ in range(2))
    assert isinstance(first, Assigned)
    assert isinstance(second, Assigned)
    for name in ("0", "1"):
        second.promote(name)
    model(torch.full((10, 20), 1e30))  # beyond the high formats, too
    assert first.promoted == []
    assert [_formats(model, name) for name in ("0", "1")] == [HIGH, HIGH]


@pytest.mark.parametrize("low", [True, False])
def test_a_watcher_that_was_there_still_sees_every_operand(low: bool) -> None:
    seen = []

    class Recorder:
        def observe(self, precision: Any, role: str, *operand: Any) -> None:
            seen.append((precision.layer, role, *operand))

    model = prepare(nn.Sequential(nn.Linear(20, 40), nn.Linear(40, 20)), "assigned")
    for layer in model:
        layer.precision.observer = Recorder()
    found = schedule(model, "assigned", 50)
    assert isinstance(found, Assigned)
    if not low:
        found.promote("0")
    x = torch.ones(10, 20) * 0.01
    model(x)
    forward = [entry[:2] for entry in seen if entry[1].startswith("forward")]
    assert forward == [(n, f"forward_{of}") for n in ("0", "1") for of in ("activation", "weight")]
    assert seen[0][2].data_ptr() == x.data_ptr()
    assert len(seen[0]) == 5
