"""Which backend converts the values of a tensor: list, ask, force.

``native`` is the compiled kernels, for tensors on the CPU. ``portable`` is plain operations of torch, for any
device. ``triton`` is kernels for GPUs, of an extra package. All give the bits of kernels/reference. What a
backend does not do raises; nothing is copied to the host in silence.
"""

from __future__ import annotations

import os
from functools import cache
from importlib.util import find_spec

import torch

from fewbits.errors import ArgumentError
from fewbits.graphs import constant_in_graphs

_VARIABLE = "FEWBITS_BACKEND"

# Plain globals: torch.compile guards on them and compiles again after force_backend.
_forced: str | None = os.environ.get(_VARIABLE) or None
_forced_by: str = _VARIABLE


@constant_in_graphs
def backends(device: torch.device | str = "cpu") -> tuple[str, ...]:
    """Return the backends that can work on tensors of ``device`` here, the preferred one first."""
    kind = torch.device(device).type
    triton = ("triton",) if _has_triton(kind) else ()
    return ("native", "portable", *triton) if kind == "cpu" else (*triton, "portable")


def active_backend(device: torch.device | str = "cpu") -> str:
    """Return the backend in use for tensors of ``device``.

    Raises:
        ArgumentError: the one that is forced does not exist, or does not work on the device.
    """
    return backends(device)[0] if _forced is None else _checked(_forced, _forced_by, device)


@constant_in_graphs
def _checked(name: str, by: str, device: torch.device | str) -> str:
    _check(name, _everywhere(), by)
    if name not in backends(device):
        raise ArgumentError(
            f"{by} names the backend {name!r}, which does not work on {torch.device(device).type}; for it"
            f" there is {', '.join(backends(device))}: take one of these, or unset it"
        )
    return name


def force_backend(name: str | None) -> None:
    """Use the backend ``name`` for all tensors in this process; None restores the automatic choice.

    Raises:
        ArgumentError: there is no such backend here; the choice is unchanged.
    """
    global _forced, _forced_by
    if name is not None:
        _check(name, _everywhere(), "force_backend")
    _forced, _forced_by = name, "force_backend"


def is_native(x: torch.Tensor) -> bool:
    """Return whether the compiled kernels work on ``x``: what :func:`active_backend` says, in less time."""
    if _forced is None:
        return x.is_cpu
    return active_backend(x.device) == "native"


def _check(name: str, allowed: tuple[str, ...], by: str) -> None:
    if name == "triton" and find_spec("triton") is None:
        raise ArgumentError(f"{by} names the backend 'triton', which is not here: install fewbits[gpu]")
    if name not in allowed:
        raise ArgumentError(f"{by} names the backend {name!r}; there is {', '.join(allowed)}")


def _everywhere() -> tuple[str, ...]:
    """Return the backends that work on some device here."""
    accelerator = "cuda" if torch.cuda.is_available() else "cpu"
    return tuple(dict.fromkeys((*backends("cpu"), *backends(accelerator))))


@cache
def _has_triton(kind: str) -> bool:
    """Return whether Triton kernels of ours run on a kind of device: GPUs, or the CPU when interpreted."""
    if find_spec("fewbits.kernels.triton") is None or find_spec("triton") is None:
        return False
    return kind == "cuda" or (kind == "cpu" and os.environ.get("TRITON_INTERPRET") == "1")
