"""Steps that are taken back on the device where a loss scaler saw an overflow: no host waits for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeGuard, cast

import torch

from fewbits.optim.parameter_state import ParameterState
from fewbits.optim.sharded import local, of_one
from fewbits.tensor import NarrowTensor, quantize


@dataclass(frozen=True)
class Before:
    """A parameter and its state as they were before an update."""

    p: torch.Tensor
    state: dict[str, Any]

    @classmethod
    def of(cls, p: torch.Tensor, state: ParameterState) -> Before:
        """Keep copies; of packed and 16-bit states themselves, which an update replaces and never changes."""
        kept = {name: x.clone() if _changes(x) else x for name, x in state.items()}
        return cls(p.detach().clone(), kept)

    def restore_where(self, skip: torch.Tensor, p: torch.Tensor, state: ParameterState) -> None:
        """Undo the update if ``skip``, () bool; a state that there was not yet becomes zero."""
        mine = local(p.detach())
        mine.copy_(torch.where(skip, local(self.p), mine))
        entries = cast("dict[str, Any]", state)
        for name, new in list(entries.items()):
            entries[name] = _chosen(skip, self.state.get(name), new)


def _changes(x: object) -> TypeGuard[torch.Tensor]:
    return isinstance(x, torch.Tensor) and not isinstance(x, NarrowTensor) and x.dtype == torch.float32


def _chosen(skip: torch.Tensor, old: Any, new: Any) -> Any:
    if isinstance(new, NarrowTensor):
        if old is None:
            zeros = torch.zeros(new.shape, dtype=new.dtype, device=new.device)
            old = quantize(zeros, new.format, axis=new.axis)
        pairs = zip(old.pieces, new.pieces, strict=True)
        pieces = tuple(None if a is None or b is None else torch.where(skip, a, b) for a, b in pairs)
        return new.remade(pieces, new.shape, new.axis)
    if not isinstance(new, torch.Tensor):  # a count of steps
        # Of numbers the result would be of torch's default dtype, and bfloat16 counts no further than 256.
        counts = [torch.full_like(skip, float(count or 0), dtype=torch.float32) for count in (old, new)]
        return torch.where(skip, *counts)
    rest: torch.Tensor = torch.zeros_like(new) if old is None else old
    return of_one(torch.where(skip, local(rest), local(new)), new)
