"""A checkpoint goes into narrow formats and comes back as quantize and dequantize say, bit for bit."""

import json
import subprocess
import sys
from math import inf
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import fewbits as fb
from fewbits.errors import ArgumentError, DataError, FormatError
from fewbits.files import cast, restore
from fewbits.files.contents import sound_contents
from fewbits.files.matrix_view import matrix_shape

# One format of every way to scale and of every kind of element.
FORMATS = (
    "mxfp4", "mx9", "mx6", "nvfp4", "int8_channel", "int8_tensor", "fp8_e4m3_tensor", "fp8_e4m3", "posit8_1",
    "vsq4", "quda_quarter", "mxfp6_e2m3", "bf16", "lookup(-1,-0.5,-0.2,0,0.1,0.4,1)",
    "block(element=lookup(-1,-0.5,-0.2,0,0.1,0.4,1),scale=fp32,size=24)", "bdr(m=3,d2=0)",
)  # fmt: skip
DTYPES = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def normal(*shape: int, seed: int = 1) -> torch.Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    return x * 2.0 ** torch.randint(-3, 3, shape, generator=torch.Generator().manual_seed(seed))


def small() -> dict[str, torch.Tensor]:
    return {
        "layers.0.weight": normal(6, 70).bfloat16(),
        "layers.0.bias": normal(6),
        "layers.1.weight": normal(3, 5, 40, seed=2),
        "conv.weight": normal(4, 3, 3, 3, seed=3).half(),
        "double": normal(5, 33, seed=4).double(),
        "ids": torch.arange(12).reshape(3, 4),
        "mask": torch.tensor([[True, False]]),
        "none": torch.zeros(0, 32),
    }


def saved(folder: Path, tensors: dict[str, torch.Tensor] | None = None) -> Path:
    path = folder / "model.safetensors"
    save_file(small() if tensors is None else tensors, path, metadata={"format": "pt", "note": "größer"})
    return path


def there_and_back(source: Path, fmt: str) -> dict[str, torch.Tensor]:
    narrow, wide = source.parent / "narrow.safetensors", source.parent / "wide.safetensors"
    cast(source, narrow, format=fmt)
    restore(narrow, wide)
    return load_file(wide)


def narrowed(x: torch.Tensor) -> bool:
    return x.is_floating_point() and x.ndim > 1 and x.numel() > 0


def rounded(x: torch.Tensor, fmt: str) -> torch.Tensor:
    return fb.quantize(x.reshape(matrix_shape(tuple(x.shape))), fmt).dequantize().reshape(x.shape)


@pytest.mark.parametrize("fmt", FORMATS)
def test_back_is_what_dequantize_gives_and_the_rest_is_as_it_was(tmp_path: Path, fmt: Any) -> None:
    found = there_and_back(saved(tmp_path), fmt)
    for name, x in small().items():
        assert (found[name].dtype, found[name].shape) == (x.dtype, x.shape)
        assert torch.equal(found[name], rounded(x, fmt) if narrowed(x) else x), name


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("fmt", ["mxfp4", "mx9", "int8_channel", "posit8_1", "nvfp4"])
def test_back_runs_the_kernels_and_not_the_definition(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fmt: Any, dtype: Any
) -> None:
    cast(saved(tmp_path, {"w": normal(40, 70).to(dtype)}), tmp_path / "narrow.safetensors", format=fmt)
    monkeypatch.setattr("fewbits.kernels.reference.dequantize", None)
    restore(tmp_path / "narrow.safetensors", tmp_path / "wide.safetensors")
    found = load_file(tmp_path / "wide.safetensors")["w"]
    monkeypatch.undo()
    assert torch.equal(found, rounded(normal(40, 70).to(dtype), fmt))


@pytest.mark.parametrize("fmt", FORMATS)
def test_the_parts_are_those_of_quantize(tmp_path: Path, fmt: Any) -> None:
    cast(saved(tmp_path), tmp_path / "n.safetensors", format=fmt)
    with safe_open(tmp_path / "n.safetensors", framework="np") as file:
        for name, x in small().items():
            if not narrowed(x):
                continue
            q = fb.quantize(x if name != "conv.weight" else x.reshape(4, 27), fmt)
            for suffix in ("codes", "scales", "shifts", "outer"):
                part = getattr(q, suffix)
                if part is not None:
                    np.testing.assert_array_equal(file.get_tensor(f"{name}.{suffix}"), np.asarray(part))
                else:
                    assert f"{name}.{suffix}" not in file.keys()  # noqa: SIM118


@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("piece", [64, 1500])
def test_the_size_of_a_piece_changes_no_byte(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fmt: Any, piece: Any
) -> None:
    source = saved(tmp_path, {"a": normal(7, 500), "b": normal(3, 61), "c": normal(2, 3, 1000).double()})
    cast(source, tmp_path / "whole.safetensors", format=fmt)
    monkeypatch.setattr("fewbits.files.piecewise.PIECE_VALUES", piece)
    cast(source, tmp_path / "pieces.safetensors", format=fmt)
    assert (tmp_path / "whole.safetensors").read_bytes() == (tmp_path / "pieces.safetensors").read_bytes()
    restore(tmp_path / "pieces.safetensors", tmp_path / "back.safetensors")
    for name, x in load_file(source).items():
        assert torch.equal(load_file(tmp_path / "back.safetensors")[name], rounded(x, fmt))


@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2"])
def test_an_fp8_checkpoint_is_narrowed_and_restored(tmp_path: Path, dtype: Any) -> None:
    x = normal(4, 64).to(getattr(torch, dtype))
    found = there_and_back(saved(tmp_path, {"x": x}), "mxfp4")["x"]
    assert found.dtype == x.dtype
    assert torch.equal(found.float(), fb.quantize(x.float(), "mxfp4").dequantize().to(x.dtype).float())


def test_the_first_pattern_decides_and_exclude_comes_before_all(tmp_path: Path) -> None:
    report = cast(
        saved(tmp_path),
        tmp_path / "n.safetensors",
        format="mxfp4",
        map={"layers.1.*": "mx9", "layers.*": "mx6"},
        exclude=["conv*", "*bias"],
    )
    assert {t.tensor: t.format for t in report.tensors} == {
        "layers.0.weight": "mx6",
        "layers.1.weight": "mx9",
        "double": "mxfp4",
        **dict.fromkeys(("layers.0.bias", "conv.weight", "ids", "mask", "none")),
    }


def test_only_what_is_included_is_cast(tmp_path: Path) -> None:
    report = cast(
        saved(tmp_path), tmp_path / "n.safetensors", format="mxfp4", include=["layers.*"], exclude=["*.1.*"]
    )
    assert [t.tensor for t in report.tensors if t.format] == ["layers.0.weight"]


def test_without_a_format_only_named_tensors_are_narrowed(tmp_path: Path) -> None:
    report = cast(saved(tmp_path), tmp_path / "n.safetensors", map={"double": "mx9"})
    assert [t.tensor for t in report.tensors if t.format] == ["double"]


def test_the_scale_rule_is_followed_where_there_is_one(tmp_path: Path) -> None:
    source = saved(tmp_path)
    cast(
        source,
        tmp_path / "n.safetensors",
        format="mxfp4",
        map={"double": "posit8_1"},
        scale_rule="rceil",
    )
    restore(tmp_path / "n.safetensors", tmp_path / "w.safetensors")
    x = small()["layers.0.weight"]
    expected = fb.fake_quantize(x, "mxfp4", scale_rule="rceil")
    assert torch.equal(load_file(tmp_path / "w.safetensors")["layers.0.weight"], expected)
    assert not torch.equal(expected, fb.fake_quantize(x, "mxfp4"))


def test_the_report_counts_bytes_and_measures_errors(tmp_path: Path) -> None:
    source = saved(tmp_path)
    report = cast(source, tmp_path / "n.safetensors", format="mx9")
    about = {t.tensor: t for t in report.tensors}
    x = small()["double"]
    assert about["double"].error.qsnr_db == pytest.approx(fb.qsnr(x, fb.quantize(x, "mx9")))
    assert about["double"].bytes_before == 5 * 33 * 8
    mx9, kept = report.formats
    assert (mx9.format, mx9.tensors, kept.format, kept.tensors, kept.qsnr_db) == ("mx9", 4, None, 4, inf)
    assert mx9.worst_qsnr_db == min(t.error.qsnr_db for t in report.tensors if t.error)
    assert about[mx9.worst_tensor].error.qsnr_db == mx9.worst_qsnr_db
    contents = sound_contents(tmp_path / "n.safetensors")
    assert report.bytes_after == sum(t.stored_bytes for t in contents.tensors)


@pytest.mark.parametrize("size", [1e-200, 1e200])
def test_tensors_that_a_format_loses_count_as_lost_in_the_report(size: float, tmp_path: Path) -> None:
    tensors = {name: torch.randn(4, 64, dtype=torch.float64) * size for name in ("a", "b")}
    save_file(tensors, tmp_path / "m.safetensors")
    report = cast(tmp_path / "m.safetensors", tmp_path / "n.safetensors", format="mxfp4")
    assert [t.error.qsnr_db for t in report.tensors if t.error] == [0.0, 0.0]
    assert (report.formats[0].qsnr_db, report.formats[0].worst_qsnr_db) == (0.0, 0.0)


def test_progress_rises_to_all_bytes(tmp_path: Path) -> None:
    seen = []
    report = cast(
        saved(tmp_path), tmp_path / "n.safetensors", format="mxfp4", progress=lambda *step: seen.append(step)
    )
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    assert seen[-1] == ("casting tensors", report.bytes_before, report.bytes_before)


def test_the_same_job_gives_the_same_bytes_and_metadata_is_kept(tmp_path: Path) -> None:
    source = saved(tmp_path)
    for name in ("a", "b"):
        cast(source, tmp_path / f"{name}.safetensors", format="mxfp4")
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
    restore(tmp_path / "a.safetensors", tmp_path / "c.safetensors")
    for name, more in (("a", {"fewbits"}), ("c", set())):
        with safe_open(tmp_path / f"{name}.safetensors", framework="np") as file:
            assert set(file.metadata()) == {"format", "note"} | more
            assert file.metadata()["note"] == "größer"


@pytest.mark.parametrize("name", ["wide.SafeTensors", "wide.SAFETENSORS"])
def test_metadata_is_kept_whatever_letters_a_file_ends_with(tmp_path: Path, name: str) -> None:
    save_file({"a": normal(4, 32)}, tmp_path / name, {"format": "pt", "note": "größer"})
    cast(tmp_path / name, tmp_path / "n.safetensors", format="mxfp4")
    restore(tmp_path / "n.safetensors", tmp_path / name.replace("wide", "back"))
    for file, more in (("n.safetensors", {"fewbits"}), (name.replace("wide", "back"), set())):
        with safe_open(tmp_path / file, framework="np") as opened:
            assert set(opened.metadata()) == {"format", "note"} | more
            assert opened.metadata()["note"] == "größer"
    folder = sharded(tmp_path / "folder")
    with pytest.raises(ArgumentError, match="is one file; give a folder"):
        cast(folder, tmp_path / name.replace("wide", "n"), format="mxfp4")


def test_values_that_a_format_cannot_hold_are_one_error_and_leave_nothing(tmp_path: Path) -> None:
    x = normal(40, 64)
    x[39, 5] = torch.nan
    source = saved(tmp_path, {"a": normal(4, 4), "bad.weight": x})
    for fmt in ("int8", "int8_tensor", "fp4_e2m1"):
        with pytest.raises(DataError, match=r"'bad\.weight' of .* holds NaN or infinity, which .* cannot"):
            cast(source, tmp_path / "n.safetensors", format=fmt)
        assert [p.name for p in tmp_path.iterdir()] == ["model.safetensors"]


@pytest.mark.parametrize("fmt", ["mxfp4", "nvfp4", "fp8_e4m3_tensor", "int8_channel", "mx9"])
def test_values_that_a_format_can_hold_as_nan_are_as_quantize_says(tmp_path: Path, fmt: Any) -> None:
    x = normal(4, 64)
    x[2, 5] = torch.nan
    found = there_and_back(saved(tmp_path, {"x": x}), fmt)["x"]
    assert torch.equal(found.nan_to_num(7), fb.quantize(x, fmt).dequantize().nan_to_num(7))
    assert found.isnan().any()


def misuse(tmp_path: Path, error: type[Exception], told: str, **options: Any) -> None:
    source = saved(tmp_path)
    before = sorted(p.name for p in tmp_path.iterdir())
    with pytest.raises(error, match=told):
        cast(source, options.pop("target", tmp_path / "n.safetensors"), **({"format": "mxfp4"} | options))
    assert sorted(p.name for p in tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"exclude": ["norm*"]}, ArgumentError, r"exclude='norm\*' matches no tensor; `fewbits inspect`"),
        ({"include": ["norm*"]}, ArgumentError, r"include='norm\*' matches no tensor; `fewbits inspect`"),
        ({"map": {"*bias": "mx9"}}, ArgumentError, r"map='\*bias' matches no tensor that can be cast"),
        ({"exclude": ["*"]}, ArgumentError, "no tensor would be cast"),
        ({"include": ["*bias"]}, ArgumentError, "no tensor would be cast"),
        ({"format": "mxfp5"}, FormatError, "no format named 'mxfp5'"),
        ({"scale_rule": "round"}, ArgumentError, "scale_rule='round'"),
        ({"scale_rule": "ceil", "format": "nvfp4"}, ArgumentError, "nvfp4.* has none: leave it out"),
        ({"target": "/no/such/folder/n.safetensors"}, ArgumentError, "does not exist; create it first"),
    ],
)
def test_misuse_is_refused_before_anything_is_written(
    tmp_path: Path, options: Any, error: Any, told: Any
) -> None:
    misuse(tmp_path, error, told, **options)


def test_a_destination_of_another_kind_is_refused(tmp_path: Path) -> None:
    misuse(tmp_path, ArgumentError, "is a folder or a device", target=tmp_path)
    misuse(tmp_path, ArgumentError, "no .safetensors file by its name", target=tmp_path / "n.bin")
    misuse(tmp_path, ArgumentError, "is the source itself", target=tmp_path / "model.safetensors")
    (tmp_path / "link.safetensors").symlink_to("model.safetensors")
    misuse(tmp_path, ArgumentError, "is the source itself", target=tmp_path / "link.safetensors")


@pytest.mark.parametrize("there", [False, True])
def test_a_link_has_its_own_name_whatever_its_target_is_called(tmp_path: Path, there: bool) -> None:
    source, link, blob = saved(tmp_path), tmp_path / "link.safetensors", tmp_path / "blob"
    if there:
        blob.write_bytes(b"old")
    link.symlink_to("blob")
    cast(source, link, format="mxfp4")
    assert link.is_symlink()
    cast(source, tmp_path / "n.safetensors", format="mxfp4")
    assert blob.read_bytes() == (tmp_path / "n.safetensors").read_bytes()
    restore(link, tmp_path / "back.safetensors")
    (tmp_path / "nameless").symlink_to("n.safetensors")
    with pytest.raises(ArgumentError, match=r"nameless is no \.safetensors file by its name"):
        cast(source, tmp_path / "nameless", format="mxfp4")


def test_a_name_that_a_part_would_take_is_refused_by_name(tmp_path: Path) -> None:
    source = saved(tmp_path, {"w": normal(4, 32), "w.scales": normal(3)})
    with pytest.raises(ArgumentError, match=r"'w' would be stored as 'w\.scales', and there is a tensor"):
        cast(source, tmp_path / "n.safetensors", format="mxfp4")
    cast(source, tmp_path / "n.safetensors", format="fp8_e4m3")  # which has no scales


def test_what_is_narrow_is_not_narrowed_again_and_what_is_not_is_not_restored(tmp_path: Path) -> None:
    source = saved(tmp_path)
    cast(source, tmp_path / "n.safetensors", format="mxfp4")
    with pytest.raises(ArgumentError, match="was cast already: it holds"):
        cast(tmp_path / "n.safetensors", tmp_path / "m.safetensors", format="mx9")
    with pytest.raises(ArgumentError, match="nothing to restore"):
        restore(source, tmp_path / "m.safetensors")


def sharded(folder: Path, tensors: dict[str, torch.Tensor] | None = None) -> Path:
    folder.mkdir()
    places = {}
    for i, name in enumerate(tensors or small()):
        places[name] = f"model-{i % 3 + 1:05}-of-00003.safetensors"
    for file in set(places.values()):
        save_file({n: t for n, t in (tensors or small()).items() if places[n] == file}, folder / file)
    index = {"metadata": {"total_size": 1, "by": "us"}, "weight_map": places}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "config.json").write_text("{}")
    return folder


def test_a_sharded_checkpoint_keeps_its_files_and_gets_an_index(tmp_path: Path) -> None:
    source = sharded(tmp_path / "wide")
    cast(source, tmp_path / "narrow", format="mxfp4")
    names = {p.name for p in source.iterdir()}
    assert {p.name for p in (tmp_path / "narrow").iterdir()} == names
    index = json.loads((tmp_path / "narrow" / "model.safetensors.index.json").read_text())
    assert index["weight_map"]["double.codes"] == index["weight_map"]["double.scales"]
    assert index["metadata"]["by"] == "us"
    contents = sound_contents(tmp_path / "narrow")
    assert index["metadata"]["total_size"] == sum(t.stored_bytes for t in contents.tensors)
    restore(tmp_path / "narrow" / "model.safetensors.index.json", tmp_path / "back")
    for file in (tmp_path / "back").glob("*.safetensors"):
        for name, found in load_file(file).items():
            x = small()[name]
            assert torch.equal(found, rounded(x, "mxfp4") if narrowed(x) else x)
    assert len(sound_contents(tmp_path / "back").tensors) == len(small())


def test_no_tensor_is_lost_that_an_index_does_not_list(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    wide = transformers.LlamaForCausalLM(transformers.LlamaConfig(vocab_size=99, **sizes))
    wide.save_pretrained(tmp_path / "wide", max_shard_size="60KB")
    file = tmp_path / "wide" / "model.safetensors.index.json"
    index, lost = json.loads(file.read_text()), "model.layers.0.mlp.up_proj.weight"
    del index["weight_map"][lost]
    file.write_text(json.dumps(index))
    cast(tmp_path / "wide", tmp_path / "narrow", format="mxfp8_e4m3")
    restore(tmp_path / "narrow", tmp_path / "back")
    back, told = transformers.LlamaForCausalLM.from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not told["missing_keys"]
    x = wide.state_dict()[lost]
    assert 0 < (back.state_dict()[lost] - x).norm() / x.norm() < 0.04
    assert lost in json.loads((tmp_path / "back" / file.name).read_text())["weight_map"]


def test_a_folder_without_index_gets_none(tmp_path: Path) -> None:
    source = sharded(tmp_path / "wide")
    (source / "model.safetensors.index.json").unlink()
    cast(source, tmp_path / "narrow", format="mxfp4")
    assert len(list((tmp_path / "narrow").glob("*.safetensors*"))) == 3


def test_a_folder_goes_to_a_folder_of_its_own(tmp_path: Path) -> None:
    source = sharded(tmp_path / "wide")
    for target, told in ((source, "is the source itself"), (tmp_path / "n.safetensors", "give a folder")):
        with pytest.raises(ArgumentError, match=told):
            cast(source, target, format="mxfp4")
    (tmp_path / "other").mkdir()
    save_file({"x": normal(2)}, tmp_path / "other" / "old.safetensors")
    with pytest.raises(ArgumentError, match=r"holds 'old\.safetensors', which is not of this checkpoint"):
        cast(source, tmp_path / "other", format="mxfp4")


def test_a_folder_that_was_made_for_nothing_goes_again(tmp_path: Path) -> None:
    tensors = small()
    tensors["double"][0, 0] = torch.nan
    with pytest.raises(DataError, match="'double'"):
        cast(sharded(tmp_path / "wide", tensors), tmp_path / "narrow", format="int8")
    assert not (tmp_path / "narrow").exists()


MEASURE = """
import json, re, sys
import torch, fewbits.files.casting, fewbits.files.inspection
def peak(): return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024
torch.set_num_threads(1)
before = peak()
if sys.argv[3] == "whole":
    from safetensors.torch import load_file
    import pathlib
    kept = [load_file(p, device="cpu") for p in pathlib.Path(sys.argv[1]).glob("*.safetensors")]
    total = sum(t.float().abs().sum() for f in kept for t in f.values())
else:
    fewbits.files.casting.cast(sys.argv[1], sys.argv[2], format=sys.argv[3])
    fewbits.files.casting.restore(sys.argv[2], sys.argv[2] + "-back")
    fewbits.files.inspection.inspect(sys.argv[2])
print(json.dumps({"before": before, "after": peak()}))
"""
MIB = 1 << 20


def extra_memory(*arguments: object) -> int:
    """Return the bytes that a fresh process needed at most above what its imports took."""
    run = subprocess.run(
        [sys.executable, "-c", MEASURE, *map(str, arguments)], capture_output=True, text=True, check=True
    )
    told = json.loads(run.stdout)
    return told["after"] - told["before"]


def large(folder: Path, shards: int, each: int) -> Path:
    """Write a BF16 checkpoint of several files of ``each`` bytes; one tensor is half a file."""
    folder.mkdir()
    row = torch.randn(4096, generator=torch.Generator().manual_seed(0)).bfloat16()
    for i in range(shards):
        halves = {"big": each // 2, "a": each // 4, "b": each // 4}
        tensors = {f"{n}.{i}": row.repeat(size // 8192, 1) for n, size in halves.items()}
        save_file(tensors, folder / f"model-{i}.safetensors")
    return folder


@pytest.mark.peak_memory
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="the peak memory is read from /proc")
def test_memory_does_not_grow_with_the_checkpoint(tmp_path: Path) -> None:
    source = large(tmp_path / "wide", 4, 32 * MIB)
    assert extra_memory(source, tmp_path / "n", "whole") > 120 * MIB  # the measure sees what is held
    assert extra_memory(source, tmp_path / "narrow", "int8_tensor") < 100 * MIB


@pytest.mark.slow
def test_a_checkpoint_of_4_gib_takes_less_than_300_mib(tmp_path: Path) -> None:
    source = large(tmp_path / "wide", 4, 1024 * MIB)
    assert extra_memory(source, tmp_path / "narrow", "mxfp4") < 300 * MIB
