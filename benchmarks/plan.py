"""How fast is a plan found, beside the published search, and as networks and machines grow?

Table I of PaSE (Elango 2021) has the published times, with eight and with 64 devices, on its own machine.
`paper's model` has its costs and splits by divisors, convolutions whole along height and width as in its
published tool; the ratio compares with that. `own model` has costs by machine, recipe and memory, and splits
by divisors of the devices. Times are of one core's processor, the graph and its tables included; each is the
least of some runs. The last table has the fewest devices of 24 GB on which a step of a model of 6.8 billion
parameters fits, by recipe, in the model of this library.

    OMP_NUM_THREADS=1 python benchmarks/plan.py [--rounds 3] [--layers 1000] [--devices 4096] [--json FILE]
        [--report FILE]

The report is a page that plots the time against layers, and against devices.
"""

from __future__ import annotations

import argparse
import math
import shlex
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _alternating import table, write

from fewbits.errors import ArgumentError
from fewbits.planner import Graph, plan
from fewbits.planner.networks import BATCH, NETWORKS, decoder_only
from fewbits.planner.paper_model import paper_problem
from fewbits.records import Provenance
from fewbits.report.page.axes import log_axis
from fewbits.report.page.figures import Curve, curves
from fewbits.report.page.markup import Plot, Section, page
from fewbits.versions import versions

PUBLISHED = {
    ("alexnet", 8): 0.253, ("alexnet", 64): 0.475,
    ("inception_v3", 8): 20.0, ("inception_v3", 64): 196.3,
    ("rnnlm", 8): 0.086, ("rnnlm", 64): 0.215,
    ("transformer", 8): 28.8, ("transformer", 64): 1883.0,
}  # fmt: skip
RECIPES = ("fp32", "amp-bf16", "bf16-only", "mxfp8", "fp8-lm")
BARS = {("inception_v3", 64): 1.0, ("transformer", 64): 5.0}  # seconds; all others a tenth of the published


def seconds(job: Callable[[], object], rounds: int) -> float:
    """Return the least processor time of some calls."""
    times = []
    for _ in range(rounds):
        start = time.process_time()
        job()
        times.append(time.process_time() - start)
    return min(times)


def in_paper(name: str, devices: int) -> float:
    """Plan a network in the paper's model, and return the widest table."""
    return paper_problem(NETWORKS[name](BATCH[name]), devices).solve()[0].width


def own(graph: Callable[[], Graph], devices: int) -> None:
    """Plan a network in the model of this library, with no cap on memory."""
    plan(graph(), devices=devices, machine="h100", memory=math.inf)


def published(rounds: int) -> list[dict[str, Any]]:
    """Return a row for each entry of the paper's table."""
    rows = []
    for (name, devices), theirs in PUBLISHED.items():
        graph = lambda name=name: NETWORKS[name](BATCH[name])  # noqa: E731  # of this row
        took = seconds(lambda name=name, devices=devices: in_paper(name, devices), rounds)
        ours = seconds(lambda graph=graph, devices=devices: own(graph, devices), rounds)
        bar = min(BARS.get((name, devices), math.inf), theirs / 10)
        rows.append(
            {
                "network": name,
                "layers": len(graph().layers),
                "devices": devices,
                "published s": theirs,
                "paper's model s": took,
                "times faster": theirs / took,
                "own model s": ours,
                "bar s": bar,
                "met": took <= bar and ours <= BARS.get((name, devices), math.inf),
            }
        )
    return rows


def growth(most_layers: int, most_devices: int) -> list[dict[str, Any]]:
    """Return the time against layers, on 64 devices, and against devices, of the model with four blocks."""
    rows = []
    sizes = [n for n in (1, 4, 16, 45, 90) if 11 * n + 4 <= max(most_layers, 15) + 10]
    runs = [(n, 64) for n in sizes] + [(4, p) for p in (2, 8, 16, 256, 1024, 4096) if p <= most_devices]
    for blocks, devices in runs:
        make = lambda blocks=blocks: decoder_only(  # noqa: E731  # of this row
            512, length=1024, layers=blocks, features=4096, heads=32
        )
        took = seconds(lambda make=make, devices=devices: own(make, devices), 1)
        rows.append({"layers": len(make().layers), "devices": devices, "own model s": took})
    return rows


def fewest() -> list[dict[str, Any]]:
    """Return, for each recipe, the fewest devices that hold a large model, and what a step takes on them."""
    graph = decoder_only(8, length=2048, layers=32, features=4096, heads=32)
    rows = []
    for recipe in RECIPES:
        for devices in (2**i for i in range(13)):
            try:
                found = plan(graph, devices=devices, machine="h100", memory=24e9, recipe=recipe)
            except ArgumentError:
                continue
            gigabytes = found.memory_bytes / 1e9
            rows.append({"recipe": recipe, "devices": devices, "GB each": gigabytes, "step s": found.seconds})
            break
    return rows


def growth_page(rows: list[dict[str, Any]]) -> str:
    """Return a page with the time against layers, of runs with 64 devices, and against devices, of others."""
    layers = rows[-1]["layers"]
    by_devices = sorted((row for row in rows if row["layers"] == layers), key=lambda row: row["devices"])
    plots = [
        growth_plot("layers", [row for row in rows if row["devices"] == 64], "on 64 devices"),
        growth_plot("devices", by_devices, f"of a model with {layers} layers"),
    ]
    lead = "Seconds of one core's processor until a plan is found, the graph and its tables included."
    origin = Provenance(shlex.join(["python", *sys.argv]), versions())
    return page("How fast is a plan found?", lead, [Section("Growth", plots)], origin)


def growth_plot(against: str, rows: list[dict[str, Any]], of: str) -> Plot:
    """Return a plot of the time against layers or devices."""
    points = tuple((float(row[against]), row["own model s"]) for row in rows)
    lines = tuple(f"{x:.0f} {against}: {y:.3g} s" for x, y in points)
    x, y = (log_axis(t, [p[i] for p in points]) for i, t in enumerate((against, "seconds")))
    figure = curves([Curve(f"a plan {of}", points, lines)], x, y)
    return Plot(against, f"Time against {against}", figure, f"Of plans {of}.")


def main() -> None:
    """Print the tables and write the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="default 3")
    parser.add_argument("--layers", type=int, default=1000, help="of the largest network (default 1000)")
    parser.add_argument("--devices", type=int, default=4096, help="the most (default 4096)")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument("--report", type=Path, help="plot the time against layers and devices here")
    given = parser.parse_args()
    rows = published(given.rounds)
    table(tuple(rows[0]), [tuple(row.values()) for row in rows])
    more = growth(given.layers, given.devices)
    table(tuple(more[0]), [tuple(row.values()) for row in more])
    held = fewest()
    table(tuple(held[0]), [tuple(row.values()) for row in held])
    write(given.json, [*rows, *more, *held])
    if given.report:
        given.report.write_text(growth_page(more), "utf-8")


if __name__ == "__main__":
    main()
