"""Products of ternary or binary weights with integers; kernels/reference/gemv/planes.py defines them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fewbits import _native
from fewbits.kernels.native.dispatch.isa import active_isa

MOST_BY_BYTES = 2**18  # values of a line; the sums of more could leave 32 bits

# Up to how many bits of x counting is faster than multiplying bytes, for ternary weights. Measured on Zen 5
# with weights in its third cache. Without an instruction that counts, two lookups and a sum take its place;
# the baseline has no instruction for bytes either.
_COUNTED = {
    "amx": 2,
    "avx512_bf16": 2,
    "avx512_vnni": 1,
    "avx512": 1,
    "avx2_vnni": 1,
    "avx2": 1,
    "baseline": 8,
}


def can_multiply_bytes(weight_bits: int, n: int, bits: int, is_signed: bool) -> bool:
    """Return whether bytes can be multiplied in the place of counting: x has to fit signed bytes."""
    return weight_bits == 2 and n <= MOST_BY_BYTES and (is_signed or bits < 8)


def plane_product(
    codes: NDArray[np.uint8],
    weight_bits: int,
    x: NDArray[np.uint8],
    bits: int,
    is_signed: bool,
    scales: NDArray[np.float32] | None,
    x_scales: NDArray[np.float32],
    y: NDArray[np.float32],
    *,
    threads: int,
    by_bytes: bool | None = None,
) -> None:
    """Write ``x @ W.T`` times the scales of both into ``y``.

    Args:
        codes: (lines, bytes), one or two bits for each weight.
        weight_bits: 2, in two's complement; or 1: code 0 is one, code 1 minus one.
        x: (batch, n) in C order, an integer in each byte.
        bits: of the integers in x, 1 to 8.
        is_signed: whether they are in two's complement.
        scales: (lines,), or (1,) for all lines; None for ones.
        x_scales: (batch,).
        y: (batch, lines) in C order.
        threads: most threads to use.
        by_bytes: whether bytes are multiplied, or planes counted; None takes the faster one. Both are exact.
    """
    isa = active_isa()
    if by_bytes is None:
        by_bytes = bits > _COUNTED.get(isa, 8) and can_multiply_bytes(
            weight_bits, x.shape[1], bits, is_signed
        )
    whole = np.ascontiguousarray(codes)
    _native.plane_product(whole, weight_bits, x, bits, is_signed, scales, x_scales, by_bytes, y, threads)
