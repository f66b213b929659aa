"""What every format has in common: a text that parses back, a name where it is catalogued, and a size."""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

from fewbits.errors import FormatError


@dataclass(frozen=True, repr=False)
class Format:
    """A number format: what bits mean. Frozen, comparable, hashable; ``repr`` is its table."""

    @property
    def kind(self) -> str:
        """Name of the constructor in the grammar."""
        raise NotImplementedError

    @property
    def bits_per_value(self) -> float:
        """Bits of storage for one value, scales counted, for an array that its blocks fill."""
        raise NotImplementedError

    @cached_property
    def grammar(self) -> str:
        """The constructor without arguments at their default; :func:`fewbits.formats.parse` reads it back."""
        parts = []
        for f in fields(self):
            value, key = getattr(self, f.name), f.metadata.get("key", f.name)
            if value == f.default:
                continue
            if key == "*":
                parts += [f"{v:.17g}" for v in value]
            else:
                text = str(value)
                parts.append(f"{key}={text}" if key else text)
        return f"{self.kind}({','.join(parts)})"

    @property
    def name(self) -> str:
        """The catalogue's name for this format, or its grammar."""
        from fewbits.formats.catalogue import name_of  # the catalogue is made of formats

        return name_of(self) or self.grammar

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        from fewbits.formats.describe import describe  # it describes with the catalogue

        return describe(self)


def integer(what: str, value: object, low: int, high: int) -> None:
    """Raise FormatError unless ``value`` is an integer from ``low`` to ``high``."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise FormatError(f"{what}={value} is not an integer from {low} to {high}")
