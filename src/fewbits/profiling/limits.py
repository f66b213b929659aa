"""What this machine can do: the rates that an operation is held against, as the benchmarks measure them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from statistics import median
from time import perf_counter, sleep

import torch

from fewbits.products import product_flop
from fewbits.records import MachineLimits

_VALUES = 1 << 26  # float32 of a copy: 256 MiB, as in benchmarks/quantize.py
_SIDE = 1024  # of products; of dtypes that the CPU emulates, a quarter
_EMULATED = 8  # times as long as products of float32 of a quarter's size
_ROUNDS = 7
_TO_SLEEP = 0.05  # seconds: the threads of the call before no longer wait for work
_CALLS = 1000

Job = Callable[[], object]


def measured_limits(dtypes: Iterable[str] = (), *, values: int = _VALUES, size: int = _SIDE) -> MachineLimits:
    """Measure the limits of this machine, with as many threads as torch has.

    Takes a few seconds. The rates are those of PyTorch's own copy, sum and products, as the benchmarks take
    them: the median of some calls, taken in turns, after one that does not count.

    Args:
        dtypes: of products, by name, beside float32 and bfloat16; those that PyTorch does not multiply here
            get no rate.
        values: of the arrays that are copied; fewer may lie in a cache.
        size: of the matrices that are multiplied.
    """
    x, y, one = torch.ones(values), torch.zeros(values), torch.zeros(1)

    def calls() -> None:
        for _ in range(_CALLS):
            one.add_(1.0)

    products = _products(("float32", "bfloat16", *dtypes), size)
    memory: dict[str, Job] = {"copy": lambda: y.copy_(x), "read": x.sum, "calls": calls}
    took = _seconds(memory | {name: job for name, (job, _) in products.items()})
    return MachineLimits(
        torch.get_num_threads(),
        8 * values / took["copy"],
        4 * values / took["read"],
        {name: flop / took[name] for name, (_, flop) in products.items()},
        took["calls"] / _CALLS,
    )


def completed(limits: MachineLimits, dtypes: Iterable[str], *, size: int = _SIDE) -> MachineLimits:
    """Return limits with the rates of products, measured now, of the dtypes that they lack."""
    rates = limits.product_flops
    products = _products([name for name in dtypes if name not in rates], size)
    if not products:
        return limits
    took = _seconds({name: job for name, (job, _) in products.items()})
    found = {name: flop / took[name] for name, (_, flop) in products.items()}
    return replace(limits, product_flops={**rates, **found})


def _products(dtypes: Iterable[str], side: int) -> dict[str, tuple[Job, float]]:
    """Return a product of each dtype that PyTorch multiplies here, and its FLOP."""
    small = max(side // 4, 1)
    least, found = _EMULATED * _once(_product(torch.float32, small)), dict[str, tuple[Job, float]]()
    for name in dict.fromkeys(dtypes):
        dtype = getattr(torch, name)
        try:
            own = side if _once(_product(dtype, small)) <= least else small
        except (NotImplementedError, RuntimeError):
            continue  # as of 8-bit floating point: no rate is known
        found[name] = _product(dtype, own), float(product_flop(dtype) * own**3)
    return found


def _product(dtype: torch.dtype, side: int) -> Job:
    a, b = (torch.randn(side, side).to(dtype) for _ in range(2))
    product = torch._int_mm if dtype == torch.int8 else torch.mm  # that of int8 has 32 bits, as its users'
    return lambda: product(a, b)


def _once(job: Job) -> float:
    """Return the seconds of the fastest of three calls, after one that does not count."""
    job()
    times = []
    for _ in range(3):
        start = perf_counter()
        job()
        times.append(perf_counter() - start)
    return min(times)


def _seconds(jobs: Mapping[str, Job]) -> dict[str, float]:
    """Return the median of some calls of each; in turns, so that a busy moment is spread over all."""
    for job in jobs.values():
        job()
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(_ROUNDS):
        for name, job in jobs.items():
            sleep(_TO_SLEEP)
            start = perf_counter()
            job()
            times[name].append(perf_counter() - start)
    return {name: median(of) for name, of in times.items()}
