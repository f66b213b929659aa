"""Tiny models of other people's classes, and what loading a folder of one says."""

from pathlib import Path
from typing import Any

import torch

SIZES = {
    "vocab_size": 64,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
TOKENS = torch.arange(12).reshape(1, 12)


def saved_llama(folder: Path, **changes: Any) -> Path:
    """Save a Llama with weights drawn from a seed, and a few files beside it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    shard = changes.pop("max_shard_size", "5GB")
    dtype = changes.pop("dtype", torch.bfloat16)
    model = LlamaForCausalLM(LlamaConfig(**(SIZES | changes))).to(dtype)
    model.save_pretrained(folder, max_shard_size=shard)
    (folder / "tokenizer_config.json").write_text('{"model_max_length": 64}')
    return folder


def saved_llava(folder: Path) -> Path:
    """Save a Llava, whose modules transformers names otherwise than the file does."""
    from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

    torch.manual_seed(0)
    sight = SIZES | {"num_hidden_layers": 1, "image_size": 32, "patch_size": 16}
    config = LlavaConfig(text_config=LlamaConfig(**SIZES), vision_config=CLIPVisionConfig(**sight))
    LlavaForConditionalGeneration(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


def saved_mixtral(folder: Path) -> Path:
    """Save a Mixtral, whose experts transformers makes one parameter of."""
    from transformers import MixtralConfig, MixtralForCausalLM

    torch.manual_seed(0)
    config = MixtralConfig(**SIZES, num_local_experts=3, num_experts_per_tok=2)
    MixtralForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


def loaded(folder: Path, **choices: Any) -> Any:
    """Load a model as its users do; every tensor of it has to be there, and no other."""
    from transformers import AutoModelForCausalLM

    model, told = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, **choices)
    assert not told["missing_keys"], told
    assert not told["unexpected_keys"], told
    assert not told["mismatched_keys"], told
    return model


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        return model(TOKENS).logits


def with_weights(folder: Path, weights: dict[str, torch.Tensor]) -> Any:
    """Return the wide model with some weights replaced, in BF16."""
    model = loaded(folder, dtype=torch.bfloat16)
    told = model.load_state_dict(weights, strict=False)
    assert not told.unexpected_keys
    return model
