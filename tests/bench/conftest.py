"""Benchmarks here see the precision of runs."""

import tests.bench.observer  # noqa: F401
