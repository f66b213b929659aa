"""`fewbits compare` on the built-in models: consistent scores, and formats ordered as in the papers."""

from dataclasses import replace
from functools import partial
from math import isfinite, isnan
from typing import Any

import pytest
import torch
from torch import nn

from fewbits.compare import models
from fewbits.compare.models import TASK_FORMATS, compare_models
from fewbits.errors import ArgumentError, FormatError
from fewbits.evidence import paired
from fewbits.formats import parse
from fewbits.recipes import uniform_recipe
from fewbits.train import Hyperparameters, Task, recipe_trainer


def linear_task(name: str, size: int = "small", *, loss: Any = None) -> Any:
    """A task that needs no training: the error of a random linear layer against its own FP32 output."""
    x = torch.randn(64, 96, generator=torch.Generator().manual_seed(9))

    def create(seed: int) -> Any:
        torch.manual_seed(seed)
        return nn.Sequential(nn.Linear(96, 32), nn.ReLU(), nn.Linear(32, 16))

    def evaluate(model: Any) -> Any:
        with torch.no_grad():
            return float(model(x).square().mean())

    def mean_square(model: Any, batch: Any) -> Any:
        return model(*batch).square().mean()

    return Task(
        name=name,
        metric="nll",
        lower_is_better=True,
        create=create,
        draw_batch=lambda generator, count: (torch.randn(count, 96, generator=generator),),
        loss=loss or mean_square,
        evaluate=evaluate,
        hyper=Hyperparameters(steps=4, batch_size=32, lr=0.01),
        single_thread=True,
    )


@pytest.fixture
def linear(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Let every task be the linear one, and its model be what it is at first; return the seeds asked for."""
    trained = []

    def untrained(task: Any, seed: int, *, progress: Any) -> Any:
        trained.append(seed)
        progress("training", 1, 1)
        return task.create(seed).eval()

    monkeypatch.setattr(models, "read_task", linear_task)
    monkeypatch.setattr(models, "fp32_model", untrained)
    return trained


@pytest.mark.usefixtures("linear")
def test_fp32_changes_nothing_and_narrow_formats_do() -> None:
    fp32, mx4 = compare_models(["bytes"], ["fp32", "mx4"], seeds=2)
    assert fp32.values == fp32.baseline
    assert fp32.difference == 0
    assert fp32.weight_qsnr_db == float("inf")
    assert mx4.baseline == fp32.baseline
    assert all(v != b for v, b in zip(mx4.values, mx4.baseline, strict=True))
    assert 10 < mx4.weight_qsnr_db < 20


@pytest.mark.usefixtures("linear")
def test_the_model_size_counts_cast_weights_narrow_and_the_rest_in_fp32() -> None:
    (score,) = compare_models(["bytes"], ["mxfp4"], seeds=1)
    assert score.model_bytes == (96 * 32 + 32 * 16) * 4.25 / 8 + (32 + 16) * 4


def test_every_seed_is_trained_once_and_progress_reaches_the_end(linear: Any) -> None:
    seen = []
    compare_models(["bytes"], ["mxfp4", "mx6"], seeds=3, progress=lambda *step: seen.append(step))
    assert linear == [0, 1, 2]
    assert seen[-1] == ("bytes: evaluating formats", 6, 6)
    assert any(what.startswith("bytes: training") and done == total for what, done, total in seen)


@pytest.mark.usefixtures("linear")
def test_a_scale_rule_reaches_the_formats_that_have_one() -> None:
    default = compare_models(["bytes"], ["mxfp8_e4m3", "int8_channel"], seeds=1)
    ruled = compare_models(["bytes"], ["mxfp8_e4m3", "int8_channel"], seeds=1, scale_rule="rceil")
    assert ruled[0].values != default[0].values
    assert ruled[0].saturated_fraction == 0 < default[0].saturated_fraction
    assert ruled[1] == default[1]


@pytest.mark.usefixtures("linear")
def test_training_is_measured_where_it_is_asked_for() -> None:
    plain = compare_models(["bytes"], ["mx4"], seeds=1)[0]
    assert plain.trained == plain.trained_baseline == ()
    assert plain.trained_mean is plain.trained_difference is plain.trained_evidence is None
    seen = []
    fp32, mx4 = compare_models(
        ["bytes"], ["fp32", "mx4"], seeds=2, train=True, progress=lambda *step: seen.append(step)
    )
    assert fp32.trained == fp32.trained_baseline == mx4.trained_baseline
    assert fp32.trained_difference == 0 < abs(mx4.trained_difference)
    assert all(after < before for after, before in zip(mx4.trained, mx4.baseline, strict=True))
    assert mx4.trained_evidence == paired(mx4.trained, fp32.trained)
    assert ("bytes: training in 2 formats", 4, 4) in seen


@pytest.mark.usefixtures("linear")
def test_a_trained_model_is_evaluated_without_a_cast() -> None:
    (mx4,) = compare_models(["bytes"], ["mx4"], seeds=1, train=True)
    t = linear_task("bytes")
    trainer = recipe_trainer(t, uniform_recipe("mx4"))
    assert len(list(trainer)) == t.hyper.steps
    assert t.evaluate(trainer.model) != mx4.trained[0]
    assert mx4.trained == (t.evaluate(trainer.plain_model()),)


@pytest.mark.parametrize("fmt", ["mx6", "mxfp4"])  # one that refuses a NaN and one that has it
def test_a_training_that_breaks_down_scores_nan_and_the_others_go_on(
    monkeypatch: pytest.MonkeyPatch, fmt: Any
) -> None:
    def loss(model: Any, batch: Any) -> Any:
        broken = "NarrowLinear" in str(type(model[0]))
        return model(*batch).square().mean() * (1e38 if broken else 1) ** 2

    monkeypatch.setattr(models, "read_task", partial(linear_task, loss=loss))
    fp32, narrow = compare_models(["bytes"], ["fp32", fmt], seeds=1, train=True)
    assert isfinite(fp32.trained_mean)
    assert isnan(narrow.trained_mean)
    assert isnan(narrow.trained_difference)


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"tasks": [], "formats": ["mx4"]}, ArgumentError, "no task to measure"),
        ({"tasks": ["bytes"], "formats": []}, ArgumentError, "no formats to measure"),
        ({"tasks": ["bytes"], "formats": ["mx4"], "seeds": 0}, ArgumentError, "seeds='0'; expected"),
        ({"tasks": ["bytes"], "formats": ["mxfp5"]}, FormatError, "nearest are mxfp4"),
        ({"tasks": ["bytes"], "formats": ["mx4"], "scale_rule": "round"}, ArgumentError, "double_floor"),
        ({"tasks": ["bytes"], "formats": ["nvfp4"], "scale_rule": "ceil"}, ArgumentError, "leave it out"),
    ],
)
def test_bad_arguments_are_told_before_any_training(arguments: Any, error: Any, said: str) -> None:
    with pytest.raises(error, match=said):
        compare_models(arguments.pop("tasks"), arguments.pop("formats"), **arguments)


def test_the_default_list_holds_every_kind_of_format() -> None:
    assert len(set(TASK_FORMATS)) == len(TASK_FORMATS)
    assert {parse(name).kind for name in TASK_FORMATS} == {"float", "posit", "block", "bdr"}


@pytest.mark.parametrize("seeds", [1, pytest.param(3, marks=pytest.mark.slow)])
def test_six_bits_are_within_noise_of_fp32_and_four_are_not(
    monkeypatch: pytest.MonkeyPatch, pytestconfig: Any, seeds: int
) -> None:
    """The order of the papers, on the real language model; three seeds are the default.

    The trained models stay in pytest's cache; the first run takes a third of a minute for each.
    """
    monkeypatch.setenv("FEWBITS_CACHE", str(pytestconfig.cache.mkdir("models")))
    six = ["fp8_e4m3_tensor", "mxfp8_e4m3", "mxfp8_e5m2", "mxint8", "mx9", "mxfp6_e2m3", "mxfp6_e3m2", "mx6"]
    four = ["mxfp4", "nvfp4", "mx4"]
    scores = {s.format: s for s in compare_models(["bytes"], [*six, *four], seeds=seeds)}
    noise = max(0.01, max(scores["mx9"].baseline) - min(scores["mx9"].baseline))
    for name in six:
        assert scores[name].difference < noise, name
    for name in four:
        assert scores[name].difference > 0.01, name
        assert scores[name].difference > max(scores[n].difference for n in six), name
    assert scores["mx4"].difference > scores["mxfp4"].difference > scores["nvfp4"].difference


@pytest.mark.usefixtures("linear")
def test_the_ordering_test_would_reject_a_format_that_costs_nothing() -> None:
    (score,) = compare_models(["bytes"], ["mx4"], seeds=1)
    harmless = replace(score, values=score.baseline)
    assert not harmless.difference > 0.01
