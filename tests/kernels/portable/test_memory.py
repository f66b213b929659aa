"""Operations one by one take little memory on the way, however large the tensor is."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fewbits.formats import parse
from fewbits.kernels import portable
from fewbits.kernels.bits.options import options


class Peak(TorchDispatchMode):
    """Count the bytes of all tensors that operations made and that are alive, and remember the most."""

    def __init__(self) -> None:
        super().__init__()
        self.alive: dict[int, torch.UntypedStorage] = {}
        self.most = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        """Run an operation and count."""
        found = function(*args, **(kwargs or {}))
        for x in found if isinstance(found, (list, tuple)) else [found]:
            if isinstance(x, torch.Tensor):
                storage = x.untyped_storage()
                self.alive[storage.data_ptr()] = storage
        # One reference is held here, one by the storage object of the tensor.
        self.alive = {at: s for at, s in self.alive.items() if s._use_count() > 1}
        self.most = max(self.most, sum(s.nbytes() for s in self.alive.values()))
        return found


def temporary_bytes(dtype: torch.dtype, name: str, rounding: str) -> float:
    """Return the bytes per value that rounding a large tensor has alive at once, beside its result."""
    fmt = parse(name)
    x = torch.randn(1 << 21).to(dtype).reshape(1024, -1)
    chosen = options(fmt, rounding=rounding, nonfinite="saturate")
    with Peak() as peak:
        y = portable.fake_quantize(x, fmt, 1, chosen, None)
    assert y.shape == x.shape
    return peak.most / x.numel() - x.element_size()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["mxfp4", "mx9", "nvfp4"])
def test_no_more_than_40_bytes_for_each_value(name: str, dtype: torch.dtype) -> None:
    assert 0 < temporary_bytes(dtype, name, "nearest_even") <= 40


def test_random_bits_take_no_more_either() -> None:
    assert temporary_bytes(torch.float32, "mxfp4", "stochastic") <= 40


def test_in_one_piece_it_would_take_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fewbits.kernels.portable.values.pieces._ON_CPU", 1 << 30)
    assert temporary_bytes(torch.float32, "nvfp4", "nearest_even") > 40
