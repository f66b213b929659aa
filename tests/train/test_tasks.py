"""The built-in tasks, small: they learn, they repeat, and they tell what is wrong with their data."""

import builtins
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from fewbits.errors import ArgumentError, DataError, MissingDependencyError
from fewbits.train import fp32_model
from fewbits.train.tasks import TASKS, bytes_task, digits_task, task
from fewbits.train.tasks.bytes_model import ByteModel, Shape, next_byte_loss, windows_at
from fewbits.train.tasks.bytes_task import BytesConfig, nats_per_byte
from fewbits.train.tasks.digits_task import DigitsConfig
from fewbits.train.tasks.lstm_model import ByteLSTM, LSTMShape
from fewbits.train.tasks.task import Hyperparameters

TINY_BYTES = BytesConfig(
    shape=Shape(width=16, layers=1, hidden=32, heads=2, recent=2, embedding=8),
    hyper=Hyperparameters(steps=30, batch_size=4, lr=1e-2),
    window=16,
    batches=2,
    evaluated=2,
)
TINY_DIGITS = DigitsConfig(channels=8, hyper=Hyperparameters(steps=100, batch_size=16, lr=1e-2))


TINY_LSTM = replace(TINY_BYTES, shape=LSTMShape(embedding=8, hidden=24, layers=2))


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEWBITS_CACHE", str(tmp_path / "cache"))


@pytest.fixture(params=["bytes", "lstm", "digits"])
def tiny(request: pytest.FixtureRequest) -> Any:
    """The tasks at sizes that train in a blink."""
    if request.param == "digits":
        return digits_task(TINY_DIGITS)
    return bytes_task(config=TINY_BYTES if request.param == "bytes" else TINY_LSTM)


def weights(model: Any) -> Any:
    return torch.cat([p.flatten() for p in model.parameters()])


def test_training_beats_guessing(tiny: Any) -> None:
    model = fp32_model(tiny, 0)
    if tiny.lower_is_better:
        assert tiny.evaluate(model) < math.log(256) - 1
    else:
        assert 40 < tiny.evaluate(model) <= 100


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(
    tiny: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    first, other = fp32_model(tiny, 0), fp32_model(tiny, 1)
    monkeypatch.setenv("FEWBITS_CACHE", str(tmp_path / "empty"))
    again = fp32_model(tiny, 0)
    assert torch.equal(weights(first), weights(again))
    assert not torch.equal(weights(first), weights(other))
    assert tiny.evaluate(first) == tiny.evaluate(again)


def test_progress_counts_every_step_and_a_cached_model_needs_none(tiny: Any) -> None:
    seen = []
    fp32_model(tiny, progress=lambda *report: seen.append(report))
    name, _, steps = seen[0]
    assert name == f"{tiny.name}: training in FP32"
    assert [done for _, done, _ in seen] == list(range(1, steps + 1))
    seen.clear()
    model = fp32_model(tiny, progress=lambda *report: seen.append(report))
    assert not seen
    assert not model.training


def test_evaluation_repeats_to_the_last_bit(tiny: Any) -> None:
    model = fp32_model(tiny, 0)
    assert tiny.evaluate(model) == tiny.evaluate(model)


def test_a_tenth_of_the_weights_at_most_stays_out_of_the_heavy_layers() -> None:
    model = ByteModel(Shape())
    heavy = sum(m.weight.numel() for m in model.modules() if isinstance(m, torch.nn.Linear))
    assert heavy > 0.9 * sum(p.numel() for p in model.parameters())


BYTE_MODELS = {"bytes": lambda: ByteModel(Shape()), "lstm": lambda: ByteLSTM(LSTMShape(layers=2))}


@pytest.mark.parametrize("made", BYTE_MODELS.values(), ids=BYTE_MODELS)
def test_a_byte_model_never_looks_ahead(made: Callable[[], torch.nn.Module]) -> None:
    torch.manual_seed(0)
    model = made()
    tokens = torch.randint(256, (1, 20))
    changed = tokens.clone()
    changed[0, 12:] = (changed[0, 12:] + 1) % 256
    assert torch.allclose(model(tokens)[:, :12], model(changed)[:, :12], atol=1e-6)
    assert not torch.allclose(model(tokens)[:, 12], model(changed)[:, 12], atol=1e-3)


@pytest.mark.parametrize("made", BYTE_MODELS.values(), ids=BYTE_MODELS)
def test_an_untrained_byte_model_guesses_uniformly(made: Callable[[], torch.nn.Module]) -> None:
    torch.manual_seed(0)
    loss = next_byte_loss(made(), torch.randint(256, (4, 33)))
    assert loss.shape == (4 * 32,)
    assert loss.mean().item() == pytest.approx(math.log(256), abs=0.2)


def test_forget_gates_begin_open() -> None:
    model = ByteLSTM(LSTMShape(hidden=8, layers=2))
    for name in ("bias_ih_l0", "bias_ih_l1"):
        bias = getattr(model.recurrence, name)
        assert (bias == 1).tolist() == [False] * 8 + [True] * 8 + [False] * 16


def test_an_lstm_reads_the_text_of_a_task_and_of_the_user(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_bytes(b"ab" * 30000)
    for found in (task("lstm"), task("bytes", model="lstm"), task(str(path), model="lstm")):
        assert found.name == "lstm"
        assert type(found.create(0)) is ByteLSTM
    assert type(task(str(path)).create(0)) is ByteModel
    assert task("lstm", "base").create(0).recurrence.num_layers == 2
    with pytest.raises(ArgumentError, match=r"model 'lstm' reads text, and task 'my:load' has none"):
        task("my:load", model="lstm")


def test_windows_are_cut_where_they_start() -> None:
    text = torch.arange(10, dtype=torch.uint8)
    assert windows_at(text, torch.tensor([0, 6]), 4).tolist() == [[0, 1, 2, 3], [6, 7, 8, 9]]


def test_held_out_windows_reach_from_the_first_byte_to_the_last() -> None:
    text = torch.arange(200, dtype=torch.uint8)
    seen = []

    def model(tokens: Any) -> Any:
        seen.extend(tokens.tolist())
        return torch.zeros(*tokens.shape, 256)

    value = nats_per_byte(model, text, TINY_BYTES)
    assert value == pytest.approx(math.log(256))
    assert sorted(window[0] for window in seen) == [0, 61, 122, 183]
    assert seen[0][0] == 0
    assert seen[1][0] == 122  # dealt out in turn: each batch covers the whole text


def test_the_users_own_text_is_what_is_trained_on(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_bytes(b"ab" * 2000)
    found = bytes_task(path, replace(TINY_BYTES, hyper=Hyperparameters(steps=60, batch_size=4, lr=1e-2)))
    assert found.evaluate(fp32_model(found)) < 0.5


def test_a_text_too_short_says_how_many_bytes_are_needed(tmp_path: Path) -> None:
    path = tmp_path / "t.txt"
    path.write_bytes(b"short")
    with pytest.raises(DataError, match=rf"holds 5 bytes .* at least {BytesConfig().least_bytes};"):
        task(str(path))
    path.write_bytes(b"x" * TINY_BYTES.least_bytes)
    bytes_task(path, TINY_BYTES)


def test_every_task_has_its_name_and_an_unknown_one_lists_them() -> None:
    assert [task(name).name for name in TASKS if name != "mnist10k"] == [
        "bytes",
        "lstm",
        "digits",
        "faint",
    ]
    for name in ("vowels", ""):  # no name is not the folder that one is in
        with pytest.raises(ArgumentError, match=f"there is no task '{name}', .* expected {', '.join(TASKS)}"):
            task(name)


def test_digits_without_scikit_learn_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    load = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("sklearn"):
            raise ImportError(name)
        return load(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingDependencyError, match=r"scikit-learn.*pip install 'fewbits\[tasks\]'"):
        digits_task()
