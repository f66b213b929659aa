"""What every test shares: one Hypothesis profile, and the data that is not part of the repository."""

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# The same examples on every machine: a failure seen by one person is seen by all.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")


# What is imported and collected lives until the end. Looking through it for garbage, again and again, took a
# twentieth of the time of all tests. The process that only hands tests out collects none, and stays as it is.
def pytest_collectstart() -> None:
    """Look for no garbage while tests are imported."""
    gc.disable()


def pytest_collection_finish() -> None:
    """Set aside what there is, and look for garbage from now on in what the tests make."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    """Let what was set aside go, as the interpreter ends."""
    gc.unfreeze()


_ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def shared_data() -> Path:
    """The folder named by FEWBITS_DATA, or ``../shared/data`` beside the repository; skips without it."""
    folder = Path(os.environ.get("FEWBITS_DATA", _ROOT.parent / "shared" / "data"))
    if not folder.is_dir():
        pytest.skip(f"no data in {folder}; set FEWBITS_DATA to a folder that holds it")
    return folder


@pytest.fixture
def copied_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands that start processes on this machine start copies of one that has imported all of it."""
    from fewbits.train import launch
    from tests.copies import start_copies

    monkeypatch.setattr(launch, "start_processes", start_copies)


@pytest.fixture
def two() -> Iterator[None]:
    """Be the first of two processes; the other one is imagined, and sends nothing."""
    from tests.fake_group import imagined  # torch's groups are imported by those who ask for one

    with imagined(2):
        yield
