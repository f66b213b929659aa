"""An array in packed codes and scales, a pytree."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from fewbits.formats import Format
from fewbits.jax.elements import decode
from fewbits.jax.numbers import to_floats
from fewbits.jax.packing import unpack
from fewbits.jax.scales import Scales, multiplied
from fewbits.kernels.bits.layout import groups


@partial(
    jax.tree_util.register_dataclass,
    data_fields=("codes", "scales", "shifts", "outer"),
    meta_fields=("format", "length", "axis", "dtype"),
)
@dataclass(frozen=True)
class NarrowArray:
    """What :func:`fewbits.jax.quantize` returns: the bytes of a NarrowTensor, as arrays of JAX.

    Under ``vmap`` the parts get the axes of the batch in front; ``axis`` counts from the end and stays right.

    Attributes:
        codes: (..., bytes) uint8, the packed elements, the block axis last.
        scales: (..., bytes) uint8, or (1, ..., bytes) for a scale per tensor; None without scales.
        shifts: (..., bytes) uint8, the microexponents of BDR, or None.
        outer: (..., 1) or (1, ..., 1) float32, the scales over the scales, or None.
        format: what the bits mean.
        length: of the block axis, in values; None for an array of no dimensions.
        axis: along which blocks lie, negative.
        dtype: of the array that was quantized.
    """

    codes: Array
    scales: Array | None
    shifts: Array | None
    outer: Array | None
    format: Format
    length: int | None
    axis: int
    dtype: np.dtype[np.generic]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the values."""
        others = list(self.codes.shape[:-1])
        if self.length is None:
            return tuple(others)
        others.insert(len(others) + 1 + self.axis, self.length)
        return tuple(others)

    @property
    def pieces(self) -> tuple[Array | None, Array | None, Array | None, Array | None]:
        """Codes, scales, shifts and outer scales, in the order that ``NarrowTensor.from_parts`` takes."""
        return self.codes, self.scales, self.shifts, self.outer

    @property
    def nbytes(self) -> int:
        """Bytes of codes and scales together."""
        return sum(piece.size * piece.dtype.itemsize for piece in self.pieces if piece is not None)

    def dequantize(self) -> Array:
        """Return the values in the dtype that was quantized."""
        values: Array = _dequantized(self)
        return values


@jax.jit
def _dequantized(q: NarrowArray) -> Array:
    n = 1 if q.length is None else q.length
    codes, scales, shifts, _ = q.format.groups
    unpacked = Scales(
        None if q.scales is None or scales is None
        else unpack(q.scales, scales.bits, groups((n,), scales.size)[-1]),
        None if q.shifts is None or shifts is None
        else unpack(q.shifts, shifts.bits, groups((n,), shifts.size)[-1]),
        q.outer,
    )  # fmt: skip
    elements = decode(q.format.element, unpack(q.codes, codes.bits, n))
    values = to_floats(multiplied(elements, unpacked, q.format), q.dtype)
    return values.reshape(values.shape[:-1]) if q.length is None else jnp.moveaxis(values, -1, q.axis)
