"""What each format does to two models of Hugging Face, made here from configurations; nothing is fetched.

A sentence encoder as all-MiniLM is, two layers of it, with random weights: the cosine of its embeddings to
those of FP32, weights and activations rounded. And a tiny language model that is trained for some seconds on
the source of Python's library, byte by byte: its perplexity on other source of it, weights rounded.
For a model in a folder, `fewbits compare FOLDER --data TEXTS` makes the second table.
"""

import torch
from transformers import BertConfig, BertModel, LlamaConfig, LlamaForCausalLM

from fewbits.compare import Perplexity, compare_text_model, direct_cast
from fewbits.train.tasks.text import library_text

FORMATS = ["mxint8", "mxfp6_e2m3", "mxfp4"]
SENTENCES = [
    "Each block of 32 values shares one power of two.",
    "The weather was fine, and nobody stayed at home.",
    "A model loses little when its weights take eight bits.",
    "She planted two apple trees behind the house.",
]


def encoder() -> BertModel:
    """Return an encoder of MiniLM's width that reads bytes."""
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=256, hidden_size=384, num_hidden_layers=2, num_attention_heads=12, intermediate_size=768
    )
    return BertModel(config, add_pooling_layer=False).eval()


@torch.no_grad()
def embedded(model: BertModel) -> torch.Tensor:
    """Return the mean over the tokens of each sentence, (sentences, 384)."""
    rows = [torch.tensor([list(text.encode())]) for text in SENTENCES]
    return torch.cat([model(input_ids=row).last_hidden_state.mean(1) for row in rows])


def cosines() -> list[tuple[str, float, float]]:
    """Return the mean and the least cosine of each format's embeddings to those of FP32."""
    model = encoder()
    exact = embedded(model)
    rows = []
    for fmt in FORMATS:
        with direct_cast(model, fmt):
            near = torch.nn.functional.cosine_similarity(embedded(model), exact)
        rows.append((fmt, float(near.mean()), float(near.min())))
    return rows


def language_model(data: bytes) -> LlamaForCausalLM:
    """Return a tiny language model of bytes, trained a little."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=64, bos_token_id=0, eos_token_id=0,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    tokens = torch.frombuffer(bytearray(data), dtype=torch.uint8).long()
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for _ in range(40):
        batch = tokens[torch.randint(len(tokens) - 64, (8, 1)) + torch.arange(64)]
        optimizer.zero_grad()
        model(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()
    return model.eval()


if __name__ == "__main__":
    print("encoder        mean cosine   least")
    for name, mean, least in cosines():
        print(f"{name:<14} {mean:11.5f} {least:7.5f}")
    text = library_text()
    pieces = torch.tensor(list(text.held_out[: 32 * 64])).reshape(32, 64)
    scores = compare_text_model(language_model(text.train), Perplexity(pieces), formats=["fp32", *FORMATS])
    print("\nlanguage model  perplexity   minus FP32, nats/token (95 %)")
    for score in scores:
        evidence = score.evidence
        print(f"{score.format:<14} {score.perplexity:11.4f}   {evidence.mean:+.5f} +- {evidence.margin:.5f}")
