"""Experts of Hugging Face's transformers: without rounding they are theirs; rounded, products of operands."""

import copy
from typing import Any

import pytest
import torch

import fewbits as fb
from fewbits.errors import ArgumentError
from fewbits.nn import prepare

transformers = pytest.importorskip("transformers")
# Imports of its own, and of what it finds installed, warn.
pytestmark = pytest.mark.filterwarnings("ignore")

SIZES: dict[str, Any] = {
    "vocab_size": 50,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 32,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
CLASSES = {
    "mixtral": (transformers.MixtralConfig, transformers.MixtralForCausalLM),
    "gpt_oss": (transformers.GptOssConfig, transformers.GptOssForCausalLM),
}


def model(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    config, kind = CLASSES[name]
    made = kind(config(**SIZES, head_dim=16))
    with torch.no_grad():
        for p in made.parameters():
            p.normal_(std=0.2)
    return made


@pytest.mark.parametrize("name", CLASSES)
def test_without_rounding_experts_and_routers_are_theirs(name: str) -> None:
    tokens, found = torch.randint(50, (2, 8)), []
    theirs = model(name)
    # A recipe that swaps every layer and rounds nothing that shows.
    ours = prepare(copy.deepcopy(theirs), "fp32:weight=fp32,schedule=warm_up")
    for one in (theirs, ours):
        loss = one(input_ids=tokens, labels=tokens).loss
        found.append([loss, *torch.autograd.grad(loss, list(one.parameters()), allow_unused=True)])
    kinds = {type(m).__name__ for m in ours.modules()}
    assert any(k.startswith("Narrow") and k.endswith("Experts") for k in kinds)
    assert any(k.startswith("Narrow") and k.endswith("TopKRouter") for k in kinds)
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_the_products_of_an_expert_are_those_of_its_tokens_and_its_slice_of_the_weight() -> None:
    """With all tokens at one expert, a mixture is its two linear layers around the gate."""
    layer = model("mixtral").model.layers[0].mlp.experts
    plain = torch.nn.ModuleList([torch.nn.Linear(32, 96, bias=False), torch.nn.Linear(48, 32, bias=False)])
    plain[0].weight.data.copy_(layer.gate_up_proj[2])
    plain[1].weight.data.copy_(layer.down_proj[2])
    act = copy.deepcopy(layer.act_fn)
    for one in (layer, plain):  # either has another last layer
        prepare(one, "mxfp4:logit_gradient=yes")
    x = torch.randn(33, 32)
    y = layer(x, torch.full((33, 1), 2), torch.ones(33, 1))
    gate, up = plain[0](x).chunk(2, -1)
    wanted = plain[1](act(gate) * up)
    assert torch.equal(y, wanted.float())
    y.square().sum().backward()
    wanted.float().square().sum().backward()
    for mine, theirs in ((layer.gate_up_proj, plain[0].weight), (layer.down_proj, plain[1].weight)):
        assert torch.equal(mine.grad[2], theirs.grad)
        assert not mine.grad[[0, 1, 3]].any()


def test_a_routers_product_takes_rounded_operands() -> None:
    layer = prepare(model("mixtral").model.layers[0].mlp.gate, "mxfp4:vector=fp32")
    x = torch.randn(6, 32)
    wanted = (
        fb.fake_quantize(x, "mxfp4").double() @ fb.fake_quantize(layer.weight.detach(), "mxfp4").double().T
    )
    torch.testing.assert_close(layer(x)[0].double(), wanted, rtol=1e-5, atol=1e-5)


def test_a_router_that_multiplies_in_another_way_is_refused_when_it_runs() -> None:
    gate = model("mixtral").model.layers[0].mlp.gate
    kind = type(
        "OddTopKRouter",
        (type(gate),),
        {"forward": lambda self, x: x @ self.weight.t(), "__module__": type(gate).__module__},
    )
    gate.__class__ = kind
    moved = prepare(torch.nn.Sequential(gate), "mxfp6:vector=fp32")
    with pytest.raises(ArgumentError, match=r"0 did not multiply by its weight .* exclude='0'"):
        moved(torch.randn(2, 32))


@pytest.mark.parametrize("chosen", ["mxfp6", "bf16-only", "fp8-lm"])
@pytest.mark.parametrize("name", CLASSES)
def test_a_mixture_of_experts_trains_narrow(name: str, chosen: str) -> None:
    from fewbits.optim import AdamW

    made = prepare(model(name), chosen)
    optimizer = AdamW(made.parameters(), lr=1e-2, recipe=chosen)
    tokens, losses = torch.randint(50, (2, 8)), []
    for _ in range(6):
        loss = made(input_ids=tokens, labels=tokens).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0]
