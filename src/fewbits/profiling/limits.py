"""What this machine can do: the rates that an operation is held against, as the benchmarks measure them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import perf_counter

import torch

from fewbits.records import MachineLimits

_VALUES = 1 << 26  # float32 of a copy: 256 MiB, as in benchmarks/quantize.py
_SIDE = 1024  # of products; of dtypes that a CPU may only emulate, a quarter
_ROUNDS = 15
_CALLS = 1000


def measured_limits(dtypes: Iterable[str] = (), *, values: int = _VALUES, size: int = _SIDE) -> MachineLimits:
    """Measure the limits of this machine, with as many threads as torch has.

    Takes a second or two. The rates are those of PyTorch's own copy, sum and products, as the benchmarks take
    them: the fastest of some calls, after one that does not count.

    Args:
        dtypes: of products, by name, beside float32 and bfloat16.
        values: of the arrays that are copied; fewer may lie in a cache.
        size: of the matrices that are multiplied.
    """
    copy, read = _memory_seconds(values)
    names = dict.fromkeys(("float32", "bfloat16", *dtypes))
    products = {name: _product_rate(getattr(torch, name), size) for name in names}
    one = torch.zeros(1)

    def calls() -> None:
        for _ in range(_CALLS):
            one.add_(1.0)

    return MachineLimits(
        torch.get_num_threads(), 8 * values / copy, 4 * values / read, products, _seconds(calls) / _CALLS
    )


def _memory_seconds(values: int) -> tuple[float, float]:
    """Return the time of a copy and of a sum, in memory that is there already."""
    x, y = torch.ones(values), torch.zeros(values)
    return _seconds(lambda: y.copy_(x)), _seconds(x.sum)


def _product_rate(dtype: torch.dtype, side: int) -> float:
    if dtype not in (torch.float32, torch.bfloat16):
        side = max(side // 4, 1)
    a, b = (torch.randn(side, side).to(dtype) for _ in range(2))
    return 2 * side**3 / _seconds(lambda: a @ b)


def _seconds(job: Callable[[], object]) -> float:
    job()
    times = []
    for _ in range(_ROUNDS):
        start = perf_counter()
        job()
        times.append(perf_counter() - start)
    return min(times)  # a limit: others on the machine only lower it
