"""Prune the tensors of a checkpoint and write the result."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from fewbits.compare.sparse_products import sparse_products
from fewbits.errors import ArgumentError, DataError
from fewbits.files import load_file, save_file
from fewbits.files.checkpoint import metadata, read_checkpoint
from fewbits.files.contents import refuse_codes
from fewbits.files.matrix_view import is_convolution_kernel
from fewbits.files.narrow_metadata import KEY
from fewbits.files.selection import check_patterns, is_selected
from fewbits.formats import Format, Pattern, parse
from fewbits.formats import pattern as read
from fewbits.records import PrunedModel, PrunedTensor, PruneReport
from fewbits.sparsity import density, kept_magnitude, mask
from fewbits.tensor import NarrowTensor
from fewbits.typing import Progress


def prune_checkpoint(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str] | None,
    pattern: str | Pattern,
    *,
    include: Sequence[str] = (),
    exclude: Sequence[str] = (),
    format: str | Format | None = None,
    progress: Progress | None = None,
) -> PrunedModel:
    """Write a checkpoint whose matrices follow a pattern: the same tensors, with zeros.

    Floating-point tensors with two axes or more are pruned by magnitude along their last axis, and kernels of
    convolutions along their second. Shapes are all that a checkpoint tells: a tensor with four axes or more
    is taken for a kernel, and one with three whose last is shorter than 32, which others take for stacked
    matrices. The record has the axis of each. The metadata is kept. The checkpoint is held in memory.

    Args:
        source: a ``.safetensors`` file, an index of several, or a folder of them.
        destination: a ``.safetensors`` file, written atomically; None writes nothing.
        pattern: ``N:M``, such as ``2:4``.
        include: patterns of the names that may be pruned; empty for all.
        exclude: patterns of names that stay dense. Name embeddings here, since they look like any other
            matrix.
        format: the format of values for measuring sizes and products; None for no measurement.
        progress: called as ``progress("pruning tensors", tensors done, all tensors)``.

    Returns:
        The record, without stages.

    Raises:
        DataError: the source cannot be read, or is narrow.
        FormatError: no such pattern.
        ArgumentError: a pattern of names matches nothing, there is nothing to prune, the folder says that its
            weights are codes of another tool, or the destination is invalid.
    """
    measured = None if format is None else parse(format)
    chosen, tensors = read(pattern), load_file(source)
    refuse_codes(source)
    if destination is not None:
        _refuse_source(source, Path(destination))
    check_patterns(list(tensors), include, exclude)
    pruned, left, written = [], [], {}
    for done, (name, w) in enumerate(tensors.items()):
        if progress is not None:
            progress("pruning tensors", done, len(tensors))
        if isinstance(w, NarrowTensor):
            raise DataError(f"{name} is narrow; restore the checkpoint first, with fewbits cast --back")
        written[name] = w
        if w.is_floating_point() and w.dim() > 1 and is_selected(name, include, exclude):
            if not w.numel():
                left.append((name, "it has no values"))
                continue
            axis = _summed_axis(tuple(w.shape))
            if w.dtype.itemsize == 1:  # torch cannot compare values of these dtypes
                left.append((name, f"it is {w.dtype}: convert it to bfloat16 first".replace("torch.", "")))
                continue
            if w.shape[axis] % chosen.group:
                left.append((name, f"axis {axis} of {tuple(w.shape)} is no multiple of {chosen.group}"))
                continue
            keeps = mask(w, chosen, axis=axis)
            written[name] = w.masked_fill(~keeps, 0)
            shares = density(written[name]), kept_magnitude(w, keeps)
            pruned.append(PrunedTensor(name, tuple(w.shape), axis, *shares))
    if not pruned:
        raise ArgumentError(
            f"no tensor would be pruned to {chosen}: it takes floating-point values, two axes or more, a size"
            f" that is a multiple of {chosen.group}, and a name that `include` and `exclude` let through"
        )
    if progress is not None:
        progress("pruning tensors", len(tensors), len(tensors))
    report = PruneReport(str(chosen), tuple(pruned), tuple(left))
    products = () if measured is None else sparse_products(written, report, measured)
    if destination is not None:  # last: an error before it leaves nothing
        save_file(written, destination, _metadata(source))
    return PrunedModel(
        model=os.fspath(source),
        metric="",
        lower_is_better=False,
        schedule="",
        steps=0,
        seeds=(),
        stages=(),
        report=report,
        products=products,
    )


def _summed_axis(shape: tuple[int, ...]) -> int:
    """Return the axis that a product is taken to sum over; four axes are a kernel's, however large it is."""
    return 1 if len(shape) > 3 or is_convolution_kernel(shape) else len(shape) - 1


def _metadata(source: str | os.PathLike[str]) -> dict[str, str]:
    """Return the metadata of all files of a source; of a key that several have, the text of the first."""
    texts: dict[str, str] = {}
    for file in dict.fromkeys(tensor.file for tensor in read_checkpoint(source)):
        texts = metadata(file) | texts
    texts.pop(KEY, None)  # how narrow tensors are stored: here there are none
    return texts


def _refuse_source(source: str | os.PathLike[str], destination: Path) -> None:
    files = {tensor.file for tensor in read_checkpoint(source)}
    if destination.exists() and any(destination.samefile(file) for file in files):
        raise ArgumentError(f"{destination} is a file of the source itself; give another name")
