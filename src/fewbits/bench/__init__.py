"""Time to quality: benchmarks as data, runs by the rules of MLPerf Training, and logs in its format.

``fewbits bench`` calls these functions and prints a report; see docs/benchmarking.md. What comes out is no
MLPerf result.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fewbits.bench.benchmarks import BENCHMARKS, Benchmark, benchmark
    from fewbits.bench.checking import check_logs
    from fewbits.bench.logs import check_loggable, write_logs
    from fewbits.bench.measuring import run_benchmark
    from fewbits.bench.rules import (
        ReferencePoint,
        check_seeds,
        converges_too_fast,
        interpolated,
        olympic_mean,
        one_sided_p,
        reference_point,
        score,
    )

# Imported on first use: rules and logs are checked without PyTorch.
_HOMES = {
    "BENCHMARKS": "benchmarks",
    "Benchmark": "benchmarks",
    "ReferencePoint": "rules",
    "benchmark": "benchmarks",
    "check_loggable": "logs",
    "check_logs": "checking",
    "check_seeds": "rules",
    "converges_too_fast": "rules",
    "interpolated": "rules",
    "olympic_mean": "rules",
    "one_sided_p": "rules",
    "reference_point": "rules",
    "run_benchmark": "measuring",
    "score": "rules",
    "write_logs": "logs",
}

__all__ = [
    "BENCHMARKS",
    "Benchmark",
    "ReferencePoint",
    "benchmark",
    "check_loggable",
    "check_logs",
    "check_seeds",
    "converges_too_fast",
    "interpolated",
    "olympic_mean",
    "one_sided_p",
    "reference_point",
    "run_benchmark",
    "score",
    "write_logs",
]


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(f"fewbits.bench.{_HOMES[name]}"), name)
    raise AttributeError(f"fewbits.bench has no name {name!r}; it has {', '.join(__all__)}")
