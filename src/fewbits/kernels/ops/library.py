"""The library of operators: their schemas, and how they read formats."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache

import torch

from fewbits.formats import parse

read_format = lru_cache(maxsize=256)(parse)  # operators take formats as text


# By hand, because what custom_op registers for autograd knows neither forward mode nor torch.func.
# The axis comes before the format: torch.distributed.tensor remembers by what follows the first integer.
LIBRARY = torch.library.Library("fewbits", "FRAGMENT")  # lasts as long as this module


def define(kernel: Callable[..., torch.Tensor], fake: Callable[..., torch.Tensor]) -> None:
    """Define an operator from a kernel and a fake kernel, which returns the shape of the result."""
    name = kernel.__name__.lstrip("_")
    schema = name + torch.library.infer_schema(kernel, mutates_args=())
    LIBRARY.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
    LIBRARY.impl(name, kernel, "CompositeExplicitAutograd")
    torch.library.register_fake(f"fewbits::{name}", fake, lib=LIBRARY)
