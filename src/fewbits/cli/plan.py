"""``fewbits plan``: how to split a network over many devices."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from fewbits.cli.aliases import Formats
from fewbits.cli.arguments import (
    JsonOption,
    ReportOption,
    provenance,
    read_bytes,
    read_count,
    read_list,
    read_recipes,
    refuse_unused,
)
from fewbits.cli.kinds import JSON, Reads, Writes
from fewbits.cli.paths import tables_console, write_report
from fewbits.errors import ArgumentError, DataError

if TYPE_CHECKING:
    from fewbits.planner import Graph, Machine
    from fewbits.planner.options import Sharded


def plan(
    context: typer.Context,
    model: Annotated[
        str | None,
        typer.Option(
            help="A network: alexnet, inception_v3, resnet101, rnnlm or transformer; or your own as"
            " MODULE:FUNCTION, a function that returns (model, batches).",
            show_default=False,
        ),
    ] = None,
    devices: Annotated[
        str | None, typer.Option(help="How many share the network out: 8, 64, ...", show_default=False)
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(
            min=1, help="Samples in a step, of all devices; default: those of PaSE.", show_default=False
        ),
    ] = None,
    machine: Annotated[
        str,
        Reads(),
        typer.Option(help="v100, a100, h100, h200, b200, ethernet-cpus, or a file that --measure wrote."),
    ] = "h100",
    memory: Annotated[
        str | None,
        typer.Option(
            help="The most bytes that a device may hold: 40G, 40GiB, ..., or none; default: the machine's.",
            show_default=False,
        ),
    ] = None,
    recipe: Annotated[
        str,
        Formats(),
        typer.Option(
            help="Formats of all layers, beside --formats of those without products: a recipe, or a format."
        ),
    ] = "fp32",
    formats: Annotated[
        str | None,
        Formats(),
        typer.Option(
            help="Comma-separated recipes or formats, of which each product takes the fastest.",
            show_default=False,
        ),
    ] = None,
    sensitivity: Annotated[
        Path | None,
        Reads(),
        typer.Option(
            help="JSON with what each of --formats costs in quality: {layer: {format: number}}.",
            show_default=False,
        ),
    ] = None,
    max_sensitivity: Annotated[
        float | None,
        typer.Option(help="The most that the sum of these may be.", show_default=False),
    ] = None,
    codec: Annotated[
        str | None,
        Formats(),
        typer.Option(help="In what gradients of weights travel: mxfp8_e4m3, ...", show_default=False),
    ] = None,
    pin: Annotated[
        str | None,
        typer.Option(help="Splits that are fixed, by layer or glob: 'fc1:b=8,fc*:n=4'.", show_default=False),
    ] = None,
    forbid: Annotated[
        str | None,
        typer.Option(help="Dimensions that stay whole: '*:h,*:w'.", show_default=False),
    ] = None,
    sharded: Annotated[
        str,
        typer.Option(
            help="Weights that a split leaves whole on all devices, dealt out as by fully_shard: never,"
            " allowed or always."
        ),
    ] = "never",
    reuse: Annotated[
        Path | None,
        Reads(),
        typer.Option(
            help="A plan that --json wrote: its splits at the costs of this machine.", show_default=False
        ),
    ] = None,
    compare: Annotated[
        bool,
        typer.Option("--compare", help="Beside it: data parallel, one weird trick, and Megatron's rules."),
    ] = False,
    executable: Annotated[
        bool, typer.Option("--executable", help="Only splits that Plan.apply can run in PyTorch.")
    ] = False,
    measure: Annotated[
        Path | None,
        Writes(JSON),
        typer.Option(
            help="Measure this computer for --machine, write it here and plan nothing.", show_default=False
        ),
    ] = None,
    report: ReportOption = None,
    json: JsonOption = None,
) -> None:
    """Find the fastest way to split a network over devices, before machines are rented.

    For each layer the plan says over how many devices each of its dimensions is shared out, what that takes,
    and what the next best split would cost. It is the best one in a model of compute and bytes; with a cap on
    memory it says how far from the best it may be.

    Example: fewbits plan --model transformer --devices 64 --compare

    In narrow formats: fewbits plan --model alexnet --devices 8 --recipe mxfp8 --codec mxfp8_e4m3
    """
    if measure is not None:
        refuse_unused(context, {"measure"}, "--measure")
        _measure(measure)
        return
    if model is None or devices is None:
        raise ArgumentError("give `model` and `devices`, as in --model alexnet --devices 8, or `measure`")
    from fewbits.planner.planned import Plan
    from fewbits.planner.planning import plan as find
    from fewbits.report import plan_json, plan_page, plan_table

    graph = _graph(model, batch)
    found = find(
        graph,
        devices=read_count("devices", devices),
        machine=_machine(machine),
        memory=_memory(memory),
        recipe=recipe,
        formats=_formats(formats),
        sensitivity=None if sensitivity is None else _numbers(sensitivity),
        max_sensitivity=max_sensitivity,
        codec=codec,
        pins=_pins(pin),
        forbid=_forbidden(forbid),
        sharded=cast("Sharded", sharded),
        reuse=None if reuse is None else Plan.load(reuse),
        compare=compare,
        executable=executable,
        name=model,
    )
    origin = provenance()
    tables_console(report, json).print(plan_table(found))
    write_report(report, lambda: plan_page(found, origin))
    write_report(json, lambda: plan_json(found, origin))


def _graph(model: str, batch: int | None) -> Graph:
    from fewbits.planner.networks import BATCH, NETWORKS

    if model in NETWORKS:
        return NETWORKS[model](batch or BATCH[model])
    from fewbits.train.tasks.user_model import is_user_model, load_user_model

    if not is_user_model(model):
        raise ArgumentError(f"model={model!r}; expected {', '.join(NETWORKS)}, or MODULE:FUNCTION")
    if batch is not None:
        raise ArgumentError("batch does nothing for a model of your own, whose batches say it; leave it out")
    from torch import Tensor

    from fewbits.planner.capture import capture

    loaded = load_user_model(model)
    first = loaded.batches[0]
    return capture(loaded.model, (first,) if isinstance(first, Tensor) else first)


def _machine(text: str) -> Machine | str:
    from fewbits.planner.machines import MACHINES
    from fewbits.planner.planned import load_machine

    return load_machine(text) if text not in MACHINES and Path(text).is_file() else text


def _memory(text: str | None) -> float | None:
    if text is None:
        return None
    return float("inf") if text.strip() == "none" else float(read_bytes("memory", text))


def _numbers(path: Path) -> dict[str, dict[str, float]]:
    """Read numbers by layer and format.

    Raises:
        DataError: the file has something else.
    """
    from json import loads

    try:
        found = loads(path.read_text("utf-8"))
        return {layer: {name: float(n) for name, n in own.items()} for layer, own in found.items()}
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise DataError(
            f'{path} has no numbers by layer and format, as in {{"fc1": {{"mxfp8": 0.1}}}}: {error}'
        ) from error


def _formats(text: str | None) -> list[str]:
    found = read_recipes(text, [])
    if text is not None and not found:
        raise ArgumentError(f"formats={text!r} has no formats; give some, as in fp32,mxfp8")
    return found


def _pins(text: str | None) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for item in read_list(text):
        layer, _, part = item.rpartition(":")
        name, _, number = part.partition("=")
        if not layer or not re.fullmatch(r"\s*[0-9]{1,18}\s*", number):  # no network has wider dimensions
            raise ArgumentError(
                f"pin={text!r:.200}: {item!r:.200} is no split; give LAYER:DIMENSION=NUMBER, as in fc1:b=8"
            )
        splits = found.setdefault(layer, {})
        if name.strip() in splits:
            raise ArgumentError(f"pin={text!r} has {layer}:{name.strip()} twice; give each dimension once")
        splits[name.strip()] = int(number)
    return found


def _forbidden(text: str | None) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for item in read_list(text):
        layer, _, name = item.rpartition(":")
        if not layer or not name:
            raise ArgumentError(f"forbid={text!r}: {item!r}; give LAYER:DIMENSION, as in *:h")
        found.setdefault(layer, []).append(name)
    return found


def _measure(path: Path) -> None:
    from fewbits.planner.measuring import measured_machine
    from fewbits.planner.planned import save_machine

    found = measured_machine()
    save_machine(found, path)
    rates = ", ".join(f"{width} {rate / 1e9:.0f} GFLOP/s" for width, rate in found.flops.items())
    link = found.links[0]
    typer.echo(
        f"{rates}; {link.gigabits:.1f} Gbit/s and {link.latency_us:.0f} us between processes; in {path}"
    )
