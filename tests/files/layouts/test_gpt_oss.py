"""gpt-oss: experts that transformers dequantizes to the same bits."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import fewbits as fb
from fewbits.errors import ArgumentError
from fewbits.files import cast, inspect, restore
from fewbits.files import load_file as load_narrow
from tests.files.layouts.models import SIZES, loaded, logits, saved_llama

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
EXPERTS = "model.layers.1.mlp.experts"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    sizes = SIZES | {"intermediate_size": 96, "head_dim": 16, "num_local_experts": 4}
    config = transformers.GptOssConfig(**sizes, num_experts_per_tok=2, pad_token_id=0)
    folder = tmp_path_factory.mktemp("gpt") / "wide"
    transformers.GptOssForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


def written(model: Path, folder: Path, **choices: Any) -> Path:
    cast(model, folder / "narrow", **({"format": "mxfp4", "layout": "gpt-oss"} | choices))
    assert not inspect(folder / "narrow").problems
    return folder / "narrow"


def experts_of(model: Path) -> dict[str, torch.Tensor]:
    tensors = load_file(model / "model.safetensors")
    return {n: x for n, x in tensors.items() if n.endswith(("experts.gate_up_proj", "experts.down_proj"))}


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_transformers_loads_the_experts_bit_for_bit_and_computes_the_same(
    model: Path, tmp_path: Path
) -> None:
    narrow = written(model, tmp_path)
    wide = experts_of(model)
    expected = {n: fb.quantize(x, "mxfp4", axis=1).dequantize() for n, x in wide.items()}
    assert len(expected) == 4
    found = loaded(narrow)
    for name, x in expected.items():
        assert torch.equal(found.state_dict()[name], x)
        assert not torch.equal(
            x, fb.quantize(wide[name], "mxfp4").dequantize()
        )  # blocks along the other axis
    dense = loaded(model)
    before = logits(dense)
    dense.load_state_dict(expected, strict=False)
    assert torch.equal(logits(found), logits(dense))
    assert not torch.equal(before, logits(dense))


def test_names_shapes_and_config_are_those_of_the_published_checkpoints(model: Path, tmp_path: Path) -> None:
    narrow = written(model, tmp_path)
    stored = load_file(narrow / "model.safetensors")
    assert stored[f"{EXPERTS}.gate_up_proj_blocks"].shape == (4, 192, 2, 16)
    assert stored[f"{EXPERTS}.gate_up_proj_scales"].shape == (4, 192, 2)
    assert stored[f"{EXPERTS}.down_proj_blocks"].shape == (4, 64, 3, 16)
    assert stored[f"{EXPERTS}.down_proj_bias"].dtype == torch.bfloat16
    told = json.loads((narrow / "config.json").read_text())["quantization_config"]
    assert told["quant_method"] == "mxfp4"
    assert "lm_head" in told["modules_to_not_convert"]


@pytest.mark.parametrize("piece", [64, 1500])
def test_back_restores_and_pieces_change_no_byte(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: Any
) -> None:
    whole = (written(model, tmp_path) / "model.safetensors").read_bytes()
    monkeypatch.setattr("fewbits.files.piecewise.PIECE_VALUES", piece)
    (tmp_path / "pieces").mkdir()
    narrow = written(model, tmp_path / "pieces")
    assert (narrow / "model.safetensors").read_bytes() == whole
    restore(narrow, tmp_path / "back")
    back, wide = load_file(tmp_path / "back" / "model.safetensors"), load_file(model / "model.safetensors")
    assert set(back) == set(wide)
    for name, x in wide.items():
        is_cast = name in experts_of(model)
        assert torch.equal(back[name], fb.quantize(x, "mxfp4", axis=1).dequantize() if is_cast else x)
    assert "quantization_config" not in json.loads((tmp_path / "back" / "config.json").read_text())
    for name, tensor in load_narrow(narrow).items():
        dense = tensor.dequantize() if isinstance(tensor, fb.NarrowTensor) else tensor
        assert torch.equal(dense, back[name])
    about = {t.tensor: t for t in inspect(narrow).tensors}
    assert (about[f"{EXPERTS}.down_proj"].shape, about[f"{EXPERTS}.down_proj"].format) == (
        (4, 96, 64),
        "mxfp4",
    )


def test_one_expert_at_a_time_is_in_memory(tmp_path: Path) -> None:
    experts, of_expert = 24, 2 * 512 * 1024  # bytes
    source = tmp_path / "wide"
    source.mkdir()
    x = torch.randn(experts, 512, 1024, dtype=torch.bfloat16)
    save_file({f"{EXPERTS}.down_proj": x}, source / "model.safetensors")
    (source / "config.json").write_text('{"model_type": "gpt_oss", "dtype": "bfloat16"}')
    del x
    cast(source, tmp_path / "first", format="mxfp4", layout="gpt-oss")  # what is imported once
    tracemalloc.start()
    try:
        cast(source, tmp_path / "narrow", format="mxfp4", layout="gpt-oss")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        restore(tmp_path / "narrow", tmp_path / "back")
        peak_back = tracemalloc.get_traced_memory()[1]
        held = [bytes(of_expert) for _ in range(12)]
        assert tracemalloc.get_traced_memory()[1] > 12 * of_expert  # the control: the measure sees them
    finally:
        tracemalloc.stop()
    assert len(held) == 12
    assert of_expert < peak < 6 * of_expert
    assert peak_back < 6 * of_expert


def test_what_has_no_place_is_refused_by_name(model: Path, tmp_path: Path) -> None:
    llama = saved_llama(tmp_path / "llama")
    for source, choices, told in (
        (model, {"format": "nvfp4"}, "layout='gpt-oss' has no nvfp4; it has mxfp4"),
        (model, {"exclude": ["*.0.mlp.experts.down_proj"]}, "would stay wide, and layout='gpt-oss' has all"),
        (llama, {}, "no tensor would be cast"),
    ):
        with pytest.raises(ArgumentError, match=told):
            written(source, tmp_path, **choices)
    config = json.loads((model / "config.json").read_text())
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "model.safetensors").write_bytes((model / "model.safetensors").read_bytes())
    (tmp_path / "other" / "config.json").write_text(json.dumps(config | {"model_type": "mixtral"}))
    with pytest.raises(ArgumentError, match="has no model_type 'mixtral'; it has gpt_oss alone"):
        written(tmp_path / "other", tmp_path)
