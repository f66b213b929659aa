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


def test_a_wrong_environment_is_one_clear_error() -> None:
    code = "try: native.active_isa()\nexcept Exception as error: print(type(error).__name__, error)"
    said = _in_a_fresh_process("sse9", code)
    assert said.startswith(
        "ArgumentError the environment variable FEWBITS_ISA asks for sse9, which is not one of"
    )
    assert "unset it or use one of" in said
