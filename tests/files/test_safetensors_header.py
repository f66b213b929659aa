from pathlib import Path
from typing import Any

import pytest
from safetensors import safe_open
from safetensors.numpy import load

from fewbits.errors import ArgumentError
from fewbits.files.safetensors_header import HeaderEntry, header

TENSORS = {
    "b": HeaderEntry("U8", (3,)),
    "a": HeaderEntry("U8", (2, 2)),
    "w": HeaderEntry("F32", (2,)),
    "i": HeaderEntry("I64", ()),
    "e": HeaderEntry("BF16", (0, 7)),
}


def test_the_safetensors_library_reads_it_and_every_tensor_is_aligned(tmp_path: Path) -> None:
    head = header(TENSORS, {"format": "pt"})
    octets = bytearray(head.size)
    octets[: len(head.octets)] = head.octets
    octets[head.starts["a"] : head.starts["a"] + 4] = b"\1\2\3\4"
    path = tmp_path / "m.safetensors"
    path.write_bytes(octets)
    found = load(path.read_bytes().replace(b'"BF16"', b'"F16" '))
    assert {name: array.shape for name, array in found.items()} == {n: p.shape for n, p in TENSORS.items()}
    assert found["a"].tolist() == [[1, 2], [3, 4]]
    with safe_open(path, framework="np") as handle:
        assert handle.metadata() == {"format": "pt"}
    for name, size in {"w": 4, "i": 8, "e": 2}.items():
        assert head.starts[name] % size == 0


def test_the_order_of_tensors_and_metadata_changes_nothing() -> None:
    turned = dict(reversed(TENSORS.items()))
    assert header(TENSORS, {"x": "1", "y": "2"}) == header(turned, {"y": "2", "x": "1"})


def test_names_in_any_script_are_kept_and_half_a_surrogate_is_refused() -> None:
    assert "größe".encode() in header({"größe": HeaderEntry("U8", (1,))}, {}).octets
    with pytest.raises(ArgumentError, match="half a surrogate pair"):
        header({"\ud800": HeaderEntry("U8", (1,))}, {})


def test_a_header_that_no_reader_accepts_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fewbits.files.safetensors_header._LARGEST", 100)
    with pytest.raises(ArgumentError, match="write the tensors into several files"):
        header(TENSORS, {})


@pytest.mark.parametrize(("dtype", "size"), [("F4", 4), ("F6_E2M3", 6), ("BOOL", 8), ("C64", 64)])
def test_the_bytes_of_every_dtype_are_counted(dtype: Any, size: int) -> None:
    assert HeaderEntry(dtype, (8,)).nbytes == size
