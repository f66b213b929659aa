import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fewbits.errors import DataError
from fewbits.files.checkpoint import StoredTensor, chunks, read_checkpoint
from fewbits.kernels.bits.reals import BFLOAT16, widened

FLOATS = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F8_E4M3": torch.float8_e4m3fn,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3FNUZ": torch.float8_e4m3fnuz,
    "F8_E5M2FNUZ": torch.float8_e5m2fnuz,
}


def write_raw(path: Path, header: dict[str, object], data: bytes) -> None:
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def saved(folder: Path, **tensors: torch.Tensor) -> Path:
    path = folder / "model.safetensors"
    save_file(tensors, path)
    return path


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def only(path: Path) -> StoredTensor:
    (tensor,) = read_checkpoint(path)
    return tensor


def test_tensors_are_listed_with_what_the_file_says(tmp_path: Path) -> None:
    path = saved(tmp_path, a=torch.zeros(3, 5, dtype=torch.bfloat16), b=torch.tensor([True, False]))
    a, b = read_checkpoint(str(path))
    assert a == StoredTensor("a", (3, 5), "BF16", path)
    assert (a.count, a.stored_bytes, a.is_float) == (15, 30, True)
    assert (b.dtype, b.stored_bytes, b.is_float) == ("BOOL", 2, False)


def test_layer_2_comes_before_layer_10(tmp_path: Path) -> None:
    names = ("h.10.w", "h.2.w", "h.02.w", "h", "2", "h." + "9" * 5000, "a10b2", "a9b10")
    save_file({name: torch.zeros(1) for name in names}, tmp_path / "m.safetensors")
    found = [t.name for t in read_checkpoint(tmp_path)]
    assert found == ["2", "a9b10", "a10b2", "h", "h.02.w", "h.2.w", "h.10.w", "h." + "9" * 5000]


@pytest.mark.parametrize(
    ("dtype", "count", "size"), [("F4", 6, 3), ("F6_E2M3", 4, 3), ("F8_E8M0", 3, 3), ("C64", 2, 16)]
)
def test_dtypes_that_are_not_real_floats_are_listed_with_their_bytes(
    tmp_path: Path, dtype: Any, count: Any, size: int
) -> None:
    path = tmp_path / "m.safetensors"
    write_raw(path, {"t": {"dtype": dtype, "shape": [count], "data_offsets": [0, size]}}, bytes(size))
    tensor = only(path)
    assert (tensor.dtype, tensor.stored_bytes, tensor.is_float) == (dtype, size, False)


READ_AS = {"F64": np.float64, "F16": np.float16, "BF16": BFLOAT16}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("values", [1, 7, 35, 100, 105, 1 << 20])
def test_chunks_together_are_the_tensor_bit_for_bit(tmp_path: Path, dtype: Any, values: Any) -> None:
    x = normal(3, 5, 7).to(FLOATS[dtype])
    tensor = only(saved(tmp_path, x=x))
    pieces = list(chunks(tensor, 7, values=values))
    assert {p.dtype for p in pieces} == {np.dtype(READ_AS.get(dtype, np.float32))}
    assert all(p.ndim == 2 and p.size <= max(values, 1) for p in pieces)
    whole = np.concatenate([widened(p).reshape(-1) for p in pieces])
    np.testing.assert_array_equal(whole, x.to(torch.float64).numpy().reshape(-1))


def test_rows_stay_whole_while_they_fit_and_are_cut_at_multiples_where_they_do_not(tmp_path: Path) -> None:
    tensor = only(saved(tmp_path, x=normal(4, 10)))
    assert [p.shape for p in chunks(tensor, 10, values=25)] == [(2, 10), (2, 10)]
    assert [p.shape for p in chunks(tensor, 10, values=9, multiple=4)] == [(1, 8), (1, 2)] * 4
    assert [p.shape for p in chunks(tensor, 40, values=9, multiple=16)] == [(1, 16), (1, 16), (1, 8)]


def test_scalars_and_empty_tensors_stream(tmp_path: Path) -> None:
    scalar, empty = read_checkpoint(saved(tmp_path, a=torch.tensor(2.5), b=torch.zeros(0, 4)))
    assert [p.tolist() for p in chunks(scalar, 1)] == [[[2.5]]]
    assert list(chunks(empty, 4)) == []


def test_floats_at_odd_addresses_are_read(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    values = np.array([1.5, -2.25], "<f4")
    header = {
        "a": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]},
        "b": {"dtype": "F32", "shape": [2], "data_offsets": [1, 9]},
    }
    write_raw(path, header, b"\x07" + values.tobytes())
    (piece,) = chunks(read_checkpoint(path)[1], 2)
    assert piece.flags.aligned
    assert piece.tolist() == [[1.5, -2.25]]


def test_a_chunk_may_be_written_to_without_changing_the_file(tmp_path: Path) -> None:
    path = saved(tmp_path, x=normal(8))
    before = path.read_bytes()
    for piece in chunks(only(path), 8):
        piece[:] = 0
    assert path.read_bytes() == before


def write_shards(folder: Path) -> Path:
    save_file({"a": normal(2), "b": normal(3)}, folder / "model-00001-of-00002.safetensors")
    save_file({"c": normal(4)}, folder / "model-00002-of-00002.safetensors")
    first, second = sorted(p.name for p in folder.iterdir())
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {}, "weight_map": {"a": first, "b": first, "c": second}}))
    return index


def test_a_sharded_checkpoint_is_read_by_folder_and_by_index(tmp_path: Path) -> None:
    index = write_shards(tmp_path)
    tensors = read_checkpoint(tmp_path)
    assert [(t.name, t.shape) for t in tensors] == [("a", (2,)), ("b", (3,)), ("c", (4,))]
    assert read_checkpoint(index) == tensors


def test_a_folder_with_an_index_is_what_the_index_names(tmp_path: Path) -> None:
    write_shards(tmp_path)
    save_file({"a": normal(2)}, tmp_path / "consolidated.safetensors")
    assert [t.name for t in read_checkpoint(tmp_path)] == ["a", "b", "c"]


def test_a_tensor_that_the_index_does_not_list_is_read_as_other_loaders_do(tmp_path: Path) -> None:
    index = write_shards(tmp_path)
    places = json.loads(index.read_text())["weight_map"]
    del places["b"]
    index.write_text(json.dumps({"weight_map": places}))
    assert [t.name for t in read_checkpoint(tmp_path)] == ["a", "b", "c"]


def test_a_folder_without_index_is_all_its_files(tmp_path: Path) -> None:
    write_shards(tmp_path).unlink()
    (tmp_path / "README.md").write_text("a model")
    assert [t.name for t in read_checkpoint(tmp_path)] == ["a", "b", "c"]


@pytest.mark.parametrize("dtype", ["F7", "bfloat16", "U2"])
def test_a_dtype_that_the_library_does_not_know_is_called_that(tmp_path: Path, dtype: Any) -> None:
    path = tmp_path / "m.safetensors"
    write_raw(path, {"a": {"dtype": dtype, "shape": [4], "data_offsets": [0, 4]}}, bytes(4))
    with pytest.raises(DataError, match=f"has a tensor of the dtype '{dtype}', which is unknown to"):
        read_checkpoint(path)
