"""Gradients, tangents and batches of solutions, from the factors that gave them."""

from __future__ import annotations

from typing import Any, Protocol

import torch


class Run(Protocol):
    """Solves with one matrix, which it factorizes when first called."""

    def __call__(self, a: torch.Tensor, b: torch.Tensor, adjoint: bool) -> torch.Tensor:
        """Return A^-1 b, or A^-H b, for b, (n, k)."""

    def fresh(self) -> Run:
        """Return a new run for another matrix."""


def solve(a: torch.Tensor, b: torch.Tensor, run: Run) -> torch.Tensor:
    """Return ``run``'s solution of A x = b, (n, k), as a differentiable function of A and b."""
    return _apply(a, b, run, False)


def _apply(a: torch.Tensor, b: torch.Tensor, run: Run, adjoint: bool) -> torch.Tensor:
    x: torch.Tensor = _Solve.apply(a, b, run, adjoint)  # type: ignore[no-untyped-call]  # torch gives apply no types
    return x


class _Solve(torch.autograd.Function):
    """x = A^-1 b; with ``adjoint`` A^-H b. The gradient of b is A^-H g, that of A is -A^-H g x^H."""

    @staticmethod
    def forward(a: torch.Tensor, b: torch.Tensor, run: Run, adjoint: bool) -> torch.Tensor:
        return run(a, b, adjoint)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
        a, _, ctx.run, ctx.adjoint = inputs
        ctx.save_for_backward(a, output)
        ctx.save_for_forward(a, output)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        a, x = ctx.saved_tensors
        of_b = _apply(a, grad_outputs[0], ctx.run, not ctx.adjoint)
        of_a = None
        if ctx.needs_input_grad[0]:
            of_a = -(x @ of_b.mH if ctx.adjoint else of_b @ x.mH)
            of_a = of_a if a.is_complex() or not of_a.is_complex() else of_a.real
        return of_a, of_b, None, None

    @staticmethod
    def jvp(ctx: Any, *grad_inputs: Any) -> torch.Tensor:
        a, x = ctx.saved_tensors
        of_a, of_b = grad_inputs[:2]
        side = torch.zeros_like(x) if of_b is None else of_b
        if of_a is not None:
            side = side - (of_a.mH if ctx.adjoint else of_a).to(x.dtype) @ x
        return _apply(a, side, ctx.run, ctx.adjoint)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], a: torch.Tensor, b: torch.Tensor, run: Run, adjoint: bool
    ) -> tuple[torch.Tensor, int]:
        of_a, of_b = in_dims[:2]
        if of_a is None:  # one matrix: more columns
            wide = b.movedim(of_b, -1)
            return _apply(a, wide.flatten(1), run, adjoint).reshape(wide.shape), 2
        sides = b.movedim(of_b, 0) if of_b is not None else b.expand(info.batch_size, *b.shape)
        systems = zip(a.movedim(of_a, 0), sides, strict=True)
        return torch.stack([_apply(matrix, side, run.fresh(), adjoint) for matrix, side in systems]), 0
