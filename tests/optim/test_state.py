"""The state of an optimizer in a file, for a loop of one's own."""

from pathlib import Path

import pytest
import torch
from torch import nn

import fewbits as fb
from fewbits.errors import ArgumentError, DataError
from fewbits.nn import prepare
from fewbits.optim import SGD, AdamW, load_state, save_state

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
    with pytest.raises(ArgumentError, match=r"of parameter 0 has shape \(16, 40\), and .* \(8, 40\)"):
        load_state(made("fp8-lm", features=8)[1], path)
    with pytest.raises(ArgumentError, match=r"groups of \[2\] parameters, and the optimizer has \[1\]"):
        load_state(AdamW([model.weight]), path)
    fb.files.save_file({"x": X}, path)
    with pytest.raises(DataError, match="holds no state of an optimizer"):
        load_state(optimizer, path)


def test_an_option_that_is_no_json_is_named(tmp_path: Path) -> None:
    optimizer = AdamW([{"params": [nn.Parameter(X.clone())], "lr": torch.tensor(0.1)}])
    with pytest.raises(ArgumentError, match="cannot be written as JSON"):
        save_state(optimizer, tmp_path / "o.safetensors")


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
