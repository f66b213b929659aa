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
        optimizer: one of this package or of torch, wrapped or not.
        path: the file.
        metadata: further text to keep beside it, which :func:`load_state` returns.

    Raises:
        ArgumentError: the metadata has a key ``optimizer`` or ``fewbits``, the folder does not exist, or a
            group has an option, or a parameter a state, that is neither a tensor nor JSON, as the lists of
            tensors of torch's LBFGS and a learning rate in a tensor.
        OSError: the operating system refused.
    """
    if metadata and _KEY in metadata:
        raise ArgumentError(f"metadata has the key {_KEY!r}, under which the options lie; rename it")
    tensors, plain = flattened(optimizer)
    for number, entries in plain["state"].items():
        _check_json(entries, f"state of parameter {number}", "save its state_dict() by torch.save")
    for number, group in enumerate(plain["groups"]):
        _check_json(group, f"option of group {number}", "make it a number before, as float(lr)")
    save_file(tensors, path, {**(metadata or {}), _KEY: json.dumps(plain)})


def _check_json(entries: Mapping[str, object], what: str, remedy: str) -> None:
    for name, value in entries.items():
        try:
            json.dumps(value)
        except TypeError as error:
            raise ArgumentError(f"{name!r}, {what}, cannot be written as JSON: {error}; {remedy}") from error


def load_state(optimizer: torch.optim.Optimizer, path: str | os.PathLike[str]) -> dict[str, str]:
    """Put a state that :func:`save_state` wrote into an optimizer of the same parameters.

    Args:
        optimizer: made anew, of the same class and for parameters of the same shapes in the same order.
        path: the file.

    Returns:
        The further text that was kept beside it.

    Raises:
        ArgumentError: the state is one of another class or of other parameters.
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
    return tensors, {
        "class": _class_of(optimizer),
        "shapes": [list(p.shape) for p in _parameters(optimizer)],
        "state": plain,
        "groups": state_dict["param_groups"],
    }


def unflattened(
    optimizer: torch.optim.Optimizer,
    tensors: Mapping[str, torch.Tensor | NarrowTensor],
    plain: dict[str, Any],
) -> dict[str, Any]:
    """Return the argument of ``optimizer.load_state_dict`` from what :func:`flattened` returned.

    Raises:
        ArgumentError: it is not of this class or of these parameters.
    """
    kind = _class_of(optimizer)
    if plain.get("class", kind) != kind:  # which older files do not say, as they say no shapes
        raise ArgumentError(
            f"the state is one of {plain['class']}, and the optimizer is {kind}; load it into the class that"
            " it is of, or begin without it"
        )
    own = optimizer.state_dict()["param_groups"]
    sizes = [[len(group["params"]) for group in groups] for groups in (plain["groups"], own)]
    if sizes[0] != sizes[1]:
        raise ArgumentError(
            f"the state is of groups of {sizes[0]} parameters, and the optimizer has {sizes[1]}; make it as"
            " it was made"
        )
    for i, (shape, p) in enumerate(zip(plain.get("shapes", ()), _parameters(optimizer), strict=False)):
        if tuple(shape) != p.shape:
            raise ArgumentError(
                f"the state of parameter {i} is of shape {tuple(shape)}, and the parameter of"
                f" {tuple(p.shape)}; load it into an optimizer of the same model"
            )
    state: dict[int, dict[str, Any]] = {int(i): dict(entries) for i, entries in plain["state"].items()}
    for key, value in tensors.items():
        index, _, name = key.partition("/")
        state.setdefault(int(index), {})[name] = value
    return {"state": state, "param_groups": [_like(*pair) for pair in zip(plain["groups"], own, strict=True)]}


def _class_of(optimizer: torch.optim.Optimizer) -> str:
    """Return the name of a class, of the one that wrappers hold, with the package of torch's and ours.

    Modules are left out: a class of one's own is of ``__main__`` in one script and of a module in the next.
    """
    while isinstance(inner := getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        optimizer = inner
    kind = type(optimizer)
    package = kind.__module__.partition(".")[0]
    return f"{package}.{kind.__qualname__}" if package in ("torch", "fewbits") else kind.__qualname__


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def _like(group: dict[str, Any], own: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a group with tuples for the lists that JSON made of them."""
    return {k: tuple(v) if isinstance(own.get(k), tuple) else v for k, v in group.items()}
