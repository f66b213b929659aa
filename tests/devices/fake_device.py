"""A device that is none: its tensors hide tensors of the CPU, and every transfer from and to them is noted.

Torch's device type ``lazy`` has no operations in the wheels of torch, but has autograd, so that a tensor
there behaves as one on any accelerator: ``is_cpu`` is false, no NumPy array shares its memory, its address
cannot be read, and nothing works that needs it on the host except by a copy, which this module sees.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from inspect import getattr_static
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing

from tests.devices.real_device import real_device

# FEWBITS_TEST_DEVICE=cuda has the tests of this folder run on a GPU; see real_device.py.
DEVICE = torch.device(os.environ.get("FEWBITS_TEST_DEVICE", "lazy"), 0)
_CPU = torch.device("cpu")
_KEYS = torch._C.DispatchKeySet(torch._C.DispatchKey.Lazy)
_aten = torch.ops.aten

# Operators whose results' sizes or values the host has to wait for, on any accelerator.
_READS = {
    _aten._local_scalar_dense.default: "a number",
    _aten.is_nonzero.default: "a truth",
    _aten.equal.default: "a truth",
    _aten.nonzero.default: "a size",
    _aten.masked_select.default: "a size",
    _aten._unique2.default: "a size",
    _aten.unique_dim.default: "a size",
    _aten.unique_consecutive.default: "a size",
    _aten.repeat_interleave.Tensor: "a size",
    _aten.bincount.default: "a size",
    _aten._linalg_check_errors.default: "a truth",
}
_INDEXED = (_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default)
_begin: Callable[[TorchDispatchMode], None] = TorchDispatchMode.__init__
_DATA: Any = getattr_static(torch.Tensor, "data")
_SOURCE = str(Path(__file__).parents[2] / "src")


@dataclass(frozen=True)
class Transfer:
    """One wait of the host for the device, or one copy between their memories."""

    way: str  # "read": from the device; "write": to it
    what: str
    where: str  # the line of fewbits that asked

    def __str__(self) -> str:
        return f"{self.way} of {self.what} at {self.where}"


class DeviceTensor(torch.Tensor):
    """A tensor on the device: shape, strides and autograd of its own, values in ``hidden``."""

    hidden: torch.Tensor

    @staticmethod
    def __new__(cls: type[DeviceTensor], hidden: torch.Tensor) -> DeviceTensor:
        made: DeviceTensor = torch.Tensor._make_wrapper_subclass(
            cls, hidden.shape, hidden.stride(), hidden.storage_offset(), dtype=hidden.dtype, device=DEVICE
        )
        torch._C._set_throw_on_mutable_data_ptr(made)
        made.hidden = hidden
        return made

    def __init__(self, hidden: torch.Tensor) -> None:
        super().__init__()

    def data_ptr(self) -> int:
        raise RuntimeError("the address of a tensor on the device was read: its values are not on the host")


def _replace_data(self: DeviceTensor, new: DeviceTensor) -> None:
    _DATA.__set__(self, new)
    self.hidden = new.hidden


def _outside(cls: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
    raise AssertionError(f"{func} of a tensor on the device outside of `with fake_device()`")


for _name, _value in {
    "__torch_dispatch__": classmethod(_outside),
    "__torch_function__": torch._C._disabled_torch_function_impl,
    "data": property(_DATA.__get__, _replace_data),
    "tolist": lambda self: self.cpu().tolist(),
    "__repr__": lambda self, **_: f"DeviceTensor({tuple(self.shape)}, {self.dtype})",
}.items():
    setattr(DeviceTensor, _name, _value)  # whose types torch has for itself only


@cache
def _facts(func: Any) -> tuple[bool, bool]:
    """Return whether an operator is made of others, and whether results share memory with arguments."""
    composite = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CompositeImplicitAutograd")
    return composite, any(argument.alias_info is not None for argument in func._schema.arguments)


def _tensors(given: Any) -> Iterator[torch.Tensor]:
    for x in given:
        if isinstance(x, torch.Tensor):
            yield x
        elif isinstance(x, list | tuple):
            yield from _tensors(x)


def _hidden(given: Any) -> Any:
    """Return an argument as the CPU computes with it."""
    if isinstance(given, list | tuple):
        return type(given)(map(_hidden, given))
    return given.hidden if isinstance(given, DeviceTensor) else given


def _wrapped(out: Any) -> Any:
    """Return a result on the device."""
    if isinstance(out, list | tuple):
        return type(out)(map(_wrapped, out)) if type(out) in (list, tuple) else tuple(map(_wrapped, out))
    # A conjugation that is only noted would be noted in what is hidden, where nobody asks for it.
    return DeviceTensor(out.resolve_conj().resolve_neg()) if isinstance(out, torch.Tensor) else out


@dataclass(eq=False)
class FakeDevice(TorchDispatchMode):
    """The device while it can be used, and what was transferred since."""

    transfers: list[Transfer] = field(default_factory=list)

    def __post_init__(self) -> None:
        _begin(self)

    def put(self, x: torch.Tensor) -> torch.Tensor:
        """Return a copy of ``x`` on the device that counts as none."""
        with torch.utils._python_dispatch._disable_current_modes():
            return DeviceTensor(x.detach().clone())

    def seen(self, x: torch.Tensor) -> torch.Tensor:
        """Return the values of a tensor on the device, a look that counts as none."""
        assert isinstance(x, DeviceTensor), f"{type(x)} is not on the device"
        with torch.utils._python_dispatch._disable_current_modes():
            return x.hidden.detach().clone()

    @property
    def reads(self) -> list[Transfer]:
        """What the host waited for."""
        return [t for t in self.transfers if t.way == "read"]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if any(t not in _OWN and issubclass(t, torch.Tensor) for t in types):
            return NotImplemented  # a NarrowTensor, say, which takes it to its parts
        tensors = list(_tensors((*args, *kwargs.values())))
        here = [t for t in tensors if isinstance(t, DeviceTensor)]
        if func.namespace not in ("aten", "prim", "prims"):
            return self._own_operator(func, here, args, kwargs)
        composite, aliases = _facts(func)
        if composite:
            with self:  # below autograd torch leaves these whole; what they are made of is to be seen
                return func.decompose(*args, **kwargs)
        device = kwargs.get("device")
        target = None if device is None else torch.device(device)
        if not here and (target is None or target.type != DEVICE.type):
            return func(*args, **kwargs)
        self._note(func, args, tensors, here, target)
        if target is not None:
            kwargs = {**kwargs, "device": _CPU}
        out = func(*_hidden(args), **{name: _hidden(value) for name, value in kwargs.items()})
        if target is not None and target.type == "cpu":
            return out.clone() if any(out is t.hidden for t in here) else out
        if func is _aten.copy_.default and not isinstance(args[0], DeviceTensor):
            return args[0]
        wrapped = _wrapped(out)
        return return_and_correct_aliasing(func, args, kwargs, wrapped) if aliases else wrapped

    def _own_operator(self, func: Any, here: list[Any], args: Any, kwargs: Any) -> Any:
        """Call the kernel that torch's dispatcher has for the device, with its tensors as they are."""
        if not here:
            return func(*args, **kwargs)
        with self:
            return func.redispatch(_KEYS, *args, **kwargs)

    def _note(self, func: Any, args: Any, tensors: list[Any], here: list[Any], target: Any) -> None:
        """Note what crosses between host and device; refuse operands on both, as torch does."""
        if func is _aten._to_copy.default and target is not None:
            if (target.type == "cpu") is bool(here):
                self._add("read" if here else "write", f"{tuple(tensors[0].shape)} by {func}")
        elif func is _aten.copy_.default:
            into, source = args[:2]
            if isinstance(into, DeviceTensor) is not isinstance(source, DeviceTensor):
                self._add(
                    "write" if isinstance(into, DeviceTensor) else "read", f"{tuple(into.shape)} by copy_"
                )
        elif func in _READS:
            self._add("read", f"{_READS[func]} by {func}")
        elif func in _INDEXED:
            for index in args[1]:
                if index is not None and index.dtype in (torch.bool, torch.uint8) and func is _INDEXED[0]:
                    self._add("read", f"a size by {func} with a mask")
                if index is not None and not isinstance(index, DeviceTensor):
                    self._add("write", f"places by {func}")
        else:
            apart = [t for t in tensors if not isinstance(t, DeviceTensor) and t.ndim]
            if apart:
                raise RuntimeError(
                    f"{func}: expected all tensors to be on the same device, but found {DEVICE} and cpu"
                )

    def _add(self, way: str, what: str) -> None:
        self.transfers.append(Transfer(way, what, _line_of_fewbits()))


_OWN = (torch.Tensor, DeviceTensor, torch.nn.Parameter, torch.nn.Buffer)


def _line_of_fewbits() -> str:
    frame: Any = sys._getframe()
    while frame is not None:
        if frame.f_code.co_filename.startswith(_SOURCE):
            return f"{frame.f_code.co_filename[len(_SOURCE) + 1 :]}:{frame.f_lineno}"
        frame = frame.f_back
    return "the test"


@contextmanager
def fake_device() -> Iterator[Any]:
    """Have the device for as long as the context lasts."""
    if DEVICE.type == "cuda":
        with real_device(DEVICE) as device:
            yield device
        return
    before = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)  # so that torch.tensor(..., device=) shows its copy
    try:
        with FakeDevice() as device:
            yield device
    finally:
        torch._C._set_only_lift_cpu_tensors(before)
