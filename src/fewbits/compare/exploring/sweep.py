"""Measure all formats of the space on the same vectors, and find where the fronts are."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from math import nan
from statistics import fmean

from fewbits import kernels
from fewbits.compare.exploring.space import NAMED, design_space, family_of, is_explorable, scale_of
from fewbits.compare.exploring.vectors import Singles, vectors_of
from fewbits.errors import ArgumentError
from fewbits.formats import Bdr, Format, area_memory_proxy, channel_bits_per_value, parse
from fewbits.fronts import best_at, pareto_front
from fewbits.metrics import Tally, qsnr_lower_bound
from fewbits.records import Exploration, ExploredFormat, ExploredFront, FrontSensitivity, PlacedFormat
from fewbits.typing import Progress

_PARAMETERS = ("d1", "k1", "d2", "k2")
_POWER = "power of two"

Cost = Callable[[ExploredFormat], float]
_COSTS: dict[str, Cost] = {"bits": lambda f: f.bits_per_value, "proxy": lambda f: f.proxy}


def explore_formats(
    data: str | os.PathLike[str] = "variance",
    formats: Sequence[str | Format] = (),
    *,
    vectors: int = 10_000,
    seed: int = 0,
    scale_rule: str = "floor",
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    progress: Progress | None = None,
) -> Exploration:
    """Measure the design space of formats on one kind of data, and find its Pareto fronts.

    Every format of :func:`fewbits.compare.exploring.design_space` rounds the same vectors, nearest even. QSNR
    is -10 log10 of the summed noise over the summed signal of all vectors (With Shared Microexponents,
    section 4.1). There are four fronts: over bits per value and over the area-memory proxy, of all formats
    and of those whose scales are powers of two.

    Args:
        data: ``"variance"`` (normal, each vector with its own variance), ``"gaussian"``, ``"laplace"`` or
            ``"lognormal"``; or a ``.npy`` array, a ``.safetensors`` file, an index of several or a folder of
            them, of which pieces of rows are taken at random.
        formats: formats or texts to place beside the fronts, with those that are always named.
        vectors: how many, of 256 values each; of a file at most as many as it holds.
        seed: of the vectors that are drawn.
        scale_rule: how power-of-two scales are chosen; formats with other scales keep their own rule.
        include: of a checkpoint, patterns of the names of tensors to take; empty for all.
        exclude: patterns of names that are not taken.
        progress: called as ``progress("measuring formats", formats done, all formats)``.

    Raises:
        FormatError: no such format.
        ArgumentError: no such distribution, file or scale rule, fewer than one vector, a pattern that matches
            no name, or a format that cannot hold both signs.
        DataError: the file cannot be read, or its values are not finite or all zero.
    """
    own = own_formats(formats)
    space = design_space()
    kernels.check_scale_rule(scale_rule, (*space, *own))
    drawn = vectors_of(data, vectors, seed, scale_rule, include, exclude)
    beside = [f for f in own if f not in set(space)]
    scores = score_all(drawn.values, (*space, *beside), scale_rule, progress)
    of_space = sorted((scores[f] for f in space), key=lambda s: (s.bits_per_value, s.format))
    named = [scores[f] for f in dict.fromkeys([*map(parse, NAMED), *own])]
    return Exploration(
        drawn.data,
        tuple(of_space),
        tuple(_front(of_space, cost, scale) for cost in _COSTS for scale in ("any", _POWER)),
        tuple(_placed(score, of_space) for score in named),
        tuple(sensitivities(scores)),
    )


def own_formats(formats: Sequence[str | Format]) -> list[Format]:
    """Return the formats that the user named, each once.

    Raises:
        FormatError: no such format.
        ArgumentError: one that holds no numbers of both signs.
    """
    own = list(dict.fromkeys(parse(f) for f in formats))
    for format in own:
        if not is_explorable(format):
            raise ArgumentError(f"{format} has no negative values; explore takes formats of both signs")
    return own


def score_all(
    values: Singles, formats: Sequence[Format], scale_rule: str, progress: Progress | None = None
) -> dict[Format, ExploredFormat]:
    """Round the vectors to each format and return what is found, by format."""
    scores = {}
    for done, format in enumerate(formats):
        if progress is not None:
            progress("measuring formats", done, len(formats))
        scores[format] = _score(format, qsnr_of(values, format, scale_rule), values.shape[1])
    if progress is not None:
        progress("measuring formats", len(formats), len(formats))
    return scores


def qsnr_of(values: Singles, format: Format, scale_rule: str) -> float:
    """Return the QSNR of all vectors together, in decibels."""
    rule = scale_rule if kernels.has_scale_rule(format) else "floor"
    tally = Tally()
    tally.include(kernels.tally(values, format, 1, kernels.options(format, scale_rule=rule)), values.size)
    return tally.error().qsnr_db


def _score(format: Format, qsnr_db: float, length: int) -> ExploredFormat:
    return ExploredFormat(
        str(format),
        family_of(format),
        scale_of(format),
        channel_bits_per_value(format, length),
        qsnr_db,
        area_memory_proxy(format, length),
        qsnr_lower_bound(format, length) if isinstance(format, Bdr) else nan,
    )


def _front(scores: Sequence[ExploredFormat], cost: str, scale: str) -> ExploredFront:
    among = _of_scale(scores, scale)
    front = pareto_front(_points(among, _COSTS[cost]))
    return ExploredFront(cost, scale, tuple(among[i].format for i in front))


def _of_scale(scores: Sequence[ExploredFormat], scale: str) -> list[ExploredFormat]:
    return [s for s in scores if scale in ("any", s.scale)]


def _points(scores: Sequence[ExploredFormat], cost: Cost) -> list[tuple[float, float]]:
    return [(cost(s), s.qsnr_db) for s in scores]


def _placed(score: ExploredFormat, space: Sequence[ExploredFormat]) -> PlacedFormat:
    def below(cost: str, scale: str) -> float:
        of_cost = _COSTS[cost]
        return _less(score.qsnr_db, best_at(_points(_of_scale(space, scale), of_cost), of_cost(score)))

    return PlacedFormat(
        score, below("bits", "any"), below("bits", _POWER), below("proxy", "any"), below("proxy", _POWER)
    )


def sensitivities(scores: dict[Format, ExploredFormat]) -> list[FrontSensitivity]:
    """Return what the front of BDR loses with one value of each parameter only.

    Losses are taken at the points of the front, but for those with the most mantissa bits of the space: there
    a format without microexponents could not answer with one bit more. Formats without microexponents have
    no k2.
    """
    bdr = {f: s for f, s in scores.items() if isinstance(f, Bdr)}
    widest = max(f.m for f in bdr)
    found = []
    for parameter in _PARAMETERS:
        having = {f: s for f, s in bdr.items() if parameter != "k2" or f.d2}
        for value in sorted({getattr(f, parameter) for f in having}):
            kept = [s for f, s in having.items() if getattr(f, parameter) == value]
            losses = [_losses(bdr, kept, cost, widest) for cost in _COSTS.values()]
            means = [(fmean(of), max(of)) if of else (nan, nan) for of in losses]
            found.append(FrontSensitivity(parameter, value, len(kept), *means[0], *means[1]))
    return found


def _losses(
    bdr: dict[Bdr, ExploredFormat], kept: Sequence[ExploredFormat], cost: Cost, widest: int
) -> list[float]:
    """Return by how many decibels the front of ``kept`` lies below that of all, where both have formats."""
    formats, scores = list(bdr), list(bdr.values())
    points = _points(kept, cost)
    least = min(c for c, _ in points)
    front = (i for i in pareto_front(_points(scores, cost)) if formats[i].m < widest)
    at = [scores[i] for i in front if cost(scores[i]) >= least]
    return [_less(best_at(points, cost(s)), s.qsnr_db) for s in at]


def _less(db: float, best: float) -> float:
    """Return by how much a QSNR is below the best one; two that are infinite do not differ."""
    return 0.0 if db == best else best - db
