"""How fast are products of ternary and binary weights with integers of few bits, for one vector?

Limit: torch summing as many bytes of float32 as the packed weights have, which reads them once. Peers, for
the same shape: torch's product of bfloat16, its product of int8 weights with a vector of bfloat16, fewbits'
own int8 weights, and ggml's ternary types where `python benchmarks/_ggml.py` has built them; ggml rounds
the vector to int8 too. All in one process, in turns, each beside the reads before and after it, medians.
8192 x 65536 weights are 1 GiB in bfloat16. The speed does not depend on values: some lines are drawn, and
repeated.

    python benchmarks/bit_planes.py [--lines 8192] [--columns 65536] [--rounds 5] [--json FILE]
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from _alternating import Calls, arguments, beside, table, write
from _ggml import Matrix, built

import fewbits as fb

DRAWN = 16  # lines
ACTIVATIONS = {
    8: "int8_channel",
    4: "int4_channel",
    2: "block(element=int(2,coding=unsigned),scale=fp32,size=channel)",
    1: "block(element=int(1,coding=unsigned),scale=fp32,size=channel)",
}
WEIGHTS = {"ternary_channel": tuple(ACTIVATIONS), "binary_channel": (8, 1)}
GGML = ("tq2_0", "tq1_0")


def repeated(name: str, drawn: torch.Tensor, lines: int) -> fb.NarrowTensor:
    """Return a packed matrix of ``lines`` lines, those of ``drawn`` over and over."""
    rule = "floor" if name == "int8_channel" else "absmean"
    q = fb.quantize(drawn, name, scale_rule=rule)
    times = -(-lines // len(drawn))
    codes, scales, *_ = (None if part is None else part.repeat(times, 1)[:lines] for part in q.pieces)
    assert codes is not None
    shape = (lines, drawn.shape[1])
    return fb.NarrowTensor.from_parts(
        *(codes, scales, None, None), format=q.format, shape=shape, axis=1, dtype=q.dtype
    )


def measured(lines: int, columns: int, rounds: int) -> list[dict[str, Any]]:
    """Return the rows of the table."""
    generator = torch.Generator().manual_seed(0)
    drawn = torch.randn(DRAWN, columns, generator=generator)
    x = torch.randn(1, columns, generator=generator).abs()
    dense = drawn.bfloat16().repeat(-(-lines // DRAWN), 1)[:lines]
    wide = drawn.mul(30).clamp(-127, 127).to(torch.int8).repeat(-(-lines // DRAWN), 1)[:lines]
    own, xb, ones = repeated("int8_channel", drawn, lines), x.bfloat16(), torch.ones(lines).bfloat16()
    peers = {kind: Matrix(kind, lines, columns) for kind in GGML} if built() else {}
    rows = []
    for name, of_bits in WEIGHTS.items():
        q = repeated(name, drawn, lines)
        bytes_like = torch.ones(q.nbytes // 4)
        for bits in of_bits:
            activation = ACTIVATIONS[bits]
            calls: Calls = {
                "fewbits": partial(fb.matvec, q, x, activation=activation),
                "bfloat16": lambda: xb @ dense.t(),
                "int8": lambda: torch._weight_int8pack_mm(xb, wide, ones),
                "own int8": lambda: fb.matvec(own, x, activation="int8_32"),
                **{kind: partial(matrix.multiply, x) for kind, matrix in peers.items()},
            }
            read, reads = beside(bytes_like.sum, calls, rounds)  # a time, and the others in times of it
            times = {peer: reads[peer] / reads["fewbits"] for peer in calls if peer != "fewbits"}
            rows.append(
                {
                    "weights": name,
                    "bits": bits,
                    "lines": lines,
                    "columns": columns,
                    "packed_mebibytes": q.nbytes / 2**20,
                    "milliseconds": read * reads["fewbits"] * 1e3,
                    "read_gigabytes_per_second": bytes_like.numel() * 4 / read / 1e9,
                    "of_limit": 1 / reads["fewbits"],
                    "times_faster_than_bfloat16": times.pop("bfloat16"),
                    "times_faster_than_int8": times.pop("int8"),
                    "times_faster_than_own_int8": times.pop("own int8"),
                    "times_faster_than_ggml": times,
                }
            )
    return rows


def main() -> None:
    """Print the table and write the figures."""
    given = arguments(__doc__ or "", lines=8192, columns=65536)
    rows = measured(given.lines, given.columns, given.rounds)
    size = given.lines * given.columns / 2**29
    print(f"weights {given.lines} x {given.columns}, {size:.2f} GiB in bfloat16")
    if not built():
        print("ggml's TQ2_0 and TQ1_0 are left out: python benchmarks/_ggml.py builds them from its package")
    table(
        ("weights", "bits of x", "packed MiB", "ms", "read GB/s", "of limit", "times torch bf16",
         "times torch int8", "times own int8", "times ggml TQ2_0", "times ggml TQ1_0"),
        [
            (
                r["weights"],
                r["bits"],
                r["packed_mebibytes"],
                r["milliseconds"],
                r["read_gigabytes_per_second"],
                r["of_limit"],
                r["times_faster_than_bfloat16"],
                r["times_faster_than_int8"],
                r["times_faster_than_own_int8"],
                *(r["times_faster_than_ggml"].get(kind) for kind in GGML),
            )
            for r in rows
        ],
    )  # fmt: skip
    write(given.json, rows)


if __name__ == "__main__":
    main()
