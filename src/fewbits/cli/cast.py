"""``fewbits cast``: a checkpoint into narrow formats, or back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fewbits.cli.aliases import Formats
from fewbits.cli.arguments import (
    ExcludeOption,
    FormatOption,
    IncludeOption,
    JsonOption,
    ModelOption,
    PatternOption,
    ScaleRuleOption,
    provenance,
    read_list,
    refuse_idle,
    refuse_unused,
)
from fewbits.cli.calibration import (
    CalibrateOption,
    Calibration,
    MethodOption,
    ScaleOption,
    cast_calibrated,
)
from fewbits.cli.kinds import CHECKPOINT, Reads, Writes
from fewbits.cli.mapping import read_map
from fewbits.cli.paths import tables_console, write_report
from fewbits.cli.progress import Interrupted, progress_bar
from fewbits.errors import ArgumentError
from fewbits.formats import parse

if TYPE_CHECKING:
    from fewbits.formats import Format
    from fewbits.records import CastReport, QuantizeReport

_MOST_NAMES = 8  # of tensors, in one line


def cast(
    context: typer.Context,
    source: Annotated[
        Path,
        Reads(),
        typer.Argument(
            help="A .safetensors file, or a folder of them; an .onnx model; with --back a .gguf file too.",
            show_default=False,
        ),
    ],
    destination: Annotated[
        Path,
        Writes(CHECKPOINT),
        typer.Argument(
            help="A .safetensors file for a file; for a folder a folder, in which files keep their names. "
            "The files beside the tensors of a model with a config.json, as its tokenizer, go along.",
            show_default=False,
        ),
    ],
    format: FormatOption = None,
    map: Annotated[
        str | None,
        Reads(several=True),
        Formats(),
        typer.Option(
            help="Comma-separated PATTERN=FORMAT for the tensors whose names match, as in"
            " 'layers.0.*=mx9,*mlp*=mxfp6_e2m3', or the path of what `fewbits compare --json` wrote of this"
            " checkpoint; the first that matches decides, before --format.",
            show_default=False,
        ),
    ] = None,
    include: IncludeOption = None,
    exclude: ExcludeOption = None,
    scale_rule: ScaleRuleOption = None,
    pattern: PatternOption = None,
    layout: Annotated[
        str | None,
        typer.Option(
            help="Write what other programs load, as their own tools do: compressed-tensors, gguf, gpt-oss,"
            " modelopt, onnx, onnxruntime, torchao (see docs/layouts.md). Default: the layout of fewbits.",
            show_default=False,
        ),
    ] = None,
    fuse: Annotated[
        bool,
        typer.Option(
            help="With --layout and nvfp4: whether q, k and v, or gate and up, which programs stack to one"
            " product, share an outer scale."
        ),
    ] = True,
    method: MethodOption = None,
    scale: ScaleOption = "amax",
    model: ModelOption = None,
    calibrate: CalibrateOption = None,
    back: Annotated[
        bool, typer.Option("--back", help="Restore ordinary tensors, in the dtypes they had.")
    ] = False,
    json: JsonOption = None,
) -> None:
    """Store a checkpoint in narrow formats, as packed bits in .safetensors files.

    Floating-point tensors with two axes or more are cast, in blocks along the last axis; a convolution's
    kernel along all axes but the first. With --pattern, of each group along the last axis of a matrix the
    values of largest magnitude are kept; a matrix whose size does not fit stays dense. All other tensors stay
    as they are. The checkpoint is read piece by piece, so it may be larger than memory. The destination
    appears when all is done; the same command goes on where an interrupted one stopped.

    Example: fewbits cast model.safetensors narrow.safetensors --format mxfp4 --exclude 'lm_head*'

    For vLLM: fewbits cast model/ narrow/ --format nvfp4 --layout compressed-tensors

    A model in ONNX: fewbits cast model.onnx narrow.onnx --format mxfp4 --layout onnxruntime

    With --method, weights of the model's linear and convolution layers are chosen on text or batches such
    that the layers' outputs change least: fewbits cast model/ narrow/ --format mxfp4 --method gptq

    Back again: fewbits cast narrow.safetensors model.safetensors --back
    """
    if back:
        refuse_unused(
            context, {"source", "destination", "back", "json"}, "--back, which does what the file says"
        )
    if layout is None:
        refuse_idle(context, {"fuse"}, "the layout of fewbits, where every tensor has its own scale")
    if not back and format is None and not map:
        raise ArgumentError("no format was given; add --format, as in --format mxfp4, or --map")
    mapped, rule = read_map(read_list(map), scale_rule)
    others = None if format is None else parse(format)
    lists = read_list(include), read_list(exclude)
    calibration = None
    if method is None:
        refuse_idle(context, {"scale", "model", "calibrate"}, "a cast without --method")
    else:
        refuse_idle(context, {"pattern"}, "--method")
        calibration = Calibration(method, scale, model, calibrate, layout, fuse)
    before = _numbers_beside(destination)
    report, layers = _written(
        source, destination, back, others, mapped, lists, rule, pattern, layout, fuse, calibration
    )

    from fewbits.report import cast_json, cast_table, quantize_table

    if layers is not None:
        tables_console(json).print(quantize_table(layers))
    tables_console(json).print(cast_table(report))
    for tensor in report.tensors if pattern is not None else ():
        if tensor.format is not None and tensor.sparsity is None:
            shape = " x ".join(str(n) for n in tensor.shape)
            typer.echo(f"left dense: {tensor.tensor}, {shape}, does not fit {pattern}", err=True)
    typer.echo(f"wrote {destination}", err=True)
    _say_what_is_left(source, destination, before, is_cast=not back)
    write_report(json, lambda: cast_json(report, provenance(), layers))


def _is_onnx(path: Path) -> bool:
    return path.suffix.lower() == ".onnx" and path.is_file()


def _numbers_beside(model: Path) -> set[Path]:
    """Return the files beside an ONNX model that is there already; a model that is written replaces it."""
    if not _is_onnx(model):
        return set()
    from fewbits.files.layouts.onnx_left import numbers_beside

    return numbers_beside(model)


def _say_what_is_left(source: Path, destination: Path, before: set[Path], *, is_cast: bool) -> None:
    """Name what a cast to an ONNX model keeps wide without listing it, and files that no model needs."""
    if not _is_onnx(destination):
        return
    from fewbits.files.layouts.onnx_left import wide_inside

    names = wide_inside(source) if is_cast else []
    if names:
        shown = ", ".join(f"{name:.200}" for name in names[:_MOST_NAMES])
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        kind = "matrix" if len(names) == 1 else "matrices"
        typer.echo(
            f"left wide: {len(names)} {kind} in Constant nodes, subgraphs and functions: {shown}{more}",
            err=True,
        )
    for file in sorted(before - _numbers_beside(destination) - _numbers_beside(source)):
        typer.echo(f"left there: {file}, numbers of the model that {destination} was before", err=True)


def _written(
    source: Path,
    destination: Path,
    back: bool,
    format: Format | None,
    mapped: dict[str, Format],
    lists: tuple[list[str], list[str]],
    scale_rule: str,
    pattern: str | None,
    layout: str | None,
    fuse: bool,
    calibration: Calibration | None,
) -> tuple[CastReport, QuantizeReport | None]:
    from fewbits.files import cast as cast_checkpoint
    from fewbits.files import restore

    try:
        with progress_bar() as progress:
            if back:
                return restore(source, destination, progress=progress), None
            if calibration is not None:
                chosen = (format, mapped, lists, scale_rule)
                return cast_calibrated(source, destination, *chosen, calibration, progress)
            written = cast_checkpoint(
                source,
                destination,
                format=format,
                map=mapped,
                include=lists[0],
                exclude=lists[1],
                scale_rule=scale_rule,
                pattern=pattern,
                layout=layout,
                fuse=fuse,
                progress=progress,
            )
            return written, None
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted; {destination} is as it was, and the same command goes on from here"
        ) from None
