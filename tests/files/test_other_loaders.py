"""What loads tensors by name finds an empty one for each narrow tensor, and stops instead of drawing it."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from fewbits.files import cast, restore
from tests.files.rewritten import as_version_1

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1}
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, **heads))
    folder = tmp_path_factory.mktemp("llama")
    model.save_pretrained(folder / "one")
    model.save_pretrained(folder / "several", max_shard_size="20KB")
    return folder


def beside(source: Path, narrow: Path, **choices: Any) -> Path:
    """Cast, and put the wide model's config there, as somebody does to whom fewbits says nothing."""
    cast(source, narrow, **choices)
    shutil.copy(source / "config.json", narrow)
    return narrow


# 4-bit codes; codes as many and as wide as bytes; one layer alone.
CASTS = [
    {"format": "mxfp4"},
    {"format": "fp8_e4m3"},
    {"map": {"*.1.mlp.up_proj.weight": "int8_channel"}},
]


@pytest.mark.parametrize("choices", CASTS)
@pytest.mark.parametrize("kind", ["one", "several"])
def test_hugging_faces_loader_raises_where_it_would_draw_weights_at_random(
    llama: Any, tmp_path: Path, kind: Any, choices: Any
) -> None:
    narrow = beside(llama / kind, tmp_path / "narrow", **choices)
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        transformers.AutoModelForCausalLM.from_pretrained(narrow)
    with pytest.raises(RuntimeError, match="ignore_mismatched_sizes"):
        transformers.LlamaModel.from_pretrained(narrow, dtype=torch.bfloat16)


def test_the_same_file_without_empty_tensors_is_drawn_at_random(
    llama: Any, tmp_path: Path
) -> None:  # the control
    narrow = beside(llama / "one", tmp_path / "narrow", format="mxfp4")
    as_version_1(narrow / "model.safetensors")
    drawn = transformers.AutoModelForCausalLM.from_pretrained(narrow)
    sound = transformers.AutoModelForCausalLM.from_pretrained(llama / "one")
    assert not torch.equal(drawn.lm_head.weight, sound.lm_head.weight)


@pytest.mark.parametrize("kind", ["one", "several"])
def test_what_was_cast_back_loads(llama: Any, tmp_path: Path, kind: Any) -> None:
    narrow = beside(llama / kind, tmp_path / "narrow", format="mxfp8_e4m3")
    restore(narrow, tmp_path / "back")
    found = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "back")
    sound = transformers.AutoModelForCausalLM.from_pretrained(llama / kind)
    assert 0 < (found.lm_head.weight - sound.lm_head.weight).abs().max() < 0.01


def test_accelerate_and_torch_raise_too(llama: Any, tmp_path: Path) -> None:
    from accelerate import load_checkpoint_in_model
    from safetensors.torch import load_file

    narrow = beside(llama / "one", tmp_path / "narrow", format="mxfp4")
    model = transformers.LlamaForCausalLM.from_pretrained(llama / "one")
    with pytest.raises((RuntimeError, ValueError), match=r"shape torch.Size\(\[0\]\)"):
        load_checkpoint_in_model(model, str(narrow))
    with pytest.raises(RuntimeError, match="size mismatch for lm_head"):
        model.load_state_dict(load_file(narrow / "model.safetensors"), strict=False)
