"""Whether the values of a tensor can change in place, each by itself."""

from __future__ import annotations

import torch
from torch.nn.parameter import is_lazy


def valueless(x: torch.Tensor) -> str:
    """Return why a tensor has no values, and what to do; an empty text if it has."""
    if is_lazy(x):
        return "has no values yet; call the model once, so that its lazy layers know their sizes"
    return "is on the meta device, without values; load them first" if x.is_meta else ""


def unready(x: torch.Tensor) -> str:
    """Return why a tensor has no values, or none that change, and what to do; an empty text if it has."""
    if why := valueless(x):
        return why
    if x.is_inference():
        return (
            "was made in torch.inference_mode(), and does not change any more; make the model outside of"
            " it, or copy it"
        )
    return ""


def overlap(x: torch.Tensor) -> str:
    """Return that values of a tensor share a place in memory, and what to do; an empty text if none do."""
    steps = zip(x.stride(), x.shape, strict=True) if x.layout == torch.strided and x.numel() else ()
    span = 0  # of the axes with shorter steps
    for step, n in sorted((step, n) for step, n in steps if n > 1):
        if step <= span:
            return (
                "has several values in one place of memory, as expand() makes them; give the layer a copy,"
                " nn.Parameter(w.detach().clone())"
            )
        span += step * (n - 1)
    return ""
