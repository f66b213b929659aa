"""Models of Hugging Face's transformers train a step after `prepare`, and no layer of theirs is left out."""

import warnings
from collections import Counter

import pytest
import torch

from fewbits.nn import prepare
from fewbits.nn.layers.input_first import NarrowInputFirstLinear
from fewbits.optim import AdamW

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its imports, and of what it finds installed, warn
    import transformers
pytestmark = pytest.mark.filterwarnings("ignore")

WORDS = 50
COMMON = {"vocab_size": WORDS, "pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0}
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
GPT2 = {"n_positions": 32, "n_embd": 32, "n_layer": 2, "n_head": 2}


def model(name: str) -> torch.nn.Module:
    torch.manual_seed(0)
    if name == "gpt2":
        return transformers.GPT2LMHeadModel(transformers.GPT2Config(**COMMON, **GPT2))
    if name == "bert":
        return transformers.BertForMaskedLM(transformers.BertConfig(**COMMON, **SIZES))
    return transformers.LlamaForCausalLM(
        transformers.LlamaConfig(**COMMON, **SIZES, num_key_value_heads=1, max_position_embeddings=32)
    )


LINEAR = {"bert": {"NarrowLinear": 14}, "llama": {"NarrowLinear": 15}}
LINEAR["gpt2"] = {"NarrowLinear": 1, "NarrowInputFirstLinear": 8}


@pytest.mark.parametrize("name", LINEAR)
@pytest.mark.parametrize("chosen", ["mxfp8", "mx6", "bf16-only"])
def test_a_model_trains_and_every_linear_layer_is_narrow(name: str, chosen: str) -> None:
    made = model(name)
    names = list(made.state_dict())
    prepare(made, chosen).eval()  # no dropout: the loss is to fall
    assert list(made.state_dict()) == names
    kinds = Counter(type(m).__name__ for m in made.modules())
    assert {k: n for k, n in kinds.items() if k.endswith("Linear")} == LINEAR[name]
    optimizer = AdamW(made.parameters(), lr=1e-2, recipe=chosen)
    tokens = torch.randint(WORDS, (4, 16))
    losses = []
    for _ in range(8):
        found = made(input_ids=tokens, labels=tokens)
        assert found.logits.dtype == torch.float32
        optimizer.zero_grad()
        found.loss.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in made.parameters())
        optimizer.step()
        losses.append(float(found.loss.detach()))
    assert losses[-1] < 0.8 * losses[0]


def test_gpt2s_linear_layer_equals_a_linear_layer_of_the_transposed_weight() -> None:
    from transformers.pytorch_utils import Conv1D

    torch.manual_seed(0)
    theirs, ours = Conv1D(24, 40), torch.nn.Linear(40, 24)
    with torch.no_grad():
        theirs.bias.normal_()
        ours.weight.copy_(theirs.weight.t())
        ours.bias.copy_(theirs.bias)
    for layer in (prepare(theirs, "mxfp6"), prepare(ours, "mxfp6")):
        layer(torch.linspace(-2, 2, 320).reshape(2, 4, 40)).square().sum().backward()
    assert type(theirs) is NarrowInputFirstLinear
    assert torch.equal(theirs.weight.grad.t(), ours.weight.grad)
    assert torch.equal(theirs.bias.grad, ours.bias.grad)
