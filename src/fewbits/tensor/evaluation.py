"""A model that runs only to be looked at: without dropout, its modes and buffers given back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn

from fewbits.tensor.memory import overlap, valueless


@contextmanager
def evaluated(model: nn.Module) -> Iterator[None]:
    """Set a model to eval mode, without gradients, and each module back: some may have been in that mode."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module in training:
            module.training = True


@contextmanager
def buffers_kept(model: nn.Module) -> Iterator[None]:
    """Give a model back the buffers that it has now and their values; what has not changed is not written.

    Some average, count or fill a cache as they run, whatever their mode.
    """
    owned = [(m, name, b) for m in model.modules() for name, b in m._buffers.items() if b is not None]
    held = {id(b): (b, b.clone()) for _, _, b in owned if _can_change(b)}
    try:
        yield
    finally:
        for module, name, buffer in owned:
            module._buffers[name] = buffer
        with torch.no_grad():
            for buffer, values in held.values():
                if not _same_bits(buffer, values):
                    buffer.copy_(values)


def _can_change(buffer: torch.Tensor) -> bool:
    fixed = buffer.is_inference() and not torch.is_inference_mode_enabled()
    return not (fixed or valueless(buffer) or overlap(buffer))


def _same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether plain tensors are the same, NaNs too; of other kinds, as sparse ones, nothing is said."""
    if type(a) is not torch.Tensor or a.layout != torch.strided or a.is_conj() or a.is_neg():
        return False
    return torch.equal(*(x.detach().reshape(-1).view(torch.uint8) for x in (a, b)))
