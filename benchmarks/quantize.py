"""How far are rounding, packing and unpacking from the speed of memory, and from their peers?

Limit: torch copying the float32 array into one that is there already, 4 bytes read and 4 written for each
value; for packing and unpacking that rate times the bytes they move. Memory reads and writes side by side,
and bytes that go one way alone can take longer: nothing packs faster than torch sums the array, or unpacks
faster than it is filled, and where that takes longer it is the limit. What has one scale for the whole
array has to read it once more before it rounds: to its limit the time of that sum is added. Results go to
memory that is there already. Peers, where they are installed: torchao's to_mx, torch's own casts,
ml_dtypes, gfloat. All in one process, all formats in turns, with a copy before and after each call,
medians.

    python benchmarks/quantize.py [--mebibytes 256] [--rounds 7] [--formats mxfp4,mx9] [--device cuda]
        [--json FILE]

On a GPU the peers are torchao's to_mx and the operations of torch that round without kernels of ours, both
through torch.compile, and results go to new memory, which torch keeps ready.
"""

from __future__ import annotations

import ctypes
import logging
import warnings
from collections.abc import Callable, Sequence
from threading import Thread
from typing import Any

import numpy as np
import torch
from _alternating import Calls, arguments, beside, compiled_peer, table, write

import fewbits as fb
from fewbits.formats import CATALOGUE, Bdr, Block, Element, shares_scale

SCALARS = ("fp8_e4m3", "fp8_e5m2", "fp6_e2m3", "fp4_e2m1", "bf16", "int8", "posit8_1")
_SAMPLE = 64  # slow peers see this part of the array, and their time is multiplied


def peers(name: str, x: torch.Tensor) -> tuple[Calls, dict[str, int]]:
    """Return what others do to the same array, and which part of it they see."""
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)  # torchao reports the GPU extensions that it cannot load
    calls: Calls = {}
    parts: dict[str, int] = {}
    small = x[: max(1, x.shape[0] // _SAMPLE)].contiguous()
    narrow = {
        "mxfp8_e4m3": torch.float8_e4m3fn,
        "mxfp8_e5m2": torch.float8_e5m2,
        "mxfp4": torch.float4_e2m1fn_x2,
    }
    casts = {"fp8_e4m3": torch.float8_e4m3fn, "fp8_e5m2": torch.float8_e5m2, "bf16": torch.bfloat16}
    if name in narrow:
        try:
            from torchao.prototype.mx_formats.mx_tensor import to_mx

            if x.is_cpu:
                calls["torchao"], parts["torchao"] = lambda: to_mx(small, narrow[name], 32), _SAMPLE
            else:
                compiled = torch.compile(to_mx)
                calls["torchao"] = lambda: compiled(x, narrow[name], 32)
        except ImportError:
            pass
    if name in casts:
        calls["torch"] = lambda: x.to(casts[name])
    if not x.is_cpu:
        by_compiler = compiled_peer(name)
        calls["torch.compile"] = lambda: by_compiler(x)
        return calls, parts
    try:
        import ml_dtypes

        own = {"fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2", "fp6_e2m3": "float6_e2m3fn",
               "fp4_e2m1": "float4_e2m1fn", "bf16": "bfloat16"}  # fmt: skip
        if name in own:
            array, dtype = small.numpy(), getattr(ml_dtypes, own[name])
            calls["ml_dtypes"], parts["ml_dtypes"] = lambda: array.astype(dtype), _SAMPLE
    except ImportError:
        pass
    try:
        from gfloat import formats, round_ndarray

        known = {
            "fp8_e4m3": formats.format_info_ocp_e4m3,
            "fp8_e5m2": formats.format_info_ocp_e5m2,
            "fp6_e2m3": formats.format_info_ocp_e2m3,
            "fp4_e2m1": formats.format_info_ocp_e2m1,
        }
        if name in known:
            wide = small.numpy().astype(np.float64)
            calls["gfloat"], parts["gfloat"] = lambda: round_ndarray(known[name], wide, sat=True), _SAMPLE
    except ImportError:
        pass
    return calls, parts


def fill(y: torch.Tensor) -> None:
    """Write an array by as many calls of C's memset side by side as torch has threads."""
    parts = y.flatten().view(torch.uint8).chunk(torch.get_num_threads())
    # Not zero: of lines of zeros some CPUs write twice as many.
    calls = [Thread(target=ctypes.memset, args=(part.data_ptr(), 0x3F, part.numel())) for part in parts]
    for call in calls:
        call.start()
    for call in calls:
        call.join()


def one_way(x: torch.Tensor, y: torch.Tensor) -> Calls:
    """Return what reads all of an array, and what writes all of one."""
    by_bytes = {"memset": lambda: fill(y)} if y.is_cpu else {}
    return {"read": x.sum, "write": lambda: y.fill_(1.5), **by_bytes}


def on_cpu(x: torch.Tensor, y: torch.Tensor, q: fb.NarrowTensor) -> Calls:
    """Return our calls, into memory that is there already."""
    fmt = q.format
    packed: Any = fb.kernels.Packed(*(None if p is None else p.numpy() for p in q.pieces))
    return {
        "fake": lambda: fb.fake_quantize(x, fmt, out=y),
        "stochastic": lambda: fb.fake_quantize(x, fmt, rounding="stochastic", generator=1, out=y),
        "quantize": lambda: fb.quantize(x, fmt, out=q),
        "dequantize": lambda: fb.kernels.dequantize(packed, fmt, x.shape, 1, np.float32, out=y.numpy()),
    }


def on_gpu(x: torch.Tensor, q: fb.NarrowTensor) -> Calls:
    """Return our calls, into new memory."""
    fmt = q.format
    return {
        "fake": lambda: fb.fake_quantize(x, fmt),
        "stochastic": lambda: fb.fake_quantize(x, fmt, rounding="stochastic", generator=1),
        "quantize": lambda: fb.quantize(x, fmt),
        "dequantize": q.dequantize,
    }


def measure(names: Sequence[str], x: torch.Tensor, y: torch.Tensor, rounds: int) -> list[dict[str, Any]]:
    """Return rates, and ratios to the limit and to each peer; a round takes each call of each format once."""
    packed = {name: fb.quantize(x, name) for name in names}
    others = {name: peers(name, x) for name in names}
    calls: dict[tuple[str, str], Callable[[], Any]] = {("", way): c for way, c in one_way(x, y).items()}
    for name, q in packed.items():
        own = on_cpu(x, y, q) if x.is_cpu else on_gpu(x, q)
        calls |= {(name, what): call for what, call in (own | others[name][0]).items()}
    copy, copies = beside(lambda: y.copy_(x), calls, rounds)  # a time, and the others in times of it
    whole = x.numel() * 4
    read = copies["", "read"]
    write = min(copies[call] for call in (("", "write"), ("", "memset")) if call in copies)
    alone = {"fake": 0.0, "stochastic": 0.0, "quantize": read, "dequantize": write}

    def row(name: str) -> dict[str, Any]:
        q = packed[name]
        less = whole + q.nbytes
        moved = {"fake": 2 * whole, "stochastic": 2 * whole, "quantize": less, "dequantize": less}
        copied = {what: size / (2 * whole) for what, size in moved.items()}
        least = {what: max(t, alone[what]) for what, t in copied.items()}
        if shares_scale(q.format, "tensor"):
            least = {what: t if what == "dequantize" else t + read for what, t in least.items()}
        peer_calls, parts = others[name]
        return {
            "format": name,
            "copy_gigabytes_per_second": 2 * whole / copy / 1e9,
            "read_gigabytes_per_second": whole / (read * copy) / 1e9,
            "write_gigabytes_per_second": whole / (write * copy) / 1e9,
            "gigabytes_per_second": {w: moved[w] / (copies[name, w] * copy) / 1e9 for w in moved},
            "of_limit": {w: least[w] / copies[name, w] for w in moved},
            "of_copy": {w: copied[w] / copies[name, w] for w in moved},
            "times_faster_than": {
                who: copies[name, who] * parts.get(who, 1) / copies[name, "quantize"] for who in peer_calls
            },
        }

    return [row(name) for name in names]


def main() -> None:
    """Print the table and write the figures."""
    given = arguments(__doc__ or "", device=True, rounds=7, mebibytes=256)
    x = torch.randn(given.mebibytes * 64, 4096, generator=torch.Generator().manual_seed(0)).to(given.device)
    y = torch.zeros_like(x)
    blocks = [e.name for e in CATALOGUE.values() if isinstance(e.format, Block | Bdr)]
    scalars = [n for n in SCALARS if isinstance(fb.format(n), Element)]
    names = [n for n in given.formats.split(",") if n] or [*blocks, *scalars]
    # All formats at once, so that a slow minute of the machine is one round of each, not all rounds of one.
    # On a GPU one after the other: torch.compile forgets what it made for others.
    together = [names] if x.is_cpu else [[n] for n in names]
    rows = [row for part in together for row in measure(part, x, y, given.rounds)]
    print(f"{given.mebibytes} MiB of float32; GB/s of what is read and written, and the part of the limit")
    alone = (rows[0][f"{way}_gigabytes_per_second"] for way in ("read", "write"))
    print("reading alone {:.1f} GB/s, writing alone {:.1f}".format(*alone))
    what = ("fake", "stochastic", "quantize", "dequantize")
    heads = ("format", "copy", *(head for w in what for head in (w, "of limit")))
    table(
        (*heads, "peers: times slower"),
        [
            (
                row["format"],
                row["copy_gigabytes_per_second"],
                *(v for w in what for v in (row["gigabytes_per_second"][w], row["of_limit"][w])),
                " ".join(f"{who} {times:.1f}" for who, times in row["times_faster_than"].items()),
            )
            for row in rows
        ],
    )
    write(given.json, rows)


if __name__ == "__main__":
    main()
