"""Flow-matching experts trained without a wire between them, and a router that joins them afterwards.

McAllister et al., Decentralized Diffusion Models, 2025. The data are cut into K clusters; each expert learns
the flow of its own and never hears of the others; a router, trained apart, learns which cluster a noisy
sample is of. What they make together is the flow of all data: with the posterior p(k | x, t) of clusters,

    u(x, t) = sum_k p(k | x, t) u_k(x, t)

A sample at time t is (1 - t) noise + t data, and a flow's velocity is the mean of data - noise given it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from fewbits.errors import ArgumentError
from fewbits.tensor.inputs import is_count

Velocity = Callable[[Tensor, Tensor], Tensor]
"""From samples (n, ...) and their times (n,) to velocities (n, ...)."""


def noised(data: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Return samples between noise and data, their times, uniform from 0 to 1, and data minus noise.

    Args:
        data: (n, ...) floating point.
        generator: of noise and times.

    Raises:
        ArgumentError: data of another dtype, or without an axis of samples.
    """
    if not data.is_floating_point() or not data.ndim:
        raise ArgumentError(
            f"data of {str(data.dtype).removeprefix('torch.')} and shape {tuple(data.shape)}; expected"
            " floating-point samples (n, ...)"
        )
    noise = torch.randn(data.shape, generator=generator, dtype=data.dtype)
    times = torch.rand(len(data), generator=generator, dtype=data.dtype)
    part = times.view(-1, *[1] * (data.ndim - 1))
    return (1 - part) * noise + part * data, times, data - noise


def velocity_loss(velocity: Velocity, data: Tensor, generator: torch.Generator) -> Tensor:
    """Return the mean squared error of a velocity on newly noised data (Lipman et al., 2023, equation 23).

    Raises:
        ArgumentError: data that are no floating-point samples, or velocities of another shape.
    """
    samples, times, wanted = noised(data, generator)
    found = velocity(samples, times)
    if found.shape != wanted.shape:  # which would be broadcast
        raise ArgumentError(
            f"velocities of shape {tuple(found.shape)} for samples of {tuple(wanted.shape)}; expected the"
            " same shape"
        )
    return functional.mse_loss(found, wanted)


def router_loss(router: Velocity, data: Tensor, clusters: Tensor, generator: torch.Generator) -> Tensor:
    """Return the cross-entropy, in nats, of a router's logits (n, K) for newly noised data.

    Args:
        router: from samples and times to logits.
        data: (n, ...).
        clusters: (n,) int64, from 0 to K - 1.
        generator: of noise and times.
    """
    samples, times, _ = noised(data, generator)
    return functional.cross_entropy(router(samples, times), clusters)


class RoutedExperts(nn.Module):
    """The velocity of experts together.

    Args:
        experts: K velocities.
        router: from samples (n, ...) and times (n,) to logits (n, K).
        top: how many experts a sample is asked of, those of the largest probabilities, which are normalized
            anew; None: all. One expert of K computes 1 / K of all.

    Raises:
        ArgumentError: no expert, or ``top`` beyond their number.
    """

    def __init__(self, experts: Sequence[nn.Module], router: nn.Module, top: int | None = None) -> None:
        super().__init__()
        if not experts or not 1 <= (len(experts) if top is None else top) <= len(experts):
            raise ArgumentError(f"top={top!r} of {len(experts)} experts; expected 1 up to their number")
        self.experts, self.router = nn.ModuleList(experts), router
        self.top = len(experts) if top is None else top

    def forward(self, samples: Tensor, times: Tensor) -> Tensor:
        """Return velocities (n, ...) of samples (n, ...) at times (n,).

        Each expert computes for the samples alone that it is asked of.

        Raises:
            ArgumentError: logits of another shape.
        """
        logits = self.router(samples, times)
        if logits.shape != (len(samples), len(self.experts)):
            raise ArgumentError(
                f"a router with logits of shape {tuple(logits.shape)} for {len(samples)} samples and"
                f" {len(self.experts)} experts; expected ({len(samples)}, {len(self.experts)})"
            )
        kept, chosen = logits.topk(self.top, dim=1)
        weights = torch.zeros_like(logits).scatter(1, chosen, kept.softmax(1))
        found = torch.zeros_like(samples)
        for k, expert in enumerate(self.experts):
            asked = (chosen == k).any(1).nonzero().view(-1)
            if len(asked):
                part = weights[asked, k].view(-1, *[1] * (samples.ndim - 1))
                found = found.index_add(
                    0, asked, (part * expert(samples[asked], times[asked])).to(found.dtype)
                )
        return found


@torch.no_grad()
def integrate_flow(velocity: Velocity, noise: Tensor, steps: int = 50) -> Tensor:
    """Return data made from noise by so many Euler steps along a velocity, from time 0 to 1.

    Raises:
        ArgumentError: no whole number of steps, or none.
    """
    if not is_count(steps):
        raise ArgumentError(f"steps={steps!r}; expected 1 or more, a whole number")
    samples = noise
    for step in range(steps):
        times = torch.full((len(noise),), step / steps, dtype=noise.dtype)
        samples = samples + velocity(samples, times) / steps
    return samples
