"""What is said when a known failure begins, and that nothing is said when none does."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from fewbits.errors import ArgumentError
from fewbits.nn import LayerPrecision, RoundingObserver, prepare, saved_activations
from fewbits.optim import SGD
from fewbits.recipes import recipe
from tests.optim.test_sharded_states import cut


def _step(model: nn.Module, x: torch.Tensor, scale: float = 1.0) -> None:
    labels = torch.arange(len(x)) % 10
    (functional.cross_entropy(model(x), labels) * scale).backward()


def _model(recipe: str, observer: Any) -> nn.Module:
    torch.manual_seed(0)
    return prepare(nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 10)), recipe, observer=observer)


def test_every_operand_is_seen_once_with_its_numbers() -> None:
    observer = RoundingObserver(5)
    model = _model("mxfp6", observer)
    for _ in range(6):  # looks at steps 0 and 5
        _step(model, torch.randn(64, 32))
        observer.next_step()
    seen, warnings = observer.drained()
    assert warnings == []
    roles = {(s["step"], s["layer"], s["role"]) for s in seen}
    assert len(seen) == len(roles) == 2 * (4 + 6)  # the input needs no gradient: two operands are not there
    weight = next(s for s in seen if s["role"] == "forward_weight" and s["layer"] == "0")
    assert weight["format"] == "mxfp6_e3m2"
    assert 0 < weight["largest"] <= 32**-0.5
    assert observer.drained() == ([], [])


def test_saturated_and_flushed_are_those_of_the_definition() -> None:
    observer = RoundingObserver(1)
    model = prepare(nn.Sequential(nn.Linear(4, 1, bias=False)), "fp32:activation=fp8_e4m3", observer=observer)
    with torch.no_grad():  # else the operand of the backward pass is there too
        model(torch.tensor([[1000.0, 1.0, 1e-9, 0.0]]))
    (seen,) = observer.drained()[0]
    assert seen["saturated_fraction"] == 0.25
    assert seen["flushed_fraction"] == pytest.approx(1 / 3)


def test_a_gradient_that_vanishes_is_named() -> None:
    observer = RoundingObserver(1)
    model = _model("fp32:gradient=fp8_e5m2", observer)
    _step(model, torch.randn(64, 32), scale=2.0**-14)
    said = observer.drained()[1]
    assert any("of the gradient in " in w and "flushed to zero by fp8_e5m2" in w for w in said)
    _step(model, torch.randn(64, 32), scale=2.0**-14)
    assert observer.drained()[1] == []  # said once


FLOATS16 = ("fp16-master", "fp16-only", "fp8-stochastic", "amp-fp16", "fp16-no-scaling")


@pytest.mark.parametrize("recipe", FLOATS16)
def test_a_loss_whose_gradient_float16_flushes_is_named(recipe: str) -> None:
    observer = RoundingObserver(1)
    _step(_model(recipe, observer), torch.randn(64, 32), scale=2.0**-20)
    (said,) = (w for w in observer.drained()[1] if w.startswith("100% of the gradient of the model's result"))
    assert "is flushed to zero by fp16, the format that flows between products: scale the loss" in said
    asked = recipe != "fp16-no-scaling"
    assert said.endswith(f"as {recipe} asks for" if asked else "take it with scaling=dynamic and its scaler")


@pytest.mark.parametrize("recipe", FLOATS16)
def test_nothing_is_said_of_a_loss_that_is_scaled(recipe: str) -> None:
    observer = RoundingObserver(1)
    _step(_model(recipe, observer), torch.randn(64, 32), scale=2.0**10)
    assert observer.drained()[1] == []


class _Inside(nn.Module):
    """Computes its loss itself, so that no result of its own has a gradient in float16."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(32, 64), nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = self.head(self.body(x).relu()).float()
        return functional.cross_entropy(logits, torch.arange(len(x)) % 10) * 2.0**-20


@pytest.mark.parametrize("recipe", FLOATS16)
def test_a_gradient_that_was_flushed_before_it_came_is_named(recipe: str) -> None:
    torch.manual_seed(0)
    observer = RoundingObserver(1)
    prepare(_Inside(), recipe, observer=observer)(torch.randn(64, 32)).backward()
    (said,) = observer.drained()[1]
    assert said.startswith("the gradient that reaches head is zero throughout: fp16, the format that flows")
    assert "scale the loss" in said


class _Shrinks(nn.Module):
    """Passes back a small part of its gradient, as a deep stack may."""

    def __init__(self) -> None:
        super().__init__()
        self.low, self.high = nn.Linear(32, 64), nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.high(self.low(x))
        return y


def test_the_layer_whose_gradient_is_lost_is_the_one_that_is_named() -> None:
    torch.manual_seed(0)
    model, observer = _Shrinks(), RoundingObserver(1)
    with torch.no_grad():
        model.high.weight.mul_(2.0**-18)
    _step(prepare(model, "fp16-master", observer=observer), torch.randn(64, 32))
    said = observer.drained()[1]
    assert said
    assert all("the gradient that high passes back is flushed to zero by fp16" in w for w in said)


def test_one_step_in_fifty_is_looked_at_unless_told() -> None:
    assert RoundingObserver().every == 50


def test_a_gradient_is_seen_along_its_last_axis() -> None:
    seen: list[tuple[str, torch.Size, int]] = []

    class Recorder:
        def observe(
            self, precision: Any, role: str, x: torch.Tensor, rounded: torch.Tensor, axis: int
        ) -> None:
            seen.append((role, x.movedim(axis, -1).shape, len(rounded)))

    LayerPrecision(recipe("fp16-master"), "layer", observer=Recorder()).to_flow(
        "input_gradient", torch.ones(2, 3, 4), torch.float16
    )
    assert seen == [("input_gradient", (2, 3, 4), 2)]


def test_a_loss_scale_is_not_advised_where_it_changes_nothing() -> None:
    """Blocks have scales of their own: what a block's largest value hides is hidden at any loss scale."""
    observer = RoundingObserver(1)
    x = torch.full((64, 64), 3 / 64)
    x[:, ::32] = 1.5
    precision = LayerPrecision(recipe("mxfp4"), "layer", observer=observer)
    precision.round("dw_gradient", x, 1)
    (said,) = observer.drained()[1]
    assert said.startswith("49% of the gradient in layer (dw_gradient) is flushed to zero by mxfp4")
    assert "no loss scale helps" in said


@pytest.mark.parametrize(
    ("recipe", "warned"), [("bf16-only-nearest", True), ("bf16-only", False), ("fp32", False)]
)
def test_updates_that_are_lost_are_named(recipe: str, warned: bool) -> None:
    observer = RoundingObserver(1)
    model = _model(recipe, observer)
    optimizer = SGD(model.parameters(), 1e-4, recipe=recipe)
    for _ in range(3):
        _step(model, torch.randn(64, 32))
        with observer.update_of(model):
            optimizer.step()
        observer.next_step()
    assert any("updates are lost to rounding in bfloat16" in w for w in observer.drained()[1]) is warned


def test_of_a_step_that_is_skipped_no_update_was_lost() -> None:
    observer = RoundingObserver(1)
    model = _model("bf16-only-nearest", observer)
    with observer.update_of(model):
        pass
    assert observer.drained()[1] == []


class _Always(RoundingObserver):
    """Has everything prepared for it in each step, as if it looked."""

    @property
    def due(self) -> bool:
        return True


@pytest.mark.parametrize("by_panels", [False, True], ids=["torch", "panels"])
@pytest.mark.parametrize("chosen", ["mxfp8", "mxfp6", "mx9"])
def test_layers_learn_the_same_bits_whether_an_observer_looks_or_not(
    chosen: str, by_panels: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fewbits.nn.layer_precision._has_fast_bfloat16", lambda: not by_panels)

    def gradients(observer: RoundingObserver | None) -> list[torch.Tensor]:
        torch.manual_seed(0)
        if observer is not None:
            observer.next_step()  # to one at which it does not look
        model = _model(chosen, observer)
        _step(model, torch.randn(64, 32))
        return [p.grad for p in model.parameters() if p.grad is not None]

    alone, seldom, always = gradients(None), gradients(RoundingObserver(7)), gradients(_Always(7))
    for one, other, third in zip(alone, seldom, always, strict=True):
        assert torch.equal(one, other)
        assert torch.equal(one, third)


def test_nothing_is_opened_for_an_observer_that_does_not_look(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    dequantize = saved_activations.ops.dequantize

    def counted(*given: Any) -> torch.Tensor:
        opened.append("opened")
        return dequantize(*given)

    monkeypatch.setattr(saved_activations.ops, "dequantize", counted)

    def count(observer: Any) -> int:
        opened.clear()
        _step(_model("mxfp8", observer), torch.randn(64, 32))
        return len(opened)

    silent, looks, says_not = RoundingObserver(7), RoundingObserver(7), RoundingObserver(7)
    silent.next_step()
    bare = SimpleNamespace(observe=says_not.observe)  # an observer that does not say when it looks
    assert count(silent) == count(None) > 0
    assert count(looks) > count(silent)
    assert count(bare) > count(silent)


@pytest.mark.parametrize("every", [0, -1, 1.5, True, "50", None])
def test_it_looks_at_one_step_of_a_whole_number(every: Any) -> None:
    with pytest.raises(ArgumentError, match=f"every={every!r}; expected steps from one look to the next"):
        RoundingObserver(every)


@pytest.mark.usefixtures("two")
@pytest.mark.parametrize(("moved", "said"), [(15, True), (17, False)])
def test_of_sharded_weights_it_counts_those_of_this_process(moved: int, said: bool) -> None:
    model = prepare(nn.Linear(8, 64, bias=False), "bf16-only-nearest")
    model.weight = nn.Parameter(cut(model.weight.detach(), 0))
    observer = RoundingObserver(every=1)
    with observer.update_of(model), torch.no_grad():
        model.weight.to_local()[:moved] += 1.0  # of 32 rows
    assert bool(observer.drained()[1]) is said
