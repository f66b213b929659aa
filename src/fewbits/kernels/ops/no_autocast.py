"""What autocast leaves alone: it would round operands a second time, and joins no other 16-bit floats."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def no_autocast(x: torch.Tensor) -> AbstractContextManager[object]:
    """Return a context without autocast on x's device; where there is none, one that does nothing."""
    kind = x.device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return nullcontext()
