"""How an update is added to a parameter that is narrow, and what pays back the rounding.

Updates below half a unit in the last place vanish when they are rounded to nearest. A wide master copy
(Micikevicius et al., Mixed Precision Training, 2018, section 3.1), stochastic rounding or Kahan's sum
(Zamirai et al., Revisiting BFloat16 Training, 2020, section 4) keep them.
"""

from __future__ import annotations

from typing import Any

import torch

from fewbits.optim.sharded import local, of_one
from fewbits.optim.stored import loaded, rounded, stored, torch_dtype
from fewbits.recipes import Cast, Recipe
from fewbits.recipes.narrowed import is_narrow, take_wide


def current(p: torch.Tensor, state: dict[str, Any], recipe: Recipe) -> torch.Tensor:
    """Return the float32 values that an update is added to: the master's, where there is one."""
    if recipe.has_master and narrow(p, recipe) is not None:
        if "master" not in state:
            state["master"] = stored(_before(p, recipe), recipe.master)
        return loaded(state["master"], p)
    return p.detach().float()


def add_(
    p: torch.Tensor, now: torch.Tensor, update: torch.Tensor, state: dict[str, Any], recipe: Recipe
) -> None:
    """Add a float32 ``update`` to a parameter whose :func:`current` values are ``now``."""
    how = narrow(p, recipe)
    if how is None:
        p.copy_(now + update)
    elif recipe.has_master:
        state["master"] = stored(now + update, recipe.master)
        p.copy_(rounded(loaded(state["master"], p), how))
    elif recipe.update == "kahan":
        _add_compensated_(p, now, update, state, how)
    else:
        p.copy_(rounded(now + update, how, "stochastic" if recipe.update == "stochastic" else None))


def _add_compensated_(
    p: torch.Tensor, now: torch.Tensor, update: torch.Tensor, state: dict[str, Any], how: Cast
) -> None:
    """Kahan's sum with every operation rounded to the parameter's format."""
    lost = loaded(state["compensation"], now) if "compensation" in state else torch.zeros_like(now)
    y = rounded(update - lost, how)
    total = rounded(now + y, how)
    state["compensation"] = stored(rounded(rounded(total - now, how) - y, how), how)
    p.copy_(total)


def narrow(p: torch.Tensor, recipe: Recipe) -> Cast | None:
    """Return what a parameter is held in, or None."""
    how = recipe.parameter
    if how is None:
        return None
    dtype = torch_dtype(how)
    # A float32 parameter among 16-bit ones was excluded when the model was prepared, or belongs to a norm.
    return how if (is_narrow(p) if dtype is None else dtype == p.dtype) else None


def _before(p: torch.Tensor, recipe: Recipe) -> torch.Tensor:
    """Return the float32 values that a parameter was rounded from, or its own where they are not known."""
    own, wide = p.detach().float(), take_wide(p)
    if wide is not None and not wide.is_meta:
        wide = of_one(wide.to(p.device, torch.float32), p)
        how = narrow(p, recipe)
        if how is not None and torch.equal(local(rounded(wide, how)), local(own)):  # nobody has set it since
            return wide
    return own.clone()
