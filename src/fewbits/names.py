"""Which modules of a model are meant by globs, the patterns of a shell, on dotted names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from glob import escape
from typing import Any

from fewbits.errors import ArgumentError


def listed(argument: str, globs: str | Iterable[str]) -> tuple[str, ...]:
    """Return one glob or several as a tuple.

    Args:
        argument: what the user calls the globs, for the message.
        globs: such as ``"encoder.*"``, or a list of such.

    Raises:
        ArgumentError: what was given is no text, and no list of texts.
    """
    several: Any = (globs,) if isinstance(globs, str) or not hasattr(globs, "__iter__") else globs
    given = tuple(several)
    for glob in given:
        if not isinstance(glob, str):
            raise ArgumentError(
                f"{argument} has {glob!r} where a pattern of names was expected, as in 'encoder.*', or a list"
                " of them"
            )
    return given


def check_fits(argument: str, globs: Iterable[str], names: Sequence[str]) -> None:
    """Raise where a glob fits none of the names, of which the first is the model itself.

    Args:
        argument: what the user calls the globs, for the message.
        globs: such as ``encoder.*``.
        names: dotted names of all modules of a model.

    Raises:
        ArgumentError: a glob fits none of the names.
    """
    for glob in globs:
        if not any(fnmatchcase(name, glob) for name in names):
            raise ArgumentError(
                f"{argument}={glob!r} fits no module; the first of them are {', '.join(names[1:6])}"
            )


def with_shared(globs: Iterable[str], named: Iterable[tuple[str, object]]) -> tuple[str, ...]:
    """Return globs, with the first names of shared modules that they fit or hold by another of their names.

    Args:
        globs: such as ``encoder.*``.
        named: all names with what they name, as ``model.named_modules(remove_duplicate=False)`` yields them.
    """
    given, first = tuple(globs), dict[int, str]()
    further = []
    for name, module in named:
        own = first.setdefault(id(module), name)
        if own != name and within(name, given) and not within(own, given):
            further.append(escape(own))
    return (*given, *dict.fromkeys(further))


def within(name: str, globs: Iterable[str]) -> bool:
    """Whether a glob fits the module ``name`` or one that it lies within."""
    parts = name.split(".")
    return any(fnmatchcase(".".join(parts[: i + 1]), glob) for glob in globs for i in range(len(parts)))


def parents(names: Iterable[str]) -> set[str]:
    """Return the names of all modules that modules of these names lie within; the model itself is ""."""
    return {".".join(parts[:i]) for parts in (n.split(".") for n in names if n) for i in range(len(parts))}


@dataclass(frozen=True)
class Selection:
    """The modules that a pattern of ``include`` fits and none of ``exclude`` does, with all within them."""

    include: tuple[str, ...] = ("*",)
    exclude: tuple[str, ...] = ()

    def __contains__(self, name: object) -> bool:
        """Whether a module, or a tensor of one, is selected."""
        name = str(name)
        return within(name, self.include) and not within(name, self.exclude)

    @classmethod
    def of(
        cls,
        include: str | Iterable[str],
        exclude: str | Iterable[str],
        named: Mapping[str, object],
        beside: Iterable[str] = (),
    ) -> Selection:
        """Return what a user's patterns select, a shared module by each of its names.

        Args:
            include: what a function takes as ``include``.
            exclude: what it takes as ``exclude``.
            named: all names of modules, with what they name; the model itself first.
            beside: names that a pattern may fit besides.

        Raises:
            ArgumentError: what is no pattern, or one that fits nothing.
        """
        globs = {"include": listed("include", include), "exclude": listed("exclude", exclude)}
        for argument, given in globs.items():
            check_fits(argument, given, [*named, *beside])
        return cls(*(with_shared(given, named.items()) for given in globs.values()))

    @property
    def is_all(self) -> bool:
        """Whether everything is selected."""
        return self == Selection()
