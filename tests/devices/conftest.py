"""The device that is none, for every test of this folder that asks for it."""

from collections.abc import Iterator

import pytest

from tests.devices.fake_device import FakeDevice, fake_device


@pytest.fixture
def device() -> Iterator[FakeDevice]:
    """Have the device while the test lasts."""
    with fake_device() as found:
        yield found
