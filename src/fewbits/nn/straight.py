"""The products of a layer where a transform of torch.func, or forward mode, differentiates them.

Autograd's own functions know one backward pass. Here each is made of operations that can be differentiated
again, in every mode: rounding as if it were the identity, products as they are. So the gradient is that of
the recipe, bit for bit, and further derivatives are those of its backward pass. Whatever gradient comes back
to a product is rounded as the recipe says; a tangent is not: no role stands for it.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from functools import wraps
from typing import Any, NamedTuple

import torch
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable

from fewbits.errors import ArgumentError
from fewbits.nn.rules import Rules


class Formulas(NamedTuple):
    """A product of two operands, and its gradients. Each takes what it rounds by."""

    forward: Callable[[torch.Tensor, torch.Tensor, Rules, Rules], torch.Tensor]  # x, weight, rules of each
    of_x: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Rules], torch.Tensor]  # gradient, x, weight
    of_weight: Callable[[torch.Tensor, torch.Tensor, torch.Tensor, Rules], torch.Tensor]


def transformed() -> bool:
    """Whether more may be asked of a product than one backward pass."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def once(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Make a backward pass one that is not differentiated, and refuse what would differentiate it.

    Torch's own ``once_differentiable`` says so only where a second pass reaches it; else a part is left out
    of the sum.
    """

    @once_differentiable
    def checked(ctx: Any, *gradients: Any) -> Any:
        return backward(ctx, *gradients)

    @wraps(backward)
    def asked(ctx: Any, *gradients: Any) -> Any:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise ArgumentError(
                "create_graph=True through a prepared layer, which keeps its operands for one backward pass:"
                " take torch.func for second derivatives, as in torch.func.hessian or grad of grad"
            )
        return checked(ctx, *gradients)

    return asked


def product(x: torch.Tensor, weight: torch.Tensor, rules: Rules, formulas: Formulas) -> torch.Tensor:
    """Return the product of two operands; it has all derivatives."""
    found: torch.Tensor = _Product.apply(x, weight, rules, formulas)  # type: ignore[no-untyped-call]
    return found


def rounded(x: torch.Tensor, rules: Rules, role: str, axis: int) -> torch.Tensor:
    """Return ``x`` as the operand ``role``; its derivative is that of x."""
    found: torch.Tensor = _Rounded.apply(x, rules, role, axis)  # type: ignore[no-untyped-call]
    return found


class _Straight(Rules):
    def cast(self, role: str, x: torch.Tensor, axis: int, *_: Any) -> torch.Tensor:
        return rounded(x, self, role, axis)


class _Exact(Rules):
    def cast(self, role: str, x: torch.Tensor, axis: int, *_: Any) -> torch.Tensor:
        return x


def _as(kind: type[Rules], rules: Rules) -> Rules:
    found = copy(rules)
    found.__class__ = kind
    return found


class _Rounded(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor, rules: Rules, role: str, axis: int) -> torch.Tensor:
        found = Rules.cast(rules, role, x, axis)
        return found.clone() if found is x else found

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None, None, None]:
        return gradient, None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: torch.Tensor, *_: None) -> torch.Tensor:
        return tangent.view_as(tangent)


class _Product(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor, weight: torch.Tensor, rules: Rules, formulas: Formulas) -> torch.Tensor:
        return formulas.forward(x, weight, rules, rules)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, weight, ctx.rules, ctx.formulas = inputs
        ctx.save_for_backward(x, weight)
        ctx.save_for_forward(x, weight)

    @staticmethod
    def backward(
        ctx: Any, gradient: torch.Tensor
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, None, None]:
        x, weight = ctx.saved_tensors
        rules, of = _as(_Straight, ctx.rules), ctx.formulas
        return (
            of.of_x(gradient, x, weight, rules) if ctx.needs_input_grad[0] else None,
            of.of_weight(gradient, x, weight, rules).to(weight.dtype) if ctx.needs_input_grad[1] else None,
            None,
            None,
        )

    @staticmethod
    def jvp(ctx: Any, of_x: torch.Tensor | None, of_weight: torch.Tensor | None, *_: None) -> Any:
        x, weight = ctx.saved_tensors
        straight, exact = _as(_Straight, ctx.rules), _as(_Exact, ctx.rules)
        forward = ctx.formulas.forward
        left = None if of_x is None else forward(of_x, weight, exact, straight)
        right = None if of_weight is None else forward(x, of_weight, straight, exact)
        return right if left is None else left if right is None else left + right
