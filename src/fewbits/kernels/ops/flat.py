"""Operations on flat tensors on the CPU, as processes exchange them; nothing differentiates them."""

from __future__ import annotations

import torch

from fewbits.errors import ArgumentError, DTypeError
from fewbits.kernels.arrays import top_k as arrays
from fewbits.kernels.ops.tensors import array

_VALUES = (torch.float32, torch.bfloat16, torch.float16)


def top_k(x: torch.Tensor, k: int) -> torch.Tensor:
    """Return the indices of the ``k`` values of largest magnitude, int64 (k,), in rising order.

    Magnitudes are compared by their bits without the sign: NaN is above infinity, and both zeros are equal.
    Of equal magnitudes the first ones count as larger; ``torch.topk`` leaves open which of them it takes.

    Args:
        x: (n,), float32, bfloat16 or float16, contiguous, on the CPU; n below 2^31.
        k: 0 to n.

    Raises:
        ArgumentError: x is not such a tensor, or k is not from 0 to n.
        DTypeError: x has another dtype.
    """
    _check("x", x, _VALUES)
    return torch.from_numpy(arrays.top_k(array(x), k))


def _check(name: str, x: torch.Tensor, dtypes: tuple[torch.dtype, ...]) -> None:
    """Raise an error unless ``x`` is flat and on the CPU, its values side by side."""
    if x.dtype not in dtypes:
        expected = " or ".join(str(dtype) for dtype in dtypes)
        raise DTypeError(f"{name} is a tensor of {x.dtype}; expected {expected}")
    if x.device.type != "cpu" or x.layout != torch.strided or x.dim() != 1 or not x.is_contiguous():
        raise ArgumentError(
            f"{name} is a {x.layout} tensor of shape {tuple(x.shape)} on {x.device}; expected a flat one on"
            f" the CPU whose values lie side by side: {name}.cpu().flatten()"
        )
