"""When masks are computed, as data: once, again every few steps, or in steps of rising sparsity."""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real

from fewbits.errors import ArgumentError
from fewbits.tensor.inputs import is_count


@dataclass(frozen=True)
class Frozen:
    """Prune once, then train with that mask.

    The recipe of Accelerating Sparse Deep Neural Networks (Mishra and others 2021, section 4): the training
    of the dense model is repeated with its hyperparameters, from its pruned weights.
    """


@dataclass(frozen=True)
class Recomputed:
    """Train dense weights by the straight-through estimator, and recompute their mask; to train from scratch.

    The model computes with the masked weights. Their gradient, of all weights, moves the dense ones.

    Attributes:
        every: steps from one mask to the next.
        decay: added to the gradient of a weight that is masked, times the weight (SR-STE: Zhou and others,
            Learning N:M Fine-grained Structured Sparse Neural Networks From Scratch, 2021, figure 2).

    Raises:
        ArgumentError: ``every`` is no integer of at least one, or ``decay`` no finite number from 0 up.
    """

    every: int = 1
    decay: float = 0.0

    def __post_init__(self) -> None:
        given: object = self.decay  # whatever a caller without types passes
        if not (is_count(self.every) and isinstance(given, Real) and 0 <= float(given) < math.inf):
            raise ArgumentError(
                f"every={self.every} and decay={given!r:.80}; expected at least one step, an integer, and a"
                " decay of 0 or more that is finite"
            )

    def is_due(self, step: int) -> bool:
        """Whether masks are recomputed after ``step`` steps."""
        return step % self.every == 0


@dataclass(frozen=True)
class Gradual:
    """Prune more and more until the pattern holds.

    The share of zeros follows the cubic of Zhu and Gupta, To prune, or not to prune, 2017; on the way the
    smallest of the values that the pattern would drop are dropped.

    Attributes:
        steps: from the first pruning to the last.
        every: steps from one pruning to the next.
        begin: steps before the first pruning.

    Raises:
        ArgumentError: ``steps`` or ``every`` is no integer of at least one, or ``begin`` none of at least 0.
    """

    steps: int
    every: int = 1
    begin: int = 0

    def __post_init__(self) -> None:
        if not (is_count(self.steps) and is_count(self.every) and is_count(self.begin, 0)):
            raise ArgumentError(
                f"steps={self.steps}, every={self.every} and begin={self.begin}; expected at least one step"
                " from the first pruning to the last, at least one between two, and none or more before: all"
                " of them integers"
            )

    def is_due(self, step: int) -> bool:
        """Whether to prune after ``step`` steps."""
        gone = step - self.begin
        return gone == self.steps or (0 <= gone < self.steps and gone % self.every == 0)

    def share(self, step: int) -> float:
        """Return the part of what the pattern drops that is dropped after ``step`` steps, from 0 to 1.

        It is equation (1) of the paper over its final sparsity, from an initial one of zero.
        """
        gone = min(max((step - self.begin) / self.steps, 0.0), 1.0)
        return 1 - (1 - gone) ** 3


Schedule = Frozen | Recomputed | Gradual
SR_STE = Recomputed(every=1, decay=2e-4)  # of the paper's image classifiers
