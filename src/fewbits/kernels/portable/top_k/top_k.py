"""The places of the largest magnitudes of a tensor, by exact operations of torch."""

from __future__ import annotations

import torch

_PLACES = 31  # bits: below 2^31 places, and as many bits of a magnitude, are one int64


def top_k(x: torch.Tensor, k: int) -> torch.Tensor:
    """Return the places of the ``k`` values of largest magnitude, in rising order.

    :mod:`fewbits.kernels.reference.top_k.top_k` defines them. torch.topk leaves open which of equal values it
    takes: what it compares here is unique, since a magnitude is followed by how many places come after it.

    Args:
        x: (n,), float32, bfloat16 or float16; n below 2^31.
        k: 0 to n.
    """
    bits, most = (torch.int32, 0x7FFFFFFF) if x.element_size() == 4 else (torch.int16, 0x7FFF)
    magnitudes = (x.view(bits) & most).long()
    after = torch.arange(x.numel() - 1, -1, -1, device=x.device)
    return torch.topk(magnitudes << _PLACES | after, k, sorted=False).indices.sort().values
