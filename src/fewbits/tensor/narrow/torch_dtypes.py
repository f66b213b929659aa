"""Conversion between packed tensors and torch's own narrow dtypes, without rounding."""

from __future__ import annotations

import torch

from fewbits.errors import ArgumentError, DTypeError
from fewbits.formats import CATALOGUE, Format, parse
from fewbits.kernels.bits.axes import checked_axis
from fewbits.tensor.narrow.tensor import NarrowTensor

_NAMES = {
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
    "fp8_e4m3fnuz": torch.float8_e4m3fnuz,
    "fp8_e5m2fnuz": torch.float8_e5m2fnuz,
    "e8m0": torch.float8_e8m0fnu,
    "fp4_e2m1": torch.float4_e2m1fn_x2,  # two codes to a byte, the first in the low half
}
DTYPE_OF: dict[Format, torch.dtype] = {CATALOGUE[name].format: dtype for name, dtype in _NAMES.items()}
FORMAT_OF = {dtype: fmt for fmt, dtype in DTYPE_OF.items()}


def dtype_name(dtype: torch.dtype) -> str:
    """Return the format of a dtype's values as fewbits prints it; ``fp64``, ``int64`` where it has none."""
    known = FORMAT_OF.get(dtype)
    return str(dtype).removeprefix("torch.").replace("float", "fp") if known is None else str(known)


def to_torch(q: NarrowTensor) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return elements and scales in torch's own dtypes, as views of the packed bytes.

    Args:
        q: in a scalar format that has a torch dtype, or a block format whose element and scale have one.

    Returns:
        Elements of q's shape (half as long along the block axis for FP4, two values to a byte), and scales of
        that shape with one entry for each block along that axis (of shape (1, ..., 1) for a scale per
        tensor), or None. An outer scale, as in NVFP4, stays in ``q.outer``.

    Raises:
        ArgumentError: torch has no dtype for the format, the tensor is sparse, or the block axis has an odd
            number of FP4 values.
        DTypeError: q is no NarrowTensor.

    >>> q = NarrowTensor.from_parts(torch.tensor([0x38, 0xC0], dtype=torch.uint8), None, None, None,
    ...     format=CATALOGUE["fp8_e4m3"].format, shape=(2,), axis=0, dtype=torch.float32)
    >>> to_torch(q)[0]
    tensor([ 1., -2.], dtype=torch.float8_e4m3fn)
    """
    if not isinstance(q, NarrowTensor):
        raise DTypeError(f"{type(q).__name__}; expected the NarrowTensor that fewbits.quantize returns")
    element, scale = _dtypes(q.format)
    if q.sparsity is not None:
        raise ArgumentError(
            f"{q} has masks among its elements; torch's dtypes have none: call .with_all_codes() first"
        )
    if element == torch.float4_e2m1fn_x2 and (not q.ndim or q.shape[q.axis] % 2):
        raise ArgumentError(
            f"{q} has an odd number of values along its block axis; {element} holds two to a byte: pad x "
            "before it is quantized"
        )
    elements = _moved_back(_viewed(q.codes, element), q)
    if scale is None:
        return elements, None
    assert q.scales is not None
    return elements, _moved_back(_viewed(q.scales, scale), q)


def _viewed(part: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if part.numel():
        return part.view(dtype)
    # The strides of an empty tensor may not allow the view.
    return part.new_empty((*part.shape[:-1], part.shape[-1] // dtype.itemsize), dtype=dtype)


def from_torch(
    elements: torch.Tensor,
    scales: torch.Tensor | None = None,
    *,
    format: str | Format | None = None,
    axis: int = -1,
    outer: torch.Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> NarrowTensor:
    """Return a packed tensor of elements and scales in torch's own dtypes.

    The bytes are shared if the block axis is contiguous in memory, else copied.

    Args:
        elements: any shape; float8, float4_e2m1fn_x2 (two values to a byte along ``axis``), float16,
            bfloat16 or float32.
        scales: for a block format: the shape of ``elements``, but with one entry per block along ``axis``.
        format: the block format, or its text; a scalar format follows from the dtype of the elements.
        axis: along which blocks lie.
        outer: for a format with outer scales: (..., 1) float32, with the block axis last.
        dtype: that of :meth:`NarrowTensor.dequantize`.

    Raises:
        FormatError: no such format.
        ArgumentError: torch has no dtype for the format, scales came without a block format, or a shape is
            wrong.
        DTypeError: elements or scales are no ordinary tensors, or do not have the dtypes of the format.

    >>> from_torch(torch.ones(4).to(torch.float8_e5m2))
    NarrowTensor(fp8_e5m2, shape=(4,), axis=0, 4 bytes)
    """
    _check_ordinary(elements, "elements")
    if scales is not None:
        _check_ordinary(scales, "scales")
    fmt = _inferred(elements, scales) if format is None else parse(format)
    element, scale = _dtypes(fmt)
    _is(elements, element, "elements", fmt)
    front = checked_axis(axis, elements.ndim)
    shape = list(elements.shape)
    if element == torch.float4_e2m1fn_x2:
        if not shape:
            raise ArgumentError(
                f"elements of {element} without an axis; a byte holds two values: give (1,) or more"
            )
        shape[front] *= 2
    if scale is not None:
        if scales is None:
            raise ArgumentError(f"scales are missing; {fmt} needs them in {scale}")
        _is(scales, scale, "scales", fmt)
    elif scales is not None:
        raise ArgumentError(
            f"scales were given, and {fmt} has none: leave them out, or give the block format"
        )
    return NarrowTensor.from_parts(
        _bytes(elements, front),
        None if scales is None else _bytes(scales, front),
        None,
        outer,
        format=fmt,
        shape=tuple(shape),
        axis=front,
        dtype=dtype,
    )


def _check_ordinary(part: object, name: str) -> None:
    if not isinstance(part, torch.Tensor) or isinstance(part, NarrowTensor):
        raise DTypeError(
            f"{name} given as {type(part).__name__}; expected a torch.Tensor in one of torch's own dtypes, as"
            " to_torch returns it"
        )


def _dtypes(format: Format) -> tuple[torch.dtype, torch.dtype | None]:
    """Return torch's dtypes of elements and scales."""
    element, scales = format.element, format.groups.scales
    scale = None if scales is None else scales.element
    if element not in DTYPE_OF or (scale is not None and scale not in DTYPE_OF):
        raise ArgumentError(
            f"torch has no dtype for {format}; it has one for {', '.join(_NAMES)}, and for blocks of them: "
            "keep the NarrowTensor, or call .dequantize()"
        )
    return DTYPE_OF[element], None if scale is None else DTYPE_OF[scale]


def _inferred(elements: torch.Tensor, scales: torch.Tensor | None) -> Format:
    if scales is not None:
        raise ArgumentError(
            "scales without a format; say which block format they are of, for example format=fb.mxfp4"
        )
    if elements.dtype not in FORMAT_OF:
        raise DTypeError(f"elements of {elements.dtype}; expected one of {', '.join(map(str, FORMAT_OF))}")
    return FORMAT_OF[elements.dtype]


def _is(given: torch.Tensor, dtype: torch.dtype, what: str, format: Format) -> None:
    if given.dtype != dtype:
        raise DTypeError(f"{what} of {given.dtype}; {format} needs {dtype}")


def _bytes(x: torch.Tensor, axis: int) -> torch.Tensor:
    """Return the bytes of ``x`` with ``axis`` last."""
    if x.element_size() == 1:
        x = x.view(torch.uint8)  # torch cannot move and copy every narrow dtype
    lines = x.movedim(axis, -1) if x.ndim else x.reshape(1)
    return (lines if lines.stride(-1) == 1 else lines.contiguous()).view(torch.uint8)


def _moved_back(lines: torch.Tensor, q: NarrowTensor) -> torch.Tensor:
    back: torch.Tensor = lines.movedim(-1, q.axis) if q.ndim else lines.reshape(())
    return back
