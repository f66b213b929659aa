"""What the tests of packed tensors share: values that suit a format, and tensors made of them."""

import torch

import fewbits as fb
from fewbits.formats import Element
from tests import cases


def values(fmt: cases.Format, shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    """Return float32 values of many magnitudes; none is negative where the format has no sign."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(shape, generator=generator) * torch.exp2(torch.randint(-3, 4, shape, generator=generator))
    return x.abs() if isinstance(fmt, Element) and fmt.min >= 0 else x


def packed(fmt: cases.Format | str, shape: tuple[int, ...], axis: int = -1, seed: int = 0) -> fb.NarrowTensor:
    """Return such values, quantized."""
    fmt = fb.format(fmt)
    return fb.quantize(values(fmt, shape, seed), fmt, axis=axis)


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors have the same shape, dtype and values, and neither is packed."""
    assert not isinstance(a, fb.NarrowTensor)
    assert not isinstance(b, fb.NarrowTensor)
    return a.dtype == b.dtype and torch.equal(a, b)
