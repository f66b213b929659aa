"""Narrow tensors are saved and loaded bit for bit, beside ordinary ones."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file as load_ordinary

import fewbits as fb
from fewbits.errors import ArgumentError, DTypeError
from fewbits.files import cast, load_file, restore, save_file
from fewbits.tensor import NarrowTensor
from tests import cases


def normal(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


def same(a: NarrowTensor, b: NarrowTensor) -> None:
    assert (a.format, tuple(a.shape), a.axis, a.dtype) == (b.format, tuple(b.shape), b.axis, b.dtype)
    for name in ("codes", "scales", "shifts", "outer"):
        one, other = getattr(a, name), getattr(b, name)
        assert one is other is None or torch.equal(one, other)


@pytest.mark.parametrize("fmt", cases.FORMATS, ids=cases.label)
def test_every_format_is_saved_and_loaded(tmp_path: Path, fmt: Any) -> None:
    q = fb.quantize(normal(5, 61), fmt)
    save_file({"q": q}, tmp_path / "q.safetensors")
    same(load_file(tmp_path / "q.safetensors")["q"], q)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_axis_and_dtype_are_kept_and_restored(tmp_path: Path, dtype: Any, axis: int) -> None:
    q = fb.quantize(normal(3, 40, 5).to(dtype), "mx9", axis=axis)
    save_file({"q": q}, tmp_path / "q.safetensors")
    same(load_file(tmp_path / "q.safetensors")["q"], q)
    restore(tmp_path / "q.safetensors", tmp_path / "wide.safetensors")
    assert torch.equal(load_ordinary(tmp_path / "wide.safetensors")["q"], q.dequantize())


@pytest.mark.parametrize("shape", cases.SHAPES)
def test_awkward_shapes_are_saved_and_loaded(tmp_path: Path, shape: Any) -> None:
    for fmt in ("mxfp4", "nvfp4", "int8_tensor", "posit5_2"):
        q = fb.quantize(normal(*shape), fmt, axis=0)
        save_file({"q": q}, tmp_path / "q.safetensors")
        same(load_file(tmp_path / "q.safetensors")["q"], q)
        restore(tmp_path / "q.safetensors", tmp_path / "wide.safetensors")
        assert torch.equal(load_ordinary(tmp_path / "wide.safetensors")["q"], q.dequantize())


def test_ordinary_tensors_of_every_dtype_are_kept(tmp_path: Path) -> None:
    plain = {
        "w": normal(4, 3).T,
        "b": torch.tensor([True, False]),
        "i": torch.arange(5, dtype=torch.int16),
        "c": torch.tensor(1 + 2j),
        "e": torch.zeros(0, 3),
        "f": normal(7).to(torch.float8_e4m3fn),
    }
    save_file({**plain, "q": fb.quantize(normal(2, 32), "mxfp4")}, tmp_path / "m.safetensors", {"by": "us"})
    found = load_file(tmp_path / "m.safetensors")
    assert isinstance(found.pop("q"), NarrowTensor)
    assert set(found) == set(plain)
    for name, tensor in plain.items():
        assert found[name].dtype == tensor.dtype
        assert (
            torch.equal(found[name].view(torch.uint8), tensor.contiguous().view(torch.uint8))
            if (tensor.ndim)
            else found[name] == tensor
        )


def test_what_cast_writes_is_loaded(tmp_path: Path) -> None:
    x = {"w": normal(4, 64).bfloat16(), "conv": normal(4, 3, 3, 3), "f": normal(4, 64).to(torch.float8_e5m2)}
    save_file(x, tmp_path / "wide.safetensors")
    cast(tmp_path / "wide.safetensors", tmp_path / "n.safetensors", format="nvfp4")
    found = load_file(tmp_path / "n.safetensors")
    same(found["w"], fb.quantize(x["w"], "nvfp4"))
    assert tuple(found["conv"].shape) == (4, 27)
    assert found["f"].dtype == torch.bfloat16
    np.testing.assert_array_equal(
        found["f"].dequantize().float(), fb.quantize(x["f"].float(), "nvfp4").dequantize().bfloat16().float()
    )


def test_names_that_clash_are_refused(tmp_path: Path) -> None:
    q = fb.quantize(normal(2, 32), "mxfp4")
    with pytest.raises(ArgumentError, match=r"'q\.codes' is a part of a narrow tensor and a tensor"):
        save_file({"q": q, "q.codes": normal(2)}, tmp_path / "m.safetensors")
    with pytest.raises(ArgumentError, match="has the key 'fewbits'"):
        save_file({"q": q}, tmp_path / "m.safetensors", {"fewbits": ""})
    with pytest.raises(DTypeError, match="'x' is complex128; expected one of"):
        save_file({"x": torch.tensor(1j, dtype=torch.complex128)}, tmp_path / "m.safetensors")
    assert not list(tmp_path.iterdir())
