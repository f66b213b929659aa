"""Logs of a benchmark in MLPerf's log format, written by the library of the format itself."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import logging
import platform
import re
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fewbits.bench.disclosed import check_claim, logged_name, operand_formats
from fewbits.errors import ArgumentError, MissingDependencyError
from fewbits.files.atomic import write_text
from fewbits.recipes import Recipe
from fewbits.recipes import codec as read_codec
from fewbits.recipes import recipe as read
from fewbits.records import BenchmarkReport, BenchmarkRun, RecipeResult
from fewbits.train.learning_rates import WARM_UP

if TYPE_CHECKING:
    from collections.abc import Iterator

CONFIG = "config.json"
_LONGEST = 120  # characters of a folder's name before the hash
_DECAYS = {"cosine": "cosine with linear warmup", "polynomial": "polynomial of power 2 with linear warmup"}


def check_loggable(recipes: Sequence[str] = (), codec: str = "") -> None:
    """Raise where logs could not be written, before hours of work go into them.

    Args:
        recipes: their texts.
        codec: in which gradients travel between processes.

    Raises:
        MissingDependencyError: the library that writes logs is not installed.
        ArgumentError: a recipe is there twice, or a recipe or the codec has a format that the rules have no
            name for.
    """
    if importlib.util.find_spec("mlperf_logging") is None:
        raise MissingDependencyError(
            "logs in MLPerf's format are written by mlperf-logging, which is not installed: pip install"
            " 'fewbits[bench]', or leave --out out"
        )
    for name in recipes:
        if recipes.count(name) > 1:
            raise ArgumentError(f"recipe {name} is there twice; give it once")
        for format in operand_formats(read(name)):
            logged_name(format)
    values = read_codec(codec).values if codec else None
    if values is not None:
        logged_name(str(values.format))


def write_logs(report: BenchmarkReport, folder: Path) -> list[Path]:
    """Write ``result_0.txt``, ... and what ran, into a folder for each recipe.

    What they disclose of precision is what was seen in the runs; nothing of it can be given.

    Args:
        report: all runs.
        folder: takes the folders. They are written whole and then renamed: those of an earlier report are
            replaced, and what else is in them stays.

    Returns:
        The folders.

    Raises:
        MissingDependencyError: the library that writes logs is not installed.
        ArgumentError: a recipe claims what did not run or is there twice, or a format has no name in the
            rules.
    """
    check_loggable()
    names = [result.recipe for result in report.recipes]
    if len(set(names)) < len(names):
        raise ArgumentError(f"one of {', '.join(names)} is there twice; give each recipe once")
    for run in (run for result in report.recipes for run in result.runs):  # before one is written
        check_claim(read(run.recipe), run.precision)
        _precision(run)
    folders = []
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fewbits-", dir=folder) as place:
        for result in report.recipes:
            new = Path(place) / _folder(result.recipe)
            new.mkdir()
            write_text(new / CONFIG, json.dumps(_config(report, result), indent=1) + "\n")
            for i, run in enumerate(result.runs):
                _write(report, run, new / f"result_{i}.txt")
            folders.append(folder / new.name)
        for below in folders:
            _replace(below, Path(place) / below.name)
    return folders


def _folder(recipe: str) -> str:
    """Return a name that is readable and, where it is not the recipe itself, ends with a hash of it."""
    readable = re.sub(r"[^A-Za-z0-9_.=-]+", "_", recipe)[:_LONGEST]
    mark = hashlib.sha256(recipe.encode()).hexdigest()[:8]
    return recipe if readable == recipe else f"{readable}-{mark}"


def _replace(below: Path, new: Path) -> None:
    """Put a folder in the place of an old one, of which all but logs and record stay."""
    if below.exists():
        old = below.rename(new.with_name(f"{new.name}.old"))
        for path in old.iterdir():
            if path.name != CONFIG and not path.match("result_*.txt"):
                shutil.move(path, new / path.name)
    new.rename(below)


def _config(report: BenchmarkReport, result: RecipeResult) -> dict[str, Any]:
    """Return what ran, to which the logs are held."""
    facts = {k: v for k, v in vars(report).items() if k != "recipes"}
    ran = [
        {
            "seed": run.seed,
            "status": _status(run),
            "resumed": run.resumed,
            "started_ms": run.started_ms,
            "seconds": run.seconds,
            "steps": run.steps,
            **vars(run.precision),
            "evaluations": [vars(e) for e in run.evaluations],
        }
        for run in result.runs
    ]
    logged = {**_submission(report), **_samples(report), **_choices(report, read(result.recipe))}
    return {**facts, "recipe": result.recipe, "logged": logged, "ran": ran}


def _status(run: BenchmarkRun) -> str:
    return "success" if run.reached else "aborted"


def _precision(run: BenchmarkRun) -> list[tuple[str, str, dict[str, Any]]]:
    """Return the three keys with their values and remarks."""
    ran = run.precision
    keys: list[tuple[str, str, dict[str, Any]]] = []
    for key, format, nothing in (
        ("linear", ran.linear, ""),
        ("attn", ran.attention, "the model has no attention"),
        ("comm", ran.communication, "one process: nothing is sent"),
    ):
        # The rules want a name of their list where there is nothing, too.
        remark: dict[str, Any] = {"ran": format} if format is not None else {"none": nothing}
        keys.append((f"lowest_numerical_precision_in_{key}", logged_name(format or "fp32"), remark))
    if ran.wide_layers:
        keys[0][2]["wider"] = list(ran.wide_layers)
    return keys


def _submission(report: BenchmarkReport) -> dict[str, object]:
    return {
        "submission_org": "none: not a submission",
        "submission_platform": f"{platform.machine()}, processes: {report.processes}",
        "submission_division": "open",
        "submission_benchmark": report.benchmark,
    }


def _samples(report: BenchmarkReport) -> dict[str, object]:
    return {
        "global_batch_size": report.batch_size,
        "train_samples": report.train_samples,
        "eval_samples": report.eval_samples,
        "gradient_accumulation_steps": 1,
    }


def _choices(report: BenchmarkReport, recipe: Recipe) -> dict[str, object]:
    warm = max(1, int(WARM_UP * report.steps))
    return {
        **dict.fromkeys((f"{kind}_parallelism" for kind in ("tensor", "pipeline", "context", "expert")), 1),
        "micro_batch_size": report.batch_size // report.processes,
        "config_filename": CONFIG,
        "opt_name": recipe.optimizer,
        "opt_base_learning_rate": report.lr,
        "opt_learning_rate_warmup_steps": warm,
        "opt_learning_rate_decay_steps": report.steps - warm,
        "opt_learning_rate_decay_schedule": _DECAYS[recipe.lr_schedule],
    }


def _write(report: BenchmarkReport, run: BenchmarkRun, path: Path) -> None:
    begin, batch = run.started_ms, report.batch_size
    caches = {"cleared": list(report.cleared), "kept": list(report.kept)}
    with _logger(path) as log:
        for key, value in _submission(report).items():
            log.event(key, value, time_ms=begin)
        log.event("cache_clear", True, caches, time_ms=begin)
        log.start("init_start", time_ms=begin)
        log.event("seed", run.seed, time_ms=begin)
        for key, value in _samples(report).items():
            log.event(key, value, time_ms=begin)
        for key, name, remark in _precision(run):
            log.event(key, name, remark, time_ms=begin)
        for key, value in _choices(report, read(run.recipe)).items():
            log.event(key, value, time_ms=begin)
        log.end("init_stop", time_ms=begin)
        log.start("run_start", time_ms=begin)
        done, ended = 0, begin
        for e in run.evaluations:
            samples, at = batch * e.step, begin + round(1000 * e.began)
            log.start("block_start", metadata={"samples_count": done}, time_ms=ended)
            log.end("block_stop", metadata={"samples_count": samples}, time_ms=at)
            log.start("eval_start", metadata={"samples_count": samples}, time_ms=at)
            ended = begin + round(1000 * e.seconds)
            log.event("eval_accuracy", e.value, {"samples_count": samples}, time_ms=ended)
            log.end("eval_stop", metadata={"samples_count": samples}, time_ms=ended)
            done = samples
        log.end("run_stop", metadata={"status": _status(run), "resumed": run.resumed}, time_ms=ended)


@contextmanager
def _logger(path: Path) -> Iterator[Any]:
    """Yield the library's logger, which writes to a file and nowhere else."""
    from mlperf_logging.mllog.mllog import MLLogger

    handler = logging.FileHandler(path, mode="w", encoding="utf-8")
    logger = logging.Logger("fewbits.bench", logging.INFO)
    logger.addHandler(handler)
    try:
        # Places in the code are named without the folder of the package; the library reads a pattern.
        yield MLLogger(logger, root_dir=re.escape(str(Path(__file__).parents[2])))
    finally:
        handler.close()
