"""The wrapper around an optimizer: what is masked, what survives, and what each schedule does."""

import copy
import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fewbits as fb
from fewbits import optim
from fewbits.errors import ArgumentError
from fewbits.nn import prepare
from fewbits.sparsity import (
    Frozen,
    Gradual,
    MaskedOptimizer,
    Recomputed,
    density,
    is_sparse,
    mask,
    remove_masks,
)
from fewbits.sparsity.optimizer import _masked
from fewbits.tensor import NarrowTensor
from tests.training import losses_of

SPARSE = ("0.weight", "2.weight")


def data(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(64, 16, generator=generator)
    return x, (x[:, :4].sum(-1) > 0).long()


def network(schedule: Any = None, **choices: Any) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
    if schedule is not None:
        fb.sparsify(model, "2:4", schedule=schedule, **choices)
    return model


def train(model: Any, optimizer: Any, steps: int = 5) -> list[float]:
    return losses_of(model, optimizer, *data(), steps)


def all_sparse(model: Any) -> bool:
    return all(is_sparse(model.get_parameter(name), "2:4") for name in SPARSE)


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01, nesterov=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.1),
    "adamw-fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=1e-2),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.9),
    "muon": lambda p: torch.optim.Muon([w for w in p if w.dim() == 2], lr=1e-2),
    "ours": lambda p: optim.AdamW(p, lr=1e-2),
    "ours-sgd": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "ours-packed": lambda p: optim.AdamW(p, lr=1e-2, recipe="fp8-lm"),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_weights_gradients_and_every_state_stay_masked(kind: Any) -> None:
    if kind == "muon" and not hasattr(torch.optim, "Muon"):
        pytest.skip("this torch has no Muon")
    model = network(Frozen())
    recipe = "fp8-lm" if kind == "ours-packed" else None
    if recipe:
        prepare(model, recipe)
    start = copy.deepcopy(model.state_dict())
    optimizer = MaskedOptimizer(OPTIMIZERS[kind](model.parameters()), model)
    losses = train(model, optimizer, 10)
    assert losses[-1] < losses[0]
    assert all_sparse(model)
    for name in SPARSE:
        w, kept = model.get_parameter(name), model.get_buffer(name + "_mask")
        assert torch.equal(kept, start[name + "_mask"])
        assert not torch.equal(w, start[name])
        if w.grad is not None:
            assert not w.grad[~kept].any()
            assert w.grad[kept].any()
        states = [s for s in optimizer.state[w].values() if getattr(s, "shape", None) == w.shape]
        assert states
        for state in states:
            values = state.dense() if isinstance(state, NarrowTensor) else state
            assert not values[~kept].any()
            assert values[kept].any()


@pytest.mark.parametrize("kind", ["sgd", "ours"])
def test_without_the_wrapper_the_pattern_is_lost(kind: Any) -> None:
    model = network(Frozen())
    train(model, OPTIMIZERS[kind](model.parameters()), 2)
    assert not all_sparse(model)


def test_a_masked_step_is_the_step_of_the_small_problem() -> None:
    """Plain SGD on kept weights alone, by hand."""
    model = network(Frozen())
    x, y = data()
    expected = {}
    nn.functional.cross_entropy(model(x), y).backward()
    for name, p in model.named_parameters():
        kept = model.state_dict().get(name + "_mask", torch.ones_like(p, dtype=torch.bool))
        expected[name] = p.detach() - 0.1 * p.grad * kept
    train(model, MaskedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model), 1)
    for name, p in model.named_parameters():
        assert torch.allclose(p, expected[name], atol=1e-7)


def test_two_wrapped_models_and_a_bare_one_do_not_touch_each_other() -> None:
    class_step = torch.optim.SGD.step
    one, other, bare = network(Frozen()), network(Frozen(), exclude="0"), network()
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in (one, other, bare)]
    wrapped = MaskedOptimizer(optimizers[0], one), MaskedOptimizer(optimizers[1], other)
    for model, optimizer in zip((one, other, bare), (*wrapped, optimizers[2]), strict=True):
        train(model, optimizer, 2)
    assert all_sparse(one)
    assert not is_sparse(other[0].weight, "2:4")
    assert is_sparse(other[2].weight, "2:4")
    assert not is_sparse(bare[0].weight, "2:4")
    assert torch.optim.SGD.step is class_step
    assert "step" not in vars(optimizers[0])


def test_a_copy_of_model_and_optimizer_trains_on_as_they_do() -> None:
    model = network(Frozen())
    optimizer = MaskedOptimizer(torch.optim.AdamW(model.parameters(), lr=1e-2), model)
    train(model, optimizer, 3)
    again, its = copy.deepcopy((model, optimizer))
    assert train(again, its) == train(model, optimizer)
    assert all_sparse(again)
    assert again[0].weight is not model[0].weight
    assert its.optimizer is not optimizer.optimizer
    only = copy.deepcopy(optimizer)  # brings a copy of its model
    train(only.model, only)
    assert all_sparse(only.model)


@pytest.mark.parametrize("schedule", [Frozen(), Recomputed(every=2, decay=0.01), Gradual(8, every=2)])
def test_a_run_goes_on_from_its_states_with_the_same_bits(schedule: Any, tmp_path: Path) -> None:
    model = network(schedule)
    optimizer = MaskedOptimizer(torch.optim.AdamW(model.parameters(), lr=1e-2), model)
    train(model, optimizer, 5)
    torch.save((model.state_dict(), optimizer.state_dict()), tmp_path / "saved.pt")
    expected = train(model, optimizer)
    again = network(schedule)
    its = MaskedOptimizer(torch.optim.AdamW(again.parameters(), lr=1e-2), again)
    saved = torch.load(tmp_path / "saved.pt")
    again.load_state_dict(saved[0])
    its.load_state_dict(saved[1])
    assert train(again, its) == expected


def test_a_distributed_checkpoint_holds_masks_and_states() -> None:
    from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

    models = [network(Recomputed(every=2, decay=0.01)) for _ in range(2)]
    optimizers = [MaskedOptimizer(torch.optim.AdamW(m.parameters(), lr=1e-2), m) for m in models]
    train(models[0], optimizers[0], 3)
    saved = copy.deepcopy(get_state_dict(models[0], optimizers[0]))
    set_state_dict(models[1], optimizers[1], model_state_dict=saved[0], optim_state_dict=saved[1])
    assert train(models[1], optimizers[1]) == train(models[0], optimizers[0])
    assert all_sparse(models[1])


def test_packed_states_are_written_and_read_by_this_package(tmp_path: Path) -> None:
    model = prepare(network(Frozen()), "fp8-lm")
    optimizer = MaskedOptimizer(optim.AdamW(model.parameters(), recipe="fp8-lm"), model)
    train(model, optimizer, 3)
    optim.save_state(optimizer, tmp_path / "state.safetensors")
    again = prepare(network(Frozen()), "fp8-lm")
    its = MaskedOptimizer(optim.AdamW(again.parameters(), recipe="fp8-lm"), again)
    again.load_state_dict(model.state_dict())
    optim.load_state(its, tmp_path / "state.safetensors")
    assert train(again, its) == train(model, optimizer)


def test_a_packed_state_that_has_its_zeros_is_left_as_it_is() -> None:
    kept = torch.tensor([[True, False] * 16] * 2)
    sparse, dense = (fb.quantize(x, "mxfp8_e4m3") for x in (kept.float(), torch.ones(2, 32)))
    assert _masked(sparse, kept) is sparse
    assert torch.equal(_masked(dense, kept).dense(), kept.float())
    of_rows = fb.quantize(torch.ones(2), "mxfp8_e4m3")
    assert _masked(of_rows, kept) is of_rows  # of another shape than the weights


def test_the_state_of_a_dense_optimizer_is_masked_when_it_is_taken_over() -> None:
    model = network()
    dense = torch.optim.AdamW(model.parameters(), lr=1e-2)
    train(model, dense)
    fb.sparsify(model, "2:4")
    optimizer = MaskedOptimizer(dense, model)
    kept = model[0].weight_mask
    assert not optimizer.state[model[0].weight]["exp_avg"][~kept].any()
    loaded = MaskedOptimizer(torch.optim.AdamW(model.parameters(), lr=1e-2), model)
    state = copy.deepcopy(dense.state_dict())
    state["state"][0]["exp_avg"].fill_(1)
    loaded.load_state_dict(state)
    assert torch.equal(loaded.state[model[0].weight]["exp_avg"] != 0, kept)


def test_a_change_of_optimizer_keeps_the_masks() -> None:
    model = network(Gradual(4))
    train(model, MaskedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model), 2)
    before = {name: model.get_buffer(name + "_mask").clone() for name in SPARSE}
    train(model, MaskedOptimizer(torch.optim.AdamW(model.parameters(), lr=1e-2), model), 2)
    assert all_sparse(model)
    for name in SPARSE:  # what was pruned stays so: steps are counted on
        assert not (model.get_buffer(name + "_mask") & ~before[name]).any()


def test_compiled_models_train_as_plain_ones_do() -> None:
    results = []
    for compiled in (False, True):
        model = network(Frozen())
        optimizer = MaskedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
        results.append(train(torch.compile(model, backend="aot_eager") if compiled else model, optimizer))
        assert all_sparse(model)
    assert results[0] == pytest.approx(results[1], rel=1e-6)


def test_schedulers_scalers_hooks_and_closures_take_it_for_an_optimizer() -> None:
    model = network(Frozen())
    optimizer = MaskedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
    rate = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    scale = torch.amp.GradScaler("cpu", init_scale=8.0)
    called = []
    optimizer.register_step_post_hook(lambda *_: called.append(1))
    x, y = data()
    for _ in range(2):
        optimizer.zero_grad()
        scale.scale(nn.functional.cross_entropy(model(x), y)).backward()
        scale.step(optimizer)
        scale.update()
        rate.step()
    assert optimizer.param_groups[0]["lr"] == optimizer.optimizer.param_groups[0]["lr"] == 0.025
    assert called == [1, 1]
    assert all_sparse(model)

    def closure() -> Any:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        return loss

    assert float(optimizer.step(closure).detach()) > 0
    assert all_sparse(model)


@pytest.mark.parametrize("kind", ["adamw-fused", "ours"])
def test_scalers_hand_their_scale_through_and_an_overflow_skips_the_step(kind: Any) -> None:
    model, plain = network(Frozen()), network(Frozen())
    optimizers = [MaskedOptimizer(OPTIMIZERS[kind](m.parameters()), m) for m in (model, plain)]
    scale = torch.amp.GradScaler("cpu", init_scale=1024.0)
    x, y = data()
    for m, optimizer in zip((model, plain), optimizers, strict=True):
        loss = nn.functional.cross_entropy(m(x), y)
        if m is plain:
            loss.backward()
            optimizer.step()
        else:
            scale.scale(loss).backward()
            scale.step(optimizer)
            scale.update()
    assert torch.allclose(model[0].weight, plain[0].weight, atol=1e-6)
    before = model[0].weight.clone()
    optimizers[0].zero_grad()
    scale.scale(nn.functional.cross_entropy(model(x), y)).backward()
    model[2].bias.grad[0] = torch.inf
    scale.step(optimizers[0])
    scale.update()
    assert torch.equal(model[0].weight, before)
    assert scale.get_scale() == 512


def test_masked_weights_decay_as_much_under_a_loss_scale_that_the_optimizer_takes() -> None:
    x, y = data()
    scaled, plain = (network(Recomputed(every=1, decay=0.5)) for _ in range(2))
    for model, scale in ((scaled, 1024.0), (plain, 1.0)):
        optimizer = MaskedOptimizer(OPTIMIZERS["ours-sgd"](model.parameters()), model)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        scaler.scale(nn.functional.cross_entropy(model(x), y)).backward()
        scaler.step(optimizer)
    torch.testing.assert_close(scaled.state_dict(), plain.state_dict(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("kind", ["adamw", "adamw-fused", "ours"])
@pytest.mark.parametrize("schedule", [Gradual(4), Recomputed(every=2)])
def test_steps_that_a_scaler_skips_are_none_for_the_schedule(kind: Any, schedule: Any) -> None:
    x, y = data()
    ends = []
    for overflows in ((), (0, 2, 3)):  # numbers of steps
        model = network(schedule)
        optimizer = MaskedOptimizer(OPTIMIZERS[kind](model.parameters()), model)
        scale = torch.amp.GradScaler("cpu", init_scale=64.0)
        for number in range(3 + len(overflows)):
            before = copy.deepcopy(model.state_dict())
            optimizer.zero_grad()
            scale.scale(nn.functional.cross_entropy(model(x), y)).backward()
            if number in overflows:
                model[2].bias.grad[0] = torch.inf
            scale.step(optimizer)
            scale.update(64.0)
            if number in overflows:
                assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        ends.append(model.state_dict())
    assert ends[0]["sparsity_step"] == 3
    assert all(torch.equal(value, ends[1][name]) for name, value in ends[0].items())


def test_a_step_that_fails_leaves_the_model_sparse() -> None:
    model = network(Recomputed())
    optimizer = MaskedOptimizer(
        OPTIMIZERS["ours"]([*model.parameters(), (w := nn.Parameter(torch.ones(4)))]), model
    )
    train(model, optimizer, 1)
    before = copy.deepcopy(model.state_dict())
    w.grad = torch.ones(4).to_sparse()
    with pytest.raises(ArgumentError, match="a sparse gradient"):
        optimizer.step()
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_our_scaler_sees_packed_gradients_through_the_wrapper() -> None:
    chosen = "fp8-lm"
    model = prepare(network(Frozen()), chosen)
    optimizer, scale = (
        MaskedOptimizer(optim.AdamW(model.parameters(), recipe=chosen), model),
        optim.scaler(chosen),
    )
    x, y = data()
    for _ in range(2):
        optimizer.zero_grad()
        scale.scale(nn.functional.cross_entropy(model(x), y)).backward()
        assert optimizer.clip_(1.0, loss_scale=scale.get_scale()) > 0
        scale.step(optimizer)
        scale.update()
    assert all_sparse(model)


def test_parameters_that_are_added_later_are_masked_too() -> None:
    model = network(Frozen())
    optimizer = MaskedOptimizer(torch.optim.SGD(model[2].parameters(), lr=0.1), model)
    optimizer.add_param_group({"params": list(model[0].parameters()), "lr": 0.2})
    train(model, optimizer, 2)
    assert all_sparse(model)


def test_parts_that_were_pruned_apart_are_wrapped_one_after_the_other() -> None:
    model = network()
    fb.sparsify(model[0], "1:4")
    fb.sparsify(model[2], "2:4", schedule=Recomputed())
    inner = torch.optim.AdamW(model.parameters(), lr=1e-2)
    with pytest.raises(ArgumentError, match="holds 2 models that were made sparse; take them one by one"):
        MaskedOptimizer(inner, model)
    train(model, MaskedOptimizer(MaskedOptimizer(inner, model[0]), model[2]))
    assert is_sparse(model[0].weight, "1:4")
    assert is_sparse(model[2].weight, "2:4")
    assert not is_sparse(model[2].weight_dense, "2:4")


def test_straight_through_steps_are_those_of_the_paper() -> None:
    """SR-STE of Zhou and others, by hand for SGD: w - lr (g(masked w) + decay (1 - mask) w)."""
    rate, decay = 0.1, 0.05
    model = network(Recomputed(decay=decay))
    optimizer = MaskedOptimizer(torch.optim.SGD(model.parameters(), lr=rate), model)
    x, y = data()
    w = {name: model.get_buffer(name + "_dense").clone() for name in SPARSE}
    for _ in range(4):
        plain = network()
        plain.load_state_dict({k: v for k, v in model.state_dict().items() if k in plain.state_dict()})
        nn.functional.cross_entropy(plain(x), y).backward()
        for name in SPARSE:
            assert torch.equal(plain.get_parameter(name), w[name] * mask(w[name], "2:4"))
            dropped = ~mask(w[name], "2:4")
            w[name] = w[name] - rate * (plain.get_parameter(name).grad + decay * dropped * w[name])
        train(model, optimizer, 1)
        for name in SPARSE:
            assert torch.allclose(model.get_buffer(name + "_dense"), w[name], atol=1e-6)
            w[name] = model.get_buffer(name + "_dense").clone()


def test_recomputed_masks_change_and_say_how_much() -> None:
    model = network(Recomputed(every=3))
    optimizer = MaskedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model)
    masks, rates = [model[0].weight_mask.clone()], []
    for _ in range(6):
        train(model, optimizer, 1)
        masks.append(model[0].weight_mask.clone())
        rates.append(optimizer.flip_rate)
        assert all_sparse(model)
        assert torch.equal(model[0].weight, model[0].weight_dense * model[0].weight_mask)
    changed = [not torch.equal(a, b) for a, b in itertools.pairwise(masks)]
    assert changed == [False, False, True, False, False, True]
    assert rates[0] == 0 < rates[2] < 1
    frozen = network(Frozen())
    held = MaskedOptimizer(torch.optim.SGD(frozen.parameters(), lr=1.0), frozen)
    train(frozen, held, 6)
    assert held.flip_rate == 0


def test_the_decay_of_masked_weights_steadies_the_masks() -> None:
    flips = {}
    for decay in (0.0, 0.3):
        model = network(Recomputed(decay=decay))
        optimizer = MaskedOptimizer(torch.optim.SGD(model.parameters(), lr=0.5), model)
        flips[decay] = 0.0
        for _ in range(40):
            train(model, optimizer, 1)
            flips[decay] += optimizer.flip_rate
    assert flips[0.3] < 0.7 * flips[0.0]


def test_gradual_pruning_follows_the_cubic_down_to_the_pattern() -> None:
    model = network(Gradual(steps=8, every=2, begin=2))
    optimizer = MaskedOptimizer(torch.optim.SGD(model.parameters(), lr=0.05), model)
    found, before = [], model[0].weight_mask.clone()
    for _ in range(12):
        train(model, optimizer, 1)
        found.append(1 - density(model[0].weight))
        assert not (model[0].weight_mask & ~before).any()  # what is pruned stays pruned
        before = model[0].weight_mask.clone()
    due = [0.5 * (1 - (1 - gone / 8) ** 3) for gone in (0, 2, 4, 6, 8)]
    expected = [0, due[0], due[0], due[1], due[1], due[2], due[2], due[3], due[3], due[4], due[4], due[4]]
    assert found == pytest.approx(expected, abs=1 / 512)
    assert all_sparse(model)


@pytest.mark.parametrize("recipe", ["mxint8", "mxfp4", "int8_channel", "mx9"])
def test_what_a_recipe_rounds_stays_sparse(recipe: Any) -> None:
    from fewbits.recipes import uniform_recipe

    seen = []

    class Observer:
        def observe(self, precision: Any, role: Any, x: Any, rounded: Any, axis: int) -> None:
            if role == "forward_weight":
                seen.append((x, rounded))

    model = prepare(network(Frozen()), uniform_recipe(recipe), observer=Observer())
    optimizer = MaskedOptimizer(torch.optim.AdamW(model.parameters(), lr=1e-2), model)
    train(model, optimizer, 3)
    assert len(seen) == 6
    for x, rounded in seen:
        assert is_sparse(rounded, "2:4")
        assert not torch.equal(x, rounded)
        assert density(rounded) > 0.3  # not by being all zeros


def test_a_model_may_be_prepared_first_and_pruned_then() -> None:
    torch.manual_seed(0)
    model = prepare(nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8)), "bf16-only")
    fb.sparsify(model, "2:4")
    train(model, MaskedOptimizer(optim.SGD(model.parameters(), lr=0.1, recipe="bf16-only"), model))
    assert all_sparse(model)


@pytest.mark.parametrize("schedule", [Frozen(), Recomputed(), Gradual(3)])
@pytest.mark.parametrize("again", [False, True])
def test_without_its_masks_the_wrapper_refuses_and_the_optimizer_goes_on(schedule: Any, again: bool) -> None:
    model = network(schedule)
    optimizer = MaskedOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
    train(model, optimizer, 2)
    state = optimizer.state_dict()
    remove_masks(model)
    if again:
        fb.sparsify(model, "1:4")
    before = copy.deepcopy(model.state_dict())
    calls = []
    for use in (
        lambda: optimizer.step(lambda: calls.append(1) or 0.0),
        lambda: optimizer.flip_rate,
        lambda: optimizer.load_state_dict(state),
        lambda: optimizer.add_param_group({"params": [nn.Parameter(torch.ones(4))]}),
    ):
        with pytest.raises(ArgumentError, match=r"masks of Sequential were taken out.*optimizer\.optimizer"):
            use()
    assert not calls
    assert len(optimizer.param_groups) == 1
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    wrapped = MaskedOptimizer(optimizer.optimizer, model) if again else optimizer.optimizer
    train(model, wrapped, 1)
    assert not torch.equal(model[0].weight, before["0.weight"])
    assert is_sparse(model[0].weight, "1:4") is again


def test_misuse_is_refused_with_advice() -> None:
    with pytest.raises(ArgumentError, match=r"Sequential is not sparse; call fewbits.sparsify"):
        MaskedOptimizer(torch.optim.SGD(network().parameters(), lr=1), network())
    model = network(Frozen())
    with pytest.raises(ArgumentError, match="no sparse parameter of this model"):
        MaskedOptimizer(torch.optim.SGD(network().parameters(), lr=1), model)
    packing = prepare(network(Recomputed()), "fp8-lm")
    with pytest.raises(ArgumentError, match=r"gradients are packed in .*held_gradient=fp32, or another"):
        MaskedOptimizer(optim.AdamW(packing.parameters(), recipe="fp8-lm"), packing)
    with pytest.raises(ArgumentError, match="a step of LBFGS computes gradients several times"):
        MaskedOptimizer(torch.optim.LBFGS(model.parameters()), model)
    with pytest.raises(AttributeError, match="no attribute 'flop'"):
        _ = MaskedOptimizer(torch.optim.SGD(model.parameters(), lr=1), model).flop


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Recomputed(every=0), "every=0 and decay=0.0; expected at least one step"),
        (lambda: Recomputed(every=1.5), "every=1.5 and"),
        (lambda: Recomputed(every=torch.nan), "every=nan and"),
        (lambda: Recomputed(decay=-1.0), "decay=-1.0; expected"),
        (lambda: Recomputed(decay=torch.inf), "decay of 0 or more that is finite"),
        (lambda: Recomputed(decay=torch.nan), "decay=nan; expected"),
        (lambda: Recomputed(decay="0.1"), "decay='0.1'; expected"),
        (lambda: Recomputed(decay=None), "decay=None; expected"),
        (lambda: Gradual(0), "steps=0, every=1 and begin=0; expected at least one step"),
        (lambda: Gradual(2.5), "steps=2.5, every=1 and begin=0"),
        (lambda: Gradual(torch.nan), "steps=nan, every=1 and begin=0"),
        (lambda: Gradual(4, every=1.5), "every=1.5 and begin=0"),
        (lambda: Gradual(4, begin=0.5), "begin=0.5; expected"),
        (lambda: Gradual(4, begin=-1), "begin=-1; expected"),
    ],
)
def test_schedules_that_cannot_be_are_refused(make: Any, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        make()
