"""Models and tokenizers of Hugging Face in a folder: nothing is fetched, and no code of it runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fewbits.errors import DataError, MissingDependencyError
from fewbits.files.model_folder import ModelFolder

_KINDS = ("CausalLM", "SequenceClassification")
_CAUSAL = ("ForCausalLM", "LMHeadModel")
_CLASSIFIER = "ForSequenceClassification"


def is_pretrained(folder: Path) -> bool:
    """Return whether a path is a folder with a configuration of Hugging Face."""
    return (folder / "config.json").is_file()


def is_classifier(folder: Path) -> bool:
    """Return whether a folder holds a sequence classifier; False: a causal language model.

    Raises:
        DataError: it has no config.json, or that names another model.
    """
    names = _configuration(folder).get("architectures") or []
    if any(str(name).endswith(_CLASSIFIER) for name in names):
        return True
    if any(str(name).endswith(_CAUSAL) for name in names):
        return False
    named = ", ".join(map(str, names)) or "of no model"
    raise DataError(
        f"{folder / 'config.json'} names the architecture {named}; expected a"
        f" causal language model (...ForCausalLM) or a sequence classifier (...{_CLASSIFIER})"
    )


def load_pretrained(folder: Path, kind: str = "CausalLM") -> nn.Module:
    """Return the model of a folder in float32 and eval mode.

    Args:
        folder: with config.json and the weights.
        kind: ``CausalLM`` or ``SequenceClassification``.

    Raises:
        DataError: the folder holds none that transformers can load, or its weights are missing or narrow.
        MissingDependencyError: transformers is not installed.
    """
    assert kind in _KINDS
    what = "causal language model" if kind == "CausalLM" else "sequence classifier"
    try:
        import transformers
    except ImportError:
        raise MissingDependencyError(
            "a model of Hugging Face needs transformers; run pip install transformers, or name a model of"
            " your own with `model`"
        ) from None
    config = _configuration(folder)
    if "quantization_config" in config or ModelFolder(folder, config).foreign_words() is not None:
        raise DataError(
            f"{folder} holds a model that is quantized already; give the model that it was made from"
        )
    if not any(folder.glob("*.safetensors")) and not any(folder.glob("*.bin")):
        raise DataError(
            f"{folder} has no weights; expected model.safetensors, or its parts with their index, beside"
            " config.json"
        )
    try:
        model, found = getattr(transformers, f"AutoModelFor{kind}").from_pretrained(
            folder,
            dtype=torch.float32,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise DataError(f"{folder} holds no {what}: {str(error).splitlines()[0]:.300}") from None
    if found["missing_keys"]:
        raise DataError(
            f"{folder} holds no {what}: {len(found['missing_keys'])} of its tensors are missing, as"
            f" {min(map(str, found['missing_keys']))}"
        )
    made: nn.Module = model.eval()
    return made


def label_names(folder: Path) -> dict[str, int]:
    """Return the numbers of classes by what a line may call them: the number, or the name in config.json."""
    named = _configuration(folder).get("id2label") or {"0": "0", "1": "1"}
    return {str(number): int(number) for number in named} | {str(text): int(n) for n, text in named.items()}


def tokens_of(folder: Path, text: str) -> Tensor:
    """Return the tokens of a text without any special ones, (n,).

    Raises:
        DataError: the folder has no tokenizer that reads text.
    """
    (tokens,) = _tokenized(folder, [text], add_special_tokens=False)
    return torch.tensor(tokens["input_ids"], dtype=torch.int64)


def lines_of(folder: Path, texts: list[str], most: int) -> list[dict[str, Tensor]]:
    """Return lines as a model takes them, each a batch of its own, cut off behind so many tokens.

    Raises:
        DataError: the folder has no tokenizer that reads text, or makes no token of a line.
    """
    taken = _tokenized(folder, texts, truncation=True, max_length=most)
    for number, line in enumerate(taken, 1):
        if not line["input_ids"]:
            raise DataError(f"line {number} has no token for this tokenizer; leave empty lines out")
    return [{name: torch.tensor([ids]) for name, ids in line.items()} for line in taken]


def positions_of(model: nn.Module, most: int) -> int:
    """Return how many tokens a model takes at once, ``most`` at most."""
    config = getattr(model, "config", None)
    positions = int(getattr(config, "max_position_embeddings", most) or most)
    if "roberta" in str(getattr(config, "model_type", "")):  # whose positions begin behind that of padding
        positions -= int(getattr(config, "pad_token_id", 1) or 0) + 1
    return min(most, positions)


def _tokenized(folder: Path, texts: list[str], **how: object) -> list[dict[str, list[int]]]:
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        return [dict(tokenizer(text, **how)) for text in texts]
    except Exception as error:  # of many kinds: each tokenizer has its own files and its own errors
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise DataError(
            f"{folder} has no tokenizer that reads text ({reason:.200}); copy its files beside config.json,"
            " or give a language model a .npy array of token ids"
        ) from None


def _configuration(folder: Path) -> dict[str, Any]:
    try:
        read = json.loads((folder / "config.json").read_text("utf-8"))
    except FileNotFoundError:
        raise DataError(
            f"{folder} has no config.json, which says what model it is; give the folder of a model of"
            " Hugging Face, or name a model of your own with `model`"
        ) from None
    except (OSError, ValueError) as error:
        raise DataError(f"{folder / 'config.json'} cannot be read: {error}") from None
    if not isinstance(read, dict):
        raise DataError(f"{folder / 'config.json'} is no configuration of a model; expected a JSON object")
    return read
