"""Records of a model whose weights were chosen after training."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class QuantizedLayer:
    """One layer of a model, and what narrow weights do to its outputs on the calibration batches."""

    layer: str
    shape: tuple[int, ...]  # of its weight
    format: str | None  # None: left as it was
    vectors: int  # inputs that its weight was chosen for
    rounding_loss: float  # squared error of the outputs, rounded to nearest, over their power
    loss: float  # the same with the chosen weight
    hadamard: int = 0  # size of the blocks in which its input is rotated; 0: it is not
    folded: str | None = None  # the layer whose weight rotates them; None: an operator
    reason: str = ""  # why it was left, or only rounded


@dataclass(frozen=True)
class QuantizeReport:
    """A model whose weights were chosen, layer by layer in the order in which data flows."""

    method: str
    scale: str  # how the scales of blocks were chosen
    scale_rule: str
    activation: str | None  # format of the layers' inputs; None: they stay wide
    layers: tuple[QuantizedLayer, ...]
