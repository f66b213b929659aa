"""The columns about times to quality, and what their table says in words."""

from __future__ import annotations

import math
from dataclasses import dataclass

from fewbits.records import BenchmarkReport, EnergyProxy, RecipeResult
from fewbits.report import quantities as q
from fewbits.report.columns.column import Column
from fewbits.report.judgement import verdict

_PROXY = (
    "The proxy of energy is counted, not measured: of the products of a run, multiply-adds times the bits of"
    " both operands, and the bits of operands and results, each moved once. Rounding, the optimizer, caches"
    " and layers that a recipe spares are not in it."
)


@dataclass(frozen=True)
class RankedResult:
    """The result of a recipe beside that of FP32, if there is one."""

    result: RecipeResult
    wide: RecipeResult | None

    @property
    def ratio(self) -> tuple[float, float, float] | None:
        """Time over that of FP32: geometric mean over seeds, and the ends of its interval."""
        found = self.result.log_ratio
        if found is None or self.is_wide or not self.is_compared:
            return None
        return math.exp(found.mean), math.exp(found.low), math.exp(found.high)

    @property
    def is_wide(self) -> bool:
        """Whether this is FP32 itself."""
        return self.wide is not None and self.result.recipe == self.wide.recipe

    @property
    def is_compared(self) -> bool:
        """Whether this and FP32 are valid results."""
        return self.wide is not None and self.wide.is_valid and self.result.is_valid

    @property
    def verdict(self) -> str:
        """Return "worse" for slower and "better" for faster than FP32, where that is evident, else ""."""
        return (
            ""
            if self.is_wide or not self.is_compared
            else verdict(self.result.log_ratio, higher_is_better=False)
        )

    def share(self, field: str) -> float:
        """Return a part of the proxy over that of FP32, of all steps; NaN where one is not known."""
        mine, theirs = _total(self.result, field), _total(self.wide, field)
        return mine / theirs if theirs else math.nan


def ranked_results(report: BenchmarkReport) -> list[RankedResult]:
    """Return each result beside that of FP32."""
    wide = next((r for r in report.recipes if r.recipe == "fp32"), None)
    return [RankedResult(r, wide) for r in report.recipes]


BENCHMARK_COLUMNS: list[Column[RankedResult]] = [
    Column("recipe", "recipe", "Name of the recipe, and changes to it.",
           lambda r: r.result.recipe, lambda r: r.result.recipe, is_name=True),
    Column("seconds to quality", "seconds\nto\nquality",
           "Mean of the runs without the fastest and the slowest; of more runs than a result takes, the"
           " median over windows of them.",
           lambda r: _number(r.result.seconds, 2), lambda r: r.result.seconds),
    Column("time over fp32", "time/\nfp32", "Geometric mean over seeds, each over fp32 from the same one; *"
           " where that is evidence.",
           lambda r: _ratio(r, 0), lambda r: r.ratio[0] if r.ratio else math.nan,
           lambda r: r.verdict),
    Column("95 % from", "95 %\nfrom", "Lower end of the interval of that ratio, from paired seeds.",
           lambda r: _ratio(r, 1), lambda r: r.ratio[1] if r.ratio else math.nan),
    Column("95 % to", "95 %\nto", "Upper end of the interval.",
           lambda r: _ratio(r, 2), lambda r: r.ratio[2] if r.ratio else math.nan),
    Column("samples to quality", "samples\nto\nquality", "By the same rule as seconds.",
           lambda r: _number(r.result.samples, 0), lambda r: r.result.samples),
    Column("runs that converged", "con-\nverged", "Runs that reached the target, of those that were made.",
           lambda r: f"{r.result.converged}/{len(r.result.runs)}", lambda r: r.result.converged),
    Column("proxy: bit products over fp32", "proxy:\nbit\nprod.",
           "Proxy of energy: multiply-adds times the bits of both operands, over those of fp32.",
           lambda r: _number(r.share("bit_products"), 3), lambda r: r.share("bit_products"), spare=1),
    Column("proxy: bits moved over fp32", "proxy:\nbits\nmoved",
           "Proxy of energy: bits of operands and results of products, over those of fp32.",
           lambda r: _number(r.share("bits_moved"), 3), lambda r: r.share("bits_moved"), spare=2),
]  # fmt: skip


def benchmark_sentences(report: BenchmarkReport) -> list[str]:
    """Say what was measured, what is invalid or suspicious, and what the proxy counts."""
    sign = "at most" if report.lower_is_better else "at least"
    several = f", {report.processes} processes, {report.codec}" if report.processes > 1 else ""
    said = [
        f"{report.metric} {sign} {report.target:g}, evaluated each {report.evaluate_every} steps; at most"
        f" {report.steps} steps of {report.batch_size} samples{several}. The clock runs from before the data"
        " is touched.",
        f"Cleared before each run: {'; '.join(report.cleared)}. Kept: {'; '.join(report.kept)}.",
    ]
    for result in report.recipes:
        said += _of_recipe(result, report.runs)
    if len(report.recipes) > 1 and not any(r.recipe == "fp32" for r in report.recipes):
        said.append("Without fp32 among the recipes nothing is compared.")
    return [*said, _PROXY, "By the rules of MLPerf Training as fewbits has them; this is no MLPerf result."]


def _of_recipe(result: RecipeResult, runs: int) -> list[str]:
    name, said = q.visible(result.recipe), []
    failed = len(result.runs) - result.converged
    if math.isinf(result.seconds):
        said.append(f"{name}: {failed} runs missed the target; more than one leaves no result.")
    elif failed:
        said.append(f"{name}: {failed} runs missed the target, and one of {runs} counts as the slowest.")
    if result.too_fast:
        said.append(f"{name} takes fewer samples than the runs of fp32 explain: no valid result.")
    if result.untested:
        said.append(
            f"Whether {name} takes fewer samples than fp32 explains was not tested: {result.untested}."
        )
    pairs = 0 if result.log_ratio is None else result.log_ratio.pairs
    if result.is_valid and 0 < pairs < len(result.runs):
        said.append(
            f"The ratio of {name} is over {pairs} of {len(result.runs)} seeds, where both runs converged."
        )
    resumed = sum(run.resumed > 0 for run in result.runs)
    if resumed:
        counted = "1 run was" if resumed == 1 else f"{resumed} runs were"
        said.append(f"{name}: {counted} resumed; what a kill undid counts twice.")
    for ran in dict.fromkeys(run.precision for run in result.runs):
        wider = f" Wider: {', '.join(map(q.visible, ran.wide_layers))}." if ran.wide_layers else ""
        said.append(
            f"{name} ran with products in {ran.linear}, attention in {ran.attention or 'none'}, messages in"
            f" {ran.communication or 'none'}.{wider}"
        )
    warnings = dict.fromkeys(text for run in result.runs for text in run.warnings)
    return [*said, *(f"warning: {name}: {text}" for text in warnings)]


def _total(result: RecipeResult | None, field: str) -> float:
    energy: EnergyProxy | None = None if result is None else result.energy
    return math.nan if result is None or energy is None else result.mean_steps * float(getattr(energy, field))


def _number(value: float, digits: int) -> str:
    return "-" if math.isnan(value) else "invalid" if math.isinf(value) else f"{value:.{digits}f}"


def _ratio(row: RankedResult, part: int) -> str:
    return "-" if row.ratio is None or math.isnan(row.ratio[part]) else f"{row.ratio[part]:.3f}"
