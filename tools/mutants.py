"""Make small mistakes in the source, one at a time, and list those that no test notices: `make mutants`.

A library would be preferred. mutmut changes the bodies of functions only, so that a wrong entry of a
catalogue is never tried, and cosmic-ray runs one fixed command for each mutant, which here is the whole
suite for a quarter of an hour. This driver works on a copy of the checkout, asks coverage which tests reach
a line, and runs those alone, the quickest first. A mutant is killed by a failing test, by an import that
fails, or by taking ten times as long.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from queue import Queue

import coverage

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tools.mutations import Mutation, mutations

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / "build" / "mutants"
EQUIVALENT = ROOT / "tools" / "equivalent_mutants.json"
FOLDERS = ("recipes", "train/schedules", "nn", "optim", "solvers", "sparsity")
LOG = "tests.log"  # in each copy: what the newest tests said
IDENTITY = ("path", "scope", "text", "before", "after")
BUDGET_S = 90.0  # of tests for one mutant, by their times without it
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}


@dataclass(frozen=True)
class Test:
    """A test with the time that it takes."""

    id: str
    seconds: float


@dataclass(frozen=True)
class Verdict:
    """What became of a mutant: killed, survived, or reached by no test."""

    mutation: Mutation
    outcome: str
    tests: int
    reason: str = ""  # of one that no test can tell from the original


def copy(name: str) -> Path:
    """Return a copy of the checkout with an environment in which its source is the one imported."""
    folder = WORK / name
    shutil.rmtree(folder, ignore_errors=True)
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    for path in listed.stdout.splitlines():
        if (ROOT / path).is_file():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / path, folder / path)
    from fewbits import _native

    shutil.copy2(str(_native.__file__), folder / "src" / "fewbits")
    environment = folder / ".venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(environment)], check=True)
    packages = Path(str(coverage.__file__)).parents[1]
    borrowed = next(environment.glob("lib/python*/site-packages")) / "borrowed.pth"
    borrowed.write_text(f"{folder / 'src'}\n{packages}\n")
    return folder


def run_tests(folder: Path, arguments: Iterable[str], limit_s: float | None = None) -> int:
    """Return pytest's exit status in a copy, 1 where it takes longer than the limit."""
    command = [str(folder / ".venv/bin/python"), "-m", "pytest", "-q", *arguments]
    with (folder / LOG).open("w") as said:
        child = subprocess.Popen(
            command, cwd=folder, env=ENVIRONMENT, stdout=said, stderr=said, start_new_session=True
        )
    try:
        return child.wait(limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        return 1


def survey(folder: Path, folders: Iterable[str]) -> tuple[dict[str, dict[int, list[str]]], dict[str, Test]]:
    """Run the folders' tests once: return for each file and line the tests that reach it, and their times."""
    times = folder / "times.xml"
    ran = sorted({"tests/conformance"} | {f"tests/{name.partition('/')[0]}" for name in folders})
    status = run_tests(
        folder, [*ran, "--cov=fewbits", "--cov-context=test", "--cov-report=", f"--junitxml={times}"]
    )
    if status != 0:
        sys.exit(f"the tests fail without a mutation: {folder / LOG} says which")
    data = coverage.CoverageData(str(folder / ".coverage"))
    data.read()
    tests: dict[str, Test] = {}
    for case in ET.parse(times).iter("testcase"):
        file = str(case.get("classname")).replace(".", "/") + ".py"
        test = f"{file}::{case.get('name')}"
        tests[test] = Test(test, float(case.get("time") or 0))
    reached: dict[str, dict[int, list[str]]] = {}
    for name in data.measured_files():
        lines = data.contexts_by_lineno(name)
        path = str(Path(name).relative_to(folder))
        reached[path] = {line: [c.split("|")[0] for c in found if c] for line, found in lines.items()}
    return reached, tests


def chosen_tests(
    mutation: Mutation, reached: dict[str, dict[int, list[str]]], tests: dict[str, Test]
) -> list[Test]:
    """Return the tests for a mutant, the quickest first, as many as the budget allows.

    They are those that reach the line and those of the file's name. A line that runs on import alone belongs
    to no test: the tests of its folder are taken.
    """
    names = reached.get(mutation.path, {}).get(mutation.line, [])
    own = f"/test_{Path(mutation.path).stem}.py::"  # what runs once in a process is reached by any test
    found = [t for t in tests.values() if t.id in names or own in t.id]
    folder = mutation.path.replace("src/fewbits", "tests", 1)
    while not found and folder:
        folder = folder.rpartition("/")[0]
        found = [t for t in tests.values() if t.id.startswith(f"{folder}/")]
    result, spent = [], 0.0
    for test in sorted(found, key=lambda t: t.seconds):
        spent += test.seconds
        if result and spent > BUDGET_S:
            break
        result.append(test)
    return result


def judge(folder: Path, mutation: Mutation, tests: list[Test]) -> Verdict:
    """Make one mistake in a copy, run the tests and undo it."""
    if not tests:
        return Verdict(mutation, "unreached", 0)
    path = folder / mutation.path
    sound = path.read_bytes()
    wanted = folder / "wanted.txt"
    wanted.write_text("".join(f"{t.id}\n" for t in tests))
    try:
        path.write_bytes(mutation.apply(sound))
        limit_s = 10 * sum(t.seconds for t in tests) + 120
        status = run_tests(folder, ["-x", f"@{wanted}"], limit_s)
    finally:
        path.write_bytes(sound)
    return Verdict(mutation, "survived" if status == 0 else "killed", len(tests))


def sample(folders: list[str], count: int, seed: int, only: str) -> list[Mutation]:
    """Return mutations of the folders, as many of each, drawn by the seed."""
    drawn: list[Mutation] = []
    for folder in folders:
        files = sorted((ROOT / "src/fewbits" / folder).rglob("*.py"))
        every = [m for f in files for m in mutations(ROOT, str(f.relative_to(ROOT))) if only in m.path]
        rng = random.Random(f"{seed} {folder}")
        drawn += rng.sample(every, min(len(every), -(-count // len(folders))))
    return drawn


def again(path: Path) -> list[Mutation]:
    """Return those that were not killed in an earlier run, as far as their lines are still there."""
    lived = [v["mutation"] for v in json.loads(path.read_text()) if v["outcome"] != "killed"]
    wanted = {tuple(m[k] for k in IDENTITY) for m in lived}
    files = sorted({m["path"] for m in lived})
    return [m for f in files if (ROOT / f).exists() for m in mutations(ROOT, f) if m.identity in wanted]


def known() -> dict[tuple[str, ...], str]:
    """Return the reason of each mutant that equals the original, by its identity."""
    entries = json.loads(EQUIVALENT.read_text())
    return {tuple(e[k] for k in IDENTITY): e["reason"] for e in entries}


def table(folders: list[str], verdicts: list[Verdict]) -> str:
    """Return the score of each folder and the mutants that live, as text."""
    lines = ["folder            mutants  killed  equivalent  survived"]
    for folder in (*folders, ""):
        of = [v for v in verdicts if v.mutation.path.startswith(f"src/fewbits/{folder}")]
        killed, equal = sum(v.outcome == "killed" for v in of), sum(bool(v.reason) for v in of)
        name = folder or "all"
        lines.append(f"{name:16}{len(of):9}{killed:8}{equal:12}{len(of) - killed - equal:10}")
    for v in verdicts:
        if v.outcome != "killed" and not v.reason:
            m = v.mutation
            lines.append(
                f"{m.path}:{m.line} {m.scope}: {m.text}\n    {m.before!r} -> {m.after!r}: {v.outcome}"
            )
    return "\n".join(lines)


def main() -> None:
    """Draw mutants, run them on every core, print the table; exit 1 where more than one in twenty lives."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--count", type=int, default=240, help="mutants in all, as many from each folder")
    parser.add_argument("--seed", type=int, default=0, help="which mutants are drawn")
    parser.add_argument("--folders", default=",".join(FOLDERS), help="those of src/fewbits, comma-separated")
    parser.add_argument("--only", default="", help="those whose path holds this text")
    parser.add_argument("--again", type=Path, help="only those that a run before, its --json, did not kill")
    parser.add_argument("--workers", type=int, default=os.cpu_count(), help="copies that run side by side")
    parser.add_argument("--json", type=Path, help="write every verdict to this file")
    given = parser.parse_args()
    folders = given.folders.split(",")
    copies: Queue[Path] = Queue()
    first = copy("0")
    reached, tests = survey(first, folders)
    for folder in (first, *(copy(str(i)) for i in range(1, given.workers))):
        copies.put(folder)
    reasons = known()
    drawn = again(given.again) if given.again else sample(folders, given.count, given.seed, given.only)

    def work(mutation: Mutation) -> Verdict:
        if reason := reasons.get(mutation.identity):
            return Verdict(mutation, "equivalent", 0, reason)
        folder = copies.get()
        try:
            verdict = judge(folder, mutation, chosen_tests(mutation, reached, tests))
        finally:
            copies.put(folder)
        print(
            f"{verdict.outcome:10} {mutation.path}:{mutation.line} {mutation.before!r} -> {mutation.after!r}",
            flush=True,
        )
        return verdict

    with ThreadPoolExecutor(given.workers) as pool:
        verdicts = list(pool.map(work, drawn))
    print(table(folders, verdicts))
    if given.json:
        given.json.write_text(json.dumps([asdict(v) for v in verdicts], indent=1) + "\n")
    alive = sum(v.outcome != "killed" and not v.reason for v in verdicts)
    sys.exit(alive > 0.05 * len(verdicts))


if __name__ == "__main__":
    main()
