"""What the definition says of an array, and how the kernels are held to it, byte for byte."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fewbits.errors import ArgumentError
from fewbits.formats import Format
from fewbits.kernels import native, reference
from fewbits.kernels.bits.layout import Packed, empty, packed
from fewbits.kernels.bits.options import Options, options
from fewbits.kernels.bits.reals import BFLOAT16, rounded_to_dtype, widened, without_infinity
from tests.native.inputs import finite

Array = NDArray[Any]

# The instruction sets with conversions of their own: VNNI and tiles change products alone.
CONVERTING = tuple(isa for isa in native.available_isas() if not isa.endswith("_vnni") and isa != "amx")


class Defined(NamedTuple):
    """The definition's results for one array."""

    values: Array  # of the input's type and shape
    parts: Packed


def defined(x: Array, fmt: Format, axis: int, chosen: Options, amax: float | None = None) -> Defined:
    """Return what the definition makes of ``x``; stochastic draws follow the C order of x."""
    wide = without_infinity(x) if chosen.nonfinite == "saturate" else widened(x)
    places = np.arange(x.size).reshape(x.shape)
    lines = np.ascontiguousarray(np.moveaxis(wide, axis, -1) if x.ndim else wide.reshape(1))
    positions = np.moveaxis(places, axis, -1) if x.ndim else places.reshape(1)
    with np.errstate(all="ignore"):
        parts = reference.quantize(lines, fmt, chosen, amax, positions)
        values = reference.dequantize(parts, fmt, np.float32)
    values = np.moveaxis(values, -1, axis) if x.ndim else values.reshape(())
    return Defined(
        np.ascontiguousarray(rounded_to_dtype(values, x.dtype)).reshape(x.shape), packed(parts, fmt)
    )


def bits(values: Array) -> NDArray[np.unsignedinteger]:
    """Return bit patterns, so that zeros differ by sign; every NaN is the same."""
    if values.dtype == BFLOAT16:
        return np.where((values & 0x7FFF) > 0x7F80, np.uint16(0x7FC0), values)
    one = np.ascontiguousarray(values)
    raw: NDArray[np.unsignedinteger] = one.view(np.uint32 if one.dtype == np.float32 else np.uint16)
    return np.where(np.isnan(one), raw.dtype.type(-1 & np.iinfo(raw.dtype).max), raw)


def difference(x: Array | None, found: Array, expected: Array, what: str) -> str | None:
    """Return a sentence about the first place where two arrays differ in a bit, None where there is none."""
    if (found.shape, found.dtype) != (expected.shape, expected.dtype):
        return f"{what}: {found.dtype}{found.shape}, the definition says {expected.dtype}{expected.shape}"
    ours, theirs = bits_of_part(found), bits_of_part(expected)
    if np.array_equal(ours, theirs):
        return None
    wrong = np.flatnonzero(ours != theirs)
    i = wrong[0]
    became = f"became {found.flat[i]!r}, the definition says {expected.flat[i]!r}"
    given = "" if x is None else f" ({float(widened(x).flat[i]).hex()})"
    return f"{what}: {wrong.size} of {found.size} differ, first at {i}{given} {became}"


def bits_of_part(part: Array) -> Array:
    """Return a part as it is compared: bytes as they are, numbers by their bits."""
    return part if part.dtype == np.uint8 else bits(part)


def differences(
    x: Array,
    fmt: Format,
    axis: int,
    chosen: Options,
    amax: float | None = None,
    *,
    expected: Defined | None = None,
    threads: tuple[int, ...] = (1,),
) -> list[str]:
    """Return all that the kernels of any instruction set do to ``x`` unlike the definition, as sentences."""
    wanted = defined(x, fmt, axis, chosen, amax) if expected is None else expected
    bad = chosen.nonfinite != "saturate" and not np.isfinite(widened(x)).all()
    found: list[str | None] = []
    for isa in CONVERTING:
        native.force_isa(isa)
        for count in threads:
            where = f"{isa}, {count} threads"
            out = np.full(x.shape, 77, x.dtype)
            ran, nonfinite = native.fake_quantize(x, out, fmt, axis, chosen, amax, threads=count)
            parts = empty(fmt, x.shape, axis)
            also = native.quantize(x, parts, fmt, axis, chosen, amax, threads=count)
            back = np.full(x.shape, 77, x.dtype)
            native.dequantize(wanted.parts, back, fmt, axis, threads=count)
            found.append(None if ran == isa else f"{where}: {ran} ran")
            found.append(None if nonfinite == also == bad else f"{where}: nonfinite {nonfinite}, {also}")
            found.append(difference(x, out, wanted.values, f"{where}: values"))
            found.append(difference(x, back, wanted.values, f"{where}: values of codes"))
            found += (
                difference(None, mine, theirs, f"{where}: {name}")
                for name, mine, theirs in zip(Packed._fields, parts, wanted.parts, strict=True)
                if theirs is not None
            )
    return [sentence for sentence in found if sentence is not None]


def possible(fmt: Format, **choice: Any) -> Options | None:
    """Return the options, or None where the format cannot do it."""
    try:
        return options(fmt, seed=11, **choice)
    except ArgumentError:
        return None


def suited(x: Array, chosen: Options) -> Array:
    """Return ``x``, finite where the options refuse what is not."""
    return finite(x) if chosen.nonfinite == "raise" else x
