"""Where a tensor of the mesh becomes a piece of one process, and back: every collective of a plan is here."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from fewbits.planner.execution.layout import Places


def placements(places: Places) -> tuple[Placement, ...]:
    """Return DTensor's words for where pieces lie."""
    return tuple(Replicate() if p is None else Shard(p) for p in places)


def _moved(given: DTensor, wanted: tuple[Placement, ...]) -> torch.Tensor:
    """Return this process's piece of a tensor in other places: what can be left out is not sent."""
    mesh, held = given.device_mesh, given.placements
    cut = list(held)
    for m, (h, w) in enumerate(zip(held, wanted, strict=True)):
        if h.is_replicate() and w.is_shard() and w not in held:
            cut[m] = w
    piece: torch.Tensor = given.redistribute(mesh, cut).redistribute(mesh, wanted).to_local()
    return piece.contiguous()


class _Enter(torch.autograd.Function):
    """Forward the piece that a layer needs; backward its gradient, summed over the axes that share it out."""

    @staticmethod
    def forward(
        ctx: Any, given: DTensor, needed: tuple[Placement, ...], summed: tuple[bool, ...]
    ) -> torch.Tensor:
        ctx.given, ctx.needed, ctx.summed = given._spec, needed, summed
        piece = _moved(given, needed)
        return piece.view_as(piece)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[DTensor, None, None]:
        spec = ctx.given
        made = [Partial() if s else p for p, s in zip(ctx.needed, ctx.summed, strict=True)]
        whole = DTensor.from_local(gradient.contiguous(), spec.mesh, made, run_check=False)
        # Sums first, while pieces are small, and of these the scattered ones, an axis of the mesh at a time:
        # DTensor would all-reduce where two axes share out one of the tensor.
        for m, (g, s) in enumerate(zip(spec.placements, ctx.summed, strict=True)):
            if s and g.is_shard():
                made[m] = g
                whole = whole.redistribute(spec.mesh, made)
        first = [g if s else n for g, n, s in zip(spec.placements, ctx.needed, ctx.summed, strict=True)]
        piece = _moved(whole.redistribute(spec.mesh, first), spec.placements)
        # Of these strides on every process: those of the mesh's tensor are worked out from them.
        return DTensor.from_local(piece, spec.mesh, spec.placements, run_check=False), None, None


class _Leave(torch.autograd.Function):
    """Forward the tensor of which processes made pieces or summands; backward the piece of its gradient."""

    @staticmethod
    def forward(
        ctx: Any, piece: torch.Tensor, mesh: Any, held: tuple[Placement, ...], summed: tuple[bool, ...]
    ) -> DTensor:
        ctx.mesh, ctx.held = mesh, held
        made = [Partial() if s else p for p, s in zip(held, summed, strict=True)]
        given = piece.detach().contiguous()
        return DTensor.from_local(given, mesh, made, run_check=False).redistribute(mesh, held)

    @staticmethod
    def backward(ctx: Any, gradient: DTensor) -> tuple[torch.Tensor, None, None, None]:
        return _moved(gradient, ctx.held), None, None, None


def enter(given: DTensor, needed: Places, summed: tuple[bool, ...]) -> torch.Tensor:
    """Return this process's piece.

    Args:
        given: the whole tensor.
        needed: where the pieces that the layer reads lie.
        summed: over which axes of the mesh the gradients of the pieces are summed.
    """
    piece: torch.Tensor = _Enter.apply(given, placements(needed), summed)  # type: ignore[no-untyped-call]  # torch's
    return piece


def leave(piece: torch.Tensor, mesh: Any, held: Places, summed: tuple[bool, ...]) -> DTensor:
    """Return the whole tensor.

    Args:
        piece: what this process made.
        mesh: the device mesh.
        held: where the pieces of the result lie.
        summed: over which axes of the mesh pieces are summands, of which every process gets the sum.
    """
    whole: DTensor = _Leave.apply(piece, mesh, placements(held), summed)  # type: ignore[no-untyped-call]  # torch's
    return whole


def whole_tensor(x: torch.Tensor, mesh: Any) -> DTensor:
    """Return a tensor that every process has."""
    if isinstance(x, DTensor):
        return x
    return DTensor.from_local(x, mesh, [Replicate()] * mesh.ndim, run_check=False)
