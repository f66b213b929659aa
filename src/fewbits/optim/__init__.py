"""Optimizers whose parameters, states and gradients lie in the formats of a recipe, and its loss scale."""

from __future__ import annotations

from fewbits.optim.adamw import AdamW
from fewbits.optim.lars import LARS
from fewbits.optim.loss_scale import LossScaler, scaler
from fewbits.optim.optimizer import Optimizer
from fewbits.optim.sgd import SGD
from fewbits.optim.state import load_state, save_state

__all__ = ["LARS", "SGD", "AdamW", "LossScaler", "Optimizer", "load_state", "save_state", "scaler"]
