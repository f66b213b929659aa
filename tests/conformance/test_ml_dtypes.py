"""Every scalar cast against ml_dtypes, for each dtype that it has.

Inputs: all 2^16 bfloat16, all 2^16 float16, and 10^6 float32 of every exponent, half of them on or beside a
boundary where a narrow format changes its mind; 10^7 of them in a slow test.

Where ml_dtypes means something else, the difference is stated beside the test:

* its integer casts truncate as C does and wrap outside the range: compared toward zero, inside the range;
* its 6-bit and 4-bit floats have no NaN and turn NaN into minus zero: compared without NaN;
* its float8_e8m0fnu turns zero into NaN, and rounds every float32 between 2^-127 and 2^-126 up whatever its
  value: compared from 2^-126 up, and at 2^-127.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from fewbits.formats import Element, parse
from fewbits.kernels.reference import encode
from tests import cases

COUNT = 10_000_000
SAMPLE = 1_000_000  # of them, in the quick tests
PIECE = 1 << 15  # float32 inputs at once: the temporaries of the definition stay in the cache


@dataclass(frozen=True)
class Peer:
    """A format and the dtype that must agree with it."""

    name: str
    dtype: Any
    overflow: str = "saturate"
    rounding: str = "nearest_even"

    @property
    def element(self) -> Element:
        fmt = parse(self.name)
        assert isinstance(fmt, Element)
        return fmt


FLOATS = (
    Peer("fp32", np.float32, "inf"),
    Peer("fp16", np.float16, "inf"),
    Peer("bf16", ml_dtypes.bfloat16, "inf"),
    Peer("fp8_e3m4", ml_dtypes.float8_e3m4, "inf"),
    Peer("fp8_e4m3_ieee", ml_dtypes.float8_e4m3, "inf"),
    Peer("fp8_e4m3b11fnuz", ml_dtypes.float8_e4m3b11fnuz, "nan"),
    Peer("fp8_e4m3", ml_dtypes.float8_e4m3fn, "nan"),
    Peer("fp8_e4m3fnuz", ml_dtypes.float8_e4m3fnuz, "nan"),
    Peer("fp8_e5m2", ml_dtypes.float8_e5m2, "inf"),
    Peer("fp8_e5m2fnuz", ml_dtypes.float8_e5m2fnuz, "nan"),
    Peer("fp6_e2m3", ml_dtypes.float6_e2m3fn),
    Peer("fp6_e3m2", ml_dtypes.float6_e3m2fn),
    Peer("fp4_e2m1", ml_dtypes.float4_e2m1fn),
)
POWERS = (Peer("e8m0", ml_dtypes.float8_e8m0fnu, "nan"),)
INTEGERS = tuple(
    Peer(name, dtype, rounding="toward_zero")
    for name, dtype in (
        ("int8", np.int8),
        ("int4", ml_dtypes.int4),
        ("int2", ml_dtypes.int2),
        ("uint8", np.uint8),
        ("uint4", ml_dtypes.uint4),
        ("uint2", ml_dtypes.uint2),
    )
)
PEERS = (*FLOATS, *POWERS, *INTEGERS)


def comparable(peer: Peer, x: cases.Singles) -> cases.Singles:
    """Return the inputs on which both mean the same; the module's docstring says what is left out and why."""
    if peer in INTEGERS:
        with np.errstate(invalid="ignore"):
            whole = np.trunc(x)
        return x[(whole >= peer.element.min) & (whole <= peer.element.max)]
    if peer in POWERS:
        return x[(x >= 2.0**-126) | (x == 2.0**-127) | np.isnan(x) | (x < 0)]
    return x if peer.element.has_nan else x[~np.isnan(x)]


def theirs(peer: Peer, x: Any) -> cases.Codes:
    """Return ml_dtypes' codes, every NaN as our one."""
    with np.errstate(all="ignore"):
        cast = x.astype(peer.dtype)
        codes = cast.view(f"u{cast.dtype.itemsize}") & (2**peer.element.bits - 1)
        if not peer.element.has_nan:
            return np.asarray(codes)
        return np.where(np.isnan(cast.astype(np.float32)), peer.element.nan_code, codes)


def ours(peer: Peer, x: cases.Singles) -> cases.Codes:
    """Return our codes."""
    with np.errstate(invalid="ignore"):
        wide = x.astype(np.float64)
    return encode(peer.element, wide, peer.rounding, peer.overflow, None)


def differences(peer: Peer, x: cases.Singles, cast: Callable[..., cases.Codes] = ours) -> cases.Singles:
    """Return the inputs whose codes differ; the must-fail tests pass a cast of their own."""
    x = comparable(peer, x)
    return x[cast(peer, x) != theirs(peer, x)]


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_casts_of_every_bfloat16_equal_ml_dtypes(peer: Peer) -> None:
    x = cases.every_bfloat16()
    assert differences(peer, x).size == 0
    kept = comparable(peer, x)
    if peer.dtype is not ml_dtypes.bfloat16:
        with np.errstate(invalid="ignore"):
            narrow = kept.astype(ml_dtypes.bfloat16)
        assert np.array_equal(ours(peer, kept), theirs(peer, narrow))


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_casts_of_every_float16_equal_ml_dtypes(peer: Peer) -> None:
    x = cases.every_float16()
    assert differences(peer, x).size == 0
    kept = comparable(peer, x)
    with np.errstate(invalid="ignore"):
        narrow = kept.astype(np.float16)
    assert np.array_equal(ours(peer, kept), theirs(peer, narrow))


@lru_cache(maxsize=1)
def float32s(count: int) -> cases.Singles:
    """Return so many float32 of every exponent, shared by all dtypes."""
    x = cases.every_exponent(count)
    assert np.unique(x.view(np.uint32) >> 23).size == 2**9  # every exponent, both signs
    return x


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_casts_of_a_million_float32_of_every_exponent_equal_ml_dtypes(peer: Peer) -> None:
    singles = float32s(SAMPLE)
    for start in range(0, SAMPLE, PIECE):
        assert differences(peer, singles[start : start + PIECE]).size == 0


@pytest.mark.slow
@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_casts_of_ten_million_float32_of_every_exponent_equal_ml_dtypes(peer: Peer) -> None:
    singles = float32s(COUNT)
    for start in range(0, COUNT, PIECE):
        assert differences(peer, singles[start : start + PIECE]).size == 0


@pytest.mark.parametrize("peer", [*FLOATS[1:], *POWERS], ids=lambda peer: peer.name)
def test_casts_of_every_value_every_middle_and_their_neighbours_equal_ml_dtypes(peer: Peer) -> None:
    assert differences(peer, cases.telling(peer.element)).size == 0


@pytest.mark.parametrize("peer", INTEGERS, ids=lambda peer: peer.name)
def test_integers_to_nearest_even_equal_a_clipped_rint(peer: Peer) -> None:
    x = cases.telling(peer.element)
    clipped = np.clip(np.rint(x), peer.element.min, peer.element.max)
    codes = encode(peer.element, x.astype(np.float64), "nearest_even", "saturate", None)
    assert np.array_equal(codes, theirs(peer, clipped))


def test_e8m0_differs_from_ml_dtypes_at_zero_and_below_the_normal_floats_only() -> None:
    (peer,) = POWERS
    x = cases.every_exponent(100_000)
    x = x[x >= 0]
    differ = x[ours(peer, x) != theirs(peer, x)]
    assert np.all((differ == 0) | ((differ > 2.0**-127) & (differ < 2.0**-126)))
    # Nearest: 1.25 x 2^-127 is 2^-127, code 0; there it is code 1. Ours says so, and zero is the smallest
    # scale.
    assert ours(peer, np.array([0.0, 1.25 * 2.0**-127], np.float32)).tolist() == [0, 0]
    assert theirs(peer, np.array([0.0, 1.25 * 2.0**-127], np.float32)).tolist() == [0xFF, 1]
