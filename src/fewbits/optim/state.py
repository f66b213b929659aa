"""The state of an optimizer in a safetensors file: its moments as they are held, and every option."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

from fewbits.errors import ArgumentError, DataError
from fewbits.files import load_file, save_file
from fewbits.optim.packing import from_plain
from fewbits.tensor import NarrowTensor

_KEY = "optimizer"


def save_state(
    optimizer: torch.optim.Optimizer,
    path: str | os.PathLike[str],
    metadata: Mapping[str, str] | None = None,
) -> None:
    """Write the state of an optimizer to a ``.safetensors`` file, all of it or none of it.

    Gradients that wait for a step are not part of it: save after the step.

    Args:
        optimizer: one of this package or of torch.
        path: the file.
        metadata: further text to keep beside it, which :func:`load_state` returns.

    Raises:
        ArgumentError: the metadata has a key ``optimizer`` or ``fewbits``, the folder does not exist, or a
            group has an option that is no JSON.
        OSError: the operating system refused.
    """
    if metadata and _KEY in metadata:
        raise ArgumentError(f"metadata has the key {_KEY!r}, under which the options lie; rename it")
    tensors, plain = flattened(optimizer)
    try:
        text = json.dumps(plain)
    except TypeError as error:
        raise ArgumentError(f"an option of the optimizer cannot be written as JSON: {error}") from error
    save_file(tensors, path, {**(metadata or {}), _KEY: text})


def load_state(optimizer: torch.optim.Optimizer, path: str | os.PathLike[str]) -> dict[str, str]:
    """Put a state that :func:`save_state` wrote into an optimizer of the same parameters.

    Args:
        optimizer: made anew, of the same class and for parameters of the same shapes in the same order.
        path: the file.

    Returns:
        The further text that was kept beside it.

    Raises:
        ArgumentError: the state is one of other parameters.
        DataError: the file cannot be read, or is no such state.
    """
    tensors = load_file(path)
    metadata: dict[str, str] = {}
    if Path(path).is_file():
        with safe_open(path, "pt") as file:
            metadata = dict(file.metadata() or {})
    if _KEY not in metadata:
        raise DataError(f"{path} holds no state of an optimizer; expected a file that save_state wrote")
    optimizer.load_state_dict(unflattened(optimizer, tensors, json.loads(metadata.pop(_KEY))))
    metadata.pop("fewbits", None)  # how the narrow tensors of this file are stored
    return metadata


def flattened(
    optimizer: torch.optim.Optimizer,
) -> tuple[dict[str, torch.Tensor | NarrowTensor], dict[str, Any]]:
    """Return the tensors of a state under ``index/name``, and everything else as JSON takes it."""
    state_dict = optimizer.state_dict()
    tensors: dict[str, torch.Tensor | NarrowTensor] = {}
    plain: dict[str, dict[str, Any]] = {}
    for index, entries in state_dict["state"].items():
        for name, entry in entries.items():
            value = from_plain(entry)
            if isinstance(value, (torch.Tensor, NarrowTensor)):
                tensors[f"{index}/{name}"] = value
            else:
                plain.setdefault(str(index), {})[name] = value
    return tensors, {"state": plain, "groups": state_dict["param_groups"]}


def unflattened(
    optimizer: torch.optim.Optimizer,
    tensors: Mapping[str, torch.Tensor | NarrowTensor],
    plain: dict[str, Any],
) -> dict[str, Any]:
    """Return the argument of ``optimizer.load_state_dict`` from what :func:`flattened` returned.

    Raises:
        ArgumentError: it is not of these parameters.
    """
    own = optimizer.state_dict()["param_groups"]
    sizes = [[len(group["params"]) for group in groups] for groups in (plain["groups"], own)]
    if sizes[0] != sizes[1]:
        raise ArgumentError(
            f"the state is of groups of {sizes[0]} parameters, and the optimizer has {sizes[1]}; make it as"
            " it was made"
        )
    shapes = {i: p.shape for i, p in _numbered(optimizer)}
    state: dict[int, dict[str, Any]] = {int(i): dict(entries) for i, entries in plain["state"].items()}
    for key, value in tensors.items():
        index, _, name = key.partition("/")
        # A scalar is a count of steps, as torch's own optimizers keep it.
        if value.shape not in (shapes[int(index)], ()):
            raise ArgumentError(
                f"{name} of parameter {index} has shape {tuple(value.shape)}, and the parameter"
                f" {tuple(shapes[int(index)])}; load it into an optimizer of the same model"
            )
        state.setdefault(int(index), {})[name] = value
    return {"state": state, "param_groups": [_like(*pair) for pair in zip(plain["groups"], own, strict=True)]}


def _numbered(optimizer: torch.optim.Optimizer) -> list[tuple[int, torch.Tensor]]:
    return list(enumerate(p for group in optimizer.param_groups for p in group["params"]))


def _like(group: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a group with tuples for the lists that JSON made of them."""
    return {k: tuple(v) if isinstance(own.get(k), tuple) else v for k, v in group.items()}
