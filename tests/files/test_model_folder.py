"""A folder of a model stays one after a cast and back: its config, and the files beside the tensors."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from fewbits.compare.checkpoint import measure_checkpoint
from fewbits.compare.pruned_checkpoint import prune_checkpoint
from fewbits.errors import ArgumentError, DataError
from fewbits.files import cast, restore

CONFIG = {"architectures": ["Own"], "dtype": "float32"}
BESIDE = {
    "tokenizer.json": b'{"version": "1.0"}',
    "tokenizer_config.json": b"{}",
    "generation_config.json": b'{"max_new_tokens": 7}',
    "vocab.txt": b"a\nb\n",
    "chat_template.jinja": b"{{ messages }}",
    "tokenizer.model": bytes(range(256)),
}


@pytest.fixture
def wide(tmp_path: Path) -> Path:
    folder = tmp_path / "wide"
    folder.mkdir()
    save_file({"a.weight": torch.randn(4, 32)}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    for name, octets in BESIDE.items():
        (folder / name).write_bytes(octets)
    (folder / "modeling_own.py").write_text("raise SystemExit")
    (folder / "notes.md").write_text("not needed to load")
    return folder


def config(folder: Path) -> Any:
    return json.loads((folder / "config.json").read_text())


def names(folder: Path) -> set[str]:
    return {file.name for file in folder.iterdir()}


def test_what_a_model_needs_to_load_goes_along_and_back(wide: Path, tmp_path: Path) -> None:
    cast(wide, tmp_path / "narrow", format="mxfp4")
    restore(tmp_path / "narrow", tmp_path / "back")
    for folder in (tmp_path / "narrow", tmp_path / "back"):
        assert names(folder) == {"model.safetensors", "config.json", *BESIDE}  # no code
        for name, octets in BESIDE.items():
            assert (folder / name).read_bytes() == octets
    assert config(tmp_path / "narrow") == CONFIG | {"quantization_config": {"quant_method": "fewbits"}}
    assert config(tmp_path / "back") == CONFIG
    assert config(wide) == CONFIG


FP8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
MLX = {"group_size": 64, "bits": 4}
WORDS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {  # config.json, files beside it, what is said
    "the method": ({"quantization_config": FP8}, {}, r"'quantization_config' in .*config\.json .*\(fp8\)"),
    "of a part": ({"text_config": {"quantization_config": FP8}}, {}, r"\(fp8\)"),
    "MLX": ({"quantization": MLX}, {}, r"'quantization' in .*config\.json"),
    "compressed-tensors, at first": ({"compression_config": {"quant_method": "sparseml"}}, {}, "sparseml"),
    "ModelOpt": ({}, {"hf_quant_config.json": {"quantization": {"quant_algo": "FP8"}}}, "hf_quant_config"),
    "AutoGPTQ": ({}, {"quantize_config.json": {"bits": 4}}, r"quantize_config\.json says"),
    "AutoAWQ": ({}, {"quant_config.json": {"w_bit": 4}}, r"quant_config\.json says"),
}
LAYOUT_FORMATS = {
    None: "mxfp4",
    "compressed-tensors": "mxfp4",
    "gguf": "mxfp4",
    "gpt-oss": "mxfp4",
    "modelopt": "nvfp4",
    "torchao": "mxfp4",
}


def says(folder: Path, told: dict[str, Any], beside: dict[str, Any], end: str = "_scale_inv") -> None:
    """Let a folder hold FP8 codes with their scales, and words about them."""
    codes, scales = torch.randn(128, 128).to(torch.float8_e4m3fn), torch.full((1, 1), 0.01)
    save_file({"a.weight": codes, f"a.weight{end}": scales}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CONFIG | told))
    for name, words in beside.items():
        (folder / name).write_text(json.dumps(words))


@pytest.mark.parametrize("case", WORDS)
def test_codes_of_another_tool_are_not_taken_for_values(wide: Path, tmp_path: Path, case: str) -> None:
    told, beside, where = WORDS[case]
    says(wide, told, beside)
    for source, to in ((wide, "narrow"), (wide / "model.safetensors", "narrow.safetensors")):
        with pytest.raises(ArgumentError, match=where + ".*; give the model that it was made from"):
            cast(source, tmp_path / to, format="mxfp4")
        assert not (tmp_path / to).exists()
    with pytest.raises(ArgumentError, match=where):
        measure_checkpoint(wide, ["mxfp4"])
    with pytest.raises(ArgumentError, match=where):
        prune_checkpoint(wide, None, "2:4")


@pytest.mark.parametrize("layout", LAYOUT_FORMATS)
def test_codes_of_another_tool_become_no_layout(wide: Path, tmp_path: Path, layout: str | None) -> None:
    says(wide, {"quantization_config": FP8}, {})
    to = tmp_path / ("narrow.gguf" if layout == "gguf" else "narrow")
    with pytest.raises(ArgumentError, match=r"'quantization_config' in .* quantized \(fp8\)"):
        cast(wide, to, format=LAYOUT_FORMATS[layout], layout=layout)
    assert not to.exists()


@pytest.mark.parametrize("layout", LAYOUT_FORMATS)
@pytest.mark.parametrize("end", ["_scale_inv", "_scale"])
def test_scales_beside_numbers_of_8_bits_say_that_these_are_codes(
    wide: Path, tmp_path: Path, layout: str | None, end: str
) -> None:
    says(wide, {}, {}, end)
    to = tmp_path / ("narrow.gguf" if layout == "gguf" else "narrow")
    said = f"'a.weight' holds numbers of 8 bits .F8_E4M3. whose scales are in 'a.weight{end}'"
    with pytest.raises(ArgumentError, match=said):
        cast(wide, to, format=LAYOUT_FORMATS[layout], layout=layout)
    assert not to.exists()
    with pytest.raises(ArgumentError, match=said):
        measure_checkpoint(wide, ["mxfp4"])
    says(wide, {}, {}, ".scale")  # of another module
    assert measure_checkpoint(wide, ["mxfp4"])


@pytest.mark.parametrize("told", [None, {}, {"quant_method": "fewbits"}])
def test_words_that_say_nothing_of_codes_are_replaced(wide: Path, tmp_path: Path, told: object) -> None:
    (wide / "config.json").write_text(json.dumps(CONFIG | {"quantization_config": told}))
    cast(wide, tmp_path / "narrow", format="mxfp4")
    assert config(tmp_path / "narrow")["quantization_config"] == {"quant_method": "fewbits"}


def test_a_file_has_nothing_beside_it_and_so_has_a_folder_without_a_config(
    wide: Path, tmp_path: Path
) -> None:
    (tmp_path / "to").mkdir()
    cast(wide / "model.safetensors", tmp_path / "to" / "narrow.safetensors", format="mxfp4")
    assert names(tmp_path / "to") == {"narrow.safetensors"}
    (wide / "config.json").unlink()
    cast(wide, tmp_path / "narrow", format="mxfp4")
    assert names(tmp_path / "narrow") == {"model.safetensors"}


def test_the_config_of_another_model_is_not_replaced(wide: Path, tmp_path: Path) -> None:
    (tmp_path / "narrow").mkdir()
    (tmp_path / "narrow" / "config.json").write_text("{}")
    with pytest.raises(ArgumentError, match=r"holds 'config\.json'.*; give an empty folder"):
        cast(wide, tmp_path / "narrow", format="mxfp4")
    assert names(tmp_path / "narrow") == {"config.json"}
    assert config(tmp_path / "narrow") == {}
    (tmp_path / "narrow" / "config.json").unlink()
    for fmt in ("mxfp4", "mxfp6_e2m3"):  # what an earlier run wrote is replaced
        cast(wide, tmp_path / "narrow", format=fmt)


def test_a_config_that_is_none_is_said_before_anything_is_written(wide: Path, tmp_path: Path) -> None:
    (wide / "config.json").write_text("[")
    with pytest.raises(DataError, match=r"config\.json is not JSON"):
        cast(wide, tmp_path / "narrow", format="mxfp4")
    assert not (tmp_path / "narrow").exists()
