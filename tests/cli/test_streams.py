"""A reader of the tables that stops, or a terminal without a size, costs no work and no report."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = [sys.executable, "-m", "fewbits", "formats", "mxfp4"]


@pytest.mark.parametrize("stopped", [["stdout"], ["stdout", "stderr"]], ids="-".join)
def test_a_report_is_written_though_nobody_reads_the_tables(tmp_path: Path, stopped: list[str]) -> None:
    words, report = [*COMMAND, "--json", "r.json"], tmp_path / "r.json"
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as job:
        for name in stopped:
            getattr(job, name).close()
        said = b"" if "stderr" in stopped else job.stderr.read()
    assert job.returncode == 0
    assert json.loads(report.read_text())["facts"]["format"] == "mxfp4"
    assert said == b"wrote r.json\n" * ("stderr" not in stopped)


def test_processes_that_are_started_for_a_job_outlive_their_readers_too(tmp_path: Path) -> None:
    code = "from fewbits.cli.streams import steady_streams; steady_streams(); print('a', flush=True)"
    begun = f"import sys; sys.stdin.read(); {code}; open('done', 'w')"
    words = [sys.executable, "-c", begun]
    with subprocess.Popen(words, cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as job:
        job.stdout.close()
        job.stdin.close()
    assert job.returncode == 0
    assert (tmp_path / "done").exists()


def test_a_terminal_without_a_size_shows_what_80_columns_show() -> None:
    shown, wide = (
        subprocess.run(COMMAND, env=os.environ | {"COLUMNS": width}, capture_output=True, check=True).stdout
        for width in ("0", "80")
    )
    assert shown == wide
    assert b"number line" in shown
