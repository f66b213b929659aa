"""Every example runs as a user would run it."""

import runpy
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))


@pytest.mark.filterwarnings("ignore")  # of transformers
@pytest.mark.parametrize("script", EXAMPLES, ids=lambda p: p.stem)
def test_the_example_runs_and_prints(script: Any, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(script), run_name="__main__")
    assert capsys.readouterr().out
