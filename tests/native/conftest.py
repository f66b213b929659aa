import shutil
from collections.abc import Iterator

import pytest

from fewbits.kernels import native


@pytest.fixture(autouse=True)
def _free_choice_of_isa() -> Iterator[None]:
    yield
    native.force_isa(None)


@pytest.fixture(params=native.available_isas())
def isa(request: pytest.FixtureRequest) -> str:
    """Have every kernel run with each instruction set of the CPU."""
    native.force_isa(request.param)
    return str(request.param)


@pytest.fixture
def compiler() -> str:
    found = shutil.which("g++")
    if found is None:
        pytest.skip("g++ is not installed")
    return found


@pytest.fixture
def tool(request: pytest.FixtureRequest) -> str:
    found = shutil.which(request.param)
    if found is None:
        pytest.skip(f"{request.param} (binutils) is not installed")
    return found
