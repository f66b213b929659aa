"""The kernels of Triton, run by its interpreter on the CPU, equal the definition bit for bit."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from fewbits.formats import parse
from fewbits.kernels import options

pytest.importorskip("triton", reason="fewbits[gpu] is not installed")

SCRIPT = Path(__file__).with_name("compared.py")


def interpreted(*args: str) -> tuple[list[str], int]:
    """Return the differences that a process found, and how many results it compared."""
    found = subprocess.run(
        [sys.executable, str(SCRIPT), *args],
        env={**os.environ, "TRITON_INTERPRET": "1", "FEWBITS_BACKEND": "triton"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr[-3000:]
    *sentences, last = found.stdout.splitlines()
    return sentences, int(last.split()[0])


@pytest.mark.parametrize(
    "text", ["float(e=2,m=1,bias=145)", "block(element=lookup(-1,1e-40),scale=e8m0,size=3)"]
)
def test_constants_of_elements_below_the_range_of_float32_are_found_silently(text: str) -> None:
    from fewbits.kernels.triton.values.spec import spec  # needs Triton

    fmt = parse(text)
    with np.errstate(all="raise"):
        found = spec(fmt, options(fmt))
    assert found is None or found.element_max == np.float32(fmt.element.max)


def test_conversions_to_every_format_equal_the_definition() -> None:
    # The first rows of the table are one for each format; the others are the slow test's.
    sentences, compared = interpreted("conversions", "0", "64")
    assert compared > 190
    assert sentences == []


@pytest.mark.slow
@pytest.mark.parametrize("first", range(64, 700, 128))
def test_conversions_by_every_pair_of_choices_equal_the_definition(first: int) -> None:
    sentences, _ = interpreted("conversions", str(first), str(first + 128))
    assert sentences == []


def test_ties_cut_blocks_both_axes_feedback_and_ranks_equal_the_definition() -> None:
    sentences, compared = interpreted("others")
    assert compared >= 75
    assert sentences == []


def test_products_and_layers_are_within_their_bounds() -> None:
    sentences, compared = interpreted("products")
    assert compared >= 40
    assert sentences == []


def test_layers_whose_operands_are_packed_from_one_read_keep_their_bits() -> None:
    sentences, compared = interpreted("layers")
    assert compared >= 40
    assert sentences == []


def test_kernels_that_are_broken_are_told_from_the_definition() -> None:
    sentences, compared = interpreted("broken")
    assert len(sentences) == compared == 4
    assert all("the definition says" in sentence for sentence in sentences)
