"""A tensor whose memory is not that of its values: each way to read it as such refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch

from fewbits.errors import DTypeError

# Torch would hand out a pointer to nothing, or stop at an error that names no remedy.
_WAYS_OUT = (
    *("__array__", "__dlpack__", "__dlpack_device__", "numpy", "tolist"),
    *("data_ptr", "storage", "apply_", "map_"),
)


class Sealed(torch.Tensor):
    """A wrapper around other tensors that has no memory of its own.

    What torch itself reads without asking the class meets an empty storage that refuses to be read.
    """


def _refusal(name: str) -> Callable[..., NoReturn]:
    def refuse(self: Sealed, *_: Any, **__: Any) -> NoReturn:
        raise DTypeError(f"{name} of {self}: its bytes are codes, not values; call .dequantize() first")

    return refuse


for _name in _WAYS_OUT:
    setattr(Sealed, _name, _refusal(_name))


def sealed(cls: type[Sealed], shape: Any, *, dtype: torch.dtype, device: torch.device) -> Any:
    """Return a tensor of ``cls`` with the shape, dtype and device, and with an empty storage."""
    empty = torch.Tensor._make_wrapper_subclass(cls, shape, dtype=dtype, device=device, storage_size=0)
    torch._C._set_throw_on_mutable_data_ptr(empty)
    return empty
