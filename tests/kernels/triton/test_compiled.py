"""The kernels of Triton compile for chips that are not here, and what they compile to keeps the bits."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="fewbits[gpu] is not installed")

SCRIPT = Path(__file__).with_name("compiling.py")
CONVERSIONS = ("quantize_kernel", "dequantize_kernel", "measure_kernel", "pack_kernel", "both_axes_kernel")
INEXACT = re.compile(r"\b(fma\.|mad\.(?:rn|rz)|div\.(?:full|approx)|rcp\.|sqrt\.approx)|\.ftz")
CONTRACTED = re.compile(r"v_(?:pk_)?(?:fma|mac|mad)_f(?:16|32|64)")
Rows = list[dict[str, Any]]


def compiled(folder: Path, *asked: str) -> Rows:
    """Compile the kernels of some cases, each ``chip:case``, in a process that has no interpreter."""
    environment = {**os.environ, "TRITON_CACHE_DIR": str(folder)}
    environment.pop("TRITON_INTERPRET", None)
    found = subprocess.run(
        [sys.executable, str(SCRIPT), *asked], env=environment, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr[-3000:]
    rows = [json.loads(line) for line in found.stdout.splitlines()]
    assert all(row["bytes"] > 1000 for row in rows)
    return rows


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    """Return what the quick tests look at, of one process: Triton takes seconds to load."""
    conversions = ("sm_80:mxfp4", "sm_90:mxfp4", "sm_100:nvfp4", "gfx942:mxfp4")
    products = ("sm_90:gemv", "sm_80:scaled_mxfp4", "sm_100:scaled_mxfp4")
    return compiled(tmp_path_factory.mktemp("triton"), *conversions, *products)


def of(rows: Rows, chip: str, case: str) -> Rows:
    return [row for row in rows if (row["chip"], row["case"]) == (chip, case)]


def inexact(rows: Rows) -> list[str]:
    """Return the instructions of conversions that round differently than the definition does."""
    kernels = [row for row in rows if row["kernel"] in CONVERSIONS]
    assert kernels
    return [found.group() for row in kernels for found in INEXACT.finditer(row["text"])]


@pytest.mark.parametrize(("chip", "case"), [("sm_80", "mxfp4"), ("sm_90", "mxfp4"), ("sm_100", "nvfp4")])
def test_a_conversion_compiles_for_nvidia_without_contraction_or_flushing(
    chip: str, case: str, rows: Rows
) -> None:
    found = of(rows, chip, case)
    assert {row["kernel"] for row in found} >= {"quantize_kernel", "dequantize_kernel"}
    assert inexact(found) == []


def test_a_conversion_compiles_for_amd_without_contraction_or_flushing(rows: Rows) -> None:
    found = of(rows, "gfx942", "mxfp4")
    assert {row["kernel"] for row in found} == {"quantize_kernel", "dequantize_kernel"}
    for row in found:
        assert not CONTRACTED.search(row["text"])
        assert ".amdhsa_float_denorm_mode_32 3" in row["text"]


def test_a_contraction_would_be_found(rows: Rows) -> None:
    (row,) = of(rows, "sm_90", "gemv")  # which may contract: only the rounding of sums depends on it
    assert INEXACT.search(row["text"])


def test_only_chips_that_have_it_multiply_by_block_scales(rows: Rows) -> None:
    (new,), (old,) = (of(rows, chip, "scaled_mxfp4") for chip in ("sm_100", "sm_80"))
    assert "kind::mxf4.block_scale" in new["text"]
    assert "block_scale" not in old["text"]
    assert "mma.sync" in old["text"]


@pytest.mark.slow
@pytest.mark.parametrize("chip", ["sm_80", "sm_90", "sm_100", "gfx942", "gfx950"])
def test_every_kernel_compiles(chip: str, tmp_path: Path) -> None:
    rows = compiled(tmp_path, f"{chip}:all")
    products = {"gemv_kernel", "product_kernel"}
    ranks = {"count_kernel", "choose_kernel", "rank_kernel", "place_kernel"}
    assert {row["kernel"] for row in rows} == {*CONVERSIONS, *products, *ranks}
    if chip.startswith("sm"):
        assert inexact(rows) == []
