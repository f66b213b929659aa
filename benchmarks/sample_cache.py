"""How long does an epoch take from a cache of decoded samples, beside one that decodes them?

Samples are images of 3 x 224 x 224 bytes, noise that was smoothed, compressed by zlib as PNG compresses, each
in a file; decoding reads, inflates, and turns bytes into float32 that are normalized. Peer: the same data set
without the cache, in the same run, in turns, in one process; medians. The page cache of the system has all
files, so that a disk that is slow would favour the cache more.

    python benchmarks/sample_cache.py [--images 128] [--rounds 5] [--json FILE]
"""

from __future__ import annotations

import argparse
import tempfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _alternating import seconds, table, write

from fewbits.train import CachedDataset

SHAPE = (3, 224, 224)


class Images:
    """Compressed images in a folder, decoded when they are asked for."""

    def __init__(self, folder: Path, count: int) -> None:
        self.folder, self.count = folder, count
        random = np.random.default_rng(0)
        for i in range(count):
            image = np.cumsum(random.integers(-3, 4, SHAPE), axis=-1).astype(np.uint8)
            rows = np.diff(image, axis=-1, prepend=image[..., :1] * 0).astype(np.uint8)  # PNG's filter "sub"
            (folder / str(i)).write_bytes(zlib.compress(rows.tobytes(), 6))

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        rows = np.frombuffer(zlib.decompress((self.folder / str(index)).read_bytes()), np.uint8)
        image = np.cumsum(rows.reshape(SHAPE), axis=-1, dtype=np.uint8)
        return (torch.from_numpy(image).float() / 255 - 0.45) / 0.22, index % 1000


def epoch(samples: Any) -> float:
    """Visit all samples in a random order, and return what they sum to."""
    order = torch.randperm(len(samples), generator=torch.Generator().manual_seed(0)).tolist()
    return sum(float(samples[i][0][0, 0, 0]) for i in order)


def main() -> None:
    """Print the table and write the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--images", type=int, default=128, help="default 128")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of which the median counts (default 5)")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    given = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "images").mkdir()
        plain = Images(Path(folder) / "images", given.images)
        ways: dict[str, Any] = {
            "decoded": plain,
            "memory": CachedDataset(plain, fingerprint="noise"),
            "disk": CachedDataset(plain, fingerprint="noise", memory_bytes=0, folder=Path(folder) / "cache"),
        }
        sums = {name: epoch(samples) for name, samples in ways.items()}
        if len(set(sums.values())) > 1:
            raise SystemExit(f"samples differ: {sums}")
        taken = seconds({name: lambda s=samples: epoch(s) for name, samples in ways.items()}, given.rounds)
        stored = sum(path.stat().st_size for path in plain.folder.iterdir())
    rows: list[dict[str, Any]] = [
        {
            "samples": name,
            "images": given.images,
            "milliseconds_per_image": 1e3 * time / given.images,
            "times_decoded": taken["decoded"] / time,
        }
        for name, time in taken.items()
    ]
    print(f"{stored / given.images / 1e3:.0f} kB an image, {4 * np.prod(SHAPE) / 1e3:.0f} kB decoded")
    table(
        ("samples", "ms an image", "times decoded"),
        [(r["samples"], r["milliseconds_per_image"], r["times_decoded"]) for r in rows],
    )
    write(given.json, rows)


if __name__ == "__main__":
    main()
