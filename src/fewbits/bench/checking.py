"""Check folders of logs: by our own rules, and by the official checker where it is installed."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from fewbits.bench.log_rules import Log, file_problems, folder_problems, read_config, read_log
from fewbits.bench.logs import CONFIG
from fewbits.errors import DataError, FewbitsError
from fewbits.records import LogCheck
from fewbits.typing import Progress

RULESET = "6.1.0"
_COMMON = f"training_{RULESET}/{{}}_common.yaml"  # what the common rules go on with
_WAIT = 120  # seconds for the checker to look at one file


def check_logs(folder: Path, *, progress: Progress | None = None) -> list[LogCheck]:
    """Return what is wrong with the logs in a folder, and in those below it.

    Args:
        folder: with ``result_*.txt`` and ``config.json`` in it, or in folders below.
        progress: called after each file.

    Raises:
        DataError: there are no logs.
    """
    folders = sorted({path.parent for path in folder.rglob("result_*.txt")})
    if not folders:
        raise DataError(f"{folder} holds no logs: expected result_0.txt, ... in it or in folders below")
    return [_check(below, progress) for below in folders]


def _check(folder: Path, progress: Progress | None) -> LogCheck:
    paths = sorted(folder.glob("result_*.txt"))
    config, problems, official, reason, logs = None, [], "", "", []
    try:
        config = read_config(folder / CONFIG)
    except FewbitsError as error:
        problems.append(str(error))
    if importlib.util.find_spec("mlperf_logging") is None:
        reason = "comes with pip install 'fewbits[bench]'"
    elif config is None:
        reason = f"needs {CONFIG}, which cannot be read"
    else:
        official = f"mlperf-logging {version('mlperf-logging')}, ruleset {RULESET}"
    for i, path in enumerate(paths):
        try:
            log = read_log(path)
        except OSError as error:
            problems.append(f"{path.name} cannot be read: {error}")
            continue
        logs.append(log)
        problems += file_problems(log, config)
        if config is not None and official:
            problems += official_problems(path, log, config)
        if progress is not None:
            progress(f"checking {folder.name}", i + 1, len(paths))
    if config is not None:
        problems = [*folder_problems(logs, config), *problems]
    return LogCheck(str(folder), tuple(path.name for path in paths), tuple(problems), official, reason)


def official_problems(path: Path, log: Log, config: Mapping[str, Any]) -> list[str]:
    """Return what the official checker says of a file, with our benchmark in the place of its own.

    That it could not look, is a problem of the file as well.
    """
    try:
        return _officially(path, log, config)
    except (FewbitsError, OSError) as error:
        return [f"{path.name}: the official checker did not look: {error}"]
    except subprocess.TimeoutExpired:
        return [f"{path.name}: the official checker did not end in {_WAIT} seconds"]


def _officially(path: Path, log: Log, config: Mapping[str, Any]) -> list[str]:
    with tempfile.TemporaryDirectory() as place:
        own, common = Path(place) / "own.yaml", Path(place) / "common.yaml"
        own.write_text(_own_rules(config, converged=log.succeeded), encoding="utf-8")
        common.write_text(_common_rules(own), encoding="utf-8")
        done = subprocess.run(
            [
                sys.executable, "-m", "mlperf_logging.compliance_checker", "--usage", "training",
                "--ruleset", RULESET, "--config", str(common), "--log_output", str(Path(place) / "log"),
                str(path.resolve()),
            ],
            capture_output=True, text=True, errors="replace", check=False, timeout=_WAIT, cwd=place,
        )  # fmt: skip
    if done.returncode == 0:
        return []
    said = [line.strip() for line in done.stderr.splitlines()]
    told = [line for line in said if line.startswith(("CHECK for", "failed test", "Required", "WARNING -"))]
    return [f"{path.name}: the official checker: {'; '.join(told) or ' '.join(said)[-500:]}"]


def _common_rules(own: Path) -> str:
    """Return the common rules as they are installed, but for the file that they go on with: ours."""
    found = importlib.util.find_spec("mlperf_logging")
    assert found is not None
    assert found.origin is not None
    rules = Path(found.origin).parent / "compliance_checker" / f"training_{RULESET}" / "common.yaml"
    text = rules.read_text(encoding="utf-8")
    if _COMMON not in text:
        raise DataError(f"{rules} is not as expected; install mlperf-logging 4.1.68")
    # Within the file the name is a part of Python code: that of ours must not have braces or quotes.
    return text.replace(f"'{_COMMON}'.format(v['value'])", repr(str(own)))


def _own_rules(config: Mapping[str, Any], *, converged: bool) -> str:
    """Return the rules of one benchmark, as YAML, which JSON is too."""
    once = {"REQ": "EXACTLY_ONE"}
    sign = "<=" if config["lower_is_better"] else ">="
    quality: dict[str, Any] = {"REQ": "AT_LEAST_ONE", "CHECK": ["'samples_count' in v['metadata']"]}
    if converged:  # one run of a result may be aborted, and says so
        quality["ATLEAST_ONE_CHECK"] = f"v['value'] {sign} {config['target']!r}"
    keys: dict[str, dict[str, Any]] = {
        "submission_benchmark": {**once, "CHECK": f"v['value'] == {config['benchmark']!r}"},
        "seed": {**once, "CHECK": "is_integer(v['value'])"},
        "global_batch_size": {**once, "CHECK": f"v['value'] == {config['batch_size']!r}"},
        "gradient_accumulation_steps": {**once, "CHECK": "v['value'] > 0"},
        "eval_accuracy": quality,
        **dict.fromkeys(("opt_name", "opt_base_learning_rate", "opt_learning_rate_warmup_steps"), once),
    }
    return json.dumps([{"KEY": {"NAME": name, **rules}} for name, rules in keys.items()], indent=1)
