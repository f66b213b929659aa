"""A count of the bytes that a process sends."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Sent:
    """What one kind of collective sent: calls, and bytes as they travelled and as the values are."""

    calls: int = 0
    nbytes: int = 0
    wide: int = 0  # bytes that a reduction or copy of the same values in their own dtype would have sent


@dataclass
class Traffic:
    """Counts the bytes that this process hands to the network, by collective.

    Bytes are those of messages: what a transport adds to each (gloo's preamble, TCP's and IP's headers) is
    not in them. Pass one to collectives and hooks, and read it at any time.
    """

    sent: dict[str, Sent] = field(default_factory=dict)

    def count(self, collective: str, nbytes: int, wide: int = 0, calls: int = 1) -> None:
        """Add what a collective sent."""
        entry = self.sent.setdefault(collective, Sent())
        entry.calls += calls
        entry.nbytes += nbytes
        entry.wide += wide

    @property
    def nbytes(self) -> int:
        """All bytes sent."""
        return sum(entry.nbytes for entry in self.sent.values())

    @property
    def wide(self) -> int:
        """Bytes that the same values would have taken in their own dtypes."""
        return sum(entry.wide for entry in self.sent.values())
