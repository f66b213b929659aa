from io import StringIO
from math import inf, nan
from typing import Any

import pytest
from rich.console import Console

from fewbits.records import CastFormat, CastReport, CastTensor, InspectedTensor, InspectReport
from fewbits.report import cast_table, inspect_table


def printed(table: Any, width: int = 120) -> str:
    console = Console(width=width, record=True, file=StringIO())
    console.print(table)
    return console.export_text()


def report(restored: bool = False) -> CastReport:
    formats = (
        CastFormat("mxfp4", 1, 2048, 512, 18.04, "layers.\x1b[31m.w", 18.04),
        CastFormat(None, 1, 64, 64, inf, None, nan),
    )
    tensors = (CastTensor("layers.\x1b[31m.w", (32, 32), "BF16", "mxfp4", 2048, 512, None),) * 2
    return CastReport("a.safetensors", "b.safetensors", restored, "floor", formats, tensors)


def test_a_cast_is_a_row_per_format_and_a_total() -> None:
    text = printed(cast_table(report()))
    assert "a.safetensors  cast to b.safetensors" in text
    mxfp4, kept = (line.split() for line in text.splitlines() if line.startswith(("mxfp4", "kept")))
    assert mxfp4 == ["mxfp4", "1", "2.00", "KiB", "512", "B", "4.00", "18.0", "18.0", "layers.\\x1b[31m.w"]
    assert kept[-5:] == ["B", "1.00", "exact", "-", "-"]
    assert "2 tensors, 4.00 KiB before, 1.00 KiB after: ratio 4.00" in text


def test_a_restored_checkpoint_has_no_errors_to_show() -> None:
    text = printed(cast_table(report(restored=True)))
    assert "restored to" in text
    assert "QSNR" not in text


def test_a_checkpoint_is_a_row_per_tensor_and_a_total() -> None:
    tensors = (
        InspectedTensor("w\x07", (2, 32), "BF16", "mxfp4", 34),
        InspectedTensor("none", (0,), "F32", None, 0),
    )
    text = printed(inspect_table(InspectReport("m", tensors, ())))
    assert [line.split() for line in text.splitlines() if "2x32" in line] == [
        ["w\\x07", "2x32", "mxfp4", "for", "BF16", "34", "B", "4.25"]
    ]
    assert [line.split()[-1] for line in text.splitlines() if line.startswith("none")] == ["-"]
    assert "2 tensors, 1 narrow, 64 values in 34 B: 4.25 bits per value" in text


@pytest.mark.parametrize("width", [40, 60])
def test_tables_fit_a_narrow_terminal(width: Any) -> None:
    assert all(len(line) <= width for line in printed(cast_table(report()), width).splitlines())
