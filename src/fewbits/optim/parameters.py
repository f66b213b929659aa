"""How an update is added to a parameter that is narrow, and what pays back the rounding.

Updates below half a unit in the last place vanish when they are rounded to nearest. A wide master copy
(Micikevicius et al., Mixed Precision Training, 2018, section 3.1), stochastic rounding or Kahan's sum
(Zamirai et al., Revisiting BFloat16 Training, 2020, section 4) keep them.
"""

from __future__ import annotations

from typing import Any

import torch

from fewbits.optim.packing import pack, round_values, torch_dtype, unpack
from fewbits.optim.sharded import local, of_one
from fewbits.recipes import Recipe, RoleFormat
from fewbits.recipes.parameter_marks import is_rounded, take_unrounded


def current(p: torch.Tensor, state: dict[str, Any], recipe: Recipe) -> torch.Tensor:
    """Return the float32 values that an update is added to: the master's, where there is one."""
    if recipe.has_master and parameter_format(p, recipe) is not None:
        if "master" not in state:
            state["master"] = pack(_before(p, recipe), recipe.master)
        return unpack(state["master"], p)
    return p.detach().float()


def add_(
    p: torch.Tensor, now: torch.Tensor, update: torch.Tensor, state: dict[str, Any], recipe: Recipe
) -> None:
    """Add a float32 ``update`` to a parameter whose :func:`current` values are ``now``."""
    how = parameter_format(p, recipe)
    if how is None:
        p.copy_(now + update)
    elif recipe.has_master:
        state["master"] = pack(now + update, recipe.master)
        p.copy_(round_values(unpack(state["master"], p), how))
    elif recipe.update == "kahan":
        _add_compensated_(p, now, update, state, how)
    else:
        p.copy_(round_values(now + update, how, "stochastic" if recipe.update == "stochastic" else None))


def _add_compensated_(
    p: torch.Tensor, now: torch.Tensor, update: torch.Tensor, state: dict[str, Any], how: RoleFormat
) -> None:
    """Kahan's sum with every operation rounded to the parameter's format."""
    lost = unpack(state["compensation"], now) if "compensation" in state else torch.zeros_like(now)
    y = round_values(update - lost, how)
    total = round_values(now + y, how)
    state["compensation"] = pack(round_values(round_values(total - now, how) - y, how), how)
    p.copy_(total)


def parameter_format(p: torch.Tensor, recipe: Recipe) -> RoleFormat | None:
    """Return what a parameter is held in, or None."""
    how = recipe.parameter
    if how is None:
        return None
    dtype = torch_dtype(how)
    # A float32 parameter among 16-bit ones was excluded when the model was prepared, or belongs to a norm.
    return how if (is_rounded(p) if dtype is None else dtype == p.dtype) else None


def _before(p: torch.Tensor, recipe: Recipe) -> torch.Tensor:
    """Return the float32 values that a parameter was rounded from, or its own where they are not known."""
    own, before = p.detach().float(), take_unrounded(p)
    if before is not None and not before.is_meta:
        before = of_one(before.to(p.device, torch.float32), p)
        how = parameter_format(p, recipe)
        # Nobody has set the parameter since it was rounded.
        if how is not None and torch.equal(local(round_values(before, how)), local(own)):
            return before
    return own.clone()
