"""Causal language models of Hugging Face in a folder, with tokens to calibrate and evaluate them on."""

from __future__ import annotations

from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch
from torch import Tensor, nn

from fewbits.errors import DataError
from fewbits.files.contents import ordinary_tensors
from fewbits.integrations.pretrained import is_classifier, load_pretrained, positions_of, tokens_of
from fewbits.ptq.loaded_weights import differing_tie, stored_parameters
from fewbits.train.tasks.text import library_text, own_text

SEQUENCES, LENGTH = 32, 512  # of calibration: sixteen thousand tokens
PIECES = 64  # of text that is evaluated, each of LENGTH tokens at most
_LEAST = 64  # tokens
_SHORTEST, _USUAL = 16, 8  # tokens of a piece, and pieces of a short text
_BYTES = 1 << 20  # of text that are turned into tokens


def load_language_model(folder: Path) -> nn.Module:
    """Return the causal language model of a folder with a config.json, in float32 and eval mode.

    Raises:
        DataError: the folder holds none that transformers can load.
        MissingDependencyError: transformers is not installed.
    """
    return load_pretrained(folder, "CausalLM")


def empty_language_model(folder: Path) -> nn.Module | None:
    """Return the model of a folder with its parameters on the meta device, to be read layer by layer.

    None where the folder's tensors do not have the names and shapes of the model's parameters, where those of
    tied parameters differ, or the model has other state than those: it has to be loaded whole then, which
    also says what is wrong, and ties what transformers ties.
    """
    try:
        from accelerate import init_empty_weights  # type: ignore[import-untyped]  # it has no types
        from transformers import AutoConfig, AutoModelForCausalLM

        if is_classifier(folder):
            return None
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        if getattr(config, "quantization_config", None) is not None:
            return None
        with init_empty_weights(include_buffers=False):
            model: nn.Module = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        model.tie_weights()  # type: ignore[operator]  # transformers gives each model one
        stored = {t.name: t for t in ordinary_tensors(folder)}
        if differing_tie(model, stored) is not None:
            return None
        named = stored_parameters(model, stored)
    except (ImportError, OSError, ValueError, KeyError, RuntimeError, TypeError):
        return None
    parameters = dict(model.named_parameters(remove_duplicate=False))
    own = {name for name, _ in model.named_parameters()}
    complete = all(p.is_meta for p in parameters.values()) and named.keys() == own
    return model.eval() if complete and parameters.keys() == model.state_dict().keys() else None


def token_batches(folder: Path, model: nn.Module, text: Path | None) -> list[dict[str, object]]:
    """Return sequences of tokens as a model takes them, one in each batch.

    Args:
        folder: of the model, with its tokenizer where text is to be read.
        model: of :func:`load_language_model`, or a classifier.
        text: a text file, a folder of them, or a ``.npy`` array of token ids, (n,) or (sequences, n); None
            for the source of Python's own library.

    Raises:
        DataError: there is no tokenizer, too little text, or a token that the model does not have.
    """
    octets = library_text().train if text is None else None
    ids, length = _ids(folder, model, text, octets), positions_of(model, LENGTH)
    if ids.ndim == 1:
        count = max(len(ids) // length, 1)
        ids = ids[: count * length].reshape(count, -1)
    # Spread over the text; a model of its own text sees no cache, so that each batch stands alone.
    picked = ids[torch.linspace(0, len(ids) - 1, min(SEQUENCES, len(ids))).long()][:, :length]
    alone = {"use_cache": False} if hasattr(getattr(model, "config", None), "use_cache") else {}
    return [{"input_ids": row[None], **alone} for row in picked]


def text_pieces(folder: Path, model: nn.Module, text: Path) -> Tensor:
    """Return pieces of a text to evaluate a language model on, all of one length: (pieces, tokens).

    A piece has 512 tokens, or as many as the model takes at once; of a short text fewer, so that there are
    eight pieces, but 16 at least. Of more than 64 pieces those are taken that are spread over the text.

    Args:
        folder: of the model, with its tokenizer where text is to be read.
        model: of :func:`load_language_model`.
        text: a text file, a folder of them, or a ``.npy`` array of token ids, (n,) or (pieces, n).

    Raises:
        DataError: there is no tokenizer, too little text, or a token that the model does not have.
    """
    ids = _ids(folder, model, text, None)
    if ids.ndim == 1:
        length = min(positions_of(model, LENGTH), max(len(ids) // _USUAL, _SHORTEST))
        count = len(ids) // length
        ids = ids[: count * length].reshape(count, length)
    most = positions_of(model, LENGTH)
    if ids.shape[1] > most:  # rows of an array are cut as texts are
        whole = ids.shape[1] // most
        ids = ids[:, : whole * most].reshape(-1, most)
    if ids.shape[1] < 2:
        raise DataError(f"{text} has pieces of {ids.shape[1]} tokens; expected 2 at least, one to predict")
    return ids[torch.linspace(0, len(ids) - 1, min(PIECES, len(ids))).long()]


def _ids(folder: Path, model: nn.Module, text: Path | None, octets: bytes | None) -> Tensor:
    """Return the tokens of a text, (n,), or those of an array, checked."""
    if text is not None and text.suffix.lower() == ".npy":
        ids = _array(text)
    else:
        if octets is None:
            assert text is not None
            read = own_text(text, least=_LEAST)
            octets = read.train + read.held_out
        ids = tokens_of(folder, octets[:_BYTES].decode("utf-8", errors="replace"))
    embedding = model.get_input_embeddings()  # type: ignore[operator]  # transformers gives each model one
    kinds = len(embedding.weight)
    if len(ids) == 0 or int(ids.min()) < 0 or int(ids.max()) >= kinds:
        raise DataError(f"the model takes token ids from 0 to {kinds - 1}; {text or folder} gives others")
    if ids.ndim == 1 and len(ids) < _LEAST:
        raise DataError(f"{text or folder} gives {len(ids)} tokens; expected {_LEAST} at least")
    return ids


def _array(path: Path) -> Tensor:
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError, BadZipFile) as error:
        raise DataError(f"{path} is no array of numbers of NumPy: {error}") from None
    if not isinstance(array, np.ndarray):
        raise DataError(f"{path} holds several arrays; expected one of token ids, (n,) or (sequences, n)")
    kind = "strings" if array.dtype.kind in "US" else str(array.dtype)
    if array.ndim not in (1, 2) or not np.issubdtype(array.dtype, np.integer) or not array.size:
        raise DataError(
            f"{path} holds {kind} of shape {array.shape}; expected integers, token ids: (n,) or"
            " (sequences, n)"
        )
    if int(array.max()) > np.iinfo(np.int64).max:
        raise DataError(f"{path} holds {array.max()}, which is no token id; expected (n,) or (sequences, n)")
    return torch.from_numpy(array.astype(np.int64))
