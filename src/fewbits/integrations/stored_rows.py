"""Of which tensors of a checkpoint a model of Hugging Face stacks its parameters, as those of experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn

from fewbits.files.checkpoint import StoredTensor
from fewbits.files.contents import ordinary_tensors
from fewbits.ptq.loaded_weights import read


def stored_rows(folder: Path, model: nn.Module) -> dict[str, Sequence[int] | None]:
    """Return how many rows each tensor has of which a parameter of three axes or more is stacked.

    Tensors are found by the values of their first rows. Parameters that a file has by name and shape are left
    out; None is one whose tensors lie otherwise, as transposed ones do.

    Args:
        folder: with the weights.
        model: loaded from it.
    """
    if not any(folder.glob("*.safetensors")):
        return {}
    tensors = {t.name: t for t in ordinary_tensors(folder)}
    names = dict(model.named_parameters(remove_duplicate=False))
    base = f"{getattr(model, 'base_model_prefix', '')}."
    own = {alike for name in names for alike in (name, base + name, name.removeprefix(base))}
    others = [
        t for t in tensors.values() if t.name not in own and len(t.shape) >= 2 and t.is_float and t.count
    ]
    firsts = [(t, _first_row(t)) for t in others]
    found: dict[str, Sequence[int] | None] = {}
    for name, parameter in names.items():
        alike = (name, base + name, name.removeprefix(base))
        if parameter.ndim >= 3 and not any(
            n in tensors and tensors[n].shape == tuple(parameter.shape) for n in alike
        ):
            found[name] = _rows(parameter.detach(), firsts)
    return found


def _first_row(tensor: StoredTensor) -> Tensor:
    """Return the first values along the last axis, widened."""
    return read(replace(tensor, shape=tensor.shape[-1:])).float()


def _rows(parameter: Tensor, firsts: Sequence[tuple[StoredTensor, Tensor]]) -> list[int] | None:
    """Return the heights of the tensors that lie one below the other; None where they do not."""
    matrix = parameter.reshape(-1, parameter.shape[-1])
    heights: dict[int, int] = {}
    for tensor, first in firsts:
        if tensor.shape[-1] != matrix.shape[-1]:
            continue
        for at in (matrix[:, 0] == first[0]).nonzero().flatten().tolist():
            if torch.equal(matrix[at], first):
                heights.setdefault(at, tensor.count // tensor.shape[-1])
    at, found = 0, []
    while at in heights:
        found.append(heights[at])
        at += heights[at]
    return found if at == len(matrix) else None
