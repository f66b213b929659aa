"""How long does a token of a Llama of about 1 billion random weights take, packed and in bfloat16?

Peer: transformers with the same weights in bfloat16, in one process, in turns. A token is one more position
behind a prompt of 16, with the cache of transformers. Loading is measured in processes of its own: the
largest resident memory, less what the libraries take before, against the bytes of the packed tensors. Where
_llama.py has built it, llama.cpp computes the same token from files of its own MXFP4 and Q4_0, which fewbits
writes from the same weights.

    python benchmarks/generate.py [--layers 16] [--rounds 5] [--formats mxfp4,mxfp8_e4m3] [--json FILE]
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import _llama
import torch
from _alternating import arguments, seconds, table, write

import fewbits as fb
from fewbits.files import cast

os.environ["HF_HUB_OFFLINE"] = "1"
import transformers  # reads the variable when it is imported
from transformers.initialization import no_init_weights

PROMPT = 16
LLAMA = {"MXFP4": "mxfp4", "Q4_0": "block(element=int(4,coding=symmetric),scale=fp16,size=32)"}
_PEAK = """
import json, resource, sys, warnings
warnings.simplefilter("ignore")
import torch
import fewbits as fb
import fewbits.integrations.transformers
def resident(key):
    return next(int(line.split()[1]) << 10 for line in open("/proc/self/status") if line.startswith(key))
transformers = fewbits.integrations.transformers
before = resident("VmRSS")
model = fb.load(sys.argv[1])
peak = resident("VmHWM")
print(json.dumps([before, peak, sum(p.nbytes for p in model.parameters())]))
"""


def model(layers: int) -> Any:
    """Return the model with random weights, in bfloat16."""
    config = transformers.LlamaConfig(
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        vocab_size=32000,
        tie_word_embeddings=False,  # tied, no layout of a program's narrows the head
        dtype="bfloat16",
    )
    torch.manual_seed(0)
    with no_init_weights():
        made = transformers.LlamaForCausalLM(config).to(torch.bfloat16)
    for p in made.parameters():
        p.data.normal_(0, 0.02) if p.ndim > 1 else p.data.fill_(1)
    return made.eval()


class Step:
    """One token more, again and again behind the same prompt."""

    def __init__(self, of: Any) -> None:
        self.model, self.ids = of, torch.arange(PROMPT)[None]
        self.cache = transformers.DynamicCache(config=of.config)
        with torch.inference_mode():
            self.model(self.ids, past_key_values=self.cache)

    @torch.inference_mode()
    def __call__(self) -> None:
        """Compute it, and forget it."""
        self.model(self.ids[:, :1], past_key_values=self.cache)
        self.cache.crop(-1)


def peak(folder: Path) -> dict[str, float]:
    """Return the bytes that loading took at its peak, and of the packed parameters."""
    command = [sys.executable, "-c", _PEAK, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    before, most, packed = json.loads(done.stdout.splitlines()[-1])
    return {"packed_mebibytes": packed / 2**20, "peak_of_packed": (most - before) / packed}


def by_llama(dense: Path, place: Path) -> dict[str, _llama.Token]:
    """Return the token by llama.cpp, from its own formats."""
    calls = {}
    for name, fmt in LLAMA.items():
        file = place / f"{name}.gguf"
        cast(dense, file, format=fb.format(fmt), layout="gguf")
        calls[f"llama.cpp's {name}"] = _llama.Token(file, range(PROMPT))
    return calls


def main() -> None:
    """Print the table and write the figures."""
    given = arguments(__doc__ or "", layers=16)
    names = given.formats.split(",") if given.formats else ["mxfp4", "mxint8", "mxfp8_e4m3"]
    rows = []
    with tempfile.TemporaryDirectory() as place:
        dense = model(given.layers)
        parameters = sum(p.numel() for p in dense.parameters())
        dense.save_pretrained(Path(place) / "dense")
        calls: dict[str, Any] = {"bfloat16": Step(dense)}
        for name in names:
            folder = Path(place) / name
            cast(Path(place) / "dense", folder, format=fb.format(name))
            dense.config.save_pretrained(folder)
            memory = {"parameters": parameters, **peak(folder)}
            for activation in (None, "int8_32"):
                called = name if activation is None else f"{name}, {activation} activations"
                rows.append({"format": called, **memory})
                calls[called] = Step(fb.load(folder, activation=activation))
        theirs: dict[str, Any] = {}
        if _llama.built():
            theirs = by_llama(Path(place) / "dense", Path(place))
        else:
            print("llama.cpp is left out: python benchmarks/_llama.py builds it from its package")
        taken = seconds({**calls, **theirs}, given.rounds)
    for row in rows:
        row["milliseconds"] = 1e3 * taken[row["format"]]
        row["bfloat16_milliseconds"] = 1e3 * taken["bfloat16"]
        row["of_bfloat16"] = taken[row["format"]] / taken["bfloat16"]
        row["times_faster_than"] = {who: taken[who] / taken[row["format"]] for who in theirs}
    print(f"Llama with {parameters / 1e9:.2f} billion parameters; one token behind {PROMPT} others")
    head = ("format", "packed MiB", "peak of packed", "ms a token", "bfloat16 ms", "of bfloat16", *theirs)
    keys = ["format", "packed_mebibytes", "peak_of_packed", "milliseconds"]
    keys += ["bfloat16_milliseconds", "of_bfloat16"]
    print("under llama.cpp's names: how many times as long it takes")
    table(head, [(*(row[key] for key in keys), *row["times_faster_than"].values()) for row in rows])
    write(given.json, rows)


if __name__ == "__main__":
    main()
