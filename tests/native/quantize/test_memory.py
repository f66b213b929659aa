"""What an operation keeps in memory beyond its input and its result."""

import subprocess
import sys
from pathlib import Path

import pytest

MEASURED = """
import torch
import fewbits as fb

def high_water():
    with open("/proc/self/status") as told:
        return next(int(line.split()[1]) for line in told if line.startswith("VmHWM")) * 1024

def work(x, y, fmt):
    before = high_water()
    fb.fake_quantize(x, fmt, axis=AXIS, out=y)
    rounded = high_water() - before
    before = high_water()
    q = fb.quantize(x, fmt, axis=AXIS)
    packed = high_water() - before - q.nbytes
    del y
    return rounded, packed

small = torch.ones(64, 4096)
work(small, torch.empty_like(small), FORMAT)  # threads and tables
x = torch.ones(8192, 4096, dtype=torch.DTYPE)
y = torch.ones_like(x)
print(*work(x, y, FORMAT), x.numel() * x.element_size())
"""


@pytest.mark.skipif(
    not Path("/proc/self/status").is_file(), reason="no /proc to read the peak of memory from"
)
@pytest.mark.parametrize(
    ("fmt", "axis", "dtype"),
    [("mxfp4", 1, "float32"), ("mx9", 0, "bfloat16"), ("nvfp4", 1, "bfloat16"), ("posit8_1", 0, "float32")],
)
def test_rounding_and_packing_take_less_than_a_hundredth_of_the_input(
    fmt: str, axis: int, dtype: str
) -> None:
    code = MEASURED.replace("FORMAT", repr(fmt)).replace("AXIS", str(axis)).replace("DTYPE", dtype)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    rounded, packed, whole = map(int, done.stdout.split())
    assert rounded < whole / 100
    assert packed < whole / 100


def test_a_copy_of_the_input_would_be_seen() -> None:
    code = MEASURED.replace("fb.fake_quantize(x,", "fb.fake_quantize(x.clone(),")
    code = code.replace("FORMAT", "'mxfp4'").replace("AXIS", "1").replace("DTYPE", "float32")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    rounded, _, whole = map(int, done.stdout.split())
    assert rounded > whole / 2
