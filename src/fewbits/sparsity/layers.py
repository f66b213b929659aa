"""Which parameters of a layer are matrices of its products, and along which axis a product sums."""

from __future__ import annotations

from fnmatch import fnmatchcase

from torch import nn

# Patterns of parameters, and the axis; for layers of a class and of classes derived from it.
_AXES: tuple[tuple[tuple[type[nn.Module], ...], str, int], ...] = (
    ((nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d), "weight", 1),
    ((nn.MultiheadAttention,), "*_proj_weight", 1),
    ((nn.RNNBase, nn.RNNCellBase), "weight_*", 1),
)
# By name: to import the package of such a class would take seconds, and not everybody has it.
_ELSEWHERE = {"transformers.pytorch_utils.Conv1D": ("weight", 0)}

EMBEDDINGS = (nn.Embedding, nn.EmbeddingBag)


def reduction_axes(module: nn.Module) -> dict[str, int]:
    """Return the axis along which each matrix of a layer is summed: ``{"weight": 1}`` of a linear layer.

    A convolution's ``(out, in, ...)`` counts as one matrix per place of its kernel. Embeddings, biases and
    norms are no such matrices.
    """
    names = [name for name, p in module._parameters.items() if p is not None and p.dim() > 1]
    rules = [(pattern, axis) for classes, pattern, axis in _AXES if isinstance(module, classes)]
    kind = type(module)
    elsewhere = _ELSEWHERE.get(f"{kind.__module__}.{kind.__qualname__}")
    rules += [elsewhere] if elsewhere else []
    return {name: axis for pattern, axis in rules for name in names if fnmatchcase(name, pattern)}


def other_matrices(module: nn.Module) -> dict[str, str]:
    """Return why each further matrix of a layer stays dense: ``{"weight": "it is an embedding, ..."}``.

    A matrix is a floating-point parameter with more than one value along two axes or more; the biases of a
    stack of experts are none.
    """
    known = reduction_axes(module)
    if isinstance(module, EMBEDDINGS):
        reason = "it is an embedding, whose rows are looked up"
    else:
        reason = f"which axis the products of {type(module).__name__} sum over is not known"
    return {
        name: reason
        for name, p in module._parameters.items()
        if p is not None and name not in known and _is_matrix(name, p)
    }


def _is_matrix(name: str, p: nn.Parameter) -> bool:
    return p.is_floating_point() and sum(n > 1 for n in p.shape) > 1 and not name.endswith("bias")
