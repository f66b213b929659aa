"""How many rows each process sends to each."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fewbits.distributed.peers import Peers
from fewbits.distributed.pieces import even
from fewbits.errors import ArgumentError


def checked_sizes(given: Sequence[int] | None, rows: int, peers: Peers) -> list[int]:
    """Return how many rows go to each process.

    Raises:
        ArgumentError: not a size for each process, or sizes that do not sum to the rows.
    """
    if given is None:
        return even(rows, peers.size, None)
    sizes = list(given)
    if len(sizes) != peers.size or sum(sizes) != rows or min(sizes) < 0:
        raise ArgumentError(
            f"split_sizes={sizes} for {rows} rows and {peers.size} processes; expected one size from 0 up for"
            " each process, which sum to the rows"
        )
    return sizes


def row_counts(sizes: Sequence[int], peers: Peers) -> list[int]:
    """Return how many rows come from each process."""
    counts = torch.tensor(sizes).view(torch.uint8)
    each = [8] * peers.size
    return [int(c.view(torch.int64)) for c in peers.all_to_all(counts, each, each, "agreement")]
