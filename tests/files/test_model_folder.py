"""A folder of a model stays one after a cast and back: its config, and the files beside the tensors."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

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


def test_words_about_weights_that_were_narrow_before_are_replaced(wide: Path, tmp_path: Path) -> None:
    told = CONFIG | {"quantization_config": {"quant_method": "gptq", "bits": 4}}
    (wide / "config.json").write_text(json.dumps(told))
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
