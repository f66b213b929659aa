"""Calibration computes each layer once for a batch, with the bits of passes from the start."""

import copy
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fewbits.errors import DataError
from fewbits.ptq import model as engine
from fewbits.ptq import passes, quantize_model
from tests.ptq.test_model import branches, images, mixed

torch.set_num_threads(1)


class Deep(nn.Module):
    """Residual blocks; with ``shared`` the same one several times."""

    def __init__(self, depth: int, shared: bool = False) -> None:
        super().__init__()
        blocks = [nn.Sequential(nn.Linear(32, 48), nn.ReLU(), nn.Linear(48, 32)) for _ in range(depth)]
        self.blocks = nn.ModuleList(blocks[:1] * depth if shared else blocks)
        self.head = nn.Linear(32, 5)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + block(x)
        result: Tensor = self.head(x)
        return result


def deep(depth: int = 4, shared: bool = False) -> tuple[nn.Module, list[Tensor]]:
    torch.manual_seed(3)
    return Deep(depth, shared), [mixed(40, 32) for _ in range(3)]


def from_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "_has_modes", lambda: True)


@pytest.mark.parametrize("made", [deep, lambda: deep(3, shared=True), images, branches])
@pytest.mark.parametrize(
    "how", [{}, {"activation": "mxfp4"}, {"activation": "mxfp6_e2m3", "hadamard": 16}], ids=str
)
def test_the_bits_are_those_of_passes_from_the_start(
    made: Any, how: dict[str, Any], monkeypatch: Any
) -> None:
    model, batches = made()
    batches = [*batches, batches[0][:7]]
    once, first = quantize_model(copy.deepcopy(model), batches, "mxfp4", **how)
    from_the_start(monkeypatch)
    again, second = quantize_model(copy.deepcopy(model), batches, "mxfp4", **how)
    assert repr(first) == repr(second)  # NaN, of layers that no batch reaches, equals itself there
    for a, b in zip(once.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)
    assert torch.equal(once(batches[0]), again(batches[0]))


def calls(depth: int) -> int:
    """How often a layer of a block is computed while a model is calibrated on three batches."""
    model, batches = deep(depth)
    count = [0]

    def add(*_: object) -> None:
        count[0] += 1

    for block in model.blocks:
        block[0].register_forward_hook(add)
    quantize_model(model, batches, "mxfp4")
    return count[0]


def test_the_time_grows_with_the_depth_and_not_with_its_square(monkeypatch: Any) -> None:
    # Once for each batch, and once to see the order of the layers.
    assert [calls(depth) for depth in (2, 4, 8)] == [2 * 4, 4 * 4, 8 * 4]
    from_the_start(monkeypatch)
    assert calls(8) > 2 * 8 * 4  # the control


def test_no_thread_stays_behind_whatever_happens(monkeypatch: Any) -> None:
    before = threading.active_count()
    model, batches = deep()
    quantize_model(copy.deepcopy(model), batches, "mxfp4")
    assert threading.active_count() == before
    real, count = engine.choose_rotation, []

    def stopped(*given: Any) -> Any:
        count.append(1)
        if len(count) == 3:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(engine, "choose_rotation", stopped)
    with pytest.raises(KeyboardInterrupt):
        quantize_model(model, batches, "mxfp4")
    assert threading.active_count() == before
    assert not any(m._forward_pre_hooks for m in model.modules())


class Failing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(32, 32), nn.Linear(32, 32)

    def forward(self, x: Tensor) -> Tensor:
        y = self.one(x)
        if len(x) == 7:
            raise ValueError("seven")
        result: Tensor = self.two(y if len(x) != 9 else None)
        return result


def test_what_a_model_raises_on_a_later_batch_is_raised() -> None:
    for length, error in ((7, ValueError), (9, DataError)):
        with pytest.raises(error, match=r"seven|two was called with NoneType"):
            quantize_model(Failing(), [mixed(20, 32), mixed(length, 32)], "mxfp4")


def test_a_batch_that_leaves_a_layer_out_does_not_count_for_it() -> None:
    class Some(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two, self.three = (nn.Linear(32, 32) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            x = torch.relu(self.one(x))
            x = self.two(x) if len(x) > 10 else x
            result: Tensor = self.three(torch.relu(x))
            return result

    _, report = quantize_model(Some(), [mixed(20, 32), mixed(8, 32), mixed(30, 32)], "mxfp4")
    assert {x.layer: x.vectors for x in report.layers} == {"one": 58, "two": 50, "three": 58}


def test_autocast_holds_in_all_passes(monkeypatch: Any) -> None:
    model, batches = deep()
    with torch.autocast("cpu", torch.bfloat16):
        once, _ = quantize_model(copy.deepcopy(model), batches, "mxfp4")
        from_the_start(monkeypatch)
        again, _ = quantize_model(copy.deepcopy(model), batches, "mxfp4")
    wide, _ = quantize_model(copy.deepcopy(model), batches, "mxfp4")
    assert torch.equal(once.head.weight, again.head.weight)
    assert not torch.equal(once.head.weight, wide.head.weight)


class Branching(nn.Module):
    """Control flow that depends on the data: another order, and a layer that some batches leave out."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.one, self.two, self.last = (nn.Linear(32, 32) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.first(x))
        order = [self.one, self.two] if len(x) > 10 else [self.two, self.one] if len(x) > 5 else [self.two]
        for layer in order:
            x = torch.relu(layer(x))
        result: Tensor = self.last(x)
        return result


@pytest.mark.parametrize("how", [{}, {"activation": "mxfp4"}, {"method": "gpfq"}], ids=str)
def test_batches_that_call_layers_in_another_order_lose_no_vector(
    how: dict[str, Any], monkeypatch: Any
) -> None:
    torch.manual_seed(3)
    model, batches = Branching(), [mixed(n, 32) for n in (20, 8, 30, 4, 7)]
    once, first = quantize_model(copy.deepcopy(model), batches, "mxfp4", **how)
    assert {x.layer: x.vectors for x in first.layers} == {"first": 69, "one": 65, "two": 69, "last": 69}
    from_the_start(monkeypatch)
    again, second = quantize_model(copy.deepcopy(model), batches, "mxfp4", **how)
    assert repr(first) == repr(second)
    for a, b in zip(once.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)


class Repeated(nn.Module):
    """A layer that is called as often as a batch says, before or after another."""

    def __init__(self, *, is_last: bool) -> None:
        super().__init__()
        self.again, self.other, self.is_last = nn.Linear(32, 32), nn.Linear(32, 32), is_last

    def forward(self, x: Tensor, times: int) -> Tensor:
        x = self.other(x) if self.is_last else x
        for _ in range(times):
            x = torch.relu(self.again(x))
        return x if self.is_last else self.other(x)


@pytest.mark.parametrize("is_last", [False, True])
@pytest.mark.parametrize("threaded", [False, True])
def test_a_batch_that_calls_a_layer_more_often_than_the_first_is_refused(
    is_last: bool, threaded: bool, monkeypatch: Any
) -> None:
    if not threaded:
        from_the_start(monkeypatch)
    before = threading.active_count()
    for first, more in ((1, 3), (2, 3)):
        with pytest.raises(DataError, match=rf"again is called more often .* first \(there {first}x\)"):
            quantize_model(
                Repeated(is_last=is_last), [(mixed(20, 32), first), (mixed(30, 32), more)], "mxfp4"
            )
    assert threading.active_count() == before
    batches = [(mixed(20, 32), 3), (mixed(30, 32), 1), (mixed(10, 32), 0)]
    _, report = quantize_model(Repeated(is_last=is_last), batches, "mxfp4")
    assert {x.layer: x.vectors for x in report.layers} == {"again": 90, "other": 60}


@pytest.mark.parametrize("left_out", [False, True])
def test_a_batch_that_gives_one_of_some_layers_another_input_is_refused_by_its_name(left_out: bool) -> None:
    class Apart(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.out = (nn.Linear(32, 32) for _ in range(3))

        def forward(self, x: Tensor) -> Tensor:
            y = self.q(x)
            if len(x) > 10:
                y = y + self.k(x)
            elif not left_out:
                y = y + self.k(x + 1)
            result: Tensor = self.out(y)
            return result

    quantize_model(Apart(), [mixed(20, 32), mixed(30, 32)], "mxfp4")
    before = threading.active_count()
    with pytest.raises(
        DataError, match="k takes the same tensor as other layers in the first batch, and not"
    ):
        quantize_model(Apart(), [mixed(20, 32), mixed(8, 32)], "mxfp4")
    assert threading.active_count() == before
