"""compressed-tensors: folders that transformers loads, and folders that the package itself wrote."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import fewbits as fb
from fewbits.errors import ArgumentError, DataError
from fewbits.files import cast, inspect, restore
from fewbits.files import load_file as load_narrow
from tests.files.layouts.models import SIZES, loaded, logits, saved_llama, saved_llava, with_weights

pytest.importorskip("compressed_tensors")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

INT4_32 = "block(element=int(4,coding=symmetric),scale=bf16,size=32)"
FORMATS = {
    "mxfp4": "mxfp4-pack-quantized",
    "mxfp6_e2m3": "mxfp6-pack-quantized",
    "mxfp8_e4m3": "mxfp8-quantized",
    "nvfp4": "nvfp4-pack-quantized",
    "fp8_e4m3_channel": "float-quantized",
    "int8_channel": "int-quantized",
    "int4_channel": "pack-quantized",
    INT4_32: "pack-quantized",
}
UP = "model.layers.0.mlp.up_proj"


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_llama(tmp_path_factory.mktemp("llama") / "wide")


def written(llama: Path, folder: Path, fmt: str | None = "mxfp4", **choices: Any) -> Path:
    cast(llama, folder / "narrow", format=fmt, layout="compressed-tensors", **choices)
    assert not inspect(folder / "narrow").problems
    return folder / "narrow"


def back(narrow: Path) -> dict[str, torch.Tensor]:
    """Restore a folder, and return its tensors."""
    restore(narrow, narrow.parent / "back")
    return load_file(narrow.parent / "back" / "model.safetensors")


def config(folder: Path) -> Any:
    return json.loads((folder / "config.json").read_text())


def rewrite_config(folder: Path, **changes: Any) -> None:
    told = config(folder)
    told["quantization_config"] |= changes
    (folder / "config.json").write_text(json.dumps(told))


def stored_as(fmt: str) -> str:
    """The format with the scales in BF16, as the layout has them."""
    return fb.format(fmt).grammar.replace("scale=fp32", "scale=bf16")


@pytest.mark.parametrize("fmt", FORMATS)
def test_transformers_loads_the_weights_bit_for_bit_and_computes_the_same(
    llama: Path, tmp_path: Path, fmt: Any
) -> None:
    narrow = written(llama, tmp_path, fmt, fuse=False)
    wide, restored = load_file(llama / "model.safetensors"), back(narrow)
    cast_names = {name for name in wide if "proj" in name}
    assert len(cast_names) == 14
    for name, x in wide.items():
        expected = fb.fake_quantize(x, stored_as(fmt)) if name in cast_names else x
        if fmt == "nvfp4" and name in cast_names:  # its outer scale went through 1/x twice
            torch.testing.assert_close(restored[name], expected, rtol=2**-8, atol=0)
        else:
            assert torch.equal(restored[name], expected), name
    model = loaded(narrow)
    assert config(narrow)["quantization_config"]["config_groups"]["group_0"]["format"] == FORMATS[fmt]
    dense = with_weights(llama, {name: restored[name] for name in cast_names})
    found, expected = logits(model), logits(dense)
    for name in cast_names:
        tolerance = 0.0037 if fmt == "nvfp4" else 0  # the package multiplies in BF16
        torch.testing.assert_close(model.state_dict()[name], restored[name], rtol=tolerance, atol=0)
    if fmt != "nvfp4":
        assert torch.equal(found, expected)
    theirs = {name: model.state_dict()[name] for name in cast_names}  # as the package dequantizes them
    assert torch.equal(found, logits(with_weights(llama, theirs)))
    assert not torch.equal(expected, logits(loaded(llama)))  # the control: narrow is not wide


def test_several_formats_in_one_folder_load(llama: Path, tmp_path: Path) -> None:
    rules = {"*.0.*down_proj*": "mxfp8_e4m3", "*.1.self_attn.*": "nvfp4", "*up_proj*": INT4_32}
    narrow = written(llama, tmp_path, "mxfp4", map=rules, exclude=["*.1.mlp.gate_proj*"])
    told = config(narrow)["quantization_config"]
    assert told["format"] == "mixed-precision"
    assert {g["format"] for g in told["config_groups"].values()} == {
        "mxfp4-pack-quantized", "mxfp8-quantized", "nvfp4-pack-quantized", "pack-quantized",
    }  # fmt: skip
    assert all(t.startswith("re:^") for g in told["config_groups"].values() for t in g["targets"])
    assert told["ignore"] == ["lm_head", "model.layers.1.mlp.gate_proj"]
    model, restored = loaded(narrow), back(narrow)
    found = logits(model)
    exact = {n for n in restored if "proj" in n and ".1.self_attn" not in n}
    for name in exact:
        assert torch.equal(model.state_dict()[name], restored[name]), name
    assert (found - logits(with_weights(llama, restored))).abs().max() < 0.02
    theirs = {name: model.state_dict()[name] for name in restored if "proj" in name}
    assert torch.equal(found, logits(with_weights(llama, theirs)))
    wide = load_file(llama / "model.safetensors")
    stored_formats = {t.tensor: t.format for t in inspect(narrow).tensors if t.format is not None}
    assert len(stored_formats) == 13
    for name in exact & set(stored_formats):
        fmt = INT4_32 if "up_proj" in name else stored_formats[name]
        assert torch.equal(restored[name], fb.fake_quantize(wide[name], fmt)), name
    assert torch.equal(
        restored["model.layers.1.mlp.gate_proj.weight"], wide["model.layers.1.mlp.gate_proj.weight"]
    )


@pytest.mark.parametrize("choices", [{"exclude": ["*vision*"]}, {"map": {"*down_proj*": "int8_channel"}}])
def test_modules_that_transformers_names_otherwise_load_as_they_are(tmp_path: Path, choices: Any) -> None:
    from transformers import AutoModelForImageTextToText as Auto

    wide = saved_llava(tmp_path / "wide")
    narrow = written(wide, tmp_path, "mxfp4", **choices)
    model, told = Auto.from_pretrained(narrow, output_loading_info=True)
    assert not told["missing_keys"]
    assert not told["unexpected_keys"]
    restore(narrow, tmp_path / "twin")
    assert torch.equal(logits(model), logits(Auto.from_pretrained(tmp_path / "twin")))


ARGUMENTS = {  # of the weights, as the package's own presets have them
    "mxfp4": ("float", 4, "group", 32, "torch.uint8"),
    "mxfp6_e2m3": ("float", 6, "group", 32, "torch.uint8"),
    "mxfp8_e4m3": ("float", 8, "group", 32, "torch.uint8"),
    "nvfp4": ("float", 4, "tensor_group", 16, "torch.float8_e4m3fn"),
    "fp8_e4m3_channel": ("float", 8, "channel", None, None),
    "int8_channel": ("int", 8, "channel", None, None),
    "int4_channel": ("int", 4, "channel", None, None),
    INT4_32: ("int", 4, "group", 32, None),
}


@pytest.mark.parametrize("fmt", FORMATS)
def test_the_config_says_all_that_the_scheme_is(llama: Path, tmp_path: Path, fmt: Any) -> None:
    told = config(written(llama, tmp_path, fmt))["quantization_config"]
    assert told["quant_method"] == "compressed-tensors"
    assert told["format"] == FORMATS[fmt]
    assert told["quantization_status"] == "compressed"
    assert told["ignore"] == ["lm_head"]
    (group,) = told["config_groups"].values()
    assert group["targets"] == ["Linear"]
    assert group.get("input_activations") is None
    weights = group["weights"]
    found = tuple(weights.get(key) for key in ("type", "num_bits", "strategy", "group_size", "scale_dtype"))
    assert found == ARGUMENTS[fmt]
    assert (weights["symmetric"], weights["dynamic"]) == (True, False)


def test_a_float32_model_is_declared_as_bfloat16(tmp_path: Path) -> None:
    llama = saved_llama(tmp_path / "wide", dtype=torch.float32, tie_word_embeddings=True)
    narrow = written(llama, tmp_path)
    assert config(llama)["dtype"] == "float32"
    assert config(narrow)["dtype"] == "bfloat16"
    logits(loaded(narrow))
    told = config(narrow)
    assert "lm_head" in told["quantization_config"]["ignore"]  # which is tied and has no tensor
    (narrow / "config.json").write_text(json.dumps(told | {"dtype": "float32"}))
    with pytest.raises(RuntimeError, match="dtype"):  # the trap
        logits(loaded(narrow))


@pytest.mark.parametrize("kind", ["Electra", "GPTJ"])
def test_embeddings_and_what_is_named_after_them_stay_what_they_are(tmp_path: Path, kind: str) -> None:
    # What is cast, or in a scheme, and should not be would be drawn at random: the embedding `wte`, and of
    # ELECTRA the Linear `embeddings_project` and a head that is tied, which has no tensor.
    import transformers

    sizes = {k: n for k, n in SIZES.items() if k != "num_key_value_heads"}
    options = sizes | (
        {"embedding_size": 32, "is_decoder": True} if kind == "Electra" else {"rotary_dim": 16}
    )
    sized = getattr(transformers, f"{kind}Config")(**options)
    model = getattr(transformers, f"{kind}ForCausalLM")(sized).bfloat16()
    model.save_pretrained(tmp_path / "wide")
    found = loaded(written(tmp_path / "wide", tmp_path))
    for name, p in model.named_parameters():
        if "embed" in name or "wte" in name or p.ndim < 2:
            assert torch.equal(found.get_parameter(name), p), name


def test_without_the_status_weights_would_be_drawn_at_random(llama: Path, tmp_path: Path) -> None:
    narrow = written(llama, tmp_path)
    assert config(narrow)["quantization_config"]["quantization_status"] == "compressed"
    rewrite_config(narrow, quantization_status="initialized")
    with pytest.raises(AssertionError, match="missing_keys"):  # the trap
        loaded(narrow)


def test_scales_are_u8_and_the_global_scale_is_one_axis_of_a_reciprocal(llama: Path, tmp_path: Path) -> None:
    narrow = written(llama, tmp_path, "nvfp4", map={"*down_proj*": "mxfp4", "*up_proj*": INT4_32})
    wide = load_file(llama / "model.safetensors")
    with safe_open(narrow / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
        down = file.get_tensor("model.layers.0.mlp.down_proj.weight_scale")
        assert down.dtype == torch.uint8
        outer = file.get_tensor("model.layers.0.self_attn.o_proj.weight_global_scale")
        amax = wide["model.layers.0.self_attn.o_proj.weight"].abs().max().float()
        torch.testing.assert_close(outer, (448 * 6 / amax).reshape(1))
        assert file.get_tensor(f"{UP}.weight_shape").tolist() == [128, 64]
        packed = file.get_tensor(f"{UP}.weight_packed")
    q = fb.quantize(wide[f"{UP}.weight"], INT4_32)
    values = q.dequantize().float().reshape(128, 2, 32) / q.scales.view(torch.bfloat16).float().reshape(
        128, 2, 1
    )
    nibbles = torch.stack([(packed >> 4 * i) & 15 for i in range(8)], dim=-1).reshape(128, 64) - 8
    torch.testing.assert_close(values.round().reshape(128, 64), nibbles.float(), rtol=0, atol=0)


@pytest.mark.parametrize("fuse", [True, False])
def test_what_is_one_product_shares_an_outer_scale(llama: Path, tmp_path: Path, fuse: bool) -> None:
    narrow = written(llama, tmp_path, "nvfp4", fuse=fuse)
    wide, stored = load_file(llama / "model.safetensors"), load_file(narrow / "model.safetensors")
    groups = [[f"self_attn.{p}_proj" for p in "qkv"], ["mlp.gate_proj", "mlp.up_proj"]]
    for i in range(2):
        for group in groups:
            modules = [f"model.layers.{i}.{leaf}" for leaf in group]
            scales = {stored[f"{m}.weight_global_scale"].item() for m in modules}
            assert len(scales) == (1 if fuse else len(modules))
            if fuse:
                amax = max(wide[f"{m}.weight"].abs().max().item() for m in modules)
                assert scales.pop() == pytest.approx(448 * 6 / amax, rel=1e-6)
    if fuse:
        logits(loaded(narrow))


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("fmt", ["mxfp4", "nvfp4", "fp8_e4m3_channel", "int8_channel"])
def test_what_is_not_finite_is_refused_as_the_package_would_read_it_as_infinity(
    tmp_path: Path, fmt: Any, bad: Any
) -> None:
    llama = saved_llama(tmp_path / "wide")
    tensors = load_file(llama / "model.safetensors")
    tensors[f"{UP}.weight"][3, 40] = bad
    save_file(tensors, llama / "model.safetensors", {"format": "pt"})
    with pytest.raises(DataError, match=r"up_proj\.weight' of .* holds NaN or infinity"):
        written(llama, tmp_path, fmt)
    assert not (tmp_path / "narrow").exists()
    written(llama, tmp_path, fmt, exclude=[f"{UP}.weight"])


def test_shards_an_index_and_the_files_beside_them_go_along(tmp_path: Path) -> None:
    llama = saved_llama(tmp_path / "wide", max_shard_size="60KB")
    (llama / "tokenizer.model").write_bytes(bytes(range(256)))
    (llama / "modeling.py").write_text("raise SystemExit")
    narrow = written(llama, tmp_path, "nvfp4")
    assert len(list(narrow.glob("*.safetensors"))) > 1
    for name in ("tokenizer_config.json", "tokenizer.model", "generation_config.json"):
        assert (narrow / name).read_bytes() == (llama / name).read_bytes()
    assert not (narrow / "modeling.py").exists()
    one = saved_llama(tmp_path / "one")
    cast(one, tmp_path / "whole", format="nvfp4", layout="compressed-tensors")
    assert torch.equal(logits(loaded(narrow)), logits(loaded(tmp_path / "whole")))
    restore(narrow, tmp_path / "back")
    assert "quantization_config" not in config(tmp_path / "back")
    assert (tmp_path / "back" / "tokenizer.model").exists()
    loaded(tmp_path / "back")


def test_a_model_that_the_package_wrote_is_read(llama: Path, tmp_path: Path) -> None:
    """Quantized, compressed and saved by the classes of compressed-tensors."""
    from compressed_tensors.compressors import ModelCompressor
    from compressed_tensors.quantization import QuantizationConfig, apply_quantization_config

    presets = {"MXFP4A16": "*up", "NVFP4A16": "*down", "MXFP8A16": "*gate", "W4A16": "*q", "MXFP6A16": "*k"}
    groups = {preset: [f"re:.*{leaf[1:]}_proj$"] for preset, leaf in presets.items()}
    model = loaded(llama)
    apply_quantization_config(model, QuantizationConfig(config_groups=groups))
    wide = {n: p.detach().clone() for n, p in model.named_parameters()}
    for module in model.modules():
        scheme = getattr(module, "quantization_scheme", None)
        if scheme is not None:
            size = scheme.weights.group_size if scheme.weights.group_size <= 64 else 64
            scheme.weights.group_size = size
            blocks = module.weight.detach().float().reshape(module.weight.shape[0], -1, size)
            scales = 2.0 ** blocks.abs().amax(-1).log2().floor().sub(1)
            if scheme.weights.scale_dtype == torch.float8_e4m3fn:
                module.weight_global_scale = torch.nn.Parameter(torch.tensor([2.0**8]), requires_grad=False)
                scales = scales * 2.0**8
            module.weight_scale = torch.nn.Parameter(scales.to(torch.bfloat16), requires_grad=False)
    compressor = ModelCompressor.from_pretrained_model(model)
    compressor.compress_model(model)
    model.save_pretrained(tmp_path / "narrow")
    compressor.update_config(tmp_path / "narrow")
    report = inspect(tmp_path / "narrow")
    assert not report.problems
    assert sum(t.format is not None for t in report.tensors) == 10
    restored = back(tmp_path / "narrow")
    compressor.decompress_model(model)
    for name, x in model.state_dict().items():
        if name.endswith(".weight"):
            assert torch.equal(restored[name], x.to(torch.bfloat16)), name
    assert not torch.equal(restored[f"{UP}.weight"], wide[f"{UP}.weight"])


@pytest.mark.parametrize("name", ["mxfp4", "mxfp6_e2m3", "mxfp8_e4m3"])
def test_scales_of_blocks_have_a_rule_for_fp4_and_fp8_and_another_for_fp6(name: str) -> None:
    """The rules that docs/rules.md names."""
    pytest.importorskip("compressed_tensors", minversion="0.20")  # older versions have no FP6
    from compressed_tensors.quantization.utils.mxfp_utils import generate_mx_scales

    torch.manual_seed(0)
    x = torch.randn(4000, 32) * 2.0 ** torch.randint(-40, 40, (4000, 1))
    x[:2, 0] = torch.tensor([1.75, 1.9375]) * 2.0**45
    theirs = generate_mx_scales(x.abs().amax(1), int(name[4])).to(torch.uint8)
    equal = set()
    for rule in ("1.75", "even"):
        scales = fb.quantize(x, name, scale_rule=rule).scales
        assert scales is not None
        if torch.equal(scales.flatten(), theirs):
            equal.add(rule)
    # With the one mantissa bit of FP4 both rules are one.
    assert equal == {"4": {"1.75", "even"}, "6": {"even"}, "8": {"1.75"}}[name[4]]


def test_weights_turned_against_what_layers_compute_are_not_taken_for_the_models(
    llama: Path, tmp_path: Path
) -> None:
    """A transform between weights alone leaves the model what it was, and so does one of queries and keys."""
    from compressed_tensors.transform import TransformConfig
    from compressed_tensors.transform.transform_args import TransformLocation

    narrow, refused = written(llama, tmp_path), []
    for location in TransformLocation:
        apply = [{"targets": ["Linear"], "location": location}]
        told = TransformConfig(config_groups={"R": {"type": "hadamard", "apply": apply}})
        rewrite_config(narrow, transform_config=told.model_dump(mode="json"))
        if any("'transform_config'" in problem for problem in inspect(narrow).problems):
            refused.append(location.value)
            with pytest.raises(DataError, match=f"turns each {location.value} of layers as they run"):
                back(narrow)
    assert refused == ["input", "output"]
    assert not (tmp_path / "back").exists()


def test_a_narrow_folder_loads_into_narrow_tensors_and_is_not_cast_again(llama: Path, tmp_path: Path) -> None:
    narrow = written(llama, tmp_path, "nvfp4", map={"*up_proj*": INT4_32})
    tensors, restored = load_narrow(narrow), back(narrow)
    for name, x in tensors.items():
        wide = x.dequantize() if isinstance(x, fb.NarrowTensor) else x
        assert torch.equal(wide, restored[name])
    assert isinstance(tensors[f"{UP}.weight"], fb.NarrowTensor)
    with pytest.raises(ArgumentError, match="was cast already"):
        cast(narrow, tmp_path / "again", format="mxfp4")


@pytest.mark.parametrize(
    ("choices", "told"),
    [
        ({"format": "mxfp6_e3m2"}, "layout='compressed-tensors' has no mxfp6_e3m2; it has mxfp4, mxfp6_e2m3"),
        ({"format": "fp8_e4m3_tensor"}, "has no fp8_e4m3_tensor"),
        ({"format": "mxfp4", "map": {"*up*": "mx9"}}, "has no mx9"),
        ({"format": "mxfp4", "layout": "compressed_tensors"}, "expected one of compressed-tensors"),
        ({"format": "mxfp4", "pattern": "2:4"}, "`pattern` does nothing for layout='compressed-tensors'"),
        ({"format": "mxfp4", "include": ["lm_head*"]}, "no tensor would be cast"),
        ({"format": "mxfp4", "map": {"*embed*": "nvfp4"}}, r"map='\*embed\*' matches no tensor that can be"),
        ({"format": INT4_32.replace("32)", "48)")}, "rows of 128 values, and .* takes multiples of 48"),
    ],
)
def test_what_has_no_place_is_refused_by_name(llama: Path, tmp_path: Path, choices: Any, told: Any) -> None:
    with pytest.raises(ArgumentError, match=told):
        cast(llama, tmp_path / "narrow", **({"layout": "compressed-tensors"} | choices))
    assert not (tmp_path / "narrow").exists()


def test_a_model_whose_weights_have_their_inputs_first_is_refused(llama: Path, tmp_path: Path) -> None:
    (tmp_path / "gpt2").mkdir()
    for name in ("model.safetensors", "config.json"):
        text = (llama / name).read_bytes()
        (tmp_path / "gpt2" / name).write_bytes(
            text.replace(b'"model_type": "llama"', b'"model_type": "gpt2"')
        )
    with pytest.raises(ArgumentError, match="those of gpt2 are Conv1D, whose inputs come first"):
        written(tmp_path / "gpt2", tmp_path)


def test_a_file_without_a_config_is_refused(llama: Path, tmp_path: Path) -> None:
    for source in (llama / "model.safetensors", tmp_path / "bare"):
        (tmp_path / "bare").mkdir(exist_ok=True)
        save_file({"a.weight": torch.ones(2, 32)}, tmp_path / "bare" / "model.safetensors")
        to = tmp_path / ("n.safetensors" if source.is_file() else "n")
        with pytest.raises(ArgumentError, match="writes a folder that loads"):
            cast(source, to, format="mxfp4", layout="compressed-tensors")


def test_without_the_package_the_layout_is_refused_by_name(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ImportError, match=r"needs the package compressed-tensors.* 'fewbits\[export\]'"):
        written(llama, tmp_path)
