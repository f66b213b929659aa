"""How long does an all-reduce of 8 Mi float32 take in each codec, beside gloo's own of float32?

Peer: ``torch.distributed.all_reduce`` of the same tensor, on gloo, between the same processes, in one run,
in turns; the slowest rank counts, medians. Links: loopback as it is, and, where this runs as root and finds
``ip`` and ``tc``, loopback held to 1 and 5 Gbit/s in a network namespace that it makes and deletes. Processes
have one thread each.

Predicted times are those of fewbits.distributed.cost, from rates that all ranks measure at once in the same
run, and a link: as gloo's own exchange of bytes finds it on loopback, else the speed that it is held to,
which all ranks share. Rates and links are those of the fastest round, and so is what "meas./pred." sets over
the prediction; 1 is a perfect model.

    python benchmarks/all_reduce.py [--mebi 8] [--rounds 5] [--ranks 2,4] [--links loopback,1,5] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from _alternating import table, write
from torch import distributed, multiprocessing

from fewbits.distributed import CodecState, Traffic, all_reduce
from fewbits.distributed.cost import Link, Network, by_owners
from fewbits.distributed.rates import measured_rates
from fewbits.recipes import codec as read
from fewbits.records import CodecRates

CODECS = (
    "fp32",
    "bf16",
    "mxfp8_e4m3",
    "int8_256",
    "int8_256:feedback",
    "fp8_e5m2:aps",
    "mxfp6_e3m2",
    "mxfp4",
    "fp4_e3m0:aps",
    "topk:density=0.01,feedback",
)
LOOPBACK = "loopback"


def calls(n: int) -> tuple[dict[str, Callable[[], Any]], dict[str, Traffic]]:
    """Return what is timed, by codec; gloo's own is "gloo"."""
    x = torch.randn(n, generator=torch.Generator().manual_seed(distributed.get_rank()))
    y, traffic = x.clone(), {codec: Traffic() for codec in CODECS}
    states = {codec: CodecState(codec) if "feedback" in codec else None for codec in CODECS}

    def of(codec: str) -> Callable[[], Any]:
        return lambda: all_reduce(x, codec, state=states[codec], traffic=traffic[codec])

    return {"gloo": lambda: distributed.all_reduce(y), **{codec: of(codec) for codec in CODECS}}, traffic


def bytes_only(n: int, rounds: int) -> dict[str, float]:
    """Return the latency and bandwidth of what gloo exchanges itself: all-to-all of bytes, to all others."""
    ranks = distributed.get_world_size()

    def fastest(octets: int) -> float:
        sent, found, times = (
            torch.zeros(octets, dtype=torch.uint8),
            torch.empty(octets, dtype=torch.uint8),
            [],
        )
        for _ in range(rounds + 1):
            distributed.barrier()
            start = perf_counter()
            distributed.all_to_all_single(found, sent)
            taken = torch.tensor([perf_counter() - start])
            distributed.all_reduce(taken, distributed.ReduceOp.MAX)
            times.append(float(taken))
        return min(times)

    small, large = ranks, n // ranks * ranks
    latency = fastest(small) / (ranks - 1)
    seconds = max(fastest(large) / (ranks - 1) - latency, 1e-9)
    return {"latency_us": 1e6 * latency, "gigabits": 8e-9 * (large / ranks) / seconds}


def predicted(found: dict[str, Any], link: str, ranks: int, n: int) -> dict[str, float]:
    """Return predicted milliseconds by codec."""
    said = found["link"]
    gigabits = said["gigabits"] if link == LOOPBACK else float(link) / ranks
    network = Network(ranks, Link(gigabits, said["latency_us"]))
    rates = {codec: CodecRates(codec, *ns) for codec, ns in found["rates"].items()}
    return {codec: 1e3 * by_owners(read(codec), n, network, rates[codec]).seconds for codec in rates}


def process(rank: int, folder: str, ranks: int, n: int, rounds: int) -> None:
    """Be one of the processes; rank 0 leaves the times of all in the folder."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    meeting = f"file://{folder}/meeting"
    distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks)
    timed, traffic = calls(n)
    times: dict[str, list[float]] = {name: [] for name in timed}
    for turn in range(rounds + 1):
        for name in list(timed)[:: -1 if turn % 2 else 1]:
            distributed.barrier()
            start = perf_counter()
            timed[name]()
            taken = torch.tensor([perf_counter() - start])
            distributed.all_reduce(taken, distributed.ReduceOp.MAX)
            if turn:  # the first one allocates and connects
                times[name].append(float(taken))
    link = bytes_only(n, rounds)
    rates = {codec: measured_rates(codec, n // ranks) for codec in CODECS}  # by all ranks at the same time
    if rank == 0:
        found: dict[str, Any] = {
            name: {
                "milliseconds": 1e3 * median(taken),
                "fastest_milliseconds": 1e3 * min(taken),
                "bytes": traffic[name].nbytes // (rounds + 1) if name in traffic else None,
            }
            for name, taken in times.items()
        }
        found["link"] = link
        found["rates"] = {codec: (r.encode_ns, r.add_ns, r.decode_ns) for codec, r in rates.items()}
        (Path(folder) / "times.json").write_text(json.dumps(found))
    distributed.destroy_process_group()


def measure(ranks: int, n: int, rounds: int) -> dict[str, Any]:
    """Return times in milliseconds and bytes sent by each rank, by codec, of processes started here."""
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.start_processes(
            process, args=(folder, ranks, n, rounds), nprocs=ranks, start_method="spawn"
        )
        found: dict[str, Any] = json.loads((Path(folder) / "times.json").read_text())
    return found


def measure_at(gigabits: str, ranks: int, n: int, rounds: int) -> dict[str, Any] | None:
    """Measure in a network namespace whose loopback is held to so many Gbit/s; None where that cannot be."""
    if os.geteuid() or not (shutil.which("ip") and shutil.which("tc")):
        return None
    name = f"fewbits-{os.getpid()}"
    limit = ["tc", "qdisc", "add", "dev", "lo", "root", "tbf", "rate", f"{gigabits}gbit"]
    inside = ["ip", "netns", "exec", name]
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        subprocess.run([*inside, "ip", "link", "set", "lo", "up"], check=True)
        subprocess.run([*inside, *limit, "burst", "1mb", "latency", "400ms"], check=True)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "found.json"
            options = [str(value) for value in (ranks, n, rounds, path)]
            subprocess.run([*inside, sys.executable, __file__, "--inside", *options], check=True)
            found: dict[str, Any] = json.loads(path.read_text())
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=True)
    return found


def main() -> None:
    """Print the table and write the figures."""
    if sys.argv[1:2] == ["--inside"]:
        ranks, n, rounds = map(int, sys.argv[2:5])
        Path(sys.argv[5]).write_text(json.dumps(measure(ranks, n, rounds)))
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--mebi", type=int, default=8, help="values, in 2^20 (default 8)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--links", default=f"{LOOPBACK},1,5", help="loopback, or Gbit/s")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    n, rows = given.mebi * 2**20, list[dict[str, Any]]()
    for link in given.links.split(","):
        for ranks in map(int, given.ranks.split(",")):
            found = (
                measure(ranks, n, given.rounds)
                if link == LOOPBACK
                else measure_at(link, ranks, n, given.rounds)
            )
            if found is None:
                print(f"{link} Gbit/s not measured: that takes root, ip and tc")
                continue
            model = predicted(found, link, ranks, n)
            gloo, of_link = found.pop("gloo")["milliseconds"], found.pop("link")
            del found["rates"]
            rows += [
                {
                    "codec": codec,
                    "ranks": ranks,
                    "link": link,
                    "values": n,
                    **figures,
                    "gloo_milliseconds": gloo,
                    "times_gloo": gloo / figures["milliseconds"],
                    "predicted_milliseconds": model[codec],
                    "measured_over_predicted": figures["fastest_milliseconds"] / model[codec],
                    "bytes_only": of_link,
                }
                for codec, figures in found.items()
            ]
    table(
        ("codec", "ranks", "link", "MB sent", "ms", "gloo ms", "times gloo", "predicted ms", "meas./pred."),
        [
            (
                r["codec"],
                r["ranks"],
                r["link"],
                r["bytes"] / 1e6,
                r["milliseconds"],
                r["gloo_milliseconds"],
                r["times_gloo"],
                r["predicted_milliseconds"],
                r["measured_over_predicted"],
            )
            for r in rows
        ],
    )
    write(given.json, rows)


if __name__ == "__main__":
    main()
