"""What is said when a known failure begins, and that nothing is said when none does."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from fewbits.nn import Watch, prepare
from fewbits.optim import SGD


def _step(model: nn.Module, x: torch.Tensor, scale: float = 1.0) -> None:
    labels = torch.arange(len(x)) % 10
    (functional.cross_entropy(model(x), labels) * scale).backward()


def _model(recipe: str, watch: Watch) -> nn.Module:
    torch.manual_seed(0)
    return prepare(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10)), recipe, watcher=watch)


def test_every_operand_is_seen_once_with_its_numbers() -> None:
    watch = Watch(5)
    model = _model("mxfp6", watch)
    for _ in range(6):  # looks at steps 0 and 5
        _step(model, torch.randn(64, 32))
        watch.next_step()
    seen, warnings = watch.drained()
    assert warnings == []
    roles = {(s["step"], s["layer"], s["role"]) for s in seen}
    assert len(seen) == len(roles) == 2 * (4 + 6)  # the input needs no gradient: two operands are not there
    weight = next(s for s in seen if s["role"] == "forward_weight" and s["layer"] == "0")
    assert weight["format"] == "mxfp6_e3m2"
    assert 0 < weight["largest"] <= 32**-0.5
    assert watch.drained() == ([], [])


def test_saturated_and_flushed_are_those_of_the_definition() -> None:
    watch = Watch(1)
    model = prepare(nn.Sequential(nn.Linear(4, 1, bias=False)), "fp32:activation=fp8_e4m3", watcher=watch)
    model(torch.tensor([[1000.0, 1.0, 1e-9, 0.0]]))
    (seen,) = watch.drained()[0]
    assert seen["saturated_fraction"] == 0.25
    assert seen["flushed_fraction"] == pytest.approx(1 / 3)


def test_a_gradient_that_vanishes_is_named() -> None:
    watch = Watch(1)
    model = _model("fp32:gradient=fp8_e5m2", watch)
    _step(model, torch.randn(64, 32), scale=2.0**-14)
    said = watch.drained()[1]
    assert any("of the gradient in " in w and "flushed to zero by fp8_e5m2" in w for w in said)
    _step(model, torch.randn(64, 32), scale=2.0**-14)
    assert watch.drained()[1] == []  # said once


@pytest.mark.parametrize(
    ("recipe", "warned"), [("bf16-only-nearest", True), ("bf16-only", False), ("fp32", False)]
)
def test_updates_that_are_lost_are_named(recipe: str, warned: bool) -> None:
    watch = Watch(1)
    model = _model(recipe, watch)
    optimizer = SGD(model.parameters(), 1e-4, recipe=recipe)
    for _ in range(3):
        _step(model, torch.randn(64, 32))
        with watch.update_of(model):
            optimizer.step()
        watch.next_step()
    assert any("updates are lost to rounding in bfloat16" in w for w in watch.drained()[1]) is warned
