"""The folder of a model: its config.json, and the files beside the tensors that it needs to load."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fewbits.errors import DataError
from fewbits.files.checkpoint import INDEX
from fewbits.files.json_objects import unique_keys

CONFIG = "config.json"
METHOD = "fewbits"  # the `quant_method` of folders in the layout of docs/layout.md
_LARGEST_CONFIG_BYTES = 10_000_000
# Where tools say that weights are codes: keys of the config, the last one MLX's, and files beside it.
_WORDS = ("quantization_config", "compression_config", "quantization")
_WORD_FILES = ("hf_quant_config.json", "quantize_config.json", "quant_config.json")
_COMPANIONS = ("*.json", "*.txt", "*.jinja", "*.model")  # tokenizers, processors and how to generate
_DTYPES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32", "float64": "F64"}


@dataclass(frozen=True)
class ModelFolder:
    """A folder with a config.json."""

    path: Path
    config: Mapping[str, Any]

    @property
    def quantization(self) -> Mapping[str, Any]:
        """What the config says about quantized weights; {} if nothing."""
        told = self.config.get("quantization_config")
        return told if isinstance(told, dict) else {}

    def foreign_words(self) -> tuple[str, str] | None:
        """Return what another tool says about quantized weights, and where; None if nothing is said.

        Whatever fewbits itself wrote is described by the files of the tensors.

        Returns:
            the method, such as ``fp8``, or what stands in its place; and the key or the file.
        """
        inner = self.config.get("text_config")
        for config in (self.config, inner if isinstance(inner, dict) else {}):
            for key in _WORDS:
                told = config.get(key)
                method = told.get("quant_method", key) if isinstance(told, dict) else told
                if told and method != METHOD:
                    return str(method), f"{key!r} in {self.path / CONFIG}"
        for name in _WORD_FILES:
            if (self.path / name).is_file():
                return name.removesuffix(".json"), str(self.path / name)
        return None

    @property
    def dtype(self) -> str:
        """The dtype of the weights in the spelling of safetensors; BF16 if the config names none."""
        told = self.config.get("dtype", self.config.get("torch_dtype"))
        return _DTYPES.get(told if isinstance(told, str) else "", "BF16")

    def companions(self) -> list[Path]:
        """Return the files to copy beside the tensors, such as the tokenizer."""
        names = {file for pattern in _COMPANIONS for file in self.path.glob(pattern) if file.is_file()}
        return sorted(f for f in names if f.name != CONFIG and not f.name.endswith(INDEX))

    def text(self, without: tuple[str, ...] = (), **changes: object) -> str:
        """Return the config as JSON, with keys left out and others set."""
        kept = {key: value for key, value in self.config.items() if key not in without}
        return json.dumps(kept | changes, indent=2, sort_keys=True) + "\n"


def model_folder(checkpoint: str | os.PathLike[str]) -> ModelFolder | None:
    """Return the folder of a checkpoint, or None if it has no config.json.

    Args:
        checkpoint: the folder, or a file or an index in it.

    Raises:
        DataError: the config is too large or no JSON object.
    """
    given = Path(checkpoint)
    folder = given if given.is_dir() else given.parent
    file = folder / CONFIG
    return ModelFolder(folder, read_json_object(file)) if file.is_file() else None


def read_json_object(file: Path) -> dict[str, Any]:
    """Return a small JSON document that is an object.

    Raises:
        DataError: it is too large, no JSON or no object.
    """
    size = file.stat().st_size
    if size > _LARGEST_CONFIG_BYTES:
        raise DataError(f"{file} has {size} bytes; expected at most {_LARGEST_CONFIG_BYTES}")
    try:
        document = json.loads(file.read_bytes(), object_pairs_hook=partial(unique_keys, str(file)))
    except DataError:
        raise
    except (ValueError, RecursionError) as error:
        raise DataError(f"{file} is not JSON ({error!s:.200}); fetch or write it again") from None
    if not isinstance(document, dict):
        raise DataError(f"{file} holds no JSON object; fetch or write it again")
    return document
