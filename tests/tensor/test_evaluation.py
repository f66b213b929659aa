"""Modes, and buffers of every kind with their bits, are as they were after a run that was only looked at."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import fewbits as fb
from fewbits.tensor.evaluation import buffers_kept, evaluated


def holder(**buffers: Tensor | None) -> nn.Module:
    model = nn.Module()
    for name, buffer in buffers.items():
        model.register_buffer(name, buffer)
    return model


def of_inference() -> Tensor:
    with torch.inference_mode():
        return torch.arange(4.0)


def packed(value: float) -> Tensor:
    return fb.quantize(torch.full((2, 32), value), "mxfp4")


# Each with a change in place, as a run may make it, and with what tells whether it is as it was.
KINDS: dict[str, tuple[Callable[[], Tensor], Callable[[Tensor], Any], Callable[[Tensor], Tensor]]] = {
    "floats": (lambda: torch.arange(4.0), lambda b: b.add_(1), lambda b: b),
    "a zero's sign": (lambda: torch.zeros(3), Tensor.neg_, lambda b: b.view(torch.int32)),
    "a NaN": (lambda: torch.full((3,), torch.nan), Tensor.neg_, lambda b: b.view(torch.int32)),
    "no axes": (lambda: torch.tensor(3), lambda b: b.add_(1), lambda b: b),
    "no values": (lambda: torch.ones(0, 2), lambda b: b.add_(1), lambda b: b),
    "booleans": (lambda: torch.ones(3, dtype=torch.bool), Tensor.logical_not_, lambda b: b),
    "complex": (lambda: torch.ones(3, dtype=torch.complex64), lambda b: b.add_(1j), lambda b: b),
    "conjugate": (lambda: torch.ones(3, dtype=torch.complex64).conj(), lambda b: b.add_(1j), lambda b: b),
    "transposed": (lambda: torch.arange(6.0).view(2, 3).t(), lambda b: b.add_(1), lambda b: b),
    "sparse": (lambda: torch.eye(3).to_sparse(), lambda b: b.mul_(2), Tensor.to_dense),
    "packed": (lambda: packed(1.0), lambda b: b.copy_(packed(2.0)), Tensor.dequantize),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_change_in_place_is_taken_back(kind: str) -> None:
    make, change, seen = KINDS[kind]
    buffer, before = make(), seen(make()).clone()
    model = holder(held=buffer)

    def stopped() -> None:
        with buffers_kept(model):
            change(buffer)
            assert kind == "no values" or not torch.equal(seen(buffer), before)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert model._buffers["held"] is buffer
    assert torch.equal(seen(buffer), before)


class Averaging(nn.Module):
    """A norm that averages whatever mode it is in, which raises no version of its buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        norm = self.norm
        y: Tensor = nn.functional.batch_norm(x, norm.running_mean, norm.running_var, training=True)
        return y


def test_what_a_norm_averages_is_taken_back_and_nothing_else_is_written() -> None:
    averaging = Averaging()
    model = nn.Sequential(averaging, nn.BatchNorm1d(4).eval())
    before = {name: b.clone() for name, b in model.named_buffers()}
    versions = {name: b._version for name, b in model.named_buffers()}
    with buffers_kept(model):
        model(2 * torch.ones(3, 4).cumsum(0))
        assert not torch.equal(
            before["0.norm.running_mean"], dict(model.named_buffers())["0.norm.running_mean"]
        )
    for name, b in model.named_buffers():
        assert torch.equal(b, before[name])
        assert (b._version > versions[name]) == (name in {"0.norm.running_mean", "0.norm.running_var"})


def test_what_nobody_can_write_to_is_left_alone() -> None:
    model = holder(
        fixed=of_inference(),
        expanded=torch.ones(1).expand(4),
        empty=torch.ones(4, device="meta"),
        absent=None,
    )
    buffers = dict(model._buffers)
    with buffers_kept(model):
        model.fixed = torch.zeros(4)
    assert all(model._buffers[name] is b for name, b in buffers.items())


def test_in_inference_mode_its_buffers_are_given_back_too() -> None:
    fixed = of_inference()
    with torch.inference_mode(), buffers_kept(holder(fixed=fixed)):
        fixed.add_(1)
    assert torch.equal(fixed, torch.arange(4.0))


def test_one_buffer_of_two_modules_is_given_back_to_both() -> None:
    shared = torch.zeros(2)
    model = nn.ModuleList([holder(held=shared), holder(held=shared)])
    with buffers_kept(model):
        shared.add_(1)
        model[1].held = torch.ones(2)
    assert all(part._buffers["held"] is shared for part in model)
    assert torch.equal(shared, torch.zeros(2))


def test_each_module_has_its_mode_again() -> None:
    model = nn.Sequential(nn.Dropout(), nn.BatchNorm1d(4).eval(), nn.Linear(4, 4))

    def failed() -> None:
        with evaluated(model):
            assert not torch.is_grad_enabled()
            assert not any(m.training for m in model.modules())
            raise KeyError

    with pytest.raises(KeyError):
        failed()
    assert torch.is_grad_enabled()
    assert [m.training for m in model.modules()] == [True, True, False, True]
