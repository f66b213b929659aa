"""Arithmetic as IEEE 754 has it in a thread that another library told to flush subnormals."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from fewbits import _native


@contextmanager
def exact_arithmetic() -> Iterator[None]:
    """Keep subnormals and round to nearest in this thread while the block, or the decorated function, runs.

    ``torch.set_flush_denormal(True)`` and libraries built with ``-ffast-math`` leave a thread otherwise, and
    NumPy computes in the thread that calls it. The compiled kernels do the same for each of their threads.
    """
    saved = _native.enter_exact()
    try:
        yield
    finally:
        _native.leave_exact(saved)
