"""What a model of transformers takes packed of the tensors of a file."""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from fewbits.files.places import Place
from fewbits.tensor import NarrowTensor

_PRODUCTS = (nn.Linear, nn.Embedding, Conv1D)  # take a packed weight as it lies


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
