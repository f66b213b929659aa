"""Files that are damaged, cut short, or made to harm: each is refused with one clear line."""

import json
import os
import pickle
import struct
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save, save_file

from fewbits.errors import ArgumentError, DataError
from fewbits.files import inspect, load_file, restore
from fewbits.files.checkpoint import chunks, read_checkpoint
from fewbits.files.matrix import read_matrix
from fewbits.formats import parse


def header(**tensors: Any) -> Any:
    return json.dumps(tensors).encode()


def entry(shape: Any, start: Any, stop: Any, dtype: Any = "F32") -> Any:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, stop]}


def checkpoint(text: str, data: Any = b"", length: Any = None) -> Any:
    return struct.pack("<Q", len(text) if length is None else length) + text + data


ONE = '"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}'
TWICE = f"{{{ONE},{ONE}}}".replace("F32", "I32", 1).encode()

CHECKPOINTS = {
    "empty": (b"", "the file is empty"),
    "seven bytes": (b"1234567", "cut short"),
    "header beyond the file": (checkpoint(b"{}", length=10**6), "invalid header length"),
    "header of 2^63 bytes": (checkpoint(b"{}", length=2**63), "header too large"),
    "header of 2^64 - 1 bytes": (checkpoint(b"{}", length=2**64 - 1), "header too large"),
    "header beyond the limit": (checkpoint(b"{}", length=100_000_001), "header too large"),
    "no tensors": (checkpoint(b"{}"), "holds no tensors"),
    "not JSON": (checkpoint(b"hello"), "invalid JSON"),
    "a list": (checkpoint(b"[1]"), "invalid JSON"),
    "not UTF-8": (checkpoint(b'{"\xff":1}'), "invalid UTF-8"),
    "JSON 100000 deep": (checkpoint(b'{"a":' + b"[" * 10**5 + b"]" * 10**5 + b"}"), "recursion limit"),
    "a name twice": (checkpoint(TWICE, bytes(4)), "'a' 2 times"),
    "overlap": (checkpoint(header(a=entry([2], 0, 8), b=entry([1], 4, 8)), bytes(8)), "invalid offset"),
    "hole": (checkpoint(header(a=entry([1], 0, 4), b=entry([1], 8, 12)), bytes(12)), "invalid offset"),
    "offsets backwards": (checkpoint(header(a=entry([1], 4, 0)), bytes(4)), "invalid offset"),
    "data cut short": (checkpoint(header(a=entry([4], 0, 16)), bytes(10)), "not fully covered"),
    "data to spare": (checkpoint(header(a=entry([1], 0, 4)), bytes(9)), "not fully covered"),
    "negative extent": (checkpoint(header(a=entry([-1], 0, 4)), bytes(4)), "invalid JSON"),
    "two negative extents": (checkpoint(header(a=entry([-1, -1], 0, 4)), bytes(4)), "invalid JSON"),
    "negative offset": (checkpoint(header(a=entry([1], -4, 0)), bytes(4)), "invalid JSON"),
    "extent that is no integer": (checkpoint(header(a=entry([1.5], 0, 4)), bytes(4)), "invalid JSON"),
    "2^80 values": (checkpoint(header(a=entry([2**40, 2**40], 0, 4)), bytes(4)), "overflow"),
    "2^124 values times zero": (checkpoint(header(a=entry([2**62, 2**62, 0], 0, 0))), "overflow"),
    "shape and bytes differ": (checkpoint(header(a=entry([2], 0, 4)), bytes(4)), "invalid shape"),
    "unknown dtype": (checkpoint(header(a=entry([1], 0, 4, "Q7")), bytes(4)), "the dtype 'Q7'"),
    "a pickle by another name": (pickle.dumps({"a": [1.0] * 100}), "looks like a pickle"),
    "a zip archive": (b"PK\x03\x04" + bytes(100), "looks like a pickle"),
    "a Git LFS pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
}


def refused(read: Any, path: Path) -> Any:
    """Return the one line with which ``read`` refuses a file."""
    with pytest.raises(DataError) as caught:
        read(path)
    text = str(caught.value)
    assert "\n" not in text
    assert len(text) < 1000
    return text


@pytest.mark.parametrize("case", CHECKPOINTS)
def test_a_hostile_checkpoint_is_refused_in_one_line(tmp_path: Path, case: Any) -> None:
    data, told = CHECKPOINTS[case]
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    text = refused(read_checkpoint, path)
    assert told in text
    assert str(path) in text


def test_what_does_not_exist_is_refused(tmp_path: Path) -> None:
    assert "is no file and no folder" in refused(read_checkpoint, tmp_path / "none.safetensors")
    os.mkfifo(tmp_path / "pipe.safetensors")  # opening it would wait for ever
    assert "is no file and no folder" in refused(read_checkpoint, tmp_path / "pipe.safetensors")
    assert "is not a file" in refused(read_matrix, tmp_path / "none.mtx")


@pytest.mark.parametrize("suffix", ["bin", "pt", "pth", "ckpt", "pkl"])
def test_a_pickle_is_never_read_and_the_message_says_how_to_convert_it(tmp_path: Path, suffix: Any) -> None:
    class Harm:
        def __reduce__(self) -> Any:
            return Path.touch, (tmp_path / "harm",)

    path = tmp_path / f"model.{suffix}"
    path.write_bytes(pickle.dumps(Harm()))
    for given_path in (path, tmp_path):
        text = refused(read_checkpoint, given_path)
        assert "is a pickle" in text
        assert "safetensors.torch.save_file(torch.load(" in text
    assert not (tmp_path / "harm").exists()


def test_a_file_of_another_kind_and_a_folder_without_checkpoint_are_refused(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    assert "no .safetensors file by its name" in refused(read_checkpoint, tmp_path / "model.gguf")
    assert "holds no .safetensors file" in refused(read_checkpoint, tmp_path)


def test_a_file_that_may_not_be_read_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.safetensors"
    save_file({"a": torch.zeros(1)}, path)

    def denied(*_: Any, **__: Any) -> NoReturn:
        raise PermissionError("Permission denied")

    monkeypatch.setattr("safetensors.safe_open", denied)
    monkeypatch.setattr(Path, "open", denied)
    assert "check that you may read it" in refused(read_checkpoint, path)


INDEXES = {
    "not JSON": ("{", "is not JSON"),
    "too deep": ("[" * 10**6, "is not JSON"),
    "a list": ("[]", "has no weight_map"),
    "no map": ("{}", "has no weight_map"),
    "a map of numbers": ('{"weight_map":{"a":1}}', "has no weight_map"),
    "an empty map": ('{"weight_map":{}}', "holds no tensors"),
    "a missing file": ('{"weight_map":{"a":"b.safetensors"}}', "which is missing"),
    "a file above": ('{"weight_map":{"a":"../a.safetensors"}}', "in its own folder"),
    "a file from the root": ('{"weight_map":{"a":"/etc/a.safetensors"}}', "in its own folder"),
    "a path for Windows": ('{"weight_map":{"a":"..\\\\a.safetensors"}}', "in its own folder"),
    "a pickle": ('{"weight_map":{"a":"a.bin"}}', "in its own folder"),
    "a zero byte": ('{"weight_map":{"a":"a\\u0000.safetensors"}}', "which is missing"),
    "half a surrogate pair": ('{"weight_map":{"a":"\\ud800.safetensors"}}', "which is missing"),
    "a very long name": (json.dumps({"weight_map": {"a": "../" * 10**5}}), "in its own folder"),
    "a tensor that is not there": ('{"weight_map":{"x":"a.safetensors"}}', "and it does not"),
    "a name twice": ('{"weight_map":{"a":"a.safetensors","a":"b.safetensors"}}', "'a' 2 times"),
}


@pytest.mark.parametrize("case", INDEXES)
def test_a_hostile_index_is_refused_in_one_line(tmp_path: Path, case: Any) -> None:
    text, told = INDEXES[case]
    folder = tmp_path / "model"
    folder.mkdir()
    for place in (tmp_path, folder):  # so that only the check of the name can refuse the file above
        save_file({"a": torch.zeros(1)}, place / "a.safetensors")
    (folder / "model.safetensors.index.json").write_text(text)
    assert told in refused(read_checkpoint, folder)


def test_an_index_that_puts_a_tensor_into_the_wrong_file_is_refused(tmp_path: Path) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "1.safetensors")
    save_file({"b": torch.zeros(1)}, tmp_path / "2.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "2.safetensors", "b": "1.safetensors"}}))
    assert "2.safetensors holds 'a', and it does not" in refused(read_checkpoint, tmp_path)


def test_an_index_beyond_the_limit_is_not_read(tmp_path: Path) -> None:
    index = tmp_path / "model.safetensors.index.json"
    with index.open("wb") as file:
        file.truncate(100_000_001)
    assert "100000001 bytes" in refused(read_checkpoint, index)


def test_a_tensor_that_torch_cannot_hold_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(checkpoint(header(a=entry([2, 1], 0, 1, "F4")), bytes(1)))
    assert [t.name for t in read_checkpoint(path)] == ["a"]  # such a file is sound, and is listed
    assert "tensor 'a' cannot be loaded" in refused(load_file, path)


def test_two_indexes_and_a_tensor_in_two_files_are_refused(tmp_path: Path) -> None:
    for name in ("1", "2"):
        save_file({"a": torch.zeros(1)}, tmp_path / f"{name}.safetensors")
    assert "'a' is in 1.safetensors and " in refused(read_checkpoint, tmp_path)
    for name in ("1", "2"):
        (tmp_path / f"{name}.safetensors.index.json").write_text("{}")
    assert "holds 2 indexes" in refused(read_checkpoint, tmp_path)


VALID = save({"a": torch.ones(3, 4), "b": torch.ones(5, dtype=torch.bfloat16), "c": torch.arange(2)})


@given(at=st.integers(0, len(VALID) - 1), byte=st.integers(0, 255), cut=st.integers(0, 8))
def test_a_checkpoint_with_a_changed_byte_is_refused_or_read(
    tmp_path_factory: pytest.TempPathFactory, at: Any, byte: Any, cut: Any
) -> None:
    data = bytearray(VALID)
    data[at] = byte
    path = tmp_path_factory.mktemp("fuzz") / "m.safetensors"
    path.write_bytes(bytes(data[: len(data) - cut]))
    try:
        tensors = read_checkpoint(path)
    except DataError:
        return
    for tensor in tensors:
        if tensor.is_float:
            assert sum(piece.size for piece in chunks(tensor, tensor.count)) == tensor.count


ABOUT = {"format": "mxfp4", "shape": [2, 64], "axis": 1, "dtype": "BF16"}
PARTS = {"w.codes": entry([2, 32], 0, 64, "U8"), "w.scales": entry([2, 2], 64, 68, "U8")}


def about(**changes: Any) -> Any:
    told = {k: v for k, v in (ABOUT | changes).items() if v is not None}
    return json.dumps({"version": 1, "tensors": {"w": told}})


def narrow_file(path: Path, text: str, parts: Any = None, size: int = 68) -> Any:
    parts = PARTS if parts is None else parts
    path.write_bytes(checkpoint(header(__metadata__={"fewbits": text}, **parts), bytes(size)))
    return path


NARROW = {
    "not JSON": ("{", "is not JSON"),
    "an empty text": ("", "is not JSON"),
    "JSON 100000 deep": ("[" * 10**5 + "]" * 10**5, "is not JSON"),
    "a number of 10^5 digits": ('{"version":' + "1" * 10**5 + "}", "is not JSON"),
    "a list": ("[]", "has version None"),
    "no version": ('{"tensors":{}}', "has version None"),
    "a later version": ('{"version":3,"tensors":{}}', "has version 3; expected 1 or 2"),
    "no checksums": ('{"version":2,"tensors":{}}', "has no object 'crc32'"),
    "a version that is true": ('{"version":true,"tensors":{}}', "has version True"),
    "no tensors": ('{"version":1}', "has no object 'tensors'"),
    "a list of tensors": ('{"version":1,"tensors":[]}', "has no object 'tensors'"),
    "a name twice": ('{"version":1,"tensors":{"w":{},"w":{}}}', "it names 'w' 2 times"),
    "a tensor that is a number": ('{"version":1,"tensors":{"w":1}}', "expected an object"),
    "an unknown field": (about(key="x"), "the field 'key' is unknown"),
    "no format": (about(format=None), "format=None is not a text"),
    "an unknown format": (about(format="mxfp5"), "no format named 'mxfp5'"),
    "a format that is a number": (about(format=4), "format=4 is not a text"),
    "a format 100000 deep": (about(format="block(element=" * 10**5), "1400000 characters"),
    "a format with a block of -8": (about(format="block(element=int8,scale=e8m0,size=-8)"), "size=-8"),
    "a name that is a list": (about(name=[]), "name=[] is not a text"),
    "the name of another format": (about(name="mx9"), "name='mx9' is not that of its format, mxfp4"),
    "the name of another format, for none of the catalogue": (
        about(name="mxfp4", format="block(element=fp4_e2m1,scale=e8m0,size=31)"),
        "name='mxfp4' is not that of its format, block(element=fp4_e2m1,scale=e8m0,size=31)",
    ),
    "no dtype": (about(dtype=None), "dtype=None is not one of F64"),
    "a dtype of integers": (about(dtype="I8"), "dtype='I8' is not one of F64"),
    "a dtype that is a list": (about(dtype=["F32"]), "is not one of F64"),
    "no shape": (about(shape=None), "shape=None is not a list"),
    "a shape that is a text": (about(shape="22"), "is not a list of counts"),
    "a negative extent": (about(shape=[2, -64]), "is not a list of counts"),
    "an extent that is no integer": (about(shape=[2, 64.0]), "is not a list of counts"),
    "an extent that is true": (about(shape=[True, 64]), "is not a list of counts"),
    "2^80 values": (about(shape=[2**40, 2**40]), "larger than a tensor can be"),
    "2^124 values times zero": (about(shape=[2**62, 2**62, 0]), "larger than a tensor can be"),
    "100000 axes": (about(shape=[1] * 10**5), "larger than a tensor can be"),
    "2^62 values": (about(shape=[2, 2**61]), "its part 'codes' is U8 [2, 32]; mxfp4 of"),
    "another shape": (
        about(shape=[2, 65]),
        "its part 'codes' is U8 [2, 32]; mxfp4 of [2, 65] takes U8 [2, 33]",
    ),
    "no axis": (about(axis=None), "axis=None is not an integer from 0 to 1"),
    "a negative axis": (about(axis=-1), "axis=-1 is not an integer from 0 to 1"),
    "an axis too far": (about(axis=2), "axis=2 is not an integer from 0 to 1"),
    "an axis that is true": (about(axis=True), "axis=True is not an integer"),
    "the other axis": (about(axis=0), "its part 'codes' is U8 [2, 32]"),
    "a view of other size": (about(view=[2, 65]), "view=[2, 65] has 130 values"),
    "a view that is null": (about().replace("}}}", ',"view":null}}}'), "view=None is not a list"),
    "a format with more parts": (about(format="bdr(m=3,k1=32)"), "its part 'shifts' is missing"),
}


@pytest.mark.parametrize("case", NARROW)
def test_hostile_metadata_of_narrow_tensors_is_refused_in_one_line(tmp_path: Path, case: Any) -> None:
    text, told = NARROW[case]
    path = narrow_file(tmp_path / "n.safetensors", text)
    for read in (load_file, lambda p: restore(p, tmp_path / "wide.safetensors")):
        assert told in refused(read, path)
    assert [p.name for p in tmp_path.iterdir()] == ["n.safetensors"]
    assert any(told in problem for problem in inspect(path).problems)


WRONG_PARTS = {
    "none": ({"x": entry([68], 0, 68, "U8")}, "its part 'codes' is missing"),
    "no scales": (
        {"w.codes": entry([2, 32], 0, 64, "U8"), "x": entry([4], 64, 68, "U8")},
        "'scales' is missing",
    ),
    "signed codes": (PARTS | {"w.codes": entry([2, 32], 0, 64, "I8")}, "its part 'codes' is I8 [2, 32]"),
    "a line too many": (
        {"w.codes": entry([2, 32], 0, 64, "U8"), "w.scales": entry([4, 1], 64, 68, "U8")},
        "its part 'scales' is U8 [4, 1]",
    ),
    "an ordinary tensor of its name": (PARTS | {"w": entry([0], 68, 68)}, "'w' is there twice"),
}


@pytest.mark.parametrize("case", WRONG_PARTS)
def test_parts_that_do_not_fit_the_metadata_are_refused_in_one_line(tmp_path: Path, case: Any) -> None:
    parts, told = WRONG_PARTS[case]
    path = narrow_file(tmp_path / "n.safetensors", about(), parts)
    assert told in refused(load_file, path)
    assert any(told in problem for problem in inspect(path).problems)


def test_sound_metadata_is_read(tmp_path: Path) -> None:  # the control of the two above
    path = narrow_file(tmp_path / "n.safetensors", about())
    restore(path, tmp_path / "wide.safetensors")
    assert not inspect(path).problems


@pytest.mark.parametrize("name", ["mxfp4", "of_a_later_catalogue"])
def test_a_name_that_contradicts_no_format_is_read(tmp_path: Path, name: str) -> None:
    path = narrow_file(tmp_path / "n.safetensors", about(name=name))
    assert not inspect(path).problems
    assert load_file(path)["w"].format == parse("mxfp4")


@given(at=st.integers(0, 10**4), byte=st.integers(0, 255))
def test_a_narrow_file_with_a_changed_byte_is_refused_or_read(
    tmp_path_factory: pytest.TempPathFactory, at: Any, byte: Any
) -> None:
    folder = tmp_path_factory.mktemp("fuzz")
    path = narrow_file(folder / "n.safetensors", about())
    data = bytearray(path.read_bytes())
    data[at % len(data)] = byte
    path.write_bytes(bytes(data))
    try:
        restore(path, folder / "wide.safetensors")
        inspect(path)
    except (DataError, ArgumentError):  # the change may have hidden the metadata: nothing to restore
        return
    assert read_checkpoint(folder / "wide.safetensors")


REAL = "%%MatrixMarket matrix coordinate real general\n"

MATRICES = {
    "empty": ("", "Missing banner"),
    "other text": ("hello\n", "Missing banner"),
    "no header": (REAL, "cannot be read"),
    "cut short": (REAL + "2 2 3\n1 1 1.00000000\n", "Truncated"),
    "too long": (REAL + "2 2 1\n1 1 1\n2 2 2\n", "Too many lines"),
    "row outside": (REAL + "2 2 1\n3 1 1\n", "out of bounds"),
    "row zero": (REAL + "2 2 1\n0 1 1\n", "out of bounds"),
    "negative size": (REAL + "-2 2 1\n1 1 1\n", "negative"),
    "no number": (REAL + "1 1 1\n1 1 abc\n", "Invalid floating-point"),
    "size beyond 64 bits": (REAL + "9" * 30 + " 2 1\n1 1 1\n", "cannot be read"),
    "10^15 rows": (REAL + "1000000000000000 1 1\n1 1 1\n", "claims 1000000000000000 x 1"),
    "10^15 columns": (REAL + "1 1000000000000000 1\n1 1 1\n", "claims 1 x 1000000000000000"),
    "10^15 entries": (REAL + "9 9 1000000000000000\n1 1 1\n", "1000000000000000 entries"),
    "array of 10^14": ("%%MatrixMarket matrix array real general\n10000000 10000000\n1\n", "claims"),
    "NaN": (REAL + "1 1 1\n1 1 nan\n", "1 entries that are NaN or infinite"),
    "infinity": (REAL + "1 1 1\n1 1 inf\n", "1 entries that are NaN or infinite"),
    "beyond float64": (REAL + "1 1 1\n1 1 1e400\n", "1 entries that are NaN or infinite"),
    "no entries": (REAL + "2 2 0\n", "no nonzero entries"),
    "zeros only": (REAL + "1 1 1\n1 1 0\n", "no nonzero entries"),
    "a pattern": ("%%MatrixMarket matrix coordinate pattern general\n1 1 1\n1 1\n", "pattern without values"),
    "complex": ("%%MatrixMarket matrix coordinate complex general\n1 1 1\n1 1 1 2\n", "is complex"),
    "hermitian": ("%%MatrixMarket matrix coordinate complex hermitian\n1 1 1\n1 1 1 0\n", "is complex"),
    # These four crashed the reader of SciPy 1.17.
    "a zero byte": (REAL + "2 2 2\n1 1 1\0\n2 2 2\n", "zero bytes"),
    "a last line without end": (REAL + "2 2 2\n1 1 1.0000\n2 2 ", "cannot be read"),
    "no rows": ("%%MatrixMarket matrix array real general\n0 2\n1\n", "is 0 x 2"),
    "symmetric and not square": (
        "%%MatrixMarket matrix array real symmetric\n1 24\n2\n",
        "is 1 x 24 and symmetric",
    ),
    "a vector": ("%%MatrixMarket vector coordinate real general\n1 1\n1 1\n", "not supported"),
}


@pytest.mark.parametrize("case", MATRICES)
def test_a_hostile_matrix_is_refused_in_one_line(tmp_path: Path, case: Any) -> None:
    data, told = MATRICES[case]
    path = tmp_path / "m.mtx"
    path.write_text(data)
    text = refused(read_matrix, path)
    assert told in text
    assert str(path) in text


def test_a_matrix_of_another_suffix_is_refused(tmp_path: Path) -> None:
    (tmp_path / "m.mtx.gz").write_bytes(b"")
    assert "uncompressed" in refused(read_matrix, tmp_path / "m.mtx.gz")


MATRIX = (REAL + "% comment\n3 3 4\n1 1 1.5\n2 2 -2\n3 3 1e3\n1 3 7\n").encode()


@given(at=st.integers(0, len(MATRIX) - 1), byte=st.integers(0, 255), cut=st.integers(0, 9))
def test_a_matrix_with_a_changed_byte_is_refused_or_read(
    tmp_path_factory: pytest.TempPathFactory, at: Any, byte: Any, cut: Any
) -> None:
    data = bytearray(MATRIX)
    data[at] = byte
    path = tmp_path_factory.mktemp("fuzz") / "m.mtx"
    path.write_bytes(bytes(data[: len(data) - cut]))
    try:
        matrix = read_matrix(path)
    except DataError:
        return
    assert matrix.nnz >= 1
