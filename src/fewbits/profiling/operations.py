"""Operations of a step beside the limits of the machine."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from fewbits.profiling.attribution import Piece
from fewbits.profiling.counting import Count
from fewbits.records import MachineLimits, ProfiledOperation

_READS = 8  # times as many bytes as it writes: then reading is what takes the time
_SHORT = ("bfloat16", "float16")


def operations(pieces: Iterable[Piece], limits: MachineLimits) -> tuple[ProfiledOperation, ...]:
    """Return the pieces of a step, those of one operation in one layer together, the longest first."""
    alike: dict[tuple[object, ...], list[Piece]] = {}
    for piece in pieces:
        how = (piece.count.dtype, piece.count.strided) if piece.count else None
        alike.setdefault((piece.name, piece.kind, piece.layer, how, piece.is_call), []).append(piece)
    found = [_operation(of, limits) for of in alike.values()]
    return tuple(sorted(found, key=lambda o: (-o.seconds, o.name, o.layer)))


def _operation(alike: Sequence[Piece], limits: MachineLimits) -> ProfiledOperation:
    first, counts = alike[0], [piece.count for piece in alike if piece.count is not None]
    seconds, bound = held_to(counts, limits)
    return ProfiledOperation(
        name=first.name,
        kind=first.kind,
        layer=first.layer,
        calls=len(alike) if first.is_call else 0,
        seconds=1e-9 * sum(piece.nanoseconds for piece in alike),
        moved_bytes=sum(count.moved_bytes for count in counts),
        flops=sum(count.flops for count in counts),
        limit_seconds=seconds,
        bound=bound,
        dtype=counts[0].dtype if counts else "",
        rounds_inside=any(count.rounds_inside for count in counts),
        strided=any(count.strided for count in counts),
        counted=bool(counts),
    )


def held_to(counts: Sequence[Count], limits: MachineLimits) -> tuple[float, str]:
    """Return the least time that calls could take on a machine, and what sets it; (0, "") of none.

    Each call takes as long as its bytes, its products or the call itself, whichever is longest.
    """
    by_bound = {"memory": 0.0, "compute": 0.0, "calls": 0.0}
    for count in counts:
        reads = count.read_bytes > _READS * count.written_bytes
        least = {
            "memory": count.moved_bytes / (limits.read_bytes if reads else limits.copy_bytes),
            "compute": count.flops / product_rate(count.dtype, limits) if count.is_product else 0.0,
            "calls": limits.call_seconds if count.moved_bytes else 0.0,
        }
        bound = max(least, key=lambda name: least[name])
        by_bound[bound] += least[bound]
    total = sum(by_bound.values())
    return total, max(by_bound, key=lambda name: by_bound[name]) if total else ""


def product_rate(dtype: str, limits: MachineLimits) -> float:
    """Return the FLOP per second of products of a dtype; inf where none is known.

    Values of 16 bits may be widened first, and then take the rate of float32 where that is higher. Of packed
    operands, whose dtype is "", it is that of the fastest dtype.
    """
    rates = limits.product_flops
    if not dtype:
        return max(rates.values(), default=math.inf)
    widened = rates.get("float32", 0.0) if dtype in rates and dtype in _SHORT else 0.0
    return max(rates.get(dtype, math.inf), widened)
