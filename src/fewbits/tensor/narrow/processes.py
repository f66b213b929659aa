"""Transfer of a NarrowTensor to another process; torch passes its parts in shared memory."""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch

from fewbits.tensor.narrow.tensor import NarrowTensor


def _sent(q: NarrowTensor) -> tuple[Any, ...]:
    """Return the function and arguments that rebuild ``q`` in another process."""
    names, meta = q.__tensor_flatten__()
    parts = {name: getattr(q, name) for name in names}
    return _received, (parts, meta, tuple(q.shape), getattr(q, "_is_param", False))


def _received(parts: dict[str, torch.Tensor], meta: Any, shape: Any, is_parameter: bool) -> NarrowTensor:
    q = NarrowTensor.__tensor_unflatten__(parts, meta, shape, None)
    return torch.nn.Parameter(q, requires_grad=False) if is_parameter else q  # type: ignore[return-value]  # q itself, marked


ForkingPickler.register(NarrowTensor, _sent)  # used by queues and pipes between processes, not for files
