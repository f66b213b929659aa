"""Teams of processes that the tests of this folder share."""

from collections.abc import Callable, Iterator

import pytest

from tests.distributed.team import Team


@pytest.fixture(scope="package")
def team() -> Iterator[Callable[[int], Team]]:
    """Return what gives a team of so many processes; one at a time is alive."""
    alive: list[Team] = []

    def of(size: int) -> Team:
        if not alive or alive[0].size != size:
            for other in alive:
                other.end()
            alive[:] = [Team(size)]
        return alive[0]

    yield of
    for other in alive:
        other.end()
