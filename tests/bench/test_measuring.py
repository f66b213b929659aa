"""Runs until a target: what stops them, what is on record, and kills that change no result."""

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest

from fewbits.bench import Benchmark, benchmark, measuring, run_benchmark
from fewbits.bench import journal as journal_module
from fewbits.bench.journal import NAME
from fewbits.bench.measuring import is_reached
from fewbits.errors import ArgumentError, DataError
from fewbits.files import load_file
from fewbits.records import BenchmarkReport, BenchmarkRun, Evaluation, RanPrecision
from fewbits.train import PrecisionObserver, Step, Trainer, launch
from fewbits.train.checkpoint import CHECKPOINT
from tests.bench import small
from tests.bench.test_journal import Clock
from tests.copies import kill_after

POINTS = small.benchmark()
WIDE = "tests.bench.small_task-fp32-seed0"


def measured(given: Benchmark, recipes: list[str], folder: Path, *, resume: bool = False) -> BenchmarkReport:
    report = run_benchmark(given, recipes, folder, resume=resume)
    assert report is not None
    return report


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> BenchmarkReport:
    return measured(POINTS, ["fp32", "mxfp6"], tmp_path_factory.mktemp("runs"))


def test_each_run_stops_at_the_first_evaluation_that_is_good_enough(report: BenchmarkReport) -> None:
    assert [r.recipe for r in report.recipes] == ["fp32", "mxfp6"]
    for result in report.recipes:
        assert [run.seed for run in result.runs] == [0, 1, 2]
        for run in result.runs:
            assert run.reached
            assert [e.step for e in run.evaluations] == list(range(10, run.steps + 1, 10))
            assert run.evaluations[-1].value <= 0.3
            assert all(e.value > 0.3 for e in run.evaluations[:-1])
            times = [t for e in run.evaluations for t in (e.began, e.seconds)]
            assert times == sorted(times)
            assert run.seconds == times[-1]
        assert len({run.steps for run in result.runs}) > 1


def test_the_result_is_that_of_the_rules(report: BenchmarkReport) -> None:
    for result in report.recipes:
        assert result.seconds == sorted(run.seconds for run in result.runs)[1]
        assert result.samples == 16 * sorted(run.steps for run in result.runs)[1]
    ratio = report.recipes[1].log_ratio
    assert ratio is not None
    logs = [
        math.log(a.seconds / b.seconds)
        for a, b in zip(report.recipes[1].runs, report.recipes[0].runs, strict=True)
    ]
    assert ratio.mean == pytest.approx(sum(logs) / 3)
    assert ratio.low < ratio.mean < ratio.high


def test_what_ran_is_on_record(report: BenchmarkReport) -> None:
    linear = [{run.precision.linear for run in result.runs} for result in report.recipes]
    assert linear == [{"fp32"}, {"mxfp6_e3m2"}]


def test_a_target_out_of_reach_is_missed_and_two_misses_are_no_result(tmp_path: Path) -> None:
    far = replace(POINTS, target=1e-9, steps=20)
    result = measured(far, ["fp32"], tmp_path).recipes[0]
    assert result.converged == 0
    assert [run.steps for run in result.runs] == [20, 20, 20]
    assert result.seconds == result.samples == math.inf
    assert result.runs[0].seconds_to_target == math.inf


def test_a_broken_model_is_never_good_enough() -> None:
    assert not is_reached(math.nan, 0.5, lower_is_better=True)
    assert not is_reached(math.nan, 0.5, lower_is_better=False)
    assert is_reached(0.5, 0.5, lower_is_better=True)
    assert not is_reached(0.4, 0.5, lower_is_better=False)


class _Killed(Exception):  # noqa: N818
    """Stands for a kill between two steps."""


def _killed_at(step: int) -> Callable[..., None]:
    def show(what: str, done: float, total: float, note: str = "") -> None:
        if done == step:
            raise _Killed

    return show


def _ticking(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Make each step take a second of a clock that nothing else moves."""
    clock = Clock()
    monkeypatch.setattr(journal_module, "time", clock)
    step = measuring._Judge.step

    def slow(self: measuring._Judge, trainer: Trainer) -> Step:
        clock.seconds += 1
        return step(self, trainer)

    monkeypatch.setattr(measuring._Judge, "step", slow)
    return clock


def test_a_kill_costs_what_it_undid_and_changes_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _ticking(monkeypatch)
    whole = measured(POINTS, ["fp32"], tmp_path / "whole").recipes[0].runs[0]
    assert whole.steps > 60
    assert whole.seconds == whole.steps
    with pytest.raises(_Killed):
        run_benchmark(POINTS, ["fp32"], tmp_path / "parts", progress=_killed_at(57))
    with pytest.raises(_Killed):  # the checkpoint is that of step 50
        run_benchmark(POINTS, ["fp32"], tmp_path / "parts", resume=True, progress=_killed_at(53))
    parts = measured(POINTS, ["fp32"], tmp_path / "parts", resume=True).recipes[0].runs[0]
    assert parts.seconds == whole.seconds + 7 + 3
    assert parts.resumed == 2
    assert parts.steps == whole.steps
    assert [(e.step, e.value) for e in parts.evaluations] == [(e.step, e.value) for e in whole.evaluations]
    ends = [load_file(tmp_path / part / WIDE / CHECKPOINT) for part in ("whole", "parts")]
    assert all(ends[0][name].equal(ends[1][name]) for name in ends[0] if name.startswith("model/"))


def test_a_finished_run_is_read_and_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short = replace(POINTS, target=1.0)  # which the first evaluation reaches
    first = measured(short, ["fp32"], tmp_path)
    monkeypatch.setattr(measuring, "run", None)  # would be called
    assert measured(short, ["fp32"], tmp_path, resume=True) == first
    with pytest.raises(ArgumentError, match="go on with it by --resume"):
        run_benchmark(short, ["fp32"], tmp_path)
    with pytest.raises(ArgumentError, match="is of a run with benchmark="):
        run_benchmark(replace(short, target=0.31), ["fp32"], tmp_path, resume=True)


@pytest.mark.parametrize("value", [9.0, 0.1])
def test_a_finished_run_reached_its_target_where_its_evaluations_say_so(tmp_path: Path, value: float) -> None:
    measured(small.easy(), ["fp32"], tmp_path)
    path = tmp_path / WIDE / NAME
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    found = [line["evaluation"] for line in lines if line["event"] == "evaluation"]
    found[0 if value < 0.6 else -1]["value"] = value  # good enough long before, or never
    assert len(found) > 1
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(DataError, match="is no journal of a benchmark"):
        measured(small.easy(), ["fp32"], tmp_path, resume=True)


def test_a_finished_run_without_its_journal_has_no_time(tmp_path: Path) -> None:
    far = replace(POINTS, target=1e-9, steps=20)
    measured(far, ["fp32"], tmp_path)
    path = tmp_path / WIDE / NAME
    whole = path.read_bytes()
    for text in (b"", whole[: whole.rfind(b'{"event": "stop"')]):
        path.write_bytes(text)
        with pytest.raises(DataError, match="its time is lost; make the run again"):
            measured(far, ["fp32"], tmp_path, resume=True)


def _told(folder: Path, steps: Connection) -> None:
    run_benchmark(POINTS, ["fp32"], folder, progress=lambda *_: steps.send(None))


def test_a_killed_process_leaves_its_time_behind(tmp_path: Path) -> None:
    kill_after(55, _told, tmp_path)
    journal = tmp_path / WIDE / NAME
    before = json.loads(journal.read_text().split("\n")[-2])
    began = time.monotonic()
    run = measured(POINTS, ["fp32"], tmp_path, resume=True).recipes[0].runs[0]
    assert before["seconds"] < run.seconds < before["seconds"] + time.monotonic() - began
    assert run.resumed == 1
    assert run.reached


def test_the_clock_runs_before_the_data_is_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, task = _ticking(monkeypatch), small.task

    def slow() -> object:
        clock.seconds += 1000
        return task()

    monkeypatch.setattr("tests.bench.small.task", slow)
    run = measured(POINTS, ["fp32"], tmp_path).recipes[0].runs[0]
    assert run.seconds == 1000 + run.steps


def test_libraries_are_loaded_before_the_clock_runs(tmp_path: Path) -> None:
    program = (
        "import dataclasses, sys; from pathlib import Path; from tests.bench import small;"
        "from fewbits.bench import measuring; known = []; run = measuring.run;"
        "measuring.run = lambda *a, **k: (known.append(set(sys.modules)), run(*a, **k));"
        "short = dataclasses.replace(small.benchmark(), steps=10, target=0.0);"
        "measuring.run_benchmark(short, ['mxfp6'], Path(sys.argv[1]));"
        "print(len(known[1] - known[0]))"
    )
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True, cwd=root
    )
    assert (
        int(done.stdout) < 60
    )  # modules of the standard library and our own; PyTorch's compiler has hundreds


@pytest.mark.parametrize(
    ("seeds", "said"),
    [
        ((0, 1, 0), "seed 0 is repeated"),
        ((0, 1), "2 runs where a result of points takes 3"),
        ((0, 1, 9), "9 is not"),
    ],
)
def test_seeds_are_distinct_allowed_and_enough(tmp_path: Path, seeds: tuple[int, ...], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        run_benchmark(replace(POINTS, seeds=(0, 1, 2)), ["fp32"], tmp_path, seeds=seeds)
    assert not list(tmp_path.iterdir())


def test_a_recipe_that_claims_what_does_not_run_is_refused_at_its_first_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Wide(PrecisionObserver):
        def found(self, communication: str | None = None) -> RanPrecision:
            return RanPrecision("fp32", None, communication)

    monkeypatch.setattr(measuring, "PrecisionObserver", Wide)
    with pytest.raises(ArgumentError, match="mxfp6 claims products in mxfp6_e3m2, and what ran had fp32"):
        run_benchmark(POINTS, ["mxfp6"], tmp_path)


def test_convergence_faster_than_the_reference_is_seen(report: BenchmarkReport) -> None:
    def runs(recipe: str, steps: list[int]) -> list[BenchmarkRun]:
        ran = RanPrecision("fp32", None, None)
        return [
            BenchmarkRun(recipe, seed, True, 1.0, n, (Evaluation(n, 0.9, 1.0, 0.2),), ran, 0, 1)
            for seed, n in enumerate(steps)
        ]

    wide = runs("fp32", [100, 110, 105, 103, 108, 104])
    judged = partial(measuring._result, POINTS, small.task(), "mxfp6", baseline=wide, bits_sent=0.0)
    assert judged(runs("mxfp6", [50, 52, 51, 53, 49])).too_fast
    assert judged(runs("mxfp6", [103, 110, 105, 100, 108])).too_fast is False
    assert judged(runs("mxfp6", [50, 52, 51]), baseline=None).too_fast is None
    assert judged(runs("mxfp6", [50, 52, 51, 53, 49])).log_ratio is None
    assert judged(runs("mxfp6", [103, 110, 105, 100, 108])).log_ratio is not None
    few = judged(runs("mxfp6", [50, 52, 51]), baseline=wide[:5])
    assert (few.too_fast, few.untested) == (
        None,
        "5 runs of fp32 where the test takes 6, twice as many as a result",
    )
    equal = judged(runs("mxfp6", [50, 52, 51]), baseline=runs("fp32", [90, 100, 100, 100, 100, 110]))
    assert equal.too_fast is None
    assert "tell no deviation" in equal.untested
    missed = [replace(wide[0], reached=False), *wide[1:]]
    assert "a run of fp32 missed the target" in judged(runs("mxfp6", [50, 52, 51]), baseline=missed).untested
    invalid = [replace(run, reached=run.seed > 1) for run in runs("mxfp6", [100, 110, 105])]
    assert judged(invalid).log_ratio is None
    twice = [replace(run, reached=run.seed > 1) for run in wide]
    assert judged(runs("mxfp6", [103, 110, 105]), baseline=twice[:3]).log_ratio is None


def test_formats_that_change_behind_the_first_step_are_on_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = []
    real = PrecisionObserver.found

    def found(self: PrecisionObserver, communication: str | None = None) -> RanPrecision:
        seen.append(real(self, communication))
        return seen[-1] if len(seen) % 4 else replace(seen[-1], wide_layers=("head",))

    monkeypatch.setattr(PrecisionObserver, "found", found)
    far = replace(POINTS, target=1e-9, steps=30)
    result = measured(far, ["fp32"], tmp_path).recipes[0]
    assert len(seen) == 3 * 4  # the first step, those behind two evaluations, and the last
    assert [run.precision.wide_layers for run in result.runs] == [("head",)] * 3


def test_a_recipe_that_stops_in_its_warm_up_says_that_its_format_never_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def found(self: PrecisionObserver, communication: str | None = None) -> RanPrecision:
        return RanPrecision("fp32", None, communication)

    monkeypatch.setattr(PrecisionObserver, "found", found)
    run = measured(replace(POINTS, steps=10, target=0.0), ["posit8"], tmp_path).recipes[0].runs[0]
    assert "which never ran: products were in fp32" in run.warnings[-1]


def _two(folder: Path) -> None:

    report = run_benchmark(replace(POINTS, steps=20, target=0.0), ["fp32"], folder, codec="int8_256")
    if report is not None:
        run = report.recipes[0].runs[0]
        (folder / "said.json").write_text(
            json.dumps([report.processes, run.precision.communication, run.steps, len(run.evaluations)])
        )


@pytest.mark.usefixtures("copied_processes")
def test_two_processes_share_a_run_and_one_tells_of_it(tmp_path: Path) -> None:
    launch.start(2, partial(_two, tmp_path))
    assert json.loads((tmp_path / "said.json").read_text()) == [2, "int8_256", 20, 2]


def test_benchmarks_have_names_or_are_ones_own() -> None:
    assert benchmark("tests.bench.small:benchmark") == POINTS
    for name, said in {
        "digit": "there is no benchmark 'digit'; expected digits, mnist10k, bytes, lstm",
        "gone:load": "there is no module 'gone' in .*; write my_benchmarks:load",
        "tests.bench.small:nothing": "does not return a fewbits.bench.Benchmark",
        "tests.bench.small:missing": "no function missing; write one that returns a fewbits.bench.Benchmark",
        "tests.bench.small:": "is not MODULE:FUNCTION; write my_benchmarks:load",
    }.items():
        with pytest.raises(ArgumentError, match=said):
            benchmark(name)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"target": math.nan}, "expected a finite number"), ({"runs": 2}, "expected 3 or more"),
        ({"evaluate_every": 10.5}, "evaluate_every=10.5 of benchmark 'points' is float; expected int"),
        ({"target": "95"}, "target='95' of benchmark 'points' is str; expected a number"),
        ({"steps": True}, "is bool; expected int"), ({"seeds": (0.5,)}, "expected a tuple of integers"),
        ({"seeds": [1, 2]}, "is list; expected tuple"), ({"lr": -1.0}, "expected a number above 0"),
        ({"name": None}, "is NoneType; expected str"), ({"steps": 0}, "expected 1 or more"),
        ({"seeds": (1, 1)}, "seed 1 is repeated"),
    ],
)  # fmt: skip
def test_a_benchmark_that_measures_nothing_is_refused(change: Any, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        replace(POINTS, **change)
