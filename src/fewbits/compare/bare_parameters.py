"""Matrices that a module holds without a layer of their own, as the stacked experts of a mixture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor, nn

from fewbits.files.matrix_view import matrix_shape
from fewbits.ptq.grid import Target
from fewbits.ptq.layers import is_plain, product_layer

_LEFT = (nn.Embedding, nn.EmbeddingBag, nn.LayerNorm, nn.RMSNorm)


@dataclass(frozen=True)
class BareParameter:
    """A parameter of two axes or more that is no weight of a linear or convolution layer.

    Attributes:
        module: that holds it.
        key: its name there.
        rows: of the tensors that a checkpoint stores it as, one below the other; empty where it is one.
    """

    module: nn.Module
    key: str
    rows: tuple[int, ...] = ()

    @property
    def original(self) -> nn.Parameter:
        """The parameter itself."""
        return self.module.get_parameter(self.key)

    def stored(self, values: Tensor) -> list[Tensor]:
        """Return values of its shape as :func:`fewbits.files.cast` takes them: matrices."""
        if not self.rows:
            return [values.reshape(matrix_shape(tuple(values.shape)))]
        return list(values.reshape(-1, values.shape[-1]).split(self.rows))

    def rounded(self, target: Target) -> Tensor:
        """Return it as :func:`fewbits.files.cast` stores it, each tensor with its own scales."""
        x = self.original.detach()
        return torch.cat([target.rounded(part).reshape(-1) for part in self.stored(x)]).reshape(x.shape)


def bare_parameters(
    model: nn.Module, users: Mapping[int, int], rows: Mapping[str, Sequence[int] | None]
) -> dict[str, BareParameter]:
    """Return the bare parameters of a model by name: not those of embeddings and norms, nor shared ones.

    Args:
        model: any module.
        users: how many modules hold a parameter, by its id.
        rows: see :class:`fewbits.compare.WeightCast`.
    """
    found: dict[str, BareParameter] = {}
    for name, module in model.named_modules():
        if product_layer(module) is not None or isinstance(module, _LEFT):
            continue
        for key, parameter in module.named_parameters(recurse=False):
            path = f"{name}.{key}".lstrip(".")
            stored = rows.get(path, ())
            alone = users[id(parameter)] == 1 and parameter.ndim >= 2 and is_plain(parameter)
            if alone and stored is not None:
                assert sum(stored) in (0, prod(parameter.shape[:-1]))
                found[path] = BareParameter(module, key, tuple(stored))
    return found
