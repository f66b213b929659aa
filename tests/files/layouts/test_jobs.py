"""Jobs in the layouts of other programs end as those of fewbits do: whole, or to be continued."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest
import torch
from safetensors.torch import save_file

from fewbits.errors import ArgumentError, DataError
from fewbits.files import cast, load_file
from fewbits.files.layouts import LAYOUTS
from fewbits.files.piecewise import quantize_tensor
from tests.files.layouts import onnx_models
from tests.files.layouts.models import SIZES, saved_llama

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
FORMATS = {"compressed-tensors": "nvfp4", "modelopt": "nvfp4", "gguf": "nvfp4", "gpt-oss": "mxfp4"}
FORMATS |= {"onnx": "nvfp4", "onnxruntime": "nvfp4", "torchao": "nvfp4"}


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    transformers = pytest.importorskip("transformers")
    for package in ("compressed_tensors", "gguf", "onnx"):
        pytest.importorskip(package)
    pytest.importorskip("torchao", minversion="0.18")
    folder = tmp_path_factory.mktemp("wide")
    llama = saved_llama(folder / "llama", max_shard_size="60KB")
    sizes = SIZES | {"head_dim": 16, "num_local_experts": 4, "num_experts_per_tok": 2, "pad_token_id": 0}
    transformers.GptOssForCausalLM(transformers.GptOssConfig(**sizes)).save_pretrained(folder / "gpt-oss")
    own = {"gpt-oss": folder / "gpt-oss"}
    own |= dict.fromkeys(("onnx", "onnxruntime"), onnx_models.saved(folder / "products.onnx"))
    return {name: own.get(name, llama) for name in LAYOUTS}


def contents(path: Path) -> dict[str, bytes]:
    if path.is_file():
        return {"": path.read_bytes()}
    return {file.name: file.read_bytes() for file in sorted(path.iterdir())}


def interrupted_after(count: int) -> Callable[..., Any]:
    calls = []

    def stopped(*args: Any, **choices: Any) -> Any:
        calls.append(args)
        if len(calls) > count:
            raise KeyboardInterrupt
        return quantize_tensor(*args, **choices)

    return stopped


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_interrupted_job_leaves_nothing_that_loads_and_goes_on_to_the_same_bytes(
    sources: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: Any
) -> None:
    choices = {"format": FORMATS[layout], "layout": layout}
    end = LAYOUTS[layout].suffix
    cast(sources[layout], tmp_path / f"whole{end}", **choices)
    target, begun = tmp_path / f"narrow{end}", []
    with monkeypatch.context() as patch:
        patch.setattr("fewbits.files.job.quantize_tensor", interrupted_after(3))
        with pytest.raises(KeyboardInterrupt):
            cast(sources[layout], target, **choices)
    assert not target.is_file()
    assert not [file for file in tmp_path.glob("narrow/*") if not file.name.startswith(".fewbits-")]

    def counted(*args: Any, **more: Any) -> Any:
        begun.append(args[0].name)
        return quantize_tensor(*args, **more)

    monkeypatch.setattr("fewbits.files.job.quantize_tensor", counted)
    cast(sources[layout], target, **choices)
    assert contents(target) == contents(tmp_path / f"whole{end}")
    assert len(begun) == len(set(begun))
    cast(sources[layout], tmp_path / f"again{end}", **choices)
    assert len(begun) > 3  # the control: a job that starts anew takes all of them
    assert begun[: len(begun) // 2] != begun[len(begun) // 2 :]


def test_a_disk_that_is_full_leaves_nothing(
    sources: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> NoReturn:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fewbits.files.job.quantize_tensor", full)
    for layout, source in sources.items():
        target = tmp_path / f"narrow{LAYOUTS[layout].suffix}"
        with pytest.raises(OSError, match="No space left"):
            cast(source, target, format=FORMATS[layout], layout=layout)
        assert not list(tmp_path.iterdir())


def test_the_config_of_another_model_is_not_replaced(sources: dict[str, Path], tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "config.json").write_text("{}")
    with pytest.raises(ArgumentError, match=r"holds 'config\.json'.*; give an empty folder"):
        cast(sources["modelopt"], other, format="nvfp4", layout="modelopt")
    assert (other / "config.json").read_text() == "{}"
    (other / "config.json").unlink()
    for _ in range(2):  # what an earlier run wrote is replaced
        cast(sources["modelopt"], other, format="nvfp4", layout="modelopt")
    assert (
        json.loads((other / "config.json").read_text())["quantization_config"]["quant_method"] == "modelopt"
    )


def test_zeros_stay_zeros_and_weights_too_small_for_a_scale_are_refused(
    sources: dict[str, Path], tmp_path: Path
) -> None:
    source = tmp_path / "wide"
    for value in (0.0, 2.0**-126):
        source.mkdir(exist_ok=True)
        save_file({"a.weight": torch.full((4, 64), value)}, source / "model.safetensors")
        (source / "config.json").write_text('{"dtype": "float32"}')
        if value:
            with pytest.raises(DataError, match="has no reciprocal in F32"):
                cast(source, tmp_path / "small", format="nvfp4", layout="compressed-tensors")
            continue
        for layout in ("compressed-tensors", "modelopt"):
            cast(source, tmp_path / layout, format="nvfp4", layout=layout)
            assert not load_file(tmp_path / layout)["a.weight"].dequantize().any()
