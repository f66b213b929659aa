"""Mixtures of experts of Hugging Face's transformers, which hold all experts' weights in one parameter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from fewbits.errors import ArgumentError
from fewbits.nn.layer_precision import LayerPrecision
from fewbits.nn.products import linear, viewed

# What transformers.integrations.use_experts_implementation says of a class; its functions read no more.
_CONTRACT = ("has_gate", "has_bias", "is_transposed", "has_post_expert_norm", "num_experts")


def is_experts(module: nn.Module) -> bool:
    """Whether a module's weights lie, and are multiplied, as Hugging Face's experts have it."""
    return all(hasattr(module, name) for name in _CONTRACT) and module.get_parameter("down_proj").dim() == 3


class NarrowExperts(nn.Module):
    """y_t = sum_e p_te W_e' act(W_e x_t), with narrow operands in the products of each expert.

    The tokens of one expert are the batch of its products: blocks along it end with them. Activations and
    gates are computed in the recipe's vector format, the sum over experts in float32.
    """

    precision: LayerPrecision
    num_experts: int
    act_fn: Callable[[torch.Tensor], torch.Tensor]
    post_expert_norm: Callable[[torch.Tensor], torch.Tensor]
    _apply_gate: Callable[[torch.Tensor], torch.Tensor]

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """Return (tokens, features) in the recipe's vector format.

        Args:
            hidden_states: (tokens, features).
            top_k_index: (tokens, k), the experts of each token; a number that no expert has means none.
            top_k_weights: (tokens, k), the factors of their results.
        """
        output = torch.zeros_like(hidden_states, dtype=torch.float32)
        first = "gate_up_proj" if self.has_gate else "up_proj"
        for expert in range(self.num_experts):
            token, place = torch.where(top_k_index == expert)
            if len(token) == 0:
                continue
            x = self._product(hidden_states[token], first, expert)
            x = self._apply_gate(x) if self.has_gate else self.act_fn(x)
            y = self._product(x, "down_proj", expert)
            if self.has_post_expert_norm:
                y = self.post_expert_norm(y)
            output = output.index_add(0, token, y.float() * top_k_weights[token, place, None].float())
        return output.to(self.precision.dtype)

    def _product(self, x: torch.Tensor, name: str, expert: int) -> torch.Tensor:
        weight = viewed(getattr(self, name), self.precision)[expert]
        bias = viewed(getattr(self, f"{name}_bias"), self.precision)[expert] if self.has_bias else None
        return linear(x, weight.t() if self.is_transposed else weight, bias, self.precision)


class NarrowRouter(nn.Module):
    """Runs the forward of a router that is a linear layer and a choice: its one product is made narrow."""

    precision: LayerPrecision

    def forward(self, *args: Any, **options: Any) -> Any:
        """Return what the router's own forward returns.

        Raises:
            ArgumentError: it did not multiply by its weight.
        """
        with _NarrowProduct(self) as product:
            output = super().forward(*args, **options)  # the class that this one is derived with
        if not product.seen:
            raise ArgumentError(
                f"{self.precision.layer} did not multiply by its weight as torch.nn.functional.linear does,"
                f" and stays wide; leave it as it is with exclude={self.precision.layer!r}"
            )
        return output


class _NarrowProduct(TorchFunctionMode):
    """Replaces ``torch.nn.functional.linear`` by that with narrow operands."""

    def __init__(self, layer: NarrowRouter) -> None:
        super().__init__()
        self.layer, self.seen = layer, False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not functional.linear:
            return func(*args, **(kwargs or {}))
        operands = dict(zip(("input", "weight", "bias"), args, strict=False)) | (kwargs or {})
        self.seen = True
        return linear(operands["input"], operands["weight"], operands.get("bias"), self.layer.precision)
