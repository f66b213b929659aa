"""quantize and fake_quantize for arrays of JAX."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.typing import ArrayLike

from fewbits.errors import ArgumentError, DataError, DTypeError
from fewbits.formats import Format, Lookup, parse
from fewbits.jax.blocks import spread
from fewbits.jax.elements import decode, encode
from fewbits.jax.narrow_array import NarrowArray
from fewbits.jax.numbers import Numbers, constant, from_floats, largest_finite, to_floats
from fewbits.jax.packing import pack
from fewbits.jax.scales import Scales, multiplied, scaled, significand_bits
from fewbits.jax.varying import alike
from fewbits.kernels.bits.axes import checked_axis
from fewbits.kernels.bits.options import Choices, Options, decide
from fewbits.kernels.bits.scale_rules import MEAN_RULES

DTYPES = (np.dtype(np.float32), np.dtype(jnp.bfloat16), np.dtype(np.float16))


def quantize(
    x: ArrayLike,
    format: str | Format,
    *,
    axis: int = -1,
    rounding: str = "nearest_even",
    scale_rule: str = "floor",
    overflow: str | None = None,
    nonfinite: str | None = None,
    zero_block: str | None = None,
    key: Array | None = None,
) -> NarrowArray:
    """Turn an array of JAX into packed codes and scales; under jit, vmap and sharding as well.

    The bytes are those of :func:`fewbits.quantize`, bit for bit. Those of stochastic rounding are not: JAX's
    own generator draws 32 bits for each value. Neighbours are the same, and probabilities are those of
    ``random_bits=32``, where the default of :func:`fewbits.quantize` is 16; those of posits and lists have 24
    bits. Which values go up is not the same.

    No gradient passes, as through any integers: what depends on x by its codes alone has the gradient zero.
    :func:`fewbits.jax.fake_quantize` passes it.

    Args:
        x: float32, bfloat16 or float16, of any shape.
        format: a format, or its text.
        axis: the axis along which blocks lie; the last block may be partial.
        rounding: ``nearest_even``, ``nearest_away``, ``toward_zero``, ``up``, ``down`` or ``stochastic``.
        scale_rule: how a power-of-two scale is chosen, as for :func:`fewbits.quantize`; none from a mean.
        overflow: what an element above the largest value becomes: ``saturate``, ``inf`` or ``nan``.
        nonfinite: what NaN and infinity become: ``block_nan``, ``element``, ``saturate`` or ``raise``.
            ``raise`` needs values, and so no jit, vmap or grad around it.
        zero_block: the scale of a block of zeros, ``smallest`` or ``one``.
        key: of ``jax.random``, for stochastic rounding.

    Raises:
        FormatError: no such format.
        ArgumentError: an option is unknown or not possible in the format or under a transformation, the axis
            is out of range, or a key is missing or not used.
        DTypeError: x has another dtype.
        DataError: x holds NaN or infinity and ``nonfinite`` is ``raise``.
    """
    choices = Choices(rounding, scale_rule, overflow, nonfinite, zero_block)
    array, target, options, front = _checked(x, format, axis, choices, key)
    packed: NarrowArray = _quantized(array, _drawn(key, array), target, options, front)
    return packed


def fake_quantize(
    x: ArrayLike,
    format: str | Format,
    *,
    axis: int = -1,
    rounding: str = "nearest_even",
    scale_rule: str = "floor",
    overflow: str | None = None,
    nonfinite: str | None = None,
    zero_block: str | None = None,
    key: Array | None = None,
) -> Array:
    """Round an array to a format, in its own dtype: the values of ``quantize(x, ...).dequantize()``.

    Gradients pass straight through, forward and backward. Arguments and errors are those of
    :func:`fewbits.jax.quantize`.
    """
    choices = Choices(rounding, scale_rule, overflow, nonfinite, zero_block)
    array, target, options, front = _checked(x, format, axis, choices, key)
    draws = _drawn(key, array)
    rounded: Array = _fake_quantized(alike(array, draws), draws, target, options, front)
    return rounded


def _checked(
    x: ArrayLike, format: str | Format, axis: int, choices: Choices, key: Array | None
) -> tuple[Array, Format, Options, int]:
    """Return the array, the format, all options, and the axis as a negative number."""
    array, target = _array(x), parse(format)
    options = decide(target, choices)
    if options.scale_rule in MEAN_RULES:
        raise ArgumentError(
            f"scale_rule={options.scale_rule!r}, which fewbits.jax does not do: round with fewbits.quantize,"
            " or leave it out"
        )
    front = checked_axis(axis, array.ndim)
    if not takes_key(key, options.rounding == "stochastic"):
        raise ArgumentError(
            f"key={shown_key(key)} with rounding={options.rounding!r}; stochastic rounding takes a key of"
            " jax.random, and no other one does"
        )
    _check_exact(target)
    if options.nonfinite == "raise":
        _refuse_nonfinite(x, target)
    return array, target, options, front - max(array.ndim, 1)


def _array(x: ArrayLike) -> Array:
    """Return ``x`` as an array of JAX, which knows one byte order and makes float64 float32 in silence."""
    try:
        given = native(x) if isinstance(x, np.ndarray | np.generic) else jnp.asarray(x)
        if given.dtype in DTYPES:
            return jnp.asarray(given)
    except (TypeError, ValueError) as error:
        raise DTypeError(f"{type(x).__name__}; expected an array of float32, bfloat16 or float16") from error
    raise DTypeError(f"an array of {given.dtype}; expected float32, bfloat16 or float16: convert it first")


def native(x: np.ndarray | np.generic) -> np.ndarray | np.generic:
    """Return ``x`` in the byte order of the machine."""
    return x if x.dtype.isnative else x.astype(x.dtype.newbyteorder("="))


def takes_key(key: object, stochastic: bool) -> bool:
    """Return whether ``key`` is one key of ``jax.random`` where there are draws, and None elsewhere."""
    return _is_key(key) if stochastic else key is None


def shown_key(key: object) -> str:
    """Return ``key`` as a message shows it, without its bits."""
    if _is_key(key):
        return "..."
    return f"an array of {key.dtype}{list(key.shape)}" if isinstance(key, Array) else f"{key!r:.60}"


def _is_key(key: object) -> bool:
    try:
        return bool(jax.random.key_data(key).ndim == 1)  # type: ignore[arg-type]  # of others it raises
    except TypeError:
        return False


def _check_exact(format: Format) -> None:
    """Raise ArgumentError for a format whose values 32-bit integers do not give exactly."""
    element, (_, scales, _, outer) = format.element, format.groups
    if isinstance(element, Lookup) and any(0 < abs(v) < 2.0**-126 for v in element.values):
        raise ArgumentError(
            f"{format} has values below 2^-126, which XLA reads as zero: take fewbits.quantize"
        )
    if scales is None:
        return
    if isinstance(element, Lookup) and any(float(np.float32(v)) != v for v in element.values):
        raise ArgumentError(
            f"{format} has values that float32 does not hold, under a scale; round them to float32, or take"
            " fewbits.quantize"
        )
    if outer is not None and significand_bits(element) + significand_bits(scales.element) > 24:
        raise ArgumentError(
            f"{format} multiplies elements of {significand_bits(element)} significant bits by scales of"
            f" {significand_bits(scales.element)}; together they may have 24 in fewbits.jax: take"
            " fewbits.quantize"
        )


def _refuse_nonfinite(x: ArrayLike, format: Format) -> None:
    if isinstance(x, jax.core.Tracer):
        raise ArgumentError(
            f"nonfinite='raise', which {format} takes by default, under jit, vmap or grad, where no value is"
            " known; pass nonfinite='saturate', or another choice of the format"
        )
    finite = np.isfinite(np.asarray(x, np.float32))  # by NumPy: under jit JAX would trace a constant too
    if not finite.all():
        raise DataError(
            f"the array holds {int((~finite).sum())} NaN and infinities, and nonfinite='raise' refuses them"
            f" for {format}; clean the data, or pass nonfinite='saturate'"
        )


def _drawn(key: Array | None, x: Array) -> Array | None:
    return None if key is None else jax.random.bits(key, x.shape, jnp.uint32)


def _lines(x: Array, axis: int) -> Array:
    """Return the array with the block axis last; a scalar is a line of one value."""
    return jnp.moveaxis(x, axis, -1) if x.ndim else x.reshape(1)


@partial(jax.jit, static_argnums=(2, 3, 4))  # traced once for what is packed and what is rounded
def _parts(
    x: Array, draws: Array | None, format: Format, options: Options, axis: int
) -> tuple[Array, Scales]:
    numbers = from_floats(_lines(x, axis))
    if options.nonfinite == "saturate":
        numbers = _saturated(numbers, x.dtype)
    scales, values = scaled(numbers, format, options)
    drawn = None if draws is None else _lines(draws, axis)
    codes = encode(format.element, values, options.rounding, options.overflow, drawn)
    group = format.groups.scales
    if group is not None and scales.codes is not None and group.element.has_nan:
        lost = spread(jnp.equal(scales.codes, group.element.nan_code or 0), group.size, codes.shape[-1])
        codes = jnp.where(lost, np.uint32(0), codes)
    return codes, scales


def _saturated(x: Numbers, dtype: np.dtype[np.generic]) -> Numbers:
    """Return the largest value of the dtype for infinity, and zero for NaN."""
    top = constant(largest_finite(dtype), x.exponent)
    return Numbers(
        x.negative & ~x.is_nan,
        jnp.where(x.is_inf, top.significand, x.significand),
        jnp.where(x.is_inf, top.exponent, x.exponent),
        jnp.zeros_like(x.is_nan),
        jnp.zeros_like(x.is_inf),
    )


@partial(jax.jit, static_argnums=(2, 3, 4))
def _quantized(x: Array, draws: Array | None, format: Format, options: Options, axis: int) -> NarrowArray:
    codes, scales = _parts(x, draws, format, options, axis)
    of_codes, of_scales, of_shifts, _ = format.groups
    return NarrowArray(
        pack(codes, of_codes.bits),
        None if scales.codes is None or of_scales is None else pack(scales.codes, of_scales.bits),
        None if scales.shifts is None or of_shifts is None else pack(scales.shifts, of_shifts.bits),
        scales.outer,
        format,
        x.shape[axis] if x.ndim else None,
        axis,
        x.dtype,
    )


@partial(jax.custom_jvp, nondiff_argnums=(2, 3, 4))
@partial(jax.jit, static_argnums=(2, 3, 4))
def _fake_quantized(x: Array, draws: Array | None, format: Format, options: Options, axis: int) -> Array:
    codes, scales = _parts(x, draws, format, options, axis)
    values = to_floats(multiplied(decode(format.element, codes), scales, format), x.dtype)
    return jnp.moveaxis(values, -1, axis) if x.ndim else values.reshape(())


@_fake_quantized.defjvp
def _straight_through(
    format: Format,
    options: Options,
    axis: int,
    primals: tuple[Array, Array | None],
    tangents: tuple[Array, Array | None],
) -> tuple[Array, Array]:
    return _fake_quantized(*primals, format, options, axis), tangents[0]
