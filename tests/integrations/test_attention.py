"""Narrow attention of Hugging Face's models, judged by the same products written by hand."""

import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import fewbits as fb
from tests.integrations.test_loading import IDS, TINY, llama

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its imports warn
    import transformers

    from fewbits.integrations.transformers import RecipeTrainer, narrow_attention
pytestmark = pytest.mark.filterwarnings("ignore")


def by_hand(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, format: str) -> torch.Tensor:
    """Return causal attention of (heads, time, features) whose four operands are rounded."""

    def rounded(x: torch.Tensor, axis: int) -> torch.Tensor:
        return fb.fake_quantize(x, format, axis=axis, overflow="saturate")

    scores = rounded(q, -1) @ rounded(k, -1).mT / math.sqrt(q.shape[-1])
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return rounded(scores.masked_fill(later, -math.inf).softmax(-1), -1) @ rounded(v, -2)


def test_both_products_round_their_operands() -> None:
    """One layer of the registry, called as a model calls it."""
    model = llama()
    fb.prepare(
        model, "mx:weight=fp32,activation=mxfp4,gradient=fp32,vector=fp32", include="model.layers.0.mlp.*"
    )
    narrow_attention(model)
    function = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS["fewbits"]
    q, k, v = torch.randn(3, 1, 4, 10, 16, generator=torch.Generator().manual_seed(0))
    mask = torch.full((10, 10), -math.inf).triu(1)[None, None]
    module = model.model.layers[1].self_attn
    mixed, _ = function(module, q, k[:, :2], v[:, :2], mask, scaling=0.25)
    keys, values = (x[0, :2].repeat_interleave(2, 0) for x in (k, v))
    expected = by_hand(q[0], keys, values, "mxfp4")
    torch.testing.assert_close(mixed[0].transpose(0, 1), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("config", "model"),
    [
        (transformers.LlamaConfig, transformers.LlamaForCausalLM),
        (transformers.BertConfig, transformers.BertForMaskedLM),
        (transformers.Gemma2Config, transformers.Gemma2ForCausalLM),  # limits its scores
    ],
)
def test_wide_formats_change_nothing_and_narrow_ones_do(config: Any, model: Any) -> None:
    def made(recipe: str) -> Any:
        torch.manual_seed(0)
        created = model(config(**TINY)).eval()
        fb.prepare(
            created, recipe, exclude="*embed_tokens" if model is transformers.Gemma2ForCausalLM else ()
        )
        return created

    eager = made("fp32")
    eager.set_attn_implementation("eager")
    wide = narrow_attention(made("fp32"))
    torch.testing.assert_close(wide(IDS).logits, eager(IDS).logits, rtol=1e-5, atol=1e-5)
    # Positions that follow a wide embedding are wide, and attention of transformers' own takes no mixture.
    same = "mxfp4:vector=fp32" if model is transformers.Gemma2ForCausalLM else "mxfp4"
    assert not torch.equal(narrow_attention(made(same))(IDS).logits, made(same)(IDS).logits)
    narrow = narrow_attention(made("mxfp4"))
    assert narrow(IDS).logits.isfinite().all()
    narrow.train()(IDS, labels=IDS).loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in narrow.parameters())


def test_words_about_other_things_are_left_alone(tmp_path: Path) -> None:
    """Models hand on to their attention what they were called with, as the Trainer's count of labels."""
    narrow = narrow_attention(fb.prepare(llama(), "fp32"))
    hidden = narrow(IDS, output_hidden_states=True, output_attentions=True).hidden_states
    for mine, theirs in zip(hidden, llama()(IDS, output_hidden_states=True).hidden_states, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)
    torch.manual_seed(0)
    experts = {"num_local_experts": 2, "num_experts_per_tok": 1}
    mixture = transformers.MixtralForCausalLM(transformers.MixtralConfig(**TINY | experts)).eval()
    expected = mixture(IDS, output_router_logits=True)
    found = narrow_attention(fb.prepare(mixture, "fp32"))(IDS, output_router_logits=True)
    torch.testing.assert_close(found.logits, expected.logits, rtol=1e-5, atol=1e-5)
    options = {"max_steps": 1, "report_to": [], "disable_tqdm": True, "save_strategy": "no", "use_cpu": True}
    trained = RecipeTrainer(
        narrow_attention(fb.prepare(llama(), "mxfp8")),
        transformers.TrainingArguments(str(tmp_path), **options),
        train_dataset=[{"input_ids": row, "labels": row} for row in IDS],
    )
    assert math.isfinite(trained.train().training_loss)


def test_a_mask_of_booleans_says_what_takes_part() -> None:
    seen = torch.ones(12, 12, dtype=torch.bool).tril()[None, None].repeat(2, 1, 1, 1)
    seen[0, :, 4:, 2] = False
    expected = llama()(IDS, attention_mask=seen).logits  # by scaled_dot_product_attention of torch
    found = narrow_attention(fb.prepare(llama(), "fp32"))(IDS, attention_mask=seen).logits
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(fb.ArgumentError, match="was not prepared"):
        narrow_attention(llama())
    model = narrow_attention(fb.prepare(llama(), "mxfp8"))
    function = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS["fewbits"]
    x = torch.zeros(1, 4, 2, 16)
    with pytest.raises(fb.ArgumentError, match="s_aux"):
        function(model.model.layers[0].self_attn, x, x, x, None, s_aux=torch.zeros(4))
    with pytest.raises(fb.ArgumentError, match="are narrow already"):
        fb.nn.narrow_products(model)
    looked_at = fb.nn.narrow_products(fb.prepare(llama(), "mxfp8"))
    with pytest.raises(fb.ArgumentError, match="are narrow already, by narrow_products"):
        narrow_attention(looked_at)
    assert looked_at.config._attn_implementation != "fewbits"
    other = llama()
    other.set_attn_implementation("fewbits")
    with pytest.raises(fb.ArgumentError, match="without a recipe"):
        other(IDS)
