"""Samples are decoded once, whoever asks, and never wrong."""

import math
import multiprocessing
import pickle
import sqlite3
import sys
import warnings
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

import fewbits as fb
from fewbits.train import CachedDataset, CacheStatistics
from tests.copies import copies

pytest.importorskip("diskcache", reason="diskcache (fewbits[cache]) is not installed")

SIZE = 20


class Images:
    """Counts, in a file that all processes append to, how often each sample is decoded."""

    def __init__(self, log: Path, side: int = 40, shift: int = 0) -> None:
        self.log, self.side, self.shift = log, side, shift

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> tuple[torch.Tensor, dict[str, Any]]:
        if not 0 <= index < SIZE:
            raise IndexError(index)
        with self.log.open("a") as file:
            file.write(f"{index}\n")
        generator = torch.Generator().manual_seed(index + self.shift)
        image = torch.rand(self.side, self.side, generator=generator)
        return image, {"label": index % 10, "name": f"image {index}", "box": np.arange(4.0) * index}

    def decoded(self) -> int:
        return len(self.log.read_text().split()) if self.log.exists() else 0


def equal(a: tuple[torch.Tensor, dict[str, Any]], b: tuple[torch.Tensor, dict[str, Any]]) -> bool:
    rest = a[1]["label"] == b[1]["label"] and a[1]["name"] == b[1]["name"]
    return rest and torch.equal(a[0], b[0]) and bool((a[1]["box"] == b[1]["box"]).all())


@pytest.fixture
def images(tmp_path: Path) -> Images:
    return Images(tmp_path / "log")


def all_right(cached: CachedDataset[Any], images: Images) -> bool:
    plain = Images(images.log.with_name("other log"), images.side, images.shift)
    return all(equal(cached[i], plain[i]) for i in range(SIZE))


def test_memory_answers_from_the_second_epoch_on(images: Images) -> None:
    cached = CachedDataset(images, fingerprint="1")
    for _ in range(3):
        assert all_right(cached, images)
    assert images.decoded() == SIZE == len(cached)
    assert cached.statistics() == CacheStatistics(2 * SIZE, 0, SIZE, 0, 0)
    assert cached[-1][1]["name"] == cached[np.int64(SIZE - 1)][1]["name"] == f"image {SIZE - 1}"
    for index in (SIZE, -SIZE - 1):
        with pytest.raises(IndexError):
            cached[index]
    with pytest.raises(TypeError):
        cached[cast("int", "1")]


def test_what_a_user_changes_is_not_what_the_next_one_gets(images: Images) -> None:
    cached = CachedDataset(images, fingerprint="1")
    for _ in range(3):
        image, rest = cached[0]
        image.zero_()
        rest["box"][:] = -1
        rest["label"] = None
    assert all_right(cached, images)


def test_memory_is_bounded_and_the_rest_lies_on_the_disk(images: Images, tmp_path: Path) -> None:
    entry = 40 * 40 * 4
    cached = CachedDataset(images, fingerprint="1", memory_bytes=5 * entry + 4000, folder=tmp_path / "c")
    assert all_right(cached, images)
    assert all_right(cached, images)
    assert cached.statistics() == CacheStatistics(5, SIZE - 5, SIZE, 0, SIZE)
    none = CachedDataset(images, fingerprint="1", memory_bytes=0)
    assert all_right(none, images)
    assert all_right(none, images)
    assert none.statistics() == CacheStatistics(0, 0, 2 * SIZE, 0, 0)


@pytest.mark.parametrize("side", [40, 200])  # in the index, and in files of their own
def test_the_disk_is_bounded_and_keeps_what_came_first(tmp_path: Path, side: int) -> None:
    images, folder = Images(tmp_path / "log", side), tmp_path / "cache"
    limit = 60_000 + 5 * side * side * 4
    for _ in range(3):
        cached = CachedDataset(images, fingerprint="1", memory_bytes=0, folder=folder, disk_bytes=limit)
        assert all_right(cached, images)
        there = [path for path in folder.rglob("*") if path.is_file() and path.suffix in (".val", ".db")]
        assert sum(path.stat().st_size for path in there) <= limit
    statistics = cached.statistics()
    assert 3 <= statistics.disk < SIZE
    assert statistics.decoded == SIZE - statistics.disk
    assert statistics.kept == 0


def test_a_second_run_finds_them_and_another_fingerprint_does_not(images: Images, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    assert all_right(CachedDataset(images, fingerprint="1", folder=folder), images)
    again = CachedDataset(images, fingerprint="1", folder=folder)
    assert all_right(again, images)
    assert again.statistics() == CacheStatistics(0, SIZE, 0, 0, 0)
    changed = Images(tmp_path / "log", shift=1000)
    assert all_right(CachedDataset(changed, fingerprint="2", folder=folder), changed)
    index = sqlite3.connect(folder / "cache.db")
    assert index.execute("SELECT COUNT(*) FROM Cache").fetchall() == [(SIZE + 1,)]  # the old ones are gone
    index.close()
    assert all_right(CachedDataset(images, fingerprint="1", folder=folder), images)
    # The yardstick: under the old fingerprint the changed data set gives what it was.
    assert not all_right(CachedDataset(changed, fingerprint="1", folder=folder), changed)


def damage(path: Path, at: int) -> None:
    octets = bytearray(path.read_bytes())
    octets[at] ^= 1
    path.write_bytes(octets)


def test_a_damaged_entry_is_decoded_again_and_said(tmp_path: Path) -> None:
    images, folder = Images(tmp_path / "log", 200), tmp_path / "cache"
    assert all_right(CachedDataset(images, fingerprint="1", folder=folder), images)
    entries = sorted(folder.rglob("*.val"))
    assert len(entries) == SIZE
    for path, at in zip(entries, (0, 5, 90, -1), strict=False):
        damage(path, at)
    entries[5].write_bytes(entries[6].read_bytes())  # right bytes in the wrong place
    entries[7].write_bytes(b"")
    entries[8].unlink()
    again = CachedDataset(images, fingerprint="1", folder=folder)
    with pytest.warns(UserWarning, match="was damaged, and is decoded again"):
        assert all_right(again, images)
    assert again.statistics() == CacheStatistics(0, SIZE - 7, 7, 6, 7)
    mended = CachedDataset(images, fingerprint="1", folder=folder)
    assert all_right(mended, images)
    assert mended.statistics().disk == SIZE


def test_a_pickle_in_the_folder_is_never_read(images: Images, tmp_path: Path) -> None:
    folder, trap = tmp_path / "cache", tmp_path / "trap"
    assert all_right(CachedDataset(images, fingerprint="1", folder=folder), images)
    index = sqlite3.connect(folder / "cache.db")
    octets = pickle.dumps(Trap(trap))
    index.execute("UPDATE Cache SET mode = 4, value = ? WHERE key LIKE '%/3'", (octets,))
    outside = str(tmp_path / "log")
    index.execute("UPDATE Cache SET mode = 2, filename = ? WHERE key LIKE '%/4'", (outside,))
    index.commit()
    index.close()
    again = CachedDataset(images, fingerprint="1", folder=folder)
    with pytest.warns(UserWarning, match="outside of the folder"):
        assert all_right(again, images)
    assert not trap.exists()
    assert Path(outside).exists()
    pickle.loads(octets)  # noqa: S301 - the control: it would have
    assert trap.exists()


class Trap:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_a_folder_that_cannot_be_used_costs_time_only(images: Images, tmp_path: Path) -> None:
    folder = tmp_path / "cache"
    folder.mkdir()
    (folder / "cache.db").write_bytes(b"no database" * 1000)
    cached = CachedDataset(images, fingerprint="1", memory_bytes=0, folder=folder)
    with pytest.warns(UserWarning, match="cannot be used") as said:
        assert all_right(cached, images)
    assert len(said) == 1
    file = tmp_path / "file"
    file.touch()
    with pytest.warns(UserWarning, match="cannot be used"):
        assert all_right(CachedDataset(images, fingerprint="1", folder=file), images)


@pytest.mark.parametrize("start", ["fork", "forkserver"])  # which gets all there is by pickle, as with spawn
def test_workers_of_a_loader_share_the_folder_and_the_counts(
    images: Images, tmp_path: Path, start: str
) -> None:
    cached = CachedDataset(images, fingerprint="1", memory_bytes=0, folder=tmp_path / "cache")
    cached[0]  # the folder is open before the workers begin
    context = copies() if start == "forkserver" else multiprocessing.get_context(start)
    loader: DataLoader[Any] = DataLoader(
        cached, batch_size=None, num_workers=2, multiprocessing_context=context, persistent_workers=True
    )
    for _ in range(2):
        found = list(loader)
        plain = Images(tmp_path / "other log")
        assert all(equal(sample, plain[i]) for i, sample in enumerate(found))
    assert cached.statistics() == CacheStatistics(0, SIZE + 1, SIZE, 0, SIZE)
    assert images.decoded() == SIZE
    del loader


def visit(images: Images, folder: Path, seed: int) -> None:
    cached = CachedDataset(images, fingerprint="1", memory_bytes=0, folder=folder)
    plain = Images(folder.with_name("other log"))
    order = np.random.default_rng(seed).permutation(SIZE)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert all(equal(cached[int(i)], plain[int(i)]) for _ in range(3) for i in order)


def test_processes_that_use_a_folder_at_once_get_right_samples(images: Images, tmp_path: Path) -> None:
    started = [copies().Process(target=visit, args=(images, tmp_path / "c", seed)) for seed in range(3)]
    for process in started:
        process.start()
    for process in started:
        process.join(timeout=120)
    assert [process.exitcode for process in started] == [0, 0, 0]
    assert SIZE <= images.decoded() <= 3 * SIZE  # a sample may be decoded by several at the same time
    visit(images, tmp_path / "c", 3)
    assert images.decoded() <= 3 * SIZE


def test_what_cannot_be_is_refused(images: Images, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given: Any
    for given in ("", None, 3):
        with pytest.raises(fb.ArgumentError, match=f"fingerprint={given!r}; give a text"):
            CachedDataset(images, fingerprint=given)
    for given in (-1, "1 GB", None, math.nan):
        with pytest.raises(fb.ArgumentError, match=f"disk_bytes={given!r}; expected 0 or more"):
            CachedDataset(images, fingerprint="1", disk_bytes=given)
    with pytest.raises(fb.ArgumentError, match=r"the value\[1\] is a object"):
        CachedDataset([(1, object())], fingerprint="1")[0]
    monkeypatch.setitem(sys.modules, "diskcache", None)
    with pytest.raises(fb.MissingDependencyError, match=r"pip install 'fewbits\[cache\]'"):
        CachedDataset(images, fingerprint="1", folder=tmp_path)
    assert all_right(CachedDataset(images, fingerprint="1"), images)


def test_indices_are_those_of_a_list() -> None:
    values = list(range(10, 15))
    cached = CachedDataset(values, fingerprint="five")
    for index in range(-8, 8):
        try:
            wanted = values[index]
        except IndexError:
            with pytest.raises(IndexError):
                cached[index]
        else:
            assert cached[index] == wanted
