"""Which tensors of a checkpoint are cast, and to which format."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from fewbits.errors import ArgumentError
from fewbits.files.checkpoint import StoredTensor
from fewbits.formats import Format


def can_cast(tensor: StoredTensor) -> bool:
    """Whether a tensor is a matrix of floating-point numbers, or has more axes; others stay as they are."""
    return tensor.is_float and len(tensor.shape) >= 2 and tensor.count > 0


def is_selected(name: str, include: Sequence[str], exclude: Sequence[str]) -> bool:
    """Whether a name matches a pattern of ``include``, of which none means all, and none of ``exclude``.

    >>> is_selected("layers.0.w", ["layers.*"], ["*.b"]), is_selected("layers.0.b", [], ["*.b"])
    (True, False)
    """
    return (not include or _matches(name, include)) and not _matches(name, exclude)


def check_patterns(names: Sequence[str], include: Sequence[str], exclude: Sequence[str]) -> None:
    """Refuse patterns that match no tensor.

    Args:
        names: of all tensors of a checkpoint.
        include: patterns, as a shell has them.
        exclude: likewise.

    Raises:
        ArgumentError: there is one.
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
) -> dict[str, Format]:
    """Return the format of each tensor that is cast, by its name.

    Args:
        tensors: all of a checkpoint.
        format: for the tensors that no pattern of ``mapped`` names; None leaves them as they are.
        mapped: (pattern, format); the first pattern that matches a name decides.
        include: patterns of names that may be cast; none: all.
        exclude: patterns of names that stay as they are whatever the others say.

    Raises:
        ArgumentError: a pattern matches nothing, or nothing is left to be cast.
    """
    check_patterns([t.name for t in tensors], include, exclude)
    able = [t.name for t in tensors if can_cast(t)]
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
