"""ModelOpt: NVFP4 weights that the converter of compressed-tensors reads, and vLLM by the same names."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import fewbits as fb
from fewbits.errors import ArgumentError, DataError
from fewbits.files import cast, inspect, restore
from fewbits.files import load_file as load_narrow
from tests.files.layouts.models import saved_llama

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
UP = "model.layers.0.mlp.up_proj.weight"


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("transformers")
    return saved_llama(tmp_path_factory.mktemp("llama") / "wide")


def written(llama: Path, folder: Path, **choices: Any) -> Path:
    cast(llama, folder / "narrow", **({"format": "nvfp4", "layout": "modelopt"} | choices))
    assert not inspect(folder / "narrow").problems
    return folder / "narrow"


def test_the_converter_of_compressed_tensors_reads_the_weights(llama: Path, tmp_path: Path) -> None:
    pytest.importorskip("compressed_tensors")
    from compressed_tensors.compressors.nvfp4.base import NVFP4PackedCompressor
    from compressed_tensors.entrypoints.convert import ModelOptNvfp4Converter
    from compressed_tensors.quantization.quant_scheme import preset_name_to_scheme

    narrow, wide = written(llama, tmp_path, fuse=False), load_file(llama / "model.safetensors")
    stored = load_file(narrow / "model.safetensors")
    converter = ModelOptNvfp4Converter(targets=["re:.*_proj$"], ignore=["lm_head"])
    converted = converter.validate(dict(stored))
    scheme = preset_name_to_scheme("NVFP4A16", ["Linear"])
    names = [name for name in wide if name.endswith("_proj.weight")]
    assert len(names) == 14
    for name in names:
        module = name.removesuffix("weight")
        local = {leaf: converted[module + leaf] for leaf in ("weight_packed", "weight_scale")}
        local["weight_global_scale"] = converted[module + "weight_global_scale"].reshape(1)
        found = NVFP4PackedCompressor.decompress(local, scheme)["weight"]
        expected = fb.fake_quantize(wide[name], "nvfp4")
        torch.testing.assert_close(found, expected, rtol=0.004, atol=0)
        assert not torch.equal(expected, wide[name])


def test_names_dtypes_and_both_configs_are_those_of_the_tool(llama: Path, tmp_path: Path) -> None:
    narrow, wide = (
        written(llama, tmp_path, exclude=["*.1.mlp.up_proj*"]),
        load_file(llama / "model.safetensors"),
    )
    stored = load_file(narrow / "model.safetensors")
    assert (stored[UP].dtype, tuple(stored[UP].shape)) == (torch.uint8, (128, 32))
    assert (stored[UP + "_scale"].dtype, tuple(stored[UP + "_scale"].shape)) == (
        torch.float8_e4m3fn,
        (128, 4),
    )
    outer = stored[UP + "_scale_2"]
    assert (outer.dtype, tuple(outer.shape)) == (torch.float32, ())
    together = [wide[UP], wide[UP.replace("up_proj", "gate_proj")]]
    amax = max(x.abs().max().float() for x in together)
    torch.testing.assert_close(outer, amax / 2688)  # fused by default
    own = json.loads((narrow / "hf_quant_config.json").read_text())
    assert own["producer"]["name"] == "modelopt"
    assert own["quantization"]["quant_algo"] == "W4A16_NVFP4"
    assert own["quantization"]["exclude_modules"] == ["lm_head", "model.layers.1.mlp.up_proj"]
    told = json.loads((narrow / "config.json").read_text())["quantization_config"]
    assert told == {"quant_method": "modelopt", "producer": own["producer"], **own["quantization"]}


def test_back_restores_every_value(llama: Path, tmp_path: Path) -> None:
    narrow, wide = written(llama, tmp_path, fuse=False), load_file(llama / "model.safetensors")
    restore(narrow, tmp_path / "back")
    back = load_file(tmp_path / "back" / "model.safetensors")
    assert set(back) == set(wide)
    for name, x in wide.items():
        assert torch.equal(back[name], fb.fake_quantize(x, "nvfp4") if "_proj" in name else x)
    for name, tensor in load_narrow(narrow).items():
        dense = tensor.dequantize() if isinstance(tensor, fb.NarrowTensor) else tensor
        assert torch.equal(dense, back[name])
    assert not (tmp_path / "back" / "hf_quant_config.json").exists()


def test_a_folder_whose_words_are_in_the_file_of_the_tool_alone_is_read(llama: Path, tmp_path: Path) -> None:
    narrow, wide = written(llama, tmp_path, fuse=False), load_file(llama / "model.safetensors")
    told = json.loads((narrow / "config.json").read_text())
    del told["quantization_config"]  # as earlier versions of the tool left it
    (narrow / "config.json").write_text(json.dumps(told))
    with pytest.raises(ArgumentError, match="was cast already"):
        cast(narrow, tmp_path / "again", format="mxfp4")
    restore(narrow, tmp_path / "back")
    back = load_file(tmp_path / "back" / "model.safetensors")
    assert set(back) == set(wide)
    assert torch.equal(back[UP], fb.fake_quantize(wide[UP], "nvfp4"))
    assert not (tmp_path / "back" / "hf_quant_config.json").exists()


def test_scales_of_activations_stay(llama: Path, tmp_path: Path) -> None:
    narrow = written(llama, tmp_path)
    tensors = load_file(narrow / "model.safetensors")
    tensors[UP.replace("weight", "input_scale")] = torch.tensor(0.5)
    save_file(tensors, narrow / "model.safetensors", {"format": "pt"})
    restore(narrow, tmp_path / "back")
    assert UP.replace("weight", "input_scale") in load_file(tmp_path / "back" / "model.safetensors")


def test_weights_for_inputs_of_another_scale_are_not_taken_for_the_models(
    llama: Path, tmp_path: Path
) -> None:
    """AWQ divides a weight by what its inputs are multiplied by as the model runs."""
    narrow = written(llama, tmp_path)
    tensors = load_file(narrow / "model.safetensors")
    tensors[UP.replace("weight", "pre_quant_scale")] = torch.full((64,), 0.5)
    save_file(tensors, narrow / "model.safetensors", {"format": "pt"})
    assert len(inspect(narrow).problems) == 1
    with pytest.raises(DataError, match=r"up_proj\.weight': its inputs are multiplied by 'pre_quant_scale'"):
        restore(narrow, tmp_path / "back")
    assert not (tmp_path / "back").exists()


def test_what_has_no_place_is_refused_by_name(llama: Path, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="layout='modelopt' has no mxfp4; it has nvfp4"):
        written(llama, tmp_path, format="mxfp4")


def test_a_config_that_another_layout_left_is_not_kept_beside_other_weights(
    llama: Path, tmp_path: Path
) -> None:
    pytest.importorskip("compressed_tensors")
    narrow = written(llama, tmp_path)
    written(llama, tmp_path)  # the same again is written over
    for layout in ("compressed-tensors", None):
        with pytest.raises(ArgumentError, match=r"holds 'hf_quant_config.json', .* another cast; remove it"):
            cast(llama, narrow, format="nvfp4", layout=layout)
