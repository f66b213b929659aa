"""A training step on thousands of ranks, predicted for each codec, before the machines are rented."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from pathlib import Path

from fewbits.compare.whole_numbers import check_number, check_whole
from fewbits.distributed.cost import OWN, Exchange, Link, Network, counted, reductions, step_seconds
from fewbits.distributed.rates import measured_rates
from fewbits.errors import ArgumentError, DataError
from fewbits.recipes import Codec
from fewbits.records import CodecLimit, CodecRates, PredictedStep, Prediction
from fewbits.typing import Progress

_MOST_RANKS = 1 << 20
_GIGABITS = (1e-3, 1e5)
_PER_DECADE = 10  # speeds that are tried before the limit between two of them is narrowed down
_MEASURED = 1 << 22  # values in a run whose rates are measured, at most


def predict_steps(
    codecs: Sequence[str | Codec],
    *,
    parameters: int,
    compute_seconds: float,
    ranks: Sequence[int],
    gigabits: float = 10.0,
    latency_us: float = 20.0,
    per_node: int = 1,
    inner_gigabits: float | None = None,
    overlap: float = 0.0,
    rates: Sequence[CodecRates] | None = None,
    rates_from: str = "",
    progress: Progress | None = None,
) -> Prediction:
    """Predict the time of a training step on many ranks, with each codec and by each reduction.

    Nothing is trained and nothing travels. A step is the compute and one all-reduce of all gradients, as
    :mod:`fewbits.distributed.cost` reckons it, from the rates of the codec, on one thread of each rank.

    Args:
        codecs: codecs or their texts; FP32 is always among them, and the others are set beside it.
        parameters: values of the gradient.
        compute_seconds: of a step without exchange.
        ranks: numbers of ranks to predict for.
        gigabits: bandwidth of a node's link, 10^9 bits per second in each direction.
        latency_us: of a message, in microseconds, within a node too.
        per_node: ranks of a node, which share its link: 2^20 at most, as limits are looked for up to there.
        inner_gigabits: bandwidth of a rank's link within its node; needed with several ranks in a node.
        overlap: share of the compute behind which messages hide, from 0 to 1; rounding is never hidden.
        rates: of the codecs and of ``fp32``; None: they are measured here, which takes seconds.
        rates_from: where they come from, as a report says it.
        progress: called as rates are measured.

    Raises:
        ArgumentError: a number out of its range or none, no ranks, a hook of torch's, or a codec without
            rates.
        FormatError: no such format.
    """
    chosen = tuple(dict.fromkeys(str(counted(codec)) for codec in ("fp32", *codecs)))
    check_whole("parameters", parameters)
    check_whole("per_node", per_node, most=_MOST_RANKS)
    for name, number in (
        ("compute_seconds", compute_seconds),
        ("overlap", overlap),
        ("gigabits", gigabits),
        ("latency_us", latency_us),
        ("inner_gigabits", 1.0 if inner_gigabits is None else inner_gigabits),
    ):
        check_number(name, number)
    if not 0 < compute_seconds < math.inf:
        raise ArgumentError(f"{1e3 * compute_seconds:g} ms of compute in a step; expected a number above 0")
    if not 0 <= overlap <= 1:
        raise ArgumentError(f"an overlap of {overlap:g}; expected a share of the compute, from 0 to 1")
    if not ranks:
        raise ArgumentError("`ranks` is empty; give numbers of ranks, as in 2,64,1024")
    link = Link(gigabits, latency_us)
    inner = None if inner_gigabits is None else Link(inner_gigabits, latency_us)
    for count in ranks:
        check_whole("ranks", count, least=2)
    networks = [Network(p, link, per_node, inner) for p in dict.fromkeys(ranks)]
    if per_node == 1 and inner is not None:
        raise ArgumentError("a link within nodes, which have one rank each; say how many a node has")
    known = {r.codec: r for r in (_measured(chosen, parameters, progress) if rates is None else rates)}
    for text in chosen:
        if text not in known:
            raise ArgumentError(
                f"there are no rates of {text}, only of {', '.join(known) or 'nothing'}; measure it by"
                " `fewbits compare --codecs` or leave the rates out, which measures them here"
            )
    step = _Step(parameters, compute_seconds, overlap, known)
    tried = [p for k in range(_MOST_RANKS.bit_length()) if 2 <= (p := per_node << k) <= _MOST_RANKS]
    return Prediction(
        parameters=parameters,
        compute_seconds=compute_seconds,
        gigabits=gigabits,
        latency_us=latency_us,
        per_node=per_node,
        inner_gigabits=inner_gigabits,
        overlap=overlap,
        tried_ranks=(tried[0], tried[-1]),
        tried_gigabits=_GIGABITS,
        steps=tuple(step.predicted(text, network) for text in chosen for network in networks),
        limits=tuple(CodecLimit(text, step.paying_ranks(text, networks[0], tried)) for text in chosen[1:]),
        rates=tuple(known[text] for text in chosen),
        rates_from="measured here" if rates is None else rates_from,
    )


def read_rates(path: str | os.PathLike[str]) -> tuple[CodecRates, ...]:
    """Return the rates of codecs in a JSON report of ``fewbits compare --codecs`` or ``fewbits scale``.

    Raises:
        DataError: the file cannot be read, or holds no rates.
    """
    expected = "expected what --json of `fewbits compare --codecs` or `fewbits scale` writes"
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as JSON ({error}); {expected}") from None
    names = [field.name for field in fields(CodecRates)]
    try:
        records = document["comparisons"] if document["kind"] == "codecs" else [document["prediction"]]
        rows = [row for record in records for row in record["rates"]]
        found = [CodecRates(str(row["codec"]), *(float(row[name]) for name in names[1:])) for row in rows]
    except (KeyError, TypeError, ValueError):
        raise DataError(f"{path} holds no rates of codecs; {expected}") from None
    times = [ns for r in found for ns in (r.encode_ns, r.add_ns, r.decode_ns)]
    if not times or not all(0 <= ns < math.inf for ns in times):
        raise DataError(f"{path} has no rates, or some that are no time; {expected}")
    return tuple({r.codec: r for r in found}.values())


@dataclass(frozen=True)
class _Step:
    """What does not change from prediction to prediction."""

    parameters: int
    compute: float
    overlap: float
    rates: Mapping[str, CodecRates]

    def seconds(self, exchange: Exchange) -> float:
        return step_seconds(self.compute, exchange, self.overlap)

    def reductions(self, text: str, network: Network) -> dict[str, Exchange]:
        return reductions(counted(text), self.parameters, network, self.rates[text], self.rates["fp32"])

    def fastest(self, text: str, network: Network) -> float:
        """Return the time of a step by the fastest reduction."""
        return min(map(self.seconds, self.reductions(text, network).values()))

    def pays(self, text: str, network: Network) -> bool:
        return self.fastest(text, network) < self.fastest("fp32", network)

    def predicted(self, text: str, network: Network) -> PredictedStep:
        found = self.reductions(text, network)
        times = {name: self.seconds(exchange) for name, exchange in found.items()}
        own = min((name for name in OWN if name in times), key=times.__getitem__)
        best = min(times, key=times.__getitem__)
        return PredictedStep(
            codec=text,
            ranks=network.ranks,
            own_reduction=own,
            own_seconds=times[own],
            best_reduction=best,
            codec_seconds=found[best].codec_seconds,
            link_seconds=found[best].link_seconds,
            step_seconds=times[best],
            efficiency=self.compute / times[best],
            pays_gigabits=() if text == "fp32" else self.paying_gigabits(text, network),
        )

    def paying_ranks(self, text: str, network: Network, tried: Sequence[int]) -> tuple[tuple[int, int], ...]:
        """Return between which numbers of ranks, of those tried, the codec is faster than FP32."""
        runs = _runs([self.pays(text, replace(network, ranks=ranks)) for ranks in tried])
        return tuple((tried[first], tried[last]) for first, last in runs)

    def paying_gigabits(self, text: str, network: Network) -> tuple[tuple[float, float], ...]:
        """Return between which speeds of links it is."""

        def pays(gigabits: float) -> bool:
            return self.pays(text, replace(network, link=replace(network.link, gigabits=gigabits)))

        low, high = _GIGABITS
        count = round(math.log10(high / low) * _PER_DECADE)
        speeds = [low * 10 ** (k / _PER_DECADE) for k in range(count + 1)]
        return tuple(
            (
                speeds[0] if first == 0 else _between(pays, speeds[first], speeds[first - 1]),
                speeds[-1] if last == count else _between(pays, speeds[last], speeds[last + 1]),
            )
            for first, last in _runs([pays(gigabits) for gigabits in speeds])
        )


def _runs(holds: Sequence[bool]) -> list[tuple[int, int]]:
    """Return first and last index of each run of what holds."""
    edges = [i for i, (old, new) in enumerate(pairwise([False, *holds, False])) if old != new]
    return [(first, end - 1) for first, end in zip(edges[::2], edges[1::2], strict=True)]


def _between(holds: Callable[[float], bool], inside: float, outside: float) -> float:
    """Return the last value, to three digits, at which something holds, on the way from one to another."""
    while abs(math.log(outside / inside)) > 1e-3:
        middle = math.sqrt(inside * outside)
        inside, outside = (middle, outside) if holds(middle) else (inside, middle)
    return inside


def _measured(codecs: Sequence[str], parameters: int, progress: Progress | None) -> list[CodecRates]:
    found = []
    for done, text in enumerate(codecs):
        found.append(measured_rates(text, min(parameters, _MEASURED)))
        if progress is not None:
            progress("measuring rates of codecs on one thread", done + 1, len(codecs))
    return found
