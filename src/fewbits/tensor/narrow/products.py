"""Products of packed tensors with ordinary ones and with each other; docs/products.md.

Gradients flow to the ordinary operand: its derivatives are products with the same packed tensor.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeGuard

import torch

from fewbits import kernels
from fewbits.errors import ArgumentError, FormatError
from fewbits.formats import Format
from fewbits.graphs import constant_in_graphs
from fewbits.kernels import ops
from fewbits.kernels.arrays import planes
from fewbits.kernels.bits.options import Choices
from fewbits.kernels.ops import by_torch
from fewbits.kernels.ops.direct import is_recorded
from fewbits.kernels.reference.gemv.int8 import ACTIVATION
from fewbits.tensor import inputs
from fewbits.tensor.narrow.operands import (
    check_batches,
    check_devices,
    check_dtypes,
    check_matmul,
    check_matvec,
    check_ranks,
    check_summand,
)
from fewbits.tensor.narrow.tensor import NarrowTensor, unwrapped
from fewbits.tensor.narrow.vectors import times_lines

_MOST_ON_DEVICE = 2  # vectors that share a decoded matrix; more are multiplied faster by the unpacked one
_MOST_COUNTED = 64  # vectors of a product by bits; a matrix unit multiplies more of them faster


def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Return ``x @ weight.T + bias``.

    Args:
        x: (..., k), packed or ordinary.
        weight: (n, k), packed or ordinary.
        bias: (n,), or what expands to the result, ordinary, of x's dtype; None for none.

    Returns:
        (..., n), ordinary.

    Raises:
        DTypeError: an operand is not a floating-point tensor, or the dtypes differ.
        ArgumentError: the shapes do not fit, or the operands lie on two devices.
    """
    if isinstance(weight, NarrowTensor):
        found = times_lines(x, weight, 1)
        if found is not None:
            return found if bias is None else _added(found, bias)
    check_devices(x, weight, "x @ weight.T")
    if bias is not None and (bias.ndim or x.ndim == 2):
        check_matrix(weight)
    fits = x.ndim > 0 and weight.ndim == 2 and x.shape[-1] == weight.shape[1] and x.dtype == weight.dtype
    if fits and _is_gemv(weight, x, math.prod(x.shape[:-1]), axis=1):
        y = _gemv(x, weight)
    else:
        y = product(x, weight.t())
    return y if bias is None else _added(y, bias)


def _added(y: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    check_summand(bias, y.dtype, y.shape)
    return y + bias


def check_matrix(weight: torch.Tensor) -> None:
    """Raise ArgumentError for a vector, by which torch does not multiply where it adds a bias."""
    if weight.ndim < 2:
        raise ArgumentError(
            f"a product with {weight} and a bias; expected a matrix: unsqueeze it, or leave the bias out"
        )


def matmul(a: torch.Tensor, b: torch.Tensor, format: str | Format | None = None) -> torch.Tensor:
    """Return ``a @ b`` with both operands in narrow formats.

    Args:
        a: (..., m, k), packed or ordinary.
        b: (..., k, n), packed or ordinary.
        format: ordinary operands are rounded to it first, with blocks along k; None leaves them unrounded.

    Returns:
        (..., m, n), ordinary. With u = 2^-24 and the rounded operands A and B, float32 results are within
        (k + 2) u |A| |B| of their exact product; docs/products.md.

    Raises:
        FormatError: no such format.
        DTypeError: an operand is not a floating-point tensor, or the dtypes differ.
        ArgumentError: the shapes do not fit, or the operands lie on two devices.

    >>> import torch
    >>> matmul(torch.ones(2, 32), torch.full((32, 3), 0.5), "mxfp4")[0].tolist()
    [16.0, 16.0, 16.0]
    """
    a, b = unwrapped(a), unwrapped(b)
    check_matmul(a, b)
    if torch.compiler.is_dynamo_compiling():
        _allow_in_graphs()
        format = None if format is None else inputs.format_text(format)
    return _matmul(a, b, format)


@constant_in_graphs
def _allow_in_graphs() -> None:
    """Have torch.compile run these once a graph is whole: it sees no format of what the graph packs."""
    for function in (_matmul, _matvec):
        torch.compiler.allow_in_graph(function)


def _matmul(a: torch.Tensor, b: torch.Tensor, format: str | Format | None) -> torch.Tensor:
    if format is None:
        return product(a, b)
    target = inputs.format(format)
    if _is_counted(a, b, target):
        assert isinstance(b, NarrowTensor)
        return _plane_product(a, b, target)
    sides = ((a, max(a.ndim - 1, 0)), (b, max(b.ndim - 2, 0)))
    if _in_panels(a, b, target) and not any(is_recorded(x) for x in (a, b)):
        return _by_panels(a, b, target)
    left, right = (
        x if isinstance(x, NarrowTensor) else ops.fake_quantize(x, target, axis, Choices(), 0, None)
        for x, axis in sides
    )
    return _multiplied(left, right, target)


def _is_counted(a: torch.Tensor, b: torch.Tensor, format: Format) -> bool:
    """Return whether few vectors ``a``, rounded to integers, meet a ternary or binary matrix ``b``."""
    few = 0 < math.prod(a.shape[:-1]) <= _MOST_COUNTED and a.ndim > 0 and b.ndim == 2
    fits = few and a.shape[-1] == b.shape[0] and a.dtype == b.dtype and not isinstance(a, NarrowTensor)
    # 1 and -1 would take another scale here than in matvec.
    if not fits or planes.activation_bits(format) is None or not format.element.has_zero:
        return False
    return isinstance(b, NarrowTensor) and b.axis == 0 and _counts(b)


def matvec(weight: torch.Tensor, x: torch.Tensor, *, activation: str | None = None) -> torch.Tensor:
    """Return ``x @ weight.T`` for a packed (n, k) ``weight`` and few vectors x, (..., k): (..., n).

    The packed weight is read once for up to 64 vectors, or 512 with AVX2 and 2 on a GPU, without unpacking;
    :func:`matmul` does this too.

    Args:
        weight: (n, k), packed with its blocks along k, or ordinary.
        x: (..., k), ordinary.
        activation: None multiplies x as it is. ``"int8_32"`` rounds it first to int8 with a float32 scale for
            each 32 values, which is faster; each value changes by at most 1/253 of the largest magnitude of
            its 32. For ternary and binary weights also a format of integers of 1 to 8 bits, or of 1 and -1,
            with a float32 scale for each vector, such as ``"int8_channel"`` or ``"binary_channel"``: integers
            multiply exactly. The scale of 1 and -1 is the mean magnitude (``scale_rule="absmean"``), where
            :func:`matmul` takes the largest. Derivatives are those of the product with x as it is.

    Raises:
        DTypeError: an operand is not a floating-point tensor, or the dtypes differ.
        ArgumentError: the shapes do not fit, the operands lie on two devices, there is no such activation, or
            it is given with a weight that is not packed along k, or not ternary or binary.
    """
    weight, x = unwrapped(weight), unwrapped(x)
    if (activation is None or activation == "int8_32") and isinstance(weight, NarrowTensor):
        found = times_lines(x, weight, 1, None if activation is None else ACTIVATION)
        if found is not None:
            return found
    check_matvec(weight, x)
    if torch.compiler.is_dynamo_compiling():
        _allow_in_graphs()
    return _matvec(weight, x, activation)


def _matvec(weight: torch.Tensor, x: torch.Tensor, activation: str | None) -> torch.Tensor:
    if activation is None:
        return linear(x, weight)
    integers = None if activation == "int8_32" else _integers(activation)
    if isinstance(x, NarrowTensor) or not isinstance(weight, NarrowTensor) or weight.axis != 1:
        raise ArgumentError(
            f"activation={activation!r} takes an ordinary x and a weight packed along its last axis: quantize"
            " it so"
        )
    if integers is None:
        return _gemv(x, weight, ops.gemv_int8)
    if not _counts(weight):
        raise ArgumentError(
            f"activation={activation!r} with {weight!r}; it takes ternary or binary weights, all stored, with"
            " float32 scales per channel or tensor, such as ternary_channel: use 'int8_32' for others"
        )
    return _plane_product(x, weight, integers)


def _integers(activation: str) -> Format:
    """Return the format of integers, with a scale for each vector, that ``activation`` names."""
    try:
        found = inputs.format(activation)
    except FormatError:
        found = None
    if found is None or planes.activation_bits(found) is None:
        raise ArgumentError(
            f"activation={activation!r}; expected None or 'int8_32', or with ternary and binary weights a"
            " format of integers of 1 to 8 bits with a float32 scale per channel, such as 'int8_channel'"
        )
    return found


def _counts(weight: NarrowTensor) -> bool:
    """Return whether bits of ``weight`` can be counted: ternary or binary, none left out."""
    return weight.sparsity is None and planes.weight_bits(weight.format) > 0


def _plane_product(x: torch.Tensor, w: NarrowTensor, activation: Format) -> torch.Tensor:
    """Return the product of ``x``, rounded to integers, with the lines of ``w`` along its block axis."""
    lines = w.shape[1 - w.axis]
    parts = tuple(None if part is None else part.contiguous() for part in w.pieces)
    y = ops.plane_product(_rows(x), parts, w.format, lines, activation)
    return y.reshape(*x.shape[:-1], lines)


def mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return ``a @ b`` of two matrices, as torch.mm takes them; either or both may be packed."""
    check_ranks(a, b, "mm", (2, 2))
    return product(a, b)


def mv(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return ``a @ b`` of a matrix and a vector, as torch.mv takes them; either or both may be packed."""
    check_ranks(a, b, "mv", (2, 1))
    return product(a, b)


def bmm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return ``a @ b`` of as many matrices each, as torch.bmm takes them; either or both may be packed."""
    check_ranks(a, b, "bmm", (3, 3))
    check_batches(a, b, "bmm")
    return product(a, b)


def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return ``a @ b`` by the rules of torch.matmul; either or both may be packed.

    A packed matrix with blocks along the reduction axis is multiplied by few vectors without being
    unpacked, with float32 sums. A product of two packed operands is exact except for its float32 sums; it
    runs on the bfloat16 matrix units of the CPU, if there are any and all values are normal bfloat16 numbers
    or zero.

    Raises:
        DTypeError: the dtypes differ.
        ArgumentError: the operands lie on two devices.
    """
    if isinstance(b, NarrowTensor):
        found = times_lines(a, b, 0)
        if found is not None:
            return found
    check_devices(a, b, "a @ b")
    fits = a.ndim > 0 and 0 < b.ndim <= 2 and a.shape[-1] == b.shape[0] and a.dtype == b.dtype
    if fits and _is_gemv(b, a, math.prod(a.shape[:-1]), axis=0):
        return _gemv(a, b)
    if fits and _is_gemv(a, b, math.prod(b.shape[1:]), axis=1):
        return _gemv(b, a) if b.ndim == 1 else _gemv(b.t(), a).t()
    check_dtypes(a, b, "a @ b")
    if isinstance(a, NarrowTensor) and isinstance(b, NarrowTensor):
        return _multiplied(a, b, a.format)
    if _is_emulated(a, b):
        return by_torch.product(*(_dense(x.to(torch.float32)) for x in (a, b))).to(a.dtype)
    return by_torch.product(_dense(a), _dense(b))


def _is_emulated(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Return whether the CPU only emulates products of 16 bits, which takes several times as long as float32.

    In float32 the packed operand keeps its values, of which not all fit 16 bits.
    """
    sixteen = a.dtype == b.dtype and a.dtype in (torch.bfloat16, torch.float16)
    return sixteen and a.is_cpu and b.is_cpu and not torch.cpu._is_avx512_bf16_supported()


def _multiplied(a: torch.Tensor, b: torch.Tensor, format: Format) -> torch.Tensor:
    """Return ``a @ b`` of packed tensors, or of ordinary ones that hold values of ``format``."""
    if _in_panels(a, b, format):
        return _by_panels(a, b, format, rounded=True)
    return by_torch.product(_dense(a), _dense(b))


def _in_panels(a: torch.Tensor, b: torch.Tensor, format: Format) -> bool:
    """Return whether :func:`_by_panels` multiplies these: on this CPU, where their values are to be seen."""
    if _hidden() or a.ndim < 2 or b.ndim < 2 or a.dtype != b.dtype:
        return False
    if not a.numel() or not b.numel():
        return False
    stacks = b.ndim == 2 or a.shape[:-2] == b.shape[:-2]
    here = a.device.type == b.device.type == "cpu" and a.dtype in (torch.float32, torch.bfloat16)
    known = (x.format if isinstance(x, NarrowTensor) else format for x in (a, b))
    return here and stacks and all(ops.rounds_in_product(each, Choices()) for each in known)


def _hidden() -> bool:
    """Return whether tensors have no values to look at now, since a graph or a transform is being made."""
    return torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()


def _by_panels(a: torch.Tensor, b: torch.Tensor, format: Format, *, rounded: bool = False) -> torch.Tensor:
    """Return ``a @ b``; ordinary tensors are rounded to ``format`` on the way unless they are ``rounded``."""
    formats = tuple(x.format if isinstance(x, NarrowTensor) else format for x in (a, b))
    chosen = tuple(None if rounded or isinstance(x, NarrowTensor) else Choices() for x in (a, b))
    left, right = _dense(a), _dense(b)
    y = ops.rounded_product(
        _rows(left) if right.ndim == 2 else left,
        right,
        (formats[0], formats[1]),
        (chosen[0], chosen[1]),
        a.dtype,
    )
    return y.reshape(*a.shape[:-1], b.shape[-1])


def bfloat16_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return ``a @ b`` of float32 tensors whose values are all bfloat16, none of them subnormal.

    It runs on the matrix units of the CPU if they exist and may be used; sums are float32.
    """
    if not kernels.has_bfloat16_products() or a.ndim == 1 or b.ndim != 2 or a.device.type != "cpu":
        return by_torch.product(a, b)
    y: torch.Tensor = ops.bfloat16_product(_rows(a), b)
    return y.reshape(*a.shape[:-1], b.shape[1])


def _is_gemv(
    w: torch.Tensor, x: torch.Tensor, vectors: int | torch.SymInt, *, axis: int
) -> TypeGuard[NarrowTensor]:
    """Return whether ``w`` is a packed matrix, with blocks along ``axis``, and x few ordinary vectors."""
    if not isinstance(w, NarrowTensor) or w.ndim != 2 or w.axis != axis or isinstance(x, NarrowTensor):
        return False
    if x.dtype == torch.float64:  # kernels would round it, and sum in float32
        return False
    if isinstance(vectors, torch.SymInt) and torch.compiler.is_exporting():  # one graph is to take any number
        return False
    return 0 < vectors <= (kernels.max_vectors(w.format) if w.is_cpu else _MOST_ON_DEVICE)


def _transposed(q: NarrowTensor) -> NarrowTensor:
    """Return ``q.t()``, which torch types as any tensor, and wraps under torch.func."""
    turned = unwrapped(q.t())
    assert isinstance(turned, NarrowTensor)
    return turned


def _gemv(x: torch.Tensor, w: NarrowTensor, multiply: Callable[..., torch.Tensor] = ops.gemv) -> torch.Tensor:
    """Return the product of the vectors of ``x`` with the lines of ``w`` along its block axis."""
    lines = w.shape[1 - w.axis]
    parts = tuple(None if part is None else part.contiguous() for part in w.pieces)
    y = multiply(x if x.ndim == 2 else _rows(x), parts, w.format, lines, w.sparsity)
    return y if x.ndim == 2 else y.reshape(*x.shape[:-1], lines)


def _rows(x: torch.Tensor) -> torch.Tensor:
    """Return ``x``, (..., k), as a matrix; no size may be left to reshape where k is 0."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def _dense(x: torch.Tensor) -> torch.Tensor:
    """Return ``x``, unpacked along its lines: a matrix with blocks down its columns is a transposed view."""
    if not isinstance(x, NarrowTensor):
        return x
    if x.ndim != 2 or x.axis != 0:
        return x.dense()
    return _transposed(x).dense().t()
