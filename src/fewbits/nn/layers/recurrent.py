"""LSTM, GRU and plain recurrence.

Every layer runs over the packed form of its input: the steps one after another, each as many rows as there
are sequences that long, the longest first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.nn.functional import dropout
from torch.nn.utils.rnn import PackedSequence

from fewbits.errors import ArgumentError
from fewbits.kernels.ops.no_autocast import no_autocast
from fewbits.nn.layer_precision import LayerPrecision
from fewbits.nn.products import linear

State: TypeAlias = tuple[torch.Tensor, ...]  # each (sequences, features); the first is what a step returns
Recurrent: TypeAlias = "NarrowLSTM | NarrowGRU | NarrowRNN"
Step: TypeAlias = Callable[[torch.Tensor, State], State]


class NarrowLSTM(nn.LSTM):
    """Long short-term memory whose projections have narrow operands in all three products.

    The input is projected for all steps at once, the state at every step. Gates and cells are computed in the
    recipe's vector format.
    """

    precision: LayerPrecision

    def forward(self, input: Any, hx: Any = None) -> Any:
        """Return the outputs and the final (h, c), in the recipe's vector format.

        Args:
            input: (L, N, input_size), with batch_first (N, L, input_size), unbatched (L, input_size), or a
                PackedSequence.
            hx: the initial (h, c), each (layers * directions, N, features), unbatched without N; zeros if
                None.

        Returns:
            Outputs of the input's form, and (h, c) of the form of hx.

        Raises:
            ArgumentError: an input or a state that does not fit.
        """
        return _forward(
            self, input, hx, (self.proj_size or self.hidden_size, self.hidden_size), self.precision
        )

    def step(self, name: str) -> Step:
        """Return the step of the layer and direction that ``name`` ends with."""
        weight, bias = _matrices(self, "hh", name)
        shrink = getattr(self, f"weight_hr_{name}") if self.proj_size else None

        def next_state(x: torch.Tensor, state: State) -> State:
            h, c = lstm_gates(x + linear(state[0], weight, bias, self.precision), state[1])
            return (h if shrink is None else linear(h, shrink, None, self.precision), c)

        return next_state


class NarrowGRU(nn.GRU):
    """Gated recurrent units whose projections have narrow operands in all three products.

    The input is projected for all steps at once, the state at every step. Gates are computed in the recipe's
    vector format.
    """

    precision: LayerPrecision

    def forward(self, input: Any, hx: Any = None) -> Any:
        """Return the outputs and the final h, in the recipe's vector format.

        Args:
            input: (L, N, input_size), with batch_first (N, L, input_size), unbatched (L, input_size), or a
                PackedSequence.
            hx: the initial h, (layers * directions, N, hidden_size), unbatched without N; zeros if None.

        Returns:
            Outputs of the input's form, and h of the form of hx.

        Raises:
            ArgumentError: an input or a state that does not fit.
        """
        outputs, (h,) = _forward(
            self, input, None if hx is None else (hx,), (self.hidden_size,), self.precision
        )
        return outputs, h

    def step(self, name: str) -> Step:
        """Return the step of the layer and direction that ``name`` ends with."""
        weight, bias = _matrices(self, "hh", name)

        def next_state(x: torch.Tensor, state: State) -> State:
            return (gru_gates(x, linear(state[0], weight, bias, self.precision), state[0]),)

        return next_state


class NarrowRNN(nn.RNN):
    """Plain recurrence, h' = tanh(W x + U h + b) or relu, with narrow operands in all three products.

    The input is projected for all steps at once, the state at every step.
    """

    precision: LayerPrecision

    def forward(self, input: Any, hx: Any = None) -> Any:
        """Return the outputs and the final h, in the recipe's vector format.

        Args:
            input: (L, N, input_size), with batch_first (N, L, input_size), unbatched (L, input_size), or a
                PackedSequence.
            hx: the initial h, (layers * directions, N, hidden_size), unbatched without N; zeros if None.

        Returns:
            Outputs of the input's form, and h of the form of hx.

        Raises:
            ArgumentError: an input or a state that does not fit.
        """
        outputs, (h,) = _forward(
            self, input, None if hx is None else (hx,), (self.hidden_size,), self.precision
        )
        return outputs, h

    def step(self, name: str) -> Step:
        """Return the step of the layer and direction that ``name`` ends with."""
        weight, bias = _matrices(self, "hh", name)
        activation = torch.tanh if self.nonlinearity == "tanh" else torch.relu

        def next_state(x: torch.Tensor, state: State) -> State:
            return (activation(x + linear(state[0], weight, bias, self.precision)),)

        return next_state


def lstm_gates(x: torch.Tensor, c: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the next h and c, (..., hidden), of the projections i, f, g, o of input and state together."""
    i, f, g, o = x.chunk(4, -1)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def gru_gates(x: torch.Tensor, u: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    """Return the next h, (..., hidden), of the projections r, z, n of the input, ``x``, and of h, ``u``."""
    of_x, of_h = x.chunk(3, -1), u.chunk(3, -1)
    r, z = (of_x[0] + of_h[0]).sigmoid(), (of_x[1] + of_h[1]).sigmoid()
    n = (of_x[2] + r * of_h[2]).tanh()
    return (1 - z) * n + z * h


def _forward(
    layer: Recurrent, input: Any, states: Any, widths: tuple[int, ...], precision: LayerPrecision
) -> Any:
    """Return the outputs and the final states; ``widths`` are the features of each state."""
    if isinstance(input, PackedSequence):
        sizes = input.batch_sizes.tolist()
        start = _start(layer, states, widths, sizes[0], precision, input.sorted_indices)
        data, end = _layers(layer, input.data, sizes, start, precision)
        order = input.unsorted_indices
        packed = PackedSequence(data, input.batch_sizes, input.sorted_indices, order)
        return packed, end if order is None else tuple(s.index_select(1, order) for s in end)
    if input.dim() not in (2, 3) or input.shape[-1] != layer.input_size:
        raise ArgumentError(
            f"input has shape {tuple(input.shape)}; expected two or three axes, the last of"
            f" {layer.input_size}"
        )
    if input.shape[1 if layer.batch_first and input.dim() == 3 else 0] == 0:
        raise ArgumentError(f"input has shape {tuple(input.shape)}, and no steps; expected one at least")
    if input.dim() == 2:
        states = None if states is None else tuple(s.unsqueeze(1) for s in states)
        batch = input.unsqueeze(0 if layer.batch_first else 1)
        outputs, end = _forward(layer, batch, states, widths, precision)
        return outputs.squeeze(0 if layer.batch_first else 1), tuple(s.squeeze(1) for s in end)
    x = input.transpose(0, 1) if layer.batch_first else input
    length, count, _ = x.shape
    start = _start(layer, states, widths, count, precision, None)
    data, end = _layers(layer, x.flatten(0, 1), [count] * length, start, precision)
    outputs = torch.unflatten(data, 0, (length, count))
    return outputs.transpose(0, 1) if layer.batch_first else outputs, end


def _start(
    layer: Recurrent,
    states: Any,
    widths: tuple[int, ...],
    count: int,
    precision: LayerPrecision,
    order: torch.Tensor | None,
) -> State:
    """Return the initial states, (layers * directions, sequences, features), longest sequence first."""
    rows = layer.num_layers * (2 if layer.bidirectional else 1)
    expected = tuple((rows, count, width) for width in widths)
    if states is None:
        device = next(layer.parameters()).device
        return tuple(torch.zeros(e, dtype=precision.dtype, device=device) for e in expected)
    shapes = tuple(tuple(s.shape) for s in states)
    if shapes != expected:
        raise ArgumentError(f"the initial state has shape {shapes}; expected {expected}")
    start = tuple(s.to(precision.dtype) for s in states)
    return start if order is None else tuple(s.index_select(1, order) for s in start)


def _layers(
    layer: Recurrent, x: torch.Tensor, sizes: list[int], start: State, precision: LayerPrecision
) -> tuple[torch.Tensor, State]:
    """Return the packed outputs of the last layer, and the final states of all."""
    ends: list[State] = []
    with no_autocast(x):  # which refuses to join the 16-bit floats that are not its own
        for depth in range(layer.num_layers):
            outputs = []
            for suffix in ("", "_reverse") if layer.bidirectional else ("",):
                name = f"l{depth}{suffix}"
                projected = linear(x, *_matrices(layer, "ih", name), precision).split_with_sizes(sizes)
                state = tuple(s[len(ends)] for s in start)
                run = _backward if suffix else _onward
                output, end = run(layer.step(name), projected, state)
                outputs.append(torch.cat(output))
                ends.append(end)
            x = torch.cat(outputs, -1)
            if depth + 1 < layer.num_layers:
                x = dropout(x, layer.dropout, layer.training)
        return x, tuple(torch.stack(parts) for parts in zip(*ends, strict=True))


def _onward(step: Step, xs: tuple[torch.Tensor, ...], state: State) -> tuple[list[torch.Tensor], State]:
    """Return all outputs and the final states; a sequence that ends leaves its state behind."""
    outputs: list[torch.Tensor] = []
    ended: list[State] = []
    for x in xs:
        if len(x) < len(state[0]):
            ended.insert(0, tuple(s[len(x) :] for s in state))
            state = tuple(s[: len(x)] for s in state)
        state = step(x, state)
        outputs.append(state[0])
    return outputs, tuple(torch.cat(parts) for parts in zip(state, *ended, strict=True))


def _backward(step: Step, xs: tuple[torch.Tensor, ...], start: State) -> tuple[list[torch.Tensor], State]:
    """Return all outputs and the states of the first step; a sequence joins where its last step is."""
    outputs: list[torch.Tensor] = []
    state = tuple(s[:0] for s in start)
    for x in reversed(xs):
        have = len(state[0])
        if len(x) > have:
            joined = (s[have : len(x)] for s in start)
            state = tuple(torch.cat(pair) for pair in zip(state, joined, strict=True))
        state = step(x, state)
        outputs.insert(0, state[0])
    return outputs, state


def _matrices(layer: Recurrent, kind: str, name: str) -> tuple[torch.Tensor, torch.Tensor | None]:
    bias = getattr(layer, f"bias_{kind}_{name}") if layer.bias else None
    return getattr(layer, f"weight_{kind}_{name}"), bias
