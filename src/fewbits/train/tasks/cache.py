"""Trained models on disk, so that a second run takes seconds. A file that is damaged counts as absent."""

from __future__ import annotations

import hashlib
import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
import torch
from platformdirs import user_cache_path
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from fewbits.files.atomic import write_bytes


def cache_folder() -> Path:
    """Return ``$FEWBITS_CACHE``, else where the system keeps caches: on Linux ``~/.cache/fewbits``."""
    own = os.environ.get("FEWBITS_CACHE")
    return Path(own) if own else user_cache_path("fewbits")


def cache_path(name: str, seed: int, config: Mapping[str, object], data: bytes) -> Path:
    """Return where the model of a task lies: everything that training depends on is in the name of the file.

    Args:
        name: of the task.
        seed: of the training.
        config: the sizes of the model and the training, as JSON takes them.
        data: all the data that training reads.
    """
    facts = [seed, config, torch.__version__, hashlib.sha256(data).hexdigest()]
    key = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
    return cache_folder() / f"{name}-seed{seed}-{key[:24]}.safetensors"


def load(model: nn.Module, path: Path) -> bool:
    """Fill ``model`` from the file and return True; where that cannot be done leave it and return False."""
    try:
        with safe_open(path, framework="pt") as file:
            digest = (file.metadata() or {}).get("sha256")
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
    except (OSError, SafetensorError, RuntimeError, ValueError, KeyError):
        return False
    # safetensors checks the header only: the sum is what notices a changed weight.
    if digest != _digest(weights) or _shapes(weights) != _shapes(model.state_dict()):
        return False
    model.load_state_dict(weights)
    return True


def save(model: nn.Module, path: Path) -> None:
    """Write the model, all of it or none; a cache that cannot be written to is a warning."""
    state = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, safetensors.torch.save(state, {"sha256": _digest(state)}))
    except (OSError, ValueError) as error:
        warnings.warn(
            f"the trained model is not kept: {error}; set FEWBITS_CACHE to a folder that can be written to",
            stacklevel=2,
        )


def _digest(tensors: Mapping[str, Tensor]) -> str:
    total = hashlib.sha256()
    for name in sorted(tensors):
        total.update(f"{name} {tensors[name].dtype}".encode())
        total.update(tensors[name].numpy().tobytes())
    return total.hexdigest()


def _shapes(tensors: Mapping[str, Tensor]) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in tensors.items()}
