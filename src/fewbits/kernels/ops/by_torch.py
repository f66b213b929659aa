"""Products by torch.matmul whose operands count as they are: none is rounded first or taken for zero."""

from __future__ import annotations

import torch

from fewbits.kernels.arrays.products import is_normal
from fewbits.kernels.ops.at_once import PLAIN
from fewbits.kernels.ops.no_autocast import no_autocast
from fewbits.kernels.ops.tensors import array


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return ``a @ b`` in the dtype of both, whatever autocast is on.

    Where a CPU's units for bfloat16 would take a value for zero, because it is subnormal, both are multiplied
    in float32, and the result is rounded once.
    """
    with no_autocast(a):
        if a.dtype == b.dtype == torch.bfloat16 and not (_is_normal(a) and _is_normal(b)):
            return torch.matmul(a.float(), b.float()).to(a.dtype)
        return torch.matmul(a, b)


def _is_normal(x: torch.Tensor) -> bool:
    """Return whether units for bfloat16 may multiply ``x``, as far as its values are to be seen."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return True
    if type(x) not in PLAIN or not x.is_cpu or x.layout != torch.strided or x._is_zerotensor():
        return True
    return is_normal(array(x))
