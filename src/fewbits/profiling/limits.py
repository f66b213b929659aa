"""What this machine can do: the rates that an operation is held against, as the benchmarks measure them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from statistics import median
from time import perf_counter, sleep

import torch

from fewbits.profiling.counting import product_flop
from fewbits.records import MachineLimits

_VALUES = 1 << 26  # float32 of a copy: 256 MiB, as in benchmarks/quantize.py
_SIDE = 1024  # of products; of dtypes that a CPU may only emulate, a quarter
_ROUNDS = 7
_TO_SLEEP = 0.05  # seconds: the threads of the call before no longer wait for work
_CALLS = 1000


def measured_limits(dtypes: Iterable[str] = (), *, values: int = _VALUES, size: int = _SIDE) -> MachineLimits:
    """Measure the limits of this machine, with as many threads as torch has.

    Takes a few seconds. The rates are those of PyTorch's own copy, sum and products, as the benchmarks take
    them: the median of some calls, after one that does not count.

    Args:
        dtypes: of products, by name, beside float32 and bfloat16; those that PyTorch does not multiply here
            get no rate.
        values: of the arrays that are copied; fewer may lie in a cache.
        size: of the matrices that are multiplied.
    """
    copy, read = _memory_seconds(values)
    products = _product_rates(("float32", "bfloat16", *dtypes), size)
    one = torch.zeros(1)

    def calls() -> None:
        for _ in range(_CALLS):
            one.add_(1.0)

    return MachineLimits(
        torch.get_num_threads(), 8 * values / copy, 4 * values / read, products, _seconds(calls) / _CALLS
    )


def completed(limits: MachineLimits, dtypes: Iterable[str], *, size: int = _SIDE) -> MachineLimits:
    """Return limits with the rates of products, measured now, of the dtypes that they lack."""
    rates = limits.product_flops
    found = _product_rates((name for name in dtypes if name not in rates), size)
    return replace(limits, product_flops={**rates, **found}) if found else limits


def _memory_seconds(values: int) -> tuple[float, float]:
    """Return the time of a copy and of a sum, in memory that is there already."""
    x, y = torch.ones(values), torch.zeros(values)
    return _seconds(lambda: y.copy_(x)), _seconds(x.sum)


def _product_rates(dtypes: Iterable[str], side: int) -> dict[str, float]:
    found = {}
    for name in dict.fromkeys(dtypes):
        try:
            found[name] = _product_rate(getattr(torch, name), side)
        except (NotImplementedError, RuntimeError):
            continue  # as of 8-bit floating point: no rate is known
    return found


def _product_rate(dtype: torch.dtype, side: int) -> float:
    if dtype not in (torch.float32, torch.bfloat16):
        side = max(side // 4, 1)
    a, b = (torch.randn(side, side).to(dtype) for _ in range(2))
    product = torch._int_mm if dtype == torch.int8 else torch.mm  # that of int8 has 32 bits, as its users'
    return product_flop(dtype) * side**3 / _seconds(lambda: product(a, b))


def _seconds(job: Callable[[], object]) -> float:
    job()
    times = []
    for _ in range(_ROUNDS):
        sleep(_TO_SLEEP)
        start = perf_counter()
        job()
        times.append(perf_counter() - start)
    return median(times)
