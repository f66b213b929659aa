"""Where a measurement comes from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Provenance:
    """What a reader needs to take the same measurement again."""

    command: str
    versions: tuple[tuple[str, str], ...]  # (package, version)
    seeds: tuple[int, ...] = ()
