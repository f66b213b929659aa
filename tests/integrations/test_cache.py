"""Keys and values in a narrow format: each position rounded once, whatever way it came."""

import warnings
from typing import Any

import pytest
import torch

import fewbits as fb
from tests.integrations.test_loading import IDS, llama

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its imports warn
    import transformers

    from fewbits.integrations.transformers import NarrowCache
pytestmark = pytest.mark.filterwarnings("ignore")


def held(cache: Any) -> list[torch.Tensor]:
    return [x.dequantize() for layer in cache.layers for x in (layer.keys, layer.values)]


def states(count: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(2, 3, count, 40, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("format", ["mxfp4", "mxfp8_e4m3", "mx6", "int8_channel", "bf16"])
@pytest.mark.parametrize("cuts", [(150,), (1,) * 150, (63, 1, 1, 85)])
def test_positions_are_rounded_once_however_they_come(format: str, cuts: tuple[int, ...]) -> None:
    cache = NarrowCache(llama().config, format, values="mxfp8_e5m2")
    keys, values = states(150), states(150, 1)
    for k, v in zip(keys.split(cuts, 2), values.split(cuts, 2), strict=True):
        seen = cache.update(k, v, 0)
    assert torch.equal(seen[0], fb.fake_quantize(keys, format))
    assert torch.equal(seen[1], fb.fake_quantize(values, "mxfp8_e5m2"))
    assert cache.get_seq_length() == 150


def test_a_float32_cache_changes_nothing() -> None:
    model = llama()
    plain = model.generate(IDS, max_new_tokens=20, do_sample=False, eos_token_id=-1)
    cache = NarrowCache(model.config, "fp32")
    assert torch.equal(
        model.generate(IDS, max_new_tokens=20, do_sample=False, eos_token_id=-1, past_key_values=cache), plain
    )
    narrow = NarrowCache(model.config, "float(e=2,m=1)")
    rounded = model(IDS, past_key_values=narrow).logits
    assert (rounded - model(IDS).logits).abs().max() > 1e-3  # the prompt, too, sees what is held


def test_logits_do_not_depend_on_how_the_prompt_was_cut() -> None:
    model = llama()
    whole = model(IDS, past_key_values=NarrowCache(model.config, "mxfp8_e4m3")).logits
    cache = NarrowCache(model.config, "mxfp8_e4m3")
    parts = [model(part, past_key_values=cache).logits for part in IDS.split((7, 1, 4), 1)]
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-4, atol=1e-4)


def test_beams_samples_and_positions_are_taken_as_transformers_takes_them() -> None:
    config = llama().config
    cache, plain = NarrowCache(config, "mxfp8_e4m3"), transformers.DynamicCache(config=config)
    k = fb.fake_quantize(states(70), "mxfp8_e4m3")  # which rounding leaves as it is

    def add(x: torch.Tensor) -> None:
        for layer in range(2):
            assert torch.equal(cache.update(x, x, layer)[0], plain.update(x, x, layer)[0])

    cache.batch_select_indices(torch.tensor([0]))  # of nothing, nothing
    add(k)
    for change in (
        lambda c: c.crop(-6),
        lambda c: c.reorder_cache(torch.tensor([1, 0])),
        lambda c: c.batch_repeat_interleave(2),
        lambda c: c.batch_select_indices(torch.tensor([3, 0, 1])),
    ):
        change(cache)
        change(plain)
        assert cache.get_seq_length() == plain.get_seq_length() == 64
        for mine, theirs in zip(cache.layers, plain.layers, strict=True):
            assert torch.equal(mine.keys.dequantize(), theirs.keys)
    add(k[:1].expand(3, -1, -1, -1))
    cache.reset()
    assert cache.get_seq_length() == 0
    cache.update(k, k, 0)
    assert cache.get_seq_length() == 70


def test_beam_search_runs() -> None:
    model = llama()
    options = {"max_new_tokens": 9, "num_beams": 3, "do_sample": False, "eos_token_id": -1}
    plain = model.generate(IDS, **options)
    assert torch.equal(
        model.generate(IDS, **options, past_key_values=NarrowCache(model.config, "fp32")), plain
    )


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_an_encoders_keys_are_held_too(attention: str) -> None:
    """Models read them past ``update`` from the second step on."""
    torch.manual_seed(0)
    sizes = {"d_model": 64, "vocab_size": 100, "attn_implementation": attention, "decoder_start_token_id": 0}
    t5 = transformers.T5Config(**sizes, d_ff=64, d_kv=16, num_layers=1, num_decoder_layers=3, num_heads=4)
    heads = {f"{part}_{what}": 2 for part in ("encoder", "decoder") for what in ("layers", "attention_heads")}
    bart = transformers.BartConfig(**sizes, **heads, encoder_ffn_dim=64, decoder_ffn_dim=64)
    for model in (
        transformers.T5ForConditionalGeneration(t5).eval(),
        transformers.BartForConditionalGeneration(bart).eval(),
    ):
        answers = []
        for make in (transformers.DynamicCache, lambda c=model.config: NarrowCache(c, "fp32")):
            both = transformers.EncoderDecoderCache(make(), make())
            options = {"max_new_tokens": 8, "min_new_tokens": 8, "do_sample": False}
            answers.append(model.generate(IDS[:1], **options, past_key_values=both))
        assert torch.equal(*answers)


def test_it_takes_the_bytes_of_its_format() -> None:
    cache = NarrowCache(llama().config, "mxfp4")
    cache.update(states(64)[..., :32], states(64)[..., :32], 0)
    assert cache.nbytes() == 2 * (2 * 3 * 64) * (32 // 2 + 1)


def test_positions_of_other_samples_are_refused_before_any_is_held() -> None:
    cache = NarrowCache(llama().config, "mxfp8_e4m3")
    k = states(5)
    cache.update(k, k, 0)
    before = cache.layers[0].keys.dequantize()
    for keys, values in ((k[:1], k[:1]), (k[:, :1], k[:, :1]), (k, k[:1]), (k.repeat(2, 1, 1, 1), k)):
        with pytest.raises(fb.ArgumentError, match="make a new cache for another batch"):
            cache.update(keys, values, 0)
        assert torch.equal(cache.layers[0].keys.dequantize(), before)
    keys, _ = cache.update(k, k, 0)
    assert torch.equal(keys, fb.fake_quantize(torch.cat((k, k), 2), "mxfp8_e4m3"))


def test_formats_and_models_that_cannot_be_are_refused() -> None:
    with pytest.raises(fb.ArgumentError, match=r"config is a LlamaForCausalLM; .* model\.config"):
        NarrowCache(llama(), "mxfp4")
    with pytest.raises(fb.ArgumentError, match="one scale for all positions"):
        NarrowCache(llama().config, "int8_tensor")
    mamba = transformers.Qwen3NextConfig(num_hidden_layers=4)
    with pytest.raises(fb.ArgumentError, match="linear_attention in Qwen3NextConfig"):
        NarrowCache(mamba, "mxfp4")
