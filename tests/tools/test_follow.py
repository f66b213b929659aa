"""The lists of CONTRIBUTING.md can be followed to the letter, and lead to what they promise."""

import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOL = runpy.run_path(str(ROOT / "tools" / "follow.py"), run_name="tool")
PAGE = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
LISTS = ("Add a format", "Add a recipe", "Add a command", "Add a kernel")

EXAMPLE = """\
## Add a thing

Words.

1. In `src/a.py`, below `TABLE = (`:

   ```python
       ("thing", 1),
   ```

2. Create `src/b.py`:

   ```python
   x = 1
   ```

3. Run `true`: it has to pass.

## Next

1. Do as you like.
"""


def test_the_steps_of_a_list_are_read_as_they_stand() -> None:
    below, create, run = TOOL["steps"](EXAMPLE, "Add a thing")
    assert (below.file, below.line, below.block) == ("src/a.py", "TABLE = (", '    ("thing", 1),')
    assert (create.new, create.block) == ("src/b.py", "x = 1")
    assert run.command == "true"


def test_a_step_that_no_machine_could_follow_is_refused() -> None:
    with pytest.raises(SystemExit, match="of the 1 steps under 'Next' only 0"):
        TOOL["steps"](EXAMPLE, "Next")
    with pytest.raises(SystemExit, match="no heading 'Add nothing'"):
        TOOL["steps"](EXAMPLE, "Add nothing")


def test_a_step_puts_its_block_below_its_line_and_nowhere_else(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text("TABLE = (\n)\n")
    for step in TOOL["steps"](EXAMPLE, "Add a thing"):
        TOOL["follow"](step, tmp_path)
    assert (tmp_path / "src" / "a.py").read_text() == 'TABLE = (\n    ("thing", 1),\n)\n'
    assert (tmp_path / "src" / "b.py").read_text() == "x = 1\n"
    (tmp_path / "src" / "a.py").write_text("TABLE = (\nTABLE = (\n")
    with pytest.raises(SystemExit, match="has 2 lines with 'TABLE = \\('"):
        TOOL["follow"](TOOL["steps"](EXAMPLE, "Add a thing")[0], tmp_path)


@pytest.mark.parametrize("heading", LISTS)
def test_every_list_can_be_followed_and_ends_with_its_tests(heading: str) -> None:
    last = TOOL["steps"](PAGE, heading)[-1]
    assert last.command is not None
    assert "pytest" in last.command


@pytest.mark.slow
@pytest.mark.parametrize("heading", LISTS)
def test_who_follows_a_list_arrives(heading: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "tools/follow.py", heading, "--into", str(tmp_path / "tree")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
