"""What an optimizer holds for a parameter between steps, and the options of a group of parameters."""

from __future__ import annotations

from typing import Literal, TypedDict

import torch

Moment = Literal["first_moment", "second_moment"]


class ParameterState(TypedDict, total=False):
    """What an optimizer holds for one parameter between steps, packed where the recipe says so."""

    step: int | torch.Tensor  # of the updates so far; () float32 on a device whose loss scaler may skip some
    first_moment: torch.Tensor
    second_moment: torch.Tensor
    master: torch.Tensor  # the values that updates are added to, of a narrow parameter
    compensation: torch.Tensor  # what the last sums lost to rounding


class Options(TypedDict, total=False):
    """The options of a group of parameters, those that its optimizer takes."""

    lr: float
    momentum: float
    betas: tuple[float, float]
    eps: float
    weight_decay: float
    nesterov: bool
    trust_coefficient: float
