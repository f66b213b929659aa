"""Write docs/surface.md: every public name with its types, out of the package itself."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import fewbits

PAGE = Path(__file__).parents[1] / "docs" / "surface.md"
HEAD = """\
# The public surface

Every public name with the types that a type checker sees. `tools/surface.py` writes this page out of the
package; a test holds it to what is there. A name that is not on this page is not public and may change
without notice.

Each format of [the catalogue](formats.md#the-catalogue) is a name of `fewbits` too: `fewbits.mxfp4` is a
`fewbits.formats.Format`. What other pages name of `fewbits.kernels.reference` are definitions to be read, and
no names to be imported.
"""
# Modules below the folders that `fewbits` lists, which the other pages import from.
BELOW = (
    "evidence",
    "integrations.lightning",
    "integrations.transformers",
    "planner.capture",
    "planner.execution",
    "solvers.lattice",
    "train.tasks",
)


class Entry(NamedTuple):
    """One public name."""

    name: str  # "solve", or "Factorization.solve"
    types: str  # its signature, or the type of a constant or attribute
    summary: str  # first sentence of its docstring


def modules() -> list[ModuleType]:
    """The top of the package, then each folder that it lists, and what is public below these."""
    folders = [value for name in dir(fewbits) if inspect.ismodule(value := getattr(fewbits, name))]
    for name in ("jax", *BELOW):
        with suppress(ImportError):  # of a package of an extra
            folders.append(import_module(f"fewbits.{name}"))
    return sorted([fewbits, *folders], key=lambda module: module.__name__)


def entries(module: ModuleType) -> Iterator[Entry]:
    """The public names of one module, classes with their public methods and properties."""
    if module is fewbits.typing:
        yield from _aliases(module)
        return
    for name in sorted(module.__all__):
        value = getattr(module, name)
        if inspect.isclass(value):
            yield from _class(name, value)
        elif callable(value) and hasattr(value, "__module__") and not _is_type(value):
            yield Entry(name, _signature(value), _summary(value))
        else:
            yield Entry(name, _constant(value), "")


def _class(name: str, cls: type) -> Iterator[Entry]:
    constructor = "class" if issubclass(cls, Exception) or not _own(cls, "__init__") else _signature(cls)
    yield Entry(name, constructor.replace(" -> None", ""), _summary(cls))
    for attribute, value in sorted(vars(cls).items()):
        if attribute.startswith("_"):
            continue
        if isinstance(value, property):
            if value.fget is not None:
                yield Entry(f"{name}.{attribute}", _returns(value.fget), _summary(value.fget))
        elif isinstance(value, (classmethod, staticmethod)):
            yield Entry(f"{name}.{attribute}", _signature(value.__func__), _summary(value.__func__))
        # torch's Optimizer puts its own `step` into a class when it makes an instance: left out, by its name.
        elif inspect.isfunction(value) and value.__qualname__ == f"{cls.__qualname__}.{attribute}":
            yield Entry(f"{name}.{attribute}", _signature(value), _summary(value))


def _own(cls: type, method: str) -> bool:
    """Whether a class, or a base class of this package, defines a method."""
    return any(method in vars(base) for base in cls.__mro__ if base.__module__.startswith("fewbits"))


def _is_type(value: object) -> bool:
    return not (inspect.isfunction(value) or inspect.isbuiltin(value) or inspect.ismethod(value))


def _signature(function: Callable[..., object]) -> str:
    signature = inspect.signature(function)
    parameters = [p for p in signature.parameters.values() if p.name not in {"self", "cls"}]
    return _tidy(str(signature.replace(parameters=parameters)))


def _returns(function: Callable[..., object]) -> str:
    return _tidy(str(inspect.signature(function).return_annotation))


def _constant(value: object) -> str:
    """The type of a constant, with that of its items."""
    if isinstance(value, Mapping):
        key, item = next(iter(value.items()))
        return f"Mapping[{type(key).__name__}, {type(item).__name__}]"
    return f"tuple[{type(value[0]).__name__}, ...]" if isinstance(value, tuple) else type(value).__name__


def _aliases(module: ModuleType) -> Iterator[Entry]:
    """Types by name: what each stands for, and the text below it."""
    body = ast.parse(inspect.getsource(module)).body
    for statement, below in pairwise(body):
        if isinstance(statement, ast.Assign) and isinstance(below, ast.Expr):
            name, text = ast.unparse(statement.targets[0]), ast.literal_eval(below.value)
            yield Entry(name, _tidy(ast.unparse(statement.value)), _first_paragraph(text))


def _tidy(text: str) -> str:
    text = re.sub(r"<function (\w+) at 0x\w+>", r"\1", text.replace("'", ""))
    return re.sub(r"\b(?:typing|collections\.abc|numpy)\.", "", text)


def _summary(value: object) -> str:
    return _first_paragraph(inspect.getdoc(value) or "")


def _first_paragraph(text: str) -> str:
    return re.sub(r"\s+", " ", text.split("\n\n", maxsplit=1)[0]).replace("``", "`")


def _cell(text: str) -> str:
    """Text as it may stand in a cell of a Markdown table."""
    return text.replace("|", r"\|")


def page() -> str:
    """The whole page."""
    parts = [HEAD]
    for module in modules():
        parts.append(f"\n## {module.__name__}\n")
        parts.append("| name | types | what it is |\n|---|---|---|")
        for entry in entries(module):
            parts.append(f"| `{entry.name}` | `{_cell(entry.types)}` | {_cell(entry.summary)} |")
    return "\n".join(parts) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
