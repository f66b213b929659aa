"""A tensor held in a narrow format: packed codes and scales that behave as a torch.Tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from operator import index
from typing import Any, NoReturn

import numpy as np
import torch

from fewbits.errors import ArgumentError, DTypeError
from fewbits.formats import Format, parse, shares_scale
from fewbits.formats.pattern import Pattern, pattern
from fewbits.kernels import ops
from fewbits.kernels.arrays import nm
from fewbits.kernels.bits.axes import checked_axis
from fewbits.kernels.bits.layout import Parts, layout, unpacked
from fewbits.kernels.ops import tensors
from fewbits.tensor.narrow.registry import matmul, run
from fewbits.tensor.narrow.sealed import Sealed, sealed
from fewbits.typing import AnyArray

PARTS = ("codes", "scales", "shifts", "outer")
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
Pieces = tuple[torch.Tensor | None, ...]


class NarrowTensor(Sealed):
    """A torch.Tensor whose values are stored as packed codes and scales of a format.

    It has the shape and device of the tensor that was quantized; ``dtype`` is the dtype of
    :meth:`dequantize`. Indexing, views, copies, ``to``, products with ordinary tensors,
    ``torch.nn.Parameter(q, requires_grad=False)`` and ``torch.compile`` work on the packed parts, and nothing
    is rounded a second time. An operation that needs the values raises an ArgumentError; call
    :meth:`dequantize` first.

    In every part the block axis is last, and each line along it starts on a byte
    (:func:`fewbits.kernels.layout.layout`). :func:`fewbits.quantize` makes one, as does :meth:`from_parts`.

    Attributes:
        format: what the bits mean.
        axis: the axis along which blocks lie, a non-negative index.
        sparsity: the N:M pattern of the elements that are stored; None if all are.
        codes: (..., bytes) uint8, the packed elements; for a sparse tensor, streams of masks and elements.
        scales: (..., bytes) uint8, or (1, ..., bytes) for a scale per tensor; None without scales.
        shifts: (..., bytes) uint8, the microexponents of BDR, or None.
        outer: (..., 1) or (1, ..., 1) float32, the scales over the scales, or None.
    """

    format: Format
    axis: int
    codes: torch.Tensor
    scales: torch.Tensor | None
    shifts: torch.Tensor | None
    sparsity: Pattern | None
    outer: torch.Tensor | None  # type: ignore[assignment]  # torch.Tensor has a method of this name
    _family: np.dtype[np.generic] | None  # the dtype of the NumPy array that was quantized; None for a tensor
    _sharing: int | None = None  # values, or values of a line, that share the scales; None: those of this

    # All operations go through __torch_dispatch__.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # switches it off

    @staticmethod
    def __new__(
        cls: type[NarrowTensor],
        parts: Pieces,
        format: Format,
        shape: Sequence[int],
        axis: int,
        dtype: torch.dtype,
        family: np.dtype[np.generic] | None = None,
        sparsity: Pattern | None = None,
    ) -> NarrowTensor:
        """Construct from parts without checks; :meth:`from_parts` checks them."""
        codes = parts[0]
        assert codes is not None
        q: NarrowTensor = sealed(cls, shape, dtype, codes.device, _strides(parts, shape, axis))
        q.codes, q.scales, q.shifts, q.outer = parts  # type: ignore[assignment]  # codes are there
        q.format, q.axis, q._family, q.sparsity = format, axis, family, sparsity
        return q

    def __init__(self, *_: Any) -> None:
        """Do nothing: torch.Tensor's takes no arguments, and ``__new__`` has set all there is."""

    @classmethod
    def from_parts(
        cls,
        codes: torch.Tensor,
        scales: torch.Tensor | None,
        shifts: torch.Tensor | None,
        outer: torch.Tensor | None,
        *,
        format: str | Format,
        shape: tuple[int, ...],
        axis: int,
        dtype: torch.dtype,
        sparsity: str | Pattern | None = None,
    ) -> NarrowTensor:
        """Return a tensor made of packed parts, which are not copied.

        Args:
            codes: (..., bytes) uint8 with the block axis last.
            scales: (..., bytes) uint8; None for a format without scales.
            shifts: (..., bytes) uint8; None for a format without microexponents.
            outer: (..., 1) float32; None for a format without outer scales.
            format: what the bits mean, or its text.
            shape: of the values.
            axis: along which blocks lie.
            dtype: of the values: float32, bfloat16, float16 or float64.
            sparsity: the pattern, if the codes are streams; see docs/sparse_storage.md.

        Raises:
            ArgumentError: a part is missing, does not belong to the format, has the wrong shape or device,
                the length of the axis is not a multiple of the pattern's group, or ``shape`` has no lengths.
            DataError: a mask does not keep exactly the number of values that the pattern says.
            FormatError: there is no such format or pattern, or the format has no zero for what is left out.
            DTypeError: a part or ``dtype`` has a dtype that does not fit, or a part is not dense.
        """
        format, shape = parse(format), _lengths(shape)
        front = checked_axis(axis, len(shape))
        parts = (codes, scales, shifts, outer)
        kept = None if sparsity is None else pattern(sparsity)
        n = shape[front] if shape else 1
        if kept is not None:
            nm.check_length(n, kept, f"{format} of shape {shape}")
        wanted = layout(format, shape, front, kept)
        what = f"{format}{'' if kept is None else f' with {kept}'} of shape {shape} with axis={front}"
        for name, part, shape_of_part in zip(PARTS, parts, wanted, strict=True):
            _check(name, part, shape_of_part, codes, what)
        if dtype not in DTYPES:
            raise DTypeError(f"dtype={dtype}; values are float32, bfloat16, float16 or float64: choose one")
        if kept is not None:
            ops.check_masks(codes, format, n, kept)
        return cls(parts, format, shape, front, dtype, None, kept)

    @property
    def pieces(self) -> Pieces:
        """Codes, scales, shifts and outer scales; None for those that the format lacks."""
        return (self.codes, self.scales, self.shifts, self.outer)

    @property
    def nbytes(self) -> int:  # type: ignore[override]  # nobody could write torch's either
        """Bytes of codes and scales together."""
        return sum(p.numel() * p.element_size() for p in self.pieces if p is not None)

    def dequantize(self) -> AnyArray:  # type: ignore[override]  # an array where one was quantized
        """Return the values, as an array or tensor like the one quantized, on the same device.

        Products of elements and scales are rounded to float32, then to a narrower dtype; those of
        ``q.to(torch.float64)`` are exact where they fit into float64. docs/rules.md has the rule.

        Raises:
            ArgumentError: the values are an array, and the call is compiled.
        """
        if self._family is not None and torch.compiler.is_compiling():
            raise ArgumentError(
                f"dequantize() of {self} returns a NumPy array, which a compiled graph cannot hold: call "
                ".dense() for a tensor"
            )
        y = self.dense()
        if self._family is None:
            return y
        y = y.float() if y.dtype == torch.bfloat16 else y  # NumPy has no bfloat16 of its own
        return y.numpy().astype(self._family, copy=False)

    def dense(self) -> torch.Tensor:
        """Return the values as a torch.Tensor, even if a NumPy array was quantized."""
        whole = tuple(None if p is None else p.contiguous() for p in self.with_all_codes().pieces)
        return ops.dequantize(whole, self.format, self.shape, self.axis, self.dtype)

    def with_all_codes(self) -> NarrowTensor:
        """Return the same values without sparsity, with all codes stored; a dense tensor returns itself."""
        if self.sparsity is None:
            return self
        codes = ops.expand(self.codes.contiguous(), self.format, self._in_line, self.sparsity)
        parts = (codes, *self.pieces[1:])
        return NarrowTensor(parts, self.format, self.shape, self.axis, self.dtype, self._family)

    def compressed(self, sparsity: str | Pattern) -> NarrowTensor:
        """Return the same values with a bit mask and only N of every M codes along the axis.

        Zeros of either sign are left out and come back as plus zero. docs/sparse_storage.md has the layout.

        Raises:
            FormatError: there is no such pattern, or the format has no zero.
            ArgumentError: the tensor is sparse already, or its axis is not a multiple of the group.
            DataError: a group has more nonzero values than the pattern keeps.
        """
        kept = pattern(sparsity)
        if self.sparsity is not None:
            raise ArgumentError(f"{self}; it is sparse already: call .with_all_codes() first")
        nm.check_length(self._in_line, kept, str(self))
        nm.zeros(self.format)
        codes = ops.compress(self.codes.contiguous(), self.format, self._in_line, kept)
        parts = (codes, *self.pieces[1:])
        return NarrowTensor(parts, self.format, self.shape, self.axis, self.dtype, self._family, kept)

    @property
    def _in_line(self) -> int:
        return self.shape[self.axis] if self.ndim else 1

    @property
    def _shares_its_scale(self) -> bool:
        """Whether values that are not of this tensor share a scale with it, as with a piece of another."""
        return self._sharing not in (None, self._with_one_scale)

    @property
    def _with_one_scale(self) -> int | None:
        """How many values of this tensor share a scale that more than a block shares; None for no such."""
        if shares_scale(self.format, "tensor"):
            return self.numel()
        return self._in_line if shares_scale(self.format, "channel") else None

    def parts(self) -> Parts:
        """Return codes and scales unpacked to NumPy arrays of integers, with the block axis last."""
        whole = tensors.packed(None if p is None else p.contiguous() for p in self.with_all_codes().pieces)
        return unpacked(whole, self.format, tuple(self.shape), self.axis)

    def remade(self, parts: Pieces, shape: Sequence[int], axis: int) -> NarrowTensor:
        """Return a tensor of other parts with this tensor's format and dtype.

        Where codes are this tensor's own memory, scales are too, and stay those of as many values as before.
        """
        made = NarrowTensor.__new__(
            NarrowTensor, parts, self.format, shape, axis, self.dtype, self._family, self.sparsity
        )
        if self._sharing is None and (made.numel(), made._in_line) == (self.numel(), self._in_line):
            return made
        own = self._with_one_scale
        if own is not None and torch._C._is_alias_of(made.codes, self.codes):  # type: ignore[attr-defined]  # torch's stubs lack it
            made._sharing = self._sharing or own
        return made

    def __matmul__(self, other: torch.Tensor) -> torch.Tensor:  # type: ignore[override]  # torch's takes anything
        return matmul(self, other)

    def __rmatmul__(self, other: torch.Tensor) -> torch.Tensor:
        return matmul(other, self)

    def each(self, change: Callable[[torch.Tensor], torch.Tensor]) -> NarrowTensor:
        """Return a tensor whose parts are ``change`` applied to those of this one."""
        parts = tuple(None if p is None else change(p) for p in self.pieces)
        return self.remade(parts, self.shape, self.axis)

    @property
    def requires_grad(self) -> bool:
        """False: a packed tensor never requires a gradient.

        Raises:
            ArgumentError: it is set to True.
        """
        return False

    @requires_grad.setter
    def requires_grad(self, value: bool) -> None:
        if value:
            raise ArgumentError(
                f"requires_grad=True of {self}, which takes no gradient: train an ordinary tensor, and round "
                "it with fewbits.fake_quantize"
            )

    def requires_grad_(self, requires_grad: bool = True) -> NarrowTensor:
        """Return the tensor unchanged: a packed tensor never requires a gradient.

        This is no error, since torch calls it: ``load_state_dict(assign=True)`` can replace a trained
        parameter by a packed one, and ``torch.nn.Parameter(q)`` is frozen. To train, use
        :func:`fewbits.fake_quantize`.
        """
        return self

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        names = [name for name, part in zip(PARTS, self.pieces, strict=True) if part is not None]
        sharing = None if self._sharing is None else int(self._sharing)  # a number in graphs, not a symbol
        return names, (self.format, self.axis, self.dtype, self._family, self.sparsity, sharing)

    @staticmethod
    def __tensor_unflatten__(inner: dict[str, torch.Tensor], meta: Any, shape: Any, _: Any) -> NarrowTensor:
        format, axis, dtype, family, sparsity, sharing = meta
        made = NarrowTensor(tuple(map(inner.get, PARTS)), format, shape, axis, dtype, family, sparsity)
        made._sharing = sharing
        return made

    def _stable_hash_for_caching(self) -> str:
        """Return the key of this tensor's metadata for torch's cache of compiled graphs."""
        _, meta = self.__tensor_flatten__()
        memory = [
            part if part is None else (part.shape, part.stride(), part.storage_offset(), part.device)
            for part in self.pieces
        ]
        return str((self.format.grammar, self.shape, *meta[1:], memory))

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]  # typed there as what switches it off
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        return run(func, args, kwargs or {})

    def __copy__(self) -> NarrowTensor:
        return self._as_parameter_like(self.detach())

    def __deepcopy__(self, memo: dict[int, Any]) -> NarrowTensor:
        if id(self) not in memo:
            # As torch does, by their storages: views of the same bytes are that in the copy too.
            parts = tuple(without_derivatives(deepcopy(part, memo)) for part in self.pieces)
            meta = (self.format, self.shape, self.axis, self.dtype, self._family, self.sparsity)
            made = NarrowTensor.__new__(NarrowTensor, parts, *meta)
            made._sharing = self._sharing
            memo[id(self)] = self._as_parameter_like(made)
        found: NarrowTensor = memo[id(self)]
        return found

    def _as_parameter_like(self, copy: Any) -> NarrowTensor:
        if getattr(self, "_is_param", False):  # how torch.nn.Parameter marks a subclass
            copy._is_param = True
        found: NarrowTensor = copy
        return found

    def share_memory_(self) -> NarrowTensor:
        """Move the packed parts to shared memory, in place; return the tensor."""
        for part in self.pieces:
            if part is not None:
                part.share_memory_()
        return self

    def is_shared(self) -> bool:
        """Return whether the packed parts are in shared memory."""
        return all(p.is_shared() for p in self.pieces if p is not None)

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise DTypeError(
            f"a NarrowTensor ({self.format}) is not pickled, nor saved by torch.save: write it as "
            "safetensors with fewbits.files.save_file, or pickle what .dequantize() gives"
        )

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]  # torch's is untyped
        shape = tuple(self.shape)
        sparsity = "" if self.sparsity is None else f", sparsity={self.sparsity}"
        return f"NarrowTensor({self.format}, shape={shape}, axis={self.axis}{sparsity}, {self.nbytes} bytes)"

    def __format__(self, spec: str) -> str:
        return format(repr(self), spec)


def unwrapped(x: Any) -> Any:
    """Return the NarrowTensor in what torch.func made of a view of one; anything else as it is."""
    inner = without_derivatives(x)
    return inner if isinstance(inner, NarrowTensor) else x


def without_derivatives(x: Any) -> Any:
    """Return ``x`` as it was before a transform of torch.func wrapped it to differentiate it.

    Such a transform wraps what every operation returns, so also packed tensors and their parts, which have no
    derivatives.
    """
    if torch.compiler.is_compiling() or not torch._C._are_functorch_transforms_active():
        return x
    while isinstance(x, torch.Tensor) and torch._C._functorch.is_gradtrackingtensor(x):
        x = torch._C._functorch.get_unwrapped(x)
    return x


def _strides(parts: Pieces, shape: Sequence[int], axis: int) -> list[int] | None:
    """Return strides by which torch tells what can be viewed without a copy; None for those of C order.

    They are those of a part that is not in C order, with the block axis put back in its place.
    """
    for part in parts:
        if shape and part is not None and not part.is_contiguous():
            *others, length = part.shape
            apart = max(-(-shape[axis] // max(length, 1)), 1)  # values for each item of a line
            strides = [step * apart for step in part.stride()[: len(others)]]
            return [*strides[:axis], 1, *strides[axis:]]
    return None


def _lengths(shape: Any) -> tuple[int, ...]:
    """Return ``shape`` as integers; those of a traced graph stay symbols."""
    try:
        lengths: tuple[Any, ...] = tuple(n if isinstance(n, torch.SymInt) else index(n) for n in shape)
    except TypeError:
        lengths = (-1,)
    if any(n < 0 for n in lengths):
        raise ArgumentError(f"shape={shape!r:.200}; expected the lengths of the axes, such as (4, 64)")
    return lengths


def _check(name: str, part: Any, wanted: Any, codes: torch.Tensor, what: str) -> None:
    """Raise unless ``part`` has the shape, dtype and device that ``what`` needs."""
    if wanted is None or part is None:
        if wanted is not part:
            have = "are missing" if part is None else "were given"
            need = "has none" if wanted is None else f"needs them, of shape {tuple(wanted)}"
            raise ArgumentError(f"{name} {have}; {what} {need}")
        return
    dtype = torch.float32 if name == "outer" else torch.uint8
    if not isinstance(part, torch.Tensor) or part.dtype != dtype:
        given = f"of {part.dtype}" if isinstance(part, torch.Tensor) else f"as {type(part).__name__}"
        raise DTypeError(f"{name} given {given}; {what} needs a torch.Tensor of {dtype}")
    if part.layout != torch.strided:
        layout_of_part = str(part.layout).removeprefix("torch.")
        raise DTypeError(f"{name} of layout {layout_of_part}; {what} needs a dense tensor: give .to_dense()")
    if tuple(part.shape) != tuple(wanted):
        raise ArgumentError(
            f"{name} of shape {tuple(part.shape)}; {what} needs {tuple(wanted)}, the block axis last"
        )
    if part.device != codes.device:
        raise ArgumentError(f"{name} on {part.device} and codes on {codes.device}; put them on one device")
