"""The NarrowTensor: packed codes and scales that behave as a torch.Tensor.

``tensor`` has the class, which knows no operation. ``views``, ``slicing`` and ``products`` are written in
terms of it, and ``dispatch`` enters them in the ``registry`` that the class asks.
"""

from fewbits.tensor.narrow import dispatch, processes  # they register what the class is asked for
from fewbits.tensor.narrow.products import matmul, matvec
from fewbits.tensor.narrow.tensor import NarrowTensor
from fewbits.tensor.narrow.torch_dtypes import from_torch, to_torch

__all__ = ["NarrowTensor", "dispatch", "from_torch", "matmul", "matvec", "processes", "to_torch"]
