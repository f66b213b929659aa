"""Operations one by one take little memory on the way, however large the tensor is."""

import weakref
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fewbits.formats import parse
from fewbits.kernels import portable
from fewbits.kernels.bits.options import options


class Peak(TorchDispatchMode):
    """Count the bytes that operations took and that a tensor still has, and remember the most."""

    def __init__(self) -> None:
        super().__init__()
        self.made: list[tuple[weakref.ref[torch.Tensor], int, int]] = []  # a tensor, its address and bytes
        self.most = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation and count."""
        found = function(*args, **(kwargs or {}))
        for x in found if isinstance(found, list | tuple) else [found]:
            if isinstance(x, torch.Tensor):
                storage = x.untyped_storage()
                self.made.append((weakref.ref(x), storage.data_ptr(), storage.nbytes()))
        self.made = [made for made in self.made if made[0]() is not None]
        self.most = max(self.most, sum({at: size for _, at, size in self.made}.values()))
        return found


def temporary_bytes(dtype: torch.dtype, name: str, rounding: str) -> float:
    """Return the bytes per value that rounding a large tensor has alive at once, beside its result."""
    fmt = parse(name)
    x = torch.randn(1 << 21).to(dtype).reshape(1024, -1)
    chosen = options(fmt, rounding=rounding, nonfinite="saturate")
    with Peak() as peak:
        y = portable.fake_quantize(x, fmt, 1, chosen, None)
    assert y.shape == x.shape
    return peak.most / x.numel() - 2 * x.element_size()  # the views of x count it too


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["mxfp8_e4m3", "mxfp6_e3m2", "mxfp4", "mxint8", "mx9", "nvfp4"])
def test_no_more_than_40_bytes_for_each_value(name: str, dtype: torch.dtype) -> None:
    assert 0 < temporary_bytes(dtype, name, "nearest_even") <= 40


def test_random_bits_take_no_more_either() -> None:
    assert temporary_bytes(torch.float32, "mxfp4", "stochastic") <= 40


def test_in_one_piece_it_would_take_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fewbits.kernels.portable.values.pieces._ON_CPU", 1 << 30)
    assert temporary_bytes(torch.float32, "nvfp4", "nearest_even") > 40
