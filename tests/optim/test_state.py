"""The state of an optimizer in a file, for a loop of one's own."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import fewbits as fb
from fewbits.errors import ArgumentError, DataError
from fewbits.nn import prepare
from fewbits.optim import LARS, SGD, AdamW, load_state, save_state
from fewbits.optim.state import flattened
from fewbits.sparsity import MaskedOptimizer, sparsify

X = torch.randn(8, 40, generator=torch.Generator().manual_seed(0))


def made(recipe: str, lr: float = 1e-3, features: int = 16) -> tuple[nn.Module, AdamW]:
    torch.manual_seed(0)
    model = prepare(nn.Linear(40, features), recipe)
    return model, AdamW(model.parameters(), lr, recipe=recipe)


def train(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    torch.manual_seed(1)
    for _ in range(3):
        optimizer.zero_grad()
        model(X).square().sum().backward()
        optimizer.step()


@pytest.mark.parametrize("recipe", ["fp32", "fp8-lm", "fp16-no-scaling", "bf16-only-kahan"])
def test_a_loop_goes_on_as_if_it_had_not_stopped(recipe: str, tmp_path: Path) -> None:
    model, optimizer = made(recipe, lr=0.01)
    train(model, optimizer)
    save_state(optimizer, tmp_path / "o.safetensors", {"step": "3"})
    again, its_optimizer = made(recipe)
    again.load_state_dict(model.state_dict())
    assert load_state(its_optimizer, tmp_path / "o.safetensors") == {"step": "3"}
    assert its_optimizer.param_groups[0]["lr"] == 0.01
    assert its_optimizer.param_groups[0]["betas"] == (0.9, 0.999)
    train(model, optimizer)
    train(again, its_optimizer)
    for p, q in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(p, q)


def test_a_state_without_tensors_as_of_plain_sgd_comes_back(tmp_path: Path) -> None:
    model, _ = made("fp32")
    optimizer, again = SGD(model.parameters(), lr=0.25), SGD(model.parameters(), lr=1.0)
    train(model, optimizer)
    save_state(optimizer, tmp_path / "o.safetensors", {"step": "3"})
    assert load_state(again, tmp_path / "o.safetensors") == {"step": "3"}
    assert again.param_groups[0]["lr"] == 0.25


def test_torchs_own_optimizers_are_saved_too(tmp_path: Path) -> None:
    model, _ = made("fp32")
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer)
    save_state(optimizer, tmp_path / "o.safetensors")
    again = torch.optim.AdamW(model.parameters())
    assert load_state(again, tmp_path / "o.safetensors") == {}
    assert torch.equal(again.state[model.weight]["exp_avg"], optimizer.state[model.weight]["exp_avg"])
    assert again.state[model.weight]["step"] == 3


def test_a_state_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "o.safetensors"
    model, optimizer = made("fp8-lm")
    train(model, optimizer)
    with pytest.raises(ArgumentError, match="rename it"):
        save_state(optimizer, path, {"optimizer": ""})
    save_state(optimizer, path)
    with pytest.raises(ArgumentError, match=r"of parameter 0 is of shape \(16, 40\), and .* \(8, 40\)"):
        load_state(made("fp8-lm", features=8)[1], path)
    with pytest.raises(ArgumentError, match=r"groups of \[2\] parameters, and the optimizer has \[1\]"):
        load_state(AdamW([model.weight]), path)
    fb.files.save_file({"x": X}, path)
    with pytest.raises(DataError, match="holds no state of an optimizer"):
        load_state(optimizer, path)


class Mine(torch.optim.AdamW):
    pass


KINDS: dict[str, Callable[[list[nn.Parameter]], torch.optim.Optimizer]] = {
    "fewbits.AdamW": AdamW,
    "torch.AdamW": torch.optim.AdamW,
    "torch.Adam": torch.optim.Adam,
    "torch.RMSprop": torch.optim.RMSprop,
    "fewbits.SGD": lambda p: SGD(p, 0.1, momentum=0.9),
    "fewbits.LARS": lambda p: LARS(p, 0.1),
    "torch.SGD": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
    "Mine": Mine,
}


@pytest.mark.parametrize("saved", KINDS)
def test_the_state_of_another_class_is_refused(saved: str, tmp_path: Path) -> None:
    w = nn.Parameter(torch.ones(4, 5))
    w.grad = torch.ones(4, 5)
    optimizer = KINDS[saved]([w])
    optimizer.step()
    save_state(optimizer, tmp_path / "o.safetensors")
    for name, make in KINDS.items():
        other = make([nn.Parameter(torch.ones(4, 5))])
        if name == saved:
            load_state(other, tmp_path / "o.safetensors")
            assert other.state
            continue
        with pytest.raises(ArgumentError, match=f"the state is one of {saved}, and the optimizer is {name};"):
            load_state(other, tmp_path / "o.safetensors")
        assert not other.state


def test_a_wrapper_has_the_state_of_what_it_holds(tmp_path: Path) -> None:
    model = nn.Linear(8, 8)
    sparsify(model, "2:4")
    optimizer = MaskedOptimizer(AdamW(model.parameters()), model)
    model(torch.ones(3, 8)).sum().backward()
    optimizer.step()
    save_state(optimizer, tmp_path / "o.safetensors")
    load_state(again := AdamW(model.parameters()), tmp_path / "o.safetensors")
    assert torch.equal(
        again.state[model.weight]["first_moment"], optimizer.state_dict()["state"][0]["first_moment"]
    )


def test_states_of_other_shapes_than_the_parameters_come_back(tmp_path: Path) -> None:
    """Adafactor keeps the mean of each row and of each column."""
    ends = []
    for stop in False, True:
        w = nn.Parameter(torch.arange(20.0).reshape(4, 5))
        optimizer = torch.optim.Adafactor([w])
        for step in range(4):
            w.grad = torch.sin(w.detach() + step)
            optimizer.step()
            if stop and step == 1:
                save_state(optimizer, tmp_path / "o.safetensors")
                load_state(optimizer := torch.optim.Adafactor([w]), tmp_path / "o.safetensors")
        ends.append(w.tolist())
    assert ends[0] == ends[1]


def test_a_state_from_before_classes_were_noted_is_taken(tmp_path: Path) -> None:
    model, optimizer = made("fp32")
    train(model, optimizer)
    tensors, plain = flattened(optimizer)
    old = {key: plain[key] for key in ("state", "groups")}
    fb.files.save_file(tensors, tmp_path / "o.safetensors", {"optimizer": json.dumps(old)})
    load_state(again := made("fp32")[1], tmp_path / "o.safetensors")
    assert again.state_dict()["param_groups"] == optimizer.state_dict()["param_groups"]


def test_what_is_no_json_is_named(tmp_path: Path) -> None:
    path, w = tmp_path / "o.safetensors", nn.Parameter(X.clone())
    for kind in AdamW, torch.optim.AdamW:
        with pytest.raises(
            ArgumentError, match=r"'lr', option of group 1, cannot .*JSON.*; make it a number"
        ):
            save_state(kind([{"params": []}, {"params": [w], "lr": torch.tensor(0.1)}]), path)
    optimizer = torch.optim.LBFGS([w])

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = w.pow(4).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    with pytest.raises(ArgumentError, match=r"'al', state of parameter 0, cannot .*; save its state_dict"):
        save_state(optimizer, path)
    assert not path.exists()


@pytest.mark.parametrize("recipe", ["fp8-lm", "fp8-lm-o2", "bf16-only-kahan"])
def test_torch_save_keeps_every_bit_of_packed_states_and_reads_no_code(recipe: str, tmp_path: Path) -> None:
    model, optimizer = made(recipe, lr=0.01)
    train(model, optimizer)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, tmp_path / "all.pt")
    saved = torch.load(tmp_path / "all.pt", weights_only=True)
    again, its_optimizer = made(recipe)
    again.load_state_dict(saved["model"])
    its_optimizer.load_state_dict(saved["optimizer"])
    optimizer.zero_grad()
    assert its_optimizer.nbytes() == optimizer.nbytes()
    train(model, optimizer)
    train(again, its_optimizer)
    for p, q in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(p, q)


def test_a_state_with_parts_that_do_not_fit_is_refused() -> None:
    model, optimizer = made("fp8-lm")
    train(model, optimizer)
    state = optimizer.state_dict()
    state["state"][0]["first_moment"]["codes"] = torch.zeros(3, 3, dtype=torch.uint8)
    with pytest.raises(ArgumentError, match="codes"):
        made("fp8-lm")[1].load_state_dict(state)
