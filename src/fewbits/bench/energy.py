"""A proxy for the energy of a step: the bits that its products multiply and move. Nothing is measured here.

An array of multipliers takes area and energy in proportion to the bits of one operand times those of the
other; memory takes them in proportion to the bits that move. Counted are the products of one step of the
plain model, forward and backward, as PyTorch dispatches them: matrix products, convolutions and attention,
with all layers in the formats of the recipe. Not counted: what is computed between products, rounding,
the optimizer, caches, evaluations, and layers that a recipe spares.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

from fewbits.bench.disclosed import bits
from fewbits.products import call_flops
from fewbits.recipes import Recipe
from fewbits.records import EnergyProxy
from fewbits.train import Task

_FORWARD = (("forward_activation", "forward_weight"),)
_ADDING = (
    *("addmm", "baddbmm", "addbmm", "addmv"),
    *("_addmm_activation", "_sparse_addmm", "sparse_sampled_addmm"),
)
_BACKWARD = (("dw_activation", "dw_gradient"), ("dx_gradient", "dx_weight"))


class Products(TorchDispatchMode):
    """Counts the products of what runs within it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self.multiply_adds = self.operands = self.results = 0  # the last two in values
        self.of_first = self.of_second = 0  # multiply-adds that the gradients of the two operands take

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        flops = call_flops(func, args, kwargs, result)
        if flops is not None:
            self.multiply_adds += int(flops) // 2
            first, second = (getattr(x, "requires_grad", False) for x in _factors(func, args))
            self.of_first += int(flops) // 2 * first
            self.of_second += int(flops) // 2 * second
            self.operands += _values(args)
            self.results += _values([result])
        return result


def energy_proxy(task: Task, recipe: Recipe, *, bits_sent: float | None = 0.0) -> EnergyProxy | None:
    """Return the proxy of one step; None for a recipe whose formats change on the way.

    Args:
        task: of which one batch is drawn.
        recipe: whose formats are counted.
        bits_sent: by one process in a step; None: unknown.
    """
    if recipe.schedule:
        return None
    forward, backward = count(task)
    total = moved = 0.0
    flowing = bits(recipe.autocast or recipe.vector)
    # Samples and frozen weights need no gradient: the backward pass has what the forward pass asks for.
    shares = forward.of_second, forward.of_first
    for products, pairs, parts in ((forward, _FORWARD, (1,)), (backward, _BACKWARD, shares)):
        widths = [[_bits(recipe, role) for role in pair] for pair in pairs]
        every = max(sum(parts), 1)
        total += (
            products.multiply_adds * sum(n * a * b for n, (a, b) in zip(parts, widths, strict=True)) / every
        )
        width = sum(n * (a + b) for n, (a, b) in zip(parts, widths, strict=True)) / (2 * every)
        moved += products.operands * width + products.results * flowing
    return EnergyProxy(total, moved, bits_sent)


def count(task: Task) -> tuple[Products, Products]:
    """Return the products of one step of the plain model: forward, and backward."""
    model, forward, backward = task.create(0).train(), Products(), Products()
    batch = task.draw_batch(torch.Generator().manual_seed(0), task.hyper.batch_size)
    with _unfused():
        with forward:
            loss = task.loss(model, batch)
        with backward:
            loss.backward()
    return forward, backward


@contextmanager
def _unfused() -> Iterator[None]:
    """Compute recurrences and attention as the plain products that they are made of."""
    with warnings.catch_warnings(), sdpa_kernel(SDPBackend.MATH):
        warnings.simplefilter("ignore", UserWarning)  # the switch speaks of GPUs that are not asked for
        with torch.backends.mkldnn.flags(enabled=False):
            yield


def _bits(recipe: Recipe, role: str) -> float:
    target = getattr(recipe, role)
    return bits(recipe.autocast or recipe.vector if target is None else str(target.format))


def _factors(func: Any, args: Any) -> Any:
    """Return the two operands of a product: of those that add to something, the two behind it."""
    start = int(func._schema.name.removeprefix("aten::").removesuffix("_") in _ADDING)  # in place too
    return (*args[start : start + 2], None, None)[:2]


def _values(among: Iterable[object]) -> int:
    total = 0
    for x in among:
        if isinstance(x, torch.Tensor):
            total += x.numel()
        elif isinstance(x, (list, tuple)):
            total += _values(x)
    return total
