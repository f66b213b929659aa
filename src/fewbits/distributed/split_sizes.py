"""How many rows each process sends to each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
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
    number: object = given  # as a caller without types may pass
    sizes: list[Any] = list(given) if isinstance(number, Iterable) else [number]
    whole = all(isinstance(n, (int, np.integer)) and n >= 0 for n in sizes)
    if len(sizes) != peers.size or not whole or sum(sizes) != rows:
        raise ArgumentError(
            f"split_sizes={sizes} for {rows} rows and {peers.size} processes; expected one size from 0 up for"
            " each process, whole numbers which sum to the rows"
        )
    return [int(n) for n in sizes]


def row_counts(sizes: Sequence[int], peers: Peers) -> list[int]:
    """Return how many rows come from each process."""
    counts = torch.tensor(sizes).view(torch.uint8)
    each = [8] * peers.size
    return [int(c.view(torch.int64)) for c in peers.all_to_all(counts, each, each, "agreement")]
