"""The NarrowTensor: packed codes and scales that behave as a torch.Tensor.

``tensor`` defines the class without operations. ``views``, ``slicing`` and ``products`` implement operations
on it, and ``dispatch`` enters them in the ``registry``, in which the class looks them up.
"""

from fewbits.tensor.narrow import dispatch, processes  # importing them registers the operations
from fewbits.tensor.narrow.products import matmul, matvec
from fewbits.tensor.narrow.tensor import NarrowTensor
from fewbits.tensor.narrow.torch_dtypes import from_torch, to_torch

__all__ = ["NarrowTensor", "dispatch", "from_torch", "matmul", "matvec", "processes", "to_torch"]
