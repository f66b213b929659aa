"""Models of text in narrow formats: perplexity of language models, classes and logits of classifiers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from fewbits import kernels
from fewbits.compare.casting import Cast
from fewbits.compare.models import TASK_FORMATS
from fewbits.compare.weight_cast import WeightCast, cast_weights
from fewbits.errors import ArgumentError, DataError
from fewbits.formats import Format, area_memory_proxy, parse
from fewbits.ptq.choosing import METHODS, SCALES
from fewbits.ptq.data_flow import Batch, call
from fewbits.records import LayerScore, TaskScore
from fewbits.tensor.evaluation import evaluated
from fewbits.typing import Progress


class Evaluation(Protocol):
    """Data on which a model is evaluated piece by piece, and what is asked of each piece."""

    @property
    def metric(self) -> str:
        """The name of the metric of one piece."""

    @property
    def samples(self) -> str:
        """What differences are paired over: ``pieces`` or ``lines``."""

    @property
    def resolution(self) -> float:
        """The smallest step of the metric of one piece; 0 for a continuous one."""

    def outputs(self, model: nn.Module) -> Tensor:
        """Return what the metric is computed from, a row or number for each piece."""

    def values(self, outputs: Tensor, wide: Tensor) -> list[float]:
        """Return the metric of each piece, given what the model gave before it was narrow."""

    def logit_error(self, outputs: Tensor, wide: Tensor) -> float | None:
        """Return the relative error of all logits; None where only the metric is kept."""


@dataclass(frozen=True)
class Perplexity:
    """Pieces of one length, (pieces, tokens); the metric is the mean negative log-likelihood of a token.

    Raises:
        ArgumentError: no piece, or pieces of one token, which nothing is before.
    """

    pieces: Tensor
    metric: str = "token_nll"
    samples: str = "pieces"
    resolution: float = 0.0

    def __post_init__(self) -> None:
        """Raise unless there is something to predict."""
        shape = tuple(self.pieces.shape)
        if len(shape) != 2 or shape[0] < 1 or shape[1] < 2:
            raise ArgumentError(
                f"pieces of shape {shape}; expected (pieces, tokens), one or more of two or more"
            )

    def outputs(self, model: nn.Module) -> Tensor:
        """Return the mean over the tokens of each piece but the first, in nats: (pieces,) float64."""
        means = []
        for piece in self.pieces:
            logits = _logits(model, {"input_ids": piece[None], "use_cache": False})
            means.append(functional.cross_entropy(logits[0, :-1].double(), piece[1:]))
        return torch.stack(means)

    def values(self, outputs: Tensor, wide: Tensor) -> list[float]:
        """Return the means themselves."""
        values: list[float] = outputs.tolist()
        return values

    def logit_error(self, outputs: Tensor, wide: Tensor) -> float | None:
        """Return None: the logits of all tokens would not fit into memory."""
        return None


@dataclass(frozen=True)
class Classification:
    """Lines as a classifier takes them, with their classes; without, those of the model in FP32 count.

    Raises:
        ArgumentError: no line, or classes of another number of lines.
    """

    lines: Sequence[Batch]
    labels: Sequence[int] | None = None
    samples: str = "lines"
    resolution: float = 100.0  # of one line, in percent

    def __post_init__(self) -> None:
        """Raise unless there are lines, and each has a class, or none has."""
        if not self.lines:
            raise ArgumentError("no lines to evaluate; expected one or more")
        if self.labels is not None and len(self.labels) != len(self.lines):
            raise ArgumentError(
                f"{len(self.labels)} classes of {len(self.lines)} lines; expected one for each line, or None"
            )

    @property
    def metric(self) -> str:
        """``accuracy``, or ``agreement`` with the model in FP32."""
        return "agreement" if self.labels is None else "accuracy"

    def outputs(self, model: nn.Module) -> Tensor:
        """Return the logits, (lines, classes).

        Raises:
            DataError: the model gives one number for a line, or several classes at once.
        """
        logits = torch.cat([_logits(model, line) for line in self.lines]).double()
        kind = getattr(getattr(model, "config", None), "problem_type", None)
        if logits.shape[-1] < 2 or kind in ("regression", "multi_label_classification"):
            raise DataError(
                f"the model gives {logits.shape[-1]} number(s) for a line ({kind or 'regression'}), of which"
                " the largest is no class; accuracy and agreement are of classifiers with one class for each"
            )
        return logits

    def values(self, outputs: Tensor, wide: Tensor) -> list[float]:
        """Return 100 for each line of the expected class, 0 for others and for logits that are NaN."""
        expected = wide.argmax(-1) if self.labels is None else torch.tensor(self.labels)
        right = (outputs.argmax(-1) == expected) & torch.isfinite(outputs).all(-1)
        return [100.0 * value for value in right.tolist()]

    def logit_error(self, outputs: Tensor, wide: Tensor) -> float | None:
        """Return the root of the mean squared error over that of the logits' mean square; 0 of equal ones."""
        error = (outputs - wide).norm()
        return float(error / wide.norm()) if error else 0.0  # of a head that is all zero, too


def compare_text_model(
    model: nn.Module,
    evaluation: Evaluation,
    *,
    name: str = "model",
    formats: Sequence[str | Format] = TASK_FORMATS,
    weights: WeightCast | None = None,
    progress: Progress | None = None,
) -> tuple[TaskScore, ...]:
    """Evaluate a model of text in each format; its weights are those that ``fewbits cast`` would store.

    Those are the weights of linear and convolution layers and matrices that other modules hold, as stacked
    experts; the latter are rounded to nearest by each method. Embeddings, norms, the products inside
    attention, and a head that shares its weight with the embedding stay as they are; ``left_wide`` of a score
    names them.

    Args:
        model: takes batches by name and returns an object with ``logits``, as those of Hugging Face do. It is
            evaluated in eval mode, and left in the mode that it is in.
        evaluation: the data.
        name: of the model, in reports.
        formats: formats, or their texts.
        weights: the method that chooses weights, and which layers; default: weights are rounded.
        progress: called as work goes on.

    Returns:
        A score for each format, with a value of each piece, to be paired with that of the model as it is.

    Raises:
        ArgumentError: no formats, no such method, scale or scale rule, or a pattern that fits no module.
        DataError: the model as it is gives NaN on the data, or batches that it cannot be calibrated on.
        FormatError: no such format.
    """
    fmts, weights = [parse(f) for f in formats], weights or WeightCast()
    if not fmts:
        raise ArgumentError("no formats to measure; give at least one, for example 'mxfp4'")
    kernels.check_scale_rule(weights.scale_rule, fmts)
    for what, given, names in (("method", weights.method, METHODS), ("scale", weights.scale, SCALES)):
        if given not in names:
            raise ArgumentError(f"{what}={given!r} is not one of {', '.join(names)}")
    advance = progress or _silent
    with evaluated(model):
        wide = evaluation.outputs(model)
        if not bool(torch.isfinite(wide).all()):
            raise DataError(f"{name} gives NaN or infinity on the data before anything is rounded")
        scores = []
        for i, fmt in enumerate(fmts):
            advance(f"{name}: evaluating formats", i, len(fmts))
            with cast_weights(model, fmt, weights) as cast:
                outputs = evaluation.outputs(model)
            scores.append(_score(name, fmt, evaluation, weights, (outputs, wide), cast))
        advance(f"{name}: evaluating formats", len(fmts), len(fmts))
    return tuple(scores)


def _score(
    name: str,
    format: Format,
    evaluation: Evaluation,
    weights: WeightCast,
    outputs: tuple[Tensor, Tensor],
    cast: Cast,
) -> TaskScore:
    narrow, wide = outputs
    return TaskScore(
        task=name,
        metric=evaluation.metric,
        format=str(format),
        bits_per_value=format.bits_per_value,
        model_bytes=cast.cast_parameters * format.bits_per_value / 8 + cast.other_parameters * 4,
        values=tuple(evaluation.values(narrow, wide)),
        baseline=tuple(evaluation.values(wide, wide)),
        weight_qsnr_db=cast.weight_qsnr_db,
        activation_qsnr_db=cast.activation_qsnr_db if weights.activations else nan,
        saturated_fraction=cast.saturated_fraction,
        flushed_fraction=cast.flushed_fraction,
        area_memory_proxy=area_memory_proxy(format),
        layers=tuple(
            LayerScore(
                layer.layer,
                layer.weight.error().qsnr_db,
                layer.activation.error().qsnr_db if layer.activation.count else nan,
            )
            for layer in cast.layers
        ),
        resolution=evaluation.resolution,
        samples=evaluation.samples,
        method=weights.method if weights.scale == "amax" else f"{weights.method}, scales searched",
        logit_error=evaluation.logit_error(narrow, wide),
        left_wide=cast.left_wide,
        lower_is_better=evaluation.metric == "token_nll",
    )


def _logits(model: nn.Module, batch: Batch) -> Tensor:
    logits = getattr(call(model, batch), "logits", None)
    if not isinstance(logits, Tensor):
        raise ArgumentError(
            f"{type(model).__name__} returns no logits; expected a language model or a classifier"
        )
    return logits


def _silent(what: str, done: float, total: float) -> None:
    """Show nothing."""
