"""What the definition makes of an array: the yardstick of fewbits.jax."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from fewbits.formats import Format
from fewbits.kernels import reference
from fewbits.kernels.bits.layout import Packed, packed
from fewbits.kernels.bits.options import Options
from fewbits.kernels.bits.reals import BFLOAT16, rounded_to_dtype, widened, without_infinity

Array = NDArray[Any]


def bits(x: Any) -> Array:
    """Return the bits of a float32, bfloat16 or float16 array, all NaN alike."""
    array = np.asarray(x)
    word = np.dtype(f"u{array.dtype.itemsize}")
    return np.where(np.isnan(array), np.array(np.nan, array.dtype).view(word), array.view(word))


def converted(x: Array, format: Format, options: Options, axis: int = -1) -> tuple[Packed, Array]:
    """Return packed parts, and the bits of the rounded values in x's dtype, by the definition.

    ``x`` is float32, float16, or ml_dtypes' bfloat16.
    """
    plain = x.view(np.uint16) if x.dtype == jnp.bfloat16 else x
    wide = without_infinity(plain) if options.nonfinite == "saturate" else widened(plain)
    lines = np.moveaxis(wide, axis, -1) if x.ndim else wide.reshape(1)
    parts = reference.quantize(lines, format, options)
    values = reference.dequantize(parts, format)
    back = np.moveaxis(values, -1, axis) if x.ndim else values.reshape(())
    dtype = BFLOAT16 if x.dtype == jnp.bfloat16 else x.dtype
    rounded = rounded_to_dtype(back, dtype).view(x.dtype)
    return packed(parts, format), bits(rounded)


def assert_equal(q: Any, rounded: jax.Array, wanted: tuple[Packed, Array], what: object) -> None:
    """Fail unless packed parts and rounded values are the definition's, bit for bit."""
    for name, piece, part in zip(Packed._fields, q.pieces, wanted[0], strict=True):
        assert (piece is None) == (part is None), (what, name)
        if piece is not None and part is not None:
            assert piece.shape == part.shape, (what, name)
            same = np.array_equal(np.asarray(piece).view(np.uint8), np.ascontiguousarray(part).view(np.uint8))
            assert same, (what, name)
    assert np.array_equal(bits(rounded), wanted[1]), what
