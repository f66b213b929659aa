"""A count of the bytes that a process sends, and of the formats of the values in them."""

from __future__ import annotations

from dataclasses import dataclass, field

from fewbits.formats.narrowest import narrowest


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
    formats: dict[str, int] = field(default_factory=dict)  # values that were made ready to travel, by format

    def count(self, collective: str, nbytes: int, wide: int = 0, calls: int = 1) -> None:
        """Add what a collective sent."""
        entry = self.sent.setdefault(collective, Sent())
        entry.calls += calls
        entry.nbytes += nbytes
        entry.wide += wide

    def encoded(self, format: str, values: int) -> None:
        """Add values that were written in a format, to be sent."""
        self.formats[format] = self.formats.get(format, 0) + values

    @property
    def narrowest(self) -> str | None:
        """The narrowest format in which values travelled; None if none did."""
        return narrowest(format for format, values in self.formats.items() if values)

    @property
    def nbytes(self) -> int:
        """All bytes sent."""
        return sum(entry.nbytes for entry in self.sent.values())

    @property
    def wide(self) -> int:
        """Bytes that the same values would have taken in their own dtypes."""
        return sum(entry.wide for entry in self.sent.values())
