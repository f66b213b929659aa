"""What an optimizer knows of the parameters that a prepared model narrowed."""

import copy
import io
import re
from collections.abc import Callable

import pytest
import torch
from torch import nn

from fewbits.errors import ArgumentError
from fewbits.nn import prepare
from fewbits.optim import SGD, AdamW

X = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))


def reread(model: nn.Module) -> nn.Module:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    found: nn.Module = torch.load(file, weights_only=False)
    return found


def on_the_grid(p: torch.Tensor) -> bool:
    """Whether values are those of 14 fractional bits."""
    return torch.equal((p * 2**14).round(), p * 2**14)


@pytest.mark.parametrize("copied", [lambda m: m, copy.deepcopy, reread], ids=["itself", "copy", "file"])
def test_layers_left_out_and_norms_are_updated_as_they_are(copied: Callable[[nn.Module], nn.Module]) -> None:
    torch.manual_seed(0)
    whole = nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16), nn.Linear(16, 4))
    model = copied(prepare(whole, "fixed16", exclude=["2"]))
    optimizer = SGD(model.parameters(), 0.1, recipe="fixed16")
    model(X).square().sum().backward()
    optimizer.step()
    narrow, norm, left_out = model.children()
    assert all(on_the_grid(p) for p in narrow.parameters())
    assert not any(on_the_grid(p) for p in (*norm.parameters(), *left_out.parameters()))


@pytest.mark.parametrize("copied", [lambda m: m, copy.deepcopy, reread], ids=["itself", "copy", "file"])
def test_a_master_copy_is_of_the_weights_as_they_were(copied: Callable[[nn.Module], nn.Module]) -> None:
    layer = nn.Linear(16, 16)
    with torch.no_grad():
        layer.weight.fill_(1e-8)
    model = copied(prepare(layer, "fp16-no-scaling"))
    assert isinstance(model.weight, nn.Parameter)
    assert torch.equal(model.weight, torch.zeros(16, 16, dtype=torch.float16))
    optimizer = SGD(model.parameters(), 0.0, recipe="fp16-no-scaling")
    model(X).sum().backward()
    optimizer.step()
    assert torch.equal(optimizer.state[model.weight]["master"], torch.full((16, 16), 1e-8))
    assert not hasattr(model.weight, "fewbits_wide")


def test_a_master_copy_is_of_weights_that_were_set_since() -> None:
    model = prepare(nn.Linear(16, 16), "fp16-no-scaling")
    model.weight.data.fill_(3.0)
    optimizer = SGD(model.parameters(), 0.0, recipe="fp16-no-scaling")
    model(X).sum().backward()
    optimizer.step()
    assert torch.equal(optimizer.state[model.weight]["master"], torch.full((16, 16), 3.0))


def test_a_weight_of_two_layers_is_narrowed_once() -> None:
    first, second = nn.Linear(16, 16), nn.Linear(16, 16)
    second.weight = first.weight
    wanted = first.weight.detach().clone()
    model = prepare(nn.Sequential(first, second), "fp16-no-scaling")
    optimizer = SGD(model.parameters(), 0.0, recipe="fp16-no-scaling")
    model(X).sum().backward()
    optimizer.step()
    assert torch.equal(optimizer.state[first.weight]["master"], wanted)


def test_complex_parameters_are_refused_and_keep_their_imaginary_part() -> None:
    p = nn.Parameter(torch.full((3,), 1 + 1j))
    with pytest.raises(ArgumentError, match=r"is complex64.*torch\.optim"):
        SGD([p], lr=0.1)
    assert p.dtype == torch.complex64


def test_float64_parameters_are_refused_and_not_taken() -> None:
    p, q = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(2, 5, dtype=torch.float64))
    optimizer = AdamW([p])
    with pytest.raises(ArgumentError, match=re.escape("shape (2, 5) is float64") + ".*call .float()"):
        optimizer.add_param_group({"params": [q]})
    assert len(optimizer.param_groups) == 1
    with pytest.raises(ArgumentError, match="float64"):
        AdamW([p, q], lr=0, weight_decay=0)


MASTERS = ["fp16-master:scaling=none", "fp32:parameter=mxfp8_e4m3,has_master=yes", "fp8-lm:has_master=yes"]


def stepped(recipe: str, between: Callable[[nn.Module], object], steps: int = 3) -> torch.Tensor:
    """Return the weights of a layer after small steps, with something done before the last but one."""
    torch.manual_seed(0)
    model = prepare(nn.Linear(64, 32, bias=False), recipe)
    optimizer = SGD(model.parameters(), 1e-5, recipe=recipe)
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.ones(4, 64)).sum().backward()
        optimizer.step()
        if step == steps - 2:
            between(model)
    return model.weight.detach().float()


@pytest.mark.parametrize("recipe", MASTERS)
def test_what_is_written_into_a_parameter_is_its_masters_value_too(recipe: str) -> None:
    given = {"weight": torch.full((32, 64), 3.0)}
    torch.testing.assert_close(stepped(recipe, lambda m: m.load_state_dict(given)), given["weight"])

    def clamped(model: nn.Module) -> None:
        with torch.no_grad():
            model.weight.clamp_(min=0.0)

    assert stepped(recipe, clamped).min() >= -1e-3
    assert stepped(recipe, lambda m: None).min() < -0.1


def put(p: nn.Parameter) -> None:
    p.data = torch.full_like(p, 3.0)


# Ways around autograd: no version of the parameter counts them.
UNCOUNTED: dict[str, Callable[[nn.Parameter], object]] = {
    "clamp_": lambda p: p.data.clamp_(3.0, 3.0),
    "copy_": lambda p: p.data.copy_(torch.full_like(p, 3.0)),
    "assigned": put,
    "NumPy": lambda p: p.detach().numpy().fill(3.0),
    "vector": lambda p: nn.utils.vector_to_parameters(torch.full((p.numel(),), 3.0, dtype=p.dtype), [p]),
}


@pytest.mark.parametrize("write", UNCOUNTED.values(), ids=list(UNCOUNTED))
@pytest.mark.parametrize("recipe", ["fp16-master:scaling=none", "fp32:parameter=fp8_e4m3,has_master=yes"])
def test_what_is_written_past_autograd_is_the_masters_value_too(
    recipe: str, write: Callable[[nn.Parameter], object]
) -> None:
    model = prepare(nn.Linear(4, 4, bias=False), recipe)  # alive: it knows which parameters are narrow
    (p,) = model.parameters()
    optimizer = SGD([p], 0.125, recipe=recipe)
    for step in range(3):
        if step == 2:
            write(p)
        p.grad = torch.ones_like(p)
        optimizer.step()
    assert torch.equal(optimizer.state[p]["master"], torch.full((4, 4), 2.875))


WRITTEN: dict[str, Callable[[nn.Parameter], object]] = {
    "zero_": lambda p: p.zero_(),
    "data": lambda p: p.data.clamp_(-0.01, 0.01),
    "row": lambda p: p[1].fill_(0.5),
}


@pytest.mark.parametrize("write", WRITTEN.values(), ids=list(WRITTEN))
def test_a_compensation_goes_with_the_value_that_it_belongs_to(
    write: Callable[[nn.Parameter], object],
) -> None:
    """100 - 0.2 is 100 in bfloat16: the sum lost 0.2, which is no loss of what is written there."""
    p = nn.Parameter(torch.full((2, 3), 100.0, dtype=torch.bfloat16))
    optimizer = SGD([p], 1.0, recipe="bf16-only-kahan")
    p.grad = torch.full_like(p, 0.2)
    optimizer.step()
    with torch.no_grad():
        write(p)
    wanted = p.detach().clone()
    p.grad = torch.zeros_like(p)
    optimizer.step()
    assert torch.equal(p, wanted)
    p.grad = torch.full_like(p, 0.2)
    optimizer.step()
    assert torch.equal(p[wanted == 100], wanted[wanted == 100] - 0.5)  # its loss was kept: 0.4 rounds to 0.5


def test_kahans_sum_is_that_of_bfloat16_arithmetic() -> None:
    random = torch.Generator().manual_seed(0)
    start = (1 + torch.rand(500, generator=random)).bfloat16()
    p, total, lost = nn.Parameter(start.clone()), start.clone(), torch.zeros_like(start)
    optimizer = SGD([p], 1.0, recipe="bf16-only-kahan")
    for _ in range(50):
        p.grad = (0.01 * torch.randn(500, generator=random)).bfloat16()
        optimizer.step()
        y = -p.grad - lost
        summed = total + y
        lost, total = (summed - total) - y, summed
        assert torch.equal(p, total)
    assert float(optimizer.state[p]["compensation"].abs().max()) > 0


@pytest.mark.parametrize("recipe", MASTERS)
def test_a_master_keeps_its_bits_where_nothing_was_written(recipe: str) -> None:
    """Steps far below half a unit add up, though all of a parameter was written, and a part changed."""

    def change(model: nn.Module) -> None:
        with torch.no_grad():
            model.weight.copy_(model.weight.clone())
            model.weight[0] = 0.0

    still, changed = (stepped(recipe, between, steps=400) for between in (lambda m: None, change))
    assert torch.equal(still[1:], changed[1:])


def test_a_master_stands_where_nobody_can_tell_what_was_written_from_what_was_drawn() -> None:
    recipe = "fp32:parameter=mxfp8_e4m3/stochastic,has_master=yes"

    def touch(model: nn.Module) -> None:
        with torch.no_grad():
            model.weight.copy_(model.weight.clone())

    assert torch.equal(stepped(recipe, touch), stepped(recipe, lambda m: None))


@pytest.mark.parametrize("assign", [False, True])
def test_what_loading_fills_is_held_in_the_format_at_once(assign: bool) -> None:
    torch.manual_seed(0)
    plain, model = several(), prepare(several(), "fixed16:update=nearest", exclude="3")
    values = copy.deepcopy(plain.state_dict())
    model.load_state_dict(plain.state_dict(), assign=assign)
    for name, p in model.named_parameters():
        wanted = (values[name] * 2**14).round() / 2**14 if name[0] in "01" else values[name]
        assert torch.equal(p, wanted), name
    held = {name: p.clone() for name, p in model.named_parameters()}
    model.load_state_dict(held)
    assert all(torch.equal(p, held[name]) for name, p in model.named_parameters())


@pytest.mark.parametrize("layer", [nn.Embedding, nn.EmbeddingBag])
def test_a_table_whose_rows_are_shortened_stays_in_the_format(layer: Callable[..., nn.Module]) -> None:
    torch.manual_seed(0)
    table = prepare(layer(10, 6, max_norm=0.7), "fixed16:update=nearest")
    table(torch.tensor([[1, 2, 3]]))
    weight = dict(table.named_parameters())["weight"]
    assert on_the_grid(weight)
    lengths = weight.detach().double().norm(dim=1)
    assert all(0.699 < n < 0.7 + 6**0.5 * 2**-15 for n in lengths[1:4].tolist())
    assert all(n > 0.8 for n in lengths[4:].tolist())


def test_what_was_held_in_two_scales_is_loaded_as_it_is() -> None:
    torch.manual_seed(0)
    first, again = (prepare(nn.Linear(96, 64), "mxfp6:parameter=vsq4") for _ in range(2))
    again.load_state_dict(first.state_dict())
    assert all(torch.equal(p, q) for p, q in zip(again.parameters(), first.parameters(), strict=True))


def several() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 16), nn.MultiheadAttention(16, 2), nn.LayerNorm(16), nn.Linear(16, 16))


@pytest.mark.parametrize("on_meta", [False, True])
@pytest.mark.parametrize("copied", [lambda m: m, copy.deepcopy, reread], ids=["itself", "copy", "file"])
@pytest.mark.parametrize("recipe", ["fixed16", "fp16-no-scaling", "bf16-only", "bf16-only-kahan", "mxfp8"])
def test_parameters_that_loading_put_there_are_held_as_those_before(
    recipe: str, copied: Callable[[nn.Module], nn.Module], on_meta: bool
) -> None:
    torch.manual_seed(0)
    values = several().state_dict()
    given = copy.deepcopy(values)
    torch.manual_seed(0)
    wanted = prepare(several(), recipe, exclude="3")
    if on_meta:
        with torch.device("meta"):
            model = copied(prepare(several(), recipe, exclude="3"))
    else:
        model = copied(prepare(several(), recipe, exclude="3"))
    model.load_state_dict(values, assign=True)
    assert all(torch.equal(values[name], x) for name, x in given.items())
    optimizers = []
    for one in (model, wanted):
        optimizer = SGD(one.parameters(), 0.1, recipe=recipe)
        for name, p in one.named_parameters():
            p.grad = torch.randn(p.shape, generator=torch.Generator().manual_seed(len(name))).to(p.dtype)
        torch.manual_seed(1)
        optimizer.step()
        optimizers.append(optimizer)
    for (name, p), q in zip(model.named_parameters(), wanted.parameters(), strict=True):
        assert (p.dtype, p.device) == (q.dtype, q.device), name
        assert torch.equal(p, q), name
    assert optimizers[0].nbytes() == optimizers[1].nbytes()
    if recipe == "fixed16":
        assert all(on_the_grid(p) for p in model.get_submodule("1").parameters())


def test_another_recipe_is_found_out_after_loading_too() -> None:
    model = prepare(nn.Linear(16, 16), "fixed16")
    model.load_state_dict(nn.Linear(16, 16).state_dict(), assign=True)
    model(X).sum().backward()
    with pytest.raises(ArgumentError, match="prepared with recipe 'fixed16'"):
        SGD(model.parameters(), 0.1).step()
