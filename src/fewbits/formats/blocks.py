"""Block formats, whose values share a scale, and the two-level Block Data Representations."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, prod
from typing import ClassVar, Literal

from fewbits.errors import ArgumentError, FormatError
from fewbits.formats.elements import Exponent, Fixed, Float
from fewbits.formats.format import Element, Format, Group, Groups, Size, integer, whole
from fewbits.graphs import cached_property

_FP32 = Float(8, 23, 127, "ieee")


@dataclass(frozen=True, repr=False)
class Block(Format):
    """One scale for every ``size`` elements along an axis, and optionally an outer scale over those scales.

    A value is element x scale x outer scale (OCP MX v1.0, section 5.1; NVFP4 and VSQ have the outer scale).
    """

    element: Element  # format of each value
    scale: Element  # format of the scale; exponent(...) is a power of two that a scale rule chooses
    size: Size  # values per scale along the axis; "channel": the whole axis; "tensor": the whole array
    outer: Element | None = None  # a scale over the scales, always fp32
    outer_size: Size | None = None  # "tensor" or "channel" share one outer scale

    kind: ClassVar[str] = "block"

    def __post_init__(self) -> None:
        element: object = self.element  # the grammar passes unchecked input
        if not isinstance(element, Element) or element.power_of_two:
            raise FormatError(
                f"block: element={self.element} is not a float, int, fixed, posit or lookup"
                + _if_text(element)
            )
        scale: object = self.scale
        if not isinstance(scale, Element) or (scale.grid is None and not scale.power_of_two):
            raise FormatError(
                f"block: scale={self.scale} must be an exponent, a float or an unsigned integer"
                + _if_text(scale)
            )
        if isinstance(scale, Fixed) and (scale.coding != "unsigned" or self.outer is None):
            raise FormatError("block: an integer scale must be unsigned and needs outer=fp32 above it")
        if isinstance(self.size, str):
            if self.size not in ("channel", "tensor"):
                raise FormatError(f"block: size={self.size} is not a count, channel or tensor")
        else:
            integer(self, "size", "block: size", 1, 2**20)
        if self.outer is None:
            if self.outer_size is not None:
                raise FormatError("block: outer_size without outer; add outer=fp32")
            return
        if self.outer_size is None:
            object.__setattr__(self, "outer_size", "tensor")
        if self.outer != _FP32 or self.scale.power_of_two:
            raise FormatError(
                "block: outer must be fp32, over a scale that is a float or an integer" + _if_text(self.outer)
            )
        if not 1 <= self.element.max * self.scale.max <= 2.0**64:
            raise FormatError(
                f"block: elements up to {self.element.max:g} times scales up to {self.scale.max:g} leave no "
                "room for an outer scale in float32; their product must lie from 1 to 2^64: leave outer out"
            )
        if self.outer_size not in ("channel", "tensor") or isinstance(self.size, str):
            raise FormatError("block: outer_size is channel or tensor, over a size that is a count")

    @cached_property
    def groups(self) -> Groups:
        """Codes, scales and outer scales."""
        outer = None if self.outer is None or self.outer_size is None else Group(self.outer, self.outer_size)
        return Groups(Group(self.element), Group(self.scale, self.size), outer=outer)

    @property
    def bits_per_value(self) -> float:
        """Element bits plus the scale's share; a scale per channel or tensor counts as zero bits."""
        if isinstance(self.size, str):
            return float(self.element.bits)
        return (self.element.bits * self.size + self.scale.bits) / self.size

    @property
    def default_overflow(self) -> str:
        """Clamp to the largest element (OCP MX v1.0, section 6.3)."""
        return "saturate"

    @property
    def default_nonfinite(self) -> str:
        """``block_nan`` if blocks have a fixed size and the scale can be NaN; else the element's default."""
        if isinstance(self.size, str) and self.element.has_nan:
            return "element"
        return "block_nan" if self.scale.has_nan else self.element.default_nonfinite

    @property
    def default_zero_block(self) -> str:
        """The smallest power of two (what the floor rule clamps to), or one for a real scale.

        Elements without a zero take the smallest scale: zeros then stay near zero.
        """
        return "smallest" if self.scale.power_of_two or not self.element.has_zero else "one"


def _if_text(given: object) -> str:
    """Return what a message adds where a text was given in the place of a format."""
    return "; a text was given: read it with fewbits.formats.parse" if isinstance(given, str) else ""


@dataclass(frozen=True, repr=False)
class Bdr(Format):
    """Block Data Representation: a shared power of two and shared one-sided microexponents.

    ``k1`` values share a scale of ``d1`` bits, every ``k2`` of them a shift of ``d2`` bits towards finer
    steps, and each value keeps its sign and ``m`` bits (Darvish Rouhani et al., "With Shared Microexponents,
    A Little Shifting Goes a Long Way", ISCA 2023, section 3 and Table 2).
    """

    m: int
    d1: int = 8
    k1: int = 16
    d2: int = 1
    k2: int = 2

    kind: ClassVar[str] = "bdr"
    default_overflow: ClassVar[str] = "saturate"
    default_nonfinite: ClassVar[str] = "block_nan"
    default_zero_block: ClassVar[str] = "smallest"

    def __post_init__(self) -> None:
        integer(self, "m", "bdr: m", 1, 15)
        integer(self, "d1", "bdr: d1", 2, 8)
        integer(self, "k1", "bdr: k1", 1, 2**20)
        integer(self, "d2", "bdr: d2", 0, 4)
        integer(self, "k2", "bdr: k2", 1, self.k1)
        if self.k1 % self.k2:
            raise FormatError(f"bdr: k1={self.k1} is not a multiple of k2={self.k2}")

    @cached_property
    def element(self) -> Fixed:
        """Sign and m bits in steps of 2^-(m-1), so that the top binade starts at one."""
        return Fixed(self.m + 1, self.m - 1, "sign_magnitude")

    @property
    def scale(self) -> Exponent:
        """The shared power of two."""
        return Exponent(self.d1)

    @property
    def size(self) -> int:
        """Values per scale."""
        return self.k1

    @cached_property
    def groups(self) -> Groups:
        """Codes, the shared powers of two, and the microexponents where they have bits."""
        shifts = Group(Fixed(self.d2, 0, "unsigned"), self.k2) if self.d2 else None
        return Groups(Group(self.element), Group(self.scale, self.size), shifts)

    @property
    def largest_shift(self) -> int:
        """Largest shift of a microexponent, beta = 2^d2 - 1."""
        return int(2**self.d2) - 1

    @property
    def bits_per_value(self) -> float:
        """(m + 1) + d1/k1 + d2/k2 (Table 2)."""
        return ((self.m + 1) * self.k1 + self.d1 + self.d2 * (self.k1 // self.k2)) / self.k1


def shares_scale(format: Format, among: Literal["channel", "tensor"]) -> bool:
    """Return whether a whole channel, or a whole tensor, shares a scale or an outer scale."""
    return any(group.size == among for group in format.groups.shared)


def for_one_channel(format: Format) -> Format:
    """Return the format for a part of one channel: a scale per channel becomes a scale per tensor."""
    changed = {f: "tensor" for f in ("size", "outer_size") if getattr(format, f, None) == "channel"}
    return replace(format, **changed)


def channel_bits_per_value(format: Format, length: int) -> float:
    """Return the bits per value of channels of ``length`` values each: the float that is nearest to them.

    A channel that ends within a block pays for the whole scale of it. What a tensor shares counts nothing.

    Raises:
        ArgumentError: ``length`` is no integer from 1 up.
    """
    if (whole(length) or 0) < 1:
        raise ArgumentError(f"length={length!r:.60} of a channel; expected an integer from 1 up")

    def count(size: Size) -> int:
        return {"tensor": 0, "channel": 1}[size] if isinstance(size, str) else ceil(length / size)

    codes, *_ = format.groups
    shared = sum(count(group.size) * group.bits for group in format.groups.shared)
    return (codes.bits * length + shared) / length  # divided once: 6.512 bits are the 6.512 of a budget


def packed_bits(format: Format, shape: tuple[int, ...], axis: int = -1) -> int:
    """Bits of codes and scales for an array of ``shape`` with blocks along ``axis``.

    Raises:
        ArgumentError: a length is no integer from 0 up, or the shape has no such axis.
    """
    others = list(shape or (1,))
    if any(number is None or number < 0 for number in map(whole, others)):
        raise ArgumentError(f"shape={shape!r:.60}; expected integers from 0 up")
    if whole(axis) is None or not -len(others) <= axis < len(others):
        raise ArgumentError(
            f"axis={axis!r:.60} of shape {shape}; expected an integer from {-len(others)} to"
            f" {len(others) - 1}"
        )
    n = others.pop(axis)
    lines = prod(others)

    def count(size: Size) -> int:
        return {"tensor": 1, "channel": lines}[size] if isinstance(size, str) else lines * ceil(n / size)

    codes, *_ = format.groups
    return prod(shape) * codes.bits + sum(count(group.size) * group.bits for group in format.groups.shared)
