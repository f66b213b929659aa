"""Narrow tensors are saved and loaded bit for bit, beside ordinary ones."""

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file as load_ordinary
from torch._subclasses.fake_tensor import FakeTensorMode

import fewbits as fb
from fewbits.errors import ArgumentError, DataError, DTypeError
from fewbits.files import cast, load_file, restore, save_file
from fewbits.tensor import NarrowTensor
from tests import cases


class OwnTensor(torch.Tensor):
    """A class that changes nothing."""


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
        "s": torch.arange(256, dtype=torch.uint8).view(torch.float8_e8m0fnu),  # the scales of other programs
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
    for name in ("file", "w.bin"):
        with pytest.raises(ArgumentError, match="which load_file would not read"):
            save_file({"w": normal(3)}, tmp_path / name)
        assert not (tmp_path / name).exists()
    with pytest.raises(ArgumentError, match="has the key 'fewbits'"):
        save_file({"q": q}, tmp_path / "m.safetensors", {"fewbits": ""})
    with pytest.raises(DTypeError, match="'x' is complex128; expected one of"):
        save_file({"x": torch.tensor(1j, dtype=torch.complex128)}, tmp_path / "m.safetensors")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["v.SafeTensors", "v.SAFETENSORS"])
def test_damage_is_seen_whatever_letters_a_file_ends_with(name: str, tmp_path: Path) -> None:
    save_file({"w": fb.quantize(torch.ones(8, 64), "mxfp4"), "b": normal(5)}, tmp_path / name)
    assert torch.equal(load_file(tmp_path / name)["w"].dequantize(), torch.ones(8, 64))
    octets = bytearray((tmp_path / name).read_bytes())
    octets[-40] ^= 0x10
    (tmp_path / name).write_bytes(octets)
    with pytest.raises(DataError):
        load_file(tmp_path / name)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_a_path_that_the_library_cannot_open_is_not_called_damage(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"caf\xe9.safetensors")
    save_file({"a": torch.ones(2)}, path)
    with pytest.raises(DataError, match=r"paths in UTF-8 alone: give the file, or its folder, another name$"):
        load_file(path)


@pytest.mark.parametrize(
    ("tensors", "metadata", "said"),
    [
        ({"a": normal(3)}, {"k": 1}, "1 in names or metadata; expected text"),
        ({"a": normal(3)}, {"k": None}, "None in names or metadata"),
        ({"a": normal(3)}, {2: "k"}, "2 in names or metadata"),
        ({1: normal(3)}, None, "1 in names or metadata"),
        ({"__metadata__": normal(3)}, None, "a tensor is named '__metadata__'"),
        ({"a": np.ones(3)}, None, "tensor 'a' is ndarray; expected a dense torch.Tensor that has values"),
        ({"a": normal(3, 3).to_sparse()}, None, "tensor 'a' is of layout torch.sparse_coo"),
        ({"a": normal(3).to("meta")}, None, "tensor 'a' is on the meta device"),
    ],
)
def test_what_no_reader_could_read_is_not_written(
    tensors: Any, metadata: Any, said: str, tmp_path: Path
) -> None:
    (tmp_path / "m.safetensors").write_bytes(b"as it was")
    with pytest.raises((ArgumentError, DTypeError), match=said):
        save_file(tensors, tmp_path / "m.safetensors", metadata)
    assert (tmp_path / "m.safetensors").read_bytes() == b"as it was"


def unreadable(kind: str) -> Any:
    if kind == "FakeTensor":
        with FakeTensorMode():
            return torch.empty(3)
    if kind == "UninitializedParameter":
        return torch.nn.UninitializedParameter()
    if kind == "Tensor":  # by its class
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    pytest.importorskip("torchao", minversion="0.18")
    import torchao.quantization as torchao

    linear = torch.nn.Linear(32, 32)
    torchao.quantize_(linear, torchao.Int8WeightOnlyConfig())
    return linear.weight


@pytest.mark.filterwarnings("ignore")  # of torch about nested tensors, of torchao about itself
@pytest.mark.parametrize("kind", ["FakeTensor", "UninitializedParameter", "Tensor", "Int8Tensor"])
def test_a_tensor_whose_bytes_cannot_be_had_is_named(kind: str, tmp_path: Path) -> None:
    (tmp_path / "m.safetensors").write_bytes(b"as it was")
    with pytest.raises(
        DTypeError, match=f"tensor 'x' is {kind} without bytes of its own.*: convert it first"
    ):
        save_file({"w": normal(3), "x": unreadable(kind)}, tmp_path / "m.safetensors")
    assert (tmp_path / "m.safetensors").read_bytes() == b"as it was"


def test_tensors_under_a_transform_of_functions_are_named(tmp_path: Path) -> None:
    def saving(x: torch.Tensor) -> torch.Tensor:
        with pytest.raises(DTypeError, match="tensor 'x' is Tensor without bytes of its own"):
            save_file({"x": x}, tmp_path / "m.safetensors")
        return x

    torch.func.vmap(saving)(normal(2, 3))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", [torch.nn.Parameter, torch.nn.Buffer, lambda x: x.as_subclass(OwnTensor)])
def test_tensors_of_classes_that_have_bytes_are_written(kind: Any, tmp_path: Path) -> None:
    x = normal(2, 3)
    save_file({"x": kind(x), "one": kind(x[0, 0]), "none": kind(x[:0])}, tmp_path / "m.safetensors")
    back = load_ordinary(tmp_path / "m.safetensors")
    assert torch.equal(back["x"], x)
    assert torch.equal(back["one"], x[0, 0])
    assert back["none"].shape == (0, 3)


@pytest.mark.parametrize(("tensors", "metadata"), [(None, None), (["x"], None), ({}, ["x"])])
def test_what_has_no_names_is_refused(tensors: Any, metadata: Any, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="is no mapping by names; expected a dict"):
        save_file(tensors, tmp_path / "m.safetensors", metadata)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("metadata", [None, {"k": "v"}])
def test_a_file_without_tensors_is_written_and_loaded(metadata: Any, tmp_path: Path) -> None:
    save_file({}, tmp_path / "m.safetensors", metadata)
    assert load_file(tmp_path / "m.safetensors") == {} == load_ordinary(tmp_path / "m.safetensors")
    (tmp_path / "m.safetensors").write_bytes((tmp_path / "m.safetensors").read_bytes()[:-1])
    with pytest.raises(DataError, match="cannot be read as safetensors"):
        load_file(tmp_path / "m.safetensors")


def test_an_empty_view_with_strides_is_written(tmp_path: Path) -> None:
    save_file({"x": normal(4, 2)[:0, 1], "y": normal(4, 6)[:, ::2][:0]}, tmp_path / "m.safetensors")
    assert {name: tuple(x.shape) for name, x in load_ordinary(tmp_path / "m.safetensors").items()} == {
        "x": (0,),
        "y": (0, 3),
    }


def test_views_that_only_note_a_sign_or_a_conjugation_are_written_with_it(tmp_path: Path) -> None:
    z = torch.complex(normal(4), normal(4) + 1)
    tensors = {
        "conjugate": z.conj(),
        "imaginary": z.conj().imag,
        "negated": torch._neg_view(normal(4).bfloat16()),
    }
    save_file(tensors, tmp_path / "m.safetensors")
    for name, x in load_ordinary(tmp_path / "m.safetensors").items():
        assert torch.equal(x, tensors[name].clone()), name
