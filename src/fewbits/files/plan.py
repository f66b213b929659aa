"""Which tensors of a checkpoint are narrowed, and to which format."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from fewbits.errors import ArgumentError
from fewbits.files.checkpoint import StoredTensor
from fewbits.formats import Format


def can_narrow(tensor: StoredTensor) -> bool:
    """Whether a tensor is a matrix of floating-point numbers, or has more axes; the others are kept."""
    return tensor.is_float and len(tensor.shape) >= 2 and tensor.count > 0


def plan(
    tensors: Sequence[StoredTensor],
    fmt: Format | None,
    mapped: Sequence[tuple[str, Format]],
    keep: Sequence[str],
) -> dict[str, Format]:
    """Return the format of each tensor to be narrowed.

    Args:
        tensors: all of a checkpoint.
        fmt: for the tensors that no pattern names; None keeps them.
        mapped: (pattern, format); the first pattern that matches a name decides.
        keep: patterns of names that are kept whatever the others say.

    Raises:
        ArgumentError: a pattern matches nothing, or nothing is left to be narrowed.
    """
    for pattern in keep:
        _check(pattern, tensors, lambda _: True, "--keep", "tensor")
    for pattern, _ in mapped:
        _check(pattern, tensors, can_narrow, "--map", "tensor that can be narrowed")
    rules = [*mapped, *([("*", fmt)] if fmt is not None else [])]
    chosen = {}
    for tensor in tensors:
        if not can_narrow(tensor) or any(fnmatchcase(tensor.name, pattern) for pattern in keep):
            continue
        found = next((to for pattern, to in rules if fnmatchcase(tensor.name, pattern)), None)
        if found is not None:
            chosen[tensor.name] = found
    if not chosen:
        raise ArgumentError(
            "no tensor would be narrowed: it takes floating-point values, two axes or more, and a name that "
            "--keep does not match; `fewbits inspect` lists the tensors"
        )
    return chosen


def _check(
    pattern: str,
    tensors: Sequence[StoredTensor],
    counts: Callable[[StoredTensor], bool],
    option: str,
    what: str,
) -> None:
    if not any(fnmatchcase(t.name, pattern) for t in tensors if counts(t)):
        raise ArgumentError(
            f"{option} {pattern!r:.200} matches no {what}; `fewbits inspect` lists the names, and * stands "
            "for any part of one"
        )
