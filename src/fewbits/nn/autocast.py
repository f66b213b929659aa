"""PyTorch's autocast around a model's forward pass."""

from __future__ import annotations

import torch
from torch import nn

from fewbits.errors import ArgumentError


class Autocast:
    """Hooks that enter and leave torch.autocast; they can be copied and pickled with their model."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.entered: list[torch.autocast] = []

    def attach(self, model: nn.Module) -> None:
        """Compute every forward pass of ``model`` under autocast, backward passes as autocast has them."""
        model.register_forward_pre_hook(self.enter)
        model.register_forward_hook(self.leave, always_call=True)

    def enter(self, module: nn.Module, *_: object) -> None:
        """Begin, on the device of the parameters.

        Raises:
            ArgumentError: torch has no autocast there.
        """
        device = next((p.device.type for p in module.parameters()), "cpu")
        if not torch.amp.is_autocast_available(device):
            raise ArgumentError(
                f"the recipe is torch.autocast, and torch has none for {device}, where the parameters lie;"
                " take a recipe without it, as bf16-only or fp16-master, or move the model with .cpu()"
            )
        self.entered.append(torch.autocast(device, self.dtype))
        self.entered[-1].__enter__()

    def leave(self, *_: object) -> None:
        """End, also where the forward pass failed."""
        if self.entered:  # or it failed before it began
            self.entered.pop().__exit__(None, None, None)
