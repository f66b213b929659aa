"""Hypothesis strategies for formats: whatever the constructors accept."""

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from fewbits.errors import FormatError
from fewbits.formats import Bdr, Block, Element, Exponent, Fixed, Float, Format, Lookup, Posit

FP32 = Float(8, 23, 127, "ieee")
_SINGLES = st.floats(-(2.0**100), 2.0**100, width=32, allow_subnormal=False)


def _legal(make: Callable[..., Format], *arguments: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return the formats that ``make`` accepts among those arguments."""

    def made(*given: Any) -> Format | None:
        try:
            return make(*given)
        except FormatError:
            return None

    return st.builds(made, *arguments).filter(lambda fmt: fmt is not None)


def _float(e: int, m: int, shift: int, special: str) -> Float:
    return Float(e, m, 2 ** (e - 1) - 1 + shift, special)


floats = _legal(
    _float,
    st.integers(1, 8),
    st.integers(0, 23),
    st.sampled_from((0, 0, 0, 1, -1, 8, -40)),
    st.sampled_from(("none", "fn", "fnuz", "ieee")),
)
fixed = _legal(
    Fixed,
    st.integers(1, 24),
    st.integers(-64, 64),
    st.sampled_from(("twos_complement", "symmetric", "sign_magnitude", "unsigned")),
)
posits = st.builds(Posit, st.integers(3, 16), st.integers(0, 3))
lookups = _legal(Lookup, st.lists(_SINGLES, min_size=2, max_size=9, unique=True).map(tuple))
exponents = _legal(Exponent, st.integers(2, 8), st.integers(0, 127))
numbers: st.SearchStrategy[Element] = floats | fixed | posits | lookups
elements: st.SearchStrategy[Element] = numbers | exponents

_sizes = st.integers(1, 70)
_one_scale = _legal(Block, numbers, exponents | floats, _sizes | st.sampled_from(("channel", "tensor")))
_unsigned = st.builds(lambda bits: Fixed(bits, 0, "unsigned"), st.integers(1, 10))
_two_scales = _legal(
    Block, numbers, floats | _unsigned, _sizes, st.just(FP32), st.sampled_from(("channel", "tensor"))
)
bdrs = st.builds(
    lambda m, d1, d2, k2, ratio: Bdr(m, d1, k2 * ratio, d2, k2),
    st.integers(1, 15),
    st.integers(2, 8),
    st.integers(0, 4),
    st.integers(1, 8),
    st.integers(1, 8),
)
blocks: st.SearchStrategy[Format] = _one_scale | _two_scales | bdrs
formats: st.SearchStrategy[Format] = elements | blocks
