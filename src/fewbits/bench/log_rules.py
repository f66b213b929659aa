"""Our own rules for logs in MLPerf's format, which look also where the official checker does not.

Each is a function of what was read that yields sentences; no sentences: nothing is wrong.
"""

from __future__ import annotations

import json
import math
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
_CONSTANT = {
    "submission_org": "none: not a submission", "submission_division": "open", "cache_clear": True,
    "config_filename": "config.json", "gradient_accumulation_steps": 1,
    **dict.fromkeys((f"{kind}_parallelism" for kind in ("tensor", "pipeline", "context", "expert")), 1),
}  # fmt: skip
# The fields of the record and of each run in it, with their types.
_FIELDS: dict[str, type | tuple[type, ...]] = {
    "benchmark": str, "task": str, "target": (int, float), "lower_is_better": bool, "batch_size": int,
    "train_samples": int, "eval_samples": int, "lr": (int, float), "runs": int, "steps": int,
    "evaluate_every": int, "processes": int, "cleared": list, "kept": list, "logged": dict, "ran": list,
}  # fmt: skip
_OF_A_RUN: dict[str, type | tuple[type, ...]] = {
    "seed": int, "resumed": int, "started_ms": int, "seconds": (int, float), "steps": int, "status": str,
    "evaluations": list, "linear": str, "attention": (str, type(None)), "communication": (str, type(None)),
    "wide_layers": list,
}  # fmt: skip
_OF_AN_EVALUATION: dict[str, type | tuple[type, ...]] = {
    "step": int, "began": (int, float), "seconds": (int, float), "value": (int, float),
}  # fmt: skip
_COUNTED = ("batch_size", "train_samples", "eval_samples", "runs", "steps", "evaluate_every", "processes")
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
    """Read a file; lines without the mark of the format are passed over.

    Raises:
        OSError: it cannot be read.
    """
    lines, broken = [], []
    for number, text in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
        if _TOKEN not in text:
            continue
        try:
            found = json.loads(text.partition(_TOKEN)[2])
            key, time_ms, metadata = found["key"], found["time_ms"], found["metadata"] or {}
            if not (isinstance(key, str) and _is_finite(time_ms) and isinstance(metadata, dict)):
                raise TypeError
            lines.append(Line(number, time_ms, key, found["value"], metadata))
        except (ValueError, KeyError, TypeError, RecursionError):
            broken.append(number)
    return Log(path.name, tuple(lines), tuple(broken))


def file_problems(log: Log, config: Mapping[str, Any] | None) -> list[str]:
    """Return what is wrong with one log, by the record of what ran; None: there is none."""
    rules = (_broken, _keys, _order, _times, _counts, _status, _constants, _accuracies)
    found = [text for rule in rules for text in rule(log)]
    if config is not None:
        held = (_as_configured, _batch, _samples, _target, _precision, _as_ran)
        found += [text for rule in held for text in rule(log, config)]
    return [f"{log.name}: {text}" for text in found]


def folder_problems(logs: Sequence[Log], config: Mapping[str, Any]) -> list[str]:
    """Return what is wrong with the runs of a recipe together."""
    found = []
    seeds = [value for log in logs for value in log.values("seed") if _is_integer(value)]
    try:
        check_seeds(seeds)
    except ArgumentError as error:
        found.append(str(error))
    if len(logs) < config["runs"]:
        found.append(f"{len(logs)} runs where a result takes {config['runs']}")
    made = [ran["seed"] for ran in config["ran"]]
    if sorted(seeds) != sorted(made):
        # Whoever leaves runs out, chooses the best.
        found.append(f"logs of the seeds {_list(seeds)}, and {_list(made)} ran; all runs belong to a result")
    failed = [log.name for log in logs if not log.succeeded]
    if len(failed) > 1:
        found.append(f"{len(failed)} runs did not converge ({', '.join(failed)}); a result may have one")
    return [*found, *_as_built_in(config)]


def _list(seeds: list[int]) -> str:
    return ", ".join(map(str, sorted(seeds))) or "none"


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    try:
        return _is_number(value) and math.isfinite(value)
    except OverflowError:  # an integer beyond all floats
        return False


def _same(value: object, other: object) -> bool:
    """Return whether two values are one text in JSON: 0 is not 0.0, and NaN is NaN."""
    return json.dumps(value, sort_keys=True) == json.dumps(other, sort_keys=True)


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
    if log.values("run_stop") and log.lines[-1].key != "run_stop":
        yield f"line {log.lines[-1].number}: {log.lines[-1].key} is behind run_stop, which ends a log"
    if len(lines) != len(expected):
        yield f"{len(lines)} lines with keys of the rules where {len(expected)} are expected"


def _times(log: Log) -> Iterator[str]:
    for before, line in zip(log.lines, log.lines[1:], strict=False):
        if line.time_ms < before.time_ms:
            yield f"line {line.number}: {line.key} is earlier than {before.key} before it"


def _counts(log: Log) -> Iterator[str]:
    for key in _COUNTS:
        for value in log.values(key):
            if not _is_integer(value) or value < 1:
                yield f"{key} is {value!r}; expected an integer from 1 up"


def _status(log: Log) -> Iterator[str]:
    for line in log.lines:
        if line.key == "run_stop" and line.metadata.get("status") not in ("success", "aborted"):
            yield f"run_stop has the status {line.metadata.get('status')!r}; expected success or aborted"


def _constants(log: Log) -> Iterator[str]:
    for key, constant in _CONSTANT.items():
        for value in log.values(key):
            if not _same(value, constant):
                yield f"{key} is {value!r}; expected {constant!r}"
    for value in log.values("seed"):
        if not _is_integer(value):
            yield f"seed is {value!r}; expected an integer"


def _accuracies(log: Log) -> Iterator[str]:
    for value in log.values("eval_accuracy"):
        # A run that broke may say so, and does not succeed.
        if not _is_number(value) or (log.succeeded and not _is_finite(value)):
            yield f"eval_accuracy is {value!r}; expected a finite number"


def _as_configured(log: Log, config: Mapping[str, Any]) -> Iterator[str]:
    fields = {
        "submission_benchmark": config["benchmark"],
        "global_batch_size": config["batch_size"],
        "train_samples": config["train_samples"],
        "eval_samples": config["eval_samples"],
        "opt_base_learning_rate": config["lr"],
    }
    for key, logged in {**config["logged"], **fields}.items():
        for value in log.values(key):
            if not _same(value, logged):
                yield f"{key} is {value!r}, and {logged!r} ran"
    for line in log.lines:
        for name in ("cleared", "kept"):
            if line.key == "cache_clear" and not _same(line.metadata.get(name), config[name]):
                yield (
                    f"cache_clear says {name} {line.metadata.get(name)!r}, and {config[name]!r} is on record"
                )


def _batch(log: Log, config: Mapping[str, Any]) -> Iterator[str]:
    parts = [*log.values("micro_batch_size"), *log.values("gradient_accumulation_steps")]
    if all(map(_is_integer, parts)) and math.prod(parts) * config["processes"] != config["batch_size"]:
        yield (
            f"micro_batch_size x gradient_accumulation_steps x processes is"
            f" {math.prod(parts) * config['processes']}, and global_batch_size {config['batch_size']}"
        )


def _samples(log: Log, config: Mapping[str, Any]) -> Iterator[str]:
    """Hold samples_count to evaluations at each multiple of their distance, without gaps."""
    step = 0
    for line in log.lines:
        if line.key not in _BLOCK:
            continue
        if line.key == "block_stop":
            step = min(step + config["evaluate_every"], config["steps"])
        count, expected = line.metadata.get("samples_count"), step * config["batch_size"]
        if not _same(count, expected):
            yield f"line {line.number}: samples_count of {line.key} is {count!r}; expected {expected}"
            return


def _target(log: Log, config: Mapping[str, Any]) -> Iterator[str]:
    target, values = config["target"], [v for v in log.values("eval_accuracy") if _is_number(v)]
    good = [v <= target if config["lower_is_better"] else v >= target for v in values]
    if log.succeeded and not (good and good[-1]):
        last = values[-1] if values else None
        yield f"run_stop says success, and the last eval_accuracy {last!r} misses the target {target:g}"
    if any(good[:-1]) or (good and good[-1] and not log.succeeded):
        yield f"the run goes on, or is aborted, behind an eval_accuracy that reaches the target {target:g}"


def _ran(log: Log, config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    seeds = [*log.values("seed"), None]
    return next((ran for ran in config["ran"] if _same(ran["seed"], seeds[0])), None)


def _precision(log: Log, config: Mapping[str, Any]) -> Iterator[str]:
    ran = _ran(log, config)
    for role, key in _PRECISION.items():
        for line in log.lines:
            if line.key != key:
                continue
            if line.value not in ACCEPTED:
                yield f"{key} is {line.value!r}, which is not in the list of the rules: {', '.join(ACCEPTED)}"
            elif ran is not None and line.value != logged_name(ran[role] or "fp32"):
                yield f"{key} claims {line.value}, and {ran[role] or 'nothing narrower than fp32'} ran"
            if ran is not None and line.metadata.get("ran") != ran[role]:
                yield f"{key} has the remark ran={line.metadata.get('ran')!r}, and {ran[role]!r} ran"
            wide = ran["wide_layers"] if ran is not None and role == "linear" else []
            if ran is not None and line.metadata.get("wider", []) != wide:
                yield f"{key} has the remark wider={line.metadata.get('wider')!r}, and {wide!r} were wider"


def _as_ran(log: Log, config: Mapping[str, Any]) -> Iterator[str]:
    """Hold times, evaluations and the end to those of the run on record."""
    ran = _ran(log, config)
    if ran is None:
        yield f"no run of seed {next(iter(log.values('seed')), None)!r} is on record"
        return
    begin, evaluations = ran["started_ms"], ran["evaluations"]
    for key, expected in {
        "run_start": [0],
        "eval_start": [_ms(e["began"]) for e in evaluations],
        "eval_stop": [_ms(e["seconds"]) for e in evaluations],
        "run_stop": [_ms(ran["seconds"])],
    }.items():
        found = [line.time_ms - begin for line in log.lines if line.key == key]
        wrong = [pair for pair in zip(found, expected, strict=False) if pair[0] != pair[1]]
        if len(found) != len(expected):
            yield f"{key} is there {len(found)} times, and was {len(expected)} times"
        elif wrong:
            yield f"{key} is {wrong[0][0]:g} ms after the start, and was {wrong[0][1]}"
    values = [e["value"] for e in evaluations]
    if not _same(log.values("eval_accuracy"), values):
        yield f"eval_accuracy is {log.values('eval_accuracy')!r}, and {values!r} was measured"
    for line in log.lines:
        for name in ("status", "resumed"):
            if line.key == "run_stop" and not _same(line.metadata.get(name), ran[name]):
                yield f"run_stop has {name}={line.metadata.get(name)!r}, and {ran[name]!r} is on record"


def _ms(seconds: float) -> int:
    return round(1000 * seconds)


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
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise FewbitsError(f"{path.name} cannot be read, so that what ran is not known: {error}") from None
    _hold(config, _FIELDS, path.name)
    for name in _COUNTED:
        if config[name] < 1:
            raise FewbitsError(f"{path.name} has {name}={config[name]!r}; expected 1 or more")
    for i, ran in enumerate(config["ran"]):
        _hold(ran, _OF_A_RUN, f"{path.name}: ran[{i}]")
        for evaluation in ran["evaluations"]:
            _hold(evaluation, _OF_AN_EVALUATION, f"{path.name}: ran[{i}]: an evaluation")
        for role in _PRECISION:
            try:
                logged_name(ran[role] or "fp32")
            except FewbitsError as error:
                raise FewbitsError(f"{path.name}: ran[{i}] has {role}={ran[role]!r}: {error}") from None
    return dict(config)


def _hold(found: object, fields: Mapping[str, type | tuple[type, ...]], where: str) -> None:
    """Raise unless an object has all fields, of their types; numbers are finite but for measured values."""
    for name, kind in fields.items():
        if not isinstance(found, dict) or name not in found:
            raise FewbitsError(f"{where} has no {name}, so that what ran is not known")
        value = found[name]
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise FewbitsError(f"{where} has {name}={value!r}, which is not of its type")
        if name != "value" and _is_number(value) and not _is_finite(value):
            raise FewbitsError(f"{where} has {name}={value!r}; expected a finite number")
