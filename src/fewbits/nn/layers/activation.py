"""Activations with parameters of their own."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from fewbits.kernels.ops.no_autocast import no_autocast
from fewbits.nn.layer_precision import LayerPrecision
from fewbits.nn.products import converted


class NarrowPReLU(nn.PReLU):
    """max(0, x) + a min(0, x); torch's own refuses a slope of another type than its input."""

    precision: LayerPrecision

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the input's shape in the recipe's vector format."""
        x = self.precision.from_flow(input)
        with no_autocast(x):
            return functional.prelu(x, converted(self.weight, x.dtype))
