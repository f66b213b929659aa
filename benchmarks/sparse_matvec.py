"""Where are products with 2:4 sparse weights faster than with all of them, and where are they not?

Vectors are of bfloat16 and of float32. Peers: this library's own kernel for dense bfloat16 weights, its dense
kernel for the same format on the same masked matrix, and torch's product of bfloat16. Limit: the bytes of the
weights; against dense bfloat16, 2:4 has 9/16 of them in bfloat16, 5/16 in int8, 3.25/16 in MXFP4. All in one
process, alternating, medians. 8192 x 65536 weights are 1 GiB in bfloat16. Besides: batches of vectors, and
matrices that the caches hold. The head of the table says which instruction set ran, and what forced it:
FEWBITS_ISA.

    python benchmarks/sparse_matvec.py [--lines 8192] [--columns 65536] [--rounds 7] [--json FILE]
"""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
from _alternating import arguments, seconds, table, write

import fewbits as fb

FORMATS = ("bf16", "int8_channel", "mxfp8_e4m3", "mxfp4")
ACTIVATIONS = ("bfloat16", "float32")
BATCHES = (1, 2, 4, 16, 64)
CACHED = ((256, 256), (512, 1024), (1024, 2048), (2048, 4096), (4096, 8192))


def sparse(lines: int, columns: int) -> torch.Tensor:
    """Return a bfloat16 matrix of which each group of four keeps two values."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.empty(lines, columns, dtype=torch.bfloat16)
    for start in range(0, lines, 256):  # a gibibyte at once would need many of working memory
        some = torch.randn(min(256, lines - start), columns // 4, 4, generator=generator)
        some.scatter_(-1, some.abs().argsort(-1)[..., :2], 0.0)
        weight[start : start + 256] = some.reshape(-1, columns)
    return weight


def measure(weight: torch.Tensor, name: str, batch: int, rounds: int, activation: str) -> dict[str, Any]:
    """Return times and ratios of one product with vectors of a dtype."""
    lines, columns = weight.shape
    dtype = getattr(torch, activation)
    dense = fb.quantize(weight, name).to(dtype)  # the same bits, as a tensor of that dtype
    q, plain = dense.compressed("2:4"), fb.quantize(weight, "bf16").to(dtype)
    x = torch.randn(batch, columns, generator=torch.Generator().manual_seed(1)).to(dtype)
    y, wanted = (x @ t.t() for t in (q, dense))
    assert (y - wanted).norm() <= 2.0**-7 * wanted.norm()  # sums of float32, perhaps rounded to bfloat16
    vectors = x.bfloat16()
    repeats = max(1, 2**24 // (weight.numel() * batch))  # a small product is too short to be timed alone

    def repeated(call: Any) -> Any:
        return lambda: [call() for _ in range(repeats)]

    calls = {
        "sparse": repeated(lambda: x @ q.t()),
        "bf16": repeated(lambda: x @ plain.t()),
        "dense": repeated(lambda: x @ dense.t()),
        "torch": repeated(lambda: vectors @ weight.t()),
    }
    taken = {key: value / repeats for key, value in seconds(calls, rounds).items()}
    return {
        "format": name,
        "lines": lines,
        "columns": columns,
        "batch": batch,
        "activation": activation,
        "mebibytes": q.nbytes / 2**20,
        "milliseconds": taken["sparse"] * 1e3,
        "gigabytes_per_second": q.nbytes / taken["sparse"] / 1e9,
        "bits_per_weight": 8 * q.nbytes / weight.numel(),
        "times_own_bfloat16": taken["bf16"] / taken["sparse"],
        "times_own_dense": taken["dense"] / taken["sparse"],
        "times_torch_bfloat16": taken["torch"] / taken["sparse"],
    }


def main() -> None:
    """Print the table and write the figures."""
    given = arguments(__doc__ or "", lines=8192, columns=65536)
    names = [n for n in given.formats.split(",") if n] or FORMATS
    weight = sparse(given.lines, given.columns)
    rows = [measure(weight, name, 1, given.rounds, x) for name in names for x in ACTIVATIONS]
    del weight
    fewer = sparse(max(64, given.lines // 16), given.columns // 4)
    several = product(names, ACTIVATIONS, BATCHES)
    rows += [measure(fewer, name, batch, given.rounds, x) for name, x, batch in several]
    for shape in CACHED:
        cached = sparse(*shape)
        rows += [measure(cached, name, 1, given.rounds, x) for name in names for x in ACTIVATIONS]
    heads = (
        "2:4 format",
        "weights",
        "x",
        "batch",
        "MiB",
        "bits",
        "ms",
        "GB/s",
        "x own bf16",
        "x own dense",
        "x torch bf16",
    )
    cells = [
        (
            r["format"],
            f"{r['lines']} x {r['columns']}",
            r["activation"],
            r["batch"],
            r["mebibytes"],
            r["bits_per_weight"],
            r["milliseconds"],
            r["gigabytes_per_second"],
            r["times_own_bfloat16"],
            r["times_own_dense"],
            r["times_torch_bfloat16"],
        )
        for r in rows
    ]
    table(heads, cells)
    write(given.json, rows)


if __name__ == "__main__":
    main()
