"""Linear layers."""

from __future__ import annotations

import torch
from torch import nn

from fewbits.nn.layer_precision import LayerPrecision
from fewbits.nn.products import linear


class NarrowLinear(nn.Linear):
    """y = x W^T + b with narrow operands in all three products."""

    precision: LayerPrecision

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return (..., out_features) in the recipe's vector format."""
        return linear(input, self.weight, self.bias, self.precision)
