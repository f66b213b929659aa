"""Patterns of structured sparsity: at most N nonzero values of every M neighbours along one axis.

Accelerating Sparse Deep Neural Networks (Mishra and others 2021), section 3, has 2:4; 1:2 and 4:8 are
variants for wider and narrower values.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from fewbits.errors import FormatError
from fewbits.formats.format import whole

LARGEST_GROUP = 64
_TEXT = re.compile(r"\s*(\d{1,3})\s*:\s*(\d{1,3})\s*")


@dataclass(frozen=True)
class Pattern:
    """At most ``keep`` nonzero values in every group of ``group`` neighbours; prints as ``keep:group``.

    Raises:
        FormatError: they are not integers, or ``1 <= keep < group <= 64`` does not hold.
    """

    keep: int
    group: int

    def __post_init__(self) -> None:
        keep, group = whole(self.keep), whole(self.group)
        if keep is None or group is None or not 1 <= keep < group <= LARGEST_GROUP:
            raise FormatError(
                f"a pattern keeps N of M, integers with 1 <= N < M <= {LARGEST_GROUP}, got "
                f"{self.keep!r:.60}:{self.group!r:.60}; 2:4 is the usual one"
            )
        object.__setattr__(self, "keep", keep)
        object.__setattr__(self, "group", group)

    def __str__(self) -> str:
        return f"{self.keep}:{self.group}"

    @property
    def density(self) -> Fraction:
        """Return the share of values that are kept."""
        return Fraction(self.keep, self.group)


def pattern(text: str | Pattern) -> Pattern:
    """Return the pattern that ``text`` names, such as ``"2:4"``; a Pattern is returned unchanged.

    Raises:
        FormatError: ``text`` is not ``N:M`` with ``1 <= N < M <= 64``.
    """
    if isinstance(text, Pattern):
        return text
    match = _TEXT.fullmatch(str(text))
    if match is None:
        raise FormatError(f"a pattern is written N:M, such as 2:4 or 4:8, got {text!r}")
    return Pattern(int(match[1]), int(match[2]))
