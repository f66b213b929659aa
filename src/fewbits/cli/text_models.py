"""What ``fewbits compare MODEL_FOLDER --data`` measures: a model of Hugging Face on texts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fewbits.cli.arguments import read_formats
from fewbits.cli.kinds import Reads

if TYPE_CHECKING:
    from torch import nn

    from fewbits.compare.text_models import Evaluation
    from fewbits.records import TaskScore
    from fewbits.typing import Progress


DataOption = Annotated[
    Path | None,
    Reads(below=True),
    typer.Option(
        "--data",
        help="Evaluate the model of Hugging Face in a folder on texts: a file, a folder of them, or for a"
        " language model a .npy array of token ids. Lines of a classifier may begin with their class and a"
        " tab.",
        show_default=False,
    ),
]
ActivationsOption = Annotated[
    bool, typer.Option("--activations", help="With --data: round the inputs of layers, too.")
]


@dataclass(frozen=True)
class TextRequest:
    """What is measured, and how weights are chosen."""

    folder: Path
    data: Path
    formats: str | None
    method: str
    scale: str
    calibrate: Path | None
    activations: bool
    scale_rule: str
    include: tuple[str, ...]
    exclude: tuple[str, ...]

    @property
    def options(self) -> list[str]:
        """The words of the command line that say all but the formats and patterns."""
        words = [str(self.folder), "--data", str(self.data), "--method", self.method]
        words += [] if self.scale == "amax" else ["--scale", self.scale]
        words += [] if self.calibrate is None else ["--calibrate", str(self.calibrate)]
        return [*words, *(["--activations"] if self.activations else [])]


def measure_text_model(request: TextRequest, progress: Progress) -> tuple[TaskScore, ...]:
    """Evaluate the model of a folder in each format; see :func:`fewbits.compare.compare_text_model`."""
    read_formats(request.formats, ["fp32"])  # a wrong name is told before PyTorch is loaded
    from fewbits.compare import TASK_FORMATS, WeightCast, compare_text_model
    from fewbits.integrations.stored_rows import stored_rows

    model, evaluation = _loaded(request.folder, request.data)
    weights = WeightCast(
        method=request.method,
        scale=request.scale,
        activations=request.activations,
        scale_rule=request.scale_rule,
        include=request.include,
        exclude=request.exclude,
        stored_rows=stored_rows(request.folder, model),
    )
    if not weights.is_rounding:
        from dataclasses import replace

        from fewbits.integrations.language_model import token_batches

        weights = replace(weights, batches=token_batches(request.folder, model, request.calibrate))
    formats = read_formats(request.formats, TASK_FORMATS)
    return compare_text_model(
        model, evaluation, name=str(request.folder), formats=formats, weights=weights, progress=progress
    )


def _loaded(folder: Path, data: Path) -> tuple[nn.Module, Evaluation]:
    from fewbits.compare import Classification, Perplexity
    from fewbits.integrations.pretrained import is_classifier

    if is_classifier(folder):
        from fewbits.integrations.classifier import labelled_lines, load_classifier

        classifier = load_classifier(folder)
        return classifier, Classification(*labelled_lines(folder, classifier, data))
    from fewbits.integrations.language_model import load_language_model, text_pieces

    model = load_language_model(folder)
    return model, Perplexity(text_pieces(folder, model, data))
