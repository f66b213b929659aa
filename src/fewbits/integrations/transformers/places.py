"""Where transformers puts the tensors of a file: under other names, and some of them several in one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from torch import nn
from transformers import PreTrainedModel
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key
from transformers.pytorch_utils import Conv1D

from fewbits.tensor import NarrowTensor

_PRODUCTS = (nn.Linear, nn.Embedding, Conv1D)  # take a packed weight as it lies


class Place(NamedTuple):
    """Where a tensor goes."""

    name: str  # of the model's parameter or buffer
    pattern: str | None  # of the converter that makes others of its values, as one of all experts; None: none


def places(model: PreTrainedModel, names: Iterable[str], transforms: Sequence[Any]) -> dict[str, Place]:
    """Return the places of tensors by the names in their files, as transformers itself finds them.

    Args:
        model: of which only names are read; it may be on the meta device.
        names: of tensors in files.
        transforms: of ``get_model_conversion_mapping``.
    """
    renamings = [t for t in transforms if isinstance(t, WeightRenaming)]
    converters = [t for t in transforms if isinstance(t, WeightConverter)]
    own, prefix = model.state_dict(), model.base_model_prefix
    found = {}
    for name in names:
        place = Place(*rename_source_key(name, renamings, converters, prefix, own))
        if place.name not in own and name in own:
            place = Place(*rename_source_key(name, [], [], prefix, own))
        found[name] = place
    return found


def stays_packed(model: PreTrainedModel, place: Place) -> bool:
    """Return whether what reads a tensor takes it packed: a product, or an embedding.

    Of tensors that a module holds without a layer those are matrices called weight, as routers have them, and
    stacks of matrices, as experts; others are added to something, as tokens and buffers are, and as Whisper
    does with the positions of its embeddings.
    """
    module, _, leaf = place.name.rpartition(".")
    try:
        owner = model.get_submodule(module)
    except AttributeError:  # no such place, which transformers says
        return True
    own = owner._parameters.get(leaf)
    if place.pattern is not None or own is None or module.endswith("embed_positions"):
        return False
    is_matrix = own.ndim == 2 and leaf == "weight"
    return isinstance(owner, _PRODUCTS) or is_matrix or (own.ndim == 3 and own.shape[0] > 1)


def read_experts_packed(model: PreTrainedModel) -> None:
    """Let a model multiply packed experts one after the other: grouped products take none."""
    stacks = [p for p in model.parameters() if isinstance(p, NarrowTensor) and p.ndim == 3]
    if stacks and model._can_set_experts_implementation():
        model.set_experts_implementation("eager")
