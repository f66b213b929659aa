"""A codec: in which format values travel between processes, and what pays back the rounding."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from fewbits.errors import ArgumentError
from fewbits.formats import Format, parse, split
from fewbits.kernels.bits.options import options
from fewbits.recipes.role_format import RoleFormat, read_role_format

TOPK = "topk"
_FP32 = RoleFormat(parse("fp32"))
HOOKS = ("powersgd", "fp16_compress")
"""Codecs that are hooks of torch's DistributedDataParallel, taken as they are."""

CodecValue = RoleFormat | float | bool | str | None  # what a field takes; a format also as text

SWITCHES = ("aps", "auto_scale", "feedback", "kahan", "stochastic")
"""Options that are words of their own."""


@dataclass(frozen=True, repr=False)
class Codec:
    """What travels: a format, and the stabilizers. Frozen, comparable; prints the text that makes it.

    Attributes:
        values: format, rounding and scale rule on the wire; None: float32 as it is.
        density: share of the values, those of largest magnitude, that travel at all; None: all of them.
        aps: one power of two for each layer, agreed between the processes (Han, Demmel and You,
            Auto-Precision Scaling for Distributed Deep Learning, 2021, algorithm 1).
        auto_scale: one factor for all layers that halves where values saturate and grows slowly where not
            (Peng et al., FP8-LM, 2023, section 3.1).
        feedback: what rounding or leaving out took is added to what is sent next (Seide et al., 1-bit
            Stochastic Gradient Descent, 2014; Karimireddy et al., Error Feedback Fixes SignSGD, 2019).
        kahan: sums over the processes are compensated.
        momentum: of plain SGD, taken before values are chosen instead of in the optimizer: what waits gathers
            it as if it had been sent, and what is sent begins anew (Lin et al., Deep Gradient Compression,
            2018, sections 3.1 and 3.2).
        hook: a hook of torch's own instead of all that: ``powersgd`` or ``fp16_compress``.
        rank: of PowerSGD's matrices.
    """

    values: RoleFormat | None = None
    density: float | None = None
    aps: bool = False
    auto_scale: bool = False
    feedback: bool = False
    kahan: bool = False
    momentum: float = 0.0
    hook: str = ""
    rank: int = 1

    def __post_init__(self) -> None:
        """Raise if a stabilizer does not fit what it should stabilize."""
        if self.values == _FP32:  # float32 as it is, however it is given
            object.__setattr__(self, "values", None)
        others = [f for f in fields(self) if f.name not in ("hook", "rank")]
        if self.hook and any(getattr(self, f.name) != f.default for f in others):
            raise ArgumentError(f"{self.hook} is torch's own hook, which takes rank=N at most")
        if self.density is not None and not 0 < self.density <= 1:
            raise ArgumentError(f"density={self.density!r} of a codec; expected a share above 0, 1 at most")
        if self.hook not in ("", *HOOKS):
            raise ArgumentError(f"hook={self.hook!r} of a codec; expected one of {', '.join(HOOKS)}")
        if self.rank < 1:
            raise ArgumentError(f"rank={self.rank!r} of a codec; expected an integer from 1 up")
        if not self.hook and self.rank != 1:
            raise ArgumentError(f"rank={self.rank} is an option of powersgd; leave it out")
        if not 0 <= self.momentum < 1:
            raise ArgumentError(f"momentum={self.momentum!r} of a codec; expected 0 or more, below 1")
        if self.momentum and not (self.feedback and self.density is not None):
            raise ArgumentError(
                f"momentum={self.momentum!r} of a codec corrects what waits to be sent; give it with topk and"
                " feedback, and leave it to the optimizer otherwise"
            )
        if self.values is not None:
            self._check_values(self.values)
        elif self.aps or self.auto_scale:
            raise ArgumentError("aps and auto_scale choose the scale of a narrow format; fp32 needs none")
        if self.feedback and self.values is None and self.density is None:
            raise ArgumentError("feedback pays back what rounding took; fp32 is not rounded: leave it out")

    def _check_values(self, values: RoleFormat) -> None:
        scales = values.format.groups.shared
        if values.shift is not None:
            raise ArgumentError(f"shift= in {values}, which belongs to a recipe; take aps for a codec")
        if self.aps and self.auto_scale:
            raise ArgumentError("aps and auto_scale choose the same scale; take one of them")
        if (self.aps or self.auto_scale) and scales:
            raise ArgumentError(
                f"aps and auto_scale are for formats without scales; {values.format} has its own"
            )
        if (self.aps or self.auto_scale) and self.density is not None:
            raise ArgumentError("aps and auto_scale with a density; a block format scales the values kept")

    @property
    def format(self) -> Format | None:
        """The format of the values on the wire; None: float32."""
        return None if self.values is None else self.values.format

    @property
    def carries_nan(self) -> bool:
        """Whether NaN and infinity of one process reach the others in the values themselves."""
        if self.values is None:
            return True
        element = self.values.format.element
        rule = options(self.values.format, scale_rule=self.values.scale_rule).nonfinite
        clipped = self.aps or self.auto_scale or not element.has_inf
        return rule == "block_nan" or (rule == "element" and (element.reals_only or not clipped))

    def extended(self, **changes: CodecValue) -> Codec:
        """Return the codec with some fields changed; ``values`` may be given as text.

        Raises:
            ArgumentError: no such field, or a value that means nothing there.
            FormatError: a text that is no format.
        """
        known = [f.name for f in fields(self)]
        for name in changes:
            if name not in known:
                raise ArgumentError(f"a codec has no {name!r}; expected {', '.join(known)}")
        values: dict[str, Any] = {
            name: read_role_format(value) if name == "values" and isinstance(value, str) else value
            for name, value in changes.items()
        }
        return replace(self, **values)

    def __str__(self) -> str:
        """Return the text that :func:`codec` takes."""
        options = []
        if self.density is not None:
            options.append(f"density={self.density!r}")
            options += [] if self.values is None else [f"values={self.values}"]
        options += [name for name in SWITCHES if getattr(self, name, False)]
        options += [f"momentum={self.momentum!r}"] if self.momentum else []
        options += [f"rank={self.rank}"] if self.rank != 1 else []
        wire = TOPK if self.density is not None else str(self.values or "fp32")
        return ":".join(filter(None, [self.hook or wire, ",".join(options)]))

    __repr__ = __str__


def codec(text: str | Codec | Format) -> Codec:
    """Return the codec that ``text`` names.

    Args:
        text: ``FORMAT[/ROUNDING][/RULE]``, ``topk``, ``powersgd`` or ``fp16_compress``, and behind a colon
            what differs: ``aps``, ``auto_scale``, ``feedback``, ``kahan``, ``stochastic``, ``density=SHARE``,
            ``values=FORMAT`` and ``momentum=SHARE`` with ``topk``, ``rank=N`` with ``powersgd``. A codec is
            returned as it is; a format is what values travel in.

    Raises:
        ArgumentError: an option that does not exist, does not fit or is there twice; or neither a text nor a
            format nor a codec.
        FormatError: no such format.

    >>> codec("mxfp8_e4m3/rceil:feedback").format.bits_per_value
    8.25
    >>> codec("topk:density=0.01,feedback")
    topk:density=0.01,feedback
    """
    if isinstance(text, Codec):
        return text
    if isinstance(text, Format):
        return Codec(RoleFormat(text))
    given: object = text  # whatever a caller without types passes
    if not isinstance(given, str):
        raise ArgumentError(
            f"codec={given!r:.60}; expected a text, as 'mxfp8_e4m3:feedback', a format or a"
            " fewbits.recipes.Codec"
        )
    wire, _, rest = text.partition(":")
    changes: dict[str, Any] = {}
    for part in split(rest) if rest else ():
        option, value = _option(part.strip(), text)
        if option in changes:
            raise ArgumentError(f"{option} is there twice in codec {text!r}; give one")
        changes[option] = value
    if wire in HOOKS:
        return Codec(hook=wire).extended(**changes)
    if wire == TOPK:
        if "density" not in changes:
            raise ArgumentError(f"codec {text!r} without a density; expected {TOPK}:density=0.01, for 1 %")
    elif "values" in changes:
        raise ArgumentError(f"values= in codec {text!r}; {wire} says it already: only {TOPK} takes it")
    else:
        changes["values"] = read_role_format(wire)
    if changes.pop("stochastic", False):
        values = changes.get("values")
        values = read_role_format(values) if isinstance(values, str) else values
        if values is None:
            raise ArgumentError(f"stochastic in codec {text!r}, whose values are float32: nothing is rounded")
        changes["values"] = replace(values, rounding="stochastic")
    return Codec().extended(**changes)


def _option(part: str, text: str) -> tuple[str, Any]:
    name, equals, value = (p.strip() for p in part.partition("="))
    if not equals and name in SWITCHES:
        return name, True
    number = {"density": float, "momentum": float, "rank": int, "values": str}.get(name)
    if number is None or not equals:
        raise ArgumentError(
            f"{part!r} in codec {text!r}; expected {', '.join(SWITCHES)}, density=SHARE, momentum=SHARE,"
            " values=FORMAT or rank=N"
        )
    try:
        return name, number(value)
    except ValueError:
        raise ArgumentError(f"{part!r} in codec {text!r}; {name} takes a number") from None
