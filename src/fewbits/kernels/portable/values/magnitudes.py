"""Largest and smallest magnitudes of a tensor."""

from __future__ import annotations

import torch


def largest_finite(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the largest finite magnitude of ``x``, (), and whether all of it is finite, ()."""
    finite = x.isfinite()
    magnitudes = torch.where(finite, x.abs(), 0).flatten()
    return torch.cat((magnitudes, magnitudes.new_zeros(1))).amax(), finite.all()


def smallest(x: torch.Tensor) -> torch.Tensor:
    """Return the smallest magnitude above zero of ``x``, in its dtype, (); infinity if there is none."""
    magnitudes = torch.where((x != 0) & x.isfinite(), x.abs(), torch.inf).flatten()
    return torch.cat((magnitudes, magnitudes.new_full((1,), torch.inf))).amin()
