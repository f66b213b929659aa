"""``fewbits.load``: a model from a folder; what it is made with is imported when it is called."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


def load(
    path: str | os.PathLike[str], *, device: str | torch.device = "cpu", activation: str | None = None
) -> PreTrainedModel:
    """Return a Hugging Face model whose packed weights stay packed: products read them as they lie.

    Args:
        path: a folder with ``config.json`` and safetensors files, as ``fewbits cast`` writes for a folder.
        device: where the model is put.
        activation: None multiplies activations as they are. ``"int8_32"`` rounds the input of each linear
            layer with a packed weight to int8 first, with a float32 scale for each 32 features: a token then
            takes less time with 4- and 8-bit weights on a CPU; see :func:`fewbits.matvec`.

    Returns:
        The model of the configuration's ``architectures``, or without them that of its type without a head,
        in eval mode. Narrow weights are NarrowTensors without gradient, where a product or an embedding of
        tokens reads them; all others have the dtype of the files, or where those have several, that of the
        configuration, as transformers loads them.

    Raises:
        DataError: a file cannot be read or is broken, the configuration makes no model that transformers has,
            or tensors and model do not fit: all that are too many or too few are counted, the first is named.
        ArgumentError: no such activation, or no layer to round for.
        MissingDependencyError: transformers is not installed.
    """
    from fewbits.integrations.transformers.models import from_folder

    return from_folder(path, device, activation)
