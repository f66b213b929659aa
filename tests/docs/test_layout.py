"""docs/layout.md is true: its example is the file that is written, and its reader reads what is written."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from fewbits.files import cast, restore
from fewbits.files.checkpoint import metadata

PAGE = (Path(__file__).parents[2] / "docs" / "layout.md").read_text("utf-8")
EXAMPLE = [[1, -2, 0.5, 3, 6], [0.25, -0.125, 0.75, 0, 1]]


def block(kind: str) -> str:
    (found,) = re.findall(rf"```{kind}\n(.*?)```", PAGE, re.DOTALL)
    return found


def dump(data: bytes) -> str:
    """Write bytes as the page does: offset, sixteen bytes, the characters that can be printed."""
    lines = []
    for at in range(0, len(data), 16):
        here = data[at : at + 16]
        text = "".join(chr(c) if 32 <= c < 127 else "." for c in here)
        lines.append(f"{at:04x}  {here.hex(' '):<47}  {text}")
    return "\n".join(lines) + "\n"


def reader() -> Any:
    names = {}
    exec(compile(block("python"), "layout.md", "exec"), names)
    return names["read"]


def test_the_example_is_the_file_byte_for_byte(tmp_path: Path) -> None:
    save_file({"w": torch.tensor(EXAMPLE).bfloat16()}, tmp_path / "w.safetensors")
    cast(tmp_path / "w.safetensors", tmp_path / "n.safetensors", format="mxfp4")
    written = (tmp_path / "n.safetensors").read_bytes()
    assert block("hex") == dump(written)
    assert reader()(tmp_path / "n.safetensors", "w").tolist() == EXAMPLE
    assert json.loads(block("json")) == json.loads(metadata(tmp_path / "n.safetensors")["fewbits"])


@pytest.mark.parametrize("fmt", ["mxfp4", "mx9"])
@pytest.mark.parametrize("shape", [(3, 64), (2, 77), (2, 3, 40), (5, 4, 3, 3), (4, 1)])
def test_the_reader_reads_what_is_written(tmp_path: Path, fmt: Any, shape: Any) -> None:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(2))
    x[0, 0] = torch.inf
    save_file({"w": x}, tmp_path / "w.safetensors")
    cast(tmp_path / "w.safetensors", tmp_path / "n.safetensors", format=fmt)
    restore(tmp_path / "n.safetensors", tmp_path / "back.safetensors")
    found = reader()(tmp_path / "n.safetensors", "w")
    np.testing.assert_array_equal(found, load_file(tmp_path / "back.safetensors")["w"].numpy())


def test_the_reader_is_short() -> None:
    body = [line for line in block("python").splitlines() if line.strip()]
    assert len(body) <= 32
