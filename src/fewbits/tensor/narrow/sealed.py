"""A tensor without memory for its values: every attempt to read them directly raises an error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch

from fewbits.errors import DTypeError

# Without this, torch would return an invalid pointer, or raise an error that suggests no remedy.
_WAYS_OUT = (
    *("__array__", "__dlpack__", "__dlpack_device__", "numpy", "tolist"),
    *("data_ptr", "storage", "apply_", "map_"),
)


class Sealed(torch.Tensor):
    """A wrapper around other tensors that has no memory of its own.

    Code in torch that bypasses the class gets an empty storage, which raises on access.
    """


def _refusal(name: str) -> Callable[..., NoReturn]:
    def refuse(self: Sealed, *_: Any, **__: Any) -> NoReturn:
        raise DTypeError(f"{name} of {self}: its bytes are codes, not values; call .dequantize() first")

    return refuse


for _name in _WAYS_OUT:
    setattr(Sealed, _name, _refusal(_name))


def sealed(
    cls: type[Sealed], shape: Any, dtype: torch.dtype, device: torch.device, strides: Any = None
) -> Any:
    """Return a tensor of ``cls`` with this shape, dtype, device and strides, and an empty storage.

    Strides None are those of C order.
    """
    empty = torch.Tensor._make_wrapper_subclass(
        cls, shape, strides, dtype=dtype, device=device, storage_size=0
    )
    torch._C._set_throw_on_mutable_data_ptr(empty)
    return empty
