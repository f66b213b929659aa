"""What every format declares: its element, what its values share, its defaults, and its name.

The two abstract definitions are here. :class:`Format` is any format; :class:`Element` is one whose every
value stands alone. Their kinds are in ``elements/`` and ``blocks.py``, the named ones in ``catalogue.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from fewbits.errors import FormatError

Size = int | str
"""How many values share a number: a count, ``"channel"`` for a whole line, ``"tensor"`` for the array."""


class Group(NamedTuple):
    """A part of a stored array: one number for every ``size`` values along the block axis."""

    element: Element  # what the number is held in
    size: Size = 1

    @property
    def bits(self) -> int:
        """Width of the number."""
        return self.element.bits

    @property
    def power_of_two(self) -> bool:
        """Whether the number is a power of two, which a scale rule chooses."""
        return self.element.power_of_two


class Groups(NamedTuple):
    """The parts that an array is stored in, in their order; None for a part that the format lacks.

    A value is its code's times 2^-shift times scale times outer scale.
    """

    codes: Group  # one for each value
    scales: Group | None = None
    shifts: Group | None = None  # microexponents: an unsigned integer, which sets how far a value is shifted
    outer: Group | None = None  # a scale over the scales

    @property
    def shared(self) -> tuple[Group, ...]:
        """The parts beside the codes, those that there are."""
        return tuple(group for group in self[1:] if group is not None)


class ValueGrid(NamedTuple):
    """The values of an element that lie evenly in each binade, as :class:`Float` and :class:`Fixed` do.

    From 2^e to 2^(e+1) they are the multiples of 2^(max(e, emin) - mantissa_bits).
    """

    emin: int  # exponent of the lowest binade that has steps of its own
    mantissa_bits: int  # bits behind the leading one in every binade from emin on
    sign: str  # "bit", "twos_complement" or "none"


@dataclass(frozen=True)
class Entry:
    """One format of the catalogue."""

    name: str
    format: Format
    source: str  # specification or paper
    summary: str  # one line for a reader who does not know it


_ENTRIES: dict[Format, Entry] = {}


def enter(entry: Entry) -> None:
    """Give an entry's name to its format, and to all that equal it; the first name stays.

    The catalogue calls it. A format finds its name without importing the catalogue, which is made of formats.
    """
    _ENTRIES.setdefault(entry.format, entry)


@dataclass(frozen=True, repr=False)
class Format:
    """A number format: what bits mean. Frozen, comparable, hashable; ``repr`` is its table."""

    if TYPE_CHECKING:  # each is a field, a constant or a property of the format that defines it

        @property
        def kind(self) -> str:
            """Name of the constructor in the grammar."""

        @property
        def element(self) -> Element:
            """What each value is held in: the format itself where no scale is shared."""

        @property
        def groups(self) -> Groups:
            """The parts that an array is stored in."""

        @property
        def bits_per_value(self) -> float:
            """Bits of storage for one value, scales counted, for an array that its blocks fill."""

        @property
        def default_overflow(self) -> str:
            """What an element beyond the largest becomes unless ``overflow`` says."""

        @property
        def default_nonfinite(self) -> str:
            """What NaN and infinity become unless ``nonfinite`` says."""

        @property
        def default_zero_block(self) -> str:
            """The scale of a block of zeros: the ``smallest`` that there is, or ``one``."""

    @property
    def block_size(self) -> int:
        """Values along the axis that share a scale; 1 where the scale has no such count."""
        scales = self.groups.scales
        return 1 if scales is None or isinstance(scales.size, str) else scales.size

    @property
    def largest_shift(self) -> int:
        """Most that a shared microexponent shifts by."""
        return 0

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
    def entry(self) -> Entry | None:
        """The first entry of the catalogue with an equal format; None for one that is not catalogued."""
        return _ENTRIES.get(self)

    @property
    def name(self) -> str:
        """The catalogue's name for this format, or its grammar."""
        return self.grammar if self.entry is None else self.entry.name

    @property
    def facts(self) -> tuple[tuple[str, str], ...]:
        """Pairs (property, value): everything a reader of the specification would look up."""
        rows = [
            ("format", self.name),
            ("written as", self.grammar),
            ("bits per value", f"{self.bits_per_value:g}"),
        ]
        _, scales, shifts, outer = self.groups
        if scales is not None:
            rows.append(("scale", f"{scales.element}, {_one_per(scales.size)}"))
        if shifts is not None:
            rows.append(("microexponent", f"a shift by 0 to {self.largest_shift}, {_one_per(shifts.size)}"))
        if outer is not None:
            rows.append(("outer scale", f"{outer.element}, {_one_per(outer.size)}"))
        if self.element is not self:
            rows.append(("element", str(self.element)))
        rows += self.element.value_facts
        if self.entry is not None:
            rows += [("summary", self.entry.summary), ("source", self.entry.source)]
        return tuple(rows)

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        width = max(len(what) for what, _ in self.facts)
        return "\n".join(f"{what:<{width}}  {value}" for what, value in self.facts)


class Element(Format):
    """A format whose every value stands alone: no scale is shared."""

    default_zero_block: ClassVar[str] = "one"
    power_of_two: ClassVar[bool] = False  # whether every value is one: no sign, no zero, no mantissa
    reals_only: ClassVar[bool] = False  # whether infinity is no overflow but NaN, which no number rounds to

    if TYPE_CHECKING:

        @property
        def bits(self) -> int:
            """Width of one code."""

        @property
        def max(self) -> float:
            """Largest finite value."""

        @property
        def min(self) -> float:
            """Most negative finite value."""

        @property
        def smallest_normal(self) -> float:
            """Smallest positive value with a full mantissa."""

        @property
        def smallest_subnormal(self) -> float:
            """Smallest positive value."""

        @property
        def emin(self) -> int:
            """Exponent of the smallest normal value."""

        @property
        def emax(self) -> int:
            """Exponent of the largest finite value."""

    @property
    def element(self) -> Element:
        """The format itself."""
        return self

    @property
    def groups(self) -> Groups:
        """One code for each value."""
        return Groups(Group(self))

    @property
    def bits_per_value(self) -> float:
        """Bits of storage for one value."""
        return float(self.bits)

    @property
    def grid(self) -> ValueGrid | None:
        """The grid that the values lie on; None: they lie on none, and a table lists them."""
        return None

    @property
    def nan_code(self) -> int | None:
        """The code of NaN, quiet and positive where there are several; None: no code is."""
        return None

    @property
    def inf_code(self) -> int | None:
        """The code of plus infinity; None: no code is."""
        return None

    @property
    def signed_zero(self) -> bool:
        """Whether minus zero has a code."""
        return False

    @property
    def code_count(self) -> int:
        """How many codes mean something: those below it."""
        return 1 << self.bits

    @property
    def has_nan(self) -> bool:
        """Whether a code is NaN."""
        return self.nan_code is not None

    @property
    def has_inf(self) -> bool:
        """Whether two codes are infinities."""
        return self.inf_code is not None

    @property
    def has_zero(self) -> bool:
        """Whether a code is zero."""
        return not self.power_of_two

    @property
    def finest_step(self) -> float:
        """Smallest distance between two values."""
        return self.smallest_subnormal

    @property
    def default_overflow(self) -> str:
        """Infinity where the format has one (IEEE 754-2019, section 7.4), else the largest value."""
        return "inf" if self.has_inf else "saturate"

    @property
    def default_nonfinite(self) -> str:
        """Keep NaN where it can be coded; where it cannot, refuse it rather than invent a number."""
        return "element" if self.has_nan else "raise"

    @property
    def value_facts(self) -> list[tuple[str, str]]:
        """Those of the facts that tell about values."""
        return [("largest", f"{self.max:.9g}"), ("most negative", f"{self.min:.9g}"), *self._finest_facts()]

    def _finest_facts(self) -> list[tuple[str, str]]:
        return [("smallest", f"{self.smallest_normal:.9g}")]


def _one_per(size: Size) -> str:
    return f"one per {size}" if isinstance(size, str) else f"one per {size} values"


def integer(what: str, value: object, low: int, high: int) -> None:
    """Raise FormatError unless ``value`` is an integer from ``low`` to ``high``."""
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise FormatError(f"{what}={value} is not an integer from {low} to {high}")
