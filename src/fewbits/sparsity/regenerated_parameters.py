"""Parameters that no memory holds: each is generated when its layer runs, and freed after."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

from fewbits.errors import ArgumentError
from fewbits.sparsity.layers import EMBEDDINGS

# Layers that draw nothing in forward, so that no generator's state has to be kept to run them again.
_WITHOUT_DRAWS = (
    *(nn.Linear, nn.Bilinear, *EMBEDDINGS, nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
)


@dataclass(frozen=True)
class Place:
    """Where a parameter lies among all weights, and how its initial values are drawn."""

    name: str
    shape: torch.Size
    start: int  # of its first value, in the order of the model's parameters
    unit: float  # by which an integer draw is multiplied at a gain of 1; 0 for a constant
    constant: float
    padding: int | None = None  # the row of an embedding that is zero and has no gradient

    @property
    def stop(self) -> int:
        """The position after its last value."""
        return self.start + self.shape.numel()


def trained(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return the parameters that are not frozen, by name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def places(model: nn.Module) -> list[Place]:
    """Return the place of each parameter that is trained.

    One of two axes or more is uniform with the standard deviation ``1 / sqrt(fan_in)``, times a gain, but for
    the padding of an embedding, which is 0; the weight of a norm is 1 and a bias 0.
    """
    located: list[Place] = []
    start = 0
    for name, p in trained(model).items():
        owner, _, key = name.rpartition(".")
        module = model.get_submodule(owner)
        padding = module.padding_idx if isinstance(module, EMBEDDINGS) else None
        matrix = p.dim() > 1
        fan_in = max(p.shape[1:].numel(), 1) if matrix else 1
        unit = math.sqrt(3 / fan_in) / 2**24 if matrix else 0.0
        located.append(Place(name, p.shape, start, unit, float(key == "weight"), padding))
        start = located[-1].stop
    return located


class Source(Protocol):
    """What makes a parameter and takes its gradient."""

    def dense(self, place: Place) -> torch.Tensor:
        """Return the values of a parameter."""

    def take(self, place: Place, gradient: torch.Tensor) -> None:
        """Take the gradient of a parameter."""


class _NoGradient(torch.Tensor):
    """A placeholder for a gradient that was reduced when it arrived; whoever reads it gets an error."""

    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> Any:
        """Refuse whatever would read, clip or unscale it.

        Raises:
            ArgumentError: always.
        """
        raise ArgumentError(
            "a gradient of DropBack is reduced as it comes and cannot be read, clipped, unscaled or averaged;"
            " leave clip_grad_norm_, GradScaler and the like out, and lower the learning rate instead"
        )


class _RegeneratedValues(torch.autograd.Function):
    """Generates a parameter without saving it for backward; its gradient is passed to the source."""

    @staticmethod
    def forward(ctx: Any, anchor: torch.Tensor, source: Source, place: Place) -> torch.Tensor:
        ctx.anchor, ctx.source, ctx.place = anchor, source, place
        return source.dense(place)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[None, None, None]:
        ctx.source.take(ctx.place, gradients[0])
        ctx.anchor.grad = torch.zeros((), device=ctx.anchor.device).as_subclass(_NoGradient)
        return None, None, None


class _Regenerated(nn.Module):
    """The parametrization that generates a parameter whenever its layer reads it."""

    def __init__(self, source: Source, place: Place) -> None:
        super().__init__()
        self.source, self.place = source, place

    def forward(self, anchor: torch.Tensor) -> torch.Tensor:
        values: torch.Tensor = _RegeneratedValues.apply(anchor, self.source, self.place)  # type: ignore[no-untyped-call]  # torch gives apply no types
        return values


def regenerate(
    model: nn.Module, source: Source, all_places: list[Place], device: torch.device
) -> list[nn.Parameter]:
    """Take the parameters of some places out of a model, and return the scalars that stand for them.

    The layers with matrices run again in the backward pass, so that none is kept from forward to backward.
    """
    anchors: list[nn.Parameter] = []
    for place in all_places:
        owner, _, name = place.name.rpartition(".")
        module = model.get_submodule(owner)
        anchor = nn.Parameter(torch.zeros((), device=device), requires_grad=True)
        module._parameters[name] = anchor
        parametrize.register_parametrization(module, name, _Regenerated(source, place), unsafe=True)
        anchors.append(module.parametrizations[name].original)  # type: ignore[union-attr,index]  # a ParametrizationList
        recurrent = isinstance(module, nn.RNNBase)
        if (len(place.shape) > 1 or recurrent) and _can_run_again(module):
            _run_again(type(module))
        _drop_flat_weights(module)
    return anchors


def _can_run_again(module: nn.Module) -> bool:
    children = [name for name, _ in module.named_children() if name != "parametrizations"]
    return not module._buffers and (not children or isinstance(module, nn.MultiheadAttention))


def _run_again(kind: type[nn.Module]) -> None:
    """Recompute the forward pass of a class in backward; parametrization made the class for one module."""
    if "forward" in vars(kind):
        return  # done for another parameter of the module
    forward: Callable[..., Any] = kind.forward
    random = not any(forward is known.forward for known in _WITHOUT_DRAWS)

    def run(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        try:
            return forward(self, *args, **kwargs)
        finally:
            _drop_flat_weights(self)

    def run_again(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return run(self, *args, **kwargs)
        return checkpoint(run, self, *args, use_reentrant=False, preserve_rng_state=random, **kwargs)

    kind.forward = run_again


def _drop_flat_weights(module: nn.Module) -> None:
    """Drop the weights that a recurrent layer lists beside its parameters; its forward lists them anew."""
    if isinstance(module, nn.RNNBase):
        module._flat_weights = [None] * len(module._flat_weights)


def is_regenerated(model: nn.Module) -> bool:
    """Whether the parameters of a model, or some of them, were taken out before."""
    return any(isinstance(module, _Regenerated) for module in model.modules())


def second_names(model: nn.Module) -> Iterator[str]:
    """Yield the second and further names of tied parameters that are trained."""
    seen: set[int] = set()
    for name, p in model.named_parameters(remove_duplicate=False):
        if id(p) in seen and p.requires_grad:
            yield name
        seen.add(id(p))
