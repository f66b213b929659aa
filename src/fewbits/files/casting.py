"""Cast a checkpoint to narrow formats or restore it, in bounded memory; resumable after interruption."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from fewbits import kernels
from fewbits.errors import ArgumentError, DataError
from fewbits.files.byte_layout import TensorLayout, layout_of, part_name
from fewbits.files.cast_report import cast_report
from fewbits.files.checkpoint import StoredTensor, read_checkpoint
from fewbits.files.contents import ordinary_tensors, sound_contents
from fewbits.files.destination import Destination, plan_destination, plan_single_file
from fewbits.files.encoding import Plan, own_encoding
from fewbits.files.job import Job
from fewbits.files.layouts import modelopt, named, onnx
from fewbits.files.layouts.layout import Layout, Request
from fewbits.files.model_folder import CONFIG, METHOD, model_folder
from fewbits.files.narrow_tensor import AnyStoredTensor
from fewbits.files.selection import choose_formats
from fewbits.files.step import Step
from fewbits.formats import Format, Pattern, parse
from fewbits.formats import pattern as pattern_of
from fewbits.kernels.arrays.nm import zeros
from fewbits.records import CastReport
from fewbits.typing import Progress


def cast(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    format: str | Format | None = None,
    map: Mapping[str, str | Format] | None = None,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    scale_rule: str = "floor",
    pattern: str | Pattern | None = None,
    layout: str | None = None,
    fuse: bool = True,
    values: Mapping[str, str | os.PathLike[str]] | None = None,
    progress: Progress | None = None,
) -> CastReport:
    """Write a checkpoint in narrow formats; docs/layout.md has the layout, docs/layouts.md has others.

    Floating-point tensors with two axes or more are rounded to nearest even, with blocks along the rows of
    :func:`fewbits.files.matrix_view.matrix_shape`; all others are copied unchanged. Files get their final
    names when all of them are complete. After an interruption, the same call continues where the last one
    stopped. In a folder with a ``config.json`` the files beside the tensors go along, as a tokenizer's, and
    the config says ``quant_method: fewbits``, by which transformers loads it.

    Args:
        source: a ``.safetensors`` file, an index of several, or a folder of them.
        destination: a ``.safetensors`` file for a file, else a folder.
        format: for tensors that no key of ``map`` matches; None leaves them unchanged.
        map: formats by name patterns with shell wildcards; the first pattern that matches decides.
        include: patterns of the names that may be cast; empty for all.
        exclude: patterns of names that stay unchanged even if others match.
        scale_rule: how power-of-two scales are chosen; formats with other scales keep their own rule.
        pattern: structured sparsity such as ``2:4``: of each group along the last axis of a matrix only the
            values of largest magnitude are kept. A tensor whose shape does not fit is cast without the
            pattern, and the report says so.
        layout: None, or the program whose layout is written, such as ``compressed-tensors``; then only the
            weights of Linear layers are cast, and the files beside the tensors go along.
        fuse: with a layout, whether weights that are stacked to one product, such as those of q, k and v,
            share an outer scale.
        values: for some tensors, by name, a ``.safetensors`` file with one tensor of the same shape, whose
            values are stored in their place; errors are those against the tensor of the source.
        progress: called as ``progress("casting tensors", bytes done, all bytes)``.

    Returns:
        A record of each tensor, and the bytes and errors of each format.

    Raises:
        DataError: the source cannot be read, is narrow already, or holds NaN or infinity that the format
            cannot hold.
        FormatError: no such format or pattern, or a pattern with a format that has no zero.
        ArgumentError: a pattern of names matches nothing, the scale rule is unknown or applies to no format,
            the destination is invalid, the layout has no place for a format or a tensor, or the source's
            folder says that its weights are quantized by another tool.
        MissingDependencyError: the package of the layout is not installed.
        OSError: the operating system reported an error, such as no permission or no space left.
    """
    mapped = [(names, parse(to)) for names, to in (map or {}).items()]
    others = None if format is None else parse(format)
    kernels.check_scale_rule(scale_rule, [fmt for fmt in (others, *(to for _, to in mapped)) if fmt])
    if layout is not None:
        if pattern is not None:
            raise ArgumentError(f"`pattern` does nothing for layout={layout!r:.60}; leave one of them out")
        return _cast_to(
            named(layout),
            source,
            destination,
            others,
            mapped,
            include,
            exclude,
            scale_rule,
            fuse,
            values or {},
            progress,
        )
    if onnx.is_one(Path(source)) and Path(destination).suffix.lower() == onnx.LAYOUT.suffix:
        raise ArgumentError(
            f"{destination} is an ONNX model by its name; give layout='onnx' or 'onnxruntime', or the name of"
            " a .safetensors file"
        )
    tensors = ordinary_tensors(source)
    chosen = choose_formats(tensors, others, mapped, include, exclude)
    to = plan_destination(source, destination, _files(source, tensors))
    sparse = None if pattern is None else pattern_of(pattern)
    for fmt in chosen.values() if sparse is not None else ():
        zeros(fmt)  # raises if the format has no zero
    becomes = {t.name: layout_of(t, chosen[t.name], sparse) for t in tensors if t.name in chosen}
    _refuse_clashes(tensors, becomes)
    encodings = {name: own_encoding(name, layout) for name, layout in becomes.items()}
    replaced = _replaced(values or {}, {t.name: t for t in tensors if t.name in becomes})
    if replaced and sparse is not None:
        raise ArgumentError("`values` are stored as they are; leave the pattern out")
    steps = [Step(t, to.files[t.file], encodings.get(t.name), replaced.get(t.name)) for t in tensors]
    texts, copies = _beside(source, to, quantization_config={"quant_method": METHOD})
    plan = Plan(encodings, texts=texts, copies=copies, refuses_nonfinite=False, described=True)
    tallies = Job(source, to, steps, "casting tensors", plan, scale_rule).run(progress)
    return cast_report(source, destination, steps, tallies, scale_rule, restored=False)


def _cast_to(
    layout: Layout,
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    others: Format | None,
    mapped: Sequence[tuple[str, Format]],
    include: Sequence[str],
    exclude: Sequence[str],
    scale_rule: str,
    fuse: bool,
    values: Mapping[str, str | os.PathLike[str]],
    progress: Progress | None,
) -> CastReport:
    """Write a checkpoint in the layout of another program."""
    layout.check(Path(source))
    if layout.suffix != onnx.LAYOUT.suffix and onnx.is_one(Path(source)):
        raise ArgumentError(
            f"layout={layout.name!r} writes checkpoints, and {source} is an ONNX model; give layout='onnx' or"
            " 'onnxruntime'"
        )
    others = None if others is None else layout.accept(others)
    mapped = [(names, layout.accept(fmt)) for names, fmt in mapped]
    tensors = ordinary_tensors(source)
    chosen = choose_formats(tensors, others, mapped, include, exclude, layout.can_cast)
    files = _files(source, tensors)
    if layout.suffix:
        to = plan_single_file(destination, files, layout.suffix)
    else:
        to = plan_destination(source, destination, files)
    becomes = {t.name: layout_of(t, chosen[t.name]) for t in tensors if t.name in chosen}
    plan = layout.write(Request(Path(source), tensors, becomes, fuse, to.path))
    _refuse_others(to, [*plan.texts, *(file.name for file in plan.copies)])
    as_they_are = becomes.keys() - plan.views.keys()
    replaced = _replaced(values, {t.name: t for t in tensors if t.name in as_they_are})
    shared = min(plan.shared.keys() & replaced.keys(), default=None)
    if shared is not None:
        raise ArgumentError(
            f"{shared!r:.200} would share an outer scale, under which its values are rounded again; give"
            " fuse=False, --no-fuse, or another format"
        )
    steps = [
        Step(
            plan.views.get(t.name, t),
            plan.places.get(t.name, to.files[t.file]),
            plan.encodings.get(t.name),
            replaced.get(t.name),
        )
        for t in tensors
    ]
    tallies = Job(source, to, steps, "casting tensors", plan, scale_rule).run(progress)
    return cast_report(source, destination, steps, tallies, scale_rule, restored=False)


def restore(
    source: str | os.PathLike[str], destination: str | os.PathLike[str], *, progress: Progress | None = None
) -> CastReport:
    """Write a checkpoint with its narrow tensors converted back to their original dtypes.

    Args:
        source: what :func:`cast` wrote, or the tools of a program whose layout it can write.
        destination: a ``.safetensors`` file for a file, else a folder.
        progress: called as ``progress("restoring tensors", bytes done, all bytes)``.

    Returns:
        A record of each tensor, without errors: nothing is rounded again.

    Raises:
        DataError: the source cannot be read, or its narrow tensors do not match its metadata.
        ArgumentError: the source has no narrow tensors and no layout of another program, or the destination
            is invalid.
        OSError: the operating system reported an error, such as no permission or no space left.
    """
    contents = sound_contents(source)
    if not contents.narrow and contents.layout is None:  # else its names are those of another program
        raise ArgumentError(f"{source} holds no narrow tensors; there is nothing to restore")
    files = _files(source, contents.tensors)
    if contents.layout == onnx.NAME and Path(destination).suffix.lower() == onnx.LAYOUT.suffix:
        to = plan_single_file(destination, files, onnx.LAYOUT.suffix)
        plan = onnx.restored(Path(source), contents.tensors, to)
    else:
        to = plan_destination(source, destination, files)
        texts, copies = _beside(source, to)
        plan = Plan({}, texts=texts, copies=copies)
    steps = [Step(t, plan.places.get(t.name, to.files[t.file])) for t in contents.tensors]
    tallies = Job(source, to, steps, "restoring tensors", plan).run(progress)
    return cast_report(source, destination, steps, tallies, "floor", restored=True)


def _files(source: str | os.PathLike[str], tensors: Sequence[AnyStoredTensor]) -> list[Path]:
    """Return the files that are read; an ONNX model is one of them even if all its numbers lie beside it."""
    own = [Path(source)] if onnx.is_one(Path(source)) else []
    return list(dict.fromkeys([*own, *(tensor.file for tensor in tensors)]))


def _beside(
    source: str | os.PathLike[str], to: Destination, **told: object
) -> tuple[dict[str, str], list[Path]]:
    """Return the config of a folder, with new words about quantized weights, and the files to copy.

    Raises:
        ArgumentError: the destination holds such files of another model.
    """
    folder = None if to.path in to.files.values() else model_folder(source)
    if folder is None:
        return {}, []
    copies = [file for file in folder.companions() if file.name != modelopt.OWN_CONFIG]
    _refuse_others(to, [CONFIG, *(file.name for file in copies)])
    return {CONFIG: folder.text(("quantization_config",), **told)}, copies


def _refuse_others(to: Destination, names: Sequence[str]) -> None:
    """Raise ArgumentError if the destination holds files of another model, or what ModelOpt would read."""
    to.refuse_others(names)
    own = to.path / modelopt.OWN_CONFIG
    if modelopt.OWN_CONFIG not in names and own.is_file():
        raise ArgumentError(
            f"{to.path} holds {own.name!r}, which says that its weights are those of another cast; remove"
            " it, or give an empty folder"
        )


def _replaced(
    values: Mapping[str, str | os.PathLike[str]], cast: Mapping[str, StoredTensor]
) -> dict[str, StoredTensor]:
    """Return the tensors whose values take the place of others, by the names of those."""
    replaced = {}
    for name, path in values.items():
        if name not in cast:
            raise ArgumentError(f"there are values for {name!r:.200}, which is not cast; leave them out")
        (own,) = found if len(found := read_checkpoint(path)) == 1 else (None,)
        if own is None or own.shape != cast[name].shape or not own.is_float:
            raise DataError(
                f"{path} does not hold one tensor of the shape {cast[name].shape} of {name!r:.200}"
            )
        replaced[name] = own
    return replaced


def _refuse_clashes(tensors: Sequence[StoredTensor], becomes: dict[str, TensorLayout]) -> None:
    names = {t.name for t in tensors}
    for name, layout in becomes.items():
        for suffix in layout.parts:
            if part_name(name, suffix) in names:
                raise ArgumentError(
                    f"{name!r:.200} would be stored as {part_name(name, suffix)!r:.200}, and there is a "
                    "tensor of that name; name the first in `exclude`"
                )
