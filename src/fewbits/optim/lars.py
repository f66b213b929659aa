"""Layer-wise adaptive rates, for large batches."""

from __future__ import annotations

import torch
from torch.optim.optimizer import ParamsT

from fewbits.optim.optimizer import Optimizer, checked
from fewbits.optim.parameter_state import Options, ParameterState
from fewbits.recipes import Recipe


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

    Raises:
        ArgumentError: an option out of its range, or no such recipe.
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float,
        *,
        momentum: float = 0.9,
        weight_decay: float = 0.0,
        trust_coefficient: float = 1e-3,
        recipe: str | Recipe = "fp32",
    ) -> None:
        defaults = {
            "lr": checked("lr", lr),
            "momentum": checked("momentum", momentum),
            "weight_decay": checked("weight_decay", weight_decay),
            "trust_coefficient": checked("trust_coefficient", trust_coefficient),
        }
        super().__init__(params, defaults, recipe)

    def update(
        self, values: torch.Tensor, gradient: torch.Tensor, state: ParameterState, group: Options
    ) -> torch.Tensor:
        """Return the update that is added to ``values``; see :meth:`Optimizer.update`."""
        rate = group["lr"]
        if values.ndim > 1:
            decay = group["weight_decay"]
            w, g = (float(torch.linalg.vector_norm(x)) for x in (values, gradient))
            rate *= group["trust_coefficient"] * w / (g + decay * w) if w and g else 1.0
            gradient = gradient.add(values, alpha=decay)
        moved = self.load(state, "first_moment", values).mul_(group["momentum"]).add_(gradient, alpha=rate)
        self.keep(state, "first_moment", moved)
        return moved.neg()
