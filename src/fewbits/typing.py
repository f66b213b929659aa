"""Types of arguments and results that several rooms share. Standard library and NumPy only."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar, Union

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

__all__ = ["AnyArray", "Array", "Generator", "NumpyArray", "Progress", "Scalar", "Watch"]

NumpyArray = npt.NDArray[np.generic]
"""A NumPy array of any dtype."""

Array = TypeVar("Array", npt.NDArray[np.generic], "torch.Tensor")
"""Arrays in, arrays of the same family out: what goes in as one of the two comes back as that one."""

AnyArray = Union[npt.NDArray[np.generic], "torch.Tensor"]
"""An array of either family, where what is returned does not depend on which."""

Generator = Union[int, np.integer, np.random.Generator, "torch.Generator"]
"""What stochastic rounding draws from: a seed from 0 to 2^63 - 1, or a generator, which it advances."""

Scalar = Union[float, np.generic, npt.NDArray[np.generic], "torch.Tensor"]
"""A number, or an array of no dimensions that holds one."""

ProcessGroup = Union["torch.distributed.ProcessGroup", "torch.distributed.device_mesh.DeviceMesh", None]
"""The processes of a collective: a process group, a mesh that stands for one, or None: all processes."""

StateDict = dict[str, object]
"""What ``state_dict()`` returns and ``load_state_dict()`` takes: its entries by name."""

Progress = Callable[[str, float, float], None]
"""``progress(what, done, total)``: what is being done, how much of it is done, of how much."""

Watch = Callable[[str, int, float], None]
"""``watch(stage, iteration, residual)``: which stage of a solver runs, how far it is, its residual."""
