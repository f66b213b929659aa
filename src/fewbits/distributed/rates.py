"""How long this machine takes to round values for the wire, to add them and to unpack them."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import torch

from fewbits.distributed import wire
from fewbits.distributed.cost import counted
from fewbits.distributed.peers import Peers
from fewbits.distributed.reduction import Reduction, add_runs
from fewbits.distributed.scaling import Powers, count_clipped
from fewbits.distributed.state import CodecState
from fewbits.distributed.traffic import Traffic
from fewbits.recipes import Codec
from fewbits.records import CodecRates

_ROUNDS = 5  # the fastest counts: what others do on the machine only ever adds


class _Alone(Peers):
    """One process, without a group."""

    def __init__(self) -> None:
        self.rank, self.size, self.traffic = 0, 1, Traffic()

    def all_gather(self, mine: torch.Tensor, name: str = "all_gather") -> torch.Tensor:
        return mine[None]


def measured_rates(codec: str | Codec, n: int) -> CodecRates:
    """Measure the rates of a codec by short runs on one thread.

    What a scale that processes agree on takes (``aps``, ``auto_scale``), feedback, and compensated sums are
    in them.

    Args:
        codec: a codec or its text.
        n: values in a run; normally distributed.

    Raises:
        ArgumentError: a hook of torch's.
        FormatError: no such format.
    """
    chosen = counted(codec)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _measured(chosen, n)
    finally:
        torch.set_num_threads(threads)


def _measured(codec: Codec, n: int) -> CodecRates:
    x = torch.randn(n, generator=torch.Generator().manual_seed(0))
    state, alone = CodecState(codec), _Alone()
    residual, velocity = state.residual([""], [n]), state.velocity([""], [n])
    sent, total = torch.zeros(wire.nbytes(codec, n), dtype=torch.uint8), torch.zeros(n)
    powers: Powers | None = None

    def encode() -> None:
        nonlocal powers
        reduction = Reduction(
            x, [n], codec, alone, mean=False, state=state, residual=residual, velocity=velocity
        )
        beyond, powers = reduction.encode(0, sent), reduction.powers
        if codec.auto_scale:
            count_clipped(beyond, n, alone, state)

    def add() -> None:
        add_runs([sent], codec, total)

    def decode() -> None:
        wire.decode(sent, codec, total)
        if powers is not None:
            powers.scale(total, 0, -1)

    return CodecRates(str(codec), *(1e9 * _fastest(call) / n for call in (encode, add, decode)))


def _fastest(call: Callable[[], None]) -> float:
    """Return the seconds of the fastest of some calls, after one that is not counted."""
    call()
    times = []
    for _ in range(_ROUNDS):
        start = perf_counter()
        call()
        times.append(perf_counter() - start)
    return min(times)
