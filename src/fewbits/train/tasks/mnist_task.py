"""The task "mnist10k": the 10,000 test images of MNIST, 8,000 to train on, from files that the user has."""

from __future__ import annotations

import gzip
import os
from functools import partial
from pathlib import Path

import numpy as np
import torch

from fewbits.errors import DataError
from fewbits.train.tasks.digits_model import DigitModel
from fewbits.train.tasks.digits_task import Digits, images_task
from fewbits.train.tasks.task import Hyperparameters, Task

TRAINED = 8000  # images; the other 2,000 are held out
SIDE = 28
_DEFAULT = "../shared/data"
_HYPER = Hyperparameters(steps=500, batch_size=64, lr=5e-3)


def mnist_task(channels: int = 16) -> Task:
    """Return the task; its files lie in ``mnist10k`` of the folder that ``FEWBITS_DATA`` names.

    Args:
        channels: of the first convolution.

    Raises:
        DataError: the files are not there, or are not in the IDX format.
    """
    return images_task("mnist10k", partial(DigitModel, channels, SIDE), *mnist_sets(), _HYPER)


def mnist_sets() -> tuple[Digits, Digits]:
    """Return the images to train on, and the others.

    Raises:
        DataError: the files are not there, or are not in the IDX format.
    """
    folder = Path(os.environ.get("FEWBITS_DATA", _DEFAULT)) / "mnist10k"
    images = torch.from_numpy(_idx(folder, "images-idx3", 16, (-1, 1, SIDE, SIDE)).astype(np.float32) / 255)
    labels = torch.from_numpy(_idx(folder, "labels-idx1", 8, (-1,)).astype(np.int64))
    return Digits(images[:TRAINED], labels[:TRAINED]), Digits(images[TRAINED:], labels[TRAINED:])


def _idx(folder: Path, kind: str, header: int, shape: tuple[int, ...]) -> np.ndarray:
    """Return the bytes of the one file in ``folder`` whose name holds ``kind``."""
    files = sorted(folder.glob(f"*{kind}*")) if folder.is_dir() else []
    if not files:
        raise DataError(
            f"the task mnist10k reads *{kind}* in {folder}, which is not there; set FEWBITS_DATA to a folder"
            " that holds mnist10k/"
        )
    try:
        with gzip.open(files[0]) if files[0].suffix == ".gz" else files[0].open("rb") as file:
            data = file.read()
        return np.frombuffer(data, np.uint8, offset=header).reshape(shape)
    except (OSError, EOFError, ValueError) as error:
        raise DataError(f"{files[0]} is no file of images or labels in the IDX format: {error}") from None
