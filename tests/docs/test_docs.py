"""The manual is true: its code runs, its commands exist, and every format and option appears in it."""

import re
import runpy
from pathlib import Path
from typing import Any

import pytest
import typer

from fewbits.cli.main import app
from fewbits.formats import CATALOGUE
from fewbits.kernels.bits.options import NONFINITES, OVERFLOWS, ROUNDINGS, RULES, ZERO_BLOCKS
from fewbits.kernels.bits.scale_rules import MEAN_RULES
from fewbits.recipes import RECIPES
from fewbits.train.tasks import TASKS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{page.name}-{i}")
    for page in PAGES
    for i, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text("utf-8"), re.DOTALL))
]
MANUAL = "\n".join(page.read_text("utf-8") for page in PAGES)


# The page uses the name that all versions of transformers take.
@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated:FutureWarning")
@pytest.mark.parametrize("block", BLOCKS)
def test_every_code_block_runs(block: Any) -> None:
    if "fewbits.jax" in block:
        pytest.importorskip("jax")
        pytest.importorskip("optax")
    exec(compile(block, "manual", "exec"), {})


def test_the_catalogue_in_the_manual_is_the_catalogue() -> None:
    tool = runpy.run_path(str(ROOT / "tools" / "catalogue_table.py"))
    text = tool["PAGE"].read_text("utf-8")
    assert tool["page"](text) == text, "run python tools/catalogue_table.py"


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=lambda r: r.name)
def test_the_page_of_recipes_shows_each_as_it_is(recipe: Any) -> None:
    page = (ROOT / "docs" / "recipes.md").read_text("utf-8")
    assert f"\n## {recipe.name}\n" in page
    assert f"```text\n{recipe!r}\n```" in page, "run python tools/recipes_page.py"


@pytest.mark.parametrize(
    "name", [*CATALOGUE, *ROUNDINGS, *RULES, *MEAN_RULES, *OVERFLOWS, *NONFINITES, *ZERO_BLOCKS]
)
def test_every_format_and_choice_appears(name: str) -> None:
    assert f"`{name}`" in MANUAL


@pytest.mark.parametrize("task", TASKS)
def test_every_task_has_its_line_in_the_table_of_models(task: str) -> None:
    assert f"\n| `{task}` | " in (ROOT / "docs" / "compare.md").read_text("utf-8")


def test_every_command_and_option_appears() -> None:
    command = typer.main.get_command(app)
    for name, sub in command.commands.items():
        assert f"fewbits {name}" in MANUAL
        for parameter in sub.params:
            for option in parameter.opts:
                assert not option.startswith("--") or option in MANUAL, option


def test_every_command_line_of_the_readme_parses() -> None:
    command = typer.main.get_command(app)
    for line in re.findall(r"^fewbits ([^#\n]*)", MANUAL, re.MULTILINE):
        name, *rest = re.findall(r'"[^"]*"|[^\s"]+(?:"[^"]*")?', line)
        sub = command.commands[name]
        sub.make_context(name, [r.replace('"', "") for r in rest if r != "--help"], resilient_parsing=False)
