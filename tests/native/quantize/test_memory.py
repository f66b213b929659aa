"""What an operation keeps in memory beyond its input and its result."""

import subprocess
import sys
from pathlib import Path

import pytest

CASES = [
    ("mxfp4", 1, "float32"),
    ("mx9", 0, "bfloat16"),
    ("nvfp4", 1, "bfloat16"),
    ("posit8_1", 0, "float32"),
]
COPIED = "a copy of the input, as the control"
# One process measures every case: to start one and to load torch takes longer than most of them.
MEASURED = """
import torch
import fewbits as fb

def resident(what):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(what)) * 1024

def more(operation):
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak starts here
    before = resident("VmRSS")
    result = operation()
    return resident("VmHWM") - before, result

def measure(rows, format, axis, dtype, prepared):
    x = torch.ones(rows, 4096, dtype=getattr(torch, dtype))
    y = torch.ones_like(x)
    rounded, _ = more(lambda: fb.fake_quantize(prepared(x), format, axis=axis, out=y))
    packed, q = more(lambda: fb.quantize(x, format, axis=axis))
    return rounded, packed - q.nbytes, x.nbytes

for case in CASES:
    measure(64, *case, lambda x: x)  # threads and tables
    print(*measure(8192, *case, lambda x: x))
print(*measure(8192, *CASES[0], torch.clone))
"""


@pytest.fixture(scope="module")
def peaks() -> dict[object, list[int]]:
    """Bytes beyond what was there before: of rounding, of packing without its result; of the input."""
    if not Path("/proc/self/clear_refs").is_file():
        pytest.skip("this system does not start the peak of a process anew")
    code = f"CASES = {CASES!r}\n{MEASURED}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    rows = [list(map(int, line.split())) for line in done.stdout.splitlines()]
    return dict(zip([*CASES, COPIED], rows, strict=True))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_rounding_and_packing_take_less_than_a_hundredth_of_the_input(
    case: tuple[str, int, str], peaks: dict[object, list[int]]
) -> None:
    rounded, packed, size = peaks[case]
    assert rounded < size / 100
    assert packed < size / 100


def test_a_copy_of_the_input_would_be_seen(peaks: dict[object, list[int]]) -> None:
    rounded, _, size = peaks[COPIED]
    assert rounded > size / 2
