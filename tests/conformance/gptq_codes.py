"""Writes gptq_codes.json: the codes that llm-compressor's GPTQ chooses for given weights, scales and inputs.

Source: llmcompressor 0.14.0.1, ``modifiers/gptq/gptq_quantize.py``, ``quantize_weight``, with
compressed-tensors 0.20.0 on a CPU. It computes in float32, fewbits in float64: with many samples for each
column no choice is so close that this decides. Two of its modules are loaded, without what else it imports::

    pip download --no-deps llmcompressor==0.14.0.1 && unzip llmcompressor-*.whl -d unpacked
    python tests/conformance/gptq_codes.py unpacked

Weights and scales are float32 bits, codes are bytes, all in hexadecimal, row by row; the inputs are small
integers, so that their second moments are exact.
"""

from __future__ import annotations

import importlib.util
import json
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np

ROWS, COLUMNS, SAMPLES = 8, 96, 300
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
# Name, bits, kind, group, order of columns: "weight" is by falling second moments.
CASES = (
    ("int4_group32", 4, "int", 32, "weight"),
    ("int8_channel", 8, "int", None, "weight"),
    ("mxfp4", 4, "float", 32, "weight"),
)


def drawn() -> tuple[Any, Any]:
    """Weights (rows, columns), and inputs (samples, columns) that hang together, some of them large."""
    random = np.random.default_rng(2210)
    w = random.standard_normal((ROWS, COLUMNS)).astype(np.float32)
    mixed = random.integers(-3, 4, (SAMPLES, COLUMNS)) + random.integers(-3, 4, (SAMPLES, 1))
    # No two columns have one second moment: their order is not left to chance.
    return w, (mixed * (40 + np.arange(COLUMNS) * 29 % COLUMNS)).astype(np.int64)


def scales_of(w: Any, kind: str, bits: int, group: int | None) -> Any:
    """One for each group of a row: the largest magnitude on the largest code, for E2M1 a power of two."""
    largest = np.abs(w.reshape(ROWS, -1, group or COLUMNS)).max(2)
    if kind == "float":
        return np.exp2(np.frexp(largest)[1] - 1 - 2).astype(np.float32)
    return (largest / np.float32(2 ** (bits - 1) - 1)).astype(np.float32)


def _module(folder: Path, name: str) -> Any:
    spec = importlib.util.spec_from_file_location(
        f"llmcompressor.modifiers.gptq.{name}", folder / "llmcompressor/modifiers/gptq" / f"{name}.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def chosen(folder: Path) -> list[dict[str, Any]]:
    """The codes of each case."""
    import torch
    from compressed_tensors.quantization import QuantizationArgs

    for name in ("llmcompressor", "llmcompressor.modifiers", "llmcompressor.modifiers.gptq"):
        sys.modules[name] = types.ModuleType(name)
    _module(folder, "helpers")
    quantize = _module(folder, "gptq_quantize").quantize_weight
    w, x = drawn()
    hessian = torch.from_numpy(2 * (x.T @ x) / SAMPLES).float()
    found = []
    for name, bits, kind, group, order in CASES:
        scales = scales_of(w, kind, bits, group)
        args = QuantizationArgs(
            num_bits=bits, type=kind, symmetric=True, strategy="group" if group else "channel",
            group_size=group, actorder=order if group else None,
        )  # fmt: skip
        if not group:  # the same order by hand: scales of rows do not move with columns
            at = torch.argsort(hessian.diagonal(), descending=True, stable=True)
        else:
            at = torch.arange(COLUMNS)
        given = torch.from_numpy(w)[:, at][None].clone()
        values, _, fell_back = quantize(
            given, hessian[at][:, at][None].clone(), torch.from_numpy(scales)[None],
            torch.zeros(1, *scales.shape), None, args,
        )  # fmt: skip
        assert not bool(fell_back.any())
        steps = np.empty((ROWS, COLUMNS))
        steps[:, at.numpy()] = values[0].numpy()
        steps /= np.repeat(scales, COLUMNS // scales.shape[1], 1)
        if kind == "float":
            rounded = np.abs(np.abs(steps)[..., None] - np.array(E2M1)).argmin(-1) + 8 * (steps < 0)
            assert np.array_equal(np.abs(steps), np.array(E2M1)[rounded % 8])
        else:
            rounded = np.rint(steps).astype(np.int64) % 2**bits
            assert np.allclose(steps, np.rint(steps), atol=1e-4)
        found.append(
            {
                "case": name,
                "scales": scales.tobytes().hex(),
                "codes": rounded.astype(np.uint8).tobytes().hex(),
            }
        )
    return found


if __name__ == "__main__":
    w, x = drawn()
    document = {
        "source": "llmcompressor 0.14.0.1, compressed-tensors 0.20.0",
        "weights": w.tobytes().hex(),
        "inputs": x.astype(np.int16).tobytes().hex(),
        "cases": chosen(Path(sys.argv[1])),
    }
    Path(__file__).with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n", "utf-8")
