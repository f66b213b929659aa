"""Logs of a real benchmark pass the official checker; each mutation of one is refused."""

import importlib.util
import json
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fewbits.bench import benchmark, check_loggable, check_logs, checking, run_benchmark, write_logs
from fewbits.bench import logs as logs_module
from fewbits.bench.checking import official_problems
from fewbits.bench.log_rules import file_problems, folder_problems, read_config, read_log
from fewbits.bench.logs import CONFIG
from fewbits.errors import ArgumentError, DataError, MissingDependencyError
from fewbits.records import BenchmarkReport, BenchmarkRun, RanPrecision, RecipeResult

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


def on_record(logs: Path, change: Callable[[dict[str, Any]], None]) -> None:
    config = json.loads((logs / CONFIG).read_text())
    change(config)
    (logs / CONFIG).write_text(json.dumps(config))


def missed(logs: Path, seed: int) -> None:
    """Let the log and the record of a run say that it missed its target."""

    def change(config: dict[str, Any]) -> None:
        config["ran"][seed]["status"] = "aborted"
        for evaluation in config["ran"][seed]["evaluations"]:
            evaluation["value"] = 94.9

    on_record(logs, change)
    rewrite(logs / f"result_{seed}.txt", aborted)


def test_one_run_that_does_not_converge_may_be_and_two_may_not(logs: Path) -> None:
    missed(logs, 0)
    assert ours(logs) == theirs(logs) == ""
    missed(logs, 3)
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


@pytest.mark.parametrize("lower", [True, False], ids=["lower is better", "higher is better"])
def test_a_metric_at_its_target_has_reached_it(lower: bool, logs: Path) -> None:
    def ends_there(found: Lines) -> None:
        *before, last = [line for line in found if line["key"] == "eval_accuracy"]
        for line in before:
            line["value"] = 99.0 if lower else 90.0
        last["value"] = 95.0

    on_record(logs, lambda config: config.update(lower_is_better=lower, target=95.0))
    for other in range(1, 5):
        (logs / f"result_{other}.txt").unlink()
    rewrite(logs / "result_0.txt", ends_there)
    assert "the target" not in ours(logs)
    rewrite(logs / "result_0.txt", success_untold)
    assert "behind an eval_accuracy that reaches the target 95" in ours(logs)


def faster(found: Lines) -> None:
    begin = of(found, "run_start")["time_ms"]
    for line in found:
        line["time_ms"] = begin + (line["time_ms"] - begin) // 10


def late_start(found: Lines) -> None:
    for line in found[:-1]:
        line["time_ms"] = found[-1]["time_ms"] - 1


def at(time_ms: float) -> Callable[[Lines], None]:
    def change(found: Lines) -> None:
        for line in found:
            line["time_ms"] = time_ms

    return change


def fewer_evaluations(found: Lines) -> Lines:
    blocks = [i for i, line in enumerate(found) if line["key"] == "block_start"]
    return found[: blocks[0]] + found[blocks[-1] :]


def samples(make: Callable[[int], int]) -> Callable[[Lines], None]:
    def change(found: Lines) -> None:
        for i, line in enumerate(found):
            if "samples_count" in line["metadata"]:
                line["metadata"]["samples_count"] = make(i)

    return change


def last_accuracy(value: float) -> Callable[[Lines], None]:
    def change(found: Lines) -> None:
        [line for line in found if line["key"] == "eval_accuracy"][-1]["value"] = value

    return change


def put(key: str, value: object) -> Callable[[Lines], None]:
    def change(found: Lines) -> None:
        of(found, key)["value"] = value

    return change


def remark(key: str, name: str, value: object = None) -> Callable[[Lines], None]:
    def change(found: Lines) -> None:
        metadata = of(found, key)["metadata"]
        metadata.pop(name, None)
        if value is not None:
            metadata[name] = value

    return change


def more_lines(found: Lines) -> Lines:
    return [*found, {**found[-1], "key": "eval_result", "value": 99}]


LINEAR = "lowest_numerical_precision_in_linear"
SINGLE: dict[str, tuple[Callable[[Lines], Lines | None], str]] = {
    "durations / 10": (faster, "run_stop is"),
    "run_start before run_stop": (late_start, "run_start is"),
    "time 0": (at(0), "run_start is"),
    "time NaN": (at(float("nan")), "line 1 is not in the format"),
    "evaluations deleted": (fewer_evaluations, "eval_start is there 1 times, and was"),
    "samples constant": (samples(lambda i: 32), "samples_count of block_start is 32; expected 0"),
    "samples falling": (samples(lambda i: 10**6 - i), "samples_count of block_start"),
    "samples too many": (samples(lambda i: 10**6 * i), "samples_count of block_start"),
    "caches not cleared": (put("cache_clear", False), "cache_clear is False; expected True"),
    "caches untold": (remark("cache_clear", "kept"), "cache_clear says kept None"),
    "accuracy 4000": (last_accuracy(4000.0), "4000.0], and ["),
    "accuracy infinite": (last_accuracy(float("inf")), "eval_accuracy is inf; expected a finite number"),
    "seed 0.0": (put("seed", 0.0), "seed is 0.0; expected an integer"),
    "seed True": (put("seed", True), "seed is True; expected an integer"),
    "optimizer": (put("opt_name", "sgd"), "opt_name is 'sgd', and 'adamw' ran"),
    "warm-up": (put("opt_learning_rate_warmup_steps", -3), "warmup_steps is -3, and 40 ran"),
    "decay": (put("opt_learning_rate_decay_steps", 1), "opt_learning_rate_decay_steps is 1, and 360 ran"),
    "schedule": (put("opt_learning_rate_decay_schedule", None), "decay_schedule is None"),
    "micro-batch": (put("micro_batch_size", 7), "gradient_accumulation_steps x processes is 7"),
    "accumulation": (put("gradient_accumulation_steps", 9), "gradient_accumulation_steps is 9; expected 1"),
    "parallelism": (put("tensor_parallelism", 64), "tensor_parallelism is 64; expected 1"),
    "platform": (put("submission_platform", "fast"), "submission_platform is 'fast'"),
    "organization": (put("submission_org", "X"), "submission_org is 'X'; expected 'none: not a submission'"),
    "division": (put("submission_division", "closed"), "submission_division is 'closed'; expected 'open'"),
    "resumed untold": (remark("run_stop", "resumed"), "run_stop has resumed=None, and 0 is on record"),
    "resumed": (remark("run_stop", "resumed", 3), "run_stop has resumed=3"),
    "ran untold": (remark(LINEAR, "ran"), "remark ran=None, and 'fp32' ran"),
    "ran": (remark(LINEAR, "ran", "mxfp4"), "remark ran='mxfp4', and 'fp32' ran"),
    "wider": (remark(LINEAR, "wider", ["head"]), "remark wider=['head'], and [] were wider"),
    "lines behind the end": (more_lines, "eval_result is behind run_stop, which ends a log"),
    "accuracy a text": (put("eval_accuracy", "94"), "eval_accuracy is '94'; expected a finite number"),
    "accuracy null": (put("eval_accuracy", None), "eval_accuracy is None; expected a finite number"),
    "seed a list": (put("seed", [0]), "seed is [0]; expected an integer"),
    "precision a list": (put(LINEAR, ["fp32"]), "is ['fp32'], which is not in the list"),
    "status a list": (remark("run_stop", "status", [1]), "run_stop has the status [1]"),
    "key a list": (lambda found: found[3].update(key=["a"]), "line 4 is not in the format"),
    "metadata a list": (lambda found: found[3].update(metadata=[1]), "line 4 is not in the format"),
    "time beyond floats": (lambda found: found[3].update(time_ms=10**400), "line 4 is not in the format"),
}  # fmt: skip


@pytest.mark.parametrize("name", SINGLE)
def test_a_single_change_is_found_by_our_rules(name: str, logs: Path) -> None:
    change, said = SINGLE[name]
    rewrite(logs / "result_0.txt", change)
    assert said in ours(logs)
    assert "result_1.txt" not in ours(logs)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("target", "95", "target='95', which is not of its type"), ("runs", "5", "runs='5', which is not"),
        ("runs", True, "runs=True, which is not"), ("lr", float("nan"), "lr=nan; expected a finite number"),
        ("ran", [3], "ran[0] has no seed"), ("ran", None, "ran=None, which is not of its type"),
        ("evaluate_every", 0, "evaluate_every=0; expected 1 or more"), ("logged", [], "logged=[], which"),
    ],
)  # fmt: skip
def test_a_record_of_other_types_is_a_problem(field: str, value: object, said: str, logs: Path) -> None:
    on_record(logs, lambda config: config.update({field: value}))
    (check,) = check_logs(logs)
    assert said in check.problems[0]


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("linear", "foo", "config.json: ran[1] has linear='foo'"), ("attention", 3, "attention=3, which"),
        ("linear", "posit8_1", "has no name in the list"),
        ("evaluations", [{"step": "x"}], "step='x', which"),
    ],
)  # fmt: skip
def test_a_run_on_record_of_other_types_is_a_problem(
    field: str, value: object, said: str, logs: Path
) -> None:
    on_record(logs, lambda config: config["ran"][1].update({field: value}))
    (check,) = check_logs(logs)
    assert said in check.problems[0]


def test_one_bad_file_hides_no_other(logs: Path) -> None:
    (logs / CONFIG).write_text("[" * 100_000)
    rewrite(logs / "result_0.txt", lambda found: found[3].update(key=["a"]))
    rewrite(logs / "result_2.txt", backwards)
    (logs / "result_4.txt").unlink()
    (logs / "result_4.txt").mkdir()
    other = logs.parent / "other"
    shutil.copytree(logs, other)
    for check in check_logs(logs.parent):
        said = "\n".join(check.problems)
        assert "config.json cannot be read" in said
        assert "result_0.txt: line 4 is not in the format" in said
        assert "result_2.txt: line" in said
        assert "result_4.txt cannot be read" in said
    assert len(check_logs(logs.parent)) == 2


def test_an_official_checker_that_cannot_look_is_told(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired("checker", 120)

    with monkeypatch.context() as patch:
        patch.setattr(subprocess, "run", slow)
        (check,) = check_logs(logs)
        assert check.problems == tuple(
            f"result_{i}.txt: the official checker did not end in 120 seconds" for i in range(5)
        )
    monkeypatch.setattr(checking, "RULESET", "7.0.0")
    rewrite(logs / "result_1.txt", put("seed", 0))
    (check,) = check_logs(logs)
    assert "seed 0 is repeated" in check.problems[0]
    assert sum("the official checker did not look" in text for text in check.problems) == 5


def test_a_run_that_broke_may_say_so_and_only_where_it_did_not_succeed(logs: Path) -> None:
    missed(logs, 0)
    on_record(logs, lambda config: config["ran"][0]["evaluations"][0].update(value=float("nan")))
    rewrite(logs / "result_0.txt", put("eval_accuracy", float("nan")))
    assert ours(logs) == ""


def test_a_run_that_is_left_out_is_missed(logs: Path) -> None:
    (logs / "result_2.txt").unlink()
    assert "4 runs where a result takes 5" in ours(logs)
    assert "logs of the seeds 0, 1, 3, 4, and 0, 1, 2, 3, 4 ran" in ours(logs)


def test_runs_cannot_be_chosen_from_more_than_a_result_takes(report: BenchmarkReport, tmp_path: Path) -> None:
    (result,) = report.recipes
    more = (*result.runs, *(replace(run, seed=run.seed + 5) for run in result.runs[:2]))
    (folder,) = write_logs(replace(report, recipes=(replace(result, runs=more),)), tmp_path)
    assert ours(folder) == ""
    for i in (0, 3):
        (folder / f"result_{i}.txt").unlink()
    assert "logs of the seeds 1, 2, 4, 5, 6, and 0, 1, 2, 3, 4, 5, 6 ran; all runs belong" in ours(folder)


def test_a_log_cannot_stand_for_another_run(logs: Path) -> None:
    found = lines(logs / "result_2.txt")
    of(found, "seed")["value"] = 0
    (logs / "result_0.txt").write_text("".join(TOKEN + json.dumps(line) + "\n" for line in found))
    assert "result_0.txt: run_start is" in ours(logs)


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
    (logs / CONFIG).write_text(json.dumps({k: v for k, v in config.items() if k != "ran"}))
    (check,) = check_logs(logs)
    assert "what ran is not known" in check.problems[0]
    (logs / CONFIG).unlink()
    (check,) = check_logs(logs)
    assert "config.json cannot be read, so that what ran is not known" in check.problems[0]
    assert (check.official, check.reason) == ("", "needs config.json, which cannot be read")


def test_an_empty_folder_has_no_logs(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds no logs"):
        check_logs(tmp_path)


def test_without_the_official_checker_ours_looks_alone(logs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    rewrite(logs / "result_0.txt", repeated_seed)
    (check,) = check_logs(logs)
    assert (check.official, check.reason) == ("", "comes with pip install 'fewbits[bench]'")
    assert "seed 1 is repeated; each run needs a seed of its own" in check.problems
    with pytest.raises(MissingDependencyError, match=r"pip install 'fewbits\[bench\]'"):
        check_loggable()


@pytest.mark.parametrize("name", ["posit8", "posit16", "mx9", "fixed16"])
def test_a_recipe_without_a_name_in_the_list_is_refused_before_it_runs(name: str) -> None:
    check_loggable(["fp32", "mxfp6"])
    with pytest.raises(ArgumentError, match="has no name in the list of the rules"):
        check_loggable([name])


def test_all_formats_of_a_recipe_and_the_codec_are_looked_at_before_it_runs() -> None:
    with pytest.raises(ArgumentError, match="posit8_1 has no name in the list of the rules"):
        check_loggable(["posit8:weight=mxfp4"])
    check_loggable(["fp32"], "int8_256:feedback")
    check_loggable(["fp32"], "powersgd")
    with pytest.raises(ArgumentError, match="posit8_1 has no name in the list of the rules"):
        check_loggable(["fp32"], "posit8_1")
    with pytest.raises(ArgumentError, match="fp32 is there twice"):
        check_loggable(["fp32", "fp32"])


def _as_recipe(report: BenchmarkReport, recipe: str, attention: str | None = None) -> RecipeResult:
    ran = RanPrecision("mxfp6_e3m2", attention, None)
    runs = tuple(replace(run, recipe=recipe, precision=ran) for run in report.recipes[0].runs)
    return replace(report.recipes[0], recipe=recipe, runs=runs)


def test_each_recipe_has_a_folder_of_its_own(report: BenchmarkReport, tmp_path: Path) -> None:
    roles = ",".join(f"{role}=mxfp6_e3m2/stochastic/ceil" for role in ("weight", "activation", "gradient"))
    texts = [f"mx:{roles},vector=bf16,optimizer={name}" for name in ("sgd", "lars")]
    texts.append(texts[0].replace(",vector", ", vector"))
    folders = write_logs(replace(report, recipes=tuple(_as_recipe(report, x) for x in texts)), tmp_path)
    assert len(set(folders)) == 3
    assert [read_config(folder / CONFIG)["recipe"] for folder in folders] == texts
    assert {path.name for path in tmp_path.iterdir()} == {folder.name for folder in folders}
    with pytest.raises(ArgumentError, match="is there twice"):
        write_logs(replace(report, recipes=(report.recipes[0],) * 2), tmp_path)


def test_logs_that_cannot_all_be_written_leave_the_old_ones(
    report: BenchmarkReport, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both = replace(report, recipes=(report.recipes[0], _as_recipe(report, "mxfp6", "posit8_1")))
    with pytest.raises(ArgumentError, match="has no name in the list"):
        write_logs(both, tmp_path)
    assert not list(tmp_path.iterdir())
    (folder,) = write_logs(report, tmp_path)
    (folder / "notes.txt").write_text("mine")
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    write, written = logs_module._write, []

    def full(report: BenchmarkReport, run: BenchmarkRun, path: Path) -> None:
        written.append(path)
        if len(written) == 3:
            raise OSError("no space left")
        write(report, run, path)

    with monkeypatch.context() as patch:
        patch.setattr(logs_module, "_write", full)
        with pytest.raises(OSError, match="no space left"):
            write_logs(report, tmp_path)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert list(tmp_path.iterdir()) == [folder]
    write_logs(report, tmp_path)
    assert (folder / "notes.txt").read_text() == "mine"


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
