"""Our own rules for logs in MLPerf's format, which look also where the official checker does not.

Each is a function of what was read that yields sentences; no sentences: nothing is wrong.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fewbits.bench.benchmarks import BENCHMARKS
from fewbits.bench.disclosed import ACCEPTED, logged_name
from fewbits.bench.rules import check_seeds
from fewbits.errors import ArgumentError, FewbitsError

_TOKEN = ":::MLLOG "
_PRECISION = {
    "linear": "lowest_numerical_precision_in_linear",
    "attention": "lowest_numerical_precision_in_attn",
    "communication": "lowest_numerical_precision_in_comm",
}
_COUNTS = (
    "global_batch_size", "train_samples", "eval_samples", "gradient_accumulation_steps",
    "tensor_parallelism", "pipeline_parallelism", "context_parallelism", "expert_parallelism",
    "micro_batch_size",
)  # fmt: skip
_HEAD = (
    "submission_org", "submission_platform", "submission_division", "submission_benchmark",
    "cache_clear", "init_start", "seed", *_COUNTS[:4], *_PRECISION.values(), *_COUNTS[4:],
    "config_filename", "opt_name", "opt_base_learning_rate", "opt_learning_rate_warmup_steps",
    "opt_learning_rate_decay_steps", "opt_learning_rate_decay_schedule", "init_stop", "run_start",
)  # fmt: skip
_BLOCK = ("block_start", "block_stop", "eval_start", "eval_accuracy", "eval_stop")


@dataclass(frozen=True)
class Line:
    """One line of a log."""

    number: int
    time_ms: float
    key: str
    value: Any
    metadata: Mapping[str, Any]


@dataclass(frozen=True)
class Log:
    """One file: the log of a run."""

    name: str
    lines: tuple[Line, ...]
    broken: tuple[int, ...]  # numbers of lines that are none of the format

    def values(self, key: str) -> list[Any]:
        """Return the values of a key, in order."""
        return [line.value for line in self.lines if line.key == key]

    @property
    def succeeded(self) -> bool:
        """Whether the run says that it reached its target."""
        return any(x.key == "run_stop" and x.metadata.get("status") == "success" for x in self.lines)


def read_log(path: Path) -> Log:
    """Read a file; lines without the mark of the format are passed over."""
    lines, broken = [], []
    for number, text in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        if _TOKEN not in text:
            continue
        try:
            found = json.loads(text.partition(_TOKEN)[2])
            metadata = found["metadata"] or {}
            lines.append(Line(number, float(found["time_ms"]), found["key"], found["value"], dict(metadata)))
        except (ValueError, KeyError, TypeError):
            broken.append(number)
    return Log(path.name, tuple(lines), tuple(broken))


def file_problems(log: Log, config: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with one log, by the record of what ran."""
    rules = (_broken, _keys, _order, _times, _counts, _status)
    found = [text for rule in rules for text in rule(log)]
    found += [text for held in (_as_configured, _target, _precision) for text in held(log, config)]
    return [f"{log.name}: {text}" for text in found]


def folder_problems(logs: Sequence[Log], config: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with the runs of a recipe together."""
    found = []
    seeds = [value for log in logs for value in log.values("seed")]
    try:
        check_seeds(seeds)
    except ArgumentError as error:
        found.append(str(error))
    if len(logs) < config["runs"]:
        found.append(f"{len(logs)} runs where a result takes {config['runs']}")
    failed = [log.name for log in logs if not log.succeeded]
    if len(failed) > 1:
        found.append(f"{len(failed)} runs did not converge ({', '.join(failed)}); a result may have one")
    return [*found, *_as_built_in(config)]


def _broken(log: Log) -> Iterator[str]:
    for number in log.broken:
        yield f"line {number} is not in the format"


def _keys(log: Log) -> Iterator[str]:
    for key in (*_HEAD, "run_stop"):
        count = len(log.values(key))
        if count != 1:
            yield f"{key} is there {count} times; expected once"
    for key in _BLOCK:
        if not log.values(key):
            yield f"{key} is missing"


def _order(log: Log) -> Iterator[str]:
    known = {*_HEAD, *_BLOCK, "run_stop"}
    lines = [line for line in log.lines if line.key in known]
    blocks = max(len(lines) - len(_HEAD) - 1, 0) // len(_BLOCK)
    expected = [*_HEAD, *_BLOCK * blocks, "run_stop"]
    for line, key in zip(lines, expected, strict=False):
        if line.key != key:
            yield f"line {line.number} is {line.key} where {key} is expected"
            return
    if len(lines) != len(expected):
        yield f"{len(lines)} lines with keys of the rules where {len(expected)} are expected"


def _times(log: Log) -> Iterator[str]:
    for before, line in zip(log.lines, log.lines[1:], strict=False):
        if line.time_ms < before.time_ms:
            yield f"line {line.number}: {line.key} is earlier than {before.key} before it"


def _counts(log: Log) -> Iterator[str]:
    for key in _COUNTS:
        for value in log.values(key):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                yield f"{key} is {value!r}; expected an integer from 1 up"


def _status(log: Log) -> Iterator[str]:
    for line in log.lines:
        if line.key == "run_stop" and line.metadata.get("status") not in ("success", "aborted"):
            yield f"run_stop has the status {line.metadata.get('status')!r}; expected success or aborted"


def _as_configured(log: Log, config: Mapping[str, Any]) -> Iterator[str]:
    for key, field in (
        ("submission_benchmark", "benchmark"),
        ("global_batch_size", "batch_size"),
        ("train_samples", "train_samples"),
        ("eval_samples", "eval_samples"),
        ("opt_base_learning_rate", "lr"),
    ):
        for value in log.values(key):
            if value != config[field]:
                yield f"{key} is {value!r}, and {config[field]!r} ran"


def _target(log: Log, config: Mapping[str, Any]) -> Iterator[str]:
    target, values = config["target"], log.values("eval_accuracy")
    good = [v <= target if config["lower_is_better"] else v >= target for v in values]
    if log.succeeded and not (good and good[-1]):
        last = values[-1] if values else None
        yield f"run_stop says success, and the last eval_accuracy {last!r} misses the target {target:g}"
    if any(good[:-1]) or (good and good[-1] and not log.succeeded):
        yield f"the run goes on, or is aborted, behind an eval_accuracy that reaches the target {target:g}"


def _precision(log: Log, config: Mapping[str, Any]) -> Iterator[str]:
    seeds = log.values("seed")
    ran = next((r for r in config["precision"] if seeds and r["seed"] == seeds[0]), None)
    if ran is None:
        yield f"no run of seed {seeds[0] if seeds else None!r} is on record"
    for role, key in _PRECISION.items():
        for value in log.values(key):
            if value not in ACCEPTED:
                yield f"{key} is {value!r}, which is not in the list of the rules: {', '.join(ACCEPTED)}"
            elif ran is not None and value != logged_name(ran[role] or "fp32"):
                yield f"{key} claims {value}, and {ran[role] or 'nothing narrower than fp32'} ran"


def _as_built_in(config: Mapping[str, Any]) -> Iterator[str]:
    own = BENCHMARKS.get(config["benchmark"])
    for field in ("task", "target", "evaluate_every", "steps", "batch_size", "lr", "eval_samples", "runs"):
        if own is not None and config[field] != getattr(own, field):
            yield f"{field} is {config[field]!r}, and that of {own.name} is {getattr(own, field)!r}"


def read_config(path: Path) -> dict[str, Any]:
    """Read the record of what ran.

    Raises:
        FewbitsError: it is not there, or is none.
    """
    needed = ("benchmark", "task", "target", "lower_is_better", "batch_size", "train_samples", "eval_samples",
              "lr", "runs", "steps", "evaluate_every", "precision")  # fmt: skip
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
        missing = [name for name in needed if name not in config]
        for ran in config["precision"]:
            missing += [name for name in ("seed", *_PRECISION) if name not in ran]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise FewbitsError(f"{path.name} cannot be read, so that what ran is not known: {error}") from None
    if missing:
        raise FewbitsError(f"{path.name} has no {missing[0]}, so that what ran is not known")
    return dict(config)
