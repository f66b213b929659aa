"""A tiny Llama, its data, and the plain loop that other trainers have to equal."""

from collections.abc import Iterator

import torch
from torch import nn
from torch.utils.data import IterableDataset

from fewbits.nn import prepare
from fewbits.optim import AdamW, scaler
from fewbits.train import schedule
from fewbits.train.schedules import Schedule

# Those most used, one of each kind: torch's own, FP16 and loss scales, blocks, packed states, no master copy.
TWELVE = [
    "amp-bf16", "amp-fp16", "fp16-master", "mxfp8", "mxfp6", "mxfp4w-mxfp6", "mx9", "fp8-stochastic",
    "fp8-lm-o2", "fp8-lm", "bf16-only", "bf16-only-kahan",
]  # fmt: skip
SCHEDULED = ["muppet", "assigned", "posit8"]
# A loss scale, packed gradients and states, and formats that change.
SAMPLE = ["fp16-master", "fp8-lm", "muppet"]
WORDS, LENGTH, BATCH, STEPS, RATE, NORM = 50, 12, 4, 6, 1e-2, 0.5
EPOCH = torch.randint(WORDS, (BATCH * STEPS // 2, LENGTH), generator=torch.Generator().manual_seed(1))
SIZES = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}


class Rows(IterableDataset[dict[str, torch.Tensor]]):
    """Lines of words, always in the same order: two epochs."""

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        return iter([{"input_ids": row, "labels": row} for row in (*EPOCH, *EPOCH)])


def model(recipe: str) -> nn.Module:
    """Return a prepared model that notes its losses, and draws in each step what a plain loop draws."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        **SIZES, vocab_size=WORDS, num_key_value_heads=1, max_position_embeddings=32, pad_token_id=0
    )
    made = prepare(LlamaForCausalLM(config), recipe)
    made.losses = []
    made.first = 0  # of the steps, where a run goes on
    made.register_forward_pre_hook(lambda m, _: torch.manual_seed(m.first + len(m.losses)) and None)
    made.register_forward_hook(lambda m, _, found: m.losses.append(float(found.loss.detach())))
    return made


def optimizer(made: nn.Module, recipe: str) -> AdamW:
    return AdamW(made.parameters(), RATE, weight_decay=0.0, recipe=recipe)


def plain_losses(recipe: str, steps: int = STEPS) -> list[float]:
    """Return the losses of a plain loop."""
    return plain_run(recipe, steps)[0]


def plain_run(recipe: str, steps: int = STEPS) -> tuple[list[float], Schedule]:
    """Train as the manual says: scale, look, unscale, clip, step. Return the losses and the schedule."""
    made = model(recipe).train()
    adamw, scale, changes = optimizer(made, recipe), scaler(recipe), schedule(made, recipe, STEPS)
    rows = list(Rows())
    for i in range(steps):
        batch = torch.stack([row["labels"] for row in rows[BATCH * i : BATCH * (i + 1)]])
        adamw.zero_grad()
        scale.scale(made(input_ids=batch, labels=batch).loss).backward()
        changes.after_backward()
        scale.unscale_(adamw)
        nn.utils.clip_grad_norm_(made.parameters(), NORM)
        scale.step(adamw)
        scale.update()
        changes.after_step()
    return made.losses, changes


def check_muppet(found: Schedule) -> None:
    """Hold what the schedule of gradients' diversity saw to that of a plain loop."""
    _, plain = plain_run("muppet")
    assert plain.state_dict()["largest"] > 0  # or it had seen nothing
    assert found.state_dict() == plain.state_dict()
