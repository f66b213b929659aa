"""Products by tiles (AMX), emulated: a CPU without them and the sanitizers see what they read and add."""

import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
NATIVE = HERE.parents[2] / "native"
FLAGS = ("-std=c++20", "-O1", "-ffp-contract=off", "-DFEWBITS_EMULATE_TILES")
SANITIZERS = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")


@pytest.mark.parametrize("wrong", ["", "add_products();\n            load_b"])
def test_emulated_tiles_are_within_their_bounds_and_read_nothing_beyond(
    compiler: str, wrong: str, tmp_path: Path
) -> None:
    """``wrong``: without that product of the first terms, which the second bound does not allow."""
    source = (NATIVE / "kernels" / "gemm" / "tile_products.inc.hpp").read_text()
    assert wrong in source
    beside = tmp_path / "kernels" / "gemm"
    beside.mkdir(parents=True)
    (beside / "tile_products.inc.hpp").write_text(source.replace(wrong, "load_b") if wrong else source)
    program = tmp_path / "tiles"
    headers = f"-I{tmp_path}", f"-I{NATIVE}"
    flags = FLAGS if wrong else FLAGS + SANITIZERS  # a wrong sum shows without them
    subprocess.run([compiler, *flags, *headers, HERE / "emulated_tiles.cpp", "-o", program], check=True)
    said = subprocess.run([program], capture_output=True, text=True, check=True).stdout.splitlines()
    worst = {unit: float(error) for unit, error in (line.split() for line in said)}
    assert set(worst) == {"bfloat16", "bfloat16x2"}
    assert 0 < worst["bfloat16"] <= 1
    assert (0 < worst["bfloat16x2"] <= 1) == (not wrong)
