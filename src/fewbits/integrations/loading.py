"""``fewbits.load``: a model from a folder; what it is made with is imported when it is called."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel


def load(path: str | os.PathLike[str], *, device: str | torch.device = "cpu") -> PreTrainedModel:
    """Return a Hugging Face model whose packed weights stay packed: products read them as they lie.

    Args:
        path: a folder with ``config.json`` and safetensors files, as ``fewbits cast`` writes for a folder.
        device: where the model is put.

    Returns:
        The model of the configuration's ``architectures``, in eval mode. Narrow weights are NarrowTensors
        without gradient; all others have the dtypes that they have in the files.

    Raises:
        DataError: a file cannot be read or is broken, the configuration names no model that transformers has,
            or tensors and model do not fit: all that are too many or too few are counted, the first is named.
        MissingDependencyError: transformers is not installed.
    """
    from fewbits.integrations.transformers.models import from_folder

    return from_folder(path, device)
