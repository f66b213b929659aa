"""Initial values by operations of torch equal the native ones, so that other devices have the same."""

import pytest
import torch

from fewbits.kernels import native
from fewbits.kernels.ops.counter_uniform import by_torch, counter_uniform

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    ("seed", "position", "n"), [(0, 0, 1), (2**64 - 1, 63, 200), (12345678901, 2**35 - 7, 1000), (3, 9, 0)]
)
def test_torch_equals_native(device: str, seed: int, position: int, n: int) -> None:
    found = by_torch(seed, position, n, 0.37, torch.device(device)).cpu()
    assert found.numpy().tobytes() == native.counter_uniform(seed, position, n, 0.37, 1).tobytes()


def test_devices_without_native_kernels_go_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fewbits.kernels.ops.counter_uniform._AT_ONCE", 100)
    assert counter_uniform(1, 5, 250, 1.0, torch.device("meta")).shape == (250,)
