"""Options of quantization: the choices of a caller, and the complete options after checks and defaults.

:class:`Choices` is the list of arguments of :func:`fewbits.quantize` as one record, which is passed down
unchanged; :func:`decide` fills in the format's own defaults, and every backend takes the :class:`Options`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

from fewbits.errors import ArgumentError
from fewbits.formats import Block, Fixed, Float, Format, Lookup, parse
from fewbits.graphs import cached_property
from fewbits.kernels.bits.scale_rules import MEAN_RULES, SCALE_RULES

OVERFLOWS = ("saturate", "inf", "nan")
NONFINITES = ("block_nan", "element", "saturate", "raise")
ZERO_BLOCKS = ("smallest", "one")
ROUNDINGS = ("nearest_even", "nearest_away", "toward_zero", "up", "down", "stochastic")
RULES = tuple(SCALE_RULES)
RANDOM_BITS = (16, 32)


class Choices(NamedTuple):
    """The choices of a caller; None takes the default of the format."""

    rounding: str = "nearest_even"  # how an element is rounded
    scale_rule: str = "floor"  # how a power-of-two scale is chosen
    overflow: str | None = None  # what an element beyond the largest becomes
    nonfinite: str | None = None  # what NaN and infinity become
    zero_block: str | None = None  # the scale of a block of zeros
    random_bits: int = 16  # of each value that is rounded stochastically


@dataclass(frozen=True)
class Options:
    """How to quantize to one format; every field is decided."""

    rounding: str  # how an element is rounded
    scale_rule: str  # how a power-of-two scale is chosen
    overflow: str  # what an element beyond the largest becomes
    nonfinite: str  # what NaN and infinity become
    zero_block: str  # the scale of a block of zeros
    random_bits: int = 16  # of each value that is rounded stochastically
    seed: int = 0  # of stochastic rounding

    @cached_property
    def text(self) -> str:
        """All but the seed as one word, as operators of torch take it; :func:`read_options` reads it."""
        names = (self.rounding, self.scale_rule, self.overflow, self.nonfinite, self.zero_block)
        return ",".join((*names, str(self.random_bits)))


read_format = lru_cache(maxsize=256)(parse)  # operators and plans of kernels take formats as text


def read_options(text: str, seed: int) -> Options:
    """Return the options of :attr:`Options.text`; in a graph the seed may be a symbol."""
    chosen = _read_options(text)
    return chosen if type(seed) is int and not seed else replace(chosen, seed=seed)


@lru_cache(maxsize=256)  # without the seed: symbols cannot be hashed
def _read_options(text: str) -> Options:
    rounding, scale_rule, overflow, nonfinite, zero_block, random_bits = text.split(",")
    return Options(rounding, scale_rule, overflow, nonfinite, zero_block, int(random_bits))


def has_scale_rule(format: Format) -> bool:
    """Return whether the format's scale is a power of two, which a scale rule chooses."""
    scales = format.groups.scales
    return scales is not None and scales.power_of_two


def takes_mean_rule(format: Format, rule: str) -> bool:
    """Return whether ``rule`` of :data:`MEAN_RULES` chooses the scales of a format.

    They are float32 without a scale above, of ternary values; with ``absmean`` of binary ones too.
    """
    if not isinstance(format, Block) or format.outer is not None or format.scale != Float(8, 23, 127, "ieee"):
        return False
    return format.element == Fixed(2, 0, "symmetric") or (
        rule == "absmean" and format.element == Lookup((1.0, -1.0))
    )


def _checked_rule(rule: str, format: Format) -> str:
    if rule not in MEAN_RULES:
        check_scale_rule(rule, [format])
    elif not takes_mean_rule(format, rule):
        kinds = "ternary or binary" if rule == "absmean" else "ternary"
        raise ArgumentError(
            f"scale_rule={rule!r} chooses float32 scales of {kinds} values; {format} has none: take a format"
            " such as ternary_channel, or leave the rule out"
        )
    return rule


def check_scale_rule(scale_rule: str, formats: Iterable[Format]) -> None:
    """Raise ArgumentError for an unknown scale rule, or one that applies to none of the formats.

    Raises:
        ArgumentError: the rule is unknown, or none of the formats has a power-of-two scale.
    """
    _one_of("scale_rule", scale_rule, RULES)
    asked = tuple(formats)
    if scale_rule != "floor" and not any(map(has_scale_rule, asked)):
        raise ArgumentError(
            f"scale_rule={scale_rule!r} chooses a power-of-two scale; {', '.join(map(str, asked))} has none:"
            " leave it out"
        )


def _or(given: str | None, default: str) -> str:
    return default if given is None else given


def _one_of(what: str, given: str, allowed: tuple[str, ...]) -> str:
    if given not in allowed:
        raise ArgumentError(f"{what}={given!r} is not one of {', '.join(allowed)}")
    return given


def _checked_random_bits(given: int, rounding: str) -> int:
    if type(given) is not int or given not in RANDOM_BITS:
        raise ArgumentError(f"random_bits={given!r} is not one of 16, 32")
    if given != RANDOM_BITS[0] and rounding != "stochastic":
        raise ArgumentError(
            f"random_bits={given} with rounding={rounding!r}, which draws nothing; leave it out, or take"
            " rounding='stochastic'"
        )
    return given


def options(
    format: Format,
    *,
    rounding: str = "nearest_even",
    scale_rule: str = "floor",
    overflow: str | None = None,
    nonfinite: str | None = None,
    zero_block: str | None = None,
    random_bits: int = 16,
    seed: int = 0,
) -> Options:
    """Return the options for choices that are given as keyword arguments; see :func:`decide`."""
    return decide(format, Choices(rounding, scale_rule, overflow, nonfinite, zero_block, random_bits), seed)


def decide(format: Format, choices: Choices, seed: int = 0) -> Options:
    """Fill in the defaults of the format, and raise ArgumentError for what it cannot do.

    Raises:
        ArgumentError: a name that does not exist, or an ``overflow`` or ``nonfinite`` that the format cannot
        code.
    """
    try:
        decided = _decide(format, *choices)
    except TypeError:  # a choice that cannot be hashed is no name either: the message is that of any other
        decided = _decide.__wrapped__(format, *choices)
    return replace(decided, seed=seed) if seed else decided


# By type too: 16.0 is no number of bits, though it equals one.
@lru_cache(maxsize=1024, typed=True)
def _decide(format: Format, *given: Any) -> Options:
    choices = Choices(*given)
    element, scales = format.element, format.groups.scales
    chosen = Options(
        rounding=_one_of("rounding", choices.rounding, ROUNDINGS),
        scale_rule=_checked_rule(choices.scale_rule, format),
        overflow=_one_of("overflow", _or(choices.overflow, format.default_overflow), OVERFLOWS),
        nonfinite=_one_of("nonfinite", _or(choices.nonfinite, format.default_nonfinite), NONFINITES),
        zero_block=_one_of("zero_block", _or(choices.zero_block, format.default_zero_block), ZERO_BLOCKS),
        random_bits=_checked_random_bits(choices.random_bits, choices.rounding),
    )
    if chosen.scale_rule == "twn" and chosen.rounding != "nearest_even":
        raise ArgumentError(
            f"rounding={chosen.rounding!r} with scale_rule='twn', which cuts at a threshold and rounds"
            " nothing; leave one of them out"
        )
    if chosen.overflow == "inf" and not element.has_inf:
        raise ArgumentError(f"overflow='inf': {element} has no infinity; use 'saturate'")
    if chosen.overflow == "nan" and not element.has_nan:
        raise ArgumentError(f"overflow='nan': {element} has no NaN; use 'saturate'")
    if chosen.overflow == "nan" and element.reals_only:
        raise ArgumentError(f"overflow='nan': {element} never rounds a number to NaR; use 'saturate'")
    if chosen.nonfinite == "element" and not element.has_nan:
        raise ArgumentError(
            f"nonfinite='element': {element} has no NaN; use 'block_nan', 'saturate' or 'raise'"
        )
    if chosen.nonfinite == "block_nan" and (scales is None or not scales.element.has_nan):
        raise ArgumentError(
            f"nonfinite='block_nan': {format} has no scale that can be NaN; use 'saturate' or 'raise'"
        )
    return chosen
