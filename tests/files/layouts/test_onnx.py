"""ONNX: models that the reference evaluator and ONNX Runtime compute, and models that others made narrow."""

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import fewbits as fb
from fewbits.cli import main as cli
from fewbits.compare import measure_checkpoint
from fewbits.errors import ArgumentError, DataError, MissingDependencyError
from fewbits.files import cast, inspect, restore
from fewbits.files import load_file as load_narrow
from tests.files.layouts.onnx_models import (
    SUMS,
    by_reference,
    by_runtime,
    initializers,
    model,
    normal,
    rounded,
    saved,
    weights,
)

onnx = pytest.importorskip("onnx", minversion="1.23")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

INT4 = "block(element=int(4,coding=symmetric),scale=fp32,size=32)"
STANDARD = [
    "mxfp4", "nvfp4", "mxfp8_e4m3", "mxfp8_e5m2", "mxfp6_e2m3", "mxfp6_e3m2", "fp8_e4m3_channel",
    "fp8_e5m2_channel", "int8_channel", "int8_tensor", "int4_channel", INT4,
    "block(element=int(8,coding=symmetric),scale=bf16,size=16)", "block(element=ternary,scale=fp16,size=32)",
    "block(element=fp4_e2m1,scale=fp8_e4m3,size=16)",
]  # fmt: skip
FOR_RUNTIME = [fmt for fmt in STANDARD if "fp6" not in fmt]
CASES = [*(("onnx", fmt) for fmt in STANDARD), *(("onnxruntime", fmt) for fmt in FOR_RUNTIME)]


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("onnx") / "wide.onnx")


def written(source: Path, folder: Path, fmt: str = "mxfp4", layout: str = "onnx", **choices: Any) -> Path:
    file = folder / "narrow.onnx"
    cast(source, file, format=fmt, layout=layout, **choices)
    assert not inspect(file).problems
    return file


def dense(folder: Path, values: dict[str, np.ndarray]) -> Path:
    return saved(folder / "dense.onnx", values=values)


@pytest.mark.parametrize(("layout", "fmt"), CASES)
def test_products_are_those_of_a_dense_model_with_the_weights_that_fewbits_rounds(
    wide: Path, tmp_path: Path, layout: Any, fmt: Any
) -> None:
    file = written(wide, tmp_path, fmt, layout)
    onnx.checker.check_model(str(file), full_check=True)
    narrow = {t.tensor for t in inspect(file).tensors if t.format is not None}
    assert narrow == set(SUMS)  # neither the bias, nor what is read by its rows, nor shapes
    expected = {name: rounded(name, x, fmt) for name, x in weights().items()}
    twin = dense(tmp_path, expected)
    for x, y in zip(by_reference(file), by_reference(twin), strict=True):
        if (layout, fmt) == ("onnx", "nvfp4"):  # scales are rounded with the outer one, before the product
            np.testing.assert_allclose(x, y, rtol=0, atol=2e-3)
        else:
            np.testing.assert_array_equal(x, y)
    assert np.abs(by_reference(file)[0] - by_reference(wide)[0]).max() > 0.01  # the control
    restore(file, tmp_path / "back.onnx")
    onnx.checker.check_model(str(tmp_path / "back.onnx"), full_check=True)
    back = initializers(tmp_path / "back.onnx")
    for name, x in expected.items():
        np.testing.assert_array_equal(back[name], x)
        assert not np.array_equal(x, weights()[name])
    assert set(back) == set(initializers(wide))
    kinds = {node.op_type for node in onnx.load(tmp_path / "back.onnx").graph.node}
    assert kinds == {node.op_type for node in onnx.load(wide).graph.node}
    for name, x in load_narrow(file).items():
        if name in expected:
            assert isinstance(x, fb.NarrowTensor)
            np.testing.assert_array_equal(
                x.dequantize().reshape(expected[name].shape).numpy(), expected[name]
            )


RUNS = [("onnxruntime", fmt) for fmt in FOR_RUNTIME] + [
    ("onnx", fmt) for fmt in ("fp8_e4m3_channel", "fp8_e5m2_channel", "int8_channel", "int4_channel", INT4)
]


@pytest.mark.parametrize(("layout", "fmt"), RUNS)
def test_onnx_runtime_computes_the_same(wide: Path, tmp_path: Path, layout: Any, fmt: Any) -> None:
    pytest.importorskip("onnxruntime", minversion="1.31")
    file = written(wide, tmp_path, fmt, layout)
    twin = dense(tmp_path, {name: rounded(name, x, fmt) for name, x in weights().items()})
    for x, y in zip(by_runtime(file), by_runtime(twin), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-4)  # the order of its sums is its own
    assert np.abs(by_runtime(file)[0] - by_runtime(wide)[0]).max() > 0.01


@pytest.mark.parametrize("fmt", ["mxfp4", "nvfp4", "mxfp8_e4m3"])
def test_onnx_runtime_has_no_kernels_for_the_form_of_the_standard(
    wide: Path, tmp_path: Path, fmt: Any
) -> None:
    runtime = pytest.importorskip("onnxruntime", minversion="1.31")
    with pytest.raises(runtime.capi.onnxruntime_pybind11_state.NotImplemented):  # why there is another
        by_runtime(written(wide, tmp_path, fmt))


def test_onnx_runtime_rounds_inputs_of_products_with_integers_unless_it_is_told_not_to(
    wide: Path, tmp_path: Path
) -> None:
    runtime = pytest.importorskip("onnxruntime", minversion="1.31")
    from tests.files.layouts.onnx_models import inputs

    file = written(wide, tmp_path, INT4)
    session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    found, exact = session.run(None, inputs())[0], by_runtime(file)[0]
    assert 1e-3 < np.abs(found - exact).max() / np.abs(exact).max() < 0.05


def stored(file: Path, name: str) -> Any:
    return next(t for t in onnx.load(file).graph.initializer if t.name == name)


def test_types_shapes_and_operators_are_those_of_the_standard(wide: Path, tmp_path: Path) -> None:
    found = onnx.load(written(wide, tmp_path, "mxfp4", map={"down": "nvfp4", "first": "int8_channel"}))
    held = {t.name: t for t in found.graph.initializer}
    about = {name: (t.data_type, tuple(t.dims)) for name, t in held.items()}
    assert about["up_quantized"] == (TensorProto.FLOAT4E2M1, (64, 96))
    assert about["up_scale"] == (TensorProto.FLOAT8E8M0, (2, 96))
    assert about["down_quantized"] == (TensorProto.FLOAT4E2M1, (64, 96))
    assert about["down_scale"] == (TensorProto.FLOAT8E4M3FN, (64, 6))
    assert about["down_scale_scale"] == (TensorProto.FLOAT, ())
    assert about["heads_scale"] == (TensorProto.FLOAT8E8M0, (2, 2, 32))
    assert about["kernel_quantized"] == (TensorProto.FLOAT4E2M1, (8, 64))
    assert about["first_quantized"] == (TensorProto.INT8, (16, 64))
    assert about["first_scale"] == (TensorProto.FLOAT, (16,))
    nodes = {node.output[0]: node for node in found.graph.node}
    told = {a.name: helper.get_attribute_value(a) for a in nodes["up"].attribute}
    assert told == {"axis": 0, "block_size": 32, "output_dtype": TensorProto.FLOAT}
    assert {a.name: a.i for a in nodes["first"].attribute} == {"axis": 0}
    assert nodes[nodes["down"].input[1]].op_type == "DequantizeLinear"
    assert (nodes["kernel"].op_type, nodes["up"].op_type) == ("Reshape", "DequantizeLinear")
    assert [o.version for o in found.opset_import] == [24]
    assert found.ir_version >= 12
    assert found.metadata_props[0].value == "us"
    codes = np.frombuffer(held["first_quantized"].raw_data, np.int8).reshape(16, 64)
    np.testing.assert_array_equal(codes, numpy_helper.to_array(held["first_quantized"]))


def test_nibbles_and_scales_are_those_of_the_packages_own_writer(tmp_path: Path) -> None:
    """What onnx packs of values and exponents that fewbits chose, along the first axis and the last."""
    import ml_dtypes

    for transposed, axis in ((0, 0), (1, 1)):
        x = normal(64, 33) if not transposed else normal(33, 64)
        value = [helper.make_tensor_value_info(n, 1, None) for n in "xy"]
        node = helper.make_node("Gemm", ["x", "w"], ["y"], transB=transposed)
        graph = helper.make_graph([node], "one", value[:1], value[1:], [numpy_helper.from_array(x, "w")])
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)]), tmp_path / "w.onnx")
        file = written(tmp_path / "w.onnx", tmp_path, "mxfp4")
        q = fb.quantize(torch.from_numpy(x), "mxfp4", axis=axis)
        exponents = np.moveaxis(q.scales.numpy(), -1, axis)
        wide = np.repeat(np.ldexp(1.0, exponents.astype(int) - 127), 32, axis=axis)
        elements = (q.dequantize().numpy() / wide).astype(ml_dtypes.float4_e2m1fn)
        expected = numpy_helper.from_array(elements, "w_quantized").raw_data
        assert stored(file, "w_quantized").raw_data == expected
        assert stored(file, "w_scale").raw_data == exponents.tobytes()


@pytest.mark.parametrize("layout", ["onnx", "onnxruntime"])
@pytest.mark.parametrize("rows", [5, 33])
def test_rows_that_end_within_a_byte_come_back(tmp_path: Path, layout: Any, rows: int) -> None:
    """ONNX leaves no gap between rows; an odd number of four-bit codes shares bytes with the next row."""
    x = normal(rows, 7)
    value = [helper.make_tensor_value_info(n, 1, None) for n in "xy"]
    for transposed in (0, 1):
        node = helper.make_node("Gemm", ["x", "w"], ["y"], transB=transposed)
        graph = helper.make_graph([node], "one", value[:1], value[1:], [numpy_helper.from_array(x, "w")])
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), tmp_path / "w.onnx")
        for fmt in ("int4_channel", "block(element=fp4_e2m1,scale=fp32,size=channel)"):
            file = written(tmp_path / "w.onnx", tmp_path, fmt, layout)
            restore(file, tmp_path / "back.onnx")
            expected = fb.quantize(torch.from_numpy(x), fmt, axis=transposed).dequantize().numpy()
            np.testing.assert_array_equal(initializers(tmp_path / "back.onnx")["w"], expected)


@pytest.mark.parametrize(("fmt", "shape"), [("mxfp4", (8, 4, 32)), ("nvfp4", (8, 1, 16))])
def test_a_kernel_of_one_axis_that_is_as_long_as_a_block_keeps_its_axes(
    tmp_path: Path, fmt: Any, shape: Any
) -> None:
    """Its codes then have its shape already, so that no Reshape behind them says it."""
    x = normal(*shape)
    node = helper.make_node("Conv", ["x", "w"], ["y"])
    image = helper.make_tensor_value_info("x", 1, [2, shape[1], 64])
    y = helper.make_tensor_value_info("y", 1, None)
    graph = helper.make_graph([node], "one", [image], [y], [numpy_helper.from_array(x, "w")])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), tmp_path / "w.onnx")
    file = written(tmp_path / "w.onnx", tmp_path, fmt, "onnxruntime")
    assert "Reshape" not in {node.op_type for node in onnx.load(file).graph.node}
    restore(file, tmp_path / "back.onnx")
    expected = fb.quantize(torch.from_numpy(x).reshape(8, -1), fmt).dequantize().numpy().reshape(shape)
    np.testing.assert_array_equal(initializers(tmp_path / "back.onnx")["w"], expected)
    assert [t.shape for t in inspect(file).tensors if t.tensor == "w"] == [shape]


@pytest.mark.parametrize("dtype", [TensorProto.FLOAT16, TensorProto.BFLOAT16])
@pytest.mark.parametrize("layout", ["onnx", "onnxruntime"])
def test_half_precision_stays_half_precision(tmp_path: Path, dtype: Any, layout: Any) -> None:
    source = saved(tmp_path / "half.onnx", dtype=dtype, opset=19)
    file = written(source, tmp_path, "mxfp4", layout, exclude=["kernel"])
    onnx.checker.check_model(str(file), full_check=True)
    restore(file, tmp_path / "back.onnx")
    wide = helper.tensor_dtype_to_np_dtype(dtype)
    for name, x in weights().items():
        found = initializers(tmp_path / "back.onnx")[name]
        assert found.dtype == wide
        half = x.astype(wide).astype(np.float32)
        expected = half if name == "kernel" else rounded(name, half, "mxfp4")
        np.testing.assert_array_equal(found.astype(np.float32), expected.astype(wide).astype(np.float32))


@pytest.mark.parametrize("layout", ["onnx", "onnxruntime"])
def test_numbers_beside_the_model_stay_there_and_the_result_is_the_same(
    wide: Path, tmp_path: Path, layout: Any
) -> None:
    source = saved(tmp_path / "external.onnx", external=True)
    assert (tmp_path / "external.onnx_numbers").is_file()
    file = written(source, tmp_path, "nvfp4", layout, exclude=["heads"])
    data = tmp_path / "narrow.onnx.data"
    assert file.stat().st_size < 8000 < data.stat().st_size
    onnx.checker.check_model(str(file), full_check=True)
    held = [t for t in onnx.load(file, load_external_data=False).graph.initializer if t.external_data]
    offsets = [int(entry.value) for t in held for entry in t.external_data if entry.key == "offset"]
    assert len(offsets) >= 8
    assert not any(at % 64 for at in offsets)  # where a program maps the file, numbers are aligned
    (tmp_path / "one").mkdir()
    whole = written(wide, tmp_path / "one", "nvfp4", layout, exclude=["heads"])
    assert not (tmp_path / "one" / "narrow.onnx.data").exists()
    for x, y in zip(by_reference(file), by_reference(whole), strict=True):
        np.testing.assert_array_equal(x, y)
    restore(file, tmp_path / "back.onnx")
    restore(whole, tmp_path / "one" / "back.onnx")
    assert (tmp_path / "back.onnx.data").is_file()
    for x, y in zip(
        by_reference(tmp_path / "back.onnx"), by_reference(tmp_path / "one" / "back.onnx"), strict=True
    ):
        np.testing.assert_array_equal(x, y)


def test_an_interrupted_job_leaves_neither_file_and_goes_on_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fewbits.files.piecewise import quantize_tensor

    source, begun = saved(tmp_path / "external.onnx", external=True), []
    (tmp_path / "whole").mkdir()
    (tmp_path / "to").mkdir()
    written(source, tmp_path / "whole", "nvfp4")

    def stopped(*args: Any, **choices: Any) -> Any:
        begun.append(args[0].name)
        if len(begun) == 3:
            raise KeyboardInterrupt
        return quantize_tensor(*args, **choices)

    monkeypatch.setattr("fewbits.files.job.quantize_tensor", stopped)
    with pytest.raises(KeyboardInterrupt):
        written(source, tmp_path / "to", "nvfp4")
    assert all(file.name.startswith(".fewbits-") for file in (tmp_path / "to").iterdir())
    written(source, tmp_path / "to", "nvfp4")
    assert len(begun) == len(SUMS) + 1  # the third one twice
    for name in ("narrow.onnx", "narrow.onnx.data"):
        assert (tmp_path / "to" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()


def test_one_weight_at_a_time_is_in_memory(tmp_path: Path) -> None:
    count, size = 16, 4 * 512 * 512  # bytes
    held = [numpy_helper.from_array(normal(512, 512, seed=i), f"w{i}") for i in range(count)]
    nodes = [helper.make_node("MatMul", [f"x{i}", f"w{i}"], [f"x{i + 1}"]) for i in range(count)]
    ends = [helper.make_tensor_value_info(f"x{i}", 1, [1, 512]) for i in (0, count)]
    made = helper.make_model(helper.make_graph(nodes, "g", ends[:1], ends[1:], held))
    onnx.save(made, tmp_path / "wide.onnx", save_as_external_data=True, location="numbers")
    del held, made
    for layout in ("onnx", "onnxruntime"):
        written(tmp_path / "wide.onnx", tmp_path, "mxfp4", layout)  # what is imported once
        (tmp_path / "narrow.onnx").unlink()
        (tmp_path / "narrow.onnx.data").unlink()
        tracemalloc.start()
        try:
            cast(tmp_path / "wide.onnx", tmp_path / "narrow.onnx", format="mxfp4", layout=layout)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.reset_peak()
            restore(tmp_path / "narrow.onnx", tmp_path / "back.onnx")
            peak_back = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert size < peak < 8 * size
        assert peak_back < 8 * size


def test_a_model_that_grows_past_what_a_message_holds_puts_numbers_beside_it(
    wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = written(wide, tmp_path)
    monkeypatch.setattr("fewbits.files.layouts.onnx_model.MOST_EMBEDDED", 30_000)
    restore(file, tmp_path / "back.onnx")
    assert (tmp_path / "back.onnx.data").is_file()
    monkeypatch.undo()
    (tmp_path / "one").mkdir()
    restore(file, tmp_path / "one" / "back.onnx")
    for name, x in initializers(tmp_path / "one" / "back.onnx").items():
        np.testing.assert_array_equal(initializers(tmp_path / "back.onnx")[name], x)


@pytest.mark.parametrize("piece", [32, 96])
@pytest.mark.parametrize("fmt", ["nvfp4", "int4_channel", "int8_tensor"])
def test_the_size_of_a_piece_changes_no_byte(
    wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fmt: Any, piece: Any
) -> None:
    whole = written(wide, tmp_path, fmt).read_bytes()
    restore(tmp_path / "narrow.onnx", tmp_path / "a.onnx")
    monkeypatch.setattr("fewbits.files.piecewise.PIECE_VALUES", piece)
    assert written(wide, tmp_path, fmt).read_bytes() == whole
    restore(tmp_path / "narrow.onnx", tmp_path / "b.onnx")
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_patterns_choose_among_weights_and_the_order_of_names_does_not_matter(
    wide: Path, tmp_path: Path
) -> None:
    file = written(wide, tmp_path, "mxfp4", include=["up", "down"], map={"d*": "int8_channel"})
    formats = {t.tensor: t.format for t in inspect(file).tensors if t.format is not None}
    assert set(formats) == {"up", "down"}
    assert formats["up"] == "mxfp4"
    with pytest.raises(ArgumentError, match="was cast already"):
        cast(file, tmp_path / "again.onnx", format="mxfp4", layout="onnx")
    for name in ("ids", "bias"):
        with pytest.raises(ArgumentError, match="no tensor would be cast"):
            written(wide, tmp_path, include=[name])


def test_a_checkpoint_of_the_initializers_is_compared_and_cast_as_any_other(
    wide: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = measure_checkpoint(wide, formats=["mxfp4"])
    assert {t.tensor for t in report.tensors} == set(initializers(wide))
    cast(wide, tmp_path / "narrow.safetensors", format="mxfp4", include=["down"])
    assert load_narrow(tmp_path / "narrow.safetensors")["shape"].tolist() == [1, -1, 2, 2]
    file = written(wide, tmp_path)
    restore(file, tmp_path / "back.safetensors")
    back = load_file(tmp_path / "back.safetensors")
    np.testing.assert_array_equal(back["kernel"].numpy(), rounded("kernel", weights()["kernel"], "mxfp4"))
    assert cli.run(["inspect", str(file), "--json", "-"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert "mxfp4" in json.dumps(told)


def test_the_command_writes_over_a_model_of_its_own_and_nothing_else(
    wide: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    to = tmp_path / "narrow.onnx"
    command = ["cast", str(wide), str(to), "--format", "mxfp4", "--layout", "onnx"]
    assert cli.run(command) == 0
    assert cli.run(command) == 0
    assert cli.run(["cast", str(to), str(tmp_path / "back.onnx"), "--back"]) == 0
    to.write_text("a letter")
    capsys.readouterr()
    assert cli.run(command) == 2
    assert "is there and not" in capsys.readouterr().err
    assert to.read_text() == "a letter"


def test_subgraphs_read_the_weight_under_its_name(tmp_path: Path) -> None:
    w, bias = numpy_helper.from_array(normal(64, 32), "w"), numpy_helper.from_array(normal(32), "b")
    out = [helper.make_tensor_value_info(n, 1, None) for n in ("then_out", "else_out")]
    branches = [
        helper.make_graph([helper.make_node(kind, inputs, [o.name])], o.name, [], [o])
        for o, (kind, inputs) in zip(out, [("MatMul", ["x", "w"]), ("Gemm", ["x", "w", "b"])], strict=True)
    ]
    node = helper.make_node("If", ["c"], ["y"], then_branch=branches[0], else_branch=branches[1])
    ins = [helper.make_tensor_value_info("c", 9, []), helper.make_tensor_value_info("x", 1, [2, 64])]
    graph = helper.make_graph([node], "g", ins, [helper.make_tensor_value_info("y", 1, None)], [w, bias])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), tmp_path / "w.onnx")
    from onnx.reference import ReferenceEvaluator

    file = written(tmp_path / "w.onnx", tmp_path, "int8_channel")
    restore(file, tmp_path / "back.onnx")
    for c in (True, False):
        x = {"c": np.array(c), "x": normal(2, 64)}
        found = [ReferenceEvaluator(str(f)).run(None, x)[0] for f in (file, tmp_path / "back.onnx")]
        np.testing.assert_array_equal(*found)


def test_what_the_caller_may_replace_or_other_operators_read_stays(tmp_path: Path) -> None:
    made = model()
    made.graph.input.append(helper.make_tensor_value_info("up", 1, [64, 96]))
    made.graph.output.append(helper.make_tensor_value_info("down", 1, [64, 96]))
    made.graph.node.append(helper.make_node("Relu", ["first"], ["positive"]))
    made.graph.node.append(helper.make_node("MatMul", ["heads", "image"], ["sum_of_last"]))  # the other axis
    onnx.save(made, tmp_path / "w.onnx")
    file = written(tmp_path / "w.onnx", tmp_path)
    assert {t.tensor for t in inspect(file).tensors if t.format is not None} == {"kernel"}


def test_weights_of_recurrent_layers_and_turned_ones_are_cut_along_their_sums(tmp_path: Path) -> None:
    from onnx.reference import ReferenceEvaluator

    held = {"W": normal(1, 128, 64), "R": normal(1, 128, 32), "turned": normal(32, 5)}
    nodes = [
        helper.make_node("LSTM", ["x", "W", "R"], ["all", "last"], hidden_size=32),
        helper.make_node("Squeeze", ["last"], ["state"]),
        helper.make_node("Gemm", ["turned", "state"], ["y"], transA=1, transB=1),
    ]
    made = [numpy_helper.from_array(x, name) for name, x in held.items()]
    x, y = (helper.make_tensor_value_info(n, 1, s) for n, s in (("x", [3, 2, 64]), ("y", [5, 2])))
    graph = helper.make_graph(nodes, "g", [x], [y], made)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)]), tmp_path / "w.onnx")
    file = written(tmp_path / "w.onnx", tmp_path, "mxfp4")
    assert {t.tensor for t in inspect(file).tensors if t.format == "mxfp4"} == set(held)
    assert tuple(stored(file, "turned_scale").dims) == (1, 5)
    restore(file, tmp_path / "back.onnx")
    for name, w in held.items():
        axis = 0 if name == "turned" else 2
        expected = fb.quantize(torch.from_numpy(w), "mxfp4", axis=axis).dequantize().numpy()
        np.testing.assert_array_equal(initializers(tmp_path / "back.onnx")[name], expected)
    given = {"x": normal(3, 2, 64)}
    found = [ReferenceEvaluator(str(f)).run(None, given)[0] for f in (file, tmp_path / "back.onnx")]
    np.testing.assert_array_equal(*found)


def test_a_table_of_other_values_is_no_narrow_weight(wide: Path, tmp_path: Path) -> None:
    file = written(wide, tmp_path, "mxfp4", "onnxruntime", include=["up"])
    made = onnx.load(file)
    (table,) = [t for t in made.graph.initializer if t.name == "up_table"]
    table.raw_data = numpy_helper.to_array(table)[::-1].tobytes()
    onnx.save(made, file)
    assert not any(t.format for t in inspect(file).tensors)


def test_names_that_are_taken_get_another(tmp_path: Path) -> None:
    values = weights()
    made = model({**values})
    made.graph.initializer.append(numpy_helper.from_array(normal(3), "up_scale"))
    onnx.save(made, tmp_path / "w.onnx")
    file = written(tmp_path / "w.onnx", tmp_path)
    onnx.checker.check_model(str(file), full_check=True)
    np.testing.assert_array_equal(initializers(file)["up_scale"], normal(3))
    restore(file, tmp_path / "back.onnx")
    np.testing.assert_array_equal(
        initializers(tmp_path / "back.onnx")["up"], rounded("up", values["up"], "mxfp4")
    )


# ------------------------------------------------------------------------------------------ what others write


def quantized_by_runtime(folder: Path, **choices: Any) -> Path:
    quantization = pytest.importorskip("onnxruntime.quantization")

    class Batches(quantization.CalibrationDataReader):
        def __init__(self) -> None:
            from tests.files.layouts.onnx_models import inputs

            self.left = [inputs()]

        def get_next(self) -> Any:
            return self.left.pop() if self.left else None

    source, to = saved(folder / "wide.onnx", opset=21), folder / "theirs.onnx"
    choices |= {"quant_format": quantization.QuantFormat.QDQ, "extra_options": {"WeightSymmetric": True}}
    quantization.quantize_static(source, to, Batches(), **choices)
    return to


@pytest.mark.parametrize("per_channel", [False, True])
def test_what_onnx_runtimes_quantizer_wrote_is_read_as_it_computes_it(
    tmp_path: Path, per_channel: bool
) -> None:
    file = quantized_by_runtime(tmp_path, per_channel=per_channel)
    report = inspect(file)
    assert not report.problems
    narrow = {t.tensor: t.format for t in report.tensors if t.format is not None}
    assert len(narrow) >= 4
    assert all("element=int8" in fmt for fmt in narrow.values())
    assert any("size=channel" in fmt for fmt in narrow.values()) is per_channel
    restore(file, tmp_path / "back.onnx")
    onnx.checker.check_model(str(tmp_path / "back.onnx"))
    for x, y in zip(by_reference(file), by_reference(tmp_path / "back.onnx"), strict=True):
        np.testing.assert_array_equal(x, y)
    back = initializers(tmp_path / "back.onnx")
    for name, x in weights().items():
        (own,) = [n for n in back if n.startswith(name) and n in narrow] or [None]
        if own is not None:
            assert 0 < np.abs(back[own] - x).max() < 0.05


def test_what_helper_made_by_hand_is_read(tmp_path: Path) -> None:
    """Each pair of types and ways to cut, as the standard says they multiply."""
    rng = np.random.default_rng(0)
    kinds = {
        "int8": (TensorProto.INT8, 8), "int4": (TensorProto.INT4, 4), "int2": (TensorProto.INT2, 2),
        "e4m3": (TensorProto.FLOAT8E4M3FN, 8), "e5m2": (TensorProto.FLOAT8E5M2, 8),
        "e2m1": (TensorProto.FLOAT4E2M1, 4), "e2m3": (TensorProto.FLOAT6E2M3, 6),
        "e3m2": (TensorProto.FLOAT6E3M2, 6),
    }  # fmt: skip
    cuts = {
        "blocks of 8 along 0": (
            (3, 6),
            {"axis": 0, "block_size": 8},
        ),  # 20 rows: the last block is part of one
        "blocks of 2 along -1": ((20, 3), {"axis": -1, "block_size": 2}),
        "rows": ((20,), {"axis": 0}),
        "columns": ((6,), {}),
        "all": ((), {}),
    }
    held, nodes, outputs = [], [], []
    for kind, (dtype, bits) in kinds.items():
        for i, (shape, told) in enumerate(cuts.values()):
            name = f"{kind}_{i}"
            codes = rng.integers(0, 120, 120 * bits // 8, np.uint8).tobytes()
            held.append(TensorProto(name=name, data_type=dtype, dims=(20, 6), raw_data=codes))
            scale_type = (
                TensorProto.FLOAT8E8M0 if i == 1 else TensorProto.FLOAT16 if i == 3 else TensorProto.FLOAT
            )
            scale = (
                TensorProto(
                    name=name + "_s", data_type=scale_type, dims=shape, raw_data=bytes(range(90, 150))
                )
                if i == 1
                else numpy_helper.from_array(
                    rng.random(shape).astype(helper.tensor_dtype_to_np_dtype(scale_type)), name + "_s"
                )
            )
            held.append(scale)
            more = {"output_dtype": TensorProto.FLOAT} if i == 1 else {}
            nodes.append(
                helper.make_node("DequantizeLinear", [name, name + "_s"], [name + "_wide"], **told, **more)
            )
            outputs.append(helper.make_tensor_value_info(name + "_wide", 10 if i == 3 else 1, [20, 6]))
    graph = helper.make_graph(nodes, "g", [], outputs, held)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 28)])
    onnx.save(made, tmp_path / "m.onnx")
    from onnx.reference import ReferenceEvaluator

    report = inspect(tmp_path / "m.onnx")
    assert not report.problems
    assert len(report.tensors) == len(nodes)
    assert all(t.format is not None for t in report.tensors)
    restore(tmp_path / "m.onnx", tmp_path / "back.safetensors")
    back = load_file(tmp_path / "back.safetensors")
    expected = ReferenceEvaluator(made).run(None, {})
    for node, x in zip(nodes, expected, strict=True):
        found = back[node.output[0]].numpy()
        assert found.dtype == x.dtype
        np.testing.assert_array_equal(found, x, err_msg=node.output[0])


def one_constant(folder: Path, *held: Any, zero: bool = False, **told: Any) -> Path:
    inputs = [t.name for t in held]
    node = helper.make_node("DequantizeLinear", inputs, ["w"], **told)
    y = helper.make_tensor_value_info("w", 1, None)
    graph = helper.make_graph([node], "g", [], [y], list(held))
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), folder / "w.onnx")
    return folder / "w.onnx"


def test_zero_points_are_read_if_they_are_zero_and_left_alone_otherwise(tmp_path: Path) -> None:
    q = numpy_helper.from_array(np.arange(-32, 32, dtype=np.int8).reshape(8, 8), "q")
    s = numpy_helper.from_array(np.linspace(1, 2, 8, dtype=np.float32), "s")
    for value, is_narrow in ((0, True), (1, False)):
        z = numpy_helper.from_array(np.full(8, value, np.int8), "z")
        report = inspect(one_constant(tmp_path, q, s, z, axis=0))
        assert not report.problems
        assert [t.format is not None for t in report.tensors].count(True) == is_narrow
    unsigned = numpy_helper.from_array(np.zeros((8, 8), np.uint8), "q")
    assert [t.format for t in inspect(one_constant(tmp_path, unsigned, s, axis=0)).tensors] == [None, None]


def test_numbers_that_a_model_holds_one_by_one_are_read_and_written(tmp_path: Path) -> None:
    """As helper.make_tensor stores them without raw=True, four-bit ones in pairs."""
    values = normal(8, 32)
    made = model()
    made.graph.initializer.extend(
        [
            helper.make_tensor("floats", TensorProto.FLOAT, values.shape, values.reshape(-1)),
            helper.make_tensor("longs", TensorProto.INT64, (3,), [1, -2, 3]),
            helper.make_tensor("flags", TensorProto.BOOL, (3,), [True, False, True]),
            helper.make_tensor("halves", TensorProto.FLOAT16, (3,), [1.5, -2, 3]),
            helper.make_tensor("words", TensorProto.STRING, (2,), [b"a", b"b"]),
            helper.make_tensor("nothing", TensorProto.FLOAT, (0,), []),
        ]
    )
    made.graph.node.append(helper.make_node("MatMul", ["floats", "x_turned"], ["q"]))
    made.graph.node.insert(0, helper.make_node("Transpose", ["left"], ["x_turned"], perm=[1, 0]))
    made.graph.node.insert(0, helper.make_node("Slice", ["x", "zero", "half", "one_axis"], ["left"]))
    for name, number in (("zero", 0), ("half", 32), ("one_axis", 1)):
        made.graph.initializer.append(helper.make_tensor(name, TensorProto.INT64, (1,), [number]))
    onnx.save(made, tmp_path / "w.onnx")
    file = written(tmp_path / "w.onnx", tmp_path)
    assert "words" not in {t.tensor for t in inspect(file).tensors}
    restore(file, tmp_path / "back.onnx")
    back = initializers(tmp_path / "back.onnx")
    expected = fb.fake_quantize(torch.from_numpy(values), "mxfp4").numpy()
    np.testing.assert_array_equal(back["floats"], expected)
    assert (back["longs"].tolist(), back["flags"].tolist()) == ([1, -2, 3], [True, False, True])
    assert (back["halves"].tolist(), back["words"].tolist()) == ([1.5, -2, 3], ["a", "b"])
    assert back["nothing"].shape == (0,)


# ---------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("choices", "told"),
    [
        ({"format": "mx9"}, "layout='onnx' has no mx9; it has mxfp4, nvfp4, mxfp8_e4m3"),
        (
            {"format": "mxfp6_e2m3", "layout": "onnxruntime"},
            "layout='onnxruntime' has no mxfp6_e2m3; it has mxfp4",
        ),
        ({"format": "vsq4"}, "has no vsq4"),
        (
            {"format": "int8_256"},
            "'down' has sums of 96 values, and int8_256 in layout='onnx' takes multiples of 256",
        ),
        (
            {"format": "int8_256", "layout": "onnxruntime"},
            "int8_256 in layout='onnxruntime' takes multiples of 256",
        ),
        ({"pattern": "2:4"}, "`pattern` does nothing for layout='onnx'"),
        ({"destination": "narrow"}, "is no .onnx file by its name"),
    ],
)
def test_what_has_no_place_is_refused_by_name(wide: Path, tmp_path: Path, choices: Any, told: Any) -> None:
    to = tmp_path / choices.pop("destination", "narrow.onnx")
    with pytest.raises(ArgumentError, match=told):
        cast(wide, to, **({"format": "mxfp4", "layout": "onnx"} | choices))
    assert not list(tmp_path.iterdir())


def test_a_checkpoint_is_no_model_and_a_model_no_folder(wide: Path, tmp_path: Path) -> None:
    from safetensors.torch import save_file

    save_file({"a.weight": torch.ones(2, 32)}, tmp_path / "a.safetensors")
    for layout in ("onnx", "onnxruntime"):
        with pytest.raises(ArgumentError, match=rf"'{layout}' .* is none; export the model to ONNX first"):
            cast(tmp_path / "a.safetensors", tmp_path / "a.onnx", format="mxfp4", layout=layout)
    with pytest.raises(ArgumentError, match=r"'gguf' .*wide\.onnx is an ONNX model; give layout='onnx'"):
        cast(wide, tmp_path / "a.gguf", format="mxfp4", layout="gguf")
    with pytest.raises(ArgumentError, match=r"is an ONNX model by its name; give layout='onnx'"):
        cast(wide, tmp_path / "a.onnx", format="mxfp4")


def test_what_is_not_finite_is_refused(tmp_path: Path) -> None:
    values = weights()
    values["up"][3, 4] = np.inf
    source = saved(tmp_path / "w.onnx", values=values)
    with pytest.raises(DataError, match=r"'up' of .* holds NaN or infinity"):
        written(source, tmp_path)
    assert not (tmp_path / "narrow.onnx").exists()


def test_no_file_that_is_read_is_written_over(tmp_path: Path) -> None:
    source = saved(tmp_path / "wide.onnx", external=True)
    (tmp_path / "wide.onnx_numbers").rename(tmp_path / "narrow.onnx.data")
    made = onnx.load(source, load_external_data=False)
    for tensor in made.graph.initializer:
        for entry in tensor.external_data:
            entry.value = entry.value.replace("wide.onnx_numbers", "narrow.onnx.data")
    source.write_bytes(made.SerializeToString())
    with pytest.raises(ArgumentError, match=r"narrow\.onnx\.data is read for the source"):
        written(source, tmp_path)
    with pytest.raises(ArgumentError, match="is read for the source"):
        cast(source, source, format="mxfp4", layout="onnx")
    (tmp_path / "other.onnx.data").write_bytes(b"of somebody else")
    with pytest.raises(ArgumentError, match="is there, and not of this model"):
        cast(source, tmp_path / "other.onnx", format="mxfp4", layout="onnx")
    assert (tmp_path / "other.onnx.data").read_bytes() == b"of somebody else"


def test_without_the_package_or_with_one_that_is_too_old_it_is_said(
    wide: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(onnx.defs, "onnx_opset_version", lambda: 23)
        with pytest.raises(MissingDependencyError, match="needs opset 24, and the installed onnx"):
            written(wide, tmp_path)
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ImportError, match=r"needs the package onnx.* 'fewbits\[export\]'"):
        inspect(wide)


def test_a_model_that_cannot_be_brought_to_the_opset_is_refused(tmp_path: Path) -> None:
    made = model(opset=13)
    made.functions.append(
        helper.make_function(
            "own", "f", ["a"], ["b"], [helper.make_node("Relu", ["a"], ["b"])], [helper.make_opsetid("", 13)]
        )
    )
    onnx.save(made, tmp_path / "w.onnx")
    with pytest.raises(ArgumentError, match="has opset 13 and functions, and this format needs opset 24"):
        written(tmp_path / "w.onnx", tmp_path)
    made = model(opset=13)
    made.graph.node.append(
        helper.make_node("Upsample", ["image", "factors"], ["upped"])
    )  # gone since opset 10
    onnx.save(made, tmp_path / "w.onnx")
    with pytest.raises(ArgumentError, match="onnx cannot convert it to opset 24"):
        written(tmp_path / "w.onnx", tmp_path)
