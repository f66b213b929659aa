"""One step of a recurrence: LSTMCell, GRUCell and RNNCell."""

from __future__ import annotations

import torch
from torch import nn

from fewbits.errors import ArgumentError
from fewbits.nn.layer_precision import LayerPrecision
from fewbits.nn.layers.recurrent import gru_gates, lstm_gates
from fewbits.nn.products import linear


class NarrowLSTMCell(nn.LSTMCell):
    """A step of an LSTM whose two projections have narrow operands in all three products."""

    precision: LayerPrecision

    def forward(
        self, input: torch.Tensor, hx: tuple[torch.Tensor, torch.Tensor] | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the next (h, c) in the recipe's vector format.

        Args:
            input: (N, input_size), or (input_size,).
            hx: (h, c), each (N, hidden_size) or (hidden_size,); zeros if None.

        Raises:
            ArgumentError: an input or a state that does not fit.
        """
        h, c = (_state(self, input, s) for s in (hx or (None, None)))
        return lstm_gates(_projected(self, input) + _of_state(self, h), c)


class NarrowGRUCell(nn.GRUCell):
    """A step of a GRU whose two projections have narrow operands in all three products."""

    precision: LayerPrecision

    def forward(self, input: torch.Tensor, hx: torch.Tensor | None = None) -> torch.Tensor:
        """Return the next h in the recipe's vector format.

        Args:
            input: (N, input_size), or (input_size,).
            hx: (N, hidden_size) or (hidden_size,); zeros if None.

        Raises:
            ArgumentError: an input or a state that does not fit.
        """
        h = _state(self, input, hx)
        return gru_gates(_projected(self, input), _of_state(self, h), h)


class NarrowRNNCell(nn.RNNCell):
    """A step of a plain recurrence whose two projections have narrow operands in all three products."""

    precision: LayerPrecision

    def forward(self, input: torch.Tensor, hx: torch.Tensor | None = None) -> torch.Tensor:
        """Return the next h in the recipe's vector format.

        Args:
            input: (N, input_size), or (input_size,).
            hx: (N, hidden_size) or (hidden_size,); zeros if None.

        Raises:
            ArgumentError: an input or a state that does not fit.
        """
        h = _state(self, input, hx)
        x = _projected(self, input) + _of_state(self, h)
        return torch.tanh(x) if self.nonlinearity == "tanh" else torch.relu(x)


Cell = NarrowLSTMCell | NarrowGRUCell | NarrowRNNCell


def _state(cell: Cell, x: torch.Tensor, h: torch.Tensor | None) -> torch.Tensor:
    if x.dim() not in (1, 2) or x.shape[-1] != cell.input_size:
        raise ArgumentError(
            f"input has shape {tuple(x.shape)}; expected (batch, {cell.input_size}) or ({cell.input_size},)"
        )
    expected = (*x.shape[:-1], cell.hidden_size)
    if h is None:
        return torch.zeros(expected, dtype=cell.precision.dtype, device=x.device)
    if tuple(h.shape) != expected:
        raise ArgumentError(f"the state has shape {tuple(h.shape)}; expected {expected}")
    return h.to(cell.precision.dtype)


def _projected(cell: Cell, x: torch.Tensor) -> torch.Tensor:
    return linear(x, cell.weight_ih, cell.bias_ih if cell.bias else None, cell.precision)


def _of_state(cell: Cell, h: torch.Tensor) -> torch.Tensor:
    return linear(h, cell.weight_hh, cell.bias_hh if cell.bias else None, cell.precision)
