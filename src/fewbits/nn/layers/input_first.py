"""Linear layers whose weight lies the other way round."""

from __future__ import annotations

import torch
from torch import nn

from fewbits.nn.layer_precision import LayerPrecision
from fewbits.nn.products import linear, viewed


class NarrowInputFirstLinear(nn.Module):
    """y = x W + b with narrow operands in all three products: Hugging Face's Conv1D, of GPT-2 and its kin.

    It takes the place of a class that is not imported for its sake, and so is no subclass of it.
    """

    precision: LayerPrecision
    weight: torch.Tensor  # (in_features, out_features)
    bias: torch.Tensor | None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (..., out_features) in the recipe's vector format."""
        return linear(x, viewed(self.weight, self.precision).t(), self.bias, self.precision)
