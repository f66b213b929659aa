"""Selects which tensors of a checkpoint are cast, and to which format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from fewbits.errors import ArgumentError
from fewbits.files.checkpoint import StoredTensor
from fewbits.formats import Format


def can_cast(tensor: StoredTensor) -> bool:
    """Return whether a tensor is cast at all: floating point, with two axes or more."""
    return tensor.is_float and len(tensor.shape) >= 2 and tensor.count > 0


def is_selected(name: str, include: Sequence[str], exclude: Sequence[str]) -> bool:
    """Return whether a name matches ``include`` (empty for all) and matches no pattern of ``exclude``.

    >>> is_selected("layers.0.w", ["layers.*"], ["*.b"]), is_selected("layers.0.b", [], ["*.b"])
    (True, False)
    """
    return (not include or _matches(name, include)) and not _matches(name, exclude)


def check_patterns(names: Sequence[str], include: Sequence[str], exclude: Sequence[str]) -> None:
    """Raise ArgumentError if a pattern matches no tensor.

    Args:
        names: those of all tensors of a checkpoint.
        include: patterns with shell wildcards.
        exclude: patterns with shell wildcards.

    Raises:
        ArgumentError: a pattern matches no tensor.
    """
    for argument, patterns in (("include", include), ("exclude", exclude)):
        for pattern in patterns:
            _check_pattern(argument, pattern, names, "tensor")


def choose_formats(
    tensors: Sequence[StoredTensor],
    format: Format | None,
    mapped: Sequence[tuple[str, Format]],
    include: Sequence[str],
    exclude: Sequence[str],
    can: Callable[[StoredTensor], bool] = can_cast,
) -> dict[str, Format]:
    """Return the format of each tensor to cast, by name.

    Args:
        tensors: all of a checkpoint.
        format: for the tensors that no pattern of ``mapped`` matches; None leaves them unchanged.
        mapped: (pattern, format); the first pattern that matches a name decides.
        include: patterns of names that may be cast; empty for all.
        exclude: patterns of names that stay unchanged even if others match.
        can: whether a tensor is cast at all.

    Raises:
        ArgumentError: a pattern matches nothing, or nothing is left to be cast.
    """
    check_patterns([t.name for t in tensors], include, exclude)
    able = [t.name for t in tensors if can(t)]
    for pattern, _ in mapped:
        _check_pattern("map", pattern, able, "tensor that can be cast")
    rules = [*mapped, *([("*", format)] if format is not None else [])]
    chosen = {}
    for name in able:
        if is_selected(name, include, exclude):
            target = next((fmt for pattern, fmt in rules if fnmatchcase(name, pattern)), None)
            if target is not None:
                chosen[name] = target
    if not chosen:
        raise ArgumentError(
            "no tensor would be cast: it takes floating-point values, two axes or more, and a name that"
            " `include` and `exclude` let through; `fewbits inspect` lists the tensors"
        )
    return chosen


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _check_pattern(argument: str, pattern: str, names: Sequence[str], kind: str) -> None:
    if not any(fnmatchcase(name, pattern) for name in names):
        raise ArgumentError(
            f"{argument}={pattern!r:.200} matches no {kind}; `fewbits inspect` lists the names, and * stands"
            " for any part of one"
        )
