"""The complete state of a trainer in one file, which is written atomically."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from fewbits.distributed import ZeroOptimizer
from fewbits.errors import ArgumentError, DataError
from fewbits.files import load_file, save_file
from fewbits.optim.sharded import processes
from fewbits.optim.state import flattened, unflattened
from fewbits.train.settings import Settings
from fewbits.train.together import rank
from fewbits.train.trainer import Trainer

_KEY = "training"


CHECKPOINT = "checkpoint.safetensors"


def begun(folder: Path) -> bool:
    """Return whether a run left a checkpoint in its folder."""
    return any(folder.glob("checkpoint*.safetensors"))


def newest(trainer: Trainer, folder: Path) -> Path | None:
    """Return the checkpoint to go on from: of several processes the last one that each has a part of."""
    mine = [folder / CHECKPOINT] if trainer.together is None else _parts(folder)
    if begun(folder) and not any(folder.glob(CHECKPOINT if trainer.together is None else _name("*", "*"))):
        raise ArgumentError(
            f"{folder} holds a run of another number of processes than {processes()}; start as many, or"
            " choose another folder"
        )
    if trainer.together is None:
        return mine[0] if mine[0].exists() else None
    step = trainer.together.newest([int(path.stem.partition("-step")[2]) for path in mine])
    return None if step is None else _part(folder, step)


def keep(trainer: Trainer, settings: Settings, folder: Path) -> None:
    """Write a checkpoint, and remove the one before it when every process has written.

    Raises:
        OSError: the operating system refused.
    """
    if trainer.together is None:
        save(trainer, settings, folder / CHECKPOINT)
        return
    mine = _part(folder, trainer.step_number)
    save(trainer, settings, mine)
    trainer.together.wait()
    for path in _parts(folder):
        if path != mine:
            path.unlink()


def _part(folder: Path, step: int) -> Path:
    return folder / _name(step)


def _parts(folder: Path) -> list[Path]:
    return list(folder.glob(_name("*")))


def _name(step: int | str, of: int | str | None = None) -> str:
    return f"checkpoint-rank{rank() if of is None else of}of{processes()}-step{step}.safetensors"


def save(trainer: Trainer, settings: Settings, path: Path) -> None:
    """Replace the file at ``path`` by the state of ``trainer``: weights, moments, random bits, counters.

    Raises:
        OSError: the operating system refused.
    """
    tensors: dict[str, Any] = {f"model/{name}": t for name, t in trainer.model.state_dict().items()}
    moments, plain = flattened(_own(trainer.optimizer))
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
    if trainer.together is not None:
        shared, counters["together"] = _divided(trainer.together.state_dict(), "together/")
        tensors |= shared
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
    usual = {f.name: f.default for f in fields(settings)}  # of settings that older checkpoints do not know
    differ = [k for k, v in wanted.items() if counters["settings"].get(k, usual[k]) != v]
    if differ:
        raise ArgumentError(
            f"{path} is of a run with {differ[0]}={counters['settings'].get(differ[0])!r}, and this one has"
            f" {getattr(settings, differ[0])!r}; choose another folder, or the same settings"
        )
    trainer.model.load_state_dict(_under("model/", tensors))
    moments = _under("optimizer/", tensors)
    own = _own(trainer.optimizer)
    own.load_state_dict(unflattened(own, moments, counters["optimizer"]))
    trainer.schedule.load_tensors(_under("schedule/", tensors))
    if counters["scaler"]:
        trainer.scaler.load_state_dict(counters["scaler"])
    trainer.schedule.load_state_dict(counters["schedule"])
    trainer.observer.load_state_dict(counters["observer"])
    trainer.step_number, trainer.skipped = counters["step"], counters["skipped"]
    trainer.bytes_per_value = counters["bytes_per_value"]
    if trainer.together is not None:
        trainer.together.load_state_dict(_joined(counters["together"], _under("together/", tensors)))
    trainer.batches.set_state(tensors["random/batches"])
    torch.set_rng_state(tensors["random/torch"])


def _own(optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
    """Return what has the states of this process, where they are dealt out."""
    return optimizer.optimizer if isinstance(optimizer, ZeroOptimizer) else optimizer


def _divided(state: dict[str, Any], prefix: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the tensors of nested dicts by their paths, and the rest, which JSON can hold."""
    tensors, plain = dict[str, Any](), dict[str, Any]()
    for name, value in state.items():
        if isinstance(value, torch.Tensor):
            tensors[prefix + name] = value
        elif isinstance(value, dict):
            below, plain[name] = _divided(value, f"{prefix}{name}/")
            tensors |= below
        else:
            plain[name] = value
    return tensors, plain


def _joined(plain: dict[str, Any], tensors: dict[str, Any]) -> dict[str, Any]:
    """Return what :func:`_divided` was called with; ``tensors`` have the paths below the prefix."""
    state = {
        name: _joined(value, _under(f"{name}/", tensors)) if isinstance(value, dict) else value
        for name, value in plain.items()
    }
    return state | {path: x for path, x in tensors.items() if path.partition("/")[0] not in plain}


def _under(prefix: str, tensors: dict[str, Any]) -> dict[str, Any]:
    """Return the tensors whose names begin with ``prefix``, without it."""
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
