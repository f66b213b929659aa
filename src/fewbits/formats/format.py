"""The abstract definitions: what every format declares.

:class:`Format` is any format; :class:`Element` is a format without shared scales. The kinds are in
``elements/`` and ``blocks.py``, the named formats in ``catalogue.py``.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from operator import index
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from fewbits.errors import FormatError
from fewbits.graphs import cached_property

Size = int | str
"""How many values share a number: a count, ``"channel"`` (a line along the block axis) or ``"tensor"``."""


class Group(NamedTuple):
    """A part of a stored array: one number for every ``size`` values along the block axis."""

    element: Element  # format of the number
    size: Size = 1

    @property
    def bits(self) -> int:
        """Width of the number."""
        return self.element.bits

    @property
    def power_of_two(self) -> bool:
        """Whether the number is a power of two, chosen by a scale rule."""
        return self.element.power_of_two


class Groups(NamedTuple):
    """The parts in which an array is stored, in order; None for a part that the format lacks.

    A value is element x 2^-shift x scale x outer scale.
    """

    codes: Group  # one for each value
    scales: Group | None = None
    shifts: Group | None = None  # microexponents: unsigned integers
    outer: Group | None = None  # a scale over the scales

    @property
    def shared(self) -> tuple[Group, ...]:
        """All parts that the format has, except the codes."""
        return tuple(group for group in self[1:] if group is not None)


class ValueGrid(NamedTuple):
    """The value grid of an element whose values are evenly spaced in each binade: Float and Fixed.

    From 2^e to 2^(e+1) they are the multiples of 2^(max(e, emin) - mantissa_bits).
    """

    emin: int  # exponent of the lowest binade with its own step
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
    """Register an entry as the name of its format and of all equal formats; the first name wins.

    The catalogue calls it, so that a format finds its name without importing the catalogue.
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
            """The format of each value: the format itself if no scale is shared."""

        @property
        def groups(self) -> Groups:
            """The parts in which an array is stored."""

        @property
        def bits_per_value(self) -> float:
            """Bits of storage per value, scales included, for an array of full blocks."""

        @property
        def default_overflow(self) -> str:
            """The default of ``overflow``: what an element above the largest value becomes."""

        @property
        def default_nonfinite(self) -> str:
            """The default of ``nonfinite``: what NaN and infinity become."""

        @property
        def default_zero_block(self) -> str:
            """The default of ``zero_block``: the scale of a block of zeros, ``smallest`` or ``one``."""

    @property
    def block_size(self) -> int:
        """Values along the axis that share a scale; 1 unless the format has blocks of a fixed size."""
        scales = self.groups.scales
        return 1 if scales is None or isinstance(scales.size, str) else scales.size

    @property
    def largest_shift(self) -> int:
        """Largest shift by a shared microexponent."""
        return 0

    @cached_property
    def grammar(self) -> str:
        """The constructor as text, without default arguments; :func:`fewbits.formats.parse` reads it."""
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
        """The first entry of the catalogue with an equal format; None if there is none."""
        return _ENTRIES.get(self)

    @property
    def name(self) -> str:
        """The name in the catalogue; the grammar text if the format is not in it."""
        return self.grammar if self.entry is None else self.entry.name

    @property
    def facts(self) -> tuple[tuple[str, str], ...]:
        """Pairs (property, value): the data sheet of the format."""
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
    """A format in which each value is coded on its own, without a shared scale."""

    default_zero_block: ClassVar[str] = "one"
    power_of_two: ClassVar[bool] = False  # whether all values are powers of two: no sign, zero or mantissa
    reals_only: ClassVar[bool] = False  # as in posits: infinity becomes NaN, and no number rounds to NaN

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
        """The grid of the values; None if they are not on a grid but in a table."""
        return None

    @property
    def nan_code(self) -> int | None:
        """The code of NaN, the quiet positive one if there are several; None if there is none."""
        return None

    @property
    def inf_code(self) -> int | None:
        """The code of plus infinity; None if there is none."""
        return None

    @property
    def signed_zero(self) -> bool:
        """Whether minus zero has a code."""
        return False

    @property
    def code_count(self) -> int:
        """Number of valid codes: all codes below it are valid."""
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
        """``element`` if the format has NaN, else ``raise``."""
        return "element" if self.has_nan else "raise"

    @property
    def value_facts(self) -> list[tuple[str, str]]:
        """The part of :meth:`facts` about values."""
        return [("largest", f"{self.max:.9g}"), ("most negative", f"{self.min:.9g}"), *self._finest_facts()]

    def _finest_facts(self) -> list[tuple[str, str]]:
        return [("smallest", f"{self.smallest_normal:.9g}")]


def _one_per(size: Size) -> str:
    return f"one per {size}" if isinstance(size, str) else f"one per {size} values"


def whole(value: object) -> int | None:
    """Return an integer, of NumPy too, as an int; None for all else, a bool too."""
    try:
        return None if isinstance(value, bool) else index(value)  # type: ignore[arg-type]  # it raises
    except TypeError:
        return None


def integer(format: Format, field: str, what: str, low: int, high: int) -> None:
    """Keep a field of ``format`` as an int; raise FormatError unless it is one from ``low`` to ``high``."""
    value = getattr(format, field)
    number = whole(value)
    if number is None or not low <= number <= high:
        raise FormatError(f"{what}={value} is not an integer from {low} to {high}")
    object.__setattr__(format, field, number)
