"""Checks of what collectives are given."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from functools import reduce
from typing import Any, TypeGuard

import torch
from torch.distributed.device_mesh import DeviceMesh

from fewbits.distributed.memory import empty
from fewbits.distributed.peers import Peers
from fewbits.distributed.state import CodecState
from fewbits.distributed.traffic import Traffic
from fewbits.errors import ArgumentError, DTypeError
from fewbits.kernels.ops.flat import largest_finite
from fewbits.kernels.ops.sharding import is_sharded
from fewbits.recipes import Codec
from fewbits.recipes import codec as read
from fewbits.tensor.inputs import check_values
from fewbits.tensor.memory import valueless
from fewbits.typing import ProcessGroup

OPS = ("sum", "mean")


def checked_codec(given: str | Codec, state: CodecState | None) -> Codec:
    """Return the codec, for which a state is there if it needs one.

    Raises:
        ArgumentError: it has to remember something and has no state, or the state is of another codec.
        FormatError: no such format.
    """
    codec = read(given)
    if state is not None and not isinstance(state, CodecState):
        raise ArgumentError(f"state={state!r:.80}; expected CodecState({str(codec)!r}), or None")
    if codec.hook:
        raise ArgumentError(f"{codec} is a hook of DistributedDataParallel; take it with ddp_hook")
    stochastic = codec.values is not None and codec.values.rounding == "stochastic"
    if state is None and (codec.feedback or codec.auto_scale or stochastic):
        raise ArgumentError(
            f"{codec} remembers something from call to call; give state=CodecState({str(codec)!r}), the same"
            " one to each call"
        )
    if state is not None and state.codec != codec:
        raise ArgumentError(f"codec {codec} with a state of {state.codec}; give one of them, or the same")
    return codec


def checked_tensor(x: Any) -> torch.Tensor:
    """Return ``x`` without gradient, where it lies, after checking that it is a tensor of real numbers.

    Raises:
        DTypeError: it is something else.
        ArgumentError: it is a DTensor, or on the meta device.
    """
    if is_sharded(x):
        raise ArgumentError(
            "a DTensor; collectives here are between the processes of a group: give x.to_local(), and the"
            " group of one dimension of its mesh"
        )
    check_values(x)
    if not isinstance(x, torch.Tensor):
        raise DTypeError(f"{type(x).__name__}; expected a torch.Tensor of floating-point numbers")
    check_has_values(x, "a tensor")
    return x.detach()


def check_has_values(x: torch.Tensor, what: str) -> None:
    """Raise unless ``x`` has values to send: amid an exchange it would fail where the others wait.

    Raises:
        ArgumentError: it is on the meta device, or of a lazy layer.
    """
    if why := valueless(x):
        raise ArgumentError(f"{what} {why}")


def checked_op(op: str) -> bool:
    """Return whether ``op`` asks for the mean.

    Raises:
        ArgumentError: it is neither ``sum`` nor ``mean``.
    """
    if op not in OPS:
        raise ArgumentError(f"op={op!r}; expected one of {', '.join(OPS)}")
    return op == "mean"


def checked_rows(x: torch.Tensor, what: str) -> torch.Tensor:
    """Return ``x`` after checking that it has rows to deal out.

    Raises:
        ArgumentError: it has no dimension.
    """
    if not x.ndim:
        raise ArgumentError(f"a tensor without dimensions; {what} cuts along the first: give x.reshape(1)")
    return x


def is_mesh(group: ProcessGroup) -> TypeGuard[DeviceMesh]:
    """Return whether a group is given as a mesh."""
    return isinstance(group, DeviceMesh)


def peers_of(group: ProcessGroup, traffic: Traffic | None) -> Peers:
    """Return the processes of a process group, of a mesh of one dimension, or all.

    Raises:
        ArgumentError: a mesh of several dimensions, or no process group.
    """
    if is_mesh(group):
        if group.ndim != 1:
            raise ArgumentError(
                f"a mesh of {group.ndim} dimensions; expected one, as mesh['dp'] is (all_reduce takes two)"
            )
        return Peers(group.get_group(), traffic)
    return Peers(group, traffic)


def flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return all values in a row, in the widest of the dtypes.

    Raises:
        ArgumentError: they lie on several devices.
    """
    places = sorted({str(x.device) for x in tensors})
    if len(places) > 1:
        raise ArgumentError(
            f"tensors on {' and '.join(places)} in one message; give those of each device by themselves, or"
            " move them to one"
        )
    rows = [x.reshape(-1) for x in tensors]
    if len(rows) == 1:
        return rows[0].contiguous()
    dtype = reduce(torch.promote_types, {x.dtype for x in rows})
    return torch.cat(rows, out=empty(sum(x.numel() for x in rows), dtype, rows[0].device))


def described(tensors: Sequence[torch.Tensor]) -> str:
    """Return dtypes and shapes as text that processes compare."""
    return ", ".join(f"{str(x.dtype).removeprefix('torch.')}{tuple(x.shape)}" for x in tensors)


def is_finite(x: torch.Tensor, codec: Codec) -> bool:
    """Return whether the codec carries all values of ``x``; those that carry NaN are not looked at.

    Of a device the host waits for the answer, which it tells the other processes.
    """
    if codec.carries_nan:
        return True
    row = x.detach().reshape(-1).contiguous()
    known = row.dtype in (torch.float32, torch.bfloat16, torch.float16)
    return largest_finite(row if known else row.float())[1]  # float64 beyond float32 is infinite


Key = Hashable
"""Which tensor it is whose residual a state keeps."""
