"""docs/landscape.md is true: what it names exists, and no system of the field is missing."""

import ast
import importlib
import inspect
import json
import re
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer

from fewbits.cli.main import app
from fewbits.errors import FewbitsError, MissingDependencyError
from fewbits.formats import CATALOGUE
from fewbits.recipes import codec, recipe
from fewbits.solvers import krylov_precision, precision

ROOT = Path(__file__).parents[2]
TOOL = runpy.run_path(str(ROOT / "tools" / "landscape.py"), run_name="tool")
DATA = json.loads(TOOL["DATA"].read_text("utf-8"))
ROWS = [row for group in DATA["groups"] for row in group["rows"]]
NEXT = ROOT / "tools" / "landscape_next.json"  # rows of what is not here yet

# What the field consists of, as rows call it; what is not offered has a row too.
SYSTEMS = (
    "Microscaling",
    "Block Data Representations",
    "2:4 sparsity",
    "mixed precision training",
    "AMP",
    "TF32",
    "QUDA",
    "TCAIRS",
    "PaSE",
    "DropBack",
    "MLPerf Training",
    "FP8-LM",
    "FP8 with enhanced loss scaling",
    "limited numerical precision",
    "posit training",
    "MuPPET",
    "BFloat16 training revisited",
    "mixed-precision assignments",
    "MPX for JAX",
    "ImageNet in four minutes",
    "LARS",
    "public-cloud clusters",
    "HiTopKComm",
    "APS",
    "training without mixed precision",
    "efficient CPU training",
    "subband decomposition",
    "low-precision FPGA inference",
    "decentralized diffusion",
    "half-precision recurrent networks",
    "data filtering for large batches",
    "training without multiplications",
    "asynchronous SGD",
    "parameter servers",
    "error feedback",
    "momentum correction",
    "DiLoCo",
    "ZeRO",
    "Megatron",
    "GPTQ",
    "GPFQ",
    "deflation",
)


def missing(systems: tuple[str, ...], rows: list[Any]) -> list[str]:
    """The systems that no row names."""
    text = "\n".join(row["technique"] for row in rows).lower()
    return [name for name in systems if not re.search(rf"\b{re.escape(name.lower())}\b", text)]


def problems(row: Any) -> list[str]:
    """What is wrong with a row: nothing, in a good one."""
    found = [f"{key} is no field" for key in row.keys() - {*FIELDS, "technique", "source"}]
    found += [f"{key} is empty" for key in ("technique", "source") if not row.get(key)]
    if ("offers" in row) == ("refused" in row):
        found.append("a row says either what there is or why there is nothing")
    if "offers" in row and not {"docs", "proof"} <= row.keys():
        found.append("what is offered has a page and a proof")
    for field, wrong in FIELDS.items():
        given = row.get(field, [])
        found += [text for item in ([given] if isinstance(given, str) else given) if (text := wrong(item))]
    return found


def wrong_offer(offer: str) -> str:
    """Why a format, recipe, codec, precision, command line or public name is not there; empty: it is."""
    kind, name = TOOL["kind_and_name"](offer)
    if kind:
        return "" if KINDS[kind](name) else f"no {kind} {name}"
    return wrong_command(offer) if offer.startswith("fewbits ") else wrong_name(offer)


def is_read(*readers: Callable[[str], object]) -> Callable[[str], bool]:
    """A function that says whether any of the readers takes a text."""

    def taken(text: str) -> bool:
        for read in readers:
            try:
                read(text)
            except FewbitsError:
                continue
            return True
        return False

    return taken


def wrong_name(text: str) -> str:
    """Why ``fewbits.a.b(option=)`` is not there."""
    match = re.fullmatch(r"(fewbits(?:\.\w+)+)(?:\((\w+=(?:, \w+=)*)\))?", text)
    if match is None:
        return f"{text} is no public name"
    value: Any = importlib.import_module("fewbits")
    path = "fewbits"
    for part in match[1].split(".")[1:]:
        path += f".{part}"
        if part.startswith("_"):
            return f"{path} is not public"
        if not hasattr(value, part):
            try:
                importlib.import_module(path)
            except MissingDependencyError as error:
                pytest.skip(str(error))
            except ImportError:
                return f"no {path}"
        value = getattr(value, part)
    options = match[2].replace("=", "").split(", ") if match[2] else []
    known = inspect.signature(value).parameters if options else {}
    return "".join(f"{path} has no option {option}" for option in options if option not in known)


def wrong_command(line: str) -> str:
    """Why a command line does not parse."""
    name, *rest = re.findall(r'"[^"]*"|[^\s"]+(?:"[^"]*")?', line.removeprefix("fewbits "))
    command: Any = typer.main.get_command(app)
    if name not in command.commands:
        return f"no command {name}"
    try:
        command.commands[name].make_context(name, [r.replace('"', "") for r in rest])
    except Exception as error:
        return f"{line}: {error}"
    return ""


def wrong_link(link: str) -> str:
    """Why a page of docs/, or a heading of it, is not there."""
    name, _, anchor = link.partition("#")
    page = ROOT / "docs" / name
    if not page.is_file():
        return f"no docs/{name}"
    text = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    anchors = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
    return "" if not anchor or anchor in anchors else f"docs/{name} has no heading {anchor}"


def wrong_proof(proof: str) -> str:
    """Why a test, or a command line, is not there."""
    if proof.startswith("fewbits "):
        return wrong_command(proof)
    name, _, test = proof.partition("::")
    path = ROOT / name
    if not (name.startswith("tests/") and path.is_file()):
        return f"no test file {name}"
    tests = {f.name for f in ast.parse(path.read_text("utf-8")).body if isinstance(f, ast.FunctionDef)}
    return "" if test.startswith("test_") and test in tests else f"{name} has no test {test}"


KINDS: dict[str, Callable[[str], bool]] = {
    "format": CATALOGUE.__contains__,
    "recipe": is_read(recipe),
    "codec": is_read(codec),
    "precision": is_read(precision, krylov_precision),
}
FIELDS: dict[str, Callable[[str], str]] = {
    "offers": wrong_offer,
    "docs": wrong_link,
    "proof": wrong_proof,
    "refused": lambda reason: "" if reason else "a refusal without a reason",
    "note": lambda note: "" if note else "an empty note",
}
GOOD = {
    "technique": "Loss scaling",
    "source": "-",
    "offers": ["recipe fp16-master", "fewbits.optim.scaler"],
    "docs": "training.md#loss-scaling",
    "proof": "tests/docs/test_landscape.py::test_a_good_row_has_no_problem",
}


def test_the_page_is_what_the_tool_writes() -> None:
    assert TOOL["PAGE"].read_text("utf-8") == TOOL["page"](DATA), "run python tools/landscape.py"
    assert TOOL["page"]({"groups": DATA["groups"][1:]}) != TOOL["page"](DATA)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["technique"])
def test_a_row_says_what_is_there(row: Any) -> None:
    assert problems(row) == []


def test_no_system_of_the_field_is_missing() -> None:
    data = TOOL["joined"](DATA, json.loads(NEXT.read_text("utf-8"))) if NEXT.exists() else DATA
    rows = [row for group in data["groups"] for row in group["rows"]]
    assert missing(SYSTEMS, rows) == []
    assert len({row["technique"] for row in rows}) == len(rows)
    assert missing(("PaSE", "Tensor Core folding"), rows) == ["Tensor Core folding"]
    assert missing(("PaSE",), [row for row in rows if "PaSE" not in row["technique"]]) == ["PaSE"]


def test_a_good_row_has_no_problem() -> None:
    assert problems(GOOD) == []
    assert problems({"technique": "x", "source": "-", "refused": "nobody asked"}) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"offers": ["fewbits.optim.scalar"]}, "no fewbits.optim.scalar"),
        ({"offers": ["fewbits.optim._private"]}, "not public"),
        ({"offers": ["fewbits.optimise.scaler"]}, "no fewbits.optimise"),
        ({"offers": ["LossScaler"]}, "no public name"),
        ({"offers": ["fewbits.quantize(sparsity=, colour=)"]}, "no option colour"),
        ({"offers": ["format mxfp5"]}, "no format mxfp5"),
        ({"offers": ["recipe fp16-master", "recipe fp16-slave"]}, "no recipe fp16-slave"),
        ({"offers": ["codec topk:density=2"]}, "no codec"),
        ({"offers": ["precision int9x3"]}, "no precision"),
        ({"offers": ["fewbits trane --task digits"]}, "no command trane"),
        ({"offers": ["fewbits train --taks digits"]}, "--taks"),
        ({"proof": "fewbits train --steps many"}, "many"),
        ({"proof": "tests/docs/test_landscape.py::test_that_nobody_wrote"}, "has no test"),
        ({"proof": "tests/docs/test_landscape.py::problems"}, "has no test"),
        ({"proof": "tests/docs/test_nothing.py::test_x"}, "no test file"),
        ({"proof": "it works"}, "no test file"),
        ({"docs": "trainings.md"}, "no docs/trainings.md"),
        ({"docs": "training.md#lost-scaling"}, "no heading lost-scaling"),
        ({"docs": []}, "page and a proof"),
        ({"refused": "no time"}, "either what there is or why"),
        ({"offers": None}, "either what there is or why"),
        ({"source": ""}, "source is empty"),
        ({"year": "2018"}, "year is no field"),
        ({"note": ""}, "an empty note"),
    ],
)
def test_a_wrong_row_is_refused(change: dict[str, Any], said: str) -> None:
    row = {key: value for key, value in (GOOD | change).items() if value not in (None, [])}
    assert any(said in text for text in problems(row)), problems(row)


def test_a_heading_within_code_is_no_heading() -> None:
    assert wrong_link("training.md#0--embedding--narrow--weightmxfp4")


def test_rows_of_another_file_come_behind_those_of_their_group() -> None:
    here = {"groups": [{"name": "a", "rows": [1]}, {"name": "b", "rows": [2]}]}
    more = {"groups": [{"name": "c", "rows": [4]}, {"name": "a", "rows": [3]}]}
    assert TOOL["joined"](here, more) == {
        "groups": [{"name": "a", "rows": [1, 3]}, {"name": "b", "rows": [2]}, {"name": "c", "rows": [4]}]
    }
    assert here["groups"][0]["rows"] == [1]


def test_cells_hold_what_a_row_says() -> None:
    row = {
        "technique": "a|b",
        "source": "-",
        "offers": ["recipe mx9", "recipe mx6", "fewbits.plan"],
        "note": "or so",
        "docs": "training.md#loss-scaling",
        "proof": "fewbits recipes",
    }
    refused = {"technique": "c", "source": "d", "refused": "e"}
    text = TOOL["page"]({"groups": [{"name": "g", "rows": [row, refused]}]})
    assert text.endswith(
        "| a\\|b | - | recipe `mx9`, `mx6`; `fewbits.plan`; or so | [training.md](training.md#loss-scaling) |"
        " `fewbits recipes` |\n| c | d | not offered: e | - | - |\n"
    )
