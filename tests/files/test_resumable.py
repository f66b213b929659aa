"""A job that is stopped at any moment leaves the old file or the new one, and the next run ends the same."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from safetensors.torch import load_file, save_file

from fewbits.errors import ArgumentError, DataError
from fewbits.files import cast, job, restore
from fewbits.files.resumable import Resumable


@pytest.fixture(autouse=True)
def every_step_is_flushed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fewbits.files.resumable._SYNC_SECONDS", 0.0)


def source_of(folder: Path, count: int = 6) -> Path:
    g = torch.Generator().manual_seed(5)
    save_file({f"t{i}": torch.randn(8, 64, generator=g) for i in range(count)}, folder / "wide.safetensors")
    return folder / "wide.safetensors"


def names(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def stopping_after(count: int, error: BaseException) -> Any:
    """Return a progress function that raises after ``count`` of six tensors of one size."""

    def progress(what: str, done: float, total: float) -> None:
        assert what == "casting tensors"
        if done > count * total / 6:
            raise error

    return progress


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that the names of quantized tensors are added to."""
    calls, quantize = [], job.quantize_tensor
    monkeypatch.setattr(
        job,
        "quantize_tensor",
        lambda t, *more, **named: (calls.append(t.name), quantize(t, *more, **named))[1],
    )
    return calls


@pytest.mark.parametrize("old", [None, b"the old file"])
def test_an_interrupted_job_is_taken_up_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, old: Any
) -> None:
    source, target = source_of(tmp_path), tmp_path / "n.safetensors"
    whole = cast(source, tmp_path / "whole.safetensors", format="mxfp4")
    if old is not None:
        target.write_bytes(old)
    with pytest.raises(KeyboardInterrupt):
        cast(source, target, format="mxfp4", progress=stopping_after(4, KeyboardInterrupt()))
    assert (target.read_bytes() if target.exists() else None) == old
    assert ".fewbits-n.safetensors.journal" in names(tmp_path)
    calls = counted(monkeypatch)
    report = cast(source, target, format="mxfp4")
    assert calls in (["t4", "t5"], ["t5"])
    assert target.read_bytes() == (tmp_path / "whole.safetensors").read_bytes()
    assert (report.formats, report.tensors) == (whole.formats, whole.tensors)
    assert not [n for n in names(tmp_path) if n.startswith(".fewbits")]


def test_an_interrupt_before_anything_was_done_leaves_nothing(tmp_path: Path) -> None:
    source = source_of(tmp_path)
    with pytest.raises(KeyboardInterrupt):
        cast(
            source,
            tmp_path / "n.safetensors",
            format="mxfp4",
            progress=stopping_after(0, KeyboardInterrupt()),
        )
    assert names(tmp_path) == ["wide.safetensors"]


@pytest.mark.parametrize("change", ["format", "source", "rule"])
def test_a_partial_file_of_another_job_is_not_taken_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: Any
) -> None:
    source, target = source_of(tmp_path), tmp_path / "n.safetensors"
    with pytest.raises(KeyboardInterrupt):
        cast(source, target, format="mxfp4", progress=stopping_after(4, KeyboardInterrupt()))
    if change == "source":
        os.utime(source, ns=(1, 1))
    calls = counted(monkeypatch)
    options = {"format": {"format": "mx9"}, "rule": {"format": "mxfp4", "scale_rule": "ceil"}}
    options = options.get(change, {"format": "mxfp4"})
    cast(source, target, **options)
    assert calls == [f"t{i}" for i in range(6)]
    cast(source, tmp_path / "again.safetensors", **options)
    assert target.read_bytes() == (tmp_path / "again.safetensors").read_bytes()


def test_values_for_another_tensor_are_another_job(tmp_path: Path) -> None:
    source, target, fours = tmp_path / "w.safetensors", tmp_path / "n.safetensors", tmp_path / "v.safetensors"
    save_file({f"t{i}": torch.ones(8, 64) for i in range(6)}, source)
    save_file({"v": torch.full((8, 64), 4.0)}, fours)
    stop = stopping_after(4, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        cast(source, target, format="mxfp4", values={"t0": fours}, progress=stop)
    cast(source, target, format="mxfp4", values={"t1": fours})
    restore(target, tmp_path / "back.safetensors")
    found = load_file(tmp_path / "back.safetensors")
    assert {name: x.unique().tolist() for name, x in found.items()} == {
        f"t{i}": [4.0 if i == 1 else 1.0] for i in range(6)
    }


def test_a_journal_cut_in_the_middle_of_a_line_is_read_up_to_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = source_of(tmp_path), tmp_path / "n.safetensors"
    with pytest.raises(KeyboardInterrupt):
        cast(source, target, format="mxfp4", progress=stopping_after(5, KeyboardInterrupt()))
    journal = tmp_path / ".fewbits-n.safetensors.journal"
    journal.write_bytes(journal.read_bytes()[:-10])
    calls = counted(monkeypatch)
    cast(source, target, format="mxfp4")
    assert 1 <= len(calls) <= 3


@pytest.mark.parametrize(
    "journal", [b"", b"\0" * 100, b"[]\n", b"{\n", b'{"job": 1}\n', b"[" * 10**5 + b"\n"]
)
def test_a_damaged_journal_means_a_new_start(tmp_path: Path, journal: Any) -> None:
    source, target = source_of(tmp_path), tmp_path / "n.safetensors"
    (tmp_path / ".fewbits-n.safetensors.journal").write_bytes(journal)
    cast(source, target, format="mxfp4")
    assert names(tmp_path) == ["n.safetensors", "wide.safetensors"]


def test_a_journal_may_name_only_partial_files_beside_it(tmp_path: Path) -> None:
    source = source_of(tmp_path)
    (tmp_path / "sub").mkdir()
    target = tmp_path / "sub" / "n.safetensors"
    (tmp_path / "mine.partial").write_text("keep me")
    partials = ["../mine.partial", "/etc/passwd", "mine", ".fewbits-../../x.partial", 7]
    (tmp_path / "sub" / ".fewbits-n.safetensors.journal").write_text(
        json.dumps({"job": "", "partials": partials})
    )
    cast(source, target, format="mxfp4")
    assert (tmp_path / "mine.partial").read_text() == "keep me"


def test_an_interrupted_folder_is_taken_up_and_gets_its_index_last(tmp_path: Path) -> None:
    wide = tmp_path / "wide"
    wide.mkdir()
    places = {}
    for shard in "ab":
        g = torch.Generator().manual_seed(5)
        tensors = {f"{shard}{i}": torch.randn(8, 64, generator=g) for i in range(3)}
        save_file(tensors, wide / f"{shard}.safetensors")
        places |= dict.fromkeys(tensors, f"{shard}.safetensors")
    (wide / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    cast(wide, tmp_path / "whole", format="mxfp4")
    for count in (1, 4, 5):
        with pytest.raises(KeyboardInterrupt):
            cast(wide, tmp_path / "n", format="mxfp4", progress=stopping_after(count, KeyboardInterrupt()))
        assert not [n for n in names(tmp_path / "n") if not n.startswith(".fewbits")]
    cast(wide, tmp_path / "n", format="mxfp4")
    assert names(tmp_path / "n") == names(tmp_path / "whole")
    for name in names(tmp_path / "n"):
        assert (tmp_path / "n" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_a_job_killed_while_files_take_their_names_is_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = tmp_path / "wide"
    wide.mkdir()
    for shard in "ab":
        save_file({shard: torch.ones(8, 64)}, wide / f"{shard}.safetensors")
    replace, times = Path.replace, []

    def once(old: Path, new: Path) -> Path:
        times.append(new)
        if len(times) > 1:
            raise KeyboardInterrupt
        return replace(old, new)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", once)
        with pytest.raises(KeyboardInterrupt):
            cast(wide, tmp_path / "n", format="mxfp4")
    assert "a.safetensors" in names(tmp_path / "n")
    assert "b.safetensors" not in names(tmp_path / "n")
    calls = counted(monkeypatch)
    cast(wide, tmp_path / "n", format="mxfp4")
    assert calls == []
    assert names(tmp_path / "n") == ["a.safetensors", "b.safetensors"]


def test_the_data_reach_the_disk_before_the_line_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order, fsync, write = [], os.fsync, os.write
    monkeypatch.setattr(
        os, "fsync", lambda fd: (order.append(str(Path(f"/proc/self/fd/{fd}").readlink())), fsync(fd))[1]
    )
    monkeypatch.setattr(os, "write", lambda fd, text: (order.append(bytes(text)), write(fd, text))[1])
    cast(source_of(tmp_path, 1), tmp_path / "n.safetensors", format="mxfp4")
    line = next(i for i, what in enumerate(order) if isinstance(what, bytes) and b'"step"' in what)
    assert order[line - 1].endswith(".partial")
    assert order[line + 1].endswith(".journal")


def full(where: str) -> Any:
    def fails(*_: Any) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    return where, fails


@pytest.mark.parametrize("where", ["posix_fallocate", "pwrite", "fsync"])
def test_a_full_disk_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: Any
) -> None:
    source, target = source_of(tmp_path), tmp_path / "n.safetensors"
    target.write_bytes(b"old")
    monkeypatch.setattr(f"os.{where}", full(where)[1])
    with pytest.raises(OSError, match="No space left on device"):
        cast(source, target, format="mxfp4")
    assert target.read_bytes() == b"old"
    assert names(tmp_path) == ["n.safetensors", "wide.safetensors"]


def test_a_real_limit_on_the_size_of_files_is_one_error(tmp_path: Path) -> None:
    source = source_of(tmp_path)
    code = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "from fewbits.cli.main import run\n"
        "sys.exit(run(['cast', sys.argv[1], sys.argv[2], '--format', 'mxfp4']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, source, tmp_path / "n.safetensors"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("fewbits:")]
    assert "File too large" in line
    assert names(tmp_path) == ["wide.safetensors"]


def test_a_file_system_that_cannot_reserve_space_is_written_to_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unsupported(*_: Any) -> NoReturn:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "posix_fallocate", unsupported)
    cast(source_of(tmp_path), tmp_path / "n.safetensors", format="mxfp4")
    assert names(tmp_path) == ["n.safetensors", "wide.safetensors"]


def test_an_error_of_the_disk_keeps_what_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = source_of(tmp_path), tmp_path / "n.safetensors"
    error = OSError(errno.EIO, "Input/output error")
    with pytest.raises(OSError, match="Input/output"):
        cast(source, target, format="mxfp4", progress=stopping_after(4, error))
    calls = counted(monkeypatch)
    cast(source, target, format="mxfp4")
    assert len(calls) < 3


def test_a_source_that_changes_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    source = source_of(tmp_path)
    with pytest.raises(DataError, match="changed while it was read"):
        cast(
            source,
            tmp_path / "n.safetensors",
            format="mxfp4",
            progress=lambda *_: os.utime(source, ns=(1, 1)),
        )
    assert names(tmp_path) == ["wide.safetensors"]


def test_two_runs_do_not_write_one_file(tmp_path: Path) -> None:
    source, target = source_of(tmp_path), tmp_path / "n.safetensors"
    with (
        Resumable(target, "another job", {}),
        pytest.raises(ArgumentError, match="another run is writing here"),
    ):
        cast(source, target, format="mxfp4")


def test_a_name_as_long_as_the_folder_allows_can_be_written(tmp_path: Path) -> None:
    target = tmp_path / ("n" * 243 + ".safetensors")
    cast(source_of(tmp_path), target, format="mxfp4")
    assert names(tmp_path) == [target.name, "wide.safetensors"]


def test_a_symbolic_link_and_permissions_are_kept(tmp_path: Path) -> None:
    source = source_of(tmp_path)
    (tmp_path / "real.safetensors").write_bytes(b"old")
    (tmp_path / "real.safetensors").chmod(0o640)
    (tmp_path / "link.safetensors").symlink_to("real.safetensors")
    cast(source, tmp_path / "link.safetensors", format="mxfp4")
    assert (tmp_path / "link.safetensors").is_symlink()
    assert (tmp_path / "real.safetensors").stat().st_mode & 0o777 == 0o640
    restore(tmp_path / "link.safetensors", tmp_path / "back.safetensors")


KILL = """
import os, random, signal, sys, time
from pathlib import Path
import safetensors, torch, fewbits.files.casting, fewbits.files.resumable
fewbits.files.resumable._SYNC_SECONDS = 0.0
source, target, old, fresh = map(Path, sys.argv[1:5])
rng = random.Random(int(sys.argv[5]))

def job(to):
    child = os.fork()  # before torch has started a thread; nothing is imported twice
    if not child:
        fewbits.files.casting.cast(source, to, format="mxfp4")
        os._exit(0)
    return child

start = time.monotonic()
assert os.waitpid(job(fresh), 0)[1] == 0
took = time.monotonic() - start
new, before, seen = fresh.read_bytes(), old.read_bytes(), []
for _ in range(10):
    target.write_bytes(before)
    for _ in range(rng.randrange(1, 4)):
        child = job(target)
        time.sleep(rng.uniform(0, took))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        found = target.read_bytes()
        assert found in (before, new), "neither the old file nor the new one"
        seen.append("new" if found == new else "old")
        seen += ["midway"] * any(target.parent.glob(".fewbits*"))
    assert os.waitpid(job(target), 0)[1] == 0
    assert target.read_bytes() == new, "the next run gave other bytes"
    assert not list(target.parent.glob(".fewbits*"))
print(" ".join(seen))
"""


@pytest.mark.parametrize("seed", [1])
def test_kill_9_at_random_moments_leaves_the_old_or_the_new_file(tmp_path: Path, seed: int) -> None:
    source = source_of(tmp_path, 20)
    save_file({"old": torch.ones(3)}, tmp_path / "old.safetensors")
    paths = [source, tmp_path / "n.safetensors", tmp_path / "old.safetensors", tmp_path / "fresh.safetensors"]
    done = subprocess.run(
        [sys.executable, "-c", KILL, *paths, str(seed)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert {"old", "midway"} <= set(done.stdout.split())
