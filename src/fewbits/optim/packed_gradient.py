"""A gradient that is packed in ``p.grad``, and that reads and scales like any other."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from fewbits.optim.packing import bytes_of, pack, unpack
from fewbits.recipes import RoleFormat

_aten = torch.ops.aten
_TIMES = (_aten.mul_.Tensor, _aten.mul_.Scalar)
_SCALED = (*_TIMES, _aten.div_.Tensor, _aten.div_.Scalar)
_EACH = (_aten._foreach_mul_.Scalar, _aten._foreach_mul_.Tensor)  # of clip_grad_norm_(foreach=True)
_UNSCALE = _aten._amp_foreach_non_finite_check_and_unscale_.default  # of torch.amp.GradScaler


@dataclass
class _Box:
    """What a gradient and its aliases share: packed or wide values, and a factor that multiplies them.

    The factor is NaN if the gradient was not finite: every format, also one without NaN, can thus report an
    overflow. Unscaling and clipping change the factor only, so that nothing is rounded a second time.
    """

    inner: torch.Tensor
    factor: torch.Tensor  # () float32
    wide: bool = False  # whether the values are not packed, and views of them may be around


class PackedGradient(torch.Tensor):
    """The gradient of a parameter in a narrow format.

    Whatever reads it gets its values. Multiplied by one number, as loss scalers and clipping do, it stays
    packed and nothing is rounded; what autograd adds is rounded anew. Whatever else is written to it is kept
    as it is: packed where the format has the values, wide where it has not. On a device, where the host would
    have to wait for the answer, it is kept wide.

    Args:
        x: float32 values; those that are not finite make the whole gradient NaN.
        target: the format.
        dtype: that of ``p.grad``, which torch compares.
    """

    target: RoleFormat
    _box: _Box

    # Every operation comes by __torch_dispatch__.
    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]  # switches it off

    @staticmethod
    def __new__(
        cls: type[PackedGradient], x: torch.Tensor, target: RoleFormat, dtype: torch.dtype = torch.float32
    ) -> PackedGradient:
        """Pack values."""
        g = _shell(x, target, dtype)
        g._box = _packed(x, target)
        return g

    def values(self) -> torch.Tensor:
        """Return the values as float32, of the gradient's shape."""
        return unpack(self._box.inner) * self._box.factor

    @property
    def nbytes(self) -> int:  # type: ignore[override]  # nobody could write torch's either
        """Bytes of codes and scales together."""
        return bytes_of(self._box.inner)

    def numpy(self, *, force: bool = False) -> Any:
        """Return the values as an array, as of any gradient."""
        return self.values().to(self.dtype).numpy(force=force)

    def tolist(self) -> Any:
        """Return the values as numbers of Python."""
        return self.values().tolist()

    def __repr__(self, **_: Any) -> str:  # type: ignore[override]  # torch's has an option
        """Name the format, the shape and the size."""
        return f"PackedGradient({self.target}, shape={tuple(self.shape)}, {self.nbytes} bytes)"

    def __init__(self, *_: Any) -> None:
        """Take what :meth:`__new__` took."""

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]  # typed there as what switches it off
        """Scale the packed gradient by its factor; run every other operation on its values."""
        kwargs, first = kwargs or {}, args[0]
        if func is _UNSCALE:
            return _unscale(*args)
        if func in _EACH and _is_one_number(args[1]):
            for g in first:
                g.mul_(args[1])
            return None
        if isinstance(first, PackedGradient):
            if func is _aten.detach.default:
                return first._alias()
            if func in _SCALED and _is_one_number(args[1]):
                box, number = first._box, args[1]
                if isinstance(number, torch.Tensor):
                    number = number.to(first.device).reshape(())
                if box.wide and box.inner.dtype == torch.float32:  # there may be views of these values
                    func(box.inner, number)
                    return first
                box.factor = (box.factor * number if func in _TIMES else box.factor / number).float()
                return first
            if func is _aten.add_.Tensor and torch._C._current_graph_task_id() >= 0:  # autograd adds it
                first._replace(_packed(first.values().add_(_values(args[1]), **kwargs), first.target))
                return first
        return _on_values(func, args, kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> PackedGradient:
        """Return a copy as packed as this one; a second one in one copy of many is the same."""
        if id(self) not in memo:
            box = self._box
            memo[id(self)] = g = _shell(self, self.target, self.dtype)
            g._box = _Box(deepcopy(box.inner), box.factor.clone(), box.wide)
        copied: PackedGradient = memo[id(self)]
        return copied

    def _alias(self) -> PackedGradient:
        alias = _shell(self, self.target, self.dtype)
        alias._box = self._box
        return alias

    def _replace(self, box: _Box) -> None:
        self._box.inner, self._box.factor, self._box.wide = box.inner, box.factor, box.wide

    def _wide(self) -> torch.Tensor:
        """Replace the packed values by wide ones, which every alias then shares, and return them."""
        self._replace(_Box(self.values().to(self.dtype), torch.ones((), device=self.device), True))
        return self._box.inner

    def _narrow(self) -> None:
        """Pack the values again if the format represents them exactly; on a device they stay wide, unread."""
        x = self._box.inner.float()
        if x.device.type != "cpu":
            return
        box = _packed(x, self.target)
        if torch.equal(unpack(box.inner) * box.factor, x):
            self._replace(box)


def _shell(like: torch.Tensor, target: RoleFormat, dtype: torch.dtype) -> PackedGradient:
    g: PackedGradient = torch.Tensor._make_wrapper_subclass(
        PackedGradient, like.shape, dtype=dtype, device=like.device
    )
    g.target = target
    return g


def _packed(x: torch.Tensor, target: RoleFormat) -> _Box:
    finite = x.isfinite().all()
    # Of a device nobody waits for the answer: the choice is made there.
    kept = x if x.device.type == "cpu" and finite else torch.where(finite, x, 0.0)
    factor = torch.where(finite, 1.0, torch.nan).to(x.device, torch.float32)
    return _Box(pack(kept, target, overflow=None), factor)


def _values(x: Any) -> Any:
    return x.values().to(x.dtype) if isinstance(x, PackedGradient) else x


def _is_one_number(x: Any) -> bool:
    return not isinstance(x, torch.Tensor) or (x.numel() == 1 and not isinstance(x, PackedGradient))


def _unscale(gradients: list[torch.Tensor], found_inf: torch.Tensor, inv_scale: torch.Tensor) -> None:
    """Do what torch's scaler does to a list of gradients, some of them packed."""
    plain = [g for g in gradients if not isinstance(g, PackedGradient)]
    if plain:
        _UNSCALE(plain, found_inf, inv_scale)
    for g in gradients:
        if isinstance(g, PackedGradient):
            found_inf.masked_fill_(~g.values().isfinite().all(), 1.0)
            g.mul_(inv_scale)


def _on_values(func: Any, args: Any, kwargs: Any) -> Any:
    """Call an operation on the values of packed gradients; those that it writes to or aliases become wide."""
    written = list(_touched(func, args, kwargs))
    shared = {id(g) for g in written}
    wide = {id(g): g._wide() for g in written}
    args, kwargs = tree_map_only(
        PackedGradient, lambda g: wide[id(g)] if id(g) in shared else _values(g), (args, kwargs)
    )
    result = func(*args, **kwargs)
    if func._schema.is_mutable:
        for g in written:
            g._narrow()
    back = {id(wide[id(g)]): g for g in written}
    return tree_map_only(torch.Tensor, lambda t: back.get(id(t), t), result)


def _touched(func: Any, args: Any, kwargs: Any) -> Iterator[PackedGradient]:
    """Yield the packed gradients that the operation writes to or returns views of."""
    named = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
    for argument in func._schema.arguments:
        if argument.alias_info is not None and argument.name in named:
            for leaf in tree_leaves(named[argument.name]):
                if isinstance(leaf, PackedGradient):
                    yield leaf
