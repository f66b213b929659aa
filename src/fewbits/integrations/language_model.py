"""Causal language models of Hugging Face in a folder, with tokens to calibrate them on.

The folder is read as it is: nothing is fetched, and no code of it runs.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from fewbits.errors import DataError, MissingDependencyError
from fewbits.train.tasks.text import library_text, own_text

SEQUENCES, LENGTH = 32, 512  # of calibration: sixteen thousand tokens
_LEAST = 64  # tokens
_BYTES = 1 << 20  # of text that are turned into tokens


def load_language_model(folder: Path) -> nn.Module:
    """Return the causal language model of a folder with a config.json, in float32 and eval mode.

    Raises:
        DataError: the folder holds none that transformers can load.
        MissingDependencyError: transformers is not installed.
    """
    try:
        from transformers import AutoModelForCausalLM
    except ImportError:
        raise MissingDependencyError(
            "a model of Hugging Face needs transformers; run pip install transformers, or name a model of"
            " your own with `model`"
        ) from None
    if not (folder / "config.json").is_file():
        raise DataError(
            f"{folder} has no config.json, which says what model it is; give the folder of a language model"
            " of Hugging Face, or name a model of your own with `model`"
        )
    try:
        model: nn.Module = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, local_files_only=True, trust_remote_code=False
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise DataError(
            f"{folder} holds no causal language model: {str(error).splitlines()[0]:.300}"
        ) from None
    return model.eval()


def token_batches(folder: Path, model: nn.Module, text: Path | None) -> list[dict[str, object]]:
    """Return sequences of tokens as the model takes them, one in each batch.

    Args:
        folder: of the model, with its tokenizer where text is to be read.
        model: of :func:`load_language_model`.
        text: a text file, a folder of them, or a ``.npy`` array of token ids, (n,) or (sequences, n); None
            for the source of Python's own library.

    Raises:
        DataError: there is no tokenizer, too little text, or a token that the model does not have.
    """
    if text is not None and text.suffix == ".npy":
        ids = _array(text)
    else:
        octets = library_text().train if text is None else own_text(text, least=_LEAST).train
        ids = _tokens(folder, octets[:_BYTES].decode("utf-8", errors="replace"))
    embedding = model.get_input_embeddings()  # type: ignore[operator]  # transformers gives each model one
    kinds = len(embedding.weight)
    if len(ids) == 0 or int(ids.min()) < 0 or int(ids.max()) >= kinds:
        raise DataError(f"calibration needs token ids from 0 to {kinds - 1}; {text or folder} gives others")
    config = getattr(model, "config", None)
    length = min(LENGTH, int(getattr(config, "max_position_embeddings", LENGTH) or LENGTH))
    if ids.ndim == 1:
        if len(ids) < _LEAST:
            raise DataError(f"{text or folder} gives {len(ids)} tokens; expected {_LEAST} at least")
        count = max(len(ids) // length, 1)
        ids = ids[: count * length].reshape(count, -1)
    # Spread over the text; a model of its own text sees no cache, so that each batch stands alone.
    picked = ids[torch.linspace(0, len(ids) - 1, min(SEQUENCES, len(ids))).long()][:, :length]
    return [{"input_ids": row[None], "use_cache": False} for row in picked]


def _array(path: Path) -> Tensor:
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is no array of NumPy: {error}") from None
    if array.ndim not in (1, 2) or not np.issubdtype(array.dtype, np.integer):
        raise DataError(
            f"{path} holds {array.dtype} of shape {array.shape}; expected token ids, (sequences, n)"
        )
    return torch.from_numpy(array.astype(np.int64))


def _tokens(folder: Path, text: str) -> Tensor:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    except Exception as error:  # of many kinds: each tokenizer has its own files and its own errors
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            f"{folder} has no tokenizer that reads text ({reason:.200}); give `calibrate` a .npy array of"
            " token ids"
        ) from None
    return torch.tensor(ids, dtype=torch.int64)
