"""Sequence classifiers of Hugging Face in a folder, and lines of text, with or without classes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from fewbits.errors import DataError
from fewbits.integrations.pretrained import label_names, lines_of, load_pretrained, positions_of
from fewbits.train.tasks.text import text_files

LINES, LENGTH = 1000, 512  # that are evaluated, and tokens of a line


def load_classifier(folder: Path) -> nn.Module:
    """Return the sequence classifier of a folder with a config.json, in float32 and eval mode.

    Raises:
        DataError: the folder holds none that transformers can load.
        MissingDependencyError: transformers is not installed.
    """
    return load_pretrained(folder, "SequenceClassification")


def labelled_lines(
    folder: Path, model: nn.Module, text: Path
) -> tuple[list[dict[str, Tensor]], list[int] | None]:
    """Return lines as a classifier takes them, and their classes; None where lines have none.

    A line is a text, or its class, a tab, and a text; the class is its number or the name that config.json
    gives it. Lines end with a newline, or a carriage return and a newline, and with no other character. Empty
    lines do not count. Of more than 1000 lines those are taken that are spread over the data.

    Args:
        folder: of the model, with its tokenizer.
        model: of :func:`load_classifier`.
        text: a text file, or a folder of them.

    Raises:
        DataError: there is no tokenizer, no line, an array instead of text, or some lines have a class and
            others have none.
    """
    if text.suffix.lower() == ".npy":
        raise DataError(
            f"{text} is an array of NumPy, and a classifier takes text; expected a text in each line, or its"
            " class, a tab, a text"
        )
    whole = b"\n".join(text_files(text)).decode("utf-8", errors="replace")
    # Not splitlines, which cuts at U+2028, form feeds and other characters within a text too.
    lines = [line for line in whole.replace("\r\n", "\n").split("\n") if line.strip()]
    if not lines:
        raise DataError(
            f"{text} has no line of text; expected a text in each line, or its class, a tab, a text"
        )
    if len(lines) > LINES:
        lines = [lines[i] for i in torch.linspace(0, len(lines) - 1, LINES).long().tolist()]
    labels = None
    if any("\t" in line for line in lines):
        parts = [line.partition("\t") for line in lines]
        known = label_names(folder)
        labels = [_label(part[0], line, text, known) for part, line in zip(parts, lines, strict=True)]
        lines = [part[2] for part in parts]
    return lines_of(folder, lines, positions_of(model, LENGTH)), labels


def _label(name: str, line: str, text: Path, known: Mapping[str, int]) -> int:
    if "\t" not in line or name not in known:
        raise DataError(
            f"{text}: the line {line[:60]!r} begins with no class and a tab, and other lines have one;"
            f" expected one of {', '.join(known)[:200]}"
        )
    return known[name]
