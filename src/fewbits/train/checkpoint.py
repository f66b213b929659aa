"""The complete state of a trainer in one file, which is written atomically."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from fewbits.errors import ArgumentError, DataError
from fewbits.files import load_file, save_file
from fewbits.optim.state import flattened, unflattened
from fewbits.train.settings import Settings
from fewbits.train.trainer import Trainer

_KEY = "training"


def save(trainer: Trainer, settings: Settings, path: Path) -> None:
    """Replace the file at ``path`` by the state of ``trainer``: weights, moments, random bits, counters.

    Raises:
        OSError: the operating system refused.
    """
    tensors: dict[str, Any] = {f"model/{name}": t for name, t in trainer.model.state_dict().items()}
    moments, plain = flattened(trainer.optimizer)
    tensors |= {f"optimizer/{name}": t for name, t in moments.items()}
    tensors |= {f"schedule/{name}": t for name, t in trainer.schedule.tensors().items()}
    tensors["random/batches"] = trainer.batches.get_state()
    tensors["random/torch"] = torch.get_rng_state()
    counters = {
        "settings": asdict(settings),
        "step": trainer.step_number,
        "skipped": trainer.skipped,
        "bytes_per_value": trainer.bytes_per_value,
        "scaler": trainer.scaler.state_dict(),
        "schedule": trainer.schedule.state_dict(),
        "observer": trainer.observer.state_dict(),
        "optimizer": plain,
    }
    save_file(tensors, path, {_KEY: json.dumps(counters)})


def load(trainer: Trainer, settings: Settings, path: Path) -> None:
    """Put the state at ``path`` into a new trainer of the same settings, torch's own random bits included.

    Raises:
        ArgumentError: the checkpoint is one of other settings.
        DataError: the file is not such a checkpoint.
    """
    tensors = load_file(path)
    with safe_open(path, "pt") as file:
        metadata = file.metadata() or {}
    if _KEY not in metadata:
        raise DataError(f"{path} is no checkpoint of a training run; remove it, or choose another folder")
    counters = json.loads(metadata[_KEY])
    wanted = json.loads(json.dumps(asdict(settings)))  # JSON turns tuples into lists
    differ = [k for k, v in wanted.items() if counters["settings"].get(k) != v]
    if differ:
        raise ArgumentError(
            f"{path} is of a run with {differ[0]}={counters['settings'].get(differ[0])!r}, and this one has"
            f" {getattr(settings, differ[0])!r}; choose another folder, or the same settings"
        )
    trainer.model.load_state_dict(_under("model/", tensors))
    moments = _under("optimizer/", tensors)
    trainer.optimizer.load_state_dict(unflattened(trainer.optimizer, moments, counters["optimizer"]))
    trainer.schedule.load_tensors(_under("schedule/", tensors))
    if counters["scaler"]:
        trainer.scaler.load_state_dict(counters["scaler"])
    trainer.schedule.load_state_dict(counters["schedule"])
    trainer.observer.load_state_dict(counters["observer"])
    trainer.step_number, trainer.skipped = counters["step"], counters["skipped"]
    trainer.bytes_per_value = counters["bytes_per_value"]
    trainer.batches.set_state(tensors["random/batches"])
    torch.set_rng_state(tensors["random/torch"])


def _under(prefix: str, tensors: dict[str, Any]) -> dict[str, Any]:
    """Return the tensors whose names begin with ``prefix``, without it."""
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
