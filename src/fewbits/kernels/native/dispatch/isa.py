"""Which instruction set the compiled kernels use: list, ask, force."""

from __future__ import annotations

from fewbits import _native
from fewbits.errors import ArgumentError
from fewbits.graphs import constant_in_graphs


def isas() -> tuple[str, ...]:
    """Return every instruction set in this build, the preferred one first; ``baseline`` is last."""
    return tuple(_native.isa_names(available=False))


def available_isas() -> tuple[str, ...]:
    """Return the instruction sets that this CPU supports, the preferred one first."""
    return tuple(_native.isa_names(available=True))


@constant_in_graphs
def active_isa() -> str:
    """Return the instruction set in use.

    Raises:
        ArgumentError: the environment variable ``FEWBITS_ISA`` names one that cannot run.
    """
    try:
        return _native.active_isa()
    except ValueError as error:
        raise ArgumentError(f"{error}; unset it or use one of {', '.join(available_isas())}") from None


def force_isa(name: str | None) -> None:
    """Use the instruction set ``name`` in this process from now on; None restores the automatic choice.

    Raises:
        ArgumentError: it is no name, or this build or this CPU does not support it; the choice is unchanged.
    """
    given: object = name  # a user may pass anything
    if given is not None and not (isinstance(given, str) and given):
        raise ArgumentError(
            f"force_isa asks for {name!r}; use one of {', '.join(available_isas())}, or None for the best of"
            " them"
        )
    try:
        _native.force_isa(name)
    except ValueError as error:
        raise ArgumentError(f"{error}; use one of {', '.join(available_isas())}") from None
