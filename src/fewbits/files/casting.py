"""Write a checkpoint in narrow formats, or back, tensor by tensor: bounded memory, whole files, resumable."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from math import inf, nan
from pathlib import Path
from typing import Any

from fewbits import kernels
from fewbits.errors import ArgumentError, DataError
from fewbits.files.checkpoint import StoredTensor, metadata, raw_chunks
from fewbits.files.checksum import UNKNOWN, Checksums, problem
from fewbits.files.contents import Held, Narrow, ordinary_tensors, sound_contents
from fewbits.files.destination import Destination, destination
from fewbits.files.header import Header, Part, header
from fewbits.files.narrowing import narrow, widened
from fewbits.files.plan import plan
from fewbits.files.resumable import Resumable
from fewbits.files.stored import KEY, Stored, as_lines, metadata_text, part_name
from fewbits.formats import Format, Pattern, parse
from fewbits.formats import pattern as pattern_of
from fewbits.kernels.arrays.nm import zeros
from fewbits.metrics import Tally
from fewbits.records import CastFormat, CastReport, CastTensor

Progress = Callable[[float, float, str], None]


@dataclass(frozen=True)
class _Step:
    """One tensor of the source and what becomes of it."""

    held: Held
    file: Path  # where to
    becomes: Stored | None  # None: an ordinary tensor

    @property
    def parts(self) -> dict[str, Part]:
        """The tensors to be written, by their names."""
        name = self.held.name
        if self.becomes is not None:
            parts = {part_name(name, suffix): part for suffix, part in self.becomes.parts.items()}
            return {name: self.becomes.placeholder, **parts}
        if isinstance(self.held, Narrow):
            return {name: Part(self.held.stored.dtype, self.held.stored.shape)}
        return {name: Part(self.held.dtype, self.held.shape)}


def cast(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    *,
    format: str | Format | None = None,
    mapped: Sequence[tuple[str, str | Format]] = (),
    keep: Sequence[str] = (),
    scale_rule: str = "floor",
    sparsity: str | Pattern | None = None,
    progress: Progress | None = None,
) -> CastReport:
    """Write a checkpoint in narrow formats; docs/layout.md has the layout.

    Floating-point tensors with two axes or more are rounded to nearest even, with blocks along the lines of
    :func:`fewbits.files.lines.lines`; all others are kept as they are. Files take their names when all are
    whole; a run that was stopped is taken up by the next identical one.

    Args:
        source: a ``.safetensors`` file, an index of several, or a folder of them.
        target: a ``.safetensors`` file for a file, else a folder.
        format: for tensors that no pattern names; None keeps them.
        mapped: (pattern, format); the first pattern that matches a tensor's name decides.
        keep: patterns of names that are kept whatever the others say.
        scale_rule: how power-of-two scales are chosen; formats with other scales keep their own rule.
        sparsity: a pattern such as ``2:4``: of each group along the last axis of a matrix only the values of
            largest magnitude are kept. What is narrowed and does not fit stays dense, and the report says so.
        progress: called with (bytes done, all bytes, name of the tensor).

    Raises:
        DataError: the source cannot be read, is narrow already, or holds NaN or infinity where the format
            cannot.
        FormatError: no such format or sparsity, or a format without a zero with a sparsity.
        ArgumentError: a pattern that matches nothing, no such scale rule or one that no format follows, a
            destination that cannot be.
        OSError: the operating system refused: no permission, no space left.
    """
    rules = [(pattern, _format(to)) for pattern, to in mapped]
    others = None if format is None else _format(format)
    kernels.check_scale_rule(scale_rule, [fmt for fmt in (others, *(to for _, to in rules)) if fmt])
    tensors = ordinary_tensors(source)
    chosen = plan(tensors, others, rules, keep)
    to = destination(source, target, {t.file: None for t in tensors})
    kept = None if sparsity is None else pattern_of(sparsity)
    for fmt in chosen.values() if kept is not None else ():
        zeros(fmt)  # refuses a format without one
    becomes = {t.name: as_lines(t, chosen[t.name], kept) for t in tensors if t.name in chosen}
    _refuse_clashes(tensors, becomes)
    steps = [_Step(t, to.files[t.file], becomes.get(t.name)) for t in tensors]
    return _run(source, target, to, steps, scale_rule, progress, restored=False)


def restore(
    source: str | os.PathLike[str], target: str | os.PathLike[str], *, progress: Progress | None = None
) -> CastReport:
    """Write a checkpoint with ordinary tensors in place of narrow ones, in the dtypes they had.

    Args:
        source: what :func:`cast` wrote.
        target: a ``.safetensors`` file for a file, else a folder.
        progress: called with (bytes done, all bytes, name of the tensor).

    Raises:
        DataError: the source cannot be read or its narrow tensors are not what its metadata says.
        ArgumentError: nothing in it is narrow, or a destination that cannot be.
        OSError: the operating system refused: no permission, no space left.
    """
    contents = sound_contents(source)
    if not contents.narrow:
        raise ArgumentError(f"{source} holds no narrow tensors; there is nothing to restore")
    to = destination(source, target, {t.file: None for t in contents.tensors})
    steps = [_Step(t, to.files[t.file], None) for t in contents.tensors]
    return _run(source, target, to, steps, "floor", progress, restored=True)


def _format(given: str | Format) -> Format:
    return parse(given) if isinstance(given, str) else given


def _refuse_clashes(tensors: Sequence[StoredTensor], becomes: dict[str, Stored]) -> None:
    names = {t.name for t in tensors}
    for name, stored in becomes.items():
        for suffix in stored.parts:
            if part_name(name, suffix) in names:
                raise ArgumentError(
                    f"{name!r:.200} would be stored as {part_name(name, suffix)!r:.200}, and there is a "
                    "tensor of that name; name the first in --keep"
                )


def _run(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    to: Destination,
    steps: Sequence[_Step],
    scale_rule: str,
    progress: Progress | None,
    *,
    restored: bool,
) -> CastReport:
    """Write all files and say what happened."""
    headers = {file: _header(origin, file, steps) for origin, file in to.files.items()}
    job = [_release(), restored, scale_rule, [_identity(origin) for origin in to.files]]
    job += [[file.name, hashlib.sha256(head.octets).hexdigest()] for file, head in headers.items()]
    journal_of = to.whole if to.whole in headers else to.whole / "folder"
    with to.made(), Resumable(journal_of, json.dumps(job), headers) as work:
        _write_all(steps, headers, scale_rule, work, progress)
        if job[3] != [_identity(origin) for origin in to.files]:
            raise DataError(f"{source} changed while it was read; start again")
        checksums = {name: crc for record in work.done.values() for name, crc in record["crc32"].items()}
        final = {file: _header(origin, file, steps, checksums) for origin, file in to.files.items()}
        work.commit(final, lambda: to.write_index(headers))
        tallies = {name: Tally(**r["tally"]) for name, r in work.done.items() if r["tally"] is not None}
    return _report(source, target, steps, tallies, scale_rule, restored=restored)


def _write_all(
    steps: Sequence[_Step],
    headers: dict[Path, Header],
    scale_rule: str,
    work: Resumable,
    progress: Progress | None,
) -> None:
    total, done = sum(step.held.stored_bytes for step in steps), 0
    for step in sorted(steps, key=lambda step: step.file):  # a stable sort: by file, then as they are

        def told(fraction: float, step: _Step = step, done: int = done) -> None:
            if progress is not None:
                progress(done + fraction * step.held.stored_bytes, total, step.held.name)

        if step.held.name not in work.done:
            work.finish(step.held.name, _write(step, headers[step.file], scale_rule, work, told))
        told(1.0)
        done += step.held.stored_bytes


def _header(
    origin: Path, file: Path, steps: Sequence[_Step], checksums: Mapping[str, str] | None = None
) -> Header:
    """Lay out a file; without checksums, with room for them."""
    here = [step for step in steps if step.file == file]
    kept = {key: text for key, text in metadata(origin).items() if key != KEY}
    narrowed = {step.held.name: step.becomes for step in here if step.becomes is not None}
    parts = {name: part for step in here for name, part in step.parts.items()}
    if narrowed:
        kept[KEY] = metadata_text(narrowed, {name: (checksums or {}).get(name, UNKNOWN) for name in parts})
    return header(parts, kept)


def _write(
    step: _Step, head: Header, scale_rule: str, work: Resumable, told: Callable[[float], None]
) -> dict[str, Any]:
    """Write one tensor; return its checksums and, where it was rounded, its errors, as JSON holds them."""
    held, name, checksums = step.held, step.held.name, Checksums()

    def write(stored: str, at: int, octets: Any) -> None:
        checksums.add(stored, at, octets)
        work.write(step.file, head.starts[stored] + at, octets)

    for part in held.parts.values() if isinstance(held, Narrow) else [held]:
        wrong = problem(part)
        if wrong:
            raise DataError(f"{held.file}: {wrong}")
    tally = None
    if isinstance(held, Narrow):
        (whole,) = step.parts.values()
        for at, octets in widened(held):
            write(name, at, octets)
            told((at + len(octets)) / whole.nbytes)
    elif step.becomes is None:
        at = 0
        for raw in raw_chunks(held):
            write(name, at, raw)
            at += len(raw)
            told(at / held.stored_bytes)
    else:

        def put(suffix: str, at: int, octets: bytes) -> None:
            write(part_name(name, suffix), at, octets)

        tally = asdict(narrow(held, step.becomes, scale_rule, put, told))
    return {"crc32": {stored: checksums.of(stored) for stored in step.parts}, "tally": tally}


def _release() -> str:
    try:
        return version("fewbits")
    except PackageNotFoundError:  # a source tree that is not installed
        return "0+unknown"


def _identity(file: Path) -> list[Any]:
    """Return what tells a source file from another and from its own later state."""
    with file.open("rb") as opened:
        size = opened.read(8)
        digest = hashlib.sha256(size + opened.read(int.from_bytes(size, "little"))).hexdigest()
        about = os.fstat(opened.fileno())
    return [os.path.realpath(file), about.st_size, about.st_mtime_ns, digest]


def _report(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    steps: Sequence[_Step],
    tallies: dict[str, Tally],
    scale_rule: str,
    *,
    restored: bool,
) -> CastReport:
    tensors = tuple(_told(step, tallies.get(step.held.name)) for step in steps)
    groups: dict[str | None, list[CastTensor]] = {}
    for tensor in tensors:
        groups.setdefault(tensor.format, []).append(tensor)
    return CastReport(
        source=os.fspath(source),
        destination=os.fspath(target),
        restored=restored,
        scale_rule=scale_rule,
        formats=tuple(
            _summed(fmt, groups[fmt], tallies) for fmt in sorted(groups, key=lambda f: (f is None, f or ""))
        ),
        tensors=tensors,
    )


def _told(step: _Step, tally: Tally | None) -> CastTensor:
    held = step.held
    about = held.stored if isinstance(held, Narrow) else step.becomes
    return CastTensor(
        tensor=held.name,
        shape=held.stored.shape if isinstance(held, Narrow) else held.shape,
        dtype=held.stored.dtype if isinstance(held, Narrow) else held.dtype,
        format=None if about is None else about.format.name,
        bytes_before=held.stored_bytes,
        bytes_after=sum(part.nbytes for part in step.parts.values()),
        error=None if tally is None else tally.error(),
        sparsity=None if about is None or about.sparsity is None else str(about.sparsity),
    )


def _summed(fmt: str | None, group: Sequence[CastTensor], tallies: dict[str, Tally]) -> CastFormat:
    rounded = [t for t in group if t.error is not None]
    sums = [tallies[t.tensor] for t in rounded]
    whole = Tally(signal=sum(t.signal for t in sums), noise=sum(t.noise for t in sums)).error()
    worst = min(rounded, key=lambda t: t.error.qsnr_db if t.error else inf, default=None)
    return CastFormat(
        format=fmt,
        tensors=len(group),
        bytes_before=sum(t.bytes_before for t in group),
        bytes_after=sum(t.bytes_after for t in group),
        qsnr_db=whole.qsnr_db if rounded else inf if fmt is None else nan,
        worst_tensor=worst.tensor if worst else None,
        worst_qsnr_db=worst.error.qsnr_db if worst and worst.error else nan,
    )
