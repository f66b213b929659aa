"""A byte that changed after it was written is told from what was written, wherever it is."""

import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file as load_ordinary
from safetensors.torch import save_file as save_ordinary

import fewbits as fb
from fewbits.errors import DataError
from fewbits.files import cast, inspect, load_file, restore, save_file
from fewbits.files.checkpoint import metadata, read_checkpoint
from fewbits.files.checksum import Checksums
from tests.files.rewritten import as_version_1, rewrite

# Each part that there is, in lines and as one for a channel or a tensor; a mask; and spare bits.
FORMATS = ("mxfp4", "mx9", "nvfp4", "vsq4", "int8_channel", "int8_tensor", "posit8_1", "int(5)")


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def tensors() -> dict[str, torch.Tensor]:
    return {
        "w": normal(3, 37).bfloat16(),
        "conv": normal(2, 2, 3, 3),
        "bias": normal(3),
        "ids": torch.arange(3),
        "e": normal(0, 4),
    }


def narrow(folder: Path, fmt: str, given: dict[str, torch.Tensor] | None = None, **choices: Any) -> Path:
    save_ordinary(tensors() if given is None else given, folder / "wide.safetensors")
    cast(folder / "wide.safetensors", folder / "n.safetensors", format=fmt, **choices)
    return folder / "n.safetensors"


def flipped(path: Path, at: int, bit: int) -> Path:
    octets = bytearray(path.read_bytes())
    octets[at] ^= 1 << bit
    damaged = path.with_name("damaged.safetensors")
    damaged.write_bytes(bytes(octets))
    return damaged


@pytest.mark.parametrize(("fmt", "choices"), [*((f, {}) for f in FORMATS), ("mxfp4", {"pattern": "2:4"})])
def test_every_flipped_bit_of_data_is_noticed_and_its_tensor_named(
    tmp_path: Path, fmt: Any, choices: Any
) -> None:
    given = tensors() | ({"w": normal(3, 64)} if choices else {})
    path = narrow(tmp_path, fmt, given, **choices)
    assert not inspect(path).problems
    for tensor in read_checkpoint(path):
        for at in range(tensor.stored_bytes):
            problems = inspect(flipped(path, tensor.start + at, at % 8)).problems
            assert len(problems) == 1
            assert f"tensor {tensor.name!r} was changed since it was written" in problems[0]
        for at in {0, tensor.stored_bytes - 1} if tensor.stored_bytes else ():
            damaged = flipped(path, tensor.start + at, 7)
            for read in (load_file, lambda p: restore(p, tmp_path / "back.safetensors")):
                with pytest.raises(DataError, match="was changed since it was written"):
                    read(damaged)
            assert not (tmp_path / "back.safetensors").exists()


def test_a_shard_of_which_nothing_was_cast_has_checksums_too(tmp_path: Path) -> None:
    wide, path = tmp_path / "wide", tmp_path / "n" / "1.safetensors"
    wide.mkdir()
    save_ordinary({"embed.weight": normal(4, 6), "ids": torch.arange(3)}, wide / "1.safetensors")
    save_ordinary({"l.weight": normal(4, 32)}, wide / "2.safetensors")
    cast(wide, tmp_path / "n", format="mxfp4", exclude=["*embed*"])
    assert not inspect(tmp_path / "n").problems
    written = path.read_bytes()
    told = json.loads(metadata(path)["fewbits"])
    assert told["tensors"] == {}
    assert told["crc32"] == {
        t.name: f"{zlib.crc32(written[t.start : t.start + t.stored_bytes]):08x}"
        for t in read_checkpoint(path)
    }
    for tensor in read_checkpoint(path):
        for at in range(tensor.stored_bytes):
            path.write_bytes(flipped(path, tensor.start + at, at % 8).read_bytes())
            path.with_name("damaged.safetensors").unlink()
            (problem,) = inspect(tmp_path / "n").problems
            assert f"tensor {tensor.name!r} was changed since it was written" in problem
            path.write_bytes(written)
    path.write_bytes(written[:-1] + bytes([written[-1] ^ 1]))
    for read in (load_file, lambda p: restore(p, tmp_path / "back")):
        with pytest.raises(DataError, match="was changed since it was written"):
            read(tmp_path / "n")
    path.write_bytes(written)
    restore(tmp_path / "n", tmp_path / "back")
    assert not metadata(tmp_path / "back" / "1.safetensors")


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("shape", [(3, 8000), (40, 300)])
def test_checksums_are_those_of_the_bytes_however_many_pieces_there_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fmt: Any, shape: Any
) -> None:
    monkeypatch.setattr("fewbits.files.piecewise.PIECE_VALUES", 1024)  # a line in pieces, some lines in one
    path = narrow(tmp_path, fmt, {"w": normal(*shape), "bias": normal(5000)})
    told = json.loads(metadata(path)["fewbits"])["crc32"]
    stored = load_ordinary(path)
    assert told == {name: f"{zlib.crc32(t.numpy().tobytes()):08x}" for name, t in stored.items()}


def test_files_of_narrow_tensors_in_memory_have_checksums_too(tmp_path: Path) -> None:
    path = tmp_path / "n.safetensors"
    save_file(
        {"q": fb.quantize(normal(3, 37), "mx9"), "bias": normal(3).bfloat16(), "m": normal(3) > 0}, path
    )
    for tensor in read_checkpoint(path):
        if tensor.stored_bytes:
            damaged = flipped(path, tensor.start + tensor.stored_bytes - 1, 0)
            assert tensor.name in inspect(damaged).problems[0]
            with pytest.raises(DataError, match="was changed since it was written"):
                load_file(damaged)


@pytest.mark.parametrize("fmt", FORMATS)
def test_version_1_is_read_as_before(tmp_path: Path, fmt: Any) -> None:
    path = narrow(tmp_path, fmt)
    restore(path, tmp_path / "second.safetensors")
    as_version_1(path)
    restore(path, tmp_path / "first.safetensors")
    assert (tmp_path / "first.safetensors").read_bytes() == (tmp_path / "second.safetensors").read_bytes()
    assert not inspect(path).problems
    found = load_file(path)
    assert set(found) == set(tensors())
    assert isinstance(found["w"], fb.NarrowTensor)


CHANGES: dict[str, tuple[Callable[[dict[str, Any], dict[str, Any]], object], str]] = {
    "no checksums": (lambda h, d: d.pop("crc32"), "has no object 'crc32'"),
    "checksums in a list": (lambda h, d: d.update(crc32=[]), "has no object 'crc32'"),
    "a number": (lambda h, d: d["crc32"].update(w=7), "of eight hexadecimal digits"),
    "seven digits": (lambda h, d: d["crc32"].update(w="0000000"), "of eight hexadecimal digits"),
    "capital digits": (lambda h, d: d["crc32"].update(w="0000000A"), "of eight hexadecimal digits"),
    "none of a part": (lambda h, d: d["crc32"].pop("w.scales"), "its part 'scales' has no checksum"),
    "one of nothing": (lambda h, d: d["crc32"].update(x="00000000"), "'x' is missing, and the file has its"),
    "of a tensor that is gone": (
        lambda h, d: h.update(other=h.pop("bias")),
        "'bias' is missing, and the file has its checksum",
    ),
    "no empty tensor": (
        lambda h, d: (h.pop("w"), d["crc32"].pop("w")),
        "the empty tensor of its name is missing",
    ),
    "an empty tensor of another dtype": (lambda h, d: h["w"].update(dtype="F16"), "is there twice"),
    "one of two axes": (lambda h, d: h["w"].update(shape=[0, 4]), "is there twice"),
    "empty tensors in version 1": (lambda h, d: (d.update(version=1), d.pop("crc32")), "is there twice"),
}


@pytest.mark.parametrize("case", CHANGES)
def test_what_the_layout_does_not_allow_is_a_problem(tmp_path: Path, case: Any) -> None:
    change, told = CHANGES[case]
    path = narrow(tmp_path, "mxfp4")
    rewrite(path, lambda header, document: None)
    assert not inspect(path).problems  # the control
    rewrite(path, change)
    assert told in " ".join(inspect(path).problems)
    for read in (load_file, lambda p: restore(p, tmp_path / "back.safetensors")):
        with pytest.raises(DataError):
            read(path)


def test_pieces_that_leave_a_hole_are_a_mistake_of_this_library() -> None:
    checksums = Checksums()
    checksums.add("w", 0, b"abcd")
    checksums.add("w", 0, b"ab")  # a shared scale comes again
    checksums.add("w", 4, b"ef")
    assert checksums.of("w") == f"{zlib.crc32(b'abcdef'):08x}"
    with pytest.raises(AssertionError):
        checksums.add("w", 7, b"g")
