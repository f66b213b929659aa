"""Cast a checkpoint to narrow formats or restore it, in bounded memory; resumable after interruption."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf, nan
from pathlib import Path

from fewbits import kernels
from fewbits.errors import ArgumentError, DataError
from fewbits.files.byte_layout import TensorLayout, layout_of, part_name
from fewbits.files.checkpoint import StoredTensor, metadata, raw_chunks
from fewbits.files.checksum import UNKNOWN, Checksums, problem
from fewbits.files.contents import AnyStoredTensor, StoredNarrowTensor, ordinary_tensors, sound_contents
from fewbits.files.destination import Destination, plan_destination
from fewbits.files.narrow_metadata import KEY, metadata_text
from fewbits.files.piecewise import dequantized_bytes, quantize_tensor
from fewbits.files.resumable import Resumable
from fewbits.files.safetensors_header import Header, HeaderEntry, header
from fewbits.files.selection import choose_formats
from fewbits.formats import Format, Pattern, parse
from fewbits.formats import pattern as pattern_of
from fewbits.kernels.arrays.nm import zeros
from fewbits.metrics import Tally
from fewbits.records import CastFormat, CastReport, CastTensor
from fewbits.typing import Progress
from fewbits.versions import release


@dataclass(frozen=True)
class _Step:
    """One tensor of the source and its layout in the destination."""

    tensor: AnyStoredTensor
    file: Path  # destination file
    becomes: TensorLayout | None  # None: an ordinary tensor

    @property
    def layout(self) -> TensorLayout | None:
        """The layout of the narrow tensor, in the source or in the destination."""
        return self.tensor.layout if isinstance(self.tensor, StoredNarrowTensor) else self.becomes

    @property
    def parts(self) -> dict[str, HeaderEntry]:
        """The entries to write, by name."""
        name = self.tensor.name
        if self.becomes is not None:
            parts = {part_name(name, suffix): part for suffix, part in self.becomes.parts.items()}
            return {name: self.becomes.placeholder, **parts}
        return {name: HeaderEntry(self.tensor.dtype, self.tensor.shape)}


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
    progress: Progress | None = None,
) -> CastReport:
    """Write a checkpoint in narrow formats; docs/layout.md has the layout.

    Floating-point tensors with two axes or more are rounded to nearest even, with blocks along the rows of
    :func:`fewbits.files.matrix_view.matrix_shape`; all others are copied unchanged. Files get their final
    names when all of them are complete. After an interruption, the same call continues where the last one
    stopped.

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
        progress: called as ``progress("casting tensors", bytes done, all bytes)``.

    Returns:
        A record of each tensor, and the bytes and errors of each format.

    Raises:
        DataError: the source cannot be read, is narrow already, or holds NaN or infinity that the format
            cannot hold.
        FormatError: no such format or pattern, or a pattern with a format that has no zero.
        ArgumentError: a pattern of names matches nothing, the scale rule is unknown or applies to no format,
            or the destination is invalid.
        OSError: the operating system reported an error, such as no permission or no space left.
    """
    mapped = [(names, _format(to)) for names, to in (map or {}).items()]
    others = None if format is None else _format(format)
    kernels.check_scale_rule(scale_rule, [fmt for fmt in (others, *(to for _, to in mapped)) if fmt])
    tensors = ordinary_tensors(source)
    chosen = choose_formats(tensors, others, mapped, include, exclude)
    to = plan_destination(source, destination, {t.file: None for t in tensors})
    sparse = None if pattern is None else pattern_of(pattern)
    for fmt in chosen.values() if sparse is not None else ():
        zeros(fmt)  # raises if the format has no zero
    becomes = {t.name: layout_of(t, chosen[t.name], sparse) for t in tensors if t.name in chosen}
    _refuse_clashes(tensors, becomes)
    steps = [_Step(t, to.files[t.file], becomes.get(t.name)) for t in tensors]
    return _run(source, destination, to, steps, scale_rule, progress, restored=False)


def restore(
    source: str | os.PathLike[str], destination: str | os.PathLike[str], *, progress: Progress | None = None
) -> CastReport:
    """Write a checkpoint with its narrow tensors converted back to their original dtypes.

    Args:
        source: what :func:`cast` wrote.
        destination: a ``.safetensors`` file for a file, else a folder.
        progress: called as ``progress("restoring tensors", bytes done, all bytes)``.

    Returns:
        A record of each tensor, without errors: nothing is rounded again.

    Raises:
        DataError: the source cannot be read, or its narrow tensors do not match its metadata.
        ArgumentError: the source has no narrow tensors, or the destination is invalid.
        OSError: the operating system reported an error, such as no permission or no space left.
    """
    contents = sound_contents(source)
    if not contents.narrow:
        raise ArgumentError(f"{source} holds no narrow tensors; there is nothing to restore")
    to = plan_destination(source, destination, {t.file: None for t in contents.tensors})
    steps = [_Step(t, to.files[t.file], None) for t in contents.tensors]
    return _run(source, destination, to, steps, "floor", progress, restored=True)


def _format(given: str | Format) -> Format:
    return parse(given) if isinstance(given, str) else given


def _refuse_clashes(tensors: Sequence[StoredTensor], becomes: dict[str, TensorLayout]) -> None:
    names = {t.name for t in tensors}
    for name, layout in becomes.items():
        for suffix in layout.parts:
            if part_name(name, suffix) in names:
                raise ArgumentError(
                    f"{name!r:.200} would be stored as {part_name(name, suffix)!r:.200}, and there is a "
                    "tensor of that name; name the first in `exclude`"
                )


def _run(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    to: Destination,
    steps: Sequence[_Step],
    scale_rule: str,
    progress: Progress | None,
    *,
    restored: bool,
) -> CastReport:
    """Write all files, and return the report."""
    headers = {file: _header(origin, file, steps) for origin, file in to.files.items()}
    identities = [_identity(origin) for origin in to.files]
    job: list[object] = [release("fewbits"), restored, scale_rule, identities]
    job += [[file.name, hashlib.sha256(head.octets).hexdigest()] for file, head in headers.items()]
    what = "restoring tensors" if restored else "casting tensors"
    journal_of = to.path if to.path in headers else to.path / "folder"
    with to.made(), Resumable(journal_of, json.dumps(job), headers) as work:
        _write_all(steps, headers, scale_rule, work, progress, what)
        if identities != [_identity(origin) for origin in to.files]:
            raise DataError(f"{source} changed while it was read; start again")
        checksums = {name: crc for record in work.done.values() for name, crc in record["crc32"].items()}
        final = {file: _header(origin, file, steps, checksums) for origin, file in to.files.items()}
        work.commit(final, lambda: to.write_index(headers))
        tallies = {name: Tally(**r["tally"]) for name, r in work.done.items() if r["tally"] is not None}
    return _report(source, destination, steps, tallies, scale_rule, restored=restored)


def _write_all(
    steps: Sequence[_Step],
    headers: dict[Path, Header],
    scale_rule: str,
    work: Resumable,
    progress: Progress | None,
    what: str,
) -> None:
    total, done = sum(step.tensor.stored_bytes for step in steps), 0
    for step in sorted(steps, key=lambda step: step.file):  # stable: keeps the order within a file

        def advance(fraction: float, step: _Step = step, done: int = done) -> None:
            if progress is not None:
                progress(what, done + fraction * step.tensor.stored_bytes, total)

        if step.tensor.name not in work.done:
            work.finish(step.tensor.name, _write(step, headers[step.file], scale_rule, work, advance))
        advance(1.0)
        done += step.tensor.stored_bytes


def _header(
    origin: Path, file: Path, steps: Sequence[_Step], checksums: Mapping[str, str] | None = None
) -> Header:
    """Return the header of a file; without checksums it has placeholders of the same length."""
    here = [step for step in steps if step.file == file]
    texts = {key: text for key, text in metadata(origin).items() if key != KEY}
    narrow = {step.tensor.name: step.becomes for step in here if step.becomes is not None}
    parts = {name: part for step in here for name, part in step.parts.items()}
    if narrow:
        texts[KEY] = metadata_text(narrow, {name: (checksums or {}).get(name, UNKNOWN) for name in parts})
    return header(parts, texts)


def _write(
    step: _Step, head: Header, scale_rule: str, work: Resumable, advance: Callable[[float], None]
) -> dict[str, object]:
    """Write one tensor; return its checksums and, where it was rounded, its errors, as JSON holds them."""
    tensor, name, checksums = step.tensor, step.tensor.name, Checksums()

    def write(entry: str, at: int, octets: bytes | bytearray | memoryview) -> None:
        checksums.add(entry, at, octets)
        work.write(step.file, head.starts[entry] + at, octets)

    for part in tensor.parts.values() if isinstance(tensor, StoredNarrowTensor) else [tensor]:
        wrong = problem(part)
        if wrong:
            raise DataError(f"{tensor.file}: {wrong}")
    tally = None
    if isinstance(tensor, StoredNarrowTensor):
        (ordinary,) = step.parts.values()
        for at, octets in dequantized_bytes(tensor):
            write(name, at, octets)
            advance((at + len(octets)) / ordinary.nbytes)
    elif step.becomes is None:
        at = 0
        for raw in raw_chunks(tensor):
            write(name, at, raw)
            at += len(raw)
            advance(at / tensor.stored_bytes)
    else:

        def put(suffix: str, at: int, octets: bytes) -> None:
            write(part_name(name, suffix), at, octets)

        tally = asdict(quantize_tensor(tensor, step.becomes, scale_rule, put, advance))
    return {"crc32": {entry: checksums.of(entry) for entry in step.parts}, "tally": tally}


def _identity(file: Path) -> list[str | int]:
    """Return a fingerprint of a source file that changes when the file does."""
    with file.open("rb") as opened:
        size = opened.read(8)
        digest = hashlib.sha256(size + opened.read(int.from_bytes(size, "little"))).hexdigest()
        about = os.fstat(opened.fileno())
    return [os.path.realpath(file), about.st_size, about.st_mtime_ns, digest]


def _report(
    source: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    steps: Sequence[_Step],
    tallies: dict[str, Tally],
    scale_rule: str,
    *,
    restored: bool,
) -> CastReport:
    tensors = tuple(_cast_tensor(step, tallies.get(step.tensor.name)) for step in steps)
    groups: dict[str | None, list[CastTensor]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.format, []).append(tensor)
    return CastReport(
        source=os.fspath(source),
        destination=os.fspath(destination),
        restored=restored,
        scale_rule=scale_rule,
        formats=tuple(
            _summed(fmt, groups[fmt], tallies) for fmt in sorted(groups, key=lambda f: (f is None, f or ""))
        ),
        tensors=tensors,
    )


def _cast_tensor(step: _Step, tally: Tally | None) -> CastTensor:
    layout = step.layout
    return CastTensor(
        tensor=step.tensor.name,
        shape=step.tensor.shape,
        dtype=step.tensor.dtype,
        format=None if layout is None else layout.format.name,
        bytes_before=step.tensor.stored_bytes,
        bytes_after=sum(part.nbytes for part in step.parts.values()),
        error=None if tally is None else tally.error(),
        sparsity=None if layout is None or layout.pattern is None else str(layout.pattern),
    )


def _summed(format: str | None, group: Sequence[CastTensor], tallies: dict[str, Tally]) -> CastFormat:
    rounded = [t for t in group if t.error is not None]
    sums = [tallies[t.tensor] for t in rounded]
    together = Tally(signal=sum(t.signal for t in sums), noise=sum(t.noise for t in sums)).error()
    worst = min(rounded, key=lambda t: t.error.qsnr_db if t.error else inf, default=None)
    return CastFormat(
        format=format,
        tensors=len(group),
        bytes_before=sum(t.bytes_before for t in group),
        bytes_after=sum(t.bytes_after for t in group),
        qsnr_db=together.qsnr_db if rounded else inf if format is None else nan,
        worst_tensor=worst.tensor if worst else None,
        worst_qsnr_db=worst.error.qsnr_db if worst and worst.error else nan,
    )
