"""A checkpoint cast with chosen weights holds them bit for bit, also after a job that was cut off."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

import fewbits as fb
from fewbits.cli import main as cli
from fewbits.files import cast, inspect, restore
from fewbits.ptq import cast_model, quantize_model
from fewbits.ptq import model as engine

torch.set_num_threads(1)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(288, 64), nn.ReLU(), nn.Linear(64, 10)
    ).eval()


def batches() -> list[Tensor]:
    random = torch.Generator().manual_seed(1)
    return [torch.randn(16, 3, 8, 8, generator=random) for _ in range(4)]


def load() -> tuple[nn.Module, list[Tensor]]:
    return network(), batches()


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "calibrated_models.py").write_text("from tests.ptq.test_checkpoint import load\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    sys.modules.pop("calibrated_models", None)
    save_file({**network().state_dict(), "table": torch.randn(20, 40)}, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


def test_what_is_written_is_what_was_chosen(source: Path, tmp_path: Path) -> None:
    narrow, wide = tmp_path / "narrow.safetensors", tmp_path / "wide.safetensors"
    blank = network()
    for p in blank.parameters():
        p.data.zero_()  # takes the values of the checkpoint
    written, report = cast_model(source, narrow, blank, batches(), format="nvfp4", exclude=["5.*"])
    chosen, same = quantize_model(network(), batches(), "nvfp4", exclude="5")
    *layers, table = report.layers
    assert replace(report, layers=tuple(layers)) == same
    assert (table.layer, table.format, table.vectors) == ("table", "nvfp4", 0)
    assert table.reason == "of no such layer: rounded to nearest"
    assert not inspect(narrow).problems
    restore(narrow, wide)
    back = load_file(wide)
    for name in ("0.weight", "3.weight"):
        assert torch.equal(back[name], chosen.state_dict()[name])
    assert torch.equal(back["5.weight"], network().state_dict()["5.weight"])
    assert torch.equal(back["table"], fb.fake_quantize(load_file(source)["table"], "nvfp4"))
    assert all(t.error.qsnr_db < 40 for t in written.tensors if t.error)  # against the source, not the chosen
    assert not list(tmp_path.glob(".fewbits-*"))


def test_a_destination_that_is_the_source_is_refused_before_any_work(source: Path) -> None:
    model, octets = network(), source.read_bytes()
    model[0].weight.data.zero_()
    with pytest.raises(fb.ArgumentError, match="is the source itself"):
        cast_model(source, source, model, batches(), format="mxfp4")
    assert not model[0].weight.any()
    assert source.read_bytes() == octets
    assert not list(source.parent.glob(".fewbits*"))


def test_buffers_take_the_values_of_the_checkpoint_too(tmp_path: Path) -> None:
    def normed() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.BatchNorm1d(64), nn.Linear(64, 32)).eval()

    trained = normed()
    trained.load_state_dict(trained.state_dict() | {"0.running_mean": torch.arange(64.0)})
    save_file(trained.state_dict(), tmp_path / "source.safetensors")
    x = torch.randn(99, 64)
    for name, model in (("a", normed()), ("b", trained)):
        to = tmp_path / f"{name}.safetensors"
        cast_model(tmp_path / "source.safetensors", to, model, [x], format="mxfp4")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


def test_what_a_checkpoint_lacks_of_the_model_is_named(source: Path, tmp_path: Path) -> None:
    class Headed(nn.Sequential):
        """The checkpoint's layers, a head that it lacks, and an average that no checkpoint holds."""

        def __init__(self) -> None:
            super().__init__(*network().children())
            self.head = nn.BatchNorm1d(3)
            self.register_buffer("passing", torch.zeros(2), persistent=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for layer in list(self)[:-1]:
                x = layer(x)
            return x

    to, same = tmp_path / "narrow.safetensors", tmp_path / "same.safetensors"
    with pytest.warns(UserWarning, match=r"has no tensor for the model's 'head\.bias' and 3 more: what the"):
        cast_model(source, to, Headed().eval(), batches(), format="mxfp4")
    cast_model(source, same, network(), batches(), format="mxfp4")  # a warning fails
    assert to.read_bytes() == same.read_bytes()


def test_a_job_cut_off_anywhere_writes_the_same_bytes(source: Path, tmp_path: Path, monkeypatch: Any) -> None:
    def job(to: Path) -> None:
        cast_model(source, to, network(), batches(), format="mxfp4", scale="search")

    whole, again = tmp_path / "whole.safetensors", tmp_path / "again.safetensors"
    job(whole)
    real, calls = engine.choose_rotation, []

    def stopped(*given: Any) -> Any:
        calls.append(given)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(*given)

    monkeypatch.setattr(engine, "choose_rotation", stopped)
    with pytest.raises(KeyboardInterrupt):
        job(again)
    assert not again.exists()
    job(again)
    assert len(calls) == 4  # the first of three layers was not chosen again
    assert again.read_bytes() == whole.read_bytes()


def test_the_command_takes_a_model_of_ones_own(source: Path, tmp_path: Path, capsys: Any) -> None:
    narrow, report = tmp_path / "narrow.safetensors", tmp_path / "report.json"
    how = ["--format", "mxfp4", "--method", "gpfq", "--scale", "search", "--model", "calibrated_models:load"]
    assert cli.run(["cast", str(source), str(narrow), *how, "--json", str(report)]) == 0
    layers = json.loads(report.read_text())["calibrated"]["layers"]
    assert [x["layer"] for x in layers] == ["0", "3", "5", "table"]
    assert layers.pop()["vectors"] == 0
    assert all(x["loss"] <= x["rounding_loss"] for x in layers)
    assert "rounded" in capsys.readouterr().out
    plain = tmp_path / "plain.safetensors"
    cast(source, plain, format="mxfp4")
    assert plain.stat().st_size == narrow.stat().st_size
    assert plain.read_bytes() != narrow.read_bytes()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "calibrated_models:load"], "--model does nothing for a cast without --method"),
        (["--method", "gptq"], "has no config.json"),
        (["--method", "best", "--model", "calibrated_models:load"], "--method 'best' is not one of"),
        (
            ["--method", "gptq", "--model", "calibrated_models:load", "--calibrate", "calibrated_models.py"],
            "its own batches",
        ),
        (["--method", "gptq", "--pattern", "2:4"], "--pattern does nothing for --method"),
        (
            ["--method", "gptq", "--model", "calibrated_models:load", "--include", "table"],
            "no linear",
        ),
    ],
)
def test_what_cannot_be_calibrated_is_refused(
    source: Path, capsys: Any, words: list[str], message: str
) -> None:
    assert cli.run(["cast", str(source), "narrow.safetensors", "--format", "mxfp4", *words]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    other = tmp_path / "other.safetensors"
    save_file({"0.weight": torch.zeros(3, 3)}, other)
    with pytest.raises(fb.DataError, match=r"'0.weight' is \(8, 3, 3, 3\); the checkpoint's \(3, 3\)"):
        cast_model(other, tmp_path / "n.safetensors", network(), batches(), format="mxfp4")
    save_file({"nothing": torch.zeros(3, 3)}, other)
    with pytest.raises(fb.DataError, match="has no tensor of a name of the model's"):
        cast_model(other, tmp_path / "n.safetensors", network(), batches(), format="mxfp4")


@pytest.fixture
def language_model(tmp_path: Path) -> Path:
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=300, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, tie_word_embeddings=False,
    )  # fmt: skip
    folder = tmp_path / "llama"
    transformers.LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    words = {chr(i): i for i in range(256)}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=words, merges=[], unk_token=" "))
    transformers.PreTrainedTokenizerFast(tokenizer_object=made, unk_token=" ").save_pretrained(folder)
    return folder


@pytest.mark.filterwarnings("default")  # of transformers
def test_a_language_model_of_hugging_face_is_calibrated_on_text_and_tokens(
    language_model: Path, tmp_path: Path, capsys: Any
) -> None:
    tokens, text = tmp_path / "tokens.npy", tmp_path / "text.txt"
    np.save(tokens, np.random.default_rng(0).integers(0, 300, (8, 64)))
    text.write_text("A text of some length, read again and again. " * 200)
    how = ["--format", "mxfp4", "--method", "gptq", "--exclude", "*embed*"]
    for i, data in enumerate([["--calibrate", str(tokens)], ["--calibrate", str(text)]]):
        report, narrow = tmp_path / f"{i}.json", tmp_path / f"narrow{i}"
        assert cli.run(["cast", str(language_model), str(narrow), *how, *data, "--json", str(report)]) == 0
        layers = json.loads(report.read_text())["calibrated"]["layers"]
        assert len(layers) == 2 * 7 + 1
        assert all(x["loss"] < x["rounding_loss"] for x in layers)
        restore(narrow, tmp_path / f"wide{i}")
    np.save(tokens, np.full((8, 64), 300))
    assert cli.run(["cast", str(language_model), "n", *how, "--calibrate", str(tokens)]) == 2
    assert "token ids from 0 to 299" in " ".join(capsys.readouterr().err.split())


def test_values_that_do_not_fit_a_tensor_are_refused(source: Path, tmp_path: Path) -> None:
    other, to = tmp_path / "values.safetensors", tmp_path / "narrow.safetensors"
    save_file({"w": torch.zeros(20, 40)}, other)
    with pytest.raises(fb.DataError, match=r"does not hold one tensor of the shape \(64, 288\)"):
        cast(source, to, format="mxfp4", values={"3.weight": other})
    with pytest.raises(fb.ArgumentError, match="which is not cast"):
        cast(source, to, format="mxfp4", values={"3.bias": other})
    with pytest.raises(fb.ArgumentError, match="leave the pattern out"):
        cast(source, to, format="mxfp4", values={"table": other}, pattern="2:4")
    assert not to.exists()


@pytest.mark.parametrize("seconds", [3.0, 6.0])
@pytest.mark.slow
def test_a_killed_command_goes_on_and_writes_the_same_bytes(
    source: Path, tmp_path: Path, seconds: float
) -> None:
    words = [sys.executable, "-m", "fewbits", "cast", str(source)]
    how = ["--format", "mxfp4", "--method", "gptq", "--model", "calibrated_models:load"]
    root = str(Path(__file__).resolve().parents[2])
    environment = {**os.environ, "PYTHONPATH": root}
    whole, again = tmp_path / "whole.safetensors", tmp_path / "again.safetensors"
    subprocess.run([*words, str(whole), *how], check=True, env=environment)
    with subprocess.Popen([*words, str(again), *how], env=environment) as killed:
        time.sleep(seconds)
        killed.kill()
    subprocess.run([*words, str(again), *how], check=True, env=environment)
    assert again.read_bytes() == whole.read_bytes()
