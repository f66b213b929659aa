"""Posits against two independent tables: the standard's own definition in rational arithmetic, and SoftPosit.

SoftPosit's posit8 has es = 0, its posit16 es = 1 and its posit_2 es = 2 in any width.
"""

from collections.abc import Callable

import numpy as np
import pytest
import softposit

from fewbits.formats import Posit, values
from fewbits.kernels.reference import encode
from tests import cases
from tests.kernels.exact import posit_value

POSITS = (*(Posit(bits, es) for bits in range(3, 11) for es in range(4)), Posit(16, 1), Posit(16, 2))


@pytest.mark.parametrize("posit", POSITS, ids=cases.label)
def test_every_posit_means_what_the_standard_says(posit: Posit) -> None:
    table = values(posit)
    for code in range(2**posit.bits):
        expected = posit_value(code, posit.bits, posit.es)
        assert np.isnan(table[code]) if expected is None else expected == table[code]


@pytest.mark.parametrize(
    ("posit", "largest", "smallest"),
    [
        # 2^(2^es (n - 2)) and its inverse: Posit Standard 2022, section 3.3; papers on posit training quote
        # the 8-bit ones.
        (Posit(8, 0), 2.0**6, 2.0**-6),
        (Posit(8, 1), 2.0**12, 2.0**-12),
        (Posit(8, 2), 2.0**24, 2.0**-24),
        (Posit(16, 1), 2.0**28, 2.0**-28),
        (Posit(16, 2), 2.0**56, 2.0**-56),
    ],
    ids=str,
)
def test_the_extremes_of_a_posit_are_these(posit: Posit, largest: float, smallest: float) -> None:
    assert (posit.max, posit.smallest_normal) == (largest, smallest)
    top = 2 ** (posit.bits - 1)
    assert values(posit)[[1, top - 1, top + 1, 2**posit.bits - 1]].tolist() == [
        smallest,
        largest,
        -largest,
        -smallest,
    ]


@pytest.mark.parametrize(
    ("posit", "code", "value"),
    [
        (Posit(8, 0), 0x40, 1.0),
        (Posit(8, 0), 0x60, 2.0),
        (Posit(8, 0), 0x20, 0.5),
        (Posit(8, 0), 0xC0, -1.0),
        (Posit(8, 1), 0x50, 2.0),
        (Posit(8, 2), 0x44, 1.5),
        (Posit(16, 2), 0x4000, 1.0),
        (Posit(16, 1), 0x5000, 2.0),
    ],
    ids=str,
)
def test_a_posit_read_by_hand(posit: Posit, code: int, value: float) -> None:
    assert values(posit)[code] == value


@pytest.mark.parametrize("posit", POSITS, ids=cases.label)
def test_posits_are_ordered_as_their_codes_are_as_signed_integers(posit: Posit) -> None:
    signed = (np.arange(2**posit.bits) + 2 ** (posit.bits - 1)) % 2**posit.bits
    assert np.all(np.diff(values(posit)[signed[1:]]) > 0)


@pytest.mark.parametrize("bits", range(4, 17))
def test_with_es_2_the_high_bits_of_a_posit_are_a_truncated_posit(bits: int) -> None:
    longer, shorter = values(Posit(bits, 2)), values(Posit(bits - 1, 2))
    assert np.array_equal(longer[::2], shorter, equal_nan=True)


def _posit8(x: float) -> int:
    return int(softposit.convertDoubleToP8(x).v)


def _posit16(x: float) -> int:
    return int(softposit.convertDoubleToP16(x).v)


def _posit_2(bits: int) -> Callable[[float], int]:
    return lambda x: int(softposit.convertDoubleToPX2(x, bits).v) >> (32 - bits)


SOFTPOSIT = (
    (Posit(8, 0), _posit8),
    (Posit(16, 1), _posit16),
    *((Posit(bits, 2), _posit_2(bits)) for bits in range(3, 17)),
)


@pytest.mark.parametrize(("posit", "cast"), SOFTPOSIT, ids=[str(p) for p, _ in SOFTPOSIT])
def test_every_posit_survives_softposit(posit: Posit, cast: Callable[[float], int]) -> None:
    codes, numbers = cases.real_codes(posit)
    assert [cast(v) for v in numbers.tolist()] == codes.tolist()


@pytest.mark.parametrize(("posit", "cast"), SOFTPOSIT, ids=[str(p) for p, _ in SOFTPOSIT])
def test_casts_equal_softposit_on_every_bfloat16_and_float16(
    posit: Posit, cast: Callable[[float], int]
) -> None:
    x = np.unique(np.concatenate([cases.every_bfloat16(), cases.every_float16()]))
    x = x[np.isfinite(x)].astype(np.float64)
    # All of them for the widths in use; a fair sample for the others.
    x = x if posit in cases.ELEMENTS else np.random.default_rng(0).permutation(x)[:10_000]
    ours = encode(posit, x, "nearest_even", "saturate", None)
    theirs = np.array([cast(v) for v in x.tolist()])
    assert x[ours != theirs].tolist() == []


@pytest.mark.parametrize(("posit", "cast"), SOFTPOSIT, ids=[str(p) for p, _ in SOFTPOSIT])
def test_casts_equal_softposit_on_every_value_middle_and_neighbour(
    posit: Posit, cast: Callable[[float], int]
) -> None:
    x = cases.telling(posit)[:8000].astype(np.float64)
    ours = encode(posit, x, "nearest_even", "saturate", None)
    theirs = np.array([cast(v) for v in x.tolist()])
    assert x[ours != theirs].tolist() == []
