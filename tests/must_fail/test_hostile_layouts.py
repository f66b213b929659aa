"""Folders in the layouts of other programs that are damaged or made to harm: each is refused in one line."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from fewbits.errors import ArgumentError, DataError
from fewbits.files import cast, inspect, load_file, restore
from tests.files.layouts import onnx_models

CT = {"dtype": "bfloat16", "quantization_config": {"quant_method": "compressed-tensors"}}
U8 = torch.uint8


def zeros(*shape: int, dtype: torch.dtype = U8) -> torch.Tensor:
    return torch.zeros(shape, dtype=dtype)


MXFP4 = {"a.weight_packed": zeros(2, 32), "a.weight_scale": zeros(2, 2)}
NVFP4 = {
    "a.weight_packed": zeros(2, 32),
    "a.weight_scale": zeros(2, 4).view(torch.float8_e4m3fn),
    "a.weight_global_scale": torch.ones(1),
}
INT4 = {
    "a.weight_packed": zeros(2, 8, dtype=torch.int32),
    "a.weight_scale": zeros(2, 2, dtype=torch.bfloat16),
    "a.weight_shape": torch.tensor([2, 64]),
}
BROKEN = {
    "no scales": ({"a.weight_packed": zeros(2, 32), "b.scale": zeros(1)}, "no two-axis pair"),
    "scales alone": ({"a.weight_scale": zeros(2, 2)}, "no two-axis pair"),
    "three axes": ({**MXFP4, "a.weight_packed": zeros(1, 2, 32)}, "no two-axis pair"),
    "scales of fewer rows": ({**MXFP4, "a.weight_scale": zeros(1, 2)}, "takes U8 [2, 2]"),
    "scales of fewer blocks": ({**MXFP4, "a.weight_scale": zeros(2, 1)}, "takes U8"),
    "F8_E8M0 scales": ({**MXFP4, "a.weight_scale": zeros(2, 2).view(torch.float8_e8m0fnu)}, "takes U8"),
    "no global scale": ({k: NVFP4[k] for k in list(NVFP4)[:2]}, "'weight_global_scale' is missing"),
    "two global scales": ({**NVFP4, "a.weight_global_scale": torch.ones(2)}, "takes F32 [1]"),
    "a zero point": ({**MXFP4, "a.weight_zero_point": zeros(2, 2)}, "expected symmetric weights only"),
    "an order of columns": ({**INT4, "a.weight_g_idx": zeros(64)}, "expected symmetric weights only"),
    "float32 scales": ({**INT4, "a.weight_scale": torch.zeros(2, 2)}, "takes BF16 [2, 2]"),
    "no shape": ({k: INT4[k] for k in list(INT4)[:2]}, "weight_shape is no pair of I64"),
    "a negative shape": ({**INT4, "a.weight_shape": torch.tensor([2, -64])}, "is no shape"),
    "a shape of 2^62": ({**INT4, "a.weight_shape": torch.tensor([2, 2**62])}, "is no shape"),
    "another shape": ({**INT4, "a.weight_shape": torch.tensor([2, 62])}, "takes I32"),
    "rows that no scale divides": ({**INT4, "a.weight_shape": torch.tensor([2, 63])}, "do not divide"),
    "integers of no scheme": ({"a.weight": zeros(2, 64), "a.weight_scale": zeros(2, 2)}, "of no scheme"),
}

MODELOPT = {"quantization_config": {"quant_method": "modelopt"}}
OF_MODELOPT = {
    "a.weight": zeros(2, 32),
    "a.weight_scale": NVFP4["a.weight_scale"],
    "a.weight_scale_2": torch.tensor(1.0),
}
FEWER = zeros(2, 2).view(torch.float8_e4m3fn)
BROKEN_MODELOPT = {
    "FP8": ({**OF_MODELOPT, "a.weight": zeros(2, 32).view(torch.float8_e4m3fn)}, "expected NVFP4"),
    "three axes": ({**OF_MODELOPT, "a.weight": zeros(1, 2, 32)}, "expected NVFP4"),
    "fewer scales": (
        {**OF_MODELOPT, "a.weight_scale": zeros(2, 2).view(torch.float8_e4m3fn)},
        "takes F8_E4M3",
    ),
    "no outer scale": ({k: OF_MODELOPT[k] for k in list(OF_MODELOPT)[:2]}, "'weight_scale_2' is missing"),
    "an outer scale of BF16": ({**OF_MODELOPT, "a.weight_scale_2": torch.ones(1).bfloat16()}, "takes F32 []"),
}
GPT_OSS = {"quantization_config": {"quant_method": "mxfp4"}}
OF_GPT_OSS = {"e.down_proj_blocks": zeros(2, 5, 3, 16), "e.down_proj_scales": zeros(2, 5, 3)}
BROKEN_GPT_OSS = {
    "three axes": ({**OF_GPT_OSS, "e.down_proj_blocks": zeros(5, 3, 16)}, "expected U8 of four axes"),
    "blocks of 8": ({**OF_GPT_OSS, "e.down_proj_blocks": zeros(2, 5, 3, 8)}, "expected U8 of four axes"),
    "fewer scales": ({**OF_GPT_OSS, "e.down_proj_scales": zeros(2, 5, 2)}, "expected U8 [2, 5, 3]"),
    "other scales": ({"e.down_proj_blocks": zeros(2, 5, 3, 16), "a.scale": zeros(1)}, "scales are missing"),
}
ALL_BROKEN = {
    **{f"compressed-tensors: {case}": (CT, *row) for case, row in BROKEN.items()},
    **{f"modelopt: {case}": (MODELOPT, *row) for case, row in BROKEN_MODELOPT.items()},
    **{f"gpt-oss: {case}": (GPT_OSS, *row) for case, row in BROKEN_GPT_OSS.items()},
}


def folder(path: Path, tensors: dict[str, torch.Tensor], config: object = CT) -> Path:
    path.mkdir()
    save_file(tensors, path / "model.safetensors")
    text = config if isinstance(config, str) else json.dumps(config)
    (path / "config.json").write_text(text)
    return path


SOUND = [(MXFP4, CT), (NVFP4, CT), (INT4, CT), (OF_MODELOPT, MODELOPT), (OF_GPT_OSS, GPT_OSS)]


@pytest.mark.parametrize(("tensors", "config"), SOUND)
def test_what_the_broken_ones_are_made_of_is_sound(tmp_path: Path, tensors: Any, config: Any) -> None:
    assert not inspect(folder(tmp_path / "a", tensors, config)).problems
    restore(tmp_path / "a", tmp_path / "b")


@pytest.mark.parametrize("case", ALL_BROKEN)
def test_a_broken_folder_is_refused_in_one_line(tmp_path: Path, case: Any) -> None:
    config, tensors, told = ALL_BROKEN[case]
    path = folder(tmp_path / "a", tensors, config)
    (problem,) = inspect(path).problems
    assert told in problem
    for read in (lambda: restore(path, tmp_path / "b"), lambda: load_file(path)):
        with pytest.raises(DataError) as caught:
            read()
        assert told in str(caught.value)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 1000
    assert not (tmp_path / "b").exists()


CONFIGS = {
    "not JSON": ("{", "is not JSON"),
    "too deep": ("[" * 10**6, "is not JSON"),
    "a list": ("[]", "holds no JSON object"),
    "a key twice": ('{"a":1,"a":2}', "'a' 2 times"),
    "too large": (" " * 10_000_001, "10000001 bytes"),
}


@pytest.mark.parametrize("case", CONFIGS)
def test_a_hostile_config_is_refused_in_one_line(tmp_path: Path, case: Any) -> None:
    text, told = CONFIGS[case]
    with pytest.raises(DataError) as caught:
        inspect(folder(tmp_path / "a", MXFP4, text))
    assert told in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("quantization", [None, [], {}, {"quant_method": ["x"]}, {"quant_method": "gptq"}])
def test_another_config_makes_ordinary_tensors(tmp_path: Path, quantization: Any) -> None:
    report = inspect(folder(tmp_path / "a", MXFP4, {"dtype": 7, "quantization_config": quantization}))
    assert [t.format for t in report.tensors] == [None, None]
    assert not report.problems


def onnx_model(*held: Any) -> Any:
    from onnx import helper

    value = [helper.make_tensor_value_info(name, 1, None) for name in "xy"]
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    return helper.make_model(helper.make_graph([node], "g", value[:1], value[1:], list(held)))


def onnx_weight(name: str = "w", **changes: Any) -> Any:
    from onnx import TensorProto

    return TensorProto(**{"name": name, "data_type": 1, "dims": [32, 8], "raw_data": bytes(1024)} | changes)


def beside(**told: Any) -> Any:
    from onnx import TensorProto

    tensor = TensorProto(name="w", data_type=1, dims=[32, 8], data_location=TensorProto.EXTERNAL)
    for key, value in told.items():
        tensor.external_data.add(key=key, value=str(value))
    return tensor


BROKEN_ONNX = {
    "no graph": (lambda: onnx_model().__class__(ir_version=8), "it has no graph"),
    "no initializers": (onnx_model, "has no initializers"),
    "a negative extent": (lambda: onnx_model(onnx_weight(dims=[-32, -8])), "expected counts"),
    "too large": (lambda: onnx_model(onnx_weight(dims=[2**40, 2**40])), "expected counts"),
    "too many axes": (lambda: onnx_model(onnx_weight(dims=[1] * 65)), "expected counts"),
    "too few bytes": (lambda: onnx_model(onnx_weight(raw_data=bytes(1023))), "in 1023 bytes; expected 1024"),
    "too many bytes": (lambda: onnx_model(onnx_weight(raw_data=bytes(1025))), "in 1025 bytes; expected 1024"),
    "too few numbers": (
        lambda: onnx_model(onnx_weight(raw_data=None, float_data=[1.0])),
        "has not the numbers of its shape",
    ),
    "a name twice": (lambda: onnx_model(onnx_weight(), onnx_weight()), "has the initializer 'w' twice"),
    "a folder above": (lambda: onnx_model(beside(location="../secret")), "expected a file in its folder"),
    "an absolute path": (lambda: onnx_model(beside(location="/etc/passwd")), "expected a file in its folder"),
    "nowhere": (lambda: onnx_model(beside(offset=0)), "expected a file in its folder"),
    "a file that is missing": (lambda: onnx_model(beside(location="gone")), "'gone', which is missing"),
    "the end of a file": (lambda: onnx_model(beside(location="there", offset=1)), "expected 1024 bytes"),
    "before a file": (lambda: onnx_model(beside(location="there", offset=-1)), "expected 1024 bytes"),
    "another length": (lambda: onnx_model(beside(location="there", length=1023)), "in 1023 bytes from 0 on"),
    "no count": (lambda: onnx_model(beside(location="there", offset="0x")), "has no counts"),
}


@pytest.mark.parametrize("case", BROKEN_ONNX)
def test_a_broken_model_is_refused_in_one_line(tmp_path: Path, case: Any) -> None:
    pytest.importorskip("onnx")
    made, told = BROKEN_ONNX[case]
    (tmp_path / "there").write_bytes(bytes(1024))
    file = tmp_path / "a.onnx"
    file.write_bytes(made().SerializeToString())
    for read in (lambda: inspect(file), lambda: restore(file, tmp_path / "b.onnx"), lambda: load_file(file)):
        with pytest.raises(DataError) as caught:
            read()
        assert told in str(caught.value)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 1000
    assert not (tmp_path / "b.onnx").exists()
    for sound in (onnx_model(onnx_weight()), onnx_model(beside(location="there"))):  # the control
        file.write_bytes(sound.SerializeToString())
        assert not inspect(file).problems


def test_a_damaged_model_is_refused_in_one_line_wherever_the_damage_is(tmp_path: Path) -> None:
    pytest.importorskip("onnx")
    file, rng = tmp_path / "a.onnx", np.random.default_rng(3)
    cast(onnx_models.saved(tmp_path / "wide.onnx"), file, format="nvfp4", layout="onnx")
    sound = file.read_bytes()
    for end in (0, 1, 10, 200, len(sound) // 2, len(sound) - 1):
        file.write_bytes(sound[:end])
        with pytest.raises(DataError) as caught:
            restore(file, tmp_path / "b.onnx")
        assert len(str(caught.value)) < 1000
    for _ in range(150):
        octets = bytearray(sound)
        for at in rng.integers(0, len(sound), 20):
            octets[at] = rng.integers(0, 256)
        at = int(rng.integers(0, 2500))
        octets[at : at + 4] = rng.integers(0, 256, 4, np.uint8).tobytes()
        file.write_bytes(octets)
        with suppress(DataError):
            assert all(len(problem) < 1000 for problem in inspect(file).problems)
        with suppress(DataError, ArgumentError):
            restore(file, tmp_path / "b.onnx")


NVFP4_OF_TORCHAO = {
    "a._weight_qdata": zeros(2, 32),
    "a._weight_scale": zeros(2, 4).view(torch.float8_e4m3fn),
    "a._weight_per_tensor_scale": torch.tensor(1.0),
}
ABOUT = {"_type": "NVFP4Tensor", "_data": {"orig_dtype": {"_type": "torch.dtype", "_data": "bfloat16"}}}
SWIZZLED = {**ABOUT, "_data": {**ABOUT["_data"], "is_swizzled_scales": True}}
BROKEN_TORCHAO = {
    "no scales": ({"a._weight_qdata": zeros(2, 32), "b.scale": zeros(1)}, ABOUT, "no two-axis qdata"),
    "three axes": ({**NVFP4_OF_TORCHAO, "a._weight_qdata": zeros(1, 2, 32)}, ABOUT, "no two-axis qdata"),
    "fewer scales": ({**NVFP4_OF_TORCHAO, "a._weight_scale": FEWER}, ABOUT, "takes F8_E4M3 [2, 4]"),
    "two outer scales": (
        {**NVFP4_OF_TORCHAO, "a._weight_per_tensor_scale": torch.ones(2)}, ABOUT, "takes F32 []",
    ),
    "another class": (NVFP4_OF_TORCHAO, {**ABOUT, "_type": ["x"]}, "which is not read"),
    "no dtype": (NVFP4_OF_TORCHAO, {"_type": "NVFP4Tensor", "_data": 7}, "which is not read"),
    "scales of an activation": (
        {**NVFP4_OF_TORCHAO, "a._weight_act_per_tensor_scale": torch.ones(1)}, ABOUT, "expected symmetric",
    ),
    "no whole tile": (NVFP4_OF_TORCHAO, SWIZZLED, "has 8 bytes, and tiles of 128 by 4 of [2, 4] have 512"),
}  # fmt: skip


def of_torchao(path: Path, tensors: dict[str, torch.Tensor], about: object) -> Path:
    path.mkdir(exist_ok=True)
    texts = {
        "tensor_names": '["a.weight"]',
        "a.weight": about if isinstance(about, str) else json.dumps(about),
    }
    save_file(tensors, path / "model.safetensors", texts)
    return path


@pytest.mark.parametrize("case", BROKEN_TORCHAO)
def test_a_broken_folder_of_torchao_is_refused_in_one_line(tmp_path: Path, case: Any) -> None:
    assert not inspect(of_torchao(tmp_path / "sound", NVFP4_OF_TORCHAO, ABOUT)).problems
    tensors, about, told = BROKEN_TORCHAO[case]
    path = of_torchao(tmp_path / "a", tensors, about)
    (problem,) = inspect(path).problems
    assert told in problem
    for read in (lambda: restore(path, tmp_path / "b"), lambda: load_file(path)):
        with pytest.raises(DataError) as caught:
            read()
        assert told in str(caught.value)
        assert len(str(caught.value)) < 1000
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("about", ["{", "[]", "[" * 10**5, "null", "7"])
def test_another_header_makes_ordinary_tensors(tmp_path: Path, about: Any) -> None:
    report = inspect(of_torchao(tmp_path / "a", NVFP4_OF_TORCHAO, about))
    assert [t.format for t in report.tensors] == [None, None, None]
    assert not report.problems
