"""How close do products with packed weights come to the speed at which the weights can be read?

Limit: torch summing as many bytes of float32 as the packed weights have, which reads them once. Peers:
torch's products of the same weights in bfloat16 and float32, each with vectors of that type, and ggml's own
MXFP4 and Q4_0 where `python benchmarks/_ggml.py` has built them. One vector in every format, as it is and
rounded to int8; the same values in lines of 4,096, the width of many a layer; then batches of float32 and of
bfloat16. All in one process, in turns, each beside the reads before and after it, medians. 8192 x 65536
weights are 1 GiB in bfloat16.

    python benchmarks/matvec.py [--lines 8192] [--columns 65536] [--batch 1] [--rounds 5] [--device cuda]
        [--json FILE]

With --batch, rows of that batch alone.
"""

from __future__ import annotations

from typing import Any

import torch
from _alternating import Calls, arguments, beside, table, write
from _ggml import Matrix, built

import fewbits as fb

FORMATS = (
    *(
        "mxfp4",
        "nvfp4",
        "mxfp6_e2m3",
        "mxfp6_e3m2",
        "mxfp8_e4m3",
        "mxfp8_e5m2",
        "mxint8",
        "mx4",
        "mx6",
        "mx9",
    ),
    *("int4_channel", "int8_channel"),
)
BATCHES = (2, 4, 8, 16, 32, 64)
BATCHED = ("mxfp4", "mxint8")
ROUNDED = ("mxfp4", "mxint8")  # measured with int8 activations too
SHORT = 4096
IN_SHORT_LINES = ("mxfp4", "nvfp4", "int4_channel")  # memory that is asked for ahead lies in the next lines
IN_BATCHES = 4  # batches take a quarter of the lines: float32 weights have four times the bytes


def measure(
    name: str,
    weight: torch.Tensor,
    batch: int,
    rounds: int,
    activation: str | None,
    peers: dict[str, Matrix],
    dtype: torch.dtype = torch.float32,
) -> dict[str, Any]:
    """Return rates and ratios for one format, batch, activation and dtype of the vectors."""
    lines, columns = weight.shape
    q = fb.quantize(weight, name).to(dtype)
    x = torch.randn(batch, columns, generator=torch.Generator().manual_seed(1)).to(weight.device)
    xb = x.bfloat16()
    own = x.to(dtype)
    bytes_like = torch.ones(q.nbytes // 4, device=weight.device)
    calls: Calls = {
        "fewbits": lambda: fb.matvec(q, own, activation=activation),
        "bfloat16": lambda: xb @ weight.t(),
    }
    if batch > 1:
        wide = weight.float()
        calls["float32"] = lambda: x @ wide.t()
    for peer, matrix in peers.items():
        calls[peer] = lambda matrix=matrix: matrix.multiply(x)
    read, reads = beside(bytes_like.sum, calls, rounds)  # a time, and the others in times of it
    ours = read * reads["fewbits"]
    return {
        "format": name,
        "columns": columns,
        "batch": batch,
        "activation": activation,
        "dtype": str(dtype).removeprefix("torch."),
        "packed_mebibytes": q.nbytes / 2**20,
        "read_gigabytes_per_second": bytes_like.numel() * 4 / read / 1e9,
        "gigabytes_per_second": q.nbytes / ours / 1e9,
        "gigaflops_per_second": 2 * batch * lines * columns / ours / 1e9,
        "of_limit": 1 / reads["fewbits"],
        "times_faster_than_bfloat16": reads["bfloat16"] / reads["fewbits"],
        "times_faster_than_float32": reads["float32"] / reads["fewbits"] if batch > 1 else None,
        "times_faster_than_ggml": {peer: reads[peer] / reads["fewbits"] for peer in peers},
    }


def measured(
    formats: tuple[str, ...], lines: int, columns: int, batch: int, rounds: int, device: torch.device
) -> list[dict[str, Any]]:
    """Return the rows of the table."""
    weight = torch.randn(lines, columns, generator=torch.Generator().manual_seed(0)).bfloat16().to(device)
    rows = []
    if batch == 1:
        for name in formats:
            peers = {}
            if name == "mxfp4" and weight.is_cpu and built():
                peers = {kind: Matrix(kind, lines, columns) for kind in ("mxfp4", "q4_0")}
            for activation in (None, "int8_32") if name in ROUNDED else (None,):
                rows.append(measure(name, weight, 1, rounds, activation, peers))
        if columns > SHORT and columns % SHORT == 0:
            for name in filter(IN_SHORT_LINES.__contains__, formats):
                rows.append(measure(name, weight.view(-1, SHORT), 1, rounds, None, {}))
    part = weight[: max(lines // IN_BATCHES, 1)]
    for name in formats:
        for several in (batch,) if batch > 1 else BATCHES if name in BATCHED else ():
            for dtype in (torch.float32, torch.bfloat16):
                rows.append(measure(name, part, several, rounds, None, {}, dtype))
    return rows


def main() -> None:
    """Print the table and write the figures."""
    given = arguments(__doc__ or "", device=True, lines=8192, columns=65536, batch=1)
    names = tuple(n for n in given.formats.split(",") if n) or FORMATS
    rows = measured(names, given.lines, given.columns, given.batch, given.rounds, given.device)
    size = given.lines * given.columns / 2**29
    print(
        f"weights {given.lines} x {given.columns}, {size:.2f} GiB in bfloat16; a quarter of them in batches"
    )
    if not built():
        print("ggml's MXFP4 and Q4_0 are left out: python benchmarks/_ggml.py builds them from its package")
    table(
        ("format", "columns", "batch", "activations", "packed MiB", "read GB/s", "ours GB/s", "of limit",
         "GFLOP/s", "times torch bf16", "times torch fp32", "times ggml MXFP4", "times ggml Q4_0"),
        [
            (
                r["format"],
                r["columns"],
                r["batch"],
                r["activation"] or r["dtype"],
                r["packed_mebibytes"],
                r["read_gigabytes_per_second"],
                r["gigabytes_per_second"],
                r["of_limit"],
                r["gigaflops_per_second"],
                r["times_faster_than_bfloat16"],
                r["times_faster_than_float32"],
                r["times_faster_than_ggml"].get("mxfp4"),
                r["times_faster_than_ggml"].get("q4_0"),
            )
            for r in rows
        ],
    )  # fmt: skip
    write(given.json, rows)


if __name__ == "__main__":
    main()
