"""Small ONNX models with weights of every kind of product, and what runs them."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

SUMS = {"up": 0, "down": 1, "heads": 1, "kernel": None, "first": 1}  # of each weight; None: all but the first
X, IMAGE = ("x", ["n", 64]), ("image", [1, 4, 6, 6])


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32)


def weights() -> dict[str, np.ndarray]:
    return {
        "up": normal(64, 96),
        "down": normal(64, 96, seed=1),
        "heads": normal(2, 64, 32),
        "kernel": normal(8, 4, 4, 4),
        "first": normal(16, 64),
    }


def model(values: dict[str, np.ndarray] | None = None, *, opset: int = 13, dtype: int = 1) -> Any:
    """Return a model of a MatMul, a Gemm, a product in batches, a Conv, and one with the weight first."""
    from onnx import TensorProto, helper, numpy_helper

    values = weights() if values is None else values
    wide = helper.tensor_dtype_to_np_dtype(dtype)
    held = {name: numpy_helper.from_array(x.astype(wide), name) for name, x in values.items()}
    constants = {
        "bias": normal(64).astype(wide),
        "ids": normal(5, 64).astype(wide),
        "shape": np.array([1, -1, 2, 2], np.int64),
        "place": np.array([1, 0, 3], np.int64),
    }
    held |= {name: numpy_helper.from_array(x, name) for name, x in constants.items()}
    nodes = [
        helper.make_node("MatMul", ["x", "up"], ["h"]),
        helper.make_node("Gemm", ["h", "down", "bias"], ["g"], transB=1),
        helper.make_node("MatMul", ["g", "heads"], ["y"], name="in batches"),
        helper.make_node("Conv", ["image", "kernel"], ["convolved"]),
        helper.make_node("Transpose", ["g"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["first", "turned"], ["z"]),
        helper.make_node("Gather", ["ids", "place"], ["picked"]),
        helper.make_node("MatMul", ["picked", "ids_turned"], ["similar"]),
        helper.make_node("Transpose", ["ids"], ["ids_turned"], perm=[1, 0]),
        helper.make_node("Reshape", ["convolved", "shape"], ["w"]),
    ]
    nodes[7], nodes[8] = nodes[8], nodes[7]
    outputs = [helper.make_tensor_value_info(name, dtype, None) for name in ("y", "z", "w", "similar")]
    inputs = [helper.make_tensor_value_info(name, dtype, shape) for name, shape in (X, IMAGE)]
    graph = helper.make_graph(nodes, "products", inputs, outputs, list(held.values()))
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    made.ir_version = 8
    made.metadata_props.add(key="by", value="us")
    assert TensorProto.FLOAT == 1
    return made


def saved(file: Path, *, external: bool = False, **choices: Any) -> Path:
    import onnx

    external_data = {"save_as_external_data": True, "location": file.name + "_numbers", "size_threshold": 128}
    onnx.save(model(**choices), file, **(external_data if external else {}))
    return file


def inputs(dtype: Any = np.float32) -> dict[str, np.ndarray]:
    return {"x": normal(3, 64, seed=7).astype(dtype), "image": normal(1, 4, 6, 6, seed=8).astype(dtype)}


def by_reference(file: Path, dtype: Any = np.float32) -> list[np.ndarray]:
    from onnx.reference import ReferenceEvaluator

    return list(ReferenceEvaluator(str(file)).run(None, inputs(dtype)))


def by_runtime(file: Path) -> list[np.ndarray]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    # Otherwise it rounds the inputs of products with integers to 8 bits.
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, inputs()))


def initializers(file: Path) -> dict[str, np.ndarray]:
    import onnx
    from onnx import numpy_helper

    graph = onnx.load(file).graph
    return {t.name: numpy_helper.to_array(t, str(file.parent)) for t in graph.initializer}


def rounded(name: str, x: np.ndarray, fmt: str) -> np.ndarray:
    """Return a weight of :func:`model` as fewbits rounds it, with blocks along its sums."""
    import fewbits as fb

    tensor, axis = torch.from_numpy(x.copy()), SUMS[name]
    if axis is not None:
        return fb.quantize(tensor, fmt, axis=axis).dequantize().numpy()
    matrix = tensor.reshape(len(tensor), -1)
    return fb.quantize(matrix, fmt).dequantize().reshape(tensor.shape).numpy()
