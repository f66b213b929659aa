"""Activations between the forward and the backward pass, packed as the backward product takes them.

A product of the backward pass rounds its operand from the tensor as it was, along an axis of its own (Rouhani
et al., Microscaling Data Formats for Deep Learning, 2023, figure 2). Rounded and packed in the forward pass
instead, the same bits wait in the room of the narrow format.
"""

from __future__ import annotations

import math
import weakref
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from fewbits.kernels import ops
from fewbits.kernels.bits.layout import layout
from fewbits.kernels.bits.options import Choices
from fewbits.nn.layer_precision import LayerPrecision, Operand
from fewbits.recipes import RoleFormat
from fewbits.recipes.rounding import fresh_seed, power, round_as

Tensors = tuple[torch.Tensor | None, ...]

# Of each activation: what it was packed as, for several layers that take the same one.
_SHARED = WeakTensorKeyDictionary()


@dataclass
class SavedActivation:
    """How one activation is saved, beside its tensors, which autograd saves.

    Attributes:
        precision: those of the layer.
        role: the operand that it will be.
        target: what it is rounded to. The layer's own format may be another one in the backward pass, if a
            schedule has changed it meanwhile.
        axis: along which the backward product sums, counted from the front.
        shape: of the activation as that product takes it.
        dtype: of its values.
        seed: of stochastic rounding.
        packed: whether the tensors are codes and scales, not the activation itself.
    """

    precision: LayerPrecision
    role: str
    target: RoleFormat | None
    axis: int
    shape: torch.Size
    dtype: torch.dtype
    seed: int | None
    packed: bool

    def operand(self, tensors: Tensors) -> torch.Tensor:
        """Return the rounded operand from the tensors that :func:`save_activation` returned."""
        if not self.packed:
            (x,) = tensors
            assert x is not None
            return self._rounded(x.reshape(self.shape))
        assert self.target is not None
        return _opened(tensors, self, self.target)

    def _rounded(self, x: torch.Tensor) -> torch.Tensor:
        if self.target is None:
            return x
        overflow = self.precision.overflow_of(self.role)
        rounded = round_as(x, self.target, self.axis, overflow=overflow, seed=self.seed)
        self.precision.report(self.role, x, rounded, self.axis)
        return rounded


def save_activation(
    x: torch.Tensor, role: str, axis: int, shape: torch.Size, precision: LayerPrecision
) -> tuple[SavedActivation, Tensors]:
    """Return how ``x`` is kept for the operand ``role`` of the backward pass, and the tensors to be saved.

    Args:
        x: the activation, as it enters the layer.
        role: of the operand.
        axis: along which the product sums, in ``shape``.
        shape: in which the product takes x.
        precision: of the layer.
    """
    target = precision.format_of(role)
    seed = None if target is None else fresh_seed(target.rounding)
    saved = SavedActivation(precision, role, target, axis, shape, x.dtype, seed, False)
    if target is None or not precision.packs_activations or _kept_anyway(x) or not _saves(x, target, saved):
        return saved, (x,)
    saved.packed = True
    tensors = _shared(x, target, saved) if seed is None else _pack(x, target, saved)
    if precision.is_observed:  # to open what was packed takes as long as packing it
        precision.report(role, x.reshape(shape), _opened(tensors, saved, target), axis)
    return saved, tensors


def save_beside_forward(
    x: torch.Tensor, shape: torch.Size, precision: LayerPrecision
) -> tuple[Operand, SavedActivation, Tensors] | None:
    """Return the operand of the forward product too, where a device packs both from one read of ``x``.

    None elsewhere, and where ``x`` is not packed here.

    Args:
        x: the activation, as it enters the layer.
        shape: (m, k), in which the forward product sums along k, and the backward one along m.
        precision: of the layer.
    """
    target = precision.format_of("dw_activation")
    if target is None or not (precision.packs_activations and ops.multiplies_rounded(x)):
        return None
    saved = SavedActivation(precision, "dw_activation", target, 0, shape, x.dtype, None, True)
    if _kept_anyway(x) or not _saves(x, target, saved) or _known(x, target, saved) is not None:
        return None
    both = precision.packed_both(
        x.detach().reshape(shape), ("forward_activation", "forward_weight"), ("dw_activation", "dw_gradient")
    )
    if both is None:
        return None
    codes, scales = both[1].parts
    tensors = (codes, scales, None, None, None)
    _remember(x, target, saved, tensors)
    return both[0], saved, tensors


def _kept_anyway(x: torch.Tensor) -> bool:
    """Whether the function that x comes from keeps it for its own gradient, as relu and tanh do."""
    if torch.compiler.is_compiling():
        return False
    hooks: Any = torch._C._autograd._top_saved_tensors_default_hooks(True)
    if hooks is not None:
        return False  # hooks, as of checkpointing, may recompute saved tensors from a detached x
    source: Any = x._base if x._is_view() else x
    return hasattr(type(source.grad_fn), "_saved_result")


def _saves(x: torch.Tensor, target: RoleFormat, saved: SavedActivation) -> bool:
    """Whether codes and scales take less room than the activation."""
    parts = layout(target.format, tuple(saved.shape), saved.axis)
    sizes = [math.prod(part) for part in parts if part is not None]
    outer = 0 if parts[3] is None else 3 * math.prod(parts[3])  # float32, the rest is bytes
    return bool(sum(sizes) + outer < x.numel() * x.element_size())


def _pack(x: torch.Tensor, target: RoleFormat, saved: SavedActivation) -> Tensors:
    """Return codes, scales, shifts, outer scales and the power of two that values were divided by."""
    x = x.detach().reshape(saved.shape)
    scale = None if target.shift is None else power(x, target.shift)
    parts = iter(
        ops.quantize(
            x if scale is None else x.float() / scale,
            target.format,
            saved.axis,
            Choices(target.rounding, target.scale_rule, overflow="saturate"),
            saved.seed or 0,
            None,
        )
    )
    return (*(None if group is None else next(parts) for group in target.format.groups), scale)


def _opened(tensors: Tensors, saved: SavedActivation, target: RoleFormat) -> torch.Tensor:
    *parts, scale = tensors
    dtype = saved.dtype if scale is None else torch.float32
    values = ops.dequantize(tuple(parts), target.format, saved.shape, saved.axis, dtype)
    return values if scale is None else (values * scale).to(saved.dtype)


def _shared(x: torch.Tensor, target: RoleFormat, saved: SavedActivation) -> Tensors:
    """Return what ``x`` is packed as; once for all layers that keep it the same way."""
    if torch.compiler.is_compiling():
        return _pack(x, target, saved)
    tensors = _known(x, target, saved)
    if tensors is None:
        tensors = _pack(x, target, saved)
        _remember(x, target, saved, tensors)
    return tensors


def _known(x: torch.Tensor, target: RoleFormat, saved: SavedActivation) -> Tensors | None:
    """Return what ``x`` was packed as for another layer that still keeps it.

    Of a tensor from outside, whose memory a loader may fill anew without its knowledge, nothing is known;
    ``x.data`` and NumPy write into leaves so, too.
    """
    if x.is_leaf:
        return None
    references = _SHARED.get(x, {}).get((target, saved.axis, saved.shape, x._version))
    if references is None:
        return None
    tensors = tuple(None if reference is None else reference() for reference in references)
    gone = any(t is None and r is not None for t, r in zip(tensors, references, strict=True))
    return None if gone else tensors


def _remember(x: torch.Tensor, target: RoleFormat, saved: SavedActivation, tensors: Tensors) -> None:
    if x.is_leaf:  # nobody will ask
        return
    references = [None if t is None else weakref.ref(t) for t in tensors]
    _SHARED.setdefault(x, {})[target, saved.axis, saved.shape, x._version] = references
