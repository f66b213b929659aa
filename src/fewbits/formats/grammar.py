"""The format grammar: a catalogue name, or a constructor with arguments.

    format   := name | kind "(" argument { "," argument } ")"
    argument := [ key "=" ] ( number | word | format )

``parse(str(f)) == f`` for every format ``f``.
"""

from __future__ import annotations

import re
from dataclasses import MISSING, fields
from typing import Any

from fewbits.errors import FormatError
from fewbits.formats.blocks import Bdr, Block
from fewbits.formats.catalogue import CATALOGUE
from fewbits.formats.elements import Exponent, Fixed, Float, Lookup, Posit
from fewbits.formats.format import Format
from fewbits.formats.nearest import nearest

KINDS: dict[str, type[Format]] = {
    "float": Float,
    "int": Fixed,
    "fixed": Fixed,
    "posit": Posit,
    "lookup": Lookup,
    "exponent": Exponent,
    "block": Block,
    "bdr": Bdr,
}
_TOKEN = re.compile(
    r"\s*(?:(?P<number>[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(?![\w.])|(?P<word>\w+)|(?P<mark>[(),=]))",
    re.ASCII,
)
_DEEPEST = 4  # block(element=...) nests once; deeper nesting is a mistake or an attack


def parse(text: str | Format) -> Format:
    """Read a format from its name or its constructor.

    Args:
        text: for example ``"mxfp4"`` or ``"block(element=float(e=2,m=1),scale=e8m0,size=32)"``; a Format is
            returned unchanged.

    Raises:
        FormatError: the text is not a format; the message marks the position or suggests formats.

    >>> parse("block(element=float(e=2,m=1),scale=e8m0,size=32)") == parse("mxfp4")
    True
    """
    if isinstance(text, Format):
        return text
    if not isinstance(text, str):
        raise FormatError(f"a format is written as text, for example 'mxfp4'; got {type(text).__name__}")
    if len(text) > 1_000_000:
        raise FormatError(f"a format text of {len(text)} characters; expected at most 1000000")
    return _Parser(text).whole_text()


def split(text: str) -> list[str]:
    """Split a list at its commas, but not at those within the brackets of a format.

    >>> split("weight=int(8),gradient=block(element=fp16,scale=e8m0,size=32)")
    ['weight=int(8)', 'gradient=block(element=fp16,scale=e8m0,size=32)']
    """
    parts, depth = [""], 0
    for letter in text:
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


class _Parser:
    """Recursive descent over the tokens of one text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.depth = 0

    def fail(self, expected: str) -> FormatError:
        """Return an error that marks the current position in the user's text."""
        at = self.at + len(self.text[self.at :]) - len(self.text[self.at :].lstrip())
        low, high = max(0, at - 60), at + 40
        before = ("..." if low else "") + self.text[low:at]
        after = self.text[at:high] + ("..." if self.text[high:] else "")
        shown = f"{before} >>> {after}".strip()
        return FormatError(
            f"cannot read the format at character {at + 1}, marked >>>: {shown!r}; expected {expected}"
        )

    def peek(self) -> tuple[str, str]:
        """Return the kind and text of the next token without taking it."""
        token = _TOKEN.match(self.text, self.at)
        return (token.lastgroup or "", token.group(token.lastgroup or 0)) if token else ("", "")

    def take(self) -> str:
        """Take the next token."""
        token = _TOKEN.match(self.text, self.at)
        if token is None:
            raise self.fail("a name or a number")
        self.at = token.end()
        return token.group(token.lastgroup or 0)

    def expect(self, mark: str) -> None:
        if self.peek() != ("mark", mark):
            raise self.fail(f"{mark!r}")
        self.take()

    def whole_text(self) -> Format:
        format = self.format()
        if self.text[self.at :].strip():
            raise self.fail("the end of the text")
        return format

    def format(self) -> Format:
        start = self.at
        if self.peek()[0] != "word":
            raise self.fail("the name of a format")
        name = self.take()
        if self.peek() == ("mark", "("):
            if name not in KINDS:
                self.at = start
                raise self.fail(f"one of the constructors {', '.join(KINDS)}")
            return self.constructor(name, start)
        if name in CATALOGUE:
            return CATALOGUE[name].format
        name = name if len(name) <= 60 else f"{name[:60]}..."
        text = self.text.strip()  # names such as torch.bfloat16 are not words of the grammar
        near = nearest(text if re.fullmatch(r"[\w.-]{1,60}", text) else name)
        hint = f"; the nearest are {', '.join(near)}" if near else ""
        raise FormatError(f"there is no format named {name!r}{hint}; `fewbits formats` lists them all")

    def constructor(self, kind: str, start: int) -> Format:
        self.depth += 1
        if self.depth > _DEEPEST:
            raise self.fail(f"at most {_DEEPEST} constructors inside each other")
        self.expect("(")
        positional: list[Any] = []
        named: dict[str, Any] = {}
        keys = {f.metadata.get("key") or f.name: f.name for f in fields(KINDS[kind])}
        while True:
            self.argument(keys, positional, named)
            if self.peek() != ("mark", ","):
                break
            self.take()
        self.expect(")")
        self.depth -= 1
        return self.build(kind, positional, named, start)

    def argument(self, keys: dict[str, str], positional: list[Any], named: dict[str, Any]) -> None:
        before = self.at
        if self.peek()[0] == "word":
            word = self.take()
            if self.peek() == ("mark", "="):
                if keys.get(word, "") in ("", *named):
                    self.at = before
                    raise self.fail(
                        "numbers only"  # of a list
                        if "*" in keys
                        else f"an argument not given before, of {', '.join(keys)}"
                    )
                self.take()
                named[keys[word]] = self.value()
                return
            self.at = before
        if named:
            raise self.fail("key=value after an earlier key=value")
        positional.append(self.value())

    def value(self) -> Any:
        kind, text = self.peek()
        if kind == "number":
            if re.search("[1-9]", text.lower().partition("e")[0]) and float(text) == 0:
                raise self.fail("zero, or a number that a float64 holds")
            self.take()
            return int(text) if re.fullmatch(r"[+-]?\d{1,9}", text) else float(text)
        if kind != "word":
            raise self.fail("a number, a word or a format")
        after = _TOKEN.match(self.text, self.at)
        follow = _TOKEN.match(self.text, after.end()) if after else None
        if text in CATALOGUE or (follow is not None and follow.group("mark") == "("):
            return self.format()
        return self.take()

    def build(self, kind: str, positional: list[Any], named: dict[str, Any], start: int) -> Format:
        cls = KINDS[kind]
        order = list(fields(cls))
        first_key = order[0].metadata.get("key")  # "" for one that needs no key, "*" for a list of them
        if first_key == "*":
            positional = [tuple(positional)]
            if not all(isinstance(v, int | float) for v in positional[0]):
                self.at = start
                raise self.fail(f"{kind}: numbers only")
        limit = 1 if first_key in ("", "*") else 0
        if len(positional) > limit:
            self.at = start
            raise self.fail(f"{kind}: key=value arguments{' after the first' if limit else ''}")
        if positional and order[0].name in named:
            self.at = start
            raise self.fail(f"{kind}: {order[0].name} given once")
        named |= {f.name: v for f, v in zip(order, positional, strict=False)}
        missing = [f for f in order if f.default is MISSING and f.name not in named]
        if missing:
            self.at = start
            wanted = ", ".join(str(f.metadata.get("key") or f.name) for f in missing)
            raise self.fail(f"{kind} with {wanted}")
        if kind == "int" and named.get("frac", 0) != 0:
            raise FormatError("int: an integer has no frac; write fixed(bits,frac=...)")
        return cls(**named)
