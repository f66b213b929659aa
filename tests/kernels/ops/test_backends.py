"""Backends: list, ask, force; the forced one really runs."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch

import fewbits as fb
from fewbits.errors import ArgumentError
from fewbits.kernels import active_backend, backends, force_backend


@pytest.fixture(autouse=True)
def _automatic() -> Iterator[None]:
    force_backend(None)
    yield
    force_backend(None)


def test_the_cpu_has_native_and_portable_and_prefers_native() -> None:
    assert backends()[:2] == ("native", "portable")
    assert active_backend() == active_backend(torch.device("cpu")) == "native"


def test_other_devices_have_portable_and_never_native() -> None:
    for device in ("cuda", "mps", "meta", torch.device("xpu:1")):
        assert "portable" in backends(device)
        assert "native" not in backends(device)


def test_a_forced_backend_is_the_active_one_until_none_is_forced() -> None:
    force_backend("portable")
    assert active_backend() == active_backend("mps") == "portable"
    force_backend(None)
    assert active_backend() == "native"


def test_an_unknown_name_is_refused_with_those_that_exist_and_the_choice_stays() -> None:
    force_backend("portable")
    with pytest.raises(
        ArgumentError, match="force_backend names the backend 'cuda'; there is native, portable"
    ):
        force_backend("cuda")
    assert active_backend() == "portable"


def test_a_backend_that_does_not_work_on_the_device_is_refused_by_name() -> None:
    force_backend("native")
    with pytest.raises(ArgumentError, match="'native', which does not work on mps; for it there is portable"):
        active_backend("mps")


SCRIPT = "import fewbits.kernels as k, fewbits as fb, torch\ntry: print(k.active_backend())\n"
SCRIPT += "except fb.ArgumentError as error: print(error)"


@pytest.mark.parametrize(
    ("given", "printed"),
    [
        ("portable", "portable"),
        ("", "native"),
        ("gpu", "FEWBITS_BACKEND names the backend 'gpu'; there is native, portable"),
    ],
)
def test_the_variable_forces_too_and_an_unknown_name_in_it_is_refused(given: str, printed: str) -> None:
    found = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**os.environ, "FEWBITS_BACKEND": given},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.startswith(printed)


def test_the_names_are_public_and_found_without_loading_torch_before() -> None:
    code = "import sys, fewbits.kernels as k; print('torch' in sys.modules); k.backends()"
    code += "; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.split() == ["False", "True"]
    assert {"active_backend", "backends", "force_backend"} <= set(fb.kernels.__all__)


def test_triton_without_its_package_names_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fewbits.kernels.ops.backends.find_spec", lambda _: None)
    monkeypatch.setattr("fewbits.kernels.ops.backends._has_triton", lambda _: False)
    with pytest.raises(
        ArgumentError, match=r"force_backend names the backend 'triton'.* install fewbits\[gpu\]"
    ):
        force_backend("triton")


def test_triton_does_not_run_on_the_cpu_unless_it_is_interpreted() -> None:
    assert os.environ.get("TRITON_INTERPRET") != "1"
    assert "triton" not in backends("cpu")
