"""Logs of a real benchmark pass the official checker; each mutation of one is refused."""

import importlib.util
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fewbits.bench import benchmark, check_loggable, check_logs, run_benchmark, write_logs
from fewbits.bench.checking import official_problems
from fewbits.bench.log_rules import file_problems, folder_problems, read_config, read_log
from fewbits.bench.logs import CONFIG
from fewbits.errors import ArgumentError, DataError, MissingDependencyError
from fewbits.records import BenchmarkReport, RanPrecision

Lines = list[dict[str, Any]]
TOKEN = ":::MLLOG "


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> BenchmarkReport:
    """Five real runs of digits."""
    found = run_benchmark(benchmark("digits"), ["fp32"], tmp_path_factory.mktemp("digits"))
    assert found is not None
    return found


@pytest.fixture(scope="module")
def _logs(report: BenchmarkReport, tmp_path_factory: pytest.TempPathFactory) -> Path:
    (folder,) = write_logs(report, tmp_path_factory.mktemp("logs"))
    return folder


@pytest.fixture
def logs(_logs: Path, tmp_path: Path) -> Path:
    """The folder of logs, of one's own."""
    return Path(shutil.copytree(_logs, tmp_path / "fp32"))


def lines(path: Path) -> Lines:
    return [json.loads(text.removeprefix(TOKEN)) for text in path.read_text().splitlines()]


def rewrite(path: Path, change: Callable[[Lines], Lines | None]) -> None:
    found = lines(path)
    changed = change(found)
    path.write_text("".join(TOKEN + json.dumps(line) + "\n" for line in (changed or found)))


def of(found: Lines, key: str) -> dict[str, Any]:
    return next(line for line in found if line["key"] == key)


def ours(folder: Path) -> str:
    config = read_config(folder / CONFIG)
    read = [read_log(path) for path in sorted(folder.glob("result_*.txt"))]
    return "\n".join(
        [*folder_problems(read, config), *(p for log in read for p in file_problems(log, config))]
    )


def theirs(folder: Path, name: str = "result_0.txt") -> str:
    config = read_config(folder / CONFIG)
    return "\n".join(official_problems(folder / name, read_log(folder / name), config))


def test_five_runs_of_digits_pass_the_official_checker_and_ours(logs: Path, report: BenchmarkReport) -> None:
    assert all(run.reached for run in report.recipes[0].runs)
    (check,) = check_logs(logs.parent)
    assert check.problems == ()
    assert check.official.endswith("ruleset 6.1.0")
    assert check.files == tuple(f"result_{i}.txt" for i in range(5))


def test_times_are_those_of_the_runs(logs: Path, report: BenchmarkReport) -> None:
    for i, run in enumerate(report.recipes[0].runs):
        found = lines(logs / f"result_{i}.txt")
        began, ended = of(found, "run_start")["time_ms"], of(found, "run_stop")["time_ms"]
        assert ended - began == pytest.approx(1000 * run.seconds, abs=1)
        assert of(found, "seed")["value"] == run.seed
        assert [x["value"] for x in found if x["key"] == "eval_accuracy"] == [
            e.value for e in run.evaluations
        ]
        samples = [x["metadata"]["samples_count"] for x in found if x["key"] == "eval_stop"]
        assert samples == [32 * e.step for e in run.evaluations]
        assert str(Path.home()) not in (logs / f"result_{i}.txt").read_text()


# The eight mutations, each with words of what is said; None: the official checker does not look there.


def no_precision(found: Lines) -> Lines:
    return [x for x in found if x["key"] != "lowest_numerical_precision_in_comm"]


def no_parallelism(found: Lines) -> None:
    of(found, "tensor_parallelism")["value"] = 0


def target_missed(found: Lines) -> None:
    for line in found:
        if line["key"] == "eval_accuracy":
            line["value"] = 94.9


def no_status(found: Lines) -> None:
    del of(found, "run_stop")["metadata"]["status"]


def wrong_order(found: Lines) -> Lines:
    places = {line["key"]: i for i, line in enumerate(found)}
    found.insert(places["init_start"], found.pop(places["run_start"]))
    return found


def unknown_precision(found: Lines) -> None:
    of(found, "lowest_numerical_precision_in_linear")["value"] = "posit8"


def repeated_seed(found: Lines) -> None:
    of(found, "seed")["value"] = 1


MUTATIONS: dict[Callable[[Lines], Lines | None], tuple[str, str | None]] = {
    no_precision: ("in_comm is there 0 times", "occurrence of 'lowest_numerical_precision_in_comm'"),
    no_parallelism: ("tensor_parallelism is 0", "CHECK for 'tensor_parallelism' failed"),
    target_missed: ("last eval_accuracy 94.9 misses the target 95", "Failed checks for eval_accuracy"),
    no_status: ("run_stop has the status None", "CHECK for 'run_stop' failed"),
    wrong_order: ("is run_start where init_start is expected", "CHECK for 'run_start' failed"),
    unknown_precision: ("'posit8', which is not in the list", "CHECK for 'lowest_numerical_precision_in_lin"),
    repeated_seed: ("seed 1 is repeated", None),
}  # fmt: skip


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: m.__name__)
def test_a_mutation_is_refused(mutation: Callable[[Lines], Lines | None], logs: Path) -> None:
    said, officially = MUTATIONS[mutation]
    rewrite(logs / "result_0.txt", mutation)
    assert said in ours(logs)
    if officially is None:
        assert theirs(logs) == ""
    else:
        assert officially in theirs(logs)


def aborted(found: Lines) -> None:
    target_missed(found)
    of(found, "run_stop")["metadata"]["status"] = "aborted"


def test_one_run_that_does_not_converge_may_be_and_two_may_not(logs: Path) -> None:
    rewrite(logs / "result_0.txt", aborted)
    assert ours(logs) == theirs(logs) == ""
    rewrite(logs / "result_3.txt", aborted)
    assert "2 runs did not converge (result_0.txt, result_3.txt); a result may have one" in ours(logs)
    (check,) = check_logs(logs)
    assert len(check.problems) == 1


def claims_less(found: Lines) -> None:
    of(found, "lowest_numerical_precision_in_linear")["value"] = "mxfp6"


def another_batch(found: Lines) -> None:
    of(found, "global_batch_size")["value"] = 64


def backwards(found: Lines) -> None:
    of(found, "eval_stop")["time_ms"] -= 10**6


def goes_on(found: Lines) -> None:
    of(found, "eval_accuracy")["value"] = 99.0


def success_untold(found: Lines) -> None:
    of(found, "run_stop")["metadata"]["status"] = "aborted"


@pytest.mark.parametrize(
    ("mutation", "said"),
    [
        (claims_less, "lowest_numerical_precision_in_linear claims mxfp6, and fp32 ran"),
        (another_batch, "global_batch_size is 64, and 32 ran"),
        (backwards, "eval_stop is earlier than eval_accuracy before it"),
        (goes_on, "the run goes on, or is aborted, behind an eval_accuracy that reaches the target 95"),
        (success_untold, "the run goes on, or is aborted"),
    ],
    ids=lambda v: "" if isinstance(v, str) else v.__name__,
)
def test_our_rules_look_where_the_official_ones_do_not(
    mutation: Callable[[Lines], None], said: str, logs: Path
) -> None:
    rewrite(logs / "result_0.txt", mutation)
    assert said in ours(logs)


def test_a_run_that_is_left_out_is_missed(logs: Path) -> None:
    (logs / "result_2.txt").unlink()
    assert "4 runs where a result takes 5" in ours(logs)


def test_a_broken_line_is_named(logs: Path) -> None:
    text = (logs / "result_1.txt").read_text()
    (logs / "result_1.txt").write_text("noise\n" + text + TOKEN + '{"key": 3\n')
    assert f"result_1.txt: line {text.count(chr(10)) + 2} is not in the format" in ours(logs)


def test_a_record_that_was_changed_is_held_to_the_benchmark(logs: Path) -> None:
    config = json.loads((logs / CONFIG).read_text())
    (logs / CONFIG).write_text(json.dumps({**config, "target": 50.0}))
    assert "target is 50.0, and that of digits is 95.0" in ours(logs)


def test_without_a_record_nothing_is_believed(logs: Path) -> None:
    config = json.loads((logs / CONFIG).read_text())
    (logs / CONFIG).write_text(json.dumps({k: v for k, v in config.items() if k != "precision"}))
    (check,) = check_logs(logs)
    assert "what ran is not known" in check.problems[0]
    (logs / CONFIG).unlink()
    (check,) = check_logs(logs)
    assert "config.json cannot be read, so that what ran is not known" in check.problems[0]


def test_an_empty_folder_has_no_logs(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no logs"):
        check_logs(tmp_path)


def test_without_the_official_checker_ours_looks_alone(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    rewrite(logs / "result_0.txt", repeated_seed)
    (check,) = check_logs(logs)
    assert check.official == ""
    assert "seed 1 is repeated; each run needs a seed of its own" in check.problems
    with pytest.raises(MissingDependencyError, match=r"pip install 'fewbits\[bench\]'"):
        check_loggable()


@pytest.mark.parametrize("name", ["posit8", "posit16", "mx9", "fixed16"])
def test_a_recipe_without_a_name_in_the_list_is_refused_before_it_runs(name: str) -> None:
    check_loggable(["fp32", "mxfp6"])
    with pytest.raises(ArgumentError, match="has no name in the list of the rules"):
        check_loggable([name])


def test_what_did_not_run_cannot_be_logged(report: BenchmarkReport, tmp_path: Path) -> None:
    (result,) = report.recipes
    ran = RanPrecision("mxfp4", None, None)
    other = replace(result, runs=tuple(replace(run, precision=ran) for run in result.runs))
    with pytest.raises(ArgumentError, match="fp32 claims products in fp32, and what ran had mxfp4"):
        write_logs(replace(report, recipes=(other,)), tmp_path)
    assert not list(tmp_path.iterdir())


def test_what_ran_is_disclosed_with_layers_that_were_wider(report: BenchmarkReport, tmp_path: Path) -> None:
    (result,) = report.recipes
    ran = RanPrecision("mxfp6_e3m2", "bf16", "int8_256", ("head",))
    runs = tuple(replace(run, recipe="mxfp6", precision=ran) for run in result.runs)
    narrow = replace(report, recipes=(replace(result, recipe="mxfp6", runs=runs),), processes=2)
    (tmp_path / "mxfp6").mkdir()
    (tmp_path / "mxfp6" / "result_7.txt").write_text("of another report")
    (folder,) = write_logs(narrow, tmp_path)
    found = lines(folder / "result_0.txt")
    key = "lowest_numerical_precision_in_"
    assert [of(found, key + part)["value"] for part in ("linear", "attn", "comm")] == [
        "mxfp6",
        "bfloat16",
        "int8",
    ]
    assert of(found, f"{key}linear")["metadata"]["wider"] == ["head"]
    assert of(found, f"{key}comm")["metadata"]["ran"] == "int8_256"
    assert of(found, "micro_batch_size")["value"] == 16
    (check,) = check_logs(folder)
    assert check.problems == ()
