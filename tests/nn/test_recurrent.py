"""LSTM and GRU that round nothing are torch's, for every option; rounded ones train."""

import copy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from fewbits.errors import ArgumentError
from fewbits.nn import prepare
from tests.nn.prepared_layers import narrowed

# Torch's own, which the narrow layer is compared with, says so once.
pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")

N, T, IN, H = 3, 5, 4, 6
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "two-layers": {"num_layers": 2, "bidirectional": True},
    "batch-first": {"batch_first": True},
    "no-bias": {"bias": False, "num_layers": 2},
    "bidirectional": {"bidirectional": True, "batch_first": True},
    "dropout": {"num_layers": 3, "dropout": 0.5},
}
CASES = {
    f"{kind.__name__}-{name}": (kind, how)
    for kind in (nn.LSTM, nn.GRU, nn.RNN)
    for name, how in OPTIONS.items()
}
CASES["RNN-relu"] = (nn.RNN, {"nonlinearity": "relu", "num_layers": 2})
CASES["LSTM-proj"] = (nn.LSTM, {"proj_size": 3, "num_layers": 2, "bidirectional": True})


def tensors(x: Any) -> list[torch.Tensor]:
    if isinstance(x, torch.Tensor):
        return [x]
    return [x.data] if isinstance(x, PackedSequence) else [t for part in x for t in tensors(part)]


def states(layer: Any, batch: tuple[int, ...]) -> Any:
    rows = layer.num_layers * (2 if layer.bidirectional else 1)
    torch.manual_seed(3)
    h = torch.randn(rows, *batch, getattr(layer, "proj_size", 0) or H)
    return (h, torch.randn(rows, *batch, H)) if isinstance(layer, nn.LSTM) else h


def results(layer: nn.Module, given: Any, state: Any) -> list[torch.Tensor]:
    """Return outputs, final states, and the gradients of a loss that weighs them unevenly."""
    torch.manual_seed(2)
    leaf = given.data.clone().requires_grad_()
    x = PackedSequence(leaf, *given[1:]) if isinstance(given, PackedSequence) else leaf
    starts = [] if state is None else [s.clone().requires_grad_() for s in tensors(state)]
    found = tensors(layer(x, tuple(starts) if len(starts) == 2 else starts[0] if starts else None))
    loss = sum((t * torch.linspace(-1, 2, t.numel()).reshape(t.shape)).sum() for t in found)
    return found + list(torch.autograd.grad(loss, [leaf, *starts, *layer.parameters()]))


def same(layer: nn.Module, given: Any, state: Any) -> None:
    wanted = results(layer, given, state)
    found = results(narrowed(copy.deepcopy(layer)), given, state)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def made(case: str) -> nn.Module:
    kind, how = CASES[case]
    torch.manual_seed(0)
    return kind(IN, H, **how)


@pytest.mark.parametrize("given_state", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_without_rounding_recurrence_is_torchs(case: str, given_state: bool) -> None:
    layer = made(case)
    x = torch.randn(*((N, T) if layer.batch_first else (T, N)), IN)
    same(layer, x, states(layer, (N,)) if given_state else None)


@pytest.mark.parametrize("given_state", [False, True])
@pytest.mark.parametrize("case", [c for c in CASES if "dropout" not in c])
def test_without_rounding_packed_and_single_sequences_are_torchs(case: str, given_state: bool) -> None:
    layer = made(case)
    packed = pack_sequence([torch.randn(n, IN) for n in (2, 5, 1, 5)], enforce_sorted=False)
    same(layer, packed, states(layer, (4,)) if given_state else None)
    same(layer, torch.randn(T, IN), states(layer, ()) if given_state else None)


@pytest.mark.parametrize("case", ["LSTM-bidirectional", "GRU-bidirectional"])
def test_a_packed_sequence_of_a_prepared_model_is_a_packed_sequence_of_float32(case: str) -> None:
    packed = pack_sequence([torch.randn(n, IN) for n in (5, 2)])
    found, end = prepare(made(case), "mxfp6")(packed)
    assert isinstance(found, PackedSequence)
    assert torch.equal(found.batch_sizes, packed.batch_sizes)
    assert {t.dtype for t in tensors([found, end])} == {torch.float32}


CELLS: dict[str, tuple[type[nn.RNNCellBase], dict[str, Any]]] = {
    "LSTMCell": (nn.LSTMCell, {}),
    "LSTMCell-no-bias": (nn.LSTMCell, {"bias": False}),
    "GRUCell": (nn.GRUCell, {}),
    "GRUCell-no-bias": (nn.GRUCell, {"bias": False}),
    "RNNCell": (nn.RNNCell, {}),
    "RNNCell-relu": (nn.RNNCell, {"nonlinearity": "relu", "bias": False}),
}


@pytest.mark.parametrize("given_state", [False, True])
@pytest.mark.parametrize("batch", [(), (N,)], ids=str)
@pytest.mark.parametrize("case", CELLS)
def test_without_rounding_a_cell_is_torchs(case: str, batch: tuple[int, ...], given_state: bool) -> None:
    kind, how = CELLS[case]
    torch.manual_seed(0)
    layer, x, h = kind(IN, H, **how), torch.randn(*batch, IN), torch.randn(*batch, H)
    state = None if not given_state else (h, h.flip(-1)) if kind is nn.LSTMCell else h
    same(layer, x, state)


@pytest.mark.parametrize(
    ("cell", "layer"), [(nn.LSTMCell, nn.LSTM), (nn.GRUCell, nn.GRU), (nn.RNNCell, nn.RNN)]
)
def test_a_rounded_cell_is_a_rounded_layer_of_one_step(cell: type[nn.Module], layer: type[nn.Module]) -> None:
    torch.manual_seed(0)
    one, whole = cell(33, 35), layer(33, 35)
    for name, p in one.named_parameters():
        p.data.copy_(getattr(whole, f"{name}_l0"))
    x = torch.randn(1, 4, 33)
    found = tensors(prepare(one, "mxfp4")(x[0]))
    wanted = tensors(prepare(whole, "mxfp4")(x))
    assert torch.equal(found[0], wanted[0][0])


@pytest.mark.parametrize(
    ("x", "state", "message"),
    [
        (torch.zeros(N, IN + 1), None, r"input has shape \(3, 5\); expected \(batch, 4\) or \(4,\)"),
        (torch.zeros(N, IN), torch.zeros(N, H + 1), r"the state has shape \(3, 7\); expected \(3, 6\)"),
        (torch.zeros(N, IN), torch.zeros(H), r"the state has shape \(6,\); expected \(3, 6\)"),
    ],
)
def test_inputs_and_states_that_do_not_fit_a_cell_are_refused(
    x: torch.Tensor, state: Any, message: str
) -> None:
    with pytest.raises(ArgumentError, match=message):
        narrowed(nn.GRUCell(IN, H))(x, state)


@pytest.mark.parametrize("chosen", ["mxfp6", "mx9", "add-multiply"])
@pytest.mark.parametrize("case", ["LSTM-plain", "GRU-plain"])
def test_narrow_recurrence_learns_to_remember(case: str, chosen: str) -> None:
    torch.manual_seed(0)
    layer, head = made(case), nn.Linear(H, 1)
    model = prepare(nn.ModuleList([layer, head]), chosen)
    x = torch.randn(T, 64, IN)
    wanted = x[0, :, :1]
    optimizer = torch.optim.Adam(model.parameters(), 0.03)
    losses = []
    for _ in range(60):
        loss = (head(layer(x)[0][-1]).float() - wanted).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.3 * losses[0]


@pytest.mark.parametrize(
    ("x", "state", "message"),
    [
        (torch.zeros(T, N, IN + 1), None, r"input has shape \(5, 3, 5\); expected two or three axes"),
        (
            torch.zeros(T, N, IN),
            torch.zeros(1, N, H + 1),
            r"shape \(\(1, 3, 7\),\); expected \(\(1, 3, 6\),\)",
        ),
    ],
)
def test_inputs_and_states_that_do_not_fit_are_refused(x: torch.Tensor, state: Any, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        narrowed(made("GRU-plain"))(x, state)


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize(
    ("batch_first", "shape"), [(False, (0, N, IN)), (True, (N, 0, IN)), (True, (0, IN)), (False, (0, IN))]
)
def test_an_input_of_no_steps_is_refused_as_torch_does(
    kind: Any, batch_first: bool, shape: tuple[int, ...]
) -> None:
    layer = kind(IN, H, batch_first=batch_first)
    with pytest.raises(RuntimeError, match="larger than 0"):
        layer(torch.randn(shape))
    with pytest.raises(ArgumentError, match=r"input has shape .*, and no steps; expected one at least"):
        prepare(layer, "mxfp8")(torch.randn(shape))
