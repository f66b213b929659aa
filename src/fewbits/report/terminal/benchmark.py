"""Tables about benchmarks: times to quality, and checked logs."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType

from fewbits.records import BenchmarkReport, LogCheck
from fewbits.report.columns.benchmark import BENCHMARK_COLUMNS, benchmark_sentences, ranked_results
from fewbits.report.columns.column import Column
from fewbits.report.terminal.sheet import Heading, Sheet, Wrapped

_CHECK_COLUMNS: list[Column[LogCheck]] = [
    Column("folder", "folder", "Where the logs lie.", lambda r: r.folder, lambda r: r.folder, is_name=True),
    Column("logs", "logs", "How many.", lambda r: str(len(r.files)), lambda r: len(r.files)),
    Column("problems", "problems", "How many.", lambda r: str(len(r.problems)), lambda r: len(r.problems)),
]  # fmt: skip


def benchmark_table(report: BenchmarkReport) -> RenderableType:
    """Lay out one row per recipe, and below what was measured and what to know of it."""
    heading = Heading(f"{report.benchmark}: time to quality", f"{report.runs} runs for a result")
    sentences = map(Wrapped, benchmark_sentences(report))
    return Group(Sheet(heading, BENCHMARK_COLUMNS, ranked_results(report)), *sentences)


def logs_table(checks: Sequence[LogCheck]) -> RenderableType:
    """Lay out one row per folder, and below who looked."""
    who = [
        f"Checked by the official checker ({name}) with our configuration, and by our own rules."
        if name
        else f"Checked by our own rules alone: the official checker {reason}."
        for name, reason in dict.fromkeys((check.official, check.reason) for check in checks)
    ]
    rest = "in MLPerf's log format; no MLPerf results"
    return Group(Sheet(Heading("logs", rest), _CHECK_COLUMNS, checks), *map(Wrapped, who))
