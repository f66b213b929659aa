"""Weights that a training starts from: those of another run, of a cast file, or of a plain checkpoint."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from fewbits.errors import ArgumentError, DataError
from fewbits.files import load_file
from fewbits.files.matrix_view import matrix_shape
from fewbits.tensor import NarrowTensor
from fewbits.train.checkpoint import CHECKPOINT

_OF_A_RUN = "model/"  # before the names of the model's tensors in the checkpoint of a run


@torch.no_grad()
def start_from(model: nn.Module, path: Path) -> None:
    """Fill a model with the tensors of a checkpoint; narrow ones are dequantized.

    Args:
        model: of the task, before it is prepared.
        path: the checkpoint of a run or its folder, a file with the model's tensors by name, or what
            ``fewbits cast`` made of one.

    Raises:
        ArgumentError: the file has other tensors than the model, or of other shapes or kinds of dtype.
        DataError: the file cannot be read, or a tensor holds NaN or infinity.
    """
    file = path / CHECKPOINT if (path / CHECKPOINT).is_file() else path
    stored = load_file(file)
    if any(name.startswith(_OF_A_RUN) for name in stored):
        stored = {n.removeprefix(_OF_A_RUN): x for n, x in stored.items() if n.startswith(_OF_A_RUN)}
    wanted = model.state_dict()
    for names, what in ((wanted.keys() - stored.keys(), "lacks"), (stored.keys() - wanted.keys(), "has")):
        if names:
            raise ArgumentError(
                f"{file} {what} {min(names)!r:.200}, which {type(model).__name__}"
                f" {'has' if what == 'lacks' else 'lacks'}, and {len(names) - 1} more such tensors; give a"
                " checkpoint of the same task, model and size"
            )
    for name, tensor in wanted.items():
        values: torch.Tensor = stored[name]
        shape = tuple(values.shape)
        if isinstance(values, NarrowTensor):
            values = values.dense()
            if shape == matrix_shape(tuple(tensor.shape)):  # a kernel is stored as a matrix
                values = values.reshape(tensor.shape)
        if values.shape != tensor.shape:
            raise ArgumentError(
                f"{file} has {name!r:.200} of shape {shape}, and {type(model).__name__}'s is"
                f" {tuple(tensor.shape)}; give a checkpoint of the same task, model and size"
            )
        if values.is_floating_point() != tensor.is_floating_point():
            raise ArgumentError(
                f"{file} has {name!r:.200} of {values.dtype}, and {type(model).__name__}'s is {tensor.dtype};"
                " what was cast to integers elsewhere is no weight: give the checkpoint that it was made from"
            )
        values = values.to(tensor.dtype)  # float64 may hold what the model cannot
        if values.is_floating_point() and not bool(values.isfinite().all()):
            raise DataError(
                f"{file} has NaN or infinity in {name!r:.200}, from which training does not recover; give a"
                " checkpoint from before that"
            )
        tensor.copy_(values)
