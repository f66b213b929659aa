"""A language model is cast with one layer in memory at a time, to the bytes of the whole model in memory."""

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from fewbits.cli import calibration
from fewbits.cli import main as cli
from fewbits.errors import DataError
from fewbits.ptq import cast_model

transformers = pytest.importorskip("transformers")
from fewbits.integrations import language_model  # noqa: E402  # needs transformers
from fewbits.integrations.language_model import empty_language_model  # noqa: E402  # as above

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers
WORDS = 300
BATCHES, LENGTH = 4, 64


def llama(**sizes: int) -> Any:
    given = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2} | sizes
    return transformers.LlamaConfig(
        vocab_size=WORDS, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=LENGTH,
        tie_word_embeddings=False, **given,
    )  # fmt: skip


def folder_of(place: Path, kind: str) -> Path:
    torch.manual_seed(0)
    if kind == "llama":
        model = transformers.LlamaForCausalLM(llama())
    elif kind == "tied":
        config = llama()
        config.tie_word_embeddings = True
        model = transformers.LlamaForCausalLM(config)
    elif kind == "gpt-oss":  # its attention has parameters of its own, read after those of its parts
        sizes = llama().to_dict() | {"num_local_experts": 2, "num_experts_per_tok": 1, "head_dim": 16}
        wanted = {k: v for k, v in sizes.items() if k not in ("model_type", "rope_parameters")}
        model = transformers.GptOssForCausalLM(transformers.GptOssConfig(**wanted))
        for name, p in model.named_parameters():
            if "sinks" in name:
                nn.init.normal_(p)
    else:
        model = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(
                vocab_size=WORDS,
                n_embd=64,
                n_layer=2,
                n_head=4,
                n_positions=LENGTH,
                bos_token_id=0,
                eos_token_id=0,
            )
        )
    model.to(torch.bfloat16).save_pretrained(place / kind, max_shard_size="100KB")
    return place / kind


def tokens(place: Path) -> list[str]:
    path = place / "tokens.npy"
    np.save(path, np.random.default_rng(0).integers(0, WORDS, (BATCHES, LENGTH)))
    return ["--calibrate", str(path)]


def written(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


HOW = ["--format", "mxfp4", "--method", "gptq", "--include", "*.weight"]


@pytest.mark.parametrize("kind", ["llama", "tied", "gpt2", "gpt-oss"])
def test_the_bytes_are_those_of_the_whole_model(kind: str, tmp_path: Path, monkeypatch: Any) -> None:
    source = folder_of(tmp_path, kind)
    empty = empty_language_model(source)
    assert empty is not None
    assert all(p.is_meta for p in empty.parameters())
    loads: list[int] = []
    real = language_model.load_language_model
    monkeypatch.setattr(language_model, "load_language_model", lambda f: loads.append(1) or real(f))
    words = ["cast", str(source), str(tmp_path / "lazy"), *HOW, *tokens(tmp_path)]
    assert cli.run([*words, "--json", str(tmp_path / "lazy.json")]) == 0
    assert not loads
    monkeypatch.setattr(language_model, "empty_language_model", lambda _: None)
    words[2] = str(tmp_path / "whole")
    assert cli.run([*words, "--json", str(tmp_path / "whole.json")]) == 0
    assert loads
    assert written(tmp_path / "lazy") == written(tmp_path / "whole")
    one, other = (json.loads((tmp_path / f"{n}.json").read_text())["calibrated"] for n in ("lazy", "whole"))
    assert one == other
    assert len(one["layers"]) > 7


def with_head(place: Path, name: str, head: torch.Tensor, tied: bool) -> Path:
    """A model whose file has a head of its own, whatever its configuration says."""
    config = llama()
    config.tie_word_embeddings = tied
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config)
    model.save_pretrained(place / name)
    tensors = {n: x.contiguous() for n, x in model.state_dict().items()} | {
        "lm_head.weight": head.contiguous()
    }
    save_file(tensors, place / name / "model.safetensors", metadata={"format": "pt"})
    return place / name


def test_a_head_that_differs_from_what_it_is_said_to_be_tied_to_is_cast_as_transformers_loads_it(
    tmp_path: Path,
) -> None:
    torch.manual_seed(0)
    table = transformers.LlamaForCausalLM(llama()).model.embed_tokens.weight.detach().clone()
    head = torch.randn_like(table)
    said, untied = (with_head(tmp_path, f"own{t}", head, tied=t) for t in (True, False))
    loaded = transformers.AutoModelForCausalLM.from_pretrained(said)
    assert torch.equal(loaded.lm_head.weight, head)  # what transformers makes of it
    assert empty_language_model(said) is None
    assert empty_language_model(untied) is not None
    files = []
    for source in (said, untied):
        out = tmp_path / f"narrow-{source.name}"
        assert cli.run(["cast", str(source), str(out), *HOW, *tokens(tmp_path)]) == 0
        files.append({n: octets for n, octets in written(out).items() if n.endswith(".safetensors")})
    assert files[0] == files[1]
    # A head that is stored twice is tied, and may stay in its file.
    model = transformers.LlamaForCausalLM(llama())
    same = with_head(tmp_path, "same", torch.zeros_like(table), tied=True)
    tensors = load_file(same / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
    save_file(tensors, same / "model.safetensors", metadata={"format": "pt"})
    assert empty_language_model(same) is not None
    # A model of one's own that ties what differs is refused by the names.
    model.lm_head.weight = model.model.embed_tokens.weight
    with pytest.raises(DataError, match=r"in 'model\.embed_tokens\.weight' and 'lm_head\.weight'"):
        cast_model(said, tmp_path / "refused", model, [torch.zeros(1, 8, dtype=torch.int64)], format="mxfp4")


def test_a_job_that_goes_on_writes_the_same_bytes(tmp_path: Path, monkeypatch: Any) -> None:
    from fewbits.ptq import model as engine

    source = folder_of(tmp_path, "llama")
    words = ["cast", str(source), str(tmp_path / "whole"), *HOW, *tokens(tmp_path)]
    assert cli.run(words) == 0
    real, calls = engine.choose_rotation, []

    def stopped(*given: Any) -> Any:
        calls.append(given)
        if len(calls) in (2, 6, 13):  # among q, k and v of a stage, too
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(engine, "choose_rotation", stopped)
    words[2] = str(tmp_path / "again")
    for _ in range(3):
        assert cli.run(words) == 130
        assert not (tmp_path / "again").exists()
    assert cli.run(words) == 0
    assert written(tmp_path / "again") == written(tmp_path / "whole")


@pytest.mark.parametrize("how", ["whole", "goes on", "begins anew for each stage"])
def test_at_no_time_more_than_a_stage_and_its_neighbours_is_in_memory(
    how: str, tmp_path: Path, monkeypatch: Any
) -> None:
    from fewbits.ptq import model as engine
    from fewbits.ptq import passes
    from fewbits.ptq.loaded_weights import LoadedWeights

    source, most = folder_of(tmp_path, "llama"), [0]
    real, choose, calls = LoadedWeights.load, engine.choose_rotation, []

    def stopped(*given: Any) -> Any:
        calls.append(given)
        if len(calls) == 12:
            raise KeyboardInterrupt
        return choose(*given)

    def load(self: LoadedWeights, module: nn.Module) -> None:
        real(self, module)
        here = sum(p.numel() for m in self._here for p in m.parameters(recurse=False) if not p.is_meta)
        most[0] = max(most[0], here)

    words = ["cast", str(source), str(tmp_path / "n"), *HOW, *tokens(tmp_path)]
    if how == "goes on":
        monkeypatch.setattr(engine, "choose_rotation", stopped)
        assert cli.run(words) == 130
    elif how != "whole":
        monkeypatch.setattr(passes, "_has_modes", lambda: True)
    monkeypatch.setattr(LoadedWeights, "load", load)
    assert cli.run(words) == 0
    assert WORDS * 64 <= most[0] <= WORDS * 64 + 2 * 96 * 64 + 4 * 64  # of 107 thousand values in all


@pytest.mark.parametrize("what", ["values", "device"])
def test_a_model_that_reads_weights_of_other_modules_is_loaded_whole(
    what: str, tmp_path: Path, monkeypatch: Any
) -> None:
    source = folder_of(tmp_path, "llama")
    real = transformers.LlamaForCausalLM.forward

    def forward(self: Any, *given: Any, **named: Any) -> Any:
        if what == "device":  # an embedding on the CPU gives any numbers for places on the meta device
            device = self.model.embed_tokens.weight.device
            return real(self, *given, **named | {"input_ids": named["input_ids"].to(device)})
        result = real(self, *given, **named)
        result.logits = result.logits @ torch.eye(WORDS) + self.lm_head.weight.sum()
        return result

    words = ["cast", str(source), str(tmp_path / "plain"), *HOW, *tokens(tmp_path)]
    assert cli.run(words) == 0
    monkeypatch.setattr(transformers.LlamaForCausalLM, "forward", forward)
    wholes: list[bool] = []
    before = calibration._loaded

    def loaded(*given: Any) -> Any:
        wholes.append(given[-1])
        return before(*given)

    monkeypatch.setattr(calibration, "_loaded", loaded)
    words[2] = str(tmp_path / "n")
    assert cli.run(words) == 0
    assert wholes == [False, True]
    assert written(tmp_path / "n") == written(tmp_path / "plain")  # no layer's input was changed


def test_a_checkpoint_that_lacks_a_tensor_is_not_run_layer_by_layer(tmp_path: Path) -> None:
    source = folder_of(tmp_path, "llama")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    assert empty_language_model(source) is None
    (source / "config.json").write_text(json.dumps(config | {"intermediate_size": 100}))
    assert empty_language_model(source) is None


# ---------------------------------------------------------------------------------------- large, and killed

MEGABYTES = int(os.environ.get("FEWBITS_CAST_MEGABYTES", "200"))  # 8192 for a checkpoint of 8 GiB
# Not ru_maxrss: a child starts with its parent's, and nothing that is smaller shows.
RUN = """
import re, sys
from fewbits.cli import main
code = main.run(sys.argv[1:])
print("peak", re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
sys.exit(code)
"""


def large(place: Path) -> tuple[Path, int, int]:
    """A sharded checkpoint of so many megabytes in bfloat16; values and inputs of its largest layer."""
    hidden = 512 if MEGABYTES <= 600 else 1024
    inner = 11 * hidden // 4
    block = 3 * hidden * hidden + 3 * hidden * inner  # values: q and o, k and v of half the heads, the MLP
    config = llama(
        hidden_size=hidden, intermediate_size=inner, num_hidden_layers=max(MEGABYTES * 2**20 // 2 // block, 1)
    )
    folder = place / "large"
    folder.mkdir()
    config.architectures = ["LlamaForCausalLM"]
    config.save_pretrained(folder)
    with torch.device("meta"):
        shapes = {n: t.shape for n, t in transformers.LlamaForCausalLM(config).state_dict().items()}
    index, shard, number, size = {}, {}, 0, 0
    drawn = torch.Generator().manual_seed(0)
    for name, shape in shapes.items():
        shard[name] = (torch.randn(shape, generator=drawn) * hidden**-0.5).to(torch.bfloat16)
        size += shard[name].nbytes
        if size > max(MEGABYTES, 200) * 2**20 // 8 or name == list(shapes)[-1]:
            file = f"model-{number:05d}.safetensors"
            save_file(shard, folder / file)
            index |= dict.fromkeys(shard, file)
            shard, number, size = {}, number + 1, 0
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return folder, hidden * inner, inner


def peak(words: list[str]) -> int:
    """Bytes that a command held at most."""
    done = subprocess.run([sys.executable, "-c", RUN, *words], capture_output=True, text=True, check=True)
    return 1024 * int(done.stdout.rpartition("peak ")[2])


@pytest.mark.slow
@pytest.mark.peak_memory
def test_a_large_checkpoint_is_cast_in_the_memory_of_its_largest_layer_and_survives_being_killed(
    tmp_path: Path,
) -> None:
    source, largest, inputs = large(tmp_path)
    total = sum(file.stat().st_size for file in source.glob("*.safetensors"))
    assert total > 0.8 * MEGABYTES * 2**20
    how = ["--format", "mxfp4", "--method", "gptq", "--exclude", "*embed*,lm_head*", *tokens(tmp_path)]
    small = folder_of(tmp_path, "llama")
    before = peak(["cast", str(small), str(tmp_path / "s"), *how])  # libraries, and hardly any weight
    began = time.monotonic()
    held = peak(["cast", str(source), str(tmp_path / "whole"), *how]) - before
    seconds = time.monotonic() - began
    # Copies of the largest layer while it is chosen, and ten matrices of its inputs in float64: moments,
    # their inverse and its factors. The number of layers is not in it.
    bound = 64 * largest + 10 * 8 * inputs**2 + 64 * 2**20
    assert 2 * total > bound or MEGABYTES < 200  # the control: the whole model, in float32, is more
    assert held > largest  # or it was not measured
    print(f"{total >> 20} MiB cast in {held >> 20} MiB, bound {bound >> 20}, {seconds:.0f} s")
    assert held < bound
    command = [sys.executable, "-m", "fewbits", "cast", str(source), str(tmp_path / "again"), *how]
    drawn = random.Random(7)
    killed = 0
    for _ in range(5):
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
            try:
                process.wait(drawn.uniform(0.05, 0.5) * seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                killed += 1
    assert killed >= 3
    subprocess.run(command, check=True, capture_output=True)
    assert written(tmp_path / "again") == written(tmp_path / "whole")
