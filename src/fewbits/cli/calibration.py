"""The model that ``fewbits cast --method`` calibrates: the user's own, or one of Hugging Face."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fewbits.cli.kinds import Reads
from fewbits.errors import ArgumentError

if TYPE_CHECKING:
    from torch import nn

    from fewbits.formats import Format
    from fewbits.ptq.data_flow import Batch
    from fewbits.records import CastReport, QuantizeReport
    from fewbits.typing import Progress


MethodOption = Annotated[
    str | None,
    typer.Option(
        "--method",
        help="Choose the weights of a model's linear and convolution layers on data: gptq, gpfq (error"
        " diffusion) or round. The model is that of --model, or the language model of Hugging Face whose"
        " config.json lies beside the checkpoint.",
        show_default=False,
    ),
]
ScaleOption = Annotated[
    str,
    typer.Option(
        "--scale",
        help="With --method, the scale of a block: amax, of its largest value, or search, what loses least.",
    ),
]
CalibrateOption = Annotated[
    Path | None,
    Reads(below=True),
    typer.Option(
        "--calibrate",
        help="With --method and a language model of Hugging Face: a text file, a folder of them, or a .npy"
        " array of token ids. Default: the source of Python's own library.",
        show_default=False,
    ),
]


@dataclass(frozen=True)
class Calibration:
    """How the weights of layers are chosen, and on what."""

    method: str
    scale: str
    model: str | None
    calibrate: Path | None
    layout: str | None
    fuse: bool


def cast_calibrated(
    source: Path,
    destination: Path,
    format: Format | None,
    map: Mapping[str, Format],
    lists: tuple[Sequence[str], Sequence[str]],
    scale_rule: str,
    calibration: Calibration,
    progress: Progress,
) -> tuple[CastReport, QuantizeReport]:
    """Cast a checkpoint with the weights of its model chosen; see :func:`fewbits.ptq.cast_model`."""
    from fewbits.ptq import cast_model
    from fewbits.ptq.loaded_weights import PartialLoadError

    def written(whole: bool) -> tuple[CastReport, QuantizeReport]:
        model, batches = _loaded(source, calibration.model, calibration.calibrate, whole)
        return cast_model(
            source,
            destination,
            model,
            batches,
            format=format,
            map=map,
            include=lists[0],
            exclude=lists[1],
            scale_rule=scale_rule,
            method=calibration.method,
            scale=calibration.scale,
            layout=calibration.layout,
            fuse=calibration.fuse,
            progress=progress,
        )

    try:
        return written(whole=False)
    except PartialLoadError:
        return written(whole=True)


def _loaded(
    source: Path, model: str | None, calibrate: Path | None, whole: bool
) -> tuple[nn.Module, Sequence[Batch]]:
    """Return the model and its batches; where it can be, with its weights still in the checkpoint."""
    if model is not None:
        from fewbits.train.tasks.user_model import load_user_model

        if calibrate is not None:
            raise ArgumentError(f"{model} brings its own batches; leave `calibrate` out")
        own = load_user_model(model)
        return own.model.eval(), own.batches
    from fewbits.integrations.language_model import empty_language_model, load_language_model, token_batches

    folder = source if source.is_dir() else source.parent
    loaded = (None if whole else empty_language_model(folder)) or load_language_model(folder)
    return loaded, token_batches(folder, loaded, calibrate)
