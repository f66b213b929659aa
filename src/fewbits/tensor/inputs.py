"""Checks of arguments: formats, arrays of values to round, largest magnitudes, and counts."""

from __future__ import annotations

import sys
from numbers import Integral
from typing import Any

import numpy as np

from fewbits.errors import ArgumentError, DTypeError
from fewbits.formats import Format, parse, shares_scale
from fewbits.graphs import constant_in_graphs
from fewbits.kernels.bits.reals import BFLOAT16, largest_finite

_NAMES = ("float16", "bfloat16", "float32", "float64")
_EXPECTED = "float16, bfloat16, float32 or float64"
_SMALLEST = 2.0**-149  # of float32 above zero


def format(text: str | Format) -> Format:
    """Return the format of a catalogue name or of a text in the grammar.

    Raises:
        FormatError: there is no such format; the message marks the position or suggests formats.

    >>> format("block(element=float(e=2,m=1),scale=e8m0,size=32)") == format("mxfp4")
    True
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.compiler.is_compiling():
        _remember(text)
    return parse(text)


@constant_in_graphs
def _remember(text: str | Format) -> bool:
    """Have a format find out what it remembers: a graph that saw it write would take no second format."""
    found = parse(text)
    return bool(found.groups) and bool(found.grammar)


@constant_in_graphs
def format_text(text: str | Format) -> str:
    """Return the grammar of :func:`format`, which a graph can hold."""
    grammar: str = parse(text).grammar
    return grammar


def check_values(x: Any) -> None:
    """Raise DTypeError unless ``x`` is a float, numpy.ndarray or torch.Tensor whose values can be rounded.

    Raises:
        DTypeError: x is something else, not dense, or holds complex numbers, integers, or values of a narrow
            dtype.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        _check_tensor(x)
    elif not isinstance(x, np.ndarray | np.floating | np.complexfloating | float):
        raise DTypeError(
            f"{type(x).__name__}; expected a numpy.ndarray or a torch.Tensor of floating-point numbers"
        )
    else:
        _check_array(x)


def _check_tensor(x: Any) -> None:
    import torch

    home = sys.modules.get("fewbits.tensor.narrow.tensor")
    if home is not None and isinstance(x, home.NarrowTensor):
        raise DTypeError(f"{x}; expected the values themselves: call .dequantize() first")
    # Dynamo cannot trace .layout in a backward pass, but it never traces non-strided tensors either.
    plain = torch.compiler.is_compiling() or (not x.is_nested and x.layout == torch.strided)
    if not (plain and x.dtype in (torch.float32, torch.bfloat16, torch.float16, torch.float64)):
        raise DTypeError(_unlike_values(x))


def _unlike_values(x: Any) -> str:
    """Return the reason why a tensor cannot be rounded, and what to pass instead."""
    if x.is_nested:
        return "a nested tensor; expected one of a single shape: give each of x.unbind(), or a padded tensor"
    layout = str(x.layout).removeprefix("torch.")
    if layout != "strided":
        return f"a tensor of layout {layout.lstrip('_')}; expected a dense one: give x.to_dense()"
    if x.is_quantized:
        return f"a tensor of {x.dtype}, which PyTorch quantized; expected its values: give x.dequantize()"
    if x.is_complex():
        return _complex(f"a tensor of {x.dtype}", "torch.view_as_real(x)")
    if not x.is_floating_point():
        return f"a tensor of {x.dtype}; expected floating point: convert it with x.float()"
    return (
        f"a tensor of {x.dtype}; expected {_EXPECTED}: a value that was narrowed already would be rounded"
        " twice. Convert it with x.float() if that is meant, or keep its codes with fewbits.tensor.from_torch"
    )


def _check_array(x: Any) -> None:
    if isinstance(x, np.ma.MaskedArray):
        raise DTypeError(
            "a masked array, whose mask would be lost; expected plain values: give x.filled(0), or x.data if "
            "what is masked counts"
        )
    dtype = np.asarray(x).dtype
    if dtype.kind == "c":
        raise DTypeError(_complex(f"an array of {dtype}", "x.view(x.real.dtype)"))
    if dtype.name not in _NAMES:
        narrow = dtype.name.startswith(("float8", "float6", "float4"))
        twice = ", as a value that was narrowed already would be rounded twice" if narrow else ""
        raise DTypeError(
            f"an array of {dtype}; expected {_EXPECTED}{twice}: convert it with x.astype('float32')"
        )


def _complex(what: str, both: str) -> str:
    return f"{what}; expected real numbers: give x.real and x.imag one by one, or {both} for both at once"


def checked_amax(amax: Any, format: str | Format, x: Any) -> float | None:
    """Return ``amax``, of values like ``x``, as a float, or None; one above zero stays so in float32.

    Raises:
        ArgumentError: amax is negative or not finite, no value of x's dtype is as large, or the format has no
            scale per tensor.
    """
    if amax is None:
        return None
    value = amax
    # torch.compile cannot ask a number of changing size what it has.
    if not isinstance(amax, int | float) and hasattr(amax, "item") and getattr(amax, "ndim", 1) == 0:
        value = amax.item()
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= sys.float_info.max:
        raise ArgumentError(f"amax={amax!r} is not a finite number from 0 up; leave it out to measure x")
    if not _scales_whole(format):
        raise ArgumentError(
            f"amax={amax!r} for {format}; only a scale of a whole tensor is chosen from it: leave it out"
        )
    own = _dtype(x)
    largest = _largest(own)
    if value > largest:
        raise ArgumentError(
            f"amax={amax!r} is above {largest:.9g}, the largest {own}, which x holds: give the largest"
            " magnitude of the whole tensor, whose dtype is that of x, or leave it out"
        )
    return max(float(value), _SMALLEST) if value else 0.0


@constant_in_graphs
def _scales_whole(format: str | Format) -> bool:
    return shares_scale(parse(format), "tensor")


@constant_in_graphs
def _largest(dtype: str) -> float:
    return largest_finite(BFLOAT16 if dtype == "bfloat16" else np.dtype(dtype))


def _dtype(x: Any) -> str:
    """Return the name of the dtype of what :func:`check_values` takes."""
    dtype = getattr(x, "dtype", "float64")
    return str(getattr(dtype, "name", dtype)).removeprefix("torch.")


def is_count(value: object, least: int = 1) -> bool:
    """Return whether this is a whole number from ``least`` up, of Python or NumPy, and no truth value."""
    return type(value) is not bool and isinstance(value, Integral) and int(value) >= least
