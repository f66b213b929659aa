"""IEEE 754 arithmetic in a thread in which another library has enabled flushing of subnormals."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fewbits import _native


@contextmanager
def exact_arithmetic() -> Iterator[None]:
    """Keep subnormals and round to nearest in this thread while the block, or the decorated function, runs.

    ``torch.set_flush_denormal(True)`` and libraries built with ``-ffast-math`` change the mode of a thread,
    and NumPy computes in the calling thread. The compiled kernels do the same for each of their threads.
    """
    saved = _native.enter_exact()
    try:
        yield
    finally:
        _native.leave_exact(saved)
