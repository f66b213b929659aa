"""``fewbits scale``: a training step on many ranks, predicted for each codec."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fewbits.cli.arguments import (
    CodecsOption,
    JsonOption,
    LatencyOption,
    ReportOption,
    provenance,
    read_codecs,
    read_count,
    read_list,
)
from fewbits.cli.kinds import Reads
from fewbits.cli.paths import tables_console, write_report
from fewbits.cli.progress import progress_bar


def scale(
    parameters: Annotated[
        str, typer.Option(help="Values of the gradient, all of which are exchanged in a step: 25.6M, 7B, ...")
    ],
    step_ms: Annotated[
        float, typer.Option(help="Milliseconds of a step without exchange, as one rank computes it.")
    ],
    codecs: CodecsOption = None,
    ranks: Annotated[str, typer.Option(help="Comma-separated numbers of ranks.")] = "2,8,64,512,4096",
    link: Annotated[float, typer.Option(help="Of a node, in Gbit/s in each direction.")] = 10.0,
    latency_us: LatencyOption = 20.0,
    per_node: Annotated[int, typer.Option(min=1, help="Ranks of a node, which share its --link.")] = 1,
    inner_link: Annotated[
        float | None,
        typer.Option(
            help="Of a rank within its node, in Gbit/s; needed where --per-node is above 1.",
            show_default=False,
        ),
    ] = None,
    overlap: Annotated[
        float,
        typer.Option(
            help="Share of --step-ms behind which messages hide, from 0 to 1; rounding is never hidden."
        ),
    ] = 0.0,
    rates: Annotated[
        Path | None,
        Reads(),
        typer.Option(
            help="A JSON report of `fewbits compare --codecs`, or of this command, whose rates of codecs are"
            " taken. Default: they are measured here, which takes seconds.",
            show_default=False,
        ),
    ] = None,
    report: ReportOption = None,
    json: JsonOption = None,
) -> None:
    """Predict the time of a training step on many ranks, for each codec, before machines are rented.

    Nothing is trained and nothing is sent: the time comes from a model of the network (latency and bandwidth
    of a message), from the bytes of each codec, and from the rates at which one thread rounds, adds and
    unpacks. The table names the fastest reduction, and the one that fewbits itself runs; below it stands
    where each codec stops paying.

    Example: fewbits scale --parameters 25.6M --step-ms 120 --codecs mxfp8_e4m3,topk:density=0.01,feedback

    Nodes of eight: fewbits scale --parameters 7B --step-ms 900 --ranks 64,512 --per-node 8 --inner-link 200
    """
    from fewbits.recipes import codec as read

    for name in read_codecs(codecs, []):
        read(name)  # a wrong one is told before PyTorch is loaded
    values = read_count("parameters", parameters)
    processes = [read_count("ranks", item) for item in read_list(ranks)]  # exactly: no float holds 10^20 - 1
    from fewbits.compare import CODECS, predict_steps, read_rates
    from fewbits.report import scale_json, scale_page, scale_table

    known = None if rates is None else read_rates(rates)
    with progress_bar() as progress:
        prediction = predict_steps(
            read_codecs(codecs, CODECS),
            parameters=values,
            compute_seconds=1e-3 * step_ms,
            ranks=processes,
            gigabits=link,
            latency_us=latency_us,
            per_node=per_node,
            inner_gigabits=inner_link,
            overlap=overlap,
            rates=known,
            rates_from=f"from {rates}",
            progress=progress,
        )
    origin = provenance()
    tables_console(report, json).print(scale_table(prediction))
    write_report(report, lambda: scale_page(prediction, origin))
    write_report(json, lambda: scale_json(prediction, origin))
