"""The one table that tests share: formats, choices of how to round, awkward sizes, telling inputs."""

from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

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
    values,
)
from fewbits.kernels.reference.values.stochastic import Draws
from fewbits.kernels.reference.values.stochastic import draws as draw

Codes = NDArray[Any]
Reals = NDArray[np.float64]
Singles = NDArray[np.float32]

# Written out, so that a choice that disappears from the library is missed here.
ROUNDINGS = ("nearest_even", "nearest_away", "toward_zero", "up", "down", "stochastic")
SCALE_RULES = ("floor", "ceil", "rceil", "even", "1.75", "midmax", "oas", "double_floor")
OVERFLOWS = ("saturate", "inf", "nan")
NONFINITES = ("block_nan", "element", "saturate", "raise")
ZERO_BLOCKS = ("smallest", "one")

# Nothing, one, primes, and one to either side of every block size in the catalogue.
SIZES = (0, 1, 2, 3, 7, 15, 16, 17, 23, 24, 25, 31, 32, 33, 61, 64, 65, 97)
SHAPES = ((), (0,), (1,), (33,), (0, 5), (5, 0), (1, 1), (3, 40), (2, 1, 33), (2, 3, 4, 17))

NAMES = tuple(CATALOGUE)
FORMATS = tuple(dict.fromkeys(entry.format for entry in CATALOGUE.values()))
ELEMENTS = tuple(f for f in FORMATS if isinstance(f, Element))
TABLED = tuple(f for f in ELEMENTS if f.bits <= 16)  # those whose codes can all be written out
BLOCKED = tuple(f for f in FORMATS if isinstance(f, Block | Bdr))
POWER_SCALED = tuple(f for f in BLOCKED if isinstance(f.scale, Exponent))
REAL_SCALED = tuple(f for f in BLOCKED if not isinstance(f.scale, Exponent))


def _made() -> Iterator[Element]:
    """Formats that only the grammar can name: every corner of what it allows, up to 12 bits."""
    for e in range(1, 6):
        for m in range(6):
            for special in ("none", "fn", "fnuz", "ieee"):
                if not (special == "ieee" and (e < 2 or m < 1)) and not (special == "fn" and e + m < 2):
                    yield Float(e, m, special=special)
    yield from (Float(3, 2, bias) for bias in (-100, -1, 0, 1, 9, 140))
    yield from (Float(8, 2, 127, "ieee"), Float(8, 0, 128), Float(1, 7), Float(2, 9, 1, "fn"))
    for bits in range(1, 11):
        for coding in ("twos_complement", "symmetric", "sign_magnitude", "unsigned"):
            if bits > 1 or coding == "unsigned":
                yield from (Fixed(bits, frac, coding) for frac in (-64, -2, 0, bits - 1, 64))
    yield from (Posit(bits, es) for bits in range(3, 11) for es in range(4))
    yield from (Lookup((0.0, 1.0)), Lookup((-3.0, 0.1, 7.0)), Lookup((0.5, -0.25, 3e38, -1e-30, 0.0)))
    yield Lookup(tuple(float(v) for v in np.sin(np.arange(33))))
    yield from (Exponent(bits, bias) for bits, bias in ((2, 0), (4, 7), (5, 127), (8, 127)))


MADE = tuple(dict.fromkeys(_made()))


def real_codes(element: Element) -> tuple[Codes, Reals]:
    """Return the codes that are numbers, and those numbers, infinities included."""
    table = values(element)
    codes = np.flatnonzero(~np.isnan(table))
    return codes, table[codes]


def draws(x: NDArray[Any], rounding: str, seed: int = 7, random_bits: int = 32) -> Draws | None:
    """Return the random bits that stochastic rounding of ``x`` needs, and None for the other modes."""
    return draw(np.arange(x.size).reshape(x.shape), seed, random_bits) if rounding == "stochastic" else None


@lru_cache(maxsize=1)
def every_bfloat16() -> Singles:
    """Return all 2^16 bfloat16 values."""
    return (np.arange(2**16, dtype=np.uint32) << 16).view(np.float32)


@lru_cache(maxsize=1)
def every_float16() -> Singles:
    """Return all 2^16 float16 values."""
    with np.errstate(invalid="ignore"):
        return np.arange(2**16, dtype=np.uint16).view(np.float16).astype(np.float32)


def every_exponent(count: int, seed: int = 0) -> Singles:
    """Return ``count`` float32 of all exponents and both signs; half of them on or beside a rounding
    boundary.

    Those keep a random number of leading mantissa bits, followed by 0, 1, 10...0 and its two neighbours, or
    1...1.
    """
    rng = np.random.default_rng(seed)
    sign_and_exponent = rng.integers(0, 2**9, count, dtype=np.uint32) << np.uint32(23)
    mantissa = rng.integers(0, 2**23, count, dtype=np.uint32)
    low = rng.integers(11, 24, count, dtype=np.uint32)  # bits behind the kept ones
    one = np.uint32(1)
    half = one << (low - one)
    tail = np.stack([0 * half, 0 * half + 1, half - one, half, half + one, 2 * half - one])
    picked = tail[rng.integers(0, 6, count), np.arange(count)]
    boundary = (((mantissa >> low) << low) + picked) & np.uint32(2**23 - 1)
    mantissa = np.where(rng.random(count) < 0.5, boundary, mantissa)
    return (sign_and_exponent | mantissa).view(np.float32)


def around(numbers: Any) -> Singles:
    """Return the float32 neighbourhood of each number: itself and two floats to either side, both signs."""
    center = np.atleast_1d(np.asarray(numbers, np.float32))
    below, above = np.nextafter(center, -np.inf), np.nextafter(center, np.inf)
    wide = (center, below, above, np.nextafter(below, -np.inf), np.nextafter(above, np.inf))
    both = np.concatenate([*wide, *(-part for part in wide)])
    return both[np.isfinite(both)].astype(np.float32)


@cache
def telling(element: Element) -> Singles:
    """Return float32 inputs that can tell one rounding from another, made once and read-only.

    Every value of the format, every middle between neighbours, all with their float32 neighbours, and what
    lies beyond the ends; shuffled, so that any part of it is a fair sample.
    """
    table = np.sort(real_codes(element)[1])
    table = table[np.isfinite(table)]
    middle = (table[1:] + table[:-1]) / 2
    step = max(table[-1] - table[-2], 2.0**-140)
    beyond = table[-1] + step * np.array([0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 100.0])
    tiny = [0.0, 2.0**-149, 2.0**-126, 1e-30, 1.0, 3e38]
    with np.errstate(over="ignore"):
        x = np.unique(around(np.concatenate([table, middle, beyond, -beyond, tiny])))
    shuffled = np.append(x[np.random.default_rng(0).permutation(x.size)], np.float32(-0.0))
    shuffled.flags.writeable = False
    return shuffled


def blocks(count: int, size: int, seed: int = 0) -> Singles:
    """Return (count, size) float32; block maxima take every exponent, values go down to 2^-14 of them."""
    rng = np.random.default_rng(seed)
    top = rng.integers(0, 255, (count, 1))
    exponent = np.clip(top - rng.integers(0, 14, (count, size)), 0, 254).astype(np.uint32)
    exponent[np.arange(count), rng.integers(0, size, count)] = top[:, 0]
    mantissa = rng.integers(0, 2**23, (count, size), dtype=np.uint32)
    sign = rng.integers(0, 2, (count, size), dtype=np.uint32)
    return (sign << 31 | exponent << 23 | mantissa).view(np.float32)


def pairs(*axes: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Return rows of one value of each axis, so few that each two values of two axes still meet in one.

    Of a format, a length, a rounding and an instruction set, two that do not go together are what a mistake
    in a kernel needs; three hardly ever. The product of all axes has a row for each combination: this has
    about as many rows as the two longest axes have combinations. Greedy, and always the same rows: each
    begins with a pair that is still missing and takes on every other axis the value that brings the most
    missing pairs, the one used least among equals.
    """
    values = [list(axis) for axis in axes]
    if len(values) < 2:
        return [(value,) for axis in values for value in axis]
    missing = dict.fromkeys(
        ((i, a), (j, b))
        for i, j in combinations(range(len(values)), 2)
        for a in range(len(values[i]))
        for b in range(len(values[j]))
    )
    used: Counter[tuple[int, int]] = Counter()
    rows = []
    while missing:
        row = dict(next(iter(missing)))
        for i in sorted(set(range(len(values))) - set(row), key=lambda i: -len(values[i])):
            held = list(row.items())
            gains = [
                (sum(((min((i, a), h), max((i, a), h)) in missing) for h in held), -used[i, a])
                for a in range(len(values[i]))
            ]
            row[i] = gains.index(max(gains))
        for pair in combinations(sorted(row.items()), 2):
            missing.pop(pair, None)
        used.update(row.items())
        rows.append(tuple(values[i][row[i]] for i in range(len(values))))
    return rows


def label(fmt: Format) -> str:
    """Return the test id of a format."""
    return str(fmt)[:60]


def by_first(rows: list[tuple[Any, ...]]) -> list[Any]:
    """Return the rows as arguments of one test for each first value: that value, and the rest of its rows."""
    rest: dict[Any, list[tuple[Any, ...]]] = {}
    for first, *others in rows:
        rest.setdefault(first, []).append(tuple(others))
    return [pytest.param(first, others, id=label(first)) for first, others in rest.items()]
