"""Attention that rounds nothing is torch's, for every argument that torch's takes."""

import copy
from typing import Any

import pytest
import torch
from torch import nn

from fewbits.errors import ArgumentError
from fewbits.nn import prepare
from tests.nn.prepared_layers import narrowed

N, L, S, E, HEADS = 3, 4, 5, 8, 2
CAUSAL = torch.ones(L, L).triu(1).bool()
FLOATS = torch.linspace(-2, 1, L * S).reshape(L, S)
PADDING = torch.arange(S).expand(N, S) >= torch.tensor([[5], [2], [4]])

LAYERS: dict[str, dict[str, Any]] = {
    "plain": {},
    "batch-first": {"batch_first": True},
    "no-bias": {"bias": False},
    "bias-kv": {"add_bias_kv": True},
    "zero-attn": {"add_zero_attn": True},
    "kv-and-zero": {"add_bias_kv": True, "add_zero_attn": True, "batch_first": True},
    "widths": {"kdim": 6, "vdim": 7},
    "widths-bias-kv": {"kdim": 6, "vdim": 7, "add_bias_kv": True, "batch_first": True},
    "dropout": {"dropout": 0.5},
}
CALLS: dict[str, dict[str, Any]] = {
    "default": {},
    "no-weights": {"need_weights": False},
    "weights-of-heads": {"average_attn_weights": False},
    "float-mask": {"attn_mask": FLOATS},
    "bool-mask": {"attn_mask": torch.ones(L, S).triu(2).bool()},
    "mask-of-heads": {"attn_mask": torch.linspace(-3, 3, N * HEADS * L * S).reshape(N * HEADS, L, S)},
    "padding": {"key_padding_mask": PADDING},
    "padding-no-weights": {"key_padding_mask": PADDING, "need_weights": False},
    "both": {"key_padding_mask": PADDING.float() * -3, "attn_mask": FLOATS},
}


def inputs(layer: nn.MultiheadAttention) -> list[torch.Tensor]:
    torch.manual_seed(1)
    sizes = ((L, layer.embed_dim), (S, layer.kdim), (S, layer.vdim))
    return [torch.randn(*((N, n) if layer.batch_first else (n, N)), e) for n, e in sizes]


def results(layer: nn.Module, given: list[torch.Tensor], **call: Any) -> list[torch.Tensor]:
    """Return outputs, weights, and all gradients of a loss that weighs them unevenly."""
    torch.manual_seed(2)
    leaves = [x.clone().requires_grad_() for x in given]
    found = [x for x in layer(*leaves, **call) if x is not None]
    loss = sum((x * torch.linspace(-1, 2, x.numel()).reshape(x.shape)).sum() for x in found)
    return found + list(torch.autograd.grad(loss, [*leaves, *layer.parameters()], allow_unused=True))


def same(layer: nn.Module, given: list[torch.Tensor], **call: Any) -> None:
    for p in layer.parameters():
        nn.init.normal_(p, std=0.5)  # biases too, which torch makes zero
    wanted = results(layer, given, **call)
    found = results(narrowed(copy.deepcopy(layer)), given, **call)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)
def test_without_rounding_attention_is_torchs(layer: dict[str, Any], call: dict[str, Any]) -> None:
    attention = nn.MultiheadAttention(E, HEADS, **layer)
    same(attention, inputs(attention), **call)


@pytest.mark.parametrize("need_weights", [True, False])
def test_self_attention_with_a_causal_hint_is_torchs(need_weights: bool) -> None:
    attention = nn.MultiheadAttention(E, HEADS, batch_first=True)
    x = torch.randn(N, L, E)
    same(attention, [x, x, x], attn_mask=CAUSAL, is_causal=True, need_weights=need_weights)


@pytest.mark.parametrize("call", [{}, {"average_attn_weights": False}, {"attn_mask": FLOATS}])
def test_unbatched_attention_is_torchs(call: dict[str, Any]) -> None:
    attention = nn.MultiheadAttention(E, HEADS)
    same(attention, [x[:, 0] for x in inputs(attention)], **call)
    same(
        attention,
        [x[:, 0] for x in inputs(attention)],
        key_padding_mask=PADDING[1],
        **call | {"attn_mask": None},
    )


def test_a_query_that_may_attend_to_nothing_gets_nothing() -> None:
    attention = narrowed(nn.MultiheadAttention(E, HEADS))
    found = results(attention, inputs(attention), key_padding_mask=torch.ones(N, S, dtype=torch.bool))
    assert all(x.isfinite().all() for x in found)
    assert not found[1].any()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"is_causal": True}, "there is none; give the mask"),
        ({"attn_mask": FLOATS[0]}, r"attn_mask has shape \(5,\); expected \(4, 5\) or \(6, 4, 5\)"),
        ({"attn_mask": FLOATS.int()}, "attn_mask has dtype torch.int32; expected torch.bool"),
        ({"key_padding_mask": PADDING[:2]}, r"key_padding_mask has shape \(2, 5\); expected \(3, 5\)"),
        ({"value": torch.zeros(4, N, E)}, "key and value of one length"),
    ],
)
def test_masks_that_do_not_fit_are_refused(call: dict[str, Any], message: str) -> None:
    attention = narrowed(nn.MultiheadAttention(E, HEADS))
    query, key, value = inputs(attention)
    with pytest.raises(ArgumentError, match=message):
        attention(**{"query": query, "key": key, "value": value} | call)


@pytest.mark.parametrize("norm_first", [False, True])
def test_inference_of_a_transformer_computes_what_training_computes(norm_first: bool) -> None:
    layer = nn.TransformerEncoderLayer(E, HEADS, 16, 0.0, batch_first=True, norm_first=norm_first)
    # Where 16-bit floats flow, hooks of the norms keep torch from its fused path already.
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not norm_first)
    model = prepare(encoder, "mxfp4:vector=fp32")
    x, padding = torch.randn(N, S, E), PADDING
    with torch.no_grad():
        trained = model(x, src_key_padding_mask=padding)
        torch.testing.assert_close(model.eval()(x, src_key_padding_mask=padding), trained, rtol=0, atol=0)
        narrow = model(x)
        for one in model.layers:
            one.activation_relu_or_gelu = (
                1  # what torch had there: the fused path reads the weights as they are
            )
        assert (model(x) - narrow).abs().max() > 0.01


def test_a_whole_transformer_trains() -> None:
    model = prepare(nn.Transformer(E, HEADS, 1, 1, 16, batch_first=True), "mxfp6")
    model(torch.randn(N, S, E), torch.randn(N, L, E)).sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
