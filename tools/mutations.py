"""Small deliberate mistakes in Python source: what a test suite is expected to notice.

Each replaces one node of the syntax tree by a likely slip: `<` by `<=`, `+` by `-`, `and` by `or`, a number
by its neighbour, a keyword argument by nothing. Texts, types, decorators and error messages are left alone.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_COMPARISONS = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
_OPERATORS = {
    ast.Add: "-",
    ast.Sub: "+",
    ast.Mult: "/",
    ast.Div: "*",
    ast.FloorDiv: "/",
    ast.Mod: "*",
    ast.Pow: "*",
    ast.LShift: ">>",
    ast.RShift: "<<",
    ast.BitAnd: "|",
}
_FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any"}
# Text for people, and a check of lengths that only a broken caller could fail.
_KEPT_KEYWORDS = {"paper", "strict", "help", "stacklevel"}


@dataclass(frozen=True)
class Mutation:
    """One mistake: the bytes from ``start`` to ``end`` of a file become ``after``."""

    path: str
    scope: str  # the dotted name of the function or class around it
    line: int
    start: int
    end: int
    before: str
    after: str
    text: str  # the line that it stands in

    def apply(self, source: bytes) -> bytes:
        """Return the source with the mistake made."""
        return source[: self.start] + self.after.encode() + source[self.end :]

    @property
    def identity(self) -> tuple[str, str, str, str, str]:
        """Return what names it even when lines above it move."""
        return self.path, self.scope, self.text, self.before, self.after


def mutations(root: Path, path: str) -> list[Mutation]:
    """Return every mutation of one file, in the order of the file.

    Args:
        root: the folder that ``path`` is relative to.
        path: a Python file.

    Raises:
        SyntaxError: the file is not Python.
    """
    source = _Source((root / path).read_bytes())
    result = []
    for scope, node in _nodes(ast.parse(source.content), ""):
        for begin, end, after in _changes(node, source):
            start, stop = source.offset(begin), source.offset(end)
            before = source.content[start:stop].decode()
            text = source.lines[begin[0] - 1].decode().strip()
            result.append(Mutation(path, scope, begin[0], start, stop, before, after, text))
    return result


Place = tuple[int, int]  # line from one, byte of the line from zero, as the syntax tree has them
Change = tuple[Place, Place, str]


class _Source:
    """A file with the places of its syntax tree."""

    def __init__(self, content: bytes) -> None:
        self.content, self.lines = content, content.split(b"\n")
        self._starts = [0]
        for line in self.lines:
            self._starts.append(self._starts[-1] + len(line) + 1)

    def offset(self, place: Place) -> int:
        return self._starts[place[0] - 1] + place[1]

    def operator(self, left: ast.expr, right: ast.expr, new: str) -> Change:
        """Return the change of the operator between two operands, brackets and line ends kept."""
        begin, end = _end(left), _begin(right)
        old = self.content[self.offset(begin) : self.offset(end)].decode()
        return begin, end, re.sub(r"[^\s()\\]+(?:\s+(?:not|in)\b)?", new, old, count=1)


def _nodes(node: ast.AST, scope: str) -> Iterator[tuple[str, ast.expr | ast.stmt]]:
    """Yield each node that may change, with the dotted name around it."""
    if isinstance(node, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom | ast.Assert) or _is_text(
        node
    ):
        return
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        scope = f"{scope}.{node.name}".lstrip(".")
    if isinstance(node, ast.expr | ast.stmt):
        yield scope, node
    for name, child in ast.iter_fields(node):
        if name not in ("annotation", "returns", "decorator_list"):
            for item in child if isinstance(child, list) else [child]:
                kept = isinstance(item, ast.keyword) and item.arg in _KEPT_KEYWORDS
                if isinstance(item, ast.AST) and not kept:
                    yield from _nodes(item, scope)


def _is_text(node: ast.AST) -> bool:
    """Return whether a statement is documentation, a list of names, or for type checkers only."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, ast.Assign):
        return any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets)
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def _begin(node: ast.expr | ast.stmt | ast.keyword) -> Place:
    return node.lineno, node.col_offset


def _end(node: ast.expr | ast.stmt | ast.keyword) -> Place:
    return node.end_lineno or node.lineno, node.end_col_offset or 0


def _changes(node: ast.expr | ast.stmt, source: _Source) -> Iterator[Change]:
    """Yield what may become of one node."""
    begin, end = _begin(node), _end(node)
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]):
            yield source.operator(left, right, _COMPARISONS[type(op)])
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _OPERATORS and not _has_text(
            left, right
        ):
            yield source.operator(left, right, _OPERATORS[type(op)])
        case ast.BoolOp(op=op, values=[*_, left, right]):
            yield source.operator(left, right, "or" if isinstance(op, ast.And) else "and")
        case ast.UnaryOp(op=ast.Not() | ast.USub(), operand=operand):
            yield begin, end, f"({ast.unparse(operand)})"
        case ast.Constant(value=bool() | int() | float() as value):
            yield begin, end, _other(value)
        case ast.If(test=test) | ast.IfExp(test=test) | ast.While(test=test):
            if not isinstance(test, ast.Compare | ast.BoolOp | ast.UnaryOp | ast.Constant):
                yield _begin(test), _end(test), f"(not ({ast.unparse(test)}))"
        case ast.Expr(value=ast.Call()) | ast.AugAssign():
            yield begin, end, "pass"
        case ast.Break() | ast.Continue():
            yield begin, end, "break" if isinstance(node, ast.Continue) else "continue"
        case ast.Call(func=ast.Name(id=name)) if name in _FUNCTIONS:
            yield _begin(node.func), _end(node.func), _FUNCTIONS[name]
        case ast.Call(keywords=[*_] as keywords):
            yield from _without_keyword(node, keywords)


def _other(value: bool | int | float) -> str:
    """Return a literal's likely wrong twin."""
    if isinstance(value, bool):
        return str(not value)
    return str(value + 1) if isinstance(value, int) else repr(value * 2 or 1.0)


def _has_text(*nodes: ast.expr) -> bool:
    """Return whether an operand is a text, which `+` joins."""
    return any(isinstance(n, ast.JoinedStr) or isinstance(getattr(n, "value", None), str) for n in nodes)


def _without_keyword(call: ast.Call, keywords: list[ast.keyword]) -> Iterator[Change]:
    """Yield the call without each of its keyword arguments."""
    for index, keyword in enumerate(keywords):
        if keyword.arg is None or keyword.arg in _KEPT_KEYWORDS or _inside(call, keyword):
            continue
        if index + 1 < len(keywords):
            yield _begin(keyword), _begin(keywords[index + 1]), ""
        else:
            before: list[ast.expr | ast.keyword] = [*call.args, *keywords[:index]]
            yield (_end(before[-1]) if before else _begin(keyword)), _end(keyword), ""


def _inside(call: ast.Call, keyword: ast.keyword) -> bool:
    """Return whether a positional argument follows the keyword (`f(a=1, *rest)`)."""
    return any(_begin(a) > _begin(keyword) for a in call.args)
