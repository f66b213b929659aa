"""Which instruction set the compiled kernels use: list, ask, force."""

from __future__ import annotations

from fewbits import _native
from fewbits.errors import ArgumentError


def isas() -> tuple[str, ...]:
    """Return every instruction set in this build, the preferred one first; ``baseline`` is last."""
    return tuple(_native.isa_names(available=False))


def available_isas() -> tuple[str, ...]:
    """Return those that this CPU runs, the preferred one first."""
    return tuple(_native.isa_names(available=True))


def active_isa() -> str:
    """Return the one that runs now.

    Raises:
        ArgumentError: the environment variable ``FEWBITS_ISA`` names one that cannot run.
    """
    try:
        return _native.active_isa()
    except ValueError as error:
        raise ArgumentError(f"{error}; unset it or use one of {', '.join(available_isas())}") from None


def force_isa(name: str | None) -> None:
    """Make ``name`` run from now on in this process; None gives the choice back.

    Raises:
        ArgumentError: this build or this CPU does not have it; the choice stays as it was.
    """
    try:
        _native.force_isa(name)
    except ValueError as error:
        raise ArgumentError(f"{error}; use one of {', '.join(available_isas())}") from None
