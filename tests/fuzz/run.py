"""Fuzz a target: ``python -m tests.fuzz.run grammar --seconds 60``.

Inputs run in a process of their own, because one of them may crash it, hold it up or fill the memory. What
is run follows from the seed alone.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.fuzz.target import LARGEST
from tests.fuzz.worker import HEAD, saved, target_of

ROOT = Path(__file__).parents[2]
WAIT_SECONDS = 60.0  # that a process may wait for something without running
POLL_SECONDS = 0.02


@dataclass
class Result:
    """What a run did."""

    executions: int = 0
    accepted: int = 0
    findings: list[str] = field(default_factory=list)


def fuzz(
    target: str,
    *,
    seconds: float,
    seed: int,
    findings: Path,
    executions: int = 1 << 62,
    hang_seconds: float = 5.0,
    memory: int = 1 << 30,
) -> Result:
    """Fuzz for a time, or for so many executions where these end sooner.

    A process that dies, hangs or grows by more than ``memory`` bytes is a finding.
    """
    result, end = Result(), time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0 and (more := executions - result.executions) > 0:
        _one_process(result, target, left, more, seed, findings, hang_seconds, memory)
        seed += 1  # another one: the same inputs would end it again
    return result


def _one_process(
    result: Result,
    target: str,
    seconds: float,
    executions: int,
    seed: int,
    findings: Path,
    hang: float,
    memory: int,
) -> None:
    with (
        tempfile.NamedTemporaryFile() as shared,
        tempfile.TemporaryFile("w+") as told,
        tempfile.TemporaryDirectory(prefix="fewbits-fuzz-") as folder,
    ):
        shared.write(bytes(HEAD.size + LARGEST))
        shared.flush()
        command = [
            sys.executable,
            "-m",
            "tests.fuzz.worker",
            target,
            "--seconds",
            str(seconds),
            "--executions",
            str(executions),
            "--seed",
            str(seed),
        ]
        command += ["--findings", str(findings), "--folder", folder, "--shared", shared.name]
        child = subprocess.Popen(command, cwd=ROOT, stdout=told, env=os.environ | {"OMP_NUM_THREADS": "1"})
        try:
            wrong = _watch(child, Path(shared.name), seconds, hang, memory)
        finally:
            child.kill()
            child.wait()
        octets = Path(shared.name).read_bytes()
        _, done, accepted, length = HEAD.unpack(octets[: HEAD.size])
        result.executions += done
        result.accepted += accepted
        told.seek(0)
        result.findings += [line.rstrip() for line in told if line.startswith("finding: ")]
        if wrong:
            path = saved(findings, wrong, octets[HEAD.size : HEAD.size + length])
            result.findings.append(f"finding: {wrong} (seed {seed}, saved as {path})")


def _watch(
    child: subprocess.Popen[bytes], shared: Path, seconds: float, hang: float, memory: int
) -> str | None:
    """Return what went wrong with a process, or None when its time is over."""
    begun = time.monotonic()
    before, resident, idle, worked = 0, 0, 0, 0.0
    while child.poll() is None:
        time.sleep(POLL_SECONDS)
        with shared.open("rb") as file:
            warm, count, *_ = HEAD.unpack(file.read(HEAD.size))
        now, (cpu, runs) = time.monotonic(), _work_of(child.pid)
        idle = 0 if runs or count != before else idle + 1  # looks at it; the clock may jump over a pause
        if count != before:
            before, worked = count, cpu
        if warm and not resident:
            resident, begun = _resident(child.pid), now
        # Its own time, so that a busy machine is no finding.
        if (warm and cpu - worked > hang) or idle * POLL_SECONDS > WAIT_SECONDS:
            return f"hang of more than {hang:g} seconds"
        if warm and _resident(child.pid) > resident + memory:
            return f"more than {memory >> 20} MiB of memory"
        if warm and now - begun > seconds + WAIT_SECONDS:
            return None
    return f"crash with status {child.returncode}" if child.returncode else None


def _work_of(pid: int) -> tuple[float, bool]:
    """Return the processor time of a process in seconds, and whether it runs or would if it could."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), fields[0] == "R"
    except (OSError, IndexError):  # it has just ended
        return 0.0, False


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError):  # it has just ended
        return 0


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; 1 where something was found."""
    options = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("target", help="grammar or checkpoint")
    options.add_argument("--seconds", type=float, default=60.0)
    options.add_argument("--seed", type=int, default=0)
    options.add_argument(
        "--findings", type=Path, default=Path("build/fuzz"), help="folder for inputs that fail"
    )
    options.add_argument("--replay", type=Path, help="run one saved input here, and show its traceback")
    given = options.parse_args(arguments)
    if given.replay is not None:
        with tempfile.TemporaryDirectory() as folder:
            print(
                "accepted"
                if target_of(given.target).run(given.replay.read_bytes(), Path(folder))
                else "refused"
            )
        return 0
    result = fuzz(
        given.target,
        seconds=given.seconds,
        seed=given.seed,
        findings=given.findings.resolve(),
    )
    print("\n".join(result.findings))
    print(
        f"{given.target}: seed {given.seed}, {result.executions} executions, {result.accepted} accepted, "
        f"{len(result.findings)} findings"
    )
    return 1 if result.findings else 0


if __name__ == "__main__":
    sys.exit(main())
