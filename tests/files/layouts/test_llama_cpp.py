"""llama.cpp itself reads what layout="gguf" writes: the same logits and tokens as transformers.

`python benchmarks/_llama.py` builds it, in a quarter of an hour; without it these tests skip by name. It
rounds activations to eight bits, so logits agree to about a hundredth.
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fewbits.files import cast, restore
from tests.files.layouts.models import TOKENS, loaded, logits, saved_llama
from tests.files.layouts.test_gguf import FORMATS, WIDE, Q, tokenizer

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
import _llama

load_file = pytest.importorskip("safetensors.torch").load_file
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not _llama.built(), reason="python benchmarks/_llama.py has not built llama.cpp"),
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning"),
]
NARROW = {
    "nvfp4 with an outer scale": "nvfp4",
    **{k: v for k, v in FORMATS.items() if k not in ("BF16", "F16")},
}


@pytest.fixture(scope="module")
def llama_cpp() -> Any:
    return _llama.package()


def by_llama(llama_cpp: Any, file: Path) -> Any:
    """Return the logits of TOKENS, a row for each."""
    model = llama_cpp.Llama(
        str(file), n_ctx=64, n_threads=1, n_threads_batch=1, logits_all=True, verbose=False
    )
    model.eval(TOKENS[0].tolist())
    return np.array(model.scores[: TOKENS.shape[1]])


@pytest.mark.parametrize("kind", NARROW)
def test_logits_are_those_of_the_values_that_were_written(tmp_path: Path, llama_cpp: Any, kind: str) -> None:
    llama = saved_llama(tmp_path / "wide", **WIDE, dtype=torch.float32)
    file = tmp_path / "model.gguf"
    cast(llama, file, format=NARROW[kind], layout="gguf")
    restore(file, tmp_path / "back.safetensors")
    dense = loaded(llama, dtype=torch.float32)
    dense.load_state_dict(load_file(tmp_path / "back.safetensors"))
    found, wanted = by_llama(llama_cpp, file), logits(dense)[0].numpy()
    assert np.abs(found - wanted).max() < 0.03 * np.abs(wanted).max()
    # The negative control: rows of q in the order of the checkpoint are another model.
    heads = WIDE["num_attention_heads"]
    q = dense.get_parameter(Q)
    q.data = q.data.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2).contiguous()
    assert np.abs(found - logits(dense)[0].numpy()).max() > 0.03 * np.abs(wanted).max()


@pytest.mark.parametrize("byte_fallback", [False, True])
def test_texts_become_the_same_tokens(tmp_path: Path, llama_cpp: Any, byte_fallback: bool) -> None:
    from transformers import AutoTokenizer

    llama = saved_llama(tmp_path / "wide", vocab_size=320)
    tokenizer(llama, byte_fallback=byte_fallback)
    cast(llama, tmp_path / "model.gguf", format="mxfp4", layout="gguf")
    theirs = llama_cpp.Llama(str(tmp_path / "model.gguf"), vocab_only=True, verbose=False)
    ours = AutoTokenizer.from_pretrained(llama)
    for text in (
        "a layout is a layout",
        "numbers 123 456 7",
        "größer x",
        "x\ny  z",
        "It's DON'T",
        "日本 語",
        "<s>a",
    ):
        wanted = ours.encode(text, add_special_tokens=False)
        assert theirs.tokenize(text.encode(), add_bos=False, special=True) == wanted, text
