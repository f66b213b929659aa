"""Layer-wise adaptive rates, for large batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.optim.optimizer import ParamsT

from fewbits.errors import ArgumentError
from fewbits.graphs import outside_of_graphs
from fewbits.kernels.ops.sharding import gathered, is_sharded
from fewbits.optim import parameters
from fewbits.optim.optimizer import Optimizer, checked, unscaled
from fewbits.optim.parameter_state import Options, ParameterState
from fewbits.optim.shared_norms import Norms, shared_norms
from fewbits.recipes import Recipe
from fewbits.typing import ProcessGroup


class LARS(Optimizer):
    """SGD with a rate for each layer.

    You, Gitman and Ginsburg, Large Batch Training of Convolutional Networks, 2017, algorithm 1.

    The rate of a weight w with gradient g is multiplied by
    ``trust_coefficient * |w| / (|g| + weight_decay * |w|)``, or by one where w or g is zero. Norms are
    float32 whatever the parameters are: in FP16 the sum of squares overflows beyond 65504. Biases and other
    parameters of at most one axis get neither the factor nor decay (Jia et al., Highly Scalable Deep Learning
    Training System with Mixed-Precision, 2018).

    Args:
        params: parameters, or groups of them with options of their own.
        lr: learning rate.
        momentum: share of the last update that is kept; the recipe's ``first_moment`` says how.
        weight_decay: added to the gradient, times the weights.
        trust_coefficient: how far a layer may move, relative to its norm.
        recipe: a recipe or its text.
        group: processes that hold the same parameters and gradients, as ``torch.distributed.group.WORLD``.
            Each then computes the norms of its share of the layers, and one all-gather brings the others:
            the same bits as without (Shi et al., Towards Scalable Distributed Training of Deep Learning on
            Public Cloud Clusters, MLSys 2021). A copy of the optimizer computes all norms by itself.
            Within a ``ZeroOptimizer`` leave it out: owners compute the norms of their own layers.

    Raises:
        ArgumentError: an option out of its range, or no such recipe.
    """

    _group: ProcessGroup = None
    _norms: Iterator[Norms] = iter(())  # of the layers of this step, in the order in which it takes them

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        *,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust_coefficient: float = 1e-3,
        recipe: str | Recipe = "fp32",
        group: ProcessGroup = None,
    ) -> None:
        defaults = {
            "lr": lr,
            "momentum": momentum,
            "weight_decay": weight_decay,
            "trust_coefficient": trust_coefficient,
        }
        super().__init__(params, defaults, recipe)
        self._group = group

    def _check_ranges(self, options: Mapping[str, Any]) -> None:
        """Raise where an option is out of its range."""
        for name in ("lr", "momentum", "weight_decay", "trust_coefficient"):
            checked(name, options[name])

    @outside_of_graphs  # the host reads the norms, and torch.compile does not know the group of an optimizer
    def _before_updates(self, unscale: float | torch.Tensor) -> None:
        """Compute the norms of all layers.

        Raises:
            ArgumentError: sharded parameters, whose norms all processes of their mesh compute together, where
                processes share norms; or gradients of other layers than the other processes have.
        """
        layers = [p for p in self._parameters() if p.ndim > 1]
        if self._group is not None:
            for p in (p for p in layers if p.grad is not None):
                if is_sharded(p):
                    raise ArgumentError(
                        f"a sharded parameter of shape {tuple(p.shape)}, and LARS was made with a group,"
                        " whose processes hold the same parameters; leave group out"
                    )
                if not self.state[p]:  # master copies are made in one order, as they may round at random
                    parameters.current(p, self.state[p], self.recipe)

        def norms(i: int) -> Norms:
            gradient = self._gradient(layers[i])
            assert gradient is not None
            now = parameters.current(layers[i], self.state[layers[i]], self.recipe)
            w, g = (gathered(torch.linalg.vector_norm(x)) for x in (now, unscaled(gradient, unscale)))
            return (float(w), float(g)) if _on_host(w) else (w, g)  # of a device nobody waits for them

        sizes, due = [p.numel() for p in layers], [p.grad is not None for p in layers]
        self._norms = iter(shared_norms(sizes, due, norms, self._group))

    def update(
        self, values: torch.Tensor, gradient: torch.Tensor, state: ParameterState, group: Options
    ) -> torch.Tensor:
        """Return the update that is added to ``values``; see :meth:`Optimizer.update`."""
        rate: float | torch.Tensor = group["lr"]
        if values.ndim > 1:
            decay = group["weight_decay"]
            w, g = next(self._norms)
            rate = rate * _trust(w, g, group["trust_coefficient"], decay)  # not in place: it may be a tensor
            gradient = gradient.add(values, alpha=decay)
        moved = self.load(state, "first_moment", values).mul_(group["momentum"])
        if isinstance(rate, torch.Tensor):
            moved.addcmul_(gradient, rate)
        else:
            moved.add_(gradient, alpha=rate)
        self.keep(state, "first_moment", moved)
        return moved.neg()


def _on_host(x: torch.Tensor) -> bool:
    return x.device.type == "cpu"


def _trust(w: Any, g: Any, coefficient: float, decay: float) -> Any:
    """Return the factor of a layer's rate from the norms of its weights and its gradient."""
    if isinstance(w, torch.Tensor):
        return torch.where((w != 0) & (g != 0), coefficient * w / (g + decay * w), 1.0)
    return coefficient * w / (g + decay * w) if w and g else 1.0
