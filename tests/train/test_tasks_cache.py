"""The cache of trained models: where it is, what its key holds, and that damage means training again."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from fewbits.train import Hyperparameters, Task, fp32_model
from fewbits.train.tasks import cache
from fewbits.train.tasks.task import created


def model(value: Any = 1.0) -> Any:
    found = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    nn.init.constant_(found[0].weight, value)
    return found


@pytest.fixture
def path(tmp_path: Path) -> Any:
    return tmp_path / "deep" / "m.safetensors"


def test_the_folder_is_ours_then_the_users_then_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEWBITS_CACHE", "/own")
    monkeypatch.setenv("XDG_CACHE_HOME", "/xdg")
    assert cache.cache_folder() == Path("/own")
    monkeypatch.delenv("FEWBITS_CACHE")
    assert cache.cache_folder() == Path("/xdg/fewbits")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.cache_folder() == Path.home() / ".cache" / "fewbits"


def test_everything_that_training_depends_on_is_in_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def name(task: Any = "bytes", seed: int = 0, steps: int = 5, data: Any = b"text") -> Any:
        return cache.cache_path(task, seed, {"steps": steps}, data).name

    same = name()
    assert same == name()
    assert same.startswith("bytes-seed0-")
    others = {name(task="digits"), name(seed=1), name(steps=6), name(data=b"texts")}
    monkeypatch.setattr(torch, "__version__", "0.0")
    others.add(name())
    assert len(others) == 5
    assert same not in others


def test_a_saved_model_loads_with_every_value_and_leaves_no_other_file(path: Path) -> None:
    cache.save(model(2.5), path)
    other = model()
    assert cache.load(other, path)
    assert torch.equal(other[0].weight, torch.full((2, 3), 2.5))
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(
    "damage", ["absent", "empty", "truncated", "hostile", "flipped", "folder", "unsigned"]
)
def test_a_damaged_file_counts_as_absent_and_leaves_the_model_alone(path: Path, damage: Any) -> None:
    cache.save(model(2.5), path)
    content = path.read_bytes()
    if damage in ("absent", "folder"):
        path.unlink()
    if damage == "folder":
        path.mkdir()
    if damage == "empty":
        path.write_bytes(b"")
    if damage == "truncated":
        path.write_bytes(content[:-5])
    if damage == "hostile":
        path.write_bytes(b"\xff" * 8 + content[8:])
    if damage == "flipped":  # the header is whole, one bit of a weight is not
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    if damage == "unsigned":
        path.write_bytes(content.replace(b"sha256", b"sha255"))
    other = model()
    assert not cache.load(other, path)
    assert torch.equal(other[0].weight, torch.ones(2, 3))


def test_a_model_of_another_shape_is_not_loaded(path: Path) -> None:
    cache.save(nn.Linear(3, 2), path)
    assert not cache.load(nn.Linear(2, 3), path)
    assert not cache.load(nn.Linear(3, 2, bias=False), path)


def test_a_cache_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    with pytest.warns(UserWarning, match=r"not kept: .*set FEWBITS_CACHE to a folder"):
        cache.save(model(), tmp_path / "file" / "m.safetensors")


def counted_task(path: Path, batches: Any) -> Any:
    """A linear layer that learns to give zero; each batch that is drawn is counted."""

    def draw_batch(generator: Any, count: Any) -> Any:
        batches.append(count)
        return (torch.randn(count, 2, generator=generator),)

    return Task(
        name="zero",
        metric="loss",
        lower_is_better=True,
        create=lambda seed: created(lambda: nn.Linear(2, 2), seed),
        draw_batch=draw_batch,
        loss=lambda model, batch: model(*batch).square().mean(),
        evaluate=lambda model: float(model.weight.square().sum()),
        hyper=Hyperparameters(steps=3, batch_size=4, lr=0.1),
        cache_path=lambda seed: path,
    )


def test_a_model_is_trained_once_and_again_when_its_file_is_damaged(path: Path) -> None:
    batches = []
    task = counted_task(path, batches)
    first, again = fp32_model(task, 3), fp32_model(task, 3)
    assert len(batches) == 3
    assert not torch.equal(first.weight, task.create(3).weight)
    path.write_bytes(path.read_bytes()[:40])
    third = fp32_model(task, 3)
    assert len(batches) == 6
    for model in (first, again, third):
        assert torch.equal(model.weight, first.weight)
        assert not model.training
        assert not model.weight.requires_grad


def test_a_task_without_a_place_in_the_cache_is_trained_each_time(path: Path) -> None:
    batches = []
    task = replace(counted_task(path, batches), cache_path=None)
    assert torch.equal(fp32_model(task).weight, fp32_model(task).weight)
    assert len(batches) == 6
    assert not path.exists()


def test_the_users_random_numbers_are_left_as_they_were(path: Path) -> None:
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    fp32_model(counted_task(path, []))
    assert torch.equal(torch.rand(3), expected)
