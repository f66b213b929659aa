"""Records that look like real ones: 14 formats, two tasks, three seeds, some twenty layers."""

from __future__ import annotations

import math

from fewbits.records import (
    CheckpointReport,
    Error,
    LayerScore,
    MatrixScore,
    Provenance,
    TaskScore,
    TensorScore,
    TensorSummary,
)

# name, bits per value, QSNR in dB on a trained weight, loss in nats when a language model is cast to it
FORMATS = (
    ("fp32", 32.0, math.inf, 0.0),
    ("bf16", 16.0, 51.2, 0.0001),
    ("fp16", 16.0, 69.3, -0.00002),
    ("mx9", 9.0, 43.6, 0.0002),
    ("mxint8", 8.25, 40.9, 0.0004),
    ("mxfp8_e4m3", 8.25, 31.4, 0.0013),
    ("mxfp8_e5m2", 8.25, 25.6, 0.0051),
    ("int8_channel", 8.02, 38.2, 0.0007),
    ("fp8_e4m3", 8.0, 31.1, 0.0015),
    ("mxfp6_e2m3", 6.25, 30.9, 0.0017),
    ("mx6", 6.0, 25.2, 0.0062),
    ("nvfp4", 4.5, 20.3, 0.0391),
    ("mxfp4", 4.25, 18.4, 0.0644),
    ("mx4", 4.0, 15.1, 0.1921),
)
SEEDS = (0, 1, 2)
PROVENANCE = Provenance(
    command="fewbits compare --report out.html",
    versions=(("fewbits", "0.1.0"), ("torch", "2.13.0"), ("numpy", "2.3.0"), ("python", "3.11.7")),
    seeds=SEEDS,
)
PARTS = ("attention.qkv", "attention.out", "mlp.up", "mlp.down")
LAYERS = {
    "bytes": (*(f"blocks.{i}.{part}" for i in range(4) for part in PARTS), "embedding", "head"),
    "digits": ("conv1", "conv2", "conv3", "conv4", "fc1", "fc2"),
}


def _layers(task: str, qsnr: float) -> tuple[LayerScore, ...]:
    return tuple(
        LayerScore(
            name, qsnr - 1.7 * math.sin(3.1 * i + len(task)), qsnr - 3.0 - 2.9 * abs(math.cos(1.3 * i))
        )
        for i, name in enumerate(LAYERS[task])
    )


def tasks(seeds: int = 3, *, train: bool = False) -> list[TaskScore]:
    """Scores of the two demonstration tasks in fourteen formats, each also trained in where asked."""
    nll = (1.6213, 1.6188, 1.6241)[:seeds]
    accuracy = (97.78, 98.33, 98.06)[:seeds]
    scores = []
    for task, metric, baseline, values in (
        ("bytes", "nll", nll, 412_000),
        ("digits", "accuracy", accuracy, 61_000),
    ):
        for name, bits, qsnr, loss in FORMATS:
            shift = loss if metric == "nll" else -24.0 * loss
            cast = tuple(b + shift * (1 + 0.15 * (i - 1)) for i, b in enumerate(baseline))
            scores.append(
                TaskScore(
                    task,
                    metric,
                    name,
                    bits,
                    values * bits / 8 + 9000.0,
                    cast,
                    baseline,
                    qsnr,
                    qsnr - 4.4,
                    0.00003 if qsnr < 30 else 0.0,
                    0.0 if qsnr > 40 else math.exp(-qsnr / 7),
                    None if bits >= 32 else round(bits * bits / 64, 2),
                    _layers(task, qsnr),
                    tuple(b - 0.001 + shift / 2 for b in baseline) if train else (),
                    tuple(b - 0.001 for b in baseline) if train else (),
                )
            )
    return scores


def checkpoint(blocks: int = 8) -> CheckpointReport:
    """A language model's checkpoint in bfloat16: `blocks` blocks of seven matrices and two norms."""
    parts = (
        ("self_attn.q_proj.weight", (2048, 2048)),
        ("self_attn.k_proj.weight", (512, 2048)),
        ("self_attn.v_proj.weight", (512, 2048)),
        ("self_attn.o_proj.weight", (2048, 2048)),
        ("mlp.gate_proj.weight", (5632, 2048)),
        ("mlp.up_proj.weight", (5632, 2048)),
        ("mlp.down_proj.weight", (2048, 5632)),
        ("input_layernorm.weight", (2048,)),
    )
    names = [("model.embed_tokens.weight", (32000, 2048)), ("lm_head.weight", (32000, 2048))]
    names += [(f"model.layers.{b}.{part}", extents) for b in range(blocks) for part, extents in parts]
    summaries, scores = [], []
    for i, (name, extents) in enumerate(names):
        count, penalty = math.prod(extents), 2.5 * abs(math.sin(1.7 * i))
        best = None
        for form, bits, qsnr, _ in sorted(FORMATS, key=lambda f: f[1]):
            got = math.inf if form in ("fp32", "bf16") else qsnr - penalty
            error = Error(got, 10 ** (-got / 20) * 3, 10 ** (-got / 20), 0.0, 0.0)
            scores.append(TensorScore(name, extents, "BF16", form, bits, int(count * bits / 8), error))
            if best is None and got >= 24 and bits < 16 and len(extents) > 1:
                best = scores[-1]
        kept = best is None
        summaries.append(
            TensorSummary(
                name,
                extents,
                "BF16",
                2 * count,
                4.0 + 30 * abs(math.sin(2.3 * i)) ** 6,
                None if kept else best.format,
                2 * count if kept else best.packed_bytes,
                "one-dimensional" if kept else "narrowest at or above 24 dB",
            )
        )
    summaries.append(
        TensorSummary("position_ids", (2048,), "I64", 16384, 1.7, None, 16384, "not floating point")
    )
    return CheckpointReport("models/tiny/model.safetensors", 24.0, tuple(summaries), tuple(scores))


def matrices() -> list[MatrixScore]:
    """A badly scaled sparse matrix in fourteen formats."""
    return [
        MatrixScore(
            "bcsstk14.mtx",
            name,
            bits,
            int(63454 * bits / 8),
            Error(
                qsnr,
                min(1.0, 8 * 10 ** (-qsnr / 20)),
                10 ** (-qsnr / 20),
                0.0 if bits > 8 else 0.012,
                0.0 if qsnr > 40 else 2.2 / qsnr,
            ),
            10 ** (-qsnr / 20),
            math.inf if bits == 4.0 else 1.19e10 * (1 + 30 * 10 ** (-qsnr / 20)),
            1.19e10,
            "largest entry beyond the format" if name == "fp16" else "",
        )
        for name, bits, qsnr, _ in FORMATS
    ]
