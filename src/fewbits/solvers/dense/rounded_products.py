"""Products of float32 matrices whose operands are rounded or split first, with float32 sums."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.nn.functional import pad

from fewbits import kernels
from fewbits.kernels.arrays.products import subtract_bfloat16_product
from fewbits.tensor import fake_quantize
from fewbits.tensor.narrow.products import bfloat16_product, matmul

Multiply = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Update = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], None]

TERMS = {"bf16": 1, "bf16x2": 2, "bf16x3": 3}
_SLICES = {"int8x2": 2, "int8x3": 3}
_ROUNDINGS = {"fp16": "nearest_even", "tf32": "nearest_away"}
_DIGIT = 7  # bits of a slice below its sign


def rounded_product(factor: str) -> Multiply:
    """Return a function that multiplies (m, k) by (k, n) with operands rounded or split to ``factor``.

    The matrices are float32, or complex64, which takes four real products.
    """
    multiply = _real(factor)
    return lambda a, b: _complex(a, b, multiply) if a.is_complex() else multiply(a, b)


def rounded_update(factor: str) -> Update:
    """Return a function that subtracts the product of :func:`rounded_product` from its first argument."""
    multiply, terms = rounded_product(factor), TERMS.get(factor, 0)

    def update(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> None:
        if terms and kernels.has_bfloat16_products() and c.device.type == "cpu" and not c.is_complex():
            _subtract(c, a, b, terms)
        else:
            c -= multiply(a, b)

    return update


def _subtract(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor, terms: int) -> None:
    """Subtract the product of :func:`_split_product`, with what is subnormal as zeros, in one pass over c."""
    if terms == 2 and kernels.has_tiles():
        subtract_bfloat16_product(a.numpy(), b.numpy(), c.numpy(), terms)
        return
    if terms > 1:
        pairs = [pair for order in _pairs(terms) for pair in order]
        left, right = _split(a, terms), _split(b, terms)
        a = torch.cat([left[i] for i, _ in pairs], 1).view(torch.uint16)
        b = torch.cat([right[j] for _, j in pairs], 0).view(torch.uint16)
    subtract_bfloat16_product(a.numpy(), b.numpy(), c.numpy())


def _real(factor: str) -> Multiply:
    if factor in TERMS:
        return lambda a, b: _split_product(a, b, TERMS[factor])
    if factor in _SLICES:
        return lambda a, b: _sliced_product(a, b, _SLICES[factor])
    if factor in _ROUNDINGS:
        rounding = _ROUNDINGS[factor]
        return lambda a, b: torch.matmul(
            fake_quantize(a, factor, rounding=rounding), fake_quantize(b, factor, rounding=rounding)
        )
    if factor == "fp32":
        return torch.matmul
    return lambda a, b: matmul(a, b, factor)


def _complex(a: torch.Tensor, b: torch.Tensor, multiply: Multiply) -> torch.Tensor:
    """Return the complex product as one real product with twice the rows and twice the inner dimension."""
    left = torch.cat([torch.cat([a.real, -a.imag], 1), torch.cat([a.imag, a.real], 1)], 0)
    both = multiply(left, torch.cat([b.real, b.imag], 0))
    return torch.complex(both[: len(a)].contiguous(), both[len(a) :].contiguous())


def _pairs(terms: int) -> list[list[tuple[int, int]]]:
    """Return the pairs of terms of each order below ``terms``, the smallest products first."""
    return [[(i, order - i) for i in range(order + 1)] for order in reversed(range(terms))]


def _split_product(a: torch.Tensor, b: torch.Tensor, terms: int) -> torch.Tensor:
    """Return the sum of the products of terms whose orders add up to less than ``terms``."""
    left, right = _split(a, terms), _split(b, terms)
    pairs = [pair for order in _pairs(terms) for pair in order]
    # The terms are concatenated along the reduction axis: one product, one float32 sum.
    wide, deep = torch.cat([left[i] for i, _ in pairs], 1), torch.cat([right[j] for _, j in pairs], 0)
    return bfloat16_product(wide.float(), deep.float())


def _split(x: torch.Tensor, terms: int) -> list[torch.Tensor]:
    """Return numbers in bfloat16 whose sum is x up to the rounding error of the last one."""
    parts = [x.bfloat16()]
    for _ in range(1, terms):
        x = x - parts[-1]  # exact
        parts.append(x.bfloat16())
    return parts


def _sliced_product(a: torch.Tensor, b: torch.Tensor, slices: int) -> torch.Tensor:
    """Return the product from slices of 8-bit digits; sums of one order are exact in int32 up to k = 65,000.

    Ootomo, Ozaki and Yokota, DGEMM on Integer Matrix Multiplication Unit, 2024, with fewer slices.
    """
    left, rows = _sliced(a, slices, 1)
    right, columns = _sliced(b, slices, 0)
    total = a.new_zeros(a.shape[0], b.shape[1])
    for order in _pairs(slices):
        digits = _integer_product(
            torch.cat([left[i] for i, _ in order], 1), torch.cat([right[j] for _, j in order], 0)
        )
        total += digits.float() * 2.0 ** (-_DIGIT * sum((*order[0], 2)))
    # In two steps: the product of the two powers may lie beyond float32.
    return total * rows * columns


def _integer_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the int32 product of int8 matrices; units of GPUs take multiples of 8, and 17 rows or more."""
    if a.device.type == "cpu":
        return torch._int_mm(a, b)
    (m, k), n = a.shape, b.shape[1]
    wide = pad(a, (0, -k % 8, 0, max(-m % 8, 24 - m))), pad(b, (0, -n % 8, 0, -k % 8))
    return torch._int_mm(*wide)[:m, :n]


def _sliced(x: torch.Tensor, slices: int, axis: int) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return int8 digits, each ``_DIGIT`` bits below the one before, and the powers of two to multiply by."""
    size = x.abs().amax(axis, keepdim=True)
    # The bound is a little above the largest magnitude, so that it does not round to 128.
    scale = torch.ldexp(torch.ones_like(size), torch.frexp(size * 1.02).exponent)
    rest = x / scale
    digits = []
    for _ in range(slices):
        rest = rest * 2.0**_DIGIT
        digit = rest.round()
        digits.append(digit.to(torch.int8))
        rest = rest - digit  # exact
    return digits, scale
