"""Weights that were chosen, layer by layer in a folder, so that an interrupted job goes on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from torch.utils._pytree import tree_leaves

from fewbits.errors import ArgumentError
from fewbits.files.atomic import write_bytes
from fewbits.ptq.choosing import ChosenWeight

_KEY = "fewbits_choice"


class StoredChoices:
    """A folder with a file for each layer that is done; a file of another job is written anew."""

    def __init__(self, folder: Path | None, job: str) -> None:
        """Set the folder, which is made if it is not there; None stores nothing.

        Raises:
            ArgumentError: the path is a file.
        """
        if folder is not None and folder.exists() and not folder.is_dir():
            raise ArgumentError(f"folder={folder} is a file; expected a folder, which need not exist")
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)
        self._folder, self._job = folder, job

    def load(self, layer: str) -> tuple[ChosenWeight, int] | None:
        """Return what was chosen for a layer, and for how many vectors; None if there is nothing."""
        path = self.path(layer)
        if path is None or not path.is_file():
            return None
        try:
            with safe_open(path, framework="pt") as file:
                about = json.loads((file.metadata() or {}).get(_KEY, "{}"))
                if about.get("job") != self._job or about.get("layer") != layer:
                    return None
                losses = {name: float(about[name]) for name in ("power", "rounding_loss", "loss")}
                chosen = ChosenWeight(file.get_tensor(layer), **losses, hadamard=int(about["hadamard"]))
                return chosen, int(about["vectors"])
        except (SafetensorError, ValueError, KeyError):  # damaged: chosen again
            return None

    def save(self, layer: str, chosen: ChosenWeight, vectors: int) -> None:
        """Store what was chosen for a layer."""
        path = self.path(layer)
        if path is None:
            return
        about = asdict(replace(chosen, weight=torch.empty(0)))
        del about["weight"]
        text = json.dumps({"job": self._job, "layer": layer, "vectors": vectors, **about})
        write_bytes(path, save({layer: chosen.weight.cpu().contiguous()}, {_KEY: text}))

    def path(self, layer: str) -> Path | None:
        """Return the file of a layer."""
        return None if self._folder is None else choice_file(self._folder, layer)


def choice_file(folder: Path, layer: str) -> Path:
    """Return where the weight of a layer is kept; names of layers may hold what those of files may not."""
    return folder / f"layer-{hashlib.sha256(layer.encode()).hexdigest()[:32]}.safetensors"


def job_of(settings: Mapping[str, object], tensors: Iterable[tuple[str, Tensor]], batches: object) -> str:
    """Return a fingerprint that only the same settings, model and batches have."""
    digest = hashlib.blake2b(json.dumps(settings, sort_keys=True).encode(), digest_size=16)
    for name, tensor in tensors:
        _add(digest, name, tensor)
    for leaf in tree_leaves(batches):
        if isinstance(leaf, Tensor):
            _add(digest, "", leaf)
        else:
            digest.update(repr(leaf).encode())
    return digest.hexdigest()


def _add(digest: hashlib.blake2b, name: str, tensor: Tensor) -> None:
    digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
    digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
