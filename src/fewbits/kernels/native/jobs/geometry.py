"""The strides of the lines of an array, with axes merged where possible."""

from __future__ import annotations

from math import prod
from typing import Any

from numpy.typing import NDArray

from fewbits import _native

_MOST_AXES = 8  # besides the line, as in native/jobs/geometry.hpp


def geometry(x: NDArray[Any], axis: int) -> _native.Geometry | None:
    """Return how to traverse ``x`` line by line, or None if it has too many axes."""
    return geometry_of(x.shape, steps_of(x), axis)


def steps_of(x: NDArray[Any]) -> tuple[int, ...] | None:
    """Return the steps from one value to the next along each axis, in values; None in C order."""
    return None if x.flags.c_contiguous else tuple(s // x.itemsize for s in x.strides)


def geometry_of(shape: tuple[int, ...], steps: tuple[int, ...] | None, axis: int) -> _native.Geometry | None:
    """Return how to traverse an array of these steps line by line, or None if it has too many axes."""
    places = _places(shape)
    steps = places if steps is None else steps
    merged: list[tuple[int, int, int]] = []  # extent, stride, place stride; the outer axis first
    for i in range(len(shape)):
        extent, step, place = shape[i], steps[i], places[i]
        if i == axis:
            continue
        if extent == 1:
            continue
        if merged and merged[-1][1] == extent * step and merged[-1][2] == extent * place:
            merged[-1] = (merged[-1][0] * extent, step, place)
        else:
            merged.append((extent, step, place))
    if len(merged) > _MOST_AXES:
        return None
    columns = [list(c) for c in zip(*merged, strict=True)] or [[], [], []]
    n, step, place = (shape[axis], steps[axis], places[axis]) if shape else (1, 1, 1)
    return _native.geometry(n, step, place, *columns)


def one_line(count: int) -> _native.Geometry:
    """Return the geometry of ``count`` values side by side."""
    return _native.geometry(count, 1, 1, [], [], [])


def _places(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(prod(shape[i + 1 :]) for i in range(len(shape)))


def is_dense(x: NDArray[Any]) -> bool:
    """Return whether the values lie side by side in C order, at addresses that the kernels can read."""
    return bool(x.flags.c_contiguous and x.flags.aligned)


def aligned(x: NDArray[Any]) -> NDArray[Any]:
    """Return ``x``, copied only if its values lie at addresses that are no multiple of their size."""
    steps_fit = all(s % x.itemsize == 0 for s in x.strides)
    return x if x.flags.aligned and steps_fit else x.copy()  # np.ascontiguousarray may keep the address
