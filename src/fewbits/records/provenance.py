"""Where a measurement comes from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Provenance:
    """What a reader needs to repeat the measurement."""

    command: str
    versions: tuple[tuple[str, str], ...]  # (package, version)
    seeds: tuple[int, ...] = ()
