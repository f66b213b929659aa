"""A data set whose samples are decoded once."""

from __future__ import annotations

import operator
import warnings
from hashlib import blake2b
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar, cast
from zlib import crc32

import torch
from torch.utils.data import Dataset, get_worker_info

from fewbits.errors import ArgumentError, MissingDependencyError
from fewbits.files.nested import from_bytes, to_bytes

if TYPE_CHECKING:
    from fewbits.train.samples.sample_store import SampleStore

_CHECKED = 4  # bytes of the checksum before an entry
_WORKERS = 64  # of a loader, that count on their own; more share counters

Sample = TypeVar("Sample")
_Sample_co = TypeVar("_Sample_co", covariant=True)


class _Samples(Protocol[_Sample_co]):
    """A data set with numbered samples."""

    def __len__(self) -> int: ...
    def __getitem__(self, index: int) -> _Sample_co: ...


class CacheStatistics(NamedTuple):
    """Where samples came from, counted over this process and the workers of its loaders."""

    memory: int  # found in memory
    disk: int  # found on the disk
    decoded: int  # asked of the data set
    damaged: int  # found on the disk with other bytes than were written; decoded again
    kept: int  # written to the disk


class CachedDataset(Dataset[Sample]):
    """Keeps the decoded samples of a data set in memory up to a bound, then on the local disk up to another.

    The multi-level data cache of Shi et al., Towards Scalable Distributed Training of Deep Learning on Public
    Cloud Clusters, 2021. Bytes are kept, of tensors and what else a sample consists of, not objects: nobody
    can change what another one gets, and nothing is ever unpickled. Every entry on the disk has a checksum;
    one that is damaged is decoded again, with a warning. Both levels keep what came first, since an epoch
    visits all samples.

    All processes of a node can use one folder, and so can the workers of a loader, each with memory of its
    own: keep them between epochs by ``DataLoader(..., persistent_workers=True)``. What is random, as
    augmentation is, belongs behind the cache.

    Args:
        dataset: with ``len`` and numbered samples: tensors, NumPy arrays, numbers, texts, bytes, None, and
            tuples, lists and dicts of them.
        fingerprint: a text that changes with the data set: its version, the size of its images, how it is
            decoded. Samples that were kept under another one are removed.
        memory_bytes: of samples in memory, in each process that loads.
        folder: on a local disk, for this data set alone; None: memory only.
        disk_bytes: that the folder may take, but for the index's own log of a few MB.

    Raises:
        ArgumentError: no fingerprint, or a bound below zero.
        MissingDependencyError: a folder without diskcache.

    >>> digits = CachedDataset([(torch.ones(8, 8), 3), (torch.zeros(8, 8), 5)], fingerprint="two digits")
    >>> digits[1][1], digits[1][1], digits.statistics().memory
    (5, 5, 1)
    """

    def __init__(
        self,
        dataset: _Samples[Sample],
        *,
        fingerprint: str,
        memory_bytes: int = 1 << 30,
        folder: str | Path | None = None,
        disk_bytes: int = 1 << 34,
    ) -> None:
        given: object = fingerprint  # whatever a caller without types passes
        if not (isinstance(given, str) and given):
            raise ArgumentError(
                f"fingerprint={given!r}; give a text that changes with the data set, as its version and how"
                " it is decoded"
            )
        bounds: dict[str, object] = {"memory_bytes": memory_bytes, "disk_bytes": disk_bytes}
        for name, bound in bounds.items():
            if not (isinstance(bound, Real) and float(bound) >= 0):
                raise ArgumentError(f"{name}={bound!r}; expected 0 or more")
        self.dataset, self.memory_bytes, self.disk_bytes = dataset, memory_bytes, disk_bytes
        self.folder = None if folder is None else Path(folder)
        self.fingerprint = blake2b(fingerprint.encode(), digest_size=16).hexdigest()
        # Shared with workers, of which each adds to a row of its own.
        self._counts = torch.zeros(_WORKERS + 1, len(CacheStatistics._fields), dtype=torch.int64)
        self._counts.share_memory_()
        self._forget()
        if self.folder is not None:
            _check_dependency()

    def _forget(self) -> None:
        self._memory: dict[int, bytes] = {}
        self._used = 0
        self._store: SampleStore | None = None
        self._said: set[str] = set()

    def __getstate__(self) -> dict[str, Any]:
        """Return what a worker begins with, that is started anew: no samples, and no open files."""
        left_out = ("_memory", "_used", "_store", "_said")
        return {name: value for name, value in self.__dict__.items() if name not in left_out}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Begin without samples in memory."""
        self.__dict__.update(state)
        self._forget()

    def __len__(self) -> int:
        """Return how many samples the data set has."""
        return len(self.dataset)

    def __getitem__(self, index: int) -> Sample:
        """Return a sample; from the cache where that has it.

        Raises:
            ArgumentError: the sample has something in it that cannot be kept.
            IndexError: as the data set does, and for what counts from the end beyond its first sample.
        """
        i = operator.index(index)
        i += len(self) if i < 0 else 0
        if i < 0:  # the data set would count from its end once more
            raise IndexError(f"sample {index} of {len(self)}; expected {-len(self)} or more")
        octets = self._memory.get(i)
        if octets is not None:
            self._count("memory")
            return cast(Sample, from_bytes(octets))
        octets = self._from_disk(i)
        if octets is None:
            sample = self.dataset[i]
            octets = to_bytes(sample)
            self._count("decoded")
            self._keep(i, octets)
        else:
            self._count("disk")
            self._remember(i, octets)
        return cast(Sample, from_bytes(octets))

    def statistics(self) -> CacheStatistics:
        """Return where samples came from since the data set was made."""
        return CacheStatistics(*self._counts.sum(0).tolist())

    def _count(self, name: str) -> None:
        worker = get_worker_info()
        row = 0 if worker is None else 1 + worker.id % _WORKERS
        self._counts[row, CacheStatistics._fields.index(name)] += 1

    def _remember(self, index: int, octets: bytes) -> bool:
        fits = self._used + len(octets) <= self.memory_bytes
        if fits:
            self._memory[index] = octets
            self._used += len(octets)
        return fits

    def _keep(self, index: int, octets: bytes) -> None:
        self._remember(index, octets)
        store = self._open()
        if store is None:
            return
        key = self._key(index)
        try:
            if store.put(key, _checksum(key, octets) + octets):
                self._count("kept")
        except self._errors() as error:
            self._say(f"samples are not kept in {self.folder}: {error}; they are decoded in each epoch")

    def _from_disk(self, index: int) -> bytes | None:
        store = self._open()
        if store is None:
            return None
        key = self._key(index)
        try:
            entry = store.get(key)
        except self._errors() as error:
            self._say(f"samples cannot be read from {self.folder}: {error}; they are decoded again")
            return None
        if entry is None:
            return None
        octets = entry[_CHECKED:]
        if entry[:_CHECKED] != _checksum(key, octets):
            self._count("damaged")
            self._say(f"sample {index} in {self.folder} was damaged, and is decoded again; check the disk")
            return None
        return octets

    def _key(self, index: int) -> str:
        return f"{self.fingerprint}/{index}"

    def _open(self) -> SampleStore | None:
        """Return the folder's store, None where there is none or it cannot be used."""
        if self.folder is None or _UNUSABLE in self._said:
            return None
        if self._store is None:
            from fewbits.train.samples.sample_store import SampleStore

            try:
                self._store = SampleStore(self.folder, self.fingerprint, self.disk_bytes)
            except self._errors() as error:
                self._said.add(_UNUSABLE)
                self._say(
                    f"the cache in {self.folder} cannot be used: {error}; remove the folder, or name another"
                )
        return self._store

    def _errors(self) -> tuple[type[Exception], ...]:
        from fewbits.train.samples.sample_store import ERRORS

        return ERRORS

    def _say(self, text: str) -> None:
        """Warn once of each kind of trouble in this process."""
        if text not in self._said:
            self._said.add(text)
            warnings.warn(text, stacklevel=4)


_UNUSABLE = "unusable"


def _checksum(key: str, octets: bytes) -> bytes:
    """Return a checksum of an entry and of its place."""
    return crc32(octets, crc32(key.encode())).to_bytes(_CHECKED, "little")


def _check_dependency() -> None:
    try:
        import diskcache  # noqa: F401  # asked here, and not in the first epoch
    except ImportError:
        raise MissingDependencyError(
            "a folder for samples needs diskcache, which is not installed: pip install 'fewbits[cache]', or"
            " leave the folder out"
        ) from None
