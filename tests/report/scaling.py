"""Records of codecs and of predictions that look like real ones."""

from __future__ import annotations

import math

from fewbits.records import (
    CodecComparison,
    CodecLimit,
    CodecRates,
    CodecScore,
    PredictedStep,
    Prediction,
    StepTime,
)

# codec, bits per value, relative error, loss in nats beside FP32's, nanoseconds for a value
CODECS = (
    ("fp32", 32.0, 3e-8, 0.0, 0.2),
    ("bf16", 16.0, 0.0024, 0.0001, 1.7),
    ("mxfp8_e4m3", 8.25, 0.037, 0.001, 0.6),
    ("int8_256:feedback", 8.125, 0.011, -0.0004, 1.7),
    ("block(element=float(e=2,m=1),scale=e8m0,size=32):stochastic,feedback", 4.25, 0.19, 0.02, 0.9),
    ("mxfp4", 4.25, 0.16, 0.004, 0.5),
    ("topk:density=0.01,feedback", 0.48, 0.92, 0.31, 5.1),
)
RATES = tuple(CodecRates(name, ns, 0.6 * ns, 0.7 * ns) for name, *_, ns in CODECS)


def comparison(seeds: int = 3, links: tuple[float, ...] = (1.0, 10.0, 100.0)) -> CodecComparison:
    """Codecs on the task of bytes."""
    baseline = tuple(1.62 + 0.01 * math.sin(9 * seed) for seed in range(seeds))
    scores = tuple(
        CodecScore(
            name, bits, 131072 * bits / 8 * 1.5 + 1536, 786432.0, error,
            tuple(b + loss * (1 + 0.1 * math.sin(5 * i + bits)) for i, b in enumerate(baseline)), baseline,
            baseline, tuple(StepTime(link, 0.04 + 1e-4 * ns + bits * 4e-4 / link) for link in links),
        )
        for name, bits, error, loss, ns in CODECS
    )  # fmt: skip
    return CodecComparison(
        "bytes", "nll", True, 600, tuple(range(seeds)), 4, 131072, 0.04, 20.0, scores, RATES
    )


def prediction() -> Prediction:
    """Codecs on some numbers of ranks."""
    steps = tuple(
        PredictedStep(
            name, ranks, "owners", 0.25 + bits * 0.003, "levels" if ranks > 64 else "ring", 1e-3 * ns,
            bits * 0.002, 0.12 + 1e-3 * ns + bits * 0.002 * (1 + ranks / 4096),
            0.12 / (0.12 + 1e-3 * ns + bits * 0.002 * (1 + ranks / 4096)),
            () if name in ("fp32", "topk:density=0.01,feedback") else ((1e-3, 7.68),),
        )
        for name, bits, _, _, ns in CODECS
        for ranks in (2, 64, 4096)
    )  # fmt: skip
    runs = {"mxfp4": ((2, 1 << 20),), "mxfp8_e4m3": ((1024, 1 << 20),)}
    limits = tuple(CodecLimit(name, runs.get(name, ())) for name, *_ in CODECS[1:])
    return Prediction(
        25_600_000, 0.12, 10.0, 20.0, 8, 200.0, 0.5, (2, 1 << 20), (1e-3, 1e5), steps, limits, RATES,
        "measured here",
    )  # fmt: skip
