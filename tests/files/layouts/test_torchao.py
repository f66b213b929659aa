"""torchao: folders that its classes and transformers load, and files that the package itself wrote."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import fewbits as fb
from fewbits.errors import ArgumentError, DataError
from fewbits.files import cast, inspect, restore
from fewbits.files import load_file as load_narrow
from tests.files.layouts.models import loaded, logits, saved_llama, saved_llava, saved_mixtral, with_weights

pytest.importorskip("torchao", minversion="0.18")
pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore")

CLASSES = {
    "nvfp4": "NVFP4Tensor",
    "mxfp4": "MXTensor",
    "mxfp8_e4m3": "MXTensor",
    "mxfp8_e5m2": "MXTensor",
    "int8_channel": "Int8Tensor",
    "fp8_e4m3_channel": "Float8Tensor",
}
UP = "model.layers.0.mlp.up_proj"


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_llama(tmp_path_factory.mktemp("llama") / "wide")


def written(llama: Path, folder: Path, fmt: str | None = "nvfp4", **choices: Any) -> Path:
    cast(llama, folder / "narrow", **({"format": fmt, "layout": "torchao"} | choices))
    assert not inspect(folder / "narrow").problems
    return folder / "narrow"


def by_their_reader(file: Path) -> dict[str, torch.Tensor]:
    """All tensors of a file, made by the package."""
    from torchao.prototype.safetensors.safetensors_support import unflatten_tensor_state_dict

    with safe_open(file, "pt") as opened:
        tensors, left = unflatten_tensor_state_dict(load_file(file), opened.metadata())
    assert not left
    return tensors


@pytest.mark.parametrize("fmt", CLASSES)
def test_their_reader_and_transformers_give_the_weights_bit_for_bit(
    llama: Path, tmp_path: Path, fmt: Any
) -> None:
    narrow, wide = written(llama, tmp_path, fmt, fuse=False), load_file(llama / "model.safetensors")
    model, found = loaded(narrow), by_their_reader(narrow / "model.safetensors")
    restore(narrow, tmp_path / "back")
    back = load_file(tmp_path / "back" / "model.safetensors")
    assert set(back) == set(wide) == set(found)
    for name, x in wide.items():
        if "proj" not in name:
            assert torch.equal(back[name], x)
            assert torch.equal(found[name], x)
            continue
        expected = fb.fake_quantize(x, fmt)
        assert not torch.equal(expected, x)
        for theirs in (model.get_parameter(name), found[name]):
            assert type(theirs).__name__ == CLASSES[fmt]
            assert torch.equal(theirs.dequantize(), expected), name
        assert torch.equal(back[name], expected)
    for name, x in load_narrow(narrow).items():
        assert torch.equal(x.dequantize() if isinstance(x, fb.NarrowTensor) else x, back[name])
    dense = with_weights(llama, {name: x for name, x in back.items() if "proj" in name})
    if CLASSES[fmt] == "MXTensor":  # their products take MX weights with MX activations alone
        with pytest.raises(AssertionError, match="weight-only quant not yet supported"):
            logits(model)
        return
    tolerance = 0.01 if fmt == "int8_channel" else 0  # scales multiply after the sums
    torch.testing.assert_close(logits(model), logits(dense), rtol=0, atol=tolerance)
    assert (logits(dense) - logits(loaded(llama))).abs().max() > 0


def test_shards_describe_their_own_tensors_and_several_formats_load(tmp_path: Path) -> None:
    llama = saved_llama(tmp_path / "wide", max_shard_size="60KB")
    rules = {"*down_proj*": "int8_channel", "*.1.self_attn.*": "fp8_e4m3_channel"}
    narrow = written(llama, tmp_path, "nvfp4", map=rules, exclude=["*.1.mlp.gate_proj*"])
    files = sorted(narrow.glob("*.safetensors"))
    assert len(files) > 1
    found = {name: x for file in files for name, x in by_their_reader(file).items()}
    model, tensors = loaded(narrow), load_narrow(narrow)
    assert set(found) == set(tensors)
    for name, x in tensors.items():
        if isinstance(x, fb.NarrowTensor):
            assert torch.equal(found[name].dequantize(), x.dequantize())
            assert torch.equal(model.get_parameter(name).dequantize(), x.dequantize())
    kinds = {name: type(x).__name__ for name, x in found.items()}
    assert kinds["model.layers.1.mlp.gate_proj.weight"] == "Tensor"
    assert kinds["model.layers.1.self_attn.q_proj.weight"] == "Float8Tensor"
    assert kinds["model.layers.0.mlp.down_proj.weight"] == "Int8Tensor"
    told = json.loads((narrow / "config.json").read_text())["quantization_config"]
    assert told["modules_to_not_convert"] == ["lm_head", "model.layers.1.mlp.gate_proj"]
    assert told["quant_type"]["default"]["_type"] == "FqnToConfig"
    restore(narrow, tmp_path / "back")
    assert "quantization_config" not in json.loads((tmp_path / "back" / "config.json").read_text())
    logits(loaded(tmp_path / "back"))


def test_names_dtypes_and_shapes_are_theirs(llama: Path, tmp_path: Path) -> None:
    narrow = written(llama, tmp_path, "nvfp4", map={"*down_proj*": "mxfp4", "*gate_proj*": "int8_channel"})
    with safe_open(narrow / "model.safetensors", "pt") as file:
        stored = {n: (file.get_slice(n).get_dtype(), file.get_slice(n).get_shape()) for n in file.keys()}  # noqa: SIM118
        told = {name: json.loads(text) for name, text in file.metadata().items() if name != "format"}
    module = UP.removesuffix("up_proj")
    assert stored[f"{module}up_proj._weight_qdata"] == ("U8", [128, 32])
    assert stored[f"{module}up_proj._weight_scale"] == ("F8_E4M3", [128, 4])
    assert stored[f"{module}up_proj._weight_per_tensor_scale"] == ("F32", [])
    assert stored[f"{module}down_proj._weight_scale"] == ("F8_E8M0", [64, 4])
    assert stored[f"{module}gate_proj._weight_qdata"] == ("I8", [128, 64])
    assert stored[f"{module}gate_proj._weight_scale"] == ("F32", [128, 1])
    assert set(told.pop("tensor_names")) == set(told)
    assert told["model.norm.weight"] == {"_type": "Tensor"}
    about = told[UP + ".weight"]
    assert (about["_type"], about["_data"]["is_swizzled_scales"]) == ("NVFP4Tensor", False)
    assert about["_data"]["orig_dtype"] == {"_type": "torch.dtype", "_data": "bfloat16"}


@pytest.mark.parametrize("fuse", [True, False])
def test_what_is_one_product_shares_an_outer_scale(llama: Path, tmp_path: Path, fuse: bool) -> None:
    stored = load_file(written(llama, tmp_path, fuse=fuse) / "model.safetensors")
    modules = [f"model.layers.1.self_attn.{p}_proj" for p in "qkv"]
    assert len({stored[f"{m}._weight_per_tensor_scale"].item() for m in modules}) == (1 if fuse else 3)


def theirs(folder: Path, model: torch.nn.Module) -> Path:
    from torchao.prototype.safetensors.safetensors_support import flatten_tensor_state_dict

    tensors, metadata = flatten_tensor_state_dict(model.state_dict())
    folder.mkdir()
    save_file(tensors, folder / "model.safetensors", metadata)
    return folder


SIZES = [(128, 64), (96, 80), (200, 160), (256, 128)]


@pytest.mark.parametrize("kind", ["NVFP4WeightOnlyConfig", "Int8WeightOnlyConfig", "Float8WeightOnlyConfig"])
def test_what_the_package_rounded_and_wrote_is_read_as_it_reads_it(tmp_path: Path, kind: Any) -> None:
    """Among them scales that it puts in the order of tensor cores, in whole tiles and in parts of them."""
    from torchao.prototype.mx_formats.inference_workflow import NVFP4WeightOnlyConfig
    from torchao.quantization import Float8WeightOnlyConfig, Int8WeightOnlyConfig, quantize_

    configs = {c.__name__: c for c in (NVFP4WeightOnlyConfig, Int8WeightOnlyConfig, Float8WeightOnlyConfig)}
    torch.manual_seed(0)
    layers = [torch.nn.Linear(n, m, dtype=torch.bfloat16) for m, n in SIZES]
    for layer in layers:  # rows that differ, so that no order of scales is like another
        layer.weight.data *= torch.linspace(0.1, 3, layer.weight.shape[0]).reshape(-1, 1)
    model = torch.nn.Sequential(*layers)
    if kind == "NVFP4WeightOnlyConfig":
        model = torch.nn.Sequential(*(layer for layer in layers if layer.weight.shape[0] % 16 == 0))
    quantize_(model, configs[kind]())
    folder = theirs(tmp_path / "theirs", model)
    report = inspect(folder)
    assert not report.problems
    assert sum(t.format is not None for t in report.tensors) == len(model)
    restore(folder, tmp_path / "back")
    back = load_file(tmp_path / "back" / "model.safetensors")
    for name, x in model.state_dict().items():
        expected = x.dequantize() if name.endswith("weight") else x
        assert back[name].dtype == torch.bfloat16
        if kind == "NVFP4WeightOnlyConfig" and name.endswith("weight"):
            # They round the product of both scales to FP32 before the elements, we after.
            torch.testing.assert_close(back[name], expected, rtol=2**-7, atol=0)
            assert (back[name] != expected).float().mean() < 0.001
        else:
            assert torch.equal(back[name], expected), name


def test_mx_weights_that_the_package_rounded_are_read(tmp_path: Path) -> None:
    from torchao.prototype.mx_formats.mx_tensor import MXTensor

    torch.manual_seed(0)
    model, x = torch.nn.Linear(160, 200, dtype=torch.bfloat16), {}
    for name, elements in (("e4m3", torch.float8_e4m3fn), ("e2m1", torch.float4_e2m1fn_x2)):
        for swizzled in (False, True):
            weight = model.weight.data * torch.linspace(0.1, 3, 200).reshape(-1, 1)
            made = MXTensor.to_mx(weight.bfloat16(), elements, 32, is_swizzled_scales=swizzled)
            x[f"{name}.{swizzled}"] = made

    class Held(torch.nn.Module):
        def state_dict(self) -> Any:
            return x

    folder = theirs(tmp_path / "theirs", Held())
    assert not inspect(folder).problems
    for name, found in load_narrow(folder).items():
        assert torch.equal(found.dequantize(), x[name].dequantize()), name


def test_what_is_not_read_is_named(llama: Path, tmp_path: Path) -> None:
    from torchao.quantization import Int8WeightOnlyConfig, PerGroup, quantize_

    model = torch.nn.Sequential(torch.nn.Linear(64, 32))
    quantize_(model, Int8WeightOnlyConfig(granularity=PerGroup(32)))
    folder = theirs(tmp_path / "theirs", model)
    (problem,) = inspect(folder).problems
    assert "'0.weight': its 'scale' is F32 [32, 2]" in problem
    narrow = written(llama, tmp_path, "int8_channel")
    tensors = load_file(narrow / "model.safetensors")
    with safe_open(narrow / "model.safetensors", "pt") as file:
        texts = file.metadata()
    tensors[f"{UP}._weight_zero_point"] = torch.zeros(128, 1, dtype=torch.int8)
    save_file(tensors, narrow / "model.safetensors", texts)
    assert not inspect(narrow).problems
    tensors[f"{UP}._weight_zero_point"][3] = 1
    save_file(tensors, narrow / "model.safetensors", texts)
    with pytest.raises(DataError, match="'zero_point', which is not read; expected symmetric weights only"):
        restore(narrow, tmp_path / "back")


def test_what_has_no_place_is_refused_by_name(llama: Path, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="layout='torchao' has no mxfp6_e2m3; it has nvfp4, mxfp4"):
        written(llama, tmp_path, "mxfp6_e2m3")
    (tmp_path / "wide").mkdir()
    save_file({"a.weight": torch.ones(4, 32), "b": torch.ones(2)}, tmp_path / "wide" / "model.safetensors")
    (tmp_path / "wide" / "config.json").write_text("{}")
    with pytest.raises(ArgumentError, match="'b' has no dot in its name"):
        written(tmp_path / "wide", tmp_path)


def test_without_the_package_or_with_one_that_is_too_old_the_layout_is_refused_by_name(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torchao.prototype.safetensors.safetensors_utils as theirs

    with monkeypatch.context() as patch:
        patch.setattr(theirs, "ALLOWED_TENSORS_SUBCLASSES", ["Float8Tensor"])
        with pytest.raises(ImportError, match=r"needs torchao 0\.18 or a later one"):
            written(llama, tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ImportError, match=r"needs the package torchao.* 'fewbits\[export\]'"):
        written(llama, tmp_path)


def test_weights_that_transformers_renames_or_merges_are_refused_by_name(tmp_path: Path) -> None:
    """Under names of the file it loads neither: experts would be drawn at random."""
    with pytest.raises(ArgumentError, match=r"'language_model\.model\..* is 'model\.language_model\.layers"):
        written(saved_llava(tmp_path / "llava"), tmp_path, "int8_channel")
    mixtral = saved_mixtral(tmp_path / "mixtral")
    with pytest.raises(
        ArgumentError, match=r"experts\.0\.w.\.weight' is a part of 'model\.layers\.0\.mlp\.exp"
    ):
        written(mixtral, tmp_path, "int8_channel")
    assert not (tmp_path / "narrow").exists()
    narrow = written(mixtral, tmp_path, "int8_channel", exclude=["*.experts.*"])
    restore(narrow, tmp_path / "back")
    model, expected = loaded(narrow), logits(loaded(tmp_path / "back"))
    torch.testing.assert_close(logits(model).float(), expected.float(), rtol=0.05, atol=0.01)
