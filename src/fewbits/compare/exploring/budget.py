"""The best format of at most so many bits per value, tables fitted to the data among them."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import ceil, isfinite

import numpy as np

from fewbits import kernels
from fewbits.compare.exploring.fitting import fitted_table
from fewbits.compare.exploring.space import BLOCK_SCALES, FAMILIES, NAMED, SIZES, design_space
from fewbits.compare.exploring.sweep import own_formats, qsnr_of, score_all
from fewbits.compare.exploring.vectors import Singles, Vectors, vectors_of
from fewbits.errors import ArgumentError, DataError
from fewbits.formats import Element, Format, channel_bits_per_value, parse
from fewbits.records import ExploredData, ExploredFormat, Finalist, FormatChoice
from fewbits.typing import Progress

_LEAST_BITS, _MOST_BITS = 2, 8  # of a code of a fitted table


def best_format(
    budget: float,
    data: str | os.PathLike[str] = "variance",
    formats: Sequence[str | Format] = (),
    *,
    vectors: int = 10_000,
    seed: int = 0,
    scale_rule: str = "floor",
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    progress: Progress | None = None,
) -> FormatChoice:
    """Find the format of at most ``budget`` bits per value with the highest QSNR on this data.

    On the first half of the vectors every format of the design space within the budget is measured, and
    tables of 4 to 256 values are fitted under each kind of scale. The best of each family, the best table and
    all named formats are then measured on the other half, which alone decides: what suits only the vectors
    that it was chosen on loses there. Of equal vectors, as tied tensors have them, one alone takes part.

    Args:
        budget: bits per value, scales included.
        data: as :func:`explore_formats` takes it.
        formats: formats or texts that take part whatever they are worth.
        vectors: how many, both halves together; at least 2.
        seed: of the vectors that are drawn.
        scale_rule: how power-of-two scales are chosen.
        include: of a checkpoint, patterns of the names of tensors to take; empty for all.
        exclude: patterns of names that are not taken.
        progress: called as ``progress("measuring formats", formats done, all formats)``, then as
            ``progress("fitting tables", tables done, all tables)``.

    Raises:
        FormatError: no such format.
        ArgumentError: a budget that no format meets or that a named one exceeds, fewer than two distinct
            vectors; or
            as :func:`explore_formats`.
        DataError: as :func:`explore_formats`; or all vectors of a half are zero.
    """
    own = own_formats(formats)
    kernels.check_scale_rule(scale_rule, (*design_space(), *own))
    drawn = vectors_of(data, vectors, seed, scale_rule, include, exclude)
    length = drawn.data.length
    space = [f for f in design_space() if channel_bits_per_value(f, length) <= budget]
    if not isfinite(budget) or not space:
        least = min(channel_bits_per_value(f, length) for f in design_space())
        raise ArgumentError(f"a budget of {budget:g} bits per value; expected at least {least:g}")
    for format in own:
        bits = channel_bits_per_value(format, length)
        if bits > budget:
            raise ArgumentError(
                f"{format!s:.100} takes {bits:g} bits per value, more than the budget of {budget:g}; leave it"
                " out or raise the budget"
            )
    values, record = _distinct(drawn)
    half = len(values) // 2
    if not half:
        raise ArgumentError("one vector; expected at least 2: one half chooses, the other one judges")
    given, held_out = values[:half], values[half:]
    if not (given.any() and held_out.any()):
        raise DataError(
            f"{data!s:.200}: all vectors of one half are zero, and no format can be chosen or judged on them;"
            " give more vectors, another seed or other tensors"
        )
    named = [
        f for f in dict.fromkeys([*own, *map(parse, NAMED)]) if channel_bits_per_value(f, length) <= budget
    ]
    scores = score_all(given, list(dict.fromkeys([*space, *named])), scale_rule, progress)
    tables = _tables(given, budget, scale_rule, progress)
    of_tables = score_all(given, tables, scale_rule)
    kinds = {f: family for family in FAMILIES for f in _best({f: scores[f] for f in space}, family)}
    kinds |= dict.fromkeys(_best(of_tables, "lookup"), "table")
    kinds = {f: kinds.get(f, "named") for f in (*kinds, *named)}
    finalists = [
        Finalist((scores | of_tables)[f], kind, qsnr_of(held_out, f, scale_rule)) for f, kind in kinds.items()
    ]
    finalists.sort(key=lambda f: (-f.held_out_db, f.format.bits_per_value, f.format.format))
    return FormatChoice(record, budget, len(space), len(tables), tuple(finalists))


def _distinct(drawn: Vectors) -> tuple[Singles, ExploredData]:
    """Return each vector once: one that is in both halves would be judged on what it was chosen on."""
    _, first = np.unique([v.tobytes() for v in drawn.values], return_index=True)
    values, equal = drawn.values[np.sort(first)], len(drawn.values) - len(first)
    about = drawn.data.about + (f"; {equal} equal to others left out" if equal else "")
    return values, replace(drawn.data, about=about, vectors=len(values))


def _best(scores: dict[Format, ExploredFormat], family: str) -> list[Format]:
    """Return the best format of a family, the narrowest of equal ones; none where the family has none."""
    among = [f for f, s in scores.items() if s.family == family]
    return sorted(among, key=lambda f: (-scores[f].qsnr_db, scores[f].bits_per_value, str(f)))[:1]


def _tables(values: Singles, budget: float, scale_rule: str, progress: Progress | None) -> list[Format]:
    """Return tables fitted to the vectors: under each scale and size those with the most bits that fit."""
    shapes = list(_shapes(budget, values.shape[1]))
    tables: list[Format] = []
    for done, (bits, scale, outer, size) in enumerate(shapes):
        if progress is not None:
            progress("fitting tables", done, len(shapes))
        table = fitted_table(values, bits, scale, size, outer, scale_rule)
        tables += [table] if table is not None else []
    if progress is not None and shapes:
        progress("fitting tables", len(shapes), len(shapes))
    return list(dict.fromkeys(tables))


def _shapes(budget: float, length: int) -> Iterator[tuple[int, Element, Element | None, int]]:
    """Return the bits, scales and sizes of the tables to fit, the widest within the budget."""
    for scale, outer in BLOCK_SCALES:
        for size in SIZES:
            shared = scale.bits * ceil(length / size)
            for bits in range(_MOST_BITS, _LEAST_BITS - 1, -1):
                if (bits * length + shared) / length <= budget:  # as channel_bits_per_value counts
                    yield bits, scale, outer, size
                    break
