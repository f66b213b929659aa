import errno
import io
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fewbits.errors import ArgumentError
from fewbits.files.atomic import write_bytes, write_pieces, write_text


def names(folder: Path) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_a_text_is_written_in_utf8_and_nothing_else_is_left(tmp_path: Path) -> None:
    write_text(tmp_path / "report.html", "größer ≤ 4 bits\n")
    assert (tmp_path / "report.html").read_bytes() == "größer ≤ 4 bits\n".encode()
    assert names(tmp_path) == ["report.html"]


def test_an_old_file_is_replaced_and_keeps_its_permissions(tmp_path: Path) -> None:
    target = tmp_path / "report.json"
    target.write_text("old")
    target.chmod(0o640)
    write_bytes(str(target), b"new")
    assert target.read_bytes() == b"new"
    assert stat.S_IMODE(target.stat().st_mode) == 0o640


def test_a_new_file_obeys_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_bytes(tmp_path / "private", b"")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "private").stat().st_mode) == 0o640


@pytest.mark.parametrize("step", ["os.fsync", "pathlib.Path.replace"])
@pytest.mark.parametrize("failure", [OSError("no space left"), KeyboardInterrupt()])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, failure: BaseException
) -> None:
    target = tmp_path / "report.html"
    target.write_text("old")

    def fail(*_: object) -> None:
        raise failure

    monkeypatch.setattr(step, fail)
    with pytest.raises(type(failure)):
        write_text(target, "new")
    assert target.read_text() == "old"
    assert names(tmp_path) == ["report.html"]


def test_an_error_of_the_system_names_the_file_that_was_to_be_written(tmp_path: Path) -> None:
    code = (
        "import resource, sys\n"
        "from fewbits.files.atomic import write_pieces\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (50000, 50000))\n"
        "try:\n"
        "    write_pieces(sys.argv[1], [bytes(30000), bytes(30000)])\n"
        "except OSError as error:\n"
        "    print(error.strerror, error.filename, sep='|', end='')"
    )
    target = tmp_path / "m.safetensors"
    target.write_text("old")
    done = subprocess.run(
        [sys.executable, "-c", code, target], capture_output=True, text=True, check=True
    ).stdout
    assert done == f"File too large|{target}"
    assert target.read_text() == "old"
    assert names(tmp_path) == ["m.safetensors"]


def test_an_error_of_what_is_written_keeps_its_own_file(tmp_path: Path) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"one"
        raise OSError(errno.EIO, "Input/output error", "source")

    with pytest.raises(OSError, match="Input/output error: 'source'"):
        write_pieces(tmp_path / "copy", pieces())
    assert names(tmp_path) == []


def test_a_write_that_takes_a_part_goes_on_with_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Slow(io.FileIO):
        def write(self, octets: Any) -> int:
            return super().write(octets[:7])

    monkeypatch.setattr(Path, "open", lambda self, mode, buffering: Slow(self, mode))
    write_pieces(tmp_path / "file", [bytes(range(100)), b"", memoryview(b"end")])
    with io.FileIO(tmp_path / "file") as file:
        assert file.readall() == bytes(range(100)) + b"end"


def test_the_bytes_reach_the_disk_before_the_name_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    fsync, replace = os.fsync, Path.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (steps.append("fsync"), fsync(fd))[1])
    monkeypatch.setattr(Path, "replace", lambda old, new: (steps.append("replace"), replace(old, new))[1])
    write_bytes(tmp_path / "file", b"data")
    assert steps[:2] == ["fsync", "replace"]


def test_a_symbolic_link_still_points_to_its_target(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    write_text(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_a_name_as_long_as_the_folder_allows_can_be_written(tmp_path: Path) -> None:
    write_bytes(tmp_path / ("n" * 255), b"data")
    assert names(tmp_path) == ["n" * 255]


def test_a_missing_folder_is_named_and_not_created(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"the folder .*missing does not exist; create it"):
        write_text(tmp_path / "missing" / "report.html", "text")
    assert names(tmp_path) == []


@pytest.mark.parametrize("target", [".", os.devnull])
def test_a_folder_or_a_device_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArgumentError, match="a folder or a device, expected a file"):
        write_text(target, "text")
