"""What a model of transformers takes packed of the tensors of a file."""

from __future__ import annotations

from torch import nn
from torch.nn.utils.parametrize import ParametrizationList
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from fewbits.files.places import Place
from fewbits.tensor import NarrowTensor

_PRODUCTS = (nn.Linear, Conv1D)  # take a packed weight as it lies
# What computes with the values of tensors of three axes: kernels, norms of weights, positions.
_VALUES = (nn.Conv1d, nn.ConvTranspose1d, ParametrizationList, nn.ParameterList)
_FEW_ROWS = 1 << 14  # of tables that need little memory; those of tokens have more


def stays_packed(model: PreTrainedModel, place: Place) -> bool:
    """Return whether what reads a tensor takes it packed: a product, or an embedding of tokens.

    Other embeddings stay wide unless they are large: models add their weights to something, or repeat them,
    as DETR does with its queries and Whisper with its positions. Of tensors that a module holds without a
    layer matrices called weight are taken, as routers have them, and stacks of matrices, as experts; others
    are added to something, as buffers are.
    """
    module, _, leaf = place.name.rpartition(".")
    try:
        owner = model.get_submodule(module)
    except AttributeError:  # no such place, which transformers says
        return True
    own = owner._parameters.get(leaf)
    if place.pattern is not None or own is None or module.endswith("embed_positions"):
        return False
    if isinstance(owner, _VALUES):
        return False
    if isinstance(owner, nn.Embedding):
        return own.shape[0] > _FEW_ROWS or _embeds_tokens(model, owner)
    is_matrix = own.ndim == 2 and leaf == "weight"
    return isinstance(owner, _PRODUCTS) or is_matrix or (own.ndim == 3 and own.shape[0] > 1)


def _embeds_tokens(model: PreTrainedModel, embedding: nn.Embedding) -> bool:
    for part in model.modules():
        if isinstance(part, PreTrainedModel):
            try:
                found = part.get_input_embeddings()
            except (NotImplementedError, AttributeError):  # it takes no tokens
                continue
            if isinstance(found, nn.Module) and embedding in found.modules():
                return True
    return False


def read_experts_packed(model: PreTrainedModel) -> None:
    """Let a model multiply packed experts one after the other: grouped products take none."""
    stacks = [p for p in model.parameters() if isinstance(p, NarrowTensor) and p.ndim == 3]
    if stacks and model._can_set_experts_implementation():
        model.set_experts_implementation("eager")
