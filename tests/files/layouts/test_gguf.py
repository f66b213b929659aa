"""GGUF: files that the gguf package and transformers read, and files that the package itself wrote."""

import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import fewbits as fb
from fewbits.errors import ArgumentError, DataError
from fewbits.files import cast, inspect, restore
from fewbits.files import load_file as load_narrow
from fewbits.files.contents import sound_contents
from fewbits.files.layouts.gguf_blocks import BLOCK_TYPES
from tests.files.layouts.models import SIZES, loaded, logits, saved_llama

gguf = pytest.importorskip("gguf")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

FORMATS = {
    "MXFP4": "mxfp4",
    "NVFP4": "block(element=fp4_e2m1,scale=fp8_e4m3,size=16)",
    "Q8_0": "block(element=int(8,coding=symmetric),scale=fp16,size=32)",
    "Q4_0": "block(element=int(4,coding=symmetric),scale=fp16,size=32)",
    "TQ1_0": "block(element=lookup(-1,0,1),scale=fp16,size=256)",
    "TQ2_0": "block(element=ternary,scale=fp16,size=256)",
    "BF16": "bf16",
    "F16": "fp16",
}
WIDE = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4}
Q = "model.layers.0.self_attn.q_proj.weight"


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_llama(tmp_path_factory.mktemp("llama") / "wide", **WIDE, max_shard_size="800KB")


def written(source: Path, folder: Path, fmt: str = "mxfp4", **choices: Any) -> Path:
    file = folder / "model.gguf"
    cast(source, file, format=fmt, layout="gguf", **choices)
    assert not inspect(file).problems
    return file


def weights(source: Path) -> dict[str, torch.Tensor]:
    return {name: x for file in source.glob("*.safetensors") for name, x in load_file(file).items()}


def finish(writer: gguf.GGUFWriter) -> None:
    """Write all that was added to a file, and close it."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def by_the_package(file: Path) -> dict[str, np.ndarray]:
    """All values as the package dequantizes them."""
    return {
        t.name: gguf.quants.dequantize(t.data, t.tensor_type).reshape(t.shape[::-1])
        for t in gguf.GGUFReader(file).tensors
    }


def interleaved(x: torch.Tensor, heads: int) -> torch.Tensor:
    """As llama.cpp's converter permutes q and k."""
    return x.reshape(heads, 2, x.shape[0] // heads // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


@pytest.mark.parametrize("kind", FORMATS)
def test_transformers_loads_the_weights_bit_for_bit_and_computes_the_same(
    llama: Path, tmp_path: Path, kind: Any
) -> None:
    fmt = FORMATS[kind]
    file = written(llama, tmp_path, fmt)
    types = {t.name: t.tensor_type.name for t in gguf.GGUFReader(file).tensors}
    assert {types[f"blk.1.{leaf}.weight"] for leaf in ("attn_q", "ffn_down")} == {kind}
    assert (types["token_embd.weight"], types["blk.0.attn_norm.weight"]) == ("BF16", "F32")
    wide = weights(llama)
    expected = {n: fb.fake_quantize(x.float(), fmt) if "proj" in n else x.float() for n, x in wide.items()}
    model = loaded(tmp_path, gguf_file="model.gguf", dtype=torch.float32)
    for name, x in model.state_dict().items():
        assert torch.equal(x, expected[name]), name
    dense = loaded(llama, dtype=torch.float32)
    before = logits(dense)
    dense.load_state_dict(expected, strict=False)
    assert torch.equal(logits(model), logits(dense))
    if kind != "BF16":
        assert not torch.equal(before, logits(dense))  # the control: narrow is not wide


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("bias", [False, True])
def test_the_package_dequantizes_the_same_and_back_is_the_checkpoint(
    tmp_path: Path, kind: Any, bias: bool
) -> None:
    llama = saved_llama(tmp_path / "wide", **WIDE, attention_bias=bias)
    if bias:  # of zeros otherwise
        tensors = {n: torch.randn_like(x) if "bias" in n else x for n, x in weights(llama).items()}
        save_file(tensors, llama / "model.safetensors", {"format": "pt"})
    file, wide = written(llama, tmp_path, FORMATS[kind]), weights(llama)
    found = by_the_package(file)
    for leaf, own, heads in (("q", "attn_q", 4), ("k", "attn_k", 2), ("v", "attn_v", 0)):
        for end in ("weight", "bias") if bias else ("weight",):
            x = wide[f"model.layers.0.self_attn.{leaf}_proj.{end}"].float()
            expected = fb.fake_quantize(x, FORMATS[kind]) if end == "weight" else x
            ours = interleaved(expected, heads) if heads else expected
            np.testing.assert_array_equal(found[f"blk.0.{own}.{end}"], ours.numpy())
            if heads:
                assert not torch.equal(ours, expected)
    if kind in ("BF16", "F16"):
        assert all(t.format is None for t in inspect(file).tensors)
        return
    restore(file, tmp_path / "back.safetensors")
    back = load_file(tmp_path / "back.safetensors")
    assert set(back) == set(wide)
    for name, x in wide.items():
        expected = fb.fake_quantize(x.float(), FORMATS[kind]) if name.endswith("proj.weight") else x.float()
        assert torch.equal(back[name].float(), expected), name
    for name, x in load_narrow(file).items():
        dense = x.dequantize() if isinstance(x, fb.NarrowTensor) else x
        assert torch.equal(dense, back[name]), name


def test_an_outer_scale_is_a_tensor_of_its_own(llama: Path, tmp_path: Path) -> None:
    file, wide = written(llama, tmp_path, "nvfp4"), weights(llama)
    found = by_the_package(file)
    outer = found["blk.0.ffn_up.scale"]
    assert outer.shape == (1,)
    x = wide["model.layers.0.mlp.up_proj.weight"].float()
    np.testing.assert_allclose(
        found["blk.0.ffn_up.weight"] * outer, fb.fake_quantize(x, "nvfp4"), rtol=2**-22
    )
    restore(file, tmp_path / "back.safetensors")
    back = load_file(tmp_path / "back.safetensors")
    assert set(back) == set(wide)
    assert torch.equal(back[Q], fb.fake_quantize(wide[Q].float(), "nvfp4"))
    direct = tmp_path / "direct"
    direct.mkdir()
    written(llama, direct, FORMATS["NVFP4"])
    assert "blk.0.ffn_up.scale" not in by_the_package(direct / "model.gguf")
    narrow = [fb.qsnr(x, fb.fake_quantize(x, fmt)) for fmt in ("nvfp4", FORMATS["NVFP4"])]
    assert narrow[0] > narrow[1] + 0.2  # why the outer scale is kept where it was asked for


@pytest.mark.parametrize("piece", [256, 5000])
def test_the_size_of_a_piece_changes_no_byte(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: Any
) -> None:
    whole = written(llama, tmp_path, "nvfp4").read_bytes()
    monkeypatch.setattr("fewbits.files.piecewise.PIECE_VALUES", piece)
    (tmp_path / "pieces").mkdir()
    file = written(llama, tmp_path / "pieces", "nvfp4")
    assert file.read_bytes() == whole
    restore(file, tmp_path / "a.safetensors")
    monkeypatch.undo()
    restore(file, tmp_path / "b.safetensors")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


@pytest.mark.parametrize("kind", ["qwen2", "qwen3", "mistral"])
def test_other_architectures_load_too(tmp_path: Path, kind: Any) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    sizes = SIZES | ({"head_dim": 128, "tie_word_embeddings": True} if kind == "qwen3" else {})
    config = AutoConfig.for_model(kind, **sizes)
    model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    for name, x in model.named_parameters():
        if name.endswith("bias") or "norm" in name:
            torch.nn.init.normal_(x)
    model.save_pretrained(tmp_path / "wide")  # its name goes along, and transformers fails on "mistral" there
    written(tmp_path / "wide", tmp_path, "mxfp4")
    found = loaded(tmp_path, gguf_file="model.gguf", dtype=torch.float32)
    restore(tmp_path / "model.gguf", tmp_path / "back.safetensors")
    dense = loaded(tmp_path / "wide", dtype=torch.float32)
    back = load_file(tmp_path / "back.safetensors")
    dense.load_state_dict({name: x.float() for name, x in back.items()}, strict=False)
    for name, x in found.state_dict().items():
        assert torch.equal(x, dense.state_dict()[name]), name
    # Sizes such as the epsilon of a norm are FP32 in GGUF, and text in a config.
    torch.testing.assert_close(logits(found), logits(dense), rtol=0, atol=1e-5)


NAMES = {  # of the tensors of a layer, as llama.cpp reads them
    "olmo2": [
        "attn_q.weight", "attn_k.weight", "attn_v.weight", "attn_output.weight", "attn_q_norm.weight",
        "attn_k_norm.weight", "post_attention_norm.weight", "post_ffw_norm.weight", "ffn_gate.weight",
        "ffn_up.weight", "ffn_down.weight",
    ],
    "seed_oss": [
        "attn_norm.weight", "attn_q.weight", "attn_q.bias", "attn_k.weight", "attn_k.bias", "attn_v.weight",
        "attn_v.bias", "attn_output.weight", "post_attention_norm.weight", "ffn_gate.weight", "ffn_up.weight",
        "ffn_down.weight",
    ],
    "starcoder2": [
        "attn_norm.weight", "attn_norm.bias", "attn_q.weight", "attn_q.bias", "attn_k.weight", "attn_k.bias",
        "attn_v.weight", "attn_v.bias", "attn_output.weight", "attn_output.bias", "ffn_norm.weight",
        "ffn_norm.bias", "ffn_up.weight", "ffn_up.bias", "ffn_down.weight", "ffn_down.bias",
    ],
}  # fmt: skip


@pytest.mark.parametrize("kind", NAMES)
def test_architectures_that_need_no_other_order_have_all_names_sizes_and_values(
    tmp_path: Path, kind: Any
) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **SIZES, pad_token_id=0))
    for x in model.parameters():
        torch.nn.init.normal_(x)
    model.save_pretrained(tmp_path / "wide")
    file, wide = written(tmp_path / "wide", tmp_path), weights(tmp_path / "wide")
    found, reader = by_the_package(file), gguf.GGUFReader(file)
    ends = {name.removeprefix("blk.1.") for name in found if name.startswith("blk.1.")}
    assert ends == set(NAMES[kind])
    known = {gguf.TENSOR_NAMES[t] for t in gguf.MODEL_TENSORS[gguf.MODEL_ARCH[kind.upper()]]}
    assert {
        name.rpartition(".")[0].replace("blk.1.", "blk.{bid}.") for name in found if ".0." not in name
    } <= known
    rms = "attention.layer_norm_rms_epsilon" if kind != "starcoder2" else "attention.layer_norm_epsilon"
    for key in (
        "block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count",
        "attention.head_count_kv", rms, "rope.freq_base", "vocab_size",
    ):  # fmt: skip
        assert reader.get_field(f"{kind}.{key}") is not None, key
    restore(file, tmp_path / "back.safetensors")
    back = load_file(tmp_path / "back.safetensors")
    assert set(back) == set(wide)
    for name, x in wide.items():
        is_cast = name.endswith(".weight") and any(leaf in name for leaf in ("_proj", "c_fc"))
        assert torch.equal(back[name].float(), fb.fake_quantize(x.float(), "mxfp4") if is_cast else x.float())


@pytest.mark.parametrize(
    ("kind", "changes", "context"),
    [
        ("mistral", {"sliding_window": 24}, 24),
        ("mistral", {"sliding_window": None}, 96),
        ("mistral", {"sliding_window": 4096}, 96),
        ("starcoder2", {"sliding_window": 24}, 24),
        ("qwen2", {"sliding_window": 24, "use_sliding_window": True, "max_window_layers": 1}, 24),
        ("qwen2", {"sliding_window": 24, "use_sliding_window": False}, 96),
        ("qwen3", {"sliding_window": 24, "use_sliding_window": True, "max_window_layers": 0}, 24),
        ("llama", {"sliding_window": 24}, 96),  # which transformers leaves unread
    ],
)
def test_a_text_is_no_longer_than_what_layers_attend_to(
    tmp_path: Path, kind: str, changes: dict[str, Any], context: int
) -> None:
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(kind, **SIZES, max_position_embeddings=96, pad_token_id=0, **changes)
    model = AutoModelForCausalLM.from_config(config)
    model.save_pretrained(tmp_path / "wide")
    reader = gguf.GGUFReader(written(tmp_path / "wide", tmp_path))
    name = "llama" if kind == "mistral" else kind
    assert reader.get_field(f"{name}.context_length").contents() == context
    # The model itself, with and without what lies before one window.
    tokens = torch.arange(1, 61).reshape(1, 60) % 60
    changed = tokens.clone()
    changed[0, 0] = 63
    model.eval()
    with torch.no_grad():
        first, second = (
            model(t, attention_mask=torch.ones_like(t)).logits[0, :, :].double() for t in (tokens, changed)
        )
    seen = bool((first[-1] != second[-1]).any())
    assert seen is (context == 96 or changes.get("max_window_layers") == 1)


def tokenizer(folder: Path, *, byte_fallback: bool) -> None:
    """Train a tokenizer of byte pairs as Llama 3 has, or of characters with bytes as Llama 2 has."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    from fewbits.files.layouts.gguf_model import _SPLITS

    text = ["a layout is a layout is a layout", "numbers 123 456", "größer"] * 9
    if byte_fallback:
        told = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
        told.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
        told.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        )
        special = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
        trainer = trainers.BpeTrainer(vocab_size=310, special_tokens=special, show_progress=False)
    else:
        told = Tokenizer(models.BPE())
        split = pre_tokenizers.Split(Regex(next(iter(_SPLITS))), "isolated")
        told.pre_tokenizer = pre_tokenizers.Sequence(
            [split, pre_tokenizers.ByteLevel(False, use_regex=False)]
        )
        told.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=310, special_tokens=["<s>", "</s>"], show_progress=False,
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        )  # fmt: skip
    told.train_from_iterator(text, trainer)
    fast = PreTrainedTokenizerFast(tokenizer_object=told, bos_token="<s>", eos_token="</s>")
    fast.add_tokens(["<layout>"])
    fast.save_pretrained(folder)


@pytest.mark.parametrize("byte_fallback", [False, True])
def test_the_tokenizer_goes_along(tmp_path: Path, byte_fallback: bool) -> None:
    from transformers import AutoTokenizer

    llama = saved_llama(tmp_path / "wide", vocab_size=320)
    tokenizer(llama, byte_fallback=byte_fallback)
    file = written(llama, tmp_path)
    reader = gguf.GGUFReader(file)

    def told(key: str) -> Any:
        return reader.get_field(f"tokenizer.ggml.{key}").contents()

    source = AutoTokenizer.from_pretrained(llama)
    vocabulary = source.get_vocab()
    tokens, kinds = told("tokens"), told("token_type")
    for token, number in vocabulary.items():
        assert tokens[number] == token
    assert (told("bos_token_id"), told("eos_token_id")) == (source.bos_token_id, source.eos_token_id)
    assert kinds[vocabulary["<s>"]] == gguf.TokenType.CONTROL
    assert kinds[vocabulary["<layout>"]] == gguf.TokenType.USER_DEFINED
    if byte_fallback:
        assert told("model") == "llama"
        assert kinds[vocabulary["<0x0A>"]] == gguf.TokenType.BYTE
        return
    assert (told("model"), told("pre"), len(tokens)) == ("gpt2", "llama-bpe", 320)
    assert kinds[319] == gguf.TokenType.UNUSED
    merges = json.loads((llama / "tokenizer.json").read_text())["model"]["merges"]
    assert told("merges") == [m if isinstance(m, str) else " ".join(m) for m in merges]


BYTES = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
DIGITS = {"type": "Digits", "individual_digits": True}


def split(regex: str, **changes: Any) -> dict[str, Any]:
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": "Isolated", "invert": False} | changes


@pytest.mark.parametrize(
    ("steps", "name"),
    [
        ([BYTES | {"use_regex": True}], "gpt-2"),
        ([DIGITS, BYTES | {"use_regex": True}], "starcoder"),
        ([split("llama-bpe"), BYTES], "llama-bpe"),
        ([split("qwen2"), BYTES], "qwen2"),
        ([BYTES], None),  # no words at all
        ([BYTES | {"use_regex": True, "add_prefix_space": True}], None),
        ([DIGITS | {"individual_digits": False}, BYTES | {"use_regex": True}], None),
        ([split("llama-bpe"), BYTES | {"use_regex": True}], None),  # split twice
        ([split("llama-bpe", behavior="Removed"), BYTES], None),
        ([split("llama-bpe", invert=True), BYTES], None),
        ([split("llama-bpe"), split("qwen2"), BYTES], None),
        ([split("another"), BYTES], None),
        ([split("llama-bpe")], None),
        ([{"type": "Whitespace"}], None),
        ([], None),
    ],
)
def test_the_way_that_a_text_is_split_has_a_name_or_is_refused(steps: Any, name: str | None) -> None:
    from fewbits.files.layouts.gguf_model import _SPLITS, _pre

    regexes = {theirs: regex for regex, theirs in _SPLITS.items()}
    for step in steps:
        if step["type"] == "Split":
            step["pattern"] = {"Regex": regexes.get(step["pattern"]["Regex"], step["pattern"]["Regex"])}
    told = {"pre_tokenizer": steps[0] if len(steps) == 1 else {"type": "Sequence", "pretokenizers": steps}}
    if name is not None:
        assert _pre(told) == name
        return
    with pytest.raises(ArgumentError, match="splits texts in a way"):
        _pre(told)


def by_their_writer(file: Path, kinds: list[str]) -> Path:
    """Write values that gguf quantized, of an architecture that is not known."""
    x = np.random.default_rng(0).standard_normal((8, 512)).astype(np.float32)
    writer = gguf.GGUFWriter(file, "starcoder")
    for kind in kinds:
        of_type = gguf.GGMLQuantizationType[kind]
        data = np.zeros((8, 352), np.uint8) if kind == "Q5_K" else gguf.quants.quantize(x, of_type)
        writer.add_tensor(kind, data, raw_dtype=of_type)
    finish(writer)
    return file


def test_what_the_package_rounded_and_wrote_is_read_as_it_reads_it(tmp_path: Path) -> None:
    kinds = ["MXFP4", "Q8_0", "Q4_0", "TQ1_0", "TQ2_0", "BF16", "F16", "F32"]
    file = by_their_writer(tmp_path / "model.gguf", kinds)
    report = inspect(file)
    assert not report.problems
    tensors = {t.tensor: t for t in report.tensors}
    assert tensors["MXFP4"].format == "mxfp4"
    assert tensors["Q4_0"].format == fb.format("block(element=int(4),scale=fp16,size=32)").grammar
    assert (tensors["BF16"].dtype, tensors["F16"].dtype, tensors["F32"].format) == ("BF16", "F16", None)
    restore(file, tmp_path / "back.safetensors")
    back, expected = load_file(tmp_path / "back.safetensors"), by_the_package(file)
    assert set(back) == set(kinds)
    for kind in kinds:
        np.testing.assert_array_equal(back[kind].float().numpy(), expected[kind])


@pytest.mark.parametrize("shape", [(0, 32), (3, 0), (0,)])
def test_a_tensor_without_values_is_read_as_the_package_reads_it(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    file = tmp_path / "model.gguf"
    writer = gguf.GGUFWriter(file, "starcoder")
    writer.add_tensor("none", np.zeros(shape, np.float32))
    writer.add_tensor("some", np.arange(2, dtype=np.float32))
    finish(writer)
    assert not inspect(file).problems
    restore(file, tmp_path / "back.safetensors")
    expected = by_the_package(file)
    for found in (load_file(tmp_path / "back.safetensors"), load_narrow(file)):
        assert {name: tuple(x.shape) for name, x in found.items()} == {"none": shape, "some": (2,)}
        for name, x in found.items():
            np.testing.assert_array_equal(x.numpy(), expected[name])


def test_a_file_that_ends_between_two_blocks_while_it_is_read_was_cut_short(tmp_path: Path) -> None:
    file = by_their_writer(tmp_path / "model.gguf", ["Q8_0"])
    (tensor,) = sound_contents(file).narrow
    os.truncate(file, file.stat().st_size - 34)
    with file.open("rb") as opened, pytest.raises(DataError, match="was cut short while it was read"):
        tensor.parts["codes"].read(opened, 0, 8 * 512)


def test_big_endian_numbers_are_not_taken_for_little_endian_ones(tmp_path: Path) -> None:
    x, files = np.arange(64, dtype=np.float32).reshape(2, 32), {}
    for order in ("LITTLE", "BIG"):
        files[order] = tmp_path / f"{order}.gguf"
        writer = gguf.GGUFWriter(files[order], "starcoder", endianess=gguf.GGUFEndian[order])
        writer.add_tensor("x", x.copy())  # which the writer may swap in place
        finish(writer)
        np.testing.assert_array_equal(gguf.GGUFReader(files[order]).tensors[0].data, x)
    np.testing.assert_array_equal(load_narrow(files["LITTLE"])["x"].numpy(), x)
    for read in (inspect, load_narrow, lambda file: restore(file, tmp_path / "back.safetensors")):
        with pytest.raises(DataError, match=r"big-endian order.*gguf-convert-endian"):
            read(files["BIG"])
    assert not (tmp_path / "back.safetensors").exists()


def test_every_scale_byte_of_nvfp4_is_read_as_the_package_reads_it(tmp_path: Path) -> None:
    """Among them 0x7F, NaN in E4M3, which ggml reads as zero, and bytes with a sign, which it ignores."""
    rng = np.random.default_rng(0)
    blocks = rng.integers(0, 256, (64, 36), np.uint8)
    blocks[:, :4] = np.arange(256, dtype=np.uint8).reshape(64, 4)
    blocks[:, 4:] |= 0x11  # no item is zero
    blocks[-1, 3] = 0x38  # in the place of 0xFF, which is no number in E4M3 and 480 in the package
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "starcoder")
    writer.add_tensor("x.weight", blocks, raw_dtype=gguf.GGMLQuantizationType.NVFP4)
    finish(writer)
    restore(tmp_path / "model.gguf", tmp_path / "back.safetensors")
    (found,) = load_file(tmp_path / "back.safetensors").values()
    (expected,) = by_the_package(tmp_path / "model.gguf").values()
    np.testing.assert_array_equal(found.float().numpy(), expected)
    zero = np.flatnonzero(~expected.reshape(-1, 16).any(axis=1))
    assert zero.tolist() == [0x00, 0x7F, 0x80]


@pytest.mark.parametrize("kind", ["MXFP4", "Q8_0", "Q4_0", "TQ1_0", "TQ2_0"])
def test_every_code_is_read_as_the_package_reads_it(tmp_path: Path, kind: str) -> None:
    """Also those that its quantizer does not write, as -8 of Q4_0, and the digit 3 of TQ2_0, which is 2."""
    of_type = gguf.GGMLQuantizationType[kind]
    blocks = np.random.default_rng(0).integers(0, 256, (64, gguf.GGML_QUANT_SIZES[of_type][1]), np.uint8)
    if kind == "MXFP4":
        blocks[:, 0] = np.arange(100, 164)
    else:
        blocks[:, 0 if kind[0] == "Q" else -2 :][:, :2] = np.array([0.75], "<f2").view(np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "starcoder")
    writer.add_tensor("x.weight", blocks, raw_dtype=of_type)
    finish(writer)
    restore(tmp_path / "model.gguf", tmp_path / "back.safetensors")
    (found,) = load_file(tmp_path / "back.safetensors").values()
    (expected,) = by_the_package(tmp_path / "model.gguf").values()
    np.testing.assert_array_equal(found.float().numpy(), expected)
    (narrow,) = load_narrow(tmp_path / "model.gguf").values()
    assert isinstance(narrow, fb.NarrowTensor)
    np.testing.assert_array_equal(narrow.dense().float().numpy(), expected)


def test_blocks_of_tq2_0_are_joined_as_they_are_split() -> None:
    blocks = np.random.default_rng(0).integers(0, 256, (64, 66), np.uint8)
    kinds = [kind for kind in BLOCK_TYPES if kind.name == "TQ2_0"]
    assert len(kinds) == 2
    for kind in kinds:
        np.testing.assert_array_equal(kind.join(*kind.split(blocks)), blocks)


@pytest.mark.parametrize("counts", [4, [4, 4], [4, 2], None])
def test_rows_of_heads_come_back_also_where_each_layer_has_a_count(tmp_path: Path, counts: Any) -> None:
    """llama.cpp takes one count for all layers, or one for each of them."""
    wide = torch.arange(16 * 32, dtype=torch.float32).reshape(16, 32)
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_block_count(2)
    if counts is not None:
        writer.add_head_count(counts)
    for i in range(2):
        writer.add_tensor(f"blk.{i}.attn_q.weight", interleaved(wide, 4).numpy())
    finish(writer)
    if counts in (4, [4, 4]):
        restore(tmp_path / "model.gguf", tmp_path / "back.safetensors")
        assert all(torch.equal(x, wide) for x in load_file(tmp_path / "back.safetensors").values())
    else:
        with pytest.raises(DataError, match=r"q_proj.weight' has 16 rows in the order of heads"):
            restore(tmp_path / "model.gguf", tmp_path / "back.safetensors")


def test_a_type_that_is_not_read_is_told_and_not_restored(tmp_path: Path) -> None:
    file = by_their_writer(tmp_path / "model.gguf", ["MXFP4", "Q5_K"])
    (problem,) = inspect(file).problems
    assert problem.endswith("tensor 'Q5_K' is Q5_K [8, 512], which is not read")
    with pytest.raises(DataError, match="Q5_K"):
        restore(file, tmp_path / "back.safetensors")


@pytest.mark.parametrize(
    ("changes", "choices", "told"),
    [
        ({}, {"format": "mxfp6_e2m3"}, "layout='gguf' has no mxfp6_e2m3; it has mxfp4, nvfp4"),
        ({"model_type": "gemma3"}, {}, "has no model_type 'gemma3'; it has llama, mistral, qwen2"),
        ({"rope_parameters": {"rope_type": "llama3"}}, {}, "no rotary positions of type 'llama3'"),
        ({"num_hidden_layers": None}, {}, "num_hidden_layers=None; layout='gguf' needs a count"),
        ({"num_attention_heads": "4"}, {}, "num_attention_heads='4'; layout='gguf' needs a count"),
        ({"num_key_value_heads": -2}, {}, "num_key_value_heads=-2; layout='gguf' needs a count"),
        ({"head_dim": "16"}, {}, "head_dim='16'; layout='gguf' needs a count"),
        ({"rms_norm_eps": None}, {}, "rms_norm_eps=None; layout='gguf' needs a number"),
        ({"rope_parameters": {"rope_theta": [1]}}, {}, r"rope_theta=\[1\]; layout='gguf' needs a number"),
        (
            {"hidden_act": "gelu"},
            {},
            "hidden_act='gelu', and llama.cpp computes silu in models of type llama",
        ),
        ({}, {"format": FORMATS["TQ2_0"], "exclude": ["*down*"]}, "rows of 64 values, and TQ2_0 in layout"),
        ({}, {"destination": "model"}, "is no .gguf file by its name"),
    ],
)
def test_what_has_no_place_is_refused_by_name(tmp_path: Path, changes: Any, choices: Any, told: Any) -> None:
    source = saved_llama(tmp_path / "wide", intermediate_size=256)
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | changes))
    to = tmp_path / choices.pop("destination", "model.gguf")
    with pytest.raises(ArgumentError, match=told):
        cast(source, to, **({"format": "mxfp4", "layout": "gguf"} | choices))
    assert not to.exists()


def test_a_tensor_without_a_name_and_a_tokenizer_of_another_kind_are_refused(
    llama: Path, tmp_path: Path
) -> None:
    source = saved_llama(tmp_path / "wide")
    save_file(weights(source) | {"model.extra.weight": torch.zeros(2)}, source / "model.safetensors")
    with pytest.raises(ArgumentError, match=r"'model\.extra\.weight' has no name in the GGUF of llama"):
        written(source, tmp_path)
    source = saved_llama(tmp_path / "other")
    for text, told in (
        ('{"model": {"type": "Unigram"}}', "is of type 'Unigram'"),
        (
            '{"model": {"type": "BPE", "vocab": {"a": 64}}}',
            "has token 64, and config.json a vocab_size of 64",
        ),
        ('{"model": {"type": "BPE", "vocab": {"a": 0}}}', "splits texts in a way"),
    ):
        (source / "tokenizer.json").write_text(text)
        with pytest.raises(ArgumentError, match=told):
            written(source, tmp_path)
    (source / "tokenizer.json").unlink()
    (source / "tokenizer.model").write_bytes(b"x")
    with pytest.raises(ArgumentError, match=r"has a tokenizer.model and no tokenizer.json"):
        written(source, tmp_path)


def test_a_damaged_file_is_refused_in_one_line_wherever_the_damage_is(llama: Path, tmp_path: Path) -> None:
    file = written(llama, tmp_path)
    sound = file.read_bytes()
    rng = np.random.default_rng(0)
    for end in (4, 8, 23, 24, 200, 1000, 4000, len(sound) - 100_000):
        file.write_bytes(sound[:end])
        with pytest.raises(DataError) as caught:
            restore(file, tmp_path / "back.safetensors")
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 1000
    for at in rng.integers(4, 5000, 60):
        octets = bytearray(sound)
        octets[at : at + 8] = rng.integers(0, 256, 8, np.uint8).tobytes()
        file.write_bytes(octets)
        with suppress(DataError):
            assert all(len(problem) < 1000 for problem in inspect(file).problems)


def test_a_link_has_its_own_name_whatever_its_target_is_called(llama: Path, tmp_path: Path) -> None:
    file = written(llama, tmp_path)
    (tmp_path / "link.gguf").symlink_to("blob")
    cast(llama, tmp_path / "link.gguf", format="mxfp4", layout="gguf")
    assert (tmp_path / "blob").read_bytes() == file.read_bytes()
    assert not inspect(tmp_path / "link.gguf").problems


def test_without_the_package_the_layout_is_refused_by_name(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(llama, tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    monkeypatch.delitem(sys.modules, "gguf")
    for use in (lambda: cast(llama, file, format="mxfp4", layout="gguf"), lambda: inspect(file)):
        with pytest.raises(ImportError, match=r"needs the package gguf.* 'fewbits\[export\]'"):
            use()


@pytest.mark.parametrize(("name", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_a_file_of_nothing_narrower_than_sixteen_bits_comes_back_too(
    tmp_path: Path, name: str, dtype: torch.dtype
) -> None:
    source = saved_llama(tmp_path / "wide")
    cast(source, tmp_path / "m.gguf", format=name, layout="gguf")
    restore(tmp_path / "m.gguf", tmp_path / "back.safetensors")
    back, wide = load_file(tmp_path / "back.safetensors"), weights(source)
    assert set(back) == set(wide)
    for key, x in wide.items():
        held = x.to(dtype) if "_proj" in key else x
        assert torch.equal(back[key].float(), held.float()), key
