"""Linear layers of packed weights whose input is rounded to integers first."""

from __future__ import annotations

import torch
from torch import nn

from fewbits.errors import ArgumentError
from fewbits.kernels.reference.gemv.int8 import ACTIVATION
from fewbits.tensor import NarrowTensor, fake_quantize, matvec

ACTIVATIONS = ("int8_32",)
_MOST_BY_INTEGERS = 8  # vectors; a product in float32 is faster with more, measured with AVX2


class RoundedInputLinear(nn.Linear):
    """y = r W^T + b, r being the input in int8 with a float32 scale for each 32 features of a vector."""

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return (..., out_features) in the dtype of the input."""
        if input.shape[:-1].numel() > _MOST_BY_INTEGERS:
            return nn.functional.linear(fake_quantize(input, ACTIVATION), self.weight, self.bias)
        y = matvec(self.weight, input, activation="int8_32")
        bias: torch.Tensor | None = self.bias
        return y if bias is None else y + bias


def check_activation(activation: str | None) -> None:
    """Raise an ArgumentError unless ``activation`` is None or names what inputs can be rounded to."""
    if activation not in (None, *ACTIVATIONS):
        raise ArgumentError(f"activation={activation!r}; expected None or {' or '.join(ACTIVATIONS)}")


def round_inputs(model: nn.Module) -> None:
    """Let every linear layer of ``model`` with a packed weight round its input, in place.

    Raises:
        ArgumentError: no layer's weight is packed along its inputs.
    """
    layers = [m for m in model.modules() if type(m) is nn.Linear and _is_packed(m.weight)]
    if not layers:
        raise ArgumentError(
            f"{type(model).__name__} has no linear layer whose weight is packed along its inputs, which"
            " activation= is for: leave it out, or cast the model to a narrow format first"
        )
    for layer in layers:
        layer.__class__ = RoundedInputLinear


def _is_packed(weight: torch.Tensor) -> bool:
    return isinstance(weight, NarrowTensor) and weight.axis == 1
