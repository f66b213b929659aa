"""Options that several commands share, with one name, meaning and help, and parsers for their values.

A command writes ``seeds: SeedsOption = 3``: the type is shared, the default is its own. A list is one option
with commas between its items; commas within the brackets of a format, and between the changes of a recipe,
belong to their item. No option may be given twice.
"""

from __future__ import annotations

import math
import re
import shlex
import sys
from collections.abc import Collection, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Annotated

import typer

from fewbits.cli.aliases import Formats
from fewbits.cli.kinds import JSON, PAGE, Reads, Writes
from fewbits.errors import ArgumentError
from fewbits.formats import Format, parse, split
from fewbits.records import Provenance
from fewbits.versions import versions

_DIGITS = r"\d{1,1000}"  # of a number: Python refuses to read some thousands

FormatOption = Annotated[
    str | None,
    Formats(),
    typer.Option("--format", help="A format's name, or a text in the grammar (see `fewbits formats`)."),
]
FormatsOption = Annotated[
    str | None,
    Formats(),
    typer.Option(
        "--formats",
        help='Comma-separated, as in mxfp4,mx6,"float(e=3,m=2)" (see `fewbits formats`).'
        " Default: a sensible list.",
        show_default=False,
    ),
]
ScaleRuleOption = Annotated[
    str | None,
    typer.Option(
        "--scale-rule",
        help="How power-of-two scales are chosen: floor, ceil, rceil, even, ... Default: floor; to"
        " `fewbits cast --map` that of the proposal.",
        show_default=False,
    ),
]
PatternOption = Annotated[
    str | None,
    typer.Option("--pattern", help="Structured sparsity, N of every M neighbours: 2:4, 1:2, 4:8, ..."),
]
TaskOption = Annotated[
    str | None,
    Reads(below=True, several=True),
    typer.Option(
        "--task",
        help="Comma-separated tasks: bytes, lstm (language models), digits, faint, mnist10k (classifiers), or"
        " the path of a text of your own, a file or a folder.",
    ),
]
ModelOption = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="Your own model, as MODULE:FUNCTION (my_models:load is load() in my_models.py), in the place of"
        " a task; the function returns (model, batches, loss), the loss where one is trained or scored.",
        show_default=False,
    ),
]
SizeOption = Annotated[
    str, typer.Option("--size", help="Of the tasks' models: small (seconds on two cores) or base (minutes).")
]
RecipeOption = Annotated[
    str | None,
    Formats(),
    typer.Option(
        "--recipe",
        help="Comma-separated recipes (see `fewbits recipes`): a name, or a name and changes, as in"
        " fp32,mxfp6:gradient=mxfp8_e5m2/rceil.",
    ),
]
SeedsOption = Annotated[
    int,
    typer.Option("--seeds", min=1, max=100, help="How many models of each kind, from the seeds 0, 1, ..."),
]
StepsOption = Annotated[
    int, typer.Option("--steps", min=0, help="Of each training; 0: as many as the task says.")
]
ProcessesOption = Annotated[
    int,
    typer.Option(
        "--processes",
        min=1,
        max=64,
        help="Start so many processes on this machine, which share each batch. On several machines start"
        " `fewbits train` by torchrun, without this option.",
    ),
]
CodecOption = Annotated[
    str | None,
    Formats(),
    typer.Option(
        help="In what gradients travel between processes: a format, and behind a colon what pays back the"
        " rounding, as in mxfp8_e4m3, int8_256:feedback or topk:density=0.01,feedback. Default: fp32.",
        show_default=False,
    ),
]
CodecsOption = Annotated[
    str | None,
    Formats(),
    typer.Option(
        "--codecs",
        help="Comma-separated, in what gradients travel between processes, as in"
        " mxfp8_e4m3,int8_256:feedback,topk:density=0.01,feedback; default: a sensible list. fp32 is always"
        " among them.",
        show_default=False,
    ),
]
ResumeOption = Annotated[
    bool,
    typer.Option("--resume", help="Go on where the runs in --out stopped; same bits at the end."),
]
LatencyOption = Annotated[
    float, typer.Option("--latency-us", help="Of a message, in microseconds: for predicted times.")
]
IncludeOption = Annotated[
    str | None,
    typer.Option(
        "--include",
        help="Comma-separated patterns of names, as in 'layers.*,*mlp*': only what one of them matches is"
        " changed. Default: all.",
        show_default=False,
    ),
]
ExcludeOption = Annotated[
    str | None,
    typer.Option(
        "--exclude",
        help="Comma-separated patterns of names, as in 'lm_head*,*embed*': what one of them matches stays as"
        " it is, whatever --include says.",
        show_default=False,
    ),
]
BudgetOption = Annotated[
    float | None,
    typer.Option(
        "--budget",
        help="Propose what loses least within so many bits per value, scales included, as in 4.5: formats for"
        " the tensors of a checkpoint, in the place of `fewbits compare --min-qsnr`, or one for the data that"
        " is explored.",
        show_default=False,
    ),
]
ReportOption = Annotated[
    Path | None,
    Writes(PAGE),
    typer.Option(
        "--report",
        help="Write an HTML page, one file that opens offline; - for standard output.",
        show_default=False,
    ),
]
JsonOption = Annotated[
    Path | None,
    Writes(JSON),
    typer.Option(
        "--json",
        help="Write everything that is shown, and more, as JSON; - for standard output.",
        show_default=False,
    ),
]


def read_list(text: str | None) -> list[str]:
    """Return the items of a comma-separated list; None is an empty one.

    >>> read_list("mxfp4, float(e=3,m=2)")
    ['mxfp4', 'float(e=3,m=2)']
    """
    return [item.strip() for item in split(text or "") if item.strip()]


def read_tasks(text: str | None) -> list[str]:
    """Return the tasks of a comma-separated list, each once; None is an empty one."""
    return list(dict.fromkeys(read_list(text)))


def read_formats(text: str | None, default: Sequence[str]) -> list[Format]:
    """Return the formats of a comma-separated list, each once, or the default ones."""
    names = list(default) if text is None else read_list(text)
    return list(dict.fromkeys(parse(name) for name in names))


def read_recipes(text: str | None, default: Sequence[str]) -> list[str]:
    """Return the recipes of a comma-separated list, each once, or the default ones; "none" is no recipe.

    No name of a recipe has a sign of equality, and every change of one has: so a change belongs to the
    recipe before it.

    >>> read_recipes("fp32,mx:weight=mxfp4,gradient=mxfp6_e3m2,mxfp6", [])
    ['fp32', 'mx:weight=mxfp4,gradient=mxfp6_e3m2', 'mxfp6']

    Raises:
        ArgumentError: "none" among others.
    """
    if text is None:
        return list(default)
    recipes: list[str] = []
    for item in read_list(text):
        if recipes and "=" in item and ":" not in item.partition("=")[0]:
            recipes[-1] += f",{item}"
        else:
            recipes.append(item)
    found = list(dict.fromkeys(recipes))
    if "none" in found and len(found) > 1:
        raise ArgumentError(f"{text!r:.200} has none among recipes, which stands for no recipe; leave it out")
    return [] if found == ["none"] else found


def read_codecs(text: str | None, default: Sequence[str]) -> list[str]:
    """Return the codecs of a comma-separated list, each once, or the default ones, which "default" names too.

    A stabilizer and NAME=VALUE are no codec: they belong to the codec before them.

    >>> read_codecs("mxfp8_e4m3,topk:density=0.01,feedback,float(e=3,m=0):aps", [])
    ['mxfp8_e4m3', 'topk:density=0.01,feedback', 'float(e=3,m=0):aps']
    """
    from fewbits.recipes.codec import SWITCHES

    if text is None or text.strip() == "default":
        return list(default)
    codecs: list[str] = []
    for item in read_list(text):
        if codecs and (item in SWITCHES or re.match(r"\w+\s*=", item)):
            codecs[-1] += f",{item}"
        else:
            codecs.append(item)
    return list(dict.fromkeys(codecs))


def checked_codec(codec: str | None, processes: int) -> str:
    """Return the text of a codec, fp32 by default; "" for one process.

    Raises:
        ArgumentError: a codec for one process, or no such codec.
    """
    from fewbits.recipes import codec as read

    if processes == 1:
        if codec is not None:
            raise ArgumentError("--codec is of several processes; start some, as with --processes 2")
        return ""
    return str(read(codec or "fp32"))


def read_numbers(name: str, text: str) -> list[float]:
    """Return the numbers of a comma-separated list, all above 0.

    Raises:
        ArgumentError: an item is something else.
    """
    numbers = []
    for item in read_list(text):
        try:
            numbers.append(float(item))
        except ValueError:
            numbers.append(math.nan)
        if not 0 < numbers[-1] < math.inf:
            raise ArgumentError(f"{name}={text!r}: {item!r} is no number above 0; give some, as in 1,10,100")
    return numbers


def read_count(name: str, text: str) -> int:
    """Return a whole number from 1 up, perhaps written with K, M, G or B, or T for powers of a thousand.

    >>> read_count("parameters", "25.6M")
    25600000

    Raises:
        ArgumentError: it is something else.
    """
    units = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "B": 10**9, "T": 10**12}
    found = re.fullmatch(rf"({_DIGITS}(?:\.{_DIGITS})?)([KMGBT]?)", text.strip().upper())
    count = Fraction(0) if found is None else Fraction(found[1]) * units[found[2]]
    if not 1 <= count <= sys.float_info.max or count.denominator > 1:
        raise ArgumentError(
            f"{name}={text!r:.200}; expected a whole number from 1 up, written as 64, 25.6M or 7B"
        )
    return int(count)


def read_bytes(name: str, text: str) -> int:
    """Return a number of bytes from 1 up, perhaps in thousands (40G, 40GB) or in powers of 1024 (40GiB).

    >>> read_bytes("memory", "1.5KiB")
    1536

    Raises:
        ArgumentError: it is something else.
    """
    found = re.fullmatch(rf"({_DIGITS}(?:\.{_DIGITS})?) ?([KMGT]?)(B?|IB)", text.strip().upper())
    count = 0
    if found is not None and (found[2] or found[3] != "IB"):
        unit = 1024 if found[3] == "IB" else 1000
        count = round(Fraction(found[1]) * unit ** " KMGT".index(found[2] or " "))
    if not 1 <= count <= sys.float_info.max:
        raise ArgumentError(f"{name}={text!r:.200}; expected a number of bytes, as in 40G, 40GB or 40GiB")
    return count


def refuse_unused(context: typer.Context, used: Collection[str], what: str) -> None:
    """Raise ArgumentError for given options that are not in ``used``; see :func:`refuse_idle`."""
    refuse_idle(context, set(context.params) - _parameters(context, used), what)


def refuse_idle(context: typer.Context, idle: Collection[str], what: str) -> None:
    """Raise ArgumentError for given options that would have no effect.

    Args:
        context: of the command.
        idle: names of the parameters that do not count.
        what: what the command was given, in words.

    Raises:
        ArgumentError: such an option was given; the message names all of them.
    """
    idle = _parameters(context, idle)
    typed = [
        f"--{name.replace('_', '-')}"
        for name in context.params
        if name in idle and getattr(context.get_parameter_source(name), "name", "") == "COMMANDLINE"
    ]
    if typed:
        does, them = ("does", "it") if len(typed) == 1 else ("do", "them")
        raise ArgumentError(f"{', '.join(typed)} {does} nothing for {what}; leave {them} out")


def _parameters(context: typer.Context, names: Collection[str]) -> set[str]:
    """Return the names as a set.

    Raises:
        LookupError: the command has no such parameter, which was renamed then.
    """
    if unknown := set(names) - set(context.params):
        raise LookupError(f"{context.command_path} has no {', '.join(sorted(unknown))}")
    return set(names)


def provenance(seeds: Sequence[int] = ()) -> Provenance:
    """Return the command line as typed and the versions that ran it."""
    return Provenance(shlex.join(["fewbits", *sys.argv[1:]]), versions(), tuple(seeds))
