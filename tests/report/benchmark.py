"""Records of a benchmark that look like real ones."""

import math

from fewbits.evidence import paired
from fewbits.records import (
    BenchmarkReport,
    BenchmarkRun,
    EnergyProxy,
    Evaluation,
    LogCheck,
    RanPrecision,
    RecipeResult,
)


def run(recipe: str, seed: int, seconds: float, *, reached: bool = True, resumed: int = 0) -> BenchmarkRun:
    """A run of ten evaluations."""
    ran = RanPrecision("fp32" if recipe == "fp32" else "mxfp6_e3m2", None, None)
    evaluations = tuple(
        Evaluation(
            10 * k, 0.1 * k * seconds - 0.05, 0.1 * k * seconds, 95.4 - 30 / k + (k == 10) * 3 * reached
        )
        for k in range(1, 11)
    )
    return BenchmarkRun(recipe, seed, reached, seconds, 100, evaluations, ran, resumed, 10**12)


def report(others: tuple[str, ...] = ("mxfp6",), *, failed: int = 0, resumed: int = 0) -> BenchmarkReport:
    """FP32 and others that take half of its time again, of which some runs fail."""
    times = [4.0, 5.0, 6.0, 7.0, 10.0]
    wide = tuple(run("fp32", seed, t) for seed, t in enumerate(times))
    results = [RecipeResult("fp32", wide, 6.0, 3200.0, paired([0.0] * 5, [0.0] * 5), proxy(32), None)]
    for name in others:
        narrow = tuple(
            run(
                name, seed, 1.5 * t * (1 + 0.01 * seed), reached=seed >= failed, resumed=resumed * (seed == 2)
            )
            for seed, t in enumerate(times)
        )
        logs = [math.log(1.5 * (1 + 0.01 * seed)) for seed in range(failed, 5)]
        seconds = math.inf if failed > 1 else 9.0
        evidence = paired(logs, [0.0] * len(logs))
        results.append(RecipeResult(name, narrow, seconds, 100 * seconds, evidence, proxy(6.25), False))
    return BenchmarkReport(
        "digits", "digits", "accuracy", False, 95.0, 10, 400, 32, 1e-2, 12800, 897, 5, 1, "",
        ("objects of earlier runs",), ("the operating system's cache of files",), tuple(results),
    )  # fmt: skip


def proxy(bits: float) -> EnergyProxy:
    return EnergyProxy(1e6 * bits * bits, 1e3 * bits, 0.0)


CHECKS = [
    LogCheck(
        "measured/logs/fp32", ("result_0.txt", "result_1.txt"), (), "mlperf-logging 4.1.68, ruleset 6.1.0"
    ),
    LogCheck("measured/logs/mxfp6", ("result_0.txt",), ("result_0.txt: wrong",), "", "comes in spring"),
]
