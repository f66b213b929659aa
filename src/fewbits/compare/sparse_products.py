"""Bytes of pruned tensors, and times of their products, dense and compressed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from statistics import median
from time import perf_counter

import torch

from fewbits.formats import Format
from fewbits.records import PrunedProduct, PrunedTensor, PruneReport
from fewbits.tensor import quantize

_LEAST_SECONDS = 1e-3  # shortest measurement: small products are repeated
_ROUNDS = 5


def sparse_products(
    weights: Mapping[str, torch.Tensor], report: PruneReport, format: Format
) -> tuple[PrunedProduct, ...]:
    """Measure the product of each pruned tensor with one vector, by this library's kernels.

    The kernel of a convolution is treated as the matrix of the unfolded product, input channels innermost.

    Args:
        weights: by name; those in the report follow its pattern.
        report: what was pruned.
        format: of the values, dense and compressed.

    Returns:
        One record for each pruned tensor; times are medians of alternating measurements.
    """
    return tuple(_product(weights[t.tensor], t, report.pattern, format) for t in report.pruned)


def _product(w: torch.Tensor, about: PrunedTensor, pattern: str, format: Format) -> PrunedProduct:
    lines = w.detach().movedim(about.axis, -1)
    is_kernel = about.axis not in (0, w.dim() - 1)
    matrix = lines.reshape(len(lines), -1) if is_kernel else lines.reshape(-1, lines.shape[-1])
    dense = quantize(matrix.bfloat16().contiguous(), format)
    sparse = dense.compressed(pattern)
    x = torch.ones(1, matrix.shape[-1], dtype=torch.bfloat16)
    seconds = _in_turns([lambda: x @ dense.t(), lambda: x @ sparse.t()])
    return PrunedProduct(about.tensor, str(format), dense.nbytes, sparse.nbytes, *seconds)


def _in_turns(calls: list[Callable[[], object]]) -> list[float]:
    """Return the median time of each call, measured in turns."""
    began = perf_counter()
    for call in calls:
        call()  # warm-up: allocates memory and starts threads
    repeats = max(1, round(_LEAST_SECONDS / (perf_counter() - began)))
    taken: list[list[float]] = [[] for _ in calls]
    for _ in range(_ROUNDS):
        for call, times in zip(calls, taken, strict=True):
            start = perf_counter()
            for _ in range(repeats):
                call()
            times.append((perf_counter() - start) / repeats)
    return [median(times) for times in taken]
