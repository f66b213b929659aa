"""Every float32 there is through every scalar format of up to 8 bits, against two independent definitions.

Rounding is monotone, so the codes of all float32 in order are a few hundred runs. Exact rational arithmetic
finds where each run ends, by halving; `ml_dtypes` casts every single value where it has the format.
"""

import time
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

from fewbits.formats import CATALOGUE, Element, parse, values
from fewbits.kernels import native
from fewbits.kernels.bits.layout import empty
from fewbits.kernels.bits.options import Options, options
from tests import cases
from tests.kernels.exact import exact

CHUNK = 1 << 24  # float32 values at once
CHUNKS = 2**32 // CHUNK

NAMES = tuple(name for name, e in CATALOGUE.items() if isinstance(e.format, Element) and e.format.bits <= 8)

# The casts of ml_dtypes that overflow as the format's default does.
PEERS: dict[str, Any] = {
    "fp8_e5m2": ml_dtypes.float8_e5m2,
    "fp8_e4m3_ieee": ml_dtypes.float8_e4m3,
    "fp8_e3m4": ml_dtypes.float8_e3m4,
    "fp6_e3m2": ml_dtypes.float6_e3m2fn,
    "fp6_e2m3": ml_dtypes.float6_e2m3fn,
    "fp4_e2m1": ml_dtypes.float4_e2m1fn,
}


def chosen_for(fmt: Element) -> Options:
    """Return options under which every float32 has a code: NaN and infinity replaced where need be."""
    return options(fmt, nonfinite="element" if fmt.has_nan else "saturate")


def _code(fmt: Element, bits: int, chosen: Options) -> int:
    """Return the code of a float32 by exact arithmetic; -1 for NaN, whatever its code."""
    x = float(np.uint32(bits).view(np.float32))
    if chosen.nonfinite == "saturate" and not np.isfinite(x):
        x = 0.0 if np.isnan(x) else float(np.copysign(np.finfo(np.float32).max, x))
    code = exact(fmt).code(x, "nearest_even", chosen.overflow)
    return -1 if code is None else code


@lru_cache(maxsize=1)
def runs(fmt: Element, chosen: Options) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return where each run of equal codes begins, in the order of bit patterns, and its code."""
    starts, codes = [], []

    def halve(low: int, high: int, at_low: int, at_high: int) -> None:  # within one sign, NaN aside
        if at_low == at_high:
            if not codes or codes[-1] != at_low:
                starts.append(low)
                codes.append(at_low)
        elif high - low == 1:
            halve(low, low, at_low, at_low)
            halve(high, high, at_high, at_high)
        else:
            middle = (low + high) // 2
            at_middle = _code(fmt, middle, chosen)
            halve(low, middle, at_low, at_middle)
            halve(middle, high, at_middle, at_high)

    for sign in (0, 1 << 31):
        for low, high in ((0, 0x7F7FFFFF), (0x7F800000, 0x7F800000), (0x7F800001, 0x7FFFFFFF)):
            halve(sign + low, sign + high, *(_code(fmt, sign + end, chosen) for end in (low, high)))
    return np.array(starts), np.array(codes)


def expected_codes(fmt: Element, chosen: Options, first: int, count: int) -> NDArray[np.int64]:
    """Return the codes of `count` float32 from the bit pattern `first` on; -1 for NaN."""
    starts, codes = runs(fmt, chosen)
    ends = np.append(starts[1:], 2**32)
    inside = np.clip(ends, first, first + count) - np.clip(starts, first, first + count)
    return np.repeat(codes, inside)


def walk(name: str, chunks: Any) -> str:
    """Compare some chunks of all float32; return how many differ, and how long it took."""
    fmt = parse(name)
    assert isinstance(fmt, Element)
    chosen = chosen_for(fmt)
    table = values(fmt).astype(np.float32).view(np.uint32)
    begun, differ = time.perf_counter(), 0
    for chunk in chunks:
        bits = np.arange(chunk * CHUNK, (chunk + 1) * CHUNK, dtype=np.uint32)
        x = bits.view(np.float32)
        wanted = expected_codes(fmt, chosen, chunk * CHUNK, CHUNK)
        out = np.empty_like(x)
        native.fake_quantize(x, out, fmt, 0, chosen, None, threads=2)
        parts = empty(fmt, x.shape, 0)
        native.quantize(x, parts, fmt, 0, chosen, None, threads=2)
        codes = unpacked(parts.codes, fmt.bits)
        nan = wanted < 0
        differ += np.count_nonzero(np.where(nan, ~np.isnan(out), out.view(np.uint32) != table[wanted]))
        differ += np.count_nonzero(np.where(nan, ~np.isnan(values(fmt)[codes]), codes != wanted))
        peer = PEERS.get(name)
        # These three have neither NaN nor infinity: there is nothing in them to compare such an input with.
        if peer is not None and (fmt.has_nan or chunk % 128 != 127):
            with np.errstate(invalid="ignore"):  # what the CPU notes of a NaN on the way
                theirs = x.astype(peer).view(np.uint8)
            differ += np.count_nonzero(np.where(nan, False, theirs != codes))
    return f"{name}: {differ} of {len(chunks) * CHUNK} differ ({time.perf_counter() - begun:.0f} s)"


def unpacked(packed: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Return codes of up to 8 bits, a multiple of eight of them: eight codes lie in `bits` bytes."""
    words = np.zeros((packed.size // bits, 8), np.uint8)
    words[:, :bits] = packed.reshape(-1, bits)
    joined = words.view("<u8").ravel()
    codes = np.empty((joined.size, 8), np.uint8)
    for i in range(8):
        codes[:, i] = joined >> np.uint64(i * bits) & np.uint64(2**bits - 1)
    return codes.ravel()


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_all_2_to_the_32_float32_are_rounded_as_exact_arithmetic_says(name: str) -> None:
    said = walk(name, range(CHUNKS))
    print(said)
    assert f": 0 of {2**32} differ" in said


@pytest.mark.parametrize("name", ["fp8_e4m3", "fp8_e5m2", "int4", "posit8_1", "e8m0"])
def test_the_walk_is_right_where_exact_arithmetic_says_so_value_by_value(name: str) -> None:
    fmt = parse(name)
    assert isinstance(fmt, Element)
    chosen = chosen_for(fmt)
    x = np.append(cases.every_exponent(300), cases.telling(fmt)[:300]).view(np.uint32)
    for bits in x.tolist():
        assert expected_codes(fmt, chosen, bits, 1).tolist() == [_code(fmt, bits, chosen)], hex(bits)


def test_one_chunk_of_the_walk_agrees_and_one_wrong_code_in_it_is_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert walk("fp8_e5m2", [0x40]).startswith(f"fp8_e5m2: 0 of {CHUNK} differ")
    right = native.quantize

    def wrong(x: Any, parts: Any, *given: Any, **named: Any) -> Any:
        bad = right(x, parts, *given, **named)
        parts.codes[12345] ^= 1
        return bad

    monkeypatch.setattr(native, "quantize", wrong)
    assert walk("fp8_e5m2", [0x40]).startswith(f"fp8_e5m2: 2 of {CHUNK} differ")  # by either definition
