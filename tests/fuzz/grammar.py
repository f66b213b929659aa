"""The format grammar: a text is refused, or is a format that prints back and rounds as defined."""

import zlib
from pathlib import Path

import numpy as np
import torch  # noqa: F401 - loaded on first use it would count as a hang

import fewbits as fb
from fewbits import kernels
from fewbits.errors import FewbitsError
from fewbits.formats import CATALOGUE, Format
from fewbits.formats import grammar as module
from fewbits.kernels import reference
from fewbits.kernels.bits.layout import packed
from tests.cases import ROUNDINGS
from tests.fuzz.target import NUMBERS, Target, not_accepted

WORDS = r"""
float( int( fixed( posit( lookup( exponent( block( bdr( ) ( , = e= m= bias= special= fn fnuz ieee none frac=
coding= symmetric sign_magnitude unsigned twos_complement es= element= scale= size= outer= outer_size= channel
tensor fp32 e8m0 int(8) d1= d2= k1= k2= values= * 1e-45 3.4e38 . + - é ١ \0
"""
SEEDS = (
    "float(e=4,m=3,bias=7,special=fn)",
    "float(e=8,m=23,bias=127,special=ieee)",
    "int(8)",
    "int(4,coding=unsigned)",
    "fixed(16,frac=14)",
    "fixed(5,frac=3,coding=sign_magnitude)",
    "posit(8,es=1)",
    "lookup(-1,0,1)",
    "lookup(-1,-0.5,0,0.25,1e-3)",
    "exponent(5,bias=15)",
    "block(element=float(e=2,m=1),scale=e8m0,size=32)",
    "block(element=int(4),scale=fp16,size=channel)",
    "block(element=float(e=2,m=1),scale=fp8_e4m3,size=16,outer=fp32,outer_size=tensor)",
    "block(element=int(4),scale=int(6,coding=unsigned),size=16,outer=fp32,outer_size=channel)",
    "bdr(m=7,d1=8,k1=16,d2=1,k2=2)",
)


def _seeds() -> list[bytes]:
    return [text.encode() for text in (*SEEDS, *CATALOGUE)]


def _values(rng: np.random.Generator) -> np.ndarray:
    """Return three lines of values of every size, zeros and subnormals among them."""
    bits = rng.integers(0, 2**32, (3, 37), np.uint32)
    bits[1] = bits[1] % (4 << 23) | 0x3E800000  # one line of everyday numbers
    bits[2, :9] = (0, 1, 0x80000000, 0x80000001, 0x007FFFFF, 0x7F7FFFFF, 0xFF7FFFFF, 0x3F800000, 0x00800000)
    x = bits.view(np.float32)
    return np.where(np.isfinite(x), x, np.float32(1))


def _round_trips(fmt: Format, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = _values(rng)
    rounding, axis = ROUNDINGS[seed % len(ROUNDINGS)], int(rng.integers(2))
    try:
        chosen = kernels.options(fmt, rounding=rounding, seed=seed)
        parts = kernels.quantize(x, fmt, axis, chosen)
        back = kernels.dequantize(parts, fmt, x.shape, axis, np.float32)
        once = kernels.fake_quantize(x, fmt, axis, chosen)
    except FewbitsError as error:
        not_accepted(error)
        return
    np.testing.assert_array_equal(back, once)
    positions = (
        np.moveaxis(np.arange(x.size).reshape(x.shape), axis, -1) if rounding == "stochastic" else None
    )
    lines = np.moveaxis(x, axis, -1)
    for ours, defined in zip(
        parts, packed(reference.quantize(lines, fmt, chosen, None, positions), fmt), strict=True
    ):
        np.testing.assert_array_equal(ours, defined)
    y = fb.quantize(x, fmt, axis=axis)
    assert y.shape == x.shape


def run(data: bytes, folder: Path) -> bool:
    text = data.decode("utf-8", "replace")
    try:
        fmt = module.parse(text)
    except FewbitsError as error:
        return not_accepted(error)
    assert module.parse(str(fmt)) == fmt
    assert module.parse(fmt.grammar) == fmt
    assert hash(module.parse(text)) == hash(fmt)
    assert repr(fmt)
    assert fmt.bits_per_value > 0
    _round_trips(fmt, zlib.crc32(data))
    return True


TARGET = Target(_seeds, (*(word.encode() for word in WORDS.split()), *NUMBERS), run)
