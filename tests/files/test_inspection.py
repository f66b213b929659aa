import struct
from math import isnan
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from fewbits.files import cast, inspect
from fewbits.files.checkpoint import metadata, read_checkpoint
from tests.files.rewritten import as_version_1

LOOKUP = "lookup(-1,-0.5,0,0.5,1)"  # five values in three bits: three codes mean nothing


def narrow(folder: Path, fmt: str, shape: tuple[int, ...] = (3, 37)) -> Path:
    save_file({"w": torch.ones(shape, dtype=torch.bfloat16), "n": torch.ones(5)}, folder / "m.safetensors")
    cast(folder / "m.safetensors", folder / "n.safetensors", format=fmt)
    return folder / "n.safetensors"


def damage(path: Path, part: str, at: int, bits: int) -> None:
    """Set bits in one byte of a part."""
    (start,) = (t.start for t in read_checkpoint(path) if t.name == part)
    data = bytearray(path.read_bytes())
    data[start + at] |= bits
    path.write_bytes(bytes(data))


def test_narrow_tensors_come_in_place_of_their_parts(tmp_path: Path) -> None:
    report = inspect(narrow(tmp_path, "mxfp4"))
    n, w = report.tensors
    assert (w.tensor, w.shape, w.dtype, w.format, w.stored_bytes) == ("w", (3, 37), "BF16", "mxfp4", 3 * 21)
    assert w.bits_per_value == pytest.approx(8 * 63 / 111)
    assert (n.tensor, n.dtype, n.format, n.bits_per_value) == ("n", "F32", None, 32.0)
    assert (report.values, report.stored_bytes, report.problems) == (116, 83, ())


def test_an_ordinary_checkpoint_is_listed(tmp_path: Path) -> None:
    save_file({"e": torch.zeros(0, 3), "i": torch.arange(2)}, tmp_path / "m.safetensors")
    empty, ids = inspect(tmp_path).tensors
    assert isnan(empty.bits_per_value)
    assert (ids.dtype, ids.bits_per_value) == ("I64", 64)


@pytest.mark.parametrize(
    ("fmt", "part", "at"),
    [("mxfp4", "codes", 18), ("mx9", "shifts", 2), ("vsq4", "scales", 1), (LOOKUP, "codes", 27)],
)
def test_a_spare_bit_that_is_set_is_a_problem(tmp_path: Path, fmt: Any, part: Any, at: Any) -> None:
    path = narrow(tmp_path, fmt)
    assert not inspect(as_version_1(path)).problems
    damage(path, f"w.{part}", at, 0x80)
    (problem,) = inspect(path).problems
    assert problem == f"{path}: tensor 'w': 1 lines of its part {part!r} have spare bits that are not zero"


@pytest.mark.parametrize("fmt", [LOOKUP, f"block(element={LOOKUP},scale=fp32,size=16)"])
def test_a_code_that_means_nothing_is_a_problem(tmp_path: Path, fmt: Any) -> None:
    path = as_version_1(narrow(tmp_path, fmt))
    damage(path, "w.codes", 0, 0x3F)
    (problem,) = inspect(path).problems
    assert "2 codes are no value of" in problem
    assert problem.endswith(", which has 5")


@pytest.mark.parametrize("fmt", [LOOKUP, "mx9"])
def test_lines_longer_than_a_piece_are_checked_to_their_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fmt: Any
) -> None:
    monkeypatch.setattr("fewbits.files.inspection._PIECE_BYTES", 9)
    path = as_version_1(narrow(tmp_path, fmt, (2, 1001)))
    assert not inspect(path).problems
    for part, last in (("codes", 2 * 376 - 1),) if fmt == LOOKUP else (("shifts", 2 * 63 - 1),):
        damage(path, f"w.{part}", last, 0x80)
    assert len(inspect(path).problems) == 1


def test_a_line_per_problem(tmp_path: Path) -> None:
    path = as_version_1(narrow(tmp_path, "mxfp4"))
    text = path.read_bytes()
    size = struct.unpack("<Q", text[:8])[0]
    header = text[8 : 8 + size].replace(b'"w.codes"', b'"x.codes"').replace(b'"w.scales"', b'"x.scales"')
    path.write_bytes(text[:8] + header + text[8 + size :])
    assert [p.partition(": ")[2] for p in inspect(path).problems] == [
        "tensor 'w': its part 'codes' is missing",
        "tensor 'w': its part 'scales' is missing",
    ]
    assert "fewbits" in metadata(path)
    assert set(load_file(path)) == {"n", "x.codes", "x.scales"}
