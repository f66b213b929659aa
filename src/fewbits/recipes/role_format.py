"""How one role is held: a format, how values are rounded to it and how its scale is chosen."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from fewbits.errors import FormatError
from fewbits.formats import Format, parse
from fewbits.kernels.bits.options import ROUNDINGS, RULES, options
from fewbits.kernels.bits.scale_rules import MEAN_RULES


@dataclass(frozen=True)
class RoleFormat:
    """A format with the choices that rounding to it takes.

    ``shift`` divides a tensor by 2^(round(mean log2 |x|) + shift) before rounding and multiplies it back (Lu
    et al., Evaluations on Deep Neural Networks Training Using Posit Number System, 2019, section 3).
    """

    format: Format
    rounding: str = "nearest_even"
    scale_rule: str = "floor"
    shift: int | None = None

    def __post_init__(self) -> None:
        """Raise if the format does not support the rounding or the scale rule."""
        options(self.format, rounding=self.rounding, scale_rule=self.scale_rule)

    def __str__(self) -> str:
        """Return the text that :func:`read_role_format` takes."""
        parts = [str(self.format)]
        parts += [self.rounding] if self.rounding != "nearest_even" else []
        parts += [self.scale_rule] if self.scale_rule != "floor" else []
        parts += [f"shift={self.shift}"] if self.shift is not None else []
        return "/".join(parts)


def read_role_format(text: str) -> RoleFormat | None:
    """Read ``FORMAT[/ROUNDING][/RULE][/shift=N]``; ``fp32`` and ``-`` leave the role as it is (None).

    Raises:
        FormatError: an unknown format or choice.
        ArgumentError: a choice that the format cannot do.
    """
    name, *choices = (part.strip() for part in text.split("/"))
    if name in ("-", "") and not choices:
        return None
    format, chosen = parse(name), dict[str, Any]()
    if format == parse("fp32") and not choices:  # by its constructor, too
        return None
    for choice in choices:
        if choice in ROUNDINGS:
            kind = "rounding"
        elif choice in (*RULES, *MEAN_RULES):
            kind = "scale_rule"
        elif re.fullmatch(r"shift=-?[0-9]+", choice):
            kind = "shift"
        else:
            raise FormatError(
                f"{choice!r} in {text!r} is no rounding ({', '.join(ROUNDINGS)}), no scale rule"
                f" ({', '.join((*RULES, *MEAN_RULES))}) and not shift=N"
            )
        if kind in chosen:
            raise FormatError(f"{choice!r} in {text!r} is a second {kind.replace('_', ' ')}; give one")
        chosen[kind] = int(choice[6:]) if kind == "shift" else choice
    return RoleFormat(format, **chosen)
