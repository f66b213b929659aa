"""Models of Hugging Face from folders with packed weights, judged by dense models with the same weights."""

import copy
import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import fewbits as fb
from fewbits.cli import main as cli
from fewbits.errors import ArgumentError, DataError
from fewbits.files import cast, load_file, restore
from tests.files.test_inspection import damage

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # its imports warn
    import transformers

    import fewbits.integrations.transformers  # registers what from_pretrained looks for
pytestmark = pytest.mark.filterwarnings("ignore")

TINY = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 100,
}
IDS = torch.arange(24).view(2, 12) % 100


def llama(**changes: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(**TINY | {"dtype": "float32"} | changes)
    return transformers.LlamaForCausalLM(config).eval()


def written(
    model: Any, folder: Path, format: str = "mxfp4", exclude: tuple[str, ...] = ("lm_head*",)
) -> Path:
    """Return a folder with the weights of a model packed, as a user makes it."""
    model.save_pretrained(folder / "dense")
    cast(folder / "dense", folder / "narrow", format=fb.format(format), exclude=exclude)
    return folder / "narrow"


def dense_twin(model: Any, folder: Path) -> Any:
    """Return a model with the values of the packed weights in ordinary tensors."""
    twin = copy.deepcopy(model)
    stored = load_file(folder)
    values = {n: x.dense() if isinstance(x, fb.NarrowTensor) else x for n, x in stored.items()}
    missing = twin.load_state_dict(values, strict=False)
    assert not missing.unexpected_keys
    assert set(missing.missing_keys) <= {"lm_head.weight"}  # where it is tied
    return twin


@pytest.mark.parametrize("format", ["mxfp4", "nvfp4", "mx6", "int8_channel"])
def test_a_packed_model_answers_as_a_dense_one_with_its_weights(format: str, tmp_path: Path) -> None:
    model = llama()
    folder = written(model, tmp_path, format)
    loaded: Any = fb.load(folder)
    weights = dict(loaded.named_parameters())
    packed = [n for n, p in weights.items() if isinstance(p, fb.NarrowTensor)]
    assert len(packed) == 2 * 7 + 1  # all matrices but the head
    assert not any(weights[n].requires_grad for n in packed)
    assert not loaded.training
    expected = dense_twin(model, folder)(IDS).logits
    torch.testing.assert_close(loaded(IDS).logits, expected, rtol=1e-5, atol=1e-5)
    assert (model(IDS).logits - expected).abs().max() > 1e-3  # rounding is seen at all


@pytest.mark.parametrize("format", ["mxfp4", "nvfp4", "mx6"])
def test_from_pretrained_gives_the_same_model(format: str, tmp_path: Path) -> None:
    folder = written(llama(), tmp_path, format)
    found, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values())
    expected: Any = fb.load(folder)
    for name, p in expected.named_parameters():
        assert torch.equal(found.get_parameter(name), p), name
    base = transformers.AutoModel.from_pretrained(folder)  # without the head, and the prefix of names
    assert isinstance(base.layers[0].mlp.up_proj.weight, fb.NarrowTensor)
    assert torch.equal(base(IDS).last_hidden_state, expected.model(IDS).last_hidden_state)


TWO = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "vocab_size": 100}
ENCODER = {"d_model": 64, "vocab_size": 100, "max_position_embeddings": 64} | {
    f"{part}_{what}": n
    for part in ("encoder", "decoder")
    for what, n in {"layers": 1, "attention_heads": 4, "ffn_dim": 96}.items()
}
RESNET = transformers.ResNetConfig(
    embedding_size=32, hidden_sizes=[32, 64], depths=[1, 1], out_features=["stage2"]
)
OTHERS = {  # what is held otherwise than in the file, or read by no product
    "MixtralForCausalLM": TINY | {"num_local_experts": 12},  # experts are merged; 2 comes before 10
    "GptOssForCausalLM": TINY | {"num_local_experts": 4, "num_experts_per_tok": 2, "head_dim": 16},  # stacked
    "GPTNeoXForCausalLM": TWO | {"intermediate_size": 96},  # another name of the head
    "MambaForCausalLM": TWO | {"state_size": 8},  # kernels of three axes, and a matrix that is no layer's
    "ViTForImageClassification": TWO | {"intermediate_size": 96, "image_size": 32, "patch_size": 8},
    "BartForConditionalGeneration": ENCODER,  # a buffer of two axes
    "TableTransformerModel": {k: v for k, v in ENCODER.items() if "embed" not in k and k != "vocab_size"}
    | {"backbone_config": RESNET, "use_timm_backbone": False, "num_queries": 5},  # repeats its queries
    "ProphetNetForConditionalGeneration": {  # adds a table to positions
        "hidden_size": 64,
        "vocab_size": 100,
        "max_position_embeddings": 64,
        "encoder_ffn_dim": 96,
        "num_encoder_layers": 1,
        "num_encoder_attention_heads": 4,
        "decoder_ffn_dim": 96,
        "num_decoder_layers": 1,
        "num_decoder_attention_heads": 4,
    },
    "WhisperForConditionalGeneration": ENCODER
    | {"max_source_positions": 50, "max_target_positions": 64, "pad_token_id": 0},
    "HubertModel": TWO  # a kernel of three axes under a norm of weights
    | {"intermediate_size": 96, "conv_dim": (16,), "conv_kernel": (4,), "conv_stride": (4,)}
    | {"num_feat_extract_layers": 1, "num_conv_pos_embeddings": 32, "num_conv_pos_embedding_groups": 4},
    "MoonshineModel": {  # a kernel as long as a row of a matrix
        "hidden_size": 64,
        "intermediate_size": 96,
        "vocab_size": 100,
        "encoder_num_hidden_layers": 1,
        "encoder_num_attention_heads": 4,
        "encoder_num_key_value_heads": 4,
        "decoder_num_hidden_layers": 1,
        "decoder_num_attention_heads": 4,
        "decoder_num_key_value_heads": 4,
    },
    "ReformerModel": {  # positions of three axes
        "hidden_size": 64,
        "num_attention_heads": 4,
        "attention_head_size": 16,
        "feed_forward_size": 96,
        "vocab_size": 100,
        "attn_layers": ["local"],
        "axial_pos_shape": (4, 8),
        "axial_pos_embds_dim": (32, 32),
    },
}


@pytest.mark.parametrize("kind", OTHERS)
def test_models_of_other_parts_answer_as_what_was_cast_back(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    of = getattr(transformers, kind)
    model = of(of.config_class(**OTHERS[kind])).eval()
    # Some experts in another format: each has to get its own.
    rules = {"*experts.1*": "nvfp4", "*experts.*.w3*": "mx6"} if "Mixtral" in kind else {}
    model.save_pretrained(tmp_path / "dense", max_shard_size="100KB")
    cast(tmp_path / "dense", tmp_path / "narrow", format="mxfp4", map=rules)
    restore(tmp_path / "narrow", tmp_path / "back")
    expected = dict(of.from_pretrained(tmp_path / "back").named_parameters())
    given = {
        "ViT": {"pixel_values": torch.ones(1, 3, 32, 32)},
        "TableTransformerModel": {"pixel_values": torch.ones(1, 3, 32, 32)},
        "ProphetNet": {"input_ids": IDS, "decoder_input_ids": IDS},
        "Whisper": {"input_features": torch.ones(1, 80, 100), "decoder_input_ids": IDS},
        "HubertModel": {"input_values": torch.ones(1, 160)},
        "MoonshineModel": {"input_values": torch.ones(1, 1600), "decoder_input_ids": IDS[:1]},
    }.get(kind.partition("For")[0], {"input_ids": IDS})
    for found in (fb.load(tmp_path / "narrow"), of.from_pretrained(tmp_path / "narrow")):
        held: Any = found
        held(**given)
        weights = dict(held.named_parameters())
        assert sum(isinstance(p, fb.NarrowTensor) for p in weights.values()) >= 7
        for name, p in weights.items():
            assert torch.equal(p.dense() if isinstance(p, fb.NarrowTensor) else p, expected[name]), name


def test_a_parameter_whose_name_ends_that_of_a_part_is_told_from_it(tmp_path: Path) -> None:
    """XLNet calls its parameters q, k, v, o and r, and NVFP4 has a part that is called outer."""
    torch.manual_seed(0)
    of = transformers.XLNetLMHeadModel
    sizes = {"vocab_size": 100, "d_model": 64, "n_layer": 1, "n_head": 4, "d_inner": 96}
    folder = written(of(transformers.XLNetConfig(**sizes)).eval(), tmp_path, "nvfp4", exclude=())
    restore(folder, tmp_path / "back")
    expected = of.from_pretrained(tmp_path / "back")
    found = of.from_pretrained(folder)
    torch.testing.assert_close(found(IDS).logits, expected(IDS).logits, rtol=1e-5, atol=1e-5)
    assert torch.equal(found.transformer.layer[0].rel_attn.r, expected.transformer.layer[0].rel_attn.r)


def test_wide_weights_take_the_dtype_that_is_asked_for(tmp_path: Path) -> None:
    folder = written(llama(), tmp_path, "nvfp4")
    found = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
    assert found.model.norm.weight.dtype == torch.bfloat16
    assert found.model.layers[0].mlp.up_proj.weight.outer.dtype == torch.float32


@pytest.mark.parametrize("stored", ["float32", "bfloat16"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_packed_weights_take_the_dtype_that_is_asked_for(
    stored: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    model = llama(dtype=stored).to(getattr(torch, stored))
    folder = written(model, tmp_path, exclude=())
    loaded = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    assert {p.dtype for p in loaded.parameters()} == {loaded.dtype} == {dtype}
    assert isinstance(loaded.model.layers[0].mlp.up_proj.weight, fb.NarrowTensor)
    values = loaded(IDS).logits
    assert values.dtype == dtype
    wanted = dense_twin(model, folder).to(dtype)(IDS).logits
    torch.testing.assert_close(values.float(), wanted.float(), rtol=0.05, atol=0.02)


def test_a_packed_model_is_not_half_saved(tmp_path: Path) -> None:
    folder = written(llama(), tmp_path)
    with pytest.raises(ArgumentError, match="`fewbits cast` writes its folder"):
        fb.load(folder).save_pretrained(tmp_path / "again")
    with pytest.raises(ValueError, match="is not serializable"):
        transformers.AutoModelForCausalLM.from_pretrained(folder).save_pretrained(tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_tied_embeddings_stay_one(tmp_path: Path) -> None:
    model = llama(tie_word_embeddings=True)
    folder = written(model, tmp_path, "mxfp8_e4m3", exclude=())
    loaded: Any = fb.load(folder)
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    assert isinstance(loaded.lm_head.weight, fb.NarrowTensor)
    twin = dense_twin(model, folder)
    torch.testing.assert_close(loaded(IDS).logits, twin(IDS).logits, rtol=1e-5, atol=1e-5)


def test_bfloat16_stays_bfloat16_and_generates(tmp_path: Path) -> None:
    model = llama(dtype="bfloat16").to(torch.bfloat16)
    model.generation_config.max_new_tokens = 7
    folder = written(model, tmp_path)
    loaded: Any = fb.load(folder)
    assert loaded.model.norm.weight.dtype == torch.bfloat16
    assert loaded.generate(IDS, do_sample=False, eos_token_id=-1).shape == (2, 12 + 7)


def test_inputs_of_packed_layers_are_rounded_where_that_is_asked_for(tmp_path: Path) -> None:
    model = llama()
    folder = written(model, tmp_path)
    loaded: Any = fb.load(folder, activation="int8_32")
    twin = dense_twin(model, folder)
    whole = twin(IDS).logits
    for name, layer in twin.named_modules():
        if isinstance(layer, torch.nn.Linear) and name != "lm_head":
            layer.register_forward_pre_hook(
                lambda _, args: fb.fake_quantize(
                    args[0], "block(element=int(8,coding=symmetric),scale=fp32,size=32)"
                )
            )
    assert (twin(IDS).logits - whole).abs().max() > 1e-3  # rounding is seen at all
    # Of many vectors, of one sequence of a few, and of one.
    for ids in (IDS, IDS[:1, :5], IDS[:1, :1]):
        torch.testing.assert_close(loaded(ids).logits, twin(ids).logits, rtol=1e-4, atol=1e-5)


def test_activations_that_no_layer_rounds_are_refused(tmp_path: Path) -> None:
    folder = written(llama(), tmp_path)
    with pytest.raises(ArgumentError, match="activation='int8'; expected None or int8_32"):
        fb.load(folder, activation="int8")
    with pytest.raises(ArgumentError, match="LlamaForCausalLM has no linear layer"):
        fb.load(tmp_path / "dense", activation="int8_32")


def test_what_does_not_fit_is_said(tmp_path: Path) -> None:
    folder = written(llama(), tmp_path)
    config = folder / "config.json"
    text = config.read_text("utf-8")
    config.write_text(text.replace('"num_hidden_layers": 2', '"num_hidden_layers": 3'), "utf-8")
    with pytest.raises(DataError, match=r"9 missing keys for LlamaForCausalLM, as model\.layers\.2"):
        fb.load(folder)
    config.write_text(text.replace('"num_hidden_layers": 2', '"num_hidden_layers": 1'), "utf-8")
    with pytest.raises(DataError, match=r"9 unexpected keys for LlamaForCausalLM, as model\.layers\.1"):
        fb.load(folder)
    config.write_text(text.replace("LlamaForCausalLM", "OtherForCausalLM"), "utf-8")
    with pytest.raises(DataError, match="has no OtherForCausalLM"):
        fb.load(folder)
    config.unlink()
    with pytest.raises(DataError, match=r"no config\.json"):
        fb.load(folder)


@pytest.mark.parametrize(
    ("file", "changes", "told"),
    [
        ("config.json", None, r"config\.json is of no model that transformers has \(OSError"),
        ("config.json", {"model_type": "other"}, "of no model that transformers has .*model type `other`"),
        ("config.json", {"hidden_size": "64"}, "of no model that transformers has"),
        ("config.json", {"architectures": ["LlamaConfig"]}, "has no LlamaConfig"),
        ("config.json", {"architectures": ["GPT2LMHeadModel"]}, "makes no GPT2LMHeadModel"),
        ("config.json", {"vocab_size": 50}, r"2 mismatched keys for LlamaForCausalLM, as lm_head\.weight"),
        ("generation_config.json", None, r"generation_config\.json cannot be read"),
    ],
)
def test_a_configuration_that_is_broken_is_said_in_one_kind_of_error(
    tmp_path: Path, file: str, changes: dict[str, Any] | None, told: str
) -> None:
    config = written(llama(), tmp_path) / file
    config.write_text("{" if changes is None else json.dumps(json.loads(config.read_text("utf-8")) | changes))
    with pytest.raises(DataError, match=told):
        fb.load(config.parent)


def test_without_architectures_the_model_is_that_of_its_type(tmp_path: Path) -> None:
    folder = written(llama().model, tmp_path, exclude=())
    expected = fb.load(folder)(IDS)[0]
    told = json.loads((folder / "config.json").read_text("utf-8"))
    assert told.pop("architectures") == ["LlamaModel"]
    (folder / "config.json").write_text(json.dumps(told))
    assert torch.equal(fb.load(folder)(IDS)[0], expected)


def test_a_changed_byte_is_an_error_both_ways(tmp_path: Path) -> None:
    folder = written(llama(), tmp_path)
    damage(folder / "model.safetensors", "model.layers.1.mlp.up_proj.weight.codes", 5, 0x10)
    with pytest.raises(DataError, match=r"up_proj\.weight\.codes' was changed"):
        fb.load(folder)
    with pytest.raises(RuntimeError, match="conversion of the weights"):
        transformers.AutoModelForCausalLM.from_pretrained(folder)


def test_a_wide_model_is_not_made_narrow_in_silence(tmp_path: Path) -> None:
    llama().save_pretrained(tmp_path)
    config = fewbits.integrations.transformers.FewbitsConfig()
    with pytest.raises(fb.ArgumentError, match="fewbits cast"):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path, quantization_config=config)


def test_a_folder_that_the_command_wrote_loads_with_its_tokenizer(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models

    model = llama(tie_word_embeddings=False)
    model.generation_config.max_new_tokens = 3
    model.save_pretrained(tmp_path / "dense", max_shard_size="60KB")
    told = Tokenizer(models.WordLevel({"a": 0, "b": 1}, "a"))
    transformers.PreTrainedTokenizerFast(tokenizer_object=told).save_pretrained(tmp_path / "dense")
    arguments = ["cast", str(tmp_path / "dense"), str(tmp_path / "narrow"), "--format", "mxfp4"]
    assert cli.run(arguments) == 0
    folder = tmp_path / "narrow"
    assert len(list(folder.glob("*.safetensors"))) > 1
    tokens = transformers.AutoTokenizer.from_pretrained(folder)("a b", return_tensors="pt")["input_ids"]
    found, info = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not any(info.values())
    assert isinstance(found.lm_head.weight, fb.NarrowTensor)
    expected = dense_twin(model, folder)(IDS).logits
    torch.testing.assert_close(found.eval()(IDS).logits, expected, rtol=1e-5, atol=1e-5)
    assert found.generate(tokens, do_sample=False, eos_token_id=-1).shape[1] == tokens.shape[1] + 3
