"""The sanitized build stops at every kind of mistake that it is there to find."""

import subprocess
import sys

import pytest

from fewbits import _native

PROGRAM = "import sys; from fewbits import _native; _native.sanitizer_fault(sys.argv[1]); print('unseen')"


@pytest.mark.parametrize(
    "fault",
    [
        "heap-buffer-overflow",
        "out of bounds",
        "signed integer overflow",
        "shift exponent",
        "outside the range",
        "misaligned address",
    ],
)
def test_a_planted_mistake_stops_the_process(fault: str) -> None:
    if not hasattr(_native, "sanitizer_fault"):
        pytest.skip("the extension was built without sanitizers; `make sanitize` builds it with them")
    done = subprocess.run([sys.executable, "-c", PROGRAM, fault], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert fault in done.stderr
    assert "unseen" not in done.stdout
