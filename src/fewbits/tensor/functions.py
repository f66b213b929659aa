"""quantize, dequantize and fake_quantize for torch tensors and NumPy arrays."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from fewbits.errors import ArgumentError, DTypeError
from fewbits.formats import Format
from fewbits.graphs import constant_in_graphs
from fewbits.kernels.arrays import conversions
from fewbits.kernels.bits.axes import checked_axis
from fewbits.kernels.bits.options import Choices, decide
from fewbits.tensor import inputs
from fewbits.tensor.arrays import (
    changing,
    check_like,
    checked_out,
    is_narrow,
    is_torch,
    opened,
    overwrite,
    refuse_gradient,
    seed_of,
)
from fewbits.tensor.inputs import check_values, checked_amax
from fewbits.typing import AnyArray, Array, Generator, Scalar

if TYPE_CHECKING:
    from fewbits.formats.pattern import Pattern
    from fewbits.tensor.narrow import NarrowTensor


def quantize(
    x: AnyArray,
    format: str | Format,
    *,
    axis: int = -1,
    rounding: str = "nearest_even",
    scale_rule: str = "floor",
    overflow: str | None = None,
    nonfinite: str | None = None,
    zero_block: str | None = None,
    generator: Generator | None = None,
    random_bits: int = 16,
    amax: Scalar | None = None,
    out: NarrowTensor | None = None,
    sparsity: str | Pattern | None = None,
) -> NarrowTensor:
    """Turn an array into packed codes and scales.

    Args:
        x: numpy.ndarray or torch.Tensor of any shape; float16, bfloat16, float32 or float64.
        format: a format, or its text.
        axis: the axis along which blocks lie; the last block may be partial.
        rounding: ``nearest_even``, ``nearest_away``, ``toward_zero``, ``up``, ``down`` or ``stochastic``.
        scale_rule: how a power-of-two scale is chosen: ``floor`` (OCP MX v1.0, section 6.3), ``ceil``,
            ``rceil``, ``even``, ``1.75``, ``midmax``, ``oas`` or ``double_floor``. Or how a float32 scale of
            ternary values is: ``absmean``, which is for binary values too, or ``twn``; docs/rules.md.
        overflow: what an element above the largest value becomes: ``saturate``, ``inf`` or ``nan``. Default:
            infinity for a scalar format that has one, else saturate.
        nonfinite: what NaN and infinity in x become. ``block_nan``: the whole block becomes NaN (the default
            if the scale can be NaN). ``element``: the element's own NaN and infinity (the default for scalar
            formats with NaN). ``saturate``: infinity is read as the largest value of x's dtype and NaN as
            zero. ``raise``: a DataError (the default if neither scale nor element can be NaN).
        zero_block: the scale of a block of zeros, ``smallest`` or ``one``.
        generator: for stochastic rounding: a seed, which is an integer from 0 to 2^63 - 1, a
            numpy.random.Generator or a torch.Generator, which advances by one draw once the arguments are
            checked; a DataError comes after that.
        random_bits: for stochastic rounding: 16 or 32 random bits for each value, which goes up with the
            probability of its dropped fraction, cut to so many bits.
        amax: the largest magnitude of the whole tensor if x is only a part of it; a number or a scalar array
            or tensor, which x's dtype holds. Only for a format with a scale per tensor.
        out: a NarrowTensor from an earlier call with the same format, axis, shape and dtype, on the CPU; it
            is overwritten with the result, and nothing is allocated. Undefined after a DataError.
        sparsity: a pattern such as ``2:4`` that x already follows along the axis; only the values that it
            keeps are stored. ``fewbits.sparsity`` prunes an array to a pattern.

    Returns:
        A NarrowTensor of x's shape, dtype and device.

    Raises:
        FormatError: no such format.
        ArgumentError: the axis is out of range, an option is unknown or not possible in the format, or
            ``out`` does not fit.
        DTypeError: x is not a dense array or tensor of one of those dtypes.
        DataError: x holds NaN or infinity and ``nonfinite`` is ``raise``.

    >>> import numpy as np
    >>> quantize(np.ones((2, 32), np.float32), "mxfp4")
    NarrowTensor(mxfp4, shape=(2, 32), axis=1, 34 bytes)
    """
    from fewbits.tensor.narrow import packing  # needs torch

    choices = Choices(rounding, scale_rule, overflow, nonfinite, zero_block, random_bits)
    if amax is None and sparsity is None:
        found = packing.quantized_at_once(
            x, format, axis, choices, partial(seed_of, generator, rounding), out
        )
        if found is not None:
            return found
    target = inputs.format(format)
    check_values(x)
    whole, front = checked_amax(amax, target, x), checked_axis(axis, getattr(x, "ndim", 0))
    if sparsity is not None:
        if out is not None:
            raise ArgumentError(
                f"out with sparsity={sparsity}; a sparse result is a new tensor: leave one of them out"
            )
        packing.check_sparsity(sparsity, target, x, front)
    if out is None and is_torch(x):
        packing.refuse_sharded(x)
        seed = _drawn(generator, rounding, format, choices)
        q = packing.quantized(x, target, front, choices, seed, whole)
        return q if sparsity is None else q.compressed(sparsity)
    if is_torch(x) and not x.is_cpu:
        packing.check_out(out, x, target, front)
        seed = _drawn(generator, rounding, format, choices)
        packing.overwrite(out, packing.quantized(x, target, front, choices, seed, whole))  # type: ignore[arg-type]  # checked
        return out  # type: ignore[return-value]  # checked
    array, close = opened(x)
    if out is not None:
        packing.check_out(out, x if hasattr(x, "dtype") else array, target, front)
        options = decide(target, choices, _drawn(generator, rounding, format, choices))
        with changing(out):
            conversions.quantize(array, target, front, options, whole, out=packing.arrays(out))
        return out
    options = decide(target, choices, _drawn(generator, rounding, format, choices))
    q = packing.empty(target, array.shape, front, close(np.empty(0, array.dtype)).dtype)
    conversions.quantize(array, target, front, options, whole, out=packing.arrays(q))
    return q if sparsity is None else q.compressed(sparsity)


def dequantize(q: NarrowTensor, *, out: AnyArray | None = None) -> AnyArray:
    """Return the values of a NarrowTensor, as an array or tensor of the dtype that was quantized.

    Args:
        q: any shape.
        out: an array or tensor like the result, with its dtype and shape, in C order, on the CPU; it is
            overwritten with the values and returned, and nothing is allocated.

    Raises:
        DTypeError: q is not a NarrowTensor.
        ArgumentError: out does not fit.
    """
    if is_torch(q) and not is_narrow(q):
        from fewbits.tensor.narrow.tensor import unwrapped  # needs torch

        q = unwrapped(q)
    if not is_narrow(q):
        raise DTypeError(f"{type(q).__name__}; expected the NarrowTensor that fewbits.quantize returns")
    if out is None:
        values: AnyArray = q.dequantize()
        return values
    from fewbits.tensor.narrow import packing  # needs torch

    if not q.is_cpu:
        check_like(out, packing.values_like(q))
        refuse_gradient(out)
        there: AnyArray = overwrite(out, q.dense())
        return there
    if packing.dequantized_at_once(q, out):
        return out
    parts = packing.arrays(q.with_all_codes())
    place = checked_out(out, packing.values_like(q), *(part for part in parts if part is not None))
    refuse_gradient(out)
    with changing(out):
        conversions.dequantize(parts, q.format, tuple(q.shape), q.axis, place.dtype, out=place)
    return out


def fake_quantize(
    x: Array,
    format: str | Format,
    *,
    axis: int = -1,
    rounding: str = "nearest_even",
    scale_rule: str = "floor",
    overflow: str | None = None,
    nonfinite: str | None = None,
    zero_block: str | None = None,
    generator: Generator | None = None,
    random_bits: int = 16,
    amax: Scalar | None = None,
    out: Array | None = None,
) -> Array:
    """Round an array to a format, in its own dtype: the values of ``quantize(x, ...).dequantize()``.

    Gradients of a torch.Tensor pass straight through, in every mode of differentiation. Arguments and errors
    are those of :func:`quantize`, except ``out``: an array or tensor like x, with its dtype, device and
    shape, in C order, that does not overlap x. It is overwritten with the result, and nothing is allocated.
    As in torch, ``out`` raises an ArgumentError if autograd is recording and x or out requires a gradient.

    >>> import numpy as np
    >>> fake_quantize(np.array([0.3, 5.0, -7.0]), "fp4_e2m1")
    array([ 0.5,  4. , -6. ])
    """
    choices = Choices(rounding, scale_rule, overflow, nonfinite, zero_block, random_bits)
    if amax is None:
        found = _fake_quantized_at_once(x, format, axis, choices, partial(seed_of, generator, rounding), out)
        if found is not None:
            return found  # type: ignore[no-any-return]  # of x's family
    check_values(x)
    whole, front = checked_amax(amax, format, x), checked_axis(axis, getattr(x, "ndim", 0))
    if out is None and is_torch(x):
        from fewbits.kernels import ops  # needs torch

        seed = _drawn(generator, rounding, format, choices)
        return ops.fake_quantize(x, format, front, choices, seed, whole)  # type: ignore[return-value]  # Array is a tensor here
    target = inputs.format(format)
    if is_torch(x) and not x.is_cpu:
        from fewbits.kernels import ops  # needs torch

        check_like(out, x)
        refuse_gradient(x, out)
        y = ops.fake_quantize(x, target, front, choices, _drawn(generator, rounding, format, choices), whole)
        there: Array = overwrite(out, y)
        return there
    array, close = opened(x)
    if out is None:
        options = decide(target, choices, _drawn(generator, rounding, format, choices))
        rounded: Array = close(conversions.fake_quantize(array, target, front, options, whole))
        return rounded
    place = checked_out(out, x if hasattr(x, "dtype") else array, array)
    refuse_gradient(x, out)
    options = decide(target, choices, _drawn(generator, rounding, format, choices))
    with changing(out):
        conversions.fake_quantize(array, target, front, options, whole, out=place)
    return out


def _drawn(generator: Any, rounding: str, format: str | Format, choices: Choices) -> int:
    """Return the seed of a call whose other arguments were checked: a generator moves on for no wrong one."""
    if rounding == "stochastic":
        _check(format, *choices)
    return seed_of(generator, rounding)


@constant_in_graphs
def _check(format: str | Format, *choices: Any) -> bool:
    """Raise what :func:`decide` does."""
    return bool(decide(inputs.format(format), Choices(*choices)))


def _fake_quantized_at_once(
    x: Any, format: str | Format, axis: int, choices: Choices, seed: Callable[[], int], out: Any
) -> Any:
    """Return ``x`` rounded by what an earlier call like this one found out; None where that is not enough.

    ``out`` is overwritten with the result if it is not None.
    """
    if is_torch(x):
        from fewbits.kernels.ops import at_once  # needs torch

        return at_once.fake_quantize(x, format, axis, choices, seed, out)
    if not isinstance(x, np.ndarray):
        return None
    torch = sys.modules.get("torch")
    if torch is not None and torch.compiler.is_compiling():  # which takes arrays for tensors
        return None
    return conversions.fake_quantize_at_once(x, format, axis, choices, seed, out)
