"""The operator that multiplies ternary or binary weights with vectors rounded to integers."""

from __future__ import annotations

from typing import Any

import torch

from fewbits.formats import Format
from fewbits.kernels import exact_arithmetic, portable
from fewbits.kernels.arrays import planes
from fewbits.kernels.bits.options import read_format
from fewbits.kernels.ops import by_torch
from fewbits.kernels.ops.backends import is_native
from fewbits.kernels.ops.derivatives import derive
from fewbits.kernels.ops.direct import is_ordinary, is_recorded
from fewbits.kernels.ops.library import LIBRARY, define
from fewbits.kernels.ops.memory import empty
from fewbits.kernels.ops.no_autocast import no_autocast
from fewbits.kernels.ops.products import rows_of_a_batch
from fewbits.kernels.ops.tensors import array, packed


def _plane_product(
    x: torch.Tensor,
    codes: torch.Tensor,
    scales: torch.Tensor | None,
    lines: int,
    format: str,
    activation: str,
) -> torch.Tensor:
    formats = read_format(format), read_format(activation)
    if not is_native(x):
        planes.check(*formats)
        with exact_arithmetic(), no_autocast(x):
            return portable.plane_product(x.float(), codes, scales, lines, *formats).to(x.dtype)
    y = empty((len(x), lines), torch.float32)
    weight = packed((codes, scales, None, None))
    planes.plane_product(array(x.float()), weight, formats[0], lines, formats[1], out=array(y))
    return y.to(x.dtype)


def _empty_rows(
    x: torch.Tensor, codes: torch.Tensor, scales: torch.Tensor | None, lines: int, *_: Any
) -> torch.Tensor:
    return x.new_empty((x.shape[0], lines))


define(_plane_product, _empty_rows)


def _gradients(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    return by_torch.product(gradient, _weight(ctx, gradient.dtype)), None, None


def _tangent(ctx: Any, tangent: torch.Tensor | None, *_: Any) -> torch.Tensor | None:
    return None if tangent is None else by_torch.product(tangent, _weight(ctx, tangent.dtype).t())


def _weight(ctx: Any, dtype: torch.dtype) -> torch.Tensor:
    codes, scales = ctx.saved_tensors
    lines, format, _ = ctx.others
    weight: torch.Tensor = torch.ops.fewbits.dequantize(
        codes, scales, None, None, format, (lines, ctx.shape[-1]), 1, dtype
    )
    return weight


# The rounding of x passes derivatives on as they are.
derive(LIBRARY, "plane_product", 3, _gradients, _tangent, keeps=1)
torch.library.register_vmap(
    "fewbits::plane_product", rows_of_a_batch(torch.ops.fewbits.plane_product), lib=LIBRARY
)


def plane_product(
    x: torch.Tensor, parts: tuple[torch.Tensor | None, ...], format: Format, lines: int, activation: Format
) -> torch.Tensor:
    """Return ``r @ W.T`` in x's dtype, r being ``x`` rounded to ``activation``.

    Derivatives are those of ``x @ W.T``. Arguments and errors are those of
    :func:`fewbits.kernels.arrays.planes.plane_product`.
    """
    codes, scales, *_ = parts
    assert codes is not None
    call = _plane_product if is_ordinary(x, codes) and not is_recorded(x) else torch.ops.fewbits.plane_product
    y: torch.Tensor = call(x, codes, scales, lines, format.grammar, activation.grammar)
    return y
