"""Numbers of an ONNX model that are no initializers of its main graph, and those it had before."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fewbits as fb
from fewbits.cli import main as cli
from fewbits.errors import ArgumentError, DataError
from fewbits.files import cast, inspect, restore
from tests.files.layouts.onnx_models import by_reference, initializers, model, normal, saved

onnx = pytest.importorskip("onnx", minversion="1.23")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


def with_branches(folder: Path, *, external: bool) -> Path:
    """Write y = If(c, (x @ w) @ inner, (x @ w) @ constant) + f(x), where f has a constant."""
    held = {name: numpy_helper.from_array(normal(*shape), name) for name, shape in SHAPES.items()}
    constant = helper.make_node("Constant", [], ["k"], value=held["constant"])
    in_function = helper.make_node("Constant", [], ["k2"], value=held["of function"])
    opsets = [helper.make_opsetid("", 24), helper.make_opsetid("own", 1)]
    function = helper.make_function(
        "own", "f", ["a"], ["b"], [in_function, helper.make_node("MatMul", ["a", "k2"], ["b"])], opsets[:1]
    )
    out = [helper.make_tensor_value_info(n, 1, None) for n in ("then_out", "else_out")]
    branches = [
        helper.make_graph([helper.make_node("MatMul", ["h", "inner"], ["then_out"])], "t", [], out[:1],
                          [held["inner"]]),
        helper.make_graph([constant, helper.make_node("MatMul", ["h", "k"], ["else_out"])], "e", [], out[1:]),
    ]  # fmt: skip
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("If", ["c"], ["z"], then_branch=branches[0], else_branch=branches[1]),
        helper.make_node("f", ["x"], ["added"], domain="own"),
        helper.make_node("Add", ["z", "added"], ["y"]),
    ]
    ins = [helper.make_tensor_value_info("c", 9, []), helper.make_tensor_value_info("x", 1, [2, 64])]
    graph = helper.make_graph(nodes, "g", ins, [helper.make_tensor_value_info("y", 1, None)], [held["w"]])
    made = helper.make_model(graph, functions=[function], opset_imports=opsets)
    folder.mkdir(exist_ok=True)
    if external:
        targets = [made.graph.initializer[0], made.graph.node[1].attribute[1].g.initializer[0],
                   made.graph.node[1].attribute[0].g.node[0].attribute[0].t,
                   made.functions[0].node[0].attribute[0].t]  # fmt: skip
        at = 0
        with (folder / "numbers").open("wb") as file:
            for t in targets:
                raw = t.raw_data
                file.write(raw)
                t.ClearField("raw_data")
                t.data_location = TensorProto.EXTERNAL
                for key, value in {"location": "numbers", "offset": at, "length": len(raw)}.items():
                    t.external_data.add(key=key, value=str(value))
                at += len(raw)
    (folder / "wide.onnx").write_bytes(made.SerializeToString())
    return folder / "wide.onnx"


SHAPES = {"w": (64, 32), "inner": (32, 32), "constant": (32, 32), "of function": (64, 32)}


def computed(file: Path) -> list[np.ndarray]:
    from onnx.reference import ReferenceEvaluator

    run = ReferenceEvaluator(str(file)).run
    return [run(None, {"c": np.array(c), "x": normal(2, 64, seed=3)})[0] for c in (True, False)]


@pytest.mark.parametrize("layout", ["onnx", "onnxruntime"])
def test_numbers_of_branches_functions_and_constants_beside_the_model_go_along(
    tmp_path: Path, layout: Any
) -> None:
    source = with_branches(tmp_path / "a", external=True)
    whole = with_branches(tmp_path / "b", external=False)
    to = tmp_path / "c"
    to.mkdir()
    cast(source, to / "narrow.onnx", format="mxfp4", layout=layout)
    restore(to / "narrow.onnx", to / "back.onnx")
    cast(whole, to / "twin.onnx", format="mxfp4", layout=layout)
    for file in (source, tmp_path / "a" / "numbers"):
        file.unlink()  # the results stand alone
    for x, y, z in zip(*(computed(to / f"{n}.onnx") for n in ("narrow", "back", "twin")), strict=True):
        np.testing.assert_array_equal(x, z)
        np.testing.assert_allclose(y, z, rtol=1e-5, atol=1e-5)
    assert np.abs(computed(to / "twin.onnx")[0] - computed(whole)[0]).max() > 0.01  # the control


def test_such_numbers_that_are_missing_too_many_or_written_over_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = with_branches(tmp_path / "a", external=True)
    monkeypatch.setattr("fewbits.files.layouts.onnx_model.MOST_EMBEDDED", 10_000)
    with pytest.raises(ArgumentError, match="16384 bytes beside it that are no initializers of its main"):
        cast(source, tmp_path / "n.onnx", format="mxfp4", layout="onnx")
    monkeypatch.undo()
    (tmp_path / "a" / "numbers").unlink()
    with pytest.raises(DataError, match="which is missing"):
        inspect(source)


def test_the_rounding_of_a_cast_to_half_precision_stays(tmp_path: Path) -> None:
    codes = (np.arange(64 * 32).reshape(64, 32) % 251 - 125).astype(np.int8)
    scales = (normal(32) / 7).astype(np.float32)
    held = [numpy_helper.from_array(x, n) for n, x in (("q", codes), ("s", scales))]
    nodes = [
        helper.make_node("DequantizeLinear", ["q", "s"], ["a"], axis=1),
        helper.make_node("Cast", ["a"], ["b"], to=TensorProto.FLOAT16),
        helper.make_node("Cast", ["b"], ["w"], to=TensorProto.FLOAT),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(n, 1, s) for n, s in (("x", [2, 64]), ("y", [2, 32])))
    graph = helper.make_graph(nodes, "g", [x], [y], held)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)]), tmp_path / "theirs.onnx")
    restore(tmp_path / "theirs.onnx", tmp_path / "back.onnx")
    from onnx.reference import ReferenceEvaluator

    given = {"x": normal(2, 64)}
    theirs, back = (
        ReferenceEvaluator(str(tmp_path / n)).run(None, given)[0] for n in ("theirs.onnx", "back.onnx")
    )
    np.testing.assert_array_equal(theirs, back)
    (whole,) = onnx.load(tmp_path / "back.onnx").graph.initializer
    assert whole.data_type == TensorProto.FLOAT16


def test_weights_that_are_inputs_too_as_old_versions_want_them_are_cast(tmp_path: Path) -> None:
    made = model(opset=8)
    made.ir_version = 3
    made.graph.input.extend(
        helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in made.graph.initializer
    )
    onnx.save(made, tmp_path / "old.onnx")
    cast(tmp_path / "old.onnx", tmp_path / "narrow.onnx", format="mxfp4", layout="onnx")
    cast(saved(tmp_path / "new.onnx"), tmp_path / "twin.onnx", format="mxfp4", layout="onnx")
    onnx.checker.check_model(str(tmp_path / "narrow.onnx"), full_check=True)
    assert {v.name for v in onnx.load(tmp_path / "narrow.onnx").graph.input} == {"x", "image"}
    for x, y in zip(
        by_reference(tmp_path / "narrow.onnx"), by_reference(tmp_path / "twin.onnx"), strict=True
    ):
        np.testing.assert_array_equal(x, y)
    restore(tmp_path / "narrow.onnx", tmp_path / "back.onnx")
    onnx.checker.check_model(str(tmp_path / "back.onnx"), full_check=True)


@pytest.mark.parametrize("perm", [None, [1, 0], [0, 1]])
def test_weights_behind_a_transpose_are_cast_along_the_axis_that_is_summed(tmp_path: Path, perm: Any) -> None:
    w = normal(64, 64) * np.float32(4) ** np.arange(-8, 8).repeat(4)
    told = {} if perm is None else {"perm": perm}
    nodes = [
        helper.make_node("Transpose", ["w"], ["t"], **told),
        helper.make_node("MatMul", ["x", "t"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(n, 1, [2, 64]) for n in "xy")
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(w.astype(np.float32), "w")])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)])
    onnx.save(made, tmp_path / "w.onnx")
    cast(tmp_path / "w.onnx", tmp_path / "narrow.onnx", format="mxfp4", layout="onnx")
    onnx.checker.check_model(str(tmp_path / "narrow.onnx"), full_check=True)
    restore(tmp_path / "narrow.onnx", tmp_path / "back.onnx")
    expected = fb.quantize(torch.from_numpy(w.astype(np.float32)), "mxfp4", axis=0 if perm == [0, 1] else 1)
    np.testing.assert_array_equal(initializers(tmp_path / "back.onnx")["w"], expected.dequantize().numpy())
    made.graph.output.append(helper.make_tensor_value_info("t", 1, None))  # the control: it is read itself
    onnx.save(made, tmp_path / "w.onnx")
    with pytest.raises(ArgumentError, match="no tensor would be cast"):
        cast(tmp_path / "w.onnx", tmp_path / "none.onnx", format="mxfp4", layout="onnx")


def test_the_command_names_what_stays_wide_and_the_old_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = with_branches(tmp_path / "a", external=False)
    to = saved(tmp_path / "narrow.onnx", external=True)
    assert cli.run(["cast", str(source), str(to), "--format", "mxfp4", "--layout", "onnx"]) == 0
    told = " ".join(capsys.readouterr().err.split())
    assert "left wide: 3 matrices in Constant nodes, subgraphs and functions: " in told
    assert all(name in told for name in SHAPES if name != "w")
    assert "narrow.onnx_numbers, numbers of the model that" in told
    assert (tmp_path / "narrow.onnx_numbers").is_file()
    assert cli.run(["cast", str(source), str(to), "--format", "mxfp4", "--layout", "onnx"]) == 0
    assert "left there" not in capsys.readouterr().err
    plain = str(saved(tmp_path / "plain.onnx"))
    assert cli.run(["cast", plain, str(to), "--format", "mxfp4", "--layout", "onnx"]) == 0
    assert "left wide" not in capsys.readouterr().err


def test_a_model_whose_weights_its_caller_may_replace_is_refused_with_the_cause(tmp_path: Path) -> None:
    made = model()
    made.graph.input.extend(
        helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in made.graph.initializer
    )
    onnx.save(made, tmp_path / "w.onnx")
    with pytest.raises(ArgumentError, match=r"6 of its initializers, as 'up', are inputs of the graph too"):
        cast(tmp_path / "w.onnx", tmp_path / "narrow.onnx", format="mxfp4", layout="onnx")
