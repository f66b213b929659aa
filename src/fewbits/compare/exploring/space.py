"""The design space: Block Data Representations, and blocks of every element under every kind of scale."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from fewbits.errors import FormatError
from fewbits.formats import (
    CATALOGUE,
    Bdr,
    Block,
    Element,
    Exponent,
    Fixed,
    Float,
    Format,
    Lookup,
    Posit,
    shares_scale,
)

# Named in every report, beside those that the user names.
NAMED = ("mx9", "mx6", "mx4", "mxfp8_e4m3", "mxfp6_e2m3", "mxfp4", "mxint8", "nvfp4")
FAMILIES = ("bdr", "float", "int", "posit", "lookup")
SCALES = ("power of two", "float", "integer", "none")
SIZES = (8, 16, 32, 64, 128)  # values that share a scale

_WIDEST = 16  # bits of a catalogued element that belongs to the space
_M = range(1, 10)
_D1 = 4, 6, 8
_D2_K2 = tuple(product((1, 2, 3), (1, 2, 4, 8, 16)))

_FP32 = Float(8, 23, 127, "ieee")
_E4M3 = Float(4, 3, 7, "fn")
_E5M2 = Float(5, 2, 15, "ieee")
_FP16 = Float(5, 10, 15, "ieee")
# A scale, and the outer scale over it.
BLOCK_SCALES: tuple[tuple[Element, Element | None], ...] = (
    (Exponent(8), None),
    (_E4M3, _FP32),
    (_E5M2, None),
    (_FP16, None),
    (_FP32, None),
)
# NormalFloat (Dettmers et al., QLoRA, NeurIPS 2023, appendix E): the largest probability that has a value.
_NORMAL_OFFSET = 0.9677083
_STEPS = 1 << 10  # of a table's values in the unit interval: short to write, eleven bits to multiply


def design_space() -> tuple[Format, ...]:
    """Return every format of the space once, from few bits per value to many.

    * BDR: m of 1 to 9, d1 of 4, 6 and 8, k1 of 8 to 128, d2 of 0 to 3, k2 of 1 to 16 and below k1;
    * blocks of 8 to 128 elements: floats of 3 to 8 bits, integers of 2 to 9, posits of 3 to 8, and tables of
      normal quantiles of 2 to 6; under powers of two, E4M3 with an outer FP32, E5M2, FP16 and FP32;
    * integers under integer scales with an outer FP32 (VSQ);
    * the catalogue, scalars without scales among it, up to 16 bits, but for scales per channel: vectors have
      a length of their own here, and a channel is as long as its tensor.
    """
    formats = dict.fromkeys([*_bdr(), *_blocks(), *_vsq(), *_catalogued()])
    return tuple(sorted(formats, key=lambda f: (f.bits_per_value, str(f))))


def family_of(format: Format) -> str:
    """Return what kind of element a format has; one of FAMILIES."""
    if isinstance(format, Bdr):
        return "bdr"
    return {Float: "float", Fixed: "int", Posit: "posit", Lookup: "lookup"}[type(format.element)]


def scale_of(format: Format) -> str:
    """Return what kind of scale the values of a format share; one of SCALES."""
    scales = format.groups.scales
    if scales is None:
        return "none"
    if scales.power_of_two:
        return "power of two"
    return "integer" if isinstance(scales.element, Fixed) else "float"


def is_explorable(format: Format) -> bool:
    """Return whether a format holds real numbers of both signs: scales on their own do not."""
    element = format.element
    return not element.power_of_two and element.min < 0


def _bdr() -> Iterator[Bdr]:
    for m, d1, k1 in product(_M, _D1, SIZES):
        yield Bdr(m, d1, k1, d2=0)
        # A shift for the whole block would always be zero.
        yield from (Bdr(m, d1, k1, d2, k2) for d2, k2 in _D2_K2 if k2 < k1)


def _elements() -> Iterator[Element]:
    yield from (Float(e, m) for e in (2, 3, 4, 5) for m in range(6) if 3 <= 1 + e + m <= 8)
    yield from (Fixed(bits, 0, "symmetric") for bits in range(2, 10))
    yield from (Posit(bits, es) for bits in range(3, 9) for es in (0, 1, 2))
    yield from (normal_table(bits) for bits in range(2, 7))


def _blocks() -> Iterator[Block]:
    for element, (scale, outer), size in product(_elements(), BLOCK_SCALES, SIZES):
        try:
            yield Block(element, scale, size, outer)
        except FormatError:  # elements and scales so large that no outer scale has room above them
            continue


def _vsq() -> Iterator[Block]:
    for bits, scale, size in product(range(3, 9), (4, 6, 8), (16, 32, 64)):
        yield Block(Fixed(bits, 0, "symmetric"), Fixed(scale, 0, "unsigned"), size, _FP32)


def _catalogued() -> Iterator[Format]:
    of_catalogue = (entry.format for entry in CATALOGUE.values())
    yield from (
        f
        for f in of_catalogue
        if f.element.bits <= _WIDEST and is_explorable(f) and not shares_scale(f, "channel")
    )


def normal_table(bits: int) -> Lookup:
    """Return the table of 2^bits values that are equally likely in a normal distribution, the largest 1.

    As NormalFloat has them: zero, one positive value more than negative ones; rounded to multiples of 2^-10.
    """
    from statistics import NormalDist

    def quantiles(count: int) -> list[float]:
        step = (_NORMAL_OFFSET - 0.5) / count
        return [NormalDist().inv_cdf(_NORMAL_OFFSET - i * step) for i in range(count)]

    half = 2 ** (bits - 1)
    positive, negative = quantiles(half), quantiles(half - 1)
    values = [-v for v in negative] + [0.0] + positive[::-1]
    return Lookup(tuple(on_steps(v / positive[0]) for v in values))


def on_steps(value: float) -> float:
    """Return the nearest value that a table is written with, a multiple of 2^-10."""
    return round(value * _STEPS) / _STEPS
