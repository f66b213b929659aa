"""Tiny models of Hugging Face from configurations, trained a little on bytes, in folders with a tokenizer."""

import string
import warnings
from pathlib import Path

import torch
from torch import nn

from fewbits.train.tasks.text import library_text

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its imports warn
    import tokenizers
    import transformers

torch.set_num_threads(1)  # for models so small a second one costs more than it gives
WORDS = 128
LETTERS = {"early": string.ascii_lowercase[:13], "late": string.ascii_lowercase[13:]}


def save_tokenizer(folder: Path) -> None:
    """Write a tokenizer that has a token for each ASCII character."""
    words = {chr(i): i for i in range(WORDS)}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=words, merges=[], unk_token="?"))
    whole = transformers.PreTrainedTokenizerFast(tokenizer_object=made, unk_token="?", pad_token=chr(0))
    whole.save_pretrained(folder)


def text(held_out: bool = False) -> str:
    """Return source of Python's own library, ASCII only."""
    read = library_text()
    return (read.held_out if held_out else read.train).decode("ascii", errors="ignore")


def language_model(kind: str) -> nn.Module:
    """Return a model that knows a little about Python's source: far better than chance."""
    torch.manual_seed(0)
    if kind == "llama":
        config = transformers.LlamaConfig(
            vocab_size=WORDS, hidden_size=64, intermediate_size=96, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
            tie_word_embeddings=False,
        )  # fmt: skip
        model = transformers.LlamaForCausalLM(config)
    else:
        config = transformers.GPT2Config(
            vocab_size=WORDS, n_embd=64, n_layer=2, n_head=4, n_positions=64, bos_token_id=0, eos_token_id=0
        )
        model = transformers.GPT2LMHeadModel(config)
    tokens = torch.tensor([ord(c) for c in text()[:200_000]])
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for _ in range(90):
        starts = torch.randint(len(tokens) - 64, (8, 1))
        batch = tokens[starts + torch.arange(64)]
        optimizer.zero_grad()
        model(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()
    return model.eval()


def mixture(kind: str) -> nn.Module:
    """Return an untrained mixture of experts; files hold those of Mixtral one by one, of gpt-oss stacked."""
    torch.manual_seed(0)
    sizes = {
        "vocab_size": WORDS, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 1,
        "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
        "num_local_experts": 4, "num_experts_per_tok": 2,
    }  # fmt: skip
    if kind == "mixtral":
        return transformers.MixtralForCausalLM(transformers.MixtralConfig(**sizes)).eval()
    return transformers.GptOssForCausalLM(transformers.GptOssConfig(**sizes, head_dim=16)).eval()


def lines(count: int, seed: int) -> list[tuple[str, str]]:
    """Return classes and words whose letters are mostly from one half of the alphabet."""
    random = torch.Generator().manual_seed(seed)

    def drawn(kind: str) -> str:
        other = next(k for k in LETTERS if k != kind)
        own = torch.rand(12, generator=random) < 0.7
        at = torch.randint(13, (12,), generator=random).tolist()
        return "".join(LETTERS[kind if mine else other][i] for mine, i in zip(own, at, strict=True))

    kinds = [("early", "late")[int(i)] for i in torch.randint(2, (count,), generator=random)]
    return [(kind, drawn(kind)) for kind in kinds]


def classifier() -> nn.Module:
    """Return a BERT that tells these words apart."""
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=WORDS, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=32, id2label={0: "early", 1: "late"}, label2id={"early": 0, "late": 1},
    )  # fmt: skip
    model = transformers.BertForSequenceClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), 2e-3)
    for step in range(60):
        drawn = lines(32, step)
        batch = torch.tensor([[ord(c) for c in word] for _, word in drawn])
        labels = torch.tensor([int(kind == "late") for kind, _ in drawn])
        optimizer.zero_grad()
        model(input_ids=batch, labels=labels).loss.backward()
        optimizer.step()
    return model.eval()
