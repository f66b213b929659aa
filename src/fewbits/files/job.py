"""Write all tensors of a checkpoint, in bounded memory; resumable after interruption."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from fewbits.errors import DataError
from fewbits.files.atomic import write_pieces, write_text
from fewbits.files.checkpoint import StoredTensor, chunks, metadata, raw_chunks
from fewbits.files.checksum import UNKNOWN, Checksums, problem
from fewbits.files.destination import Destination
from fewbits.files.encoding import Plan
from fewbits.files.matrix_view import matrix_shape
from fewbits.files.narrow_metadata import KEY, metadata_text
from fewbits.files.narrow_tensor import StoredNarrowTensor
from fewbits.files.piecewise import dequantized_bytes, quantize_tensor, survey_together
from fewbits.files.resumable import Resumable
from fewbits.files.safetensors_header import Header
from fewbits.files.step import Step
from fewbits.files.survey import Survey
from fewbits.kernels.bits.reals import widened
from fewbits.metrics import Tally
from fewbits.typing import Progress
from fewbits.versions import release

_BEGINNING = 1 << 20  # bytes of a file of another kind that tell whether it changed


@dataclass(frozen=True)
class Job:
    """A checkpoint to write: what, where to, and how."""

    source: str | os.PathLike[str]
    to: Destination
    steps: Sequence[Step]
    what: str  # for the progress
    plan: Plan
    scale_rule: str = "floor"

    def run(self, progress: Progress | None) -> dict[str, Tally]:
        """Write all files; return the errors of the tensors that were rounded, by name.

        Raises:
            DataError: the source changed, or holds what a format cannot hold.
            OSError: the operating system reported an error, such as no permission or no space left.
        """
        to, headers = self.to, self._headers()
        replaced = {s.tensor.name: s.values.file for s in self.steps if s.values is not None}
        origins = [*to.files, *replaced.values()]
        identities = [_identity(origin) for origin in origins]
        job: list[object] = [release("fewbits"), self.what, self.scale_rule, identities]
        job += [[file.name, hashlib.sha256(head.octets).hexdigest()] for file, head in headers.items()]
        shared = {name: [t.name for t in group] for name, group in self.plan.shared.items()}
        job += [shared, list(replaced), dict(self.plan.texts)]
        journal_of = to.path if to.path in headers else to.path / "folder"
        with to.made(), Resumable(journal_of, json.dumps(job), headers) as work:
            self._write_all(headers, work, progress)
            if identities != [_identity(origin) for origin in origins]:
                raise DataError(f"{self.source} changed while it was read; start again")
            checksums = {name: crc for record in work.done.values() for name, crc in record["crc32"].items()}
            work.commit(self._headers(checksums), lambda: self._write_texts(headers))
            return {name: Tally(**r["tally"]) for name, r in work.done.items() if r["tally"] is not None}

    def _headers(self, checksums: Mapping[str, str] | None = None) -> dict[Path, Header]:
        """Return the header of each file; without checksums it has placeholders of the same length."""
        if self.plan.headers:
            return dict(self.plan.headers)
        origins: dict[Path, Path] = {}
        for origin, file in self.to.files.items():
            origins.setdefault(file, origin)  # the first of several
        return {file: self._header(origin, file, checksums) for file, origin in origins.items()}

    def _header(self, origin: Path, file: Path, checksums: Mapping[str, str] | None) -> Header:
        here = [step for step in self.steps if step.file == file]
        entries = {name: entry for step in here for name, entry in step.entries.items()}
        texts = {key: text for key, text in _metadata(origin).items() if key != KEY}
        narrow = {step.tensor.name: step.encoding.becomes for step in here if step.encoding is not None}
        if self.plan.described:  # also where nothing is narrow, as in the shard of an embedding: checksums
            texts[KEY] = metadata_text(
                narrow, {name: (checksums or {}).get(name, UNKNOWN) for name in entries}
            )
        return self.plan.header(entries, {**texts, **self.plan.metadata})

    def _write_texts(self, headers: dict[Path, Header]) -> None:
        """Write the index, and the other files that a folder needs to load."""
        self.to.write_index(headers)
        for origin in self.plan.copies:
            with origin.open("rb") as file:
                write_pieces(self.to.path / origin.name, iter(lambda: file.read(1 << 20), b""))
        for name, text in self.plan.texts.items():
            write_text(self.to.path / name, text)

    def _write_all(self, headers: dict[Path, Header], work: Resumable, progress: Progress | None) -> None:
        total, done = sum(step.tensor.stored_bytes for step in self.steps), 0
        together = _Together(self.plan.shared)
        for step in sorted(self.steps, key=lambda step: step.file):  # stable: keeps the order within a file

            def advance(fraction: float, step: Step = step, done: int = done) -> None:
                if progress is not None:
                    progress(self.what, done + fraction * step.tensor.stored_bytes, total)

            if step.tensor.name not in work.done:
                record = self._write(step, headers[step.file], work, together, advance)
                work.finish(step.tensor.name, record)
            advance(1.0)
            done += step.tensor.stored_bytes

    def _write(
        self,
        step: Step,
        head: Header,
        work: Resumable,
        together: _Together,
        advance: Callable[[float], None],
    ) -> dict[str, object]:
        """Write one tensor; return its checksums and, where it was rounded, its errors, as JSON."""
        tensor, name, checksums = step.tensor, step.tensor.name, Checksums()

        def write(entry: str, at: int, octets: bytes | bytearray | memoryview) -> None:
            if self.plan.described:  # others have no place for them, and other orders of writing
                checksums.add(entry, at, octets)
            work.write(step.file, head.starts[entry] + at, octets)

        for part in tensor.parts.values() if isinstance(tensor, StoredNarrowTensor) else [tensor]:
            wrong = problem(part)
            if wrong:
                raise DataError(f"{tensor.file}: {wrong}")
        tally = None
        if isinstance(tensor, StoredNarrowTensor):
            (ordinary,) = step.entries.values()
            for at, octets in dequantized_bytes(tensor):
                write(name, at, octets)
                advance((at + len(octets)) / ordinary.nbytes)
        elif step.encoding is None:
            at = 0
            for raw in raw_chunks(tensor):
                write(name, at, raw)
                at += len(raw)
                advance(at / tensor.stored_bytes)
        else:
            told = asdict(
                quantize_tensor(
                    step.values or tensor,
                    step.encoding.becomes,
                    self.scale_rule,
                    step.encoding.put(write),
                    advance,
                    seen=together.survey(tensor),
                    refuse_nonfinite=self.plan.refuses_nonfinite,
                )
            )
            if step.values is not None:
                told = asdict(_difference(tensor, step.values))
            tally = None if step.encoding.kept else told
        return {"crc32": {entry: checksums.of(entry) for entry in step.entries}, "tally": tally}


class _Together:
    """The largest values of tensors that share an outer scale; each group is read once for it."""

    def __init__(self, shared: Mapping[str, Sequence[StoredTensor]]) -> None:
        self._shared = shared
        self._seen: dict[tuple[str, ...], Survey] = {}

    def survey(self, tensor: StoredTensor) -> Survey | None:
        group = self._shared.get(tensor.name)
        if group is None:
            return None
        key = tuple(t.name for t in group)
        if key not in self._seen:
            self._seen[key] = survey_together(group)
        return self._seen[key]


def _difference(tensor: StoredTensor, values: StoredTensor) -> Tally:
    """Return the errors of what was stored in the place of a tensor."""
    tally, row = Tally(), matrix_shape(tensor.shape)[1]
    for x, y in zip(chunks(tensor, row), chunks(values, row), strict=True):
        tally.add(widened(x), widened(y))
    return tally


def _metadata(file: Path) -> dict[str, str]:
    return metadata(file) if file.suffix.lower() == ".safetensors" else {}


def _identity(file: Path) -> list[str | int]:
    """Return a fingerprint of a source file that changes when the file does."""
    with file.open("rb") as opened:
        size = opened.read(8)
        length = int.from_bytes(size, "little") if file.suffix.lower() == ".safetensors" else _BEGINNING
        digest = hashlib.sha256(size + opened.read(length)).hexdigest()
        about = os.fstat(opened.fileno())
    return [os.path.realpath(file), about.st_size, about.st_mtime_ns, digest]
