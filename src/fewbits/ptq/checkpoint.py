"""A checkpoint in narrow formats, with the weights of its model's layers chosen on calibration batches."""

from __future__ import annotations

import glob
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import nan
from pathlib import Path

from torch import nn

from fewbits.errors import ArgumentError
from fewbits.files import cast
from fewbits.files.contents import ordinary_tensors
from fewbits.files.destination import plan_destination
from fewbits.files.layouts import named
from fewbits.files.selection import choose_formats
from fewbits.formats import Format, parse
from fewbits.ptq.data_flow import Batch
from fewbits.ptq.layers import product_layer
from fewbits.ptq.loaded_weights import fill
from fewbits.ptq.model import quantize_model
from fewbits.ptq.stored_choices import choice_file
from fewbits.records import CastReport, QuantizedLayer, QuantizeReport
from fewbits.typing import Progress


def cast_model(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    model: nn.Module,
    batches: Sequence[Batch],
    *,
    format: str | Format | None = None,
    map: Mapping[str, str | Format] | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    scale_rule: str = "floor",
    method: str = "gptq",
    scale: str = "amax",
    layout: str | None = None,
    fuse: bool = True,
    progress: Progress | None = None,
) -> tuple[CastReport, QuantizeReport]:
    """Write a checkpoint in narrow formats, its linear and convolution layers as :func:`quantize_model` does.

    Tensors that are no weight of such a layer are rounded to nearest, as :func:`fewbits.files.cast` does. The
    weight of each layer is kept in a hidden folder beside the destination once it is chosen; after an
    interruption the same call goes on from there and writes the same bytes, and in the end it is removed.

    Args:
        source: a ``.safetensors`` file, an index of several, or a folder of them.
        destination: a ``.safetensors`` file for a file, else a folder.
        model: takes the values of the checkpoint's tensors, by name; in the mode in which it will be used. Of
            one whose parameters are all on the meta device, with its buffers in memory, the weights of layers
            are read when they are called: memory holds those of one stage of layers at a time.
        batches: what the model takes.
        format: for tensors that no key of ``map`` matches; None leaves them unchanged.
        map: formats by patterns of tensors' names; the first that matches decides.
        include: patterns of the names that may be cast; empty for all.
        exclude: patterns of names that stay unchanged even if others match.
        scale_rule: how power-of-two scales are chosen.
        method: ``round``, ``gptq`` or ``gpfq``.
        scale: ``amax`` or ``search``.
        layout: as :func:`fewbits.files.cast` takes it.
        fuse: the same.
        progress: called as work goes on.

    Returns:
        The record of the cast, and that of the layers; it names the other tensors that were cast, too.

    Raises:
        DataError: the checkpoint cannot be read, has none of the model's weights or one of another shape; a
            model on the meta device cannot be run with one layer in memory at a time.
        ArgumentError: no layer of the model is to be cast, or what :func:`quantize_model` refuses.
        FormatError: no such format.
    """
    tensors = {t.name: t for t in ordinary_tensors(source)}
    if layout is None:
        plan_destination(source, destination, {t.file for t in tensors.values()})  # refused before any work
    mapped = [(names, parse(to)) for names, to in (map or {}).items()]
    others = None if format is None else parse(format)
    if layout is None:
        chosen = choose_formats(list(tensors.values()), others, mapped, include, exclude)
    else:
        of = named(layout)
        others = None if others is None else of.accept(others)
        mapped = [(names, of.accept(fmt)) for names, fmt in mapped]
        chosen = choose_formats(list(tensors.values()), others, mapped, include, exclude, of.can_cast)
    names = fill(model, tensors, os.fspath(source))
    layers = {
        layer: names[f"{layer}.weight".lstrip(".")]
        for layer, module in model.named_modules()
        if product_layer(module) is not None and names.get(f"{layer}.weight".lstrip(".")) in chosen
    }
    if not layers:
        raise ArgumentError(
            "no linear or convolution layer of the model has a weight that would be cast; cast without"
            " `method`"
        )
    work = _work_folder(Path(os.path.realpath(destination)))
    _, report = quantize_model(
        model,
        batches,
        None,
        map={glob.escape(layer): chosen[name] for layer, name in layers.items()},
        method=method,
        scale=scale,
        scale_rule=scale_rule,
        folder=work,
        progress=progress,
    )
    values = {layers[x.layer]: choice_file(work, x.layer) for x in report.layers if x.vectors}
    written = cast(
        source,
        destination,
        format=others,
        map=map,
        include=include,
        exclude=exclude,
        scale_rule=scale_rule,
        layout=layout,
        fuse=fuse,
        values=values,
        progress=progress,
    )
    shutil.rmtree(work)
    others_cast = [name for name in chosen if name not in layers.values()]
    rounded = tuple(
        QuantizedLayer(
            name,
            tensors[name].shape,
            str(chosen[name]),
            0,
            nan,
            nan,
            reason="of no such layer: rounded to nearest",
        )
        for name in others_cast
    )
    return written, replace(report, layers=(*report.layers, *rounded))


def _work_folder(target: Path) -> Path:
    if not target.parent.is_dir():
        raise ArgumentError(
            f"cannot write {target}: the folder {target.parent} does not exist; create it first"
        )
    return target.parent / f".fewbits-{target.name}.ptq"
