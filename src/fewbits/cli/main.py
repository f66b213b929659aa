"""Entry point: runs a subcommand and turns every failure into one line and an exit code.

Exit codes: 0 done; 2 the input was wrong; 1 the job failed; 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import cache
from typing import Annotated, Any

import typer
import typer.core

import fewbits
from fewbits.cli.aliases import define, with_aliases
from fewbits.cli.bench import bench
from fewbits.cli.cast import cast
from fewbits.cli.compare import compare
from fewbits.cli.explore import explore
from fewbits.cli.flags import with_flags
from fewbits.cli.formats import formats
from fewbits.cli.inspect import inspect
from fewbits.cli.paths import guarded
from fewbits.cli.plan import plan
from fewbits.cli.profile import profile
from fewbits.cli.progress import Interrupted
from fewbits.cli.prune import prune
from fewbits.cli.recipes import recipes
from fewbits.cli.scale import scale
from fewbits.cli.solve import solve
from fewbits.cli.streams import steady_streams
from fewbits.cli.train import train
from fewbits.errors import ArgumentError, FewbitsError
from fewbits.report.quantities import visible

# Newer releases of Typer carry their own copy of Click: the class is found where Typer has it.
_INTERRUPTED = 130
_UsageError: type[Exception] = next(c for c in typer.BadParameter.__mro__ if c.__name__ == "ClickException")
_ALIASES = "FEWBITS_ALIAS"  # the variable that has what --alias takes


def _is_empty(text: str) -> bool:
    """Return whether a text, or each item of a list with commas, is empty."""
    return not text.strip(" \t\n,")


def _refuse_repeated(typed: list[str]) -> None:
    """Refuse an option that is given more than once: only one of its values would count."""
    for option in typed:
        if typed.count(option) > 1:
            raise ArgumentError(
                f"{option} is given {typed.count(option)} times; give it once, a list with commas between"
            )


class _Group(typer.core.TyperGroup):
    """The words before a command, whose options are given once, as those of commands are."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]  # always its own
        *_, order = self.make_parser(ctx).parse_args(args=list(args))
        _refuse_repeated([p.opts[0] for p in order])
        return super().parse_args(ctx, args)


class _Command(typer.core.TyperCommand):
    """A command that refuses what would count for nothing: one of an option given twice, and empty texts."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]  # always its own
        names = {name: p.opts[0] for p in self.params for name in (*p.opts, *p.secondary_opts)}
        _refuse_repeated([names[word] for word in (arg.partition("=")[0] for arg in args) if word in names])
        if not ctx.resilient_parsing:
            self._refuse_empty(ctx, args)
        return super().parse_args(ctx, args)

    def _refuse_empty(self, ctx: typer.Context, args: list[str]) -> None:
        """Refuse empty texts and lists: defaults stood in for them, and for a path the current folder."""
        given, *_ = self.make_parser(ctx).parse_args(args=list(args))
        for p in self.params:
            text = given.get(p.name or "")
            if isinstance(text, str) and _is_empty(text):
                name = p.opts[0] if p.opts[0].startswith("-") else p.opts[0].upper()
                way_out = "" if p.required else ", or leave it out"
                raise ArgumentError(f"{name} {text!r} is empty; give it a value{way_out}")


app = typer.Typer(
    name="fewbits",
    cls=_Group,
    help="More science with fewer bits: choose, store and invent narrow number formats.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


_COMMANDS = (
    compare,
    explore,
    formats,
    recipes,
    cast,
    inspect,
    solve,
    train,
    bench,
    prune,
    scale,
    plan,
    profile,
)
for _command in _COMMANDS:
    app.command(cls=_Command)(with_aliases(with_flags(guarded(_command))))


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"fewbits {fewbits.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    context: typer.Context,
    version: bool = typer.Option(
        False, "--version", help="Print the version.", callback=_version, is_eager=True
    ),
    alias: Annotated[
        str | None,
        typer.Option(
            envvar=_ALIASES,
            help="Comma-separated NAME=FORMAT, names for formats of your own; before the command, or in the"
            " environment.",
        ),
    ] = None,
) -> None:
    """More science with fewer bits: choose, store and invent narrow number formats."""
    given = getattr(context.get_parameter_source("alias"), "name", "")
    if alias is not None and given != "ENVIRONMENT" and _is_empty(alias):
        raise ArgumentError(f"--alias {alias!r} is empty; give it NAME=FORMAT, or leave it out")
    define(alias, _ALIASES if given == "ENVIRONMENT" else "--alias")
    if os.environ.get("FEWBITS_ISA"):  # else a run of hours would end where the first narrow job begins
        from fewbits.kernels import active_isa

        active_isa()


def _fail(message: str, code: int) -> int:
    if message:  # empty when the help has been printed instead
        sys.stderr.write(f"fewbits: {visible(' '.join(message.split()))}\n")
    return code


@cache
def _command_line() -> Callable[..., Any]:
    """Return what Typer makes of the commands, which takes longer than most wrong inputs do."""
    return typer.main.get_command(app)


def run(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    try:
        result = _command_line()(args=arguments, standalone_mode=False)
    except _UsageError as error:
        return _fail(error.format_message(), 2)  # type: ignore[attr-defined]  # the class is found by its name
    except FewbitsError as error:
        return _fail(str(error), 2)
    except Interrupted as error:
        return _fail(str(error), _INTERRUPTED)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted; nothing was written", _INTERRUPTED)
    except OSError as error:
        return _fail(f"the job failed: {error}", 1)
    except Exception as error:
        return _fail(f"the job failed: {type(error).__name__}: {error}", 1)
    if result == _INTERRUPTED:  # newer releases of Typer return it instead of raising
        return _fail("interrupted; nothing was written", _INTERRUPTED)
    return result if isinstance(result, int) else 0


def main() -> None:
    """Run the command line and leave with its exit code."""
    steady_streams()
    if not os.environ.get("COLUMNS", "80").strip("0"):  # unknown, as of a terminal without a size
        del os.environ["COLUMNS"]
    sys.exit(run())
