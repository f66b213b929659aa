"""What autocast leaves alone: it would round operands a second time, and joins no other 16-bit floats."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def no_autocast(x: torch.Tensor) -> AbstractContextManager[object]:
    """Return a context without autocast on x's device; of a device that has none, one that does nothing."""
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()
