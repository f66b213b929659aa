"""Sparse tensors in files: back bit for bit, cast by magnitude, and hostile streams are one clear error."""

import json
from pathlib import Path
from zlib import crc32

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file as load_ordinary
from safetensors.torch import save_file as save_ordinary

import fewbits as fb
from fewbits.errors import DataError, FormatError
from fewbits.files import cast, inspect, load_file, restore, save_file
from fewbits.kernels.arrays.nm import zeros
from tests import cases


def sparse(lines: int, columns: int) -> torch.Tensor:
    w = torch.randn(lines, columns // 4, 4, generator=torch.Generator().manual_seed(0))
    return w.scatter(-1, w.abs().argsort(-1)[..., :2], 0.0).reshape(lines, columns)


@pytest.mark.parametrize("fmt", cases.FORMATS, ids=cases.label)
def test_every_format_comes_back_from_a_file(fmt: cases.Format, tmp_path: Path) -> None:
    try:
        zeros(fmt)
    except FormatError:
        pytest.skip("the format has no zero")
    path = tmp_path / "sparse.safetensors"
    q = fb.quantize(sparse(3, 1100), fmt).compressed("2:4")
    save_file({"w": q, "b": torch.ones(3)}, path)
    found = load_file(path)["w"]
    assert isinstance(found, fb.NarrowTensor)
    assert str(found.sparsity) == "2:4"
    assert torch.equal(found, q)
    told = inspect(path)
    assert not told.problems
    assert {t.tensor: t.sparsity for t in told.tensors} == {"w": "2:4", "b": None}
    restore(path, tmp_path / "wide.safetensors")
    wide = load_ordinary(tmp_path / "wide.safetensors")["w"]
    assert torch.equal(wide.view(torch.int32), q.dequantize().view(torch.int32))


@pytest.mark.parametrize("fmt", ["bf16", "mxfp4", "int8_channel", "nvfp4", "mx6"])
def test_cast_keeps_the_largest_and_leaves_dense_what_does_not_fit(fmt: str, tmp_path: Path) -> None:
    w = {
        "fits": torch.randn(48, 5632, generator=torch.Generator().manual_seed(1)),  # more than one piece
        "odd": torch.randn(5, 33),
        "kernel": torch.randn(8, 4, 3, 3),
        "bias": torch.ones(7),
    }
    save_ordinary(w, tmp_path / "wide.safetensors")
    narrow = tmp_path / "narrow.safetensors"
    report = cast(tmp_path / "wide.safetensors", narrow, format=fmt, pattern="2:4")
    kept = {t.tensor: (t.format, t.sparsity) for t in report.tensors}
    assert kept == {"fits": (fmt, "2:4"), "odd": (fmt, None), "kernel": (fmt, None), "bias": (None, None)}
    groups = w["fits"].reshape(48, -1, 4)
    masked = groups.scatter(-1, groups.abs().argsort(-1)[..., :2], 0.0).reshape(48, 5632)
    found = load_file(narrow)["fits"]
    assert isinstance(found, fb.NarrowTensor)
    assert torch.equal(found, fb.quantize(masked, fmt, sparsity="2:4"))
    assert not torch.equal(found, fb.quantize(masked.flip(0), fmt, sparsity="2:4"))
    restore(narrow, tmp_path / "back.safetensors")
    assert torch.equal(load_ordinary(tmp_path / "back.safetensors")["fits"], found.dequantize())


def test_a_format_without_a_zero_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    save_ordinary({"w": torch.randn(4, 8)}, tmp_path / "wide.safetensors")
    with pytest.raises(FormatError, match="has no zero, which sparsity needs"):
        cast(tmp_path / "wide.safetensors", tmp_path / "n.safetensors", format="binary", pattern="2:4")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["wide.safetensors"]


def hostile(tmp_path: Path, change: str) -> Path:
    """Write a sparse tensor, then the same file with one thing wrong."""
    path = tmp_path / "hostile.safetensors"
    save_file({"w": fb.quantize(sparse(3, 1024), "mxfp4", sparsity="2:4")}, path)
    parts = load_ordinary(path)
    with safe_open(path, framework="pt") as file:
        told = json.loads(file.metadata()["fewbits"])
    about, codes = told["tensors"]["w"], parts["w.codes"]
    if change == "truncated":
        parts["w.codes"] = codes[:, :-1].contiguous()
    elif change == "too many":
        codes[1, 3] = 255
    elif change == "too few":
        codes[2, :16] = 0
    elif change == "groups":
        about["shape"] = [3, 1022]
    elif change == "zero":
        about |= {"format": "lookup(1,-1)", "name": "binary"}
    else:
        about["sparsity"] = {"pattern": "4:2", "number": 24, "spelled": " 2:4"}[change]
    told["crc32"] = {name: f"{crc32(t.numpy().tobytes()):08x}" for name, t in parts.items()}
    save_ordinary(parts, path, {"fewbits": json.dumps(told)})
    return path


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("truncated", r"its part 'codes' is U8 \[3, 383\]; mxfp4 of \[3, 1024\] takes U8 \[3, 384\]"),
        ("too many", "line 1 has a mask that does not keep 2 of each 4"),
        ("too few", "line 2 has a mask that does not keep 2 of each 4"),
        ("groups", "sparsity=2:4 needs whole groups, and the axis has 1022 values"),
        ("zero", "has no zero"),
        ("pattern", "a pattern keeps N of M"),
        ("number", "sparsity=24 is not a text"),
        ("spelled", "sparsity=' 2:4' is written 2:4"),
    ],
)
def test_a_hostile_stream_is_one_clear_error(change: str, message: str, tmp_path: Path) -> None:
    path = hostile(tmp_path, change)
    with pytest.raises(DataError, match=message):
        load_file(path)
    with pytest.raises(DataError, match=message):
        restore(path, tmp_path / "wide.safetensors")
    assert any("'w'" in problem for problem in inspect(path).problems)
