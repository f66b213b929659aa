import pytest

from fewbits.solvers.dense import plan


@pytest.fixture(autouse=True)
def _without_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every CPU try the same precisions; tests of tiles ask for them."""
    monkeypatch.setattr(plan, "has_tiles", bool)
