"""Bilinear layers."""

from __future__ import annotations

import torch
from torch import nn

from fewbits.errors import ArgumentError
from fewbits.nn.layer_precision import LayerPrecision
from fewbits.nn.products import attention_product, converted, linear, viewed


class NarrowBilinear(nn.Bilinear):
    """y_o = x1^T W_o x2 + b_o as two products: t_oj = sum_i x1_i W_oij, then y_o = sum_j t_oj x2_j.

    The first is a linear layer of in1_features, the second a product of activations along in2_features; both,
    and the products of their gradients, round operands along the axis that they sum over.
    """

    precision: LayerPrecision

    def forward(self, input1: torch.Tensor, input2: torch.Tensor) -> torch.Tensor:
        """Return (..., out_features) in the recipe's vector format.

        Args:
            input1: (..., in1_features).
            input2: (..., in2_features), with as many rows in each axis: a row has one partner.

        Raises:
            ArgumentError: shapes that do not fit; as in torch they are not broadcast.
        """
        shapes = tuple(input1.shape), tuple(input2.shape)
        ends = tuple(shape[-1:] for shape in shapes) != ((self.in1_features,), (self.in2_features,))
        if ends or shapes[0][:-1] != shapes[1][:-1]:
            raise ArgumentError(
                f"input1 and input2 have shapes {shapes[0]} and {shapes[1]}; expected"
                f" (..., {self.in1_features}) and (..., {self.in2_features}) with the same axes before the"
                " last: expand one to the other"
            )
        matrix = viewed(self.weight, self.precision).transpose(1, 2).flatten(0, 1)
        t = torch.unflatten(
            linear(input1, matrix, None, self.precision), -1, (self.out_features, self.in2_features)
        )
        y = attention_product(t, input2.unsqueeze(-1), self.precision).squeeze(-1)
        bias: torch.Tensor | None = self.bias  # None without bias, which torch's annotation does not say
        return y if bias is None else y + converted(bias, y.dtype)
