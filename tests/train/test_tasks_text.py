"""Texts: Python's own library split by file, and the user's text with its limits."""

import os
import sysconfig
from pathlib import Path
from typing import Any, NoReturn

import pytest

from fewbits.errors import DataError
from fewbits.train.tasks import text
from fewbits.train.tasks.text import library_text, own_text


def files(folder: Path, contents: Any) -> Any:
    for name, content in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def test_the_library_is_megabytes_of_source_and_a_tenth_is_held_out() -> None:
    found = library_text()
    assert len(found.train) > 1_000_000
    assert 0.03 < len(found.held_out) / len(found.train) < 0.3
    assert b"\ndef " in found.held_out


def test_no_module_of_the_library_is_both_trained_on_and_held_out() -> None:
    found = library_text()
    for file in Path(sysconfig.get_path("stdlib")).glob("*.py"):
        source = file.read_bytes()
        if len(source) > 100:
            assert not (source in found.train and source in found.held_out), file.name


def test_every_tenth_file_is_held_out_and_generated_ones_are_left_out(tmp_path: Path) -> None:
    contents = {f"m{i:02}.py": b"%d " % i for i in range(20)} | {"_sysconfigdata_x.py": b"no", "a.txt": b"no"}
    found = library_text(files(tmp_path, contents))
    assert found.held_out == b"9 19 "
    assert found.train == b"".join(b"%d " % i for i in range(20) if i not in (9, 19))


def test_a_python_without_source_files_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"holds 0 source files .* at least 10; give the path of a text"):
        library_text(tmp_path)


def test_the_last_tenth_of_a_file_is_held_out(tmp_path: Path) -> None:
    path = files(tmp_path, {"t.txt": bytes(range(1, 101))}) / "t.txt"
    found = own_text(path, least=100)
    assert found.train == bytes(range(1, 91))
    assert found.held_out == bytes(range(91, 101))


def test_a_folder_is_read_in_the_order_of_its_paths_without_hidden_or_binary_files(tmp_path: Path) -> None:
    files(
        tmp_path,
        {
            "b.txt": b"22",
            "a/z.md": b"33",
            "a.txt": b"11",
            ".git/config": b"no",
            ".hidden": b"no",
            "weights.bin": b"n\0",
        },
    )
    found = own_text(tmp_path, least=1)
    assert found.train + found.held_out == b"112233"


def test_reading_stops_at_the_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "LARGEST", 25)
    files(tmp_path, {f"{i}.txt": b"x" * 10 for i in range(5)})
    found = own_text(tmp_path, least=1)
    assert len(found.train) + len(found.held_out) == 25
    one = own_text(files(tmp_path, {"one": b"y" * 40}) / "one", least=1)
    assert len(one.train) + len(one.held_out) == 25


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("absent.txt", "absent.txt does not exist; expected a text file or a folder"),
        ("short.txt", "holds 5 bytes of text, and training and evaluation need at least 100; give a longer"),
        ("empty", "holds 0 bytes of text"),
        ("zeros.bin", "is not text: it holds bytes of zero"),
    ],
)
def test_an_unusable_text_says_what_was_given_and_what_is_needed(
    tmp_path: Path, name: str, said: str
) -> None:
    files(tmp_path, {"short.txt": b"short", "zeros.bin": b"a\0" * 100})
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=said):
        own_text(tmp_path / name, least=100)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(DataError, match="is a device or a pipe"):
        own_text(tmp_path / "pipe", least=1)


def test_a_file_that_may_not_be_read_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = files(tmp_path, {"secret.txt": b"x" * 200}) / "secret.txt"

    def refuse(*args: Any, **kwargs: Any) -> NoReturn:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(DataError, match=r"cannot read .*secret.txt: Permission denied"):
        own_text(path, least=1)
