"""``fewbits compare MODEL_FOLDER --data``: models of Hugging Face evaluated in each format."""

import json
import math
import shutil
import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fewbits as fb
from fewbits.cli import main as cli
from fewbits.files import cast, restore

pytest.importorskip("transformers")
from tests.integrations import tiny

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers
DESTROYED = "fp4_e2m1"  # no scale: nothing of weights of 0.02 is left


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models")
    for kind in ("llama", "gpt2"):
        tiny.language_model(kind).save_pretrained(place / kind)
        tiny.save_tokenizer(place / kind)
    tiny.classifier().save_pretrained(place / "bert")
    tiny.save_tokenizer(place / "bert")
    (place / "texts").mkdir()
    held_out = tiny.text(held_out=True)[:6000]
    (place / "texts" / "a.txt").write_text(held_out[:3000])
    (place / "texts" / "b.txt").write_text(held_out[3000:])
    words = tiny.lines(120, 1000)
    (place / "labelled.tsv").write_text("\n".join(f"{kind}\t{word}" for kind, word in words) + "\n\n")
    (place / "plain.txt").write_text("\n".join(word for _, word in words))
    return place


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> Any:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr(socket, "socket", refused)
    monkeypatch.setattr(socket, "create_connection", refused)
    monkeypatch.setattr(socket, "getaddrinfo", refused)


def scores(words: list[str], place: Path, capsys: Any) -> list[dict[str, Any]]:
    out = place / "r.json"
    out.unlink(missing_ok=True)
    assert cli.run(["compare", *words, "--json", str(out)]) == 0, capsys.readouterr().err
    read: list[dict[str, Any]] = json.loads(out.read_text())["scores"]
    return read


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_perplexity_follows_the_format_and_a_format_that_destroys_the_model_shows(
    models: Path, tmp_path: Path, capsys: Any, kind: str
) -> None:
    words = [
        str(models / kind),
        "--data",
        str(models / "texts"),
        "--formats",
        f"fp32,mxfp8_e4m3,mxfp4,{DESTROYED}",
    ]
    found = {s["format"]: s for s in scores(words, tmp_path, capsys)}
    wide, eight, four, nothing = (found[f] for f in ("fp32", "mxfp8_e4m3", "mxfp4", DESTROYED))
    assert wide["values"] == wide["baseline"] == four["baseline"]
    assert len(wide["values"]) == 64
    assert 2 < wide["perplexity"] < 25  # chance is 128
    assert wide["perplexity"] < nothing["perplexity"]
    for narrow in (eight, four):
        assert 0 < abs(narrow["difference"]) < 0.2 * nothing["difference"]
    assert nothing["evidence"]["low"] > 0.05
    assert four["weight_qsnr_db"] > 15
    assert four["activation_qsnr_db"] == "nan"
    assert four["samples"] == "pieces"
    printed = capsys.readouterr().out
    assert "perpl." in printed
    assert "paired over 64 pieces" in printed


def test_the_perplexity_is_that_of_what_cast_writes(models: Path, tmp_path: Path, capsys: Any) -> None:
    cast(models / "llama", tmp_path / "narrow", format=fb.mxfp4, exclude=("*embed*", "*norm*"))
    restore(tmp_path / "narrow", tmp_path / "wide")
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(models / "llama" / name, tmp_path / "wide")
    data = ["--data", str(models / "texts")]
    (own,) = scores([str(models / "llama"), *data, "--formats", "mxfp4"], tmp_path, capsys)
    (stored,) = scores([str(tmp_path / "wide"), *data, "--formats", "fp32"], tmp_path, capsys)
    assert own["values"] == stored["values"] != own["baseline"]


def test_gptq_is_measured_with_the_bits_that_cast_writes_and_loses_less(
    models: Path, tmp_path: Path, capsys: Any
) -> None:
    data = ["--data", str(models / "texts"), "--formats", "mxfp4"]
    np.save(tmp_path / "tokens.npy", np.array([ord(c) for c in tiny.text()[:4096]]))
    how = ["--method", "gptq", "--calibrate", str(tmp_path / "tokens.npy")]
    (rounded,) = scores([str(models / "llama"), *data], tmp_path, capsys)
    (chosen,) = scores([str(models / "llama"), *data, *how], tmp_path, capsys)
    assert chosen["method"] == "gptq"
    assert abs(chosen["difference"]) < rounded["difference"]  # a model this small may gain a hair by chance
    words = [
        "cast",
        str(models / "llama"),
        str(tmp_path / "n"),
        "--format",
        "mxfp4",
        "--exclude",
        "*embed*,*norm*",
    ]
    assert cli.run([*words, *how]) == 0, capsys.readouterr().err
    restore(tmp_path / "n", tmp_path / "w")
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        shutil.copy(models / "llama" / name, tmp_path / "w")
    (stored,) = scores([str(tmp_path / "w"), *data[:2], "--formats", "fp32"], tmp_path, capsys)
    assert chosen["values"] == stored["values"]


@pytest.mark.parametrize("method", [pytest.param("round", marks=pytest.mark.slow), "gpfq"])
def test_inputs_are_rounded_where_asked_and_the_model_is_whole_afterwards(
    models: Path, tmp_path: Path, capsys: Any, method: str
) -> None:
    words = [str(models / "llama"), "--data", str(models / "texts"), "--method", method, "--activations"]
    narrow, wide = scores([*words, "--formats", "mxfp4,fp32"], tmp_path, capsys)
    assert wide["values"] == wide["baseline"]  # measured after the other
    assert 10 < narrow["activation_qsnr_db"] < 30
    (weights,) = scores([*words[:-1], "--formats", "mxfp4"], tmp_path, capsys)
    assert narrow["difference"] > weights["difference"]


def test_a_classifier_is_scored_by_its_classes_or_by_those_it_gave(
    models: Path, tmp_path: Path, capsys: Any
) -> None:
    words = [str(models / "bert"), "--formats", f"fp32,mxfp8_e4m3,{DESTROYED}", "--data"]
    wide, eight, nothing = scores([*words, str(models / "labelled.tsv")], tmp_path, capsys)
    assert wide["metric"] == "accuracy"
    assert wide["mean"] > 80
    assert len(wide["values"]) == 120
    assert abs(eight["difference"]) < 5
    assert nothing["mean"] < 70
    assert nothing["evidence"]["high"] < 0
    assert wide["logit_error"] == 0 < eight["logit_error"] < 0.2 < nothing["logit_error"]
    wide, eight, nothing = scores([*words, str(models / "plain.txt")], tmp_path, capsys)
    assert wide["metric"] == "agreement"
    assert wide["mean"] == 100
    assert nothing["mean"] < 70 < eight["mean"]
    assert "lines" in capsys.readouterr().out
    how = ["--method", "gptq", "--calibrate", str(models / "texts")]
    (four,) = scores([str(models / "bert"), "--data", str(models / "plain.txt"), "--formats", "mxfp4", *how],
                     tmp_path, capsys)  # fmt: skip
    assert four["mean"] > 70


def test_the_page_repeats_the_command(models: Path, tmp_path: Path, capsys: Any) -> None:
    page = tmp_path / "r.html"
    words = [
        "compare",
        str(models / "bert"),
        "--data",
        str(models / "labelled.tsv"),
        "--formats",
        "mxfp4,mxint8",
    ]
    assert cli.run([*words, "--report", str(page), "--exclude", "classifier"]) == 0, capsys.readouterr().err
    read = page.read_text().replace("<wbr>", "")
    again = f"{models / 'bert'} --data {models / 'labelled.tsv'} --method round --exclude classifier"
    assert f"fewbits compare {again} --formats mxfp4" in read
    assert "paired over 120 lines" in read
    assert "held-out" not in read
    assert "seeds" not in read.split("<footer")[0]


def broken(models: Path, tmp_path: Path, what: str) -> Path:
    folder = tmp_path / "broken"
    shutil.copytree(models / ("bert" if what == "classes" else "llama"), folder)
    config = json.loads((folder / "config.json").read_text())
    if what == "weights":
        (folder / "model.safetensors").unlink()
    elif what == "config":
        (folder / "config.json").unlink()
    elif what == "json":
        (folder / "config.json").write_text("{")
    elif what == "tokenizer":
        for file in folder.glob("tokenizer*"):
            file.unlink()
    elif what == "architecture":
        (folder / "config.json").write_text(json.dumps(config | {"architectures": ["ViTModel"]}))
    elif what == "type":
        (folder / "config.json").write_text(json.dumps(config | {"model_type": "nobody"}))
    elif what == "part":
        (folder / "config.json").write_text(json.dumps(config | {"num_hidden_layers": 3}))
    elif what == "quantized":
        (folder / "config.json").write_text(
            json.dumps(config | {"quantization_config": {"quant_method": "x"}})
        )
    elif what == "quantized beside":
        (folder / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": "FP8"}}')
    return folder


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("weights", "has no weights; expected model.safetensors"),
        ("config", "has no config.json"),
        ("json", "cannot be read"),
        ("tokenizer", "has no tokenizer that reads text"),
        ("architecture", "names the architecture ViTModel; expected a causal language model"),
        ("type", "holds no causal language model"),
        ("part", "of its tensors are missing, as model.layers.2."),
        ("quantized", "is quantized already"),
        ("quantized beside", "is quantized already"),
    ],
)
def test_a_folder_that_is_no_model_is_refused(
    models: Path, tmp_path: Path, capsys: Any, what: str, message: str
) -> None:
    folder = broken(models, tmp_path, what)
    assert cli.run(["compare", str(folder), "--data", str(models / "texts"), "--formats", "mxfp4"]) == 2
    assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("kind", "data", "words", "message"),
    [
        ("llama", "", [], "holds 0 bytes of text"),
        ("llama", "short", [], "need at least 64"),
        ("bert", "  \n\n", [], "has no line of text"),
        ("bert", "early\tabc\nnever\tabc", [], "expected one of 0, 1, early, late"),
        ("bert", "early\tabc\nabc", [], "the line 'abc' begins with no class"),
        ("llama", "x" * 900, ["--method", "best"], "--method 'best' is not one of"),
        ("llama", "x" * 900, ["--calibrate", "d.txt"], "--calibrate does nothing for rounding"),
        ("llama", "x" * 900, ["--seeds", "2"], "--seeds does nothing for a model of Hugging Face"),
        ("llama", "x" * 900, ["--include", "nobody"], "--include 'nobody' fits no module"),
        ("llama", "x" * 900, ["--include", "model.norm"], "no linear or convolution layer"),
    ],
)
def test_data_and_options_that_cannot_be_are_refused(
    models: Path,
    tmp_path: Path,
    capsys: Any,
    monkeypatch: Any,
    kind: str,
    data: str,
    words: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("d.txt").write_text(data)
    asked = ["compare", str(models / kind), "--data", "d.txt", "--formats", "mxfp4", *words]
    assert cli.run(asked) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_data_without_a_model_is_refused(models: Path, capsys: Any) -> None:
    assert cli.run(["compare", "--data", str(models / "texts")]) == 2
    assert "without a model" in capsys.readouterr().err


def test_pieces_have_one_length_and_the_mean_is_that_of_all_tokens(models: Path) -> None:
    from fewbits.compare import Perplexity
    from fewbits.integrations.language_model import load_language_model, text_pieces

    model = load_language_model(models / "llama")
    pieces = text_pieces(models / "llama", model, models / "texts")
    assert pieces.shape == (64, 64)
    means = Perplexity(pieces).outputs(model)
    total = 0.0
    for piece in pieces:
        total += float(model(input_ids=piece[None], labels=piece[None]).loss) * 63
    assert math.isclose(float(means.mean()), total / (64 * 63), rel_tol=1e-5)
    assert torch.isfinite(means).all()


def test_long_rows_of_an_array_are_cut_like_a_text(models: Path, tmp_path: Path) -> None:
    from fewbits.integrations.language_model import load_language_model, text_pieces

    model = load_language_model(models / "llama")
    rows = np.random.default_rng(0).integers(0, 120, (3, 150))
    np.save(tmp_path / "rows.npy", rows)
    (tmp_path / "rows.npy").rename(tmp_path / "ROWS.NPY")
    pieces = text_pieces(models / "llama", model, tmp_path / "ROWS.NPY")
    assert pieces.tolist() == rows[:, :128].reshape(6, 64).tolist()


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.array(["abc", "de"] * 99), r"holds strings of shape \(198,\); expected integers, token ids"),
        (np.array([b"abc", b"de"] * 99), r"holds strings of shape \(198,\); expected integers, token ids"),
        (np.array([1, "de", None] * 99, object), "is no array of numbers of NumPy: Object arrays"),
        (np.zeros(99, bool), r"holds bool of shape \(99,\); expected integers, token ids"),
        (np.zeros(99), r"holds float64 of shape \(99,\); expected integers, token ids"),
        (np.zeros((9, 0), np.int64), r"holds int64 of shape \(9, 0\); expected integers, token ids"),
        (np.full(99, 2**64 - 3, np.uint64), "holds 18446744073709551613, which is no token id"),
    ],
)
def test_an_array_of_anything_but_token_ids_is_refused(
    models: Path, tmp_path: Path, array: Any, message: str
) -> None:
    from fewbits.integrations.classifier import labelled_lines, load_classifier
    from fewbits.integrations.language_model import load_language_model, text_pieces, token_batches

    model = load_language_model(models / "llama")
    path = tmp_path / "d.npy"
    np.save(path, array, allow_pickle=True)
    for read in (text_pieces, token_batches):
        with pytest.raises(fb.DataError, match=message):
            read(models / "llama", model, path)
    with pytest.raises(fb.DataError, match="is an array of NumPy, and a classifier takes text"):
        labelled_lines(models / "bert", load_classifier(models / "bert"), path.rename(tmp_path / "D.NPY"))


def test_files_that_only_look_like_an_array_are_refused(models: Path, tmp_path: Path) -> None:
    from fewbits.integrations.language_model import load_language_model, text_pieces

    model, path = load_language_model(models / "llama"), tmp_path / "d.npy"
    with path.open("wb") as file:
        np.savez(file, a=np.zeros(99, np.int64), b=np.zeros(99, np.int64))
    with pytest.raises(fb.DataError, match="holds several arrays"):
        text_pieces(models / "llama", model, path)
    for content in (b"", b"PK\x03\x04 and no archive", b"\x93NUMPY", b"text"):
        path.write_bytes(content)
        with pytest.raises(fb.DataError, match="is no array of numbers of NumPy"):
            text_pieces(models / "llama", model, path)


def test_lines_end_with_a_newline_and_nothing_else(models: Path, tmp_path: Path) -> None:
    from fewbits.integrations.classifier import labelled_lines, load_classifier

    model = load_classifier(models / "bert")
    inside = ["\u2028", "\u2029", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\r"]
    lines = [f"{i % 2}\tab{mark}cd" for i, mark in enumerate(inside)]
    for end in ("\n", "\r\n"):
        (tmp_path / "d.tsv").write_bytes(end.join(lines).encode())
        found, labels = labelled_lines(models / "bert", model, tmp_path / "d.tsv")
        assert labels == [i % 2 for i in range(len(inside))]
        assert len(found) == len(inside)
    # The control: this is where Python's splitlines cuts.
    assert len("\n".join(lines).splitlines()) == 2 * len(inside)


def test_what_is_no_class_is_not_scored() -> None:
    from types import SimpleNamespace

    from torch import nn

    from fewbits.compare.text_models import Classification

    class Outputs(nn.Module):
        def __init__(self, numbers: int, kind: str | None) -> None:
            super().__init__()
            self.numbers, self.config = numbers, SimpleNamespace(problem_type=kind)

        def forward(self, **_: object) -> object:
            return SimpleNamespace(logits=torch.arange(1.0, self.numbers + 1)[None])

    one = Classification([{"x": torch.zeros(1)}])
    assert one.outputs(Outputs(2, None)).tolist() == [[1, 2]]
    for numbers, kind in ((1, None), (3, "multi_label_classification"), (2, "regression")):
        with pytest.raises(fb.DataError, match="is no class"):
            one.outputs(Outputs(numbers, kind))


def test_a_line_without_a_token_is_refused_by_its_number(models: Path, monkeypatch: Any) -> None:
    from fewbits.integrations import pretrained

    monkeypatch.setattr(pretrained, "_tokenized", lambda *_, **__: [{"input_ids": [1]}, {"input_ids": []}])
    with pytest.raises(fb.DataError, match="line 2 has no token"):
        pretrained.lines_of(models / "bert", ["a", ""], 8)


def test_positions_of_roberta_begin_behind_its_padding() -> None:
    from transformers import RobertaConfig, RobertaForSequenceClassification

    from fewbits.integrations.pretrained import positions_of

    config = RobertaConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8, vocab_size=9,
        max_position_embeddings=20,
    )  # fmt: skip
    model = RobertaForSequenceClassification(config).eval()
    assert positions_of(model, 512) == 18
    model(input_ids=torch.full((1, 18), 5))
    with pytest.raises((IndexError, RuntimeError)):
        model(input_ids=torch.full((1, 19), 5))
