"""Implementations can be listed, asked and forced, and the forced one is the one that ran."""

import os
import subprocess
import sys

import numpy as np
import pytest

from fewbits.errors import ArgumentError
from fewbits.formats import parse
from fewbits.kernels import native
from fewbits.kernels.bits.options import options


def _ran() -> str:
    fmt, x = parse("mxfp4"), np.ones((1, 32), np.float32)
    return native.fake_quantize(x, np.empty_like(x), fmt, 1, options(fmt), None, threads=1)[0]


def test_baseline_is_always_there_and_last() -> None:
    assert native.isas()[-1] == "baseline"
    assert native.available_isas()[-1] == "baseline"
    assert set(native.available_isas()) <= set(native.isas())


@pytest.mark.parametrize("isa", native.isas())
def test_the_forced_one_ran(isa: str) -> None:
    if isa not in native.available_isas():
        pytest.skip(f"this CPU does not run {isa}")
    native.force_isa(isa)
    assert native.active_isa() == isa
    # The name is from the compiler's own macros in that kernel's file; VNNI and tiles are for products alone.
    assert _ran() == {"amx": "avx512_bf16"}.get(isa, isa.removesuffix("_vnni"))
    assert native.has_unit("integers") == (isa.endswith("_vnni") or isa == "avx512_bf16")
    assert native.has_unit("bfloat16") == (isa in ("amx", "avx512_bf16"))
    assert native.has_unit("bfloat16x2") == native.has_tiles() == (isa == "amx")


def test_the_best_one_runs_unless_told_otherwise() -> None:
    native.force_isa("baseline")
    native.force_isa(None)
    if not os.environ.get("FEWBITS_ISA"):
        assert native.active_isa() == native.available_isas()[0]


def test_an_unknown_isa_is_refused_and_changes_nothing() -> None:
    native.force_isa("baseline")
    with pytest.raises(
        ArgumentError, match=r"force_isa asks for avx9, which is not one of .*baseline; use one of"
    ):
        native.force_isa("avx9")
    for none in ("", 512):
        with pytest.raises(ArgumentError, match=f"force_isa asks for {none!r}; use one of .* or None"):
            native.force_isa(none)
    assert native.active_isa() == "baseline"


def _in_a_fresh_process(isa: str, code: str) -> str:
    environment = {**os.environ, "FEWBITS_ISA": isa}
    program = f"from fewbits.kernels import native\n{code}"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.mark.parametrize("isa", native.available_isas())
def test_the_environment_chooses(isa: str) -> None:
    assert _in_a_fresh_process(isa, "print(native.active_isa())") == isa


# Calls that may be the first one of a process: each has to ask which instruction set runs.
FIRST = """
import numpy as np
from fewbits.kernels.bits import lattice
from fewbits.kernels.native.lattice import passes

x, layout, field = np.ones(16, np.float32), lattice.Layout((1, 1, 1, 1)), lattice.zeros(1, "float32")
wide, sums, wanted = np.ones((1, 24, 16)), np.zeros((1, 24, 16), np.float32), {"threads": 1}
scalars = {"alpha": 1.0, "gamma": 1.0, "beta": 0.0}
for call in (
    native.active_isa,
    lambda: native.magnitudes(x, **wanted),
    lambda: native.top_k(x, np.zeros(1, np.int64), **wanted),
    lambda: native.tally_values(x, x, 1.0, **wanted),
    lambda: native.has_unit("integers"),
    lambda: passes.store_residual(layout, wide, field, lattice.zeros(1, "float32"), **wanted),
    lambda: passes.update_solution(layout, field, sums, alpha=1.0, **wanted),
    lambda: passes.update_direction(layout, field, lattice.zeros(1, "float32"), sums, **scalars, **wanted),
):
    try:
        call()
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_a_wrong_environment_is_one_clear_error_of_whichever_call_comes_first() -> None:
    said = _in_a_fresh_process("sse9", FIRST).splitlines()
    assert len(said) == 8
    for line in said:
        assert line.startswith(
            "ArgumentError the environment variable FEWBITS_ISA asks for sse9, which is not one of"
        )
        assert "unset it or use one of" in line
    assert _in_a_fresh_process("baseline", FIRST) == ""  # the calls themselves are right
