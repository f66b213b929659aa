"""The mean of gradients over processes, in a plain loop."""

from __future__ import annotations

import torch
from torch import nn

from fewbits.distributed.arguments import (
    check_has_values,
    checked_codec,
    checked_tensor,
    described,
    flat,
    peers_of,
)
from fewbits.distributed.collectives.all_reduce import reduced
from fewbits.distributed.state import CodecState
from fewbits.distributed.traffic import Traffic
from fewbits.recipes import Codec
from fewbits.typing import ProcessGroup


@torch.no_grad()
def average_gradients(
    model: nn.Module,
    codec: str | Codec,
    group: ProcessGroup = None,
    *,
    state: CodecState | None = None,
    traffic: Traffic | None = None,
) -> None:
    """Replace the gradients of a model by their means over the processes, the same bits on each.

    For a loop without DistributedDataParallel, between ``backward`` and the step: everything travels in one
    message, and each parameter is a layer with a scale of its own under ``aps``. A parameter that had a
    gradient on some processes has one on all, and one that had none anywhere has none.

    Args:
        model: the same on each process; its gradients are ordinary tensors.
        codec: a codec or its text.
        group: a process group, or a mesh of one dimension; None: all processes.
        state: what the codec remembers, by the names of the parameters.
        traffic: counts the bytes sent.

    Raises:
        ArgumentError: as :func:`all_reduce`.
        DTypeError: a sparse gradient.
    """
    peers = peers_of(group, traffic)
    with peers.telling():
        parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        read = checked_codec(codec, state)
        given = {name: p.grad for name, p in parameters.items() if p.grad is not None}
        gradients = [
            checked_tensor(given[name]) if name in given else no_gradient(p) for name, p in parameters.items()
        ]
    what = f"gradients of {described(gradients)} as {read}"
    layers = [g.numel() for g in gradients]
    x = flat(gradients) if gradients else torch.zeros(0, dtype=torch.float32)
    mean = reduced(x, read, peers, what, mean=True, layers=layers, state=state, keys=list(parameters))
    has = peers.maxima(torch.tensor([name in given for name in parameters], dtype=torch.uint8))
    for p, part, there in zip(parameters.values(), mean.split(layers), has.tolist(), strict=True):
        if there:
            p.grad = kept(p, part.view(p.shape))


def no_gradient(p: torch.Tensor) -> torch.Tensor:
    """Return what a process without a gradient of a parameter sends.

    Raises:
        ArgumentError: the parameter is on the meta device.
    """
    check_has_values(p, f"a parameter of shape {tuple(p.shape)}")
    return torch.zeros(p.shape, dtype=getattr(p, "grad_dtype", None) or p.dtype, device=p.device)


def kept(p: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
    """Return the gradient of a parameter, of its dtype, with the values of the float32 mean."""
    if p.grad is None:
        return mean.to(p.device, getattr(p, "grad_dtype", None) or p.dtype, copy=True)
    return p.grad.copy_(mean)
