"""Vectors of distributions and of files: what they are, and what is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from scipy import stats

from fewbits.compare.exploring.vectors import DISTRIBUTIONS, LENGTH, Vectors, vectors_of
from fewbits.errors import ArgumentError, DataError


def taken(data: Any, count: int = 10_000, seed: int = 0, **chosen: Any) -> Vectors:
    return vectors_of(data, count, seed, "floor", **chosen)


def folded(t: Any) -> Any:
    """How likely |N(0, 1)| exp(N(0, 1)) is below t: the mean over the exponent, by Gauss and Hermite."""
    u, w = np.polynomial.hermite_e.hermegauss(60)
    return ((2 * stats.norm.cdf(np.asarray(t)[:, None] * np.exp(-u)) - 1) * w).sum(axis=1) / w.sum()


def test_the_distributions_are_what_they_are_called() -> None:
    x = {name: taken(name, 2000).values for name in DISTRIBUTIONS}
    assert {v.shape for v in x.values()} == {(2000, LENGTH)}
    assert {v.dtype for v in x.values()} == {np.dtype(np.float32)}
    few = {name: v[:, :3].reshape(-1) for name, v in x.items()}
    assert stats.kstest(few["gaussian"], "norm").pvalue > 1e-4
    assert stats.kstest(few["laplace"], "laplace").pvalue > 1e-4
    assert stats.kstest(few["gaussian"], "laplace").pvalue < 1e-4
    # Of each vector the variance is |N(0, 1)|: half-normal; 256 values tell it to 9 %.
    variances = np.square(x["variance"].astype(float)).mean(axis=1)
    assert stats.kstest(variances, "halfnorm").pvalue > 1e-4
    assert stats.kstest(np.abs(few["lognormal"]), folded).pvalue > 1e-4
    assert stats.kstest(np.abs(few["laplace"]), folded).pvalue < 1e-4


def test_a_seed_is_a_seed() -> None:
    assert np.array_equal(taken("laplace", 3).values, taken("laplace", 3).values)
    assert not np.array_equal(taken("laplace", 3).values, taken("laplace", 3, seed=1).values)


def test_pieces_of_an_array_are_whole_rows_of_it_in_random_order(tmp_path: Path) -> None:
    array = np.arange(5 * 600, dtype=np.float64).reshape(5, 600) + 1
    np.save(tmp_path / "a.npy", array)
    found = taken(tmp_path / "a.npy")
    starts = found.values[:, 0].astype(int) - 1
    assert sorted(starts) == [600 * row + 256 * piece for row in range(5) for piece in (0, 1)]
    assert list(starts) != sorted(starts)
    for start, vector in zip(starts, found.values, strict=True):
        assert np.array_equal(vector, array.reshape(-1)[start : start + 256])
    assert found.data.about == "10 of 10 pieces of the rows of one tensor"
    (tmp_path / "a.npy").rename(tmp_path / "A.NPY")
    some = taken(tmp_path / "A.NPY", 4)
    assert (some.data.vectors, some.data.about) == (4, "4 of 10 pieces of the rows of one tensor")


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.float8_e4m3fn]
)
def test_tensors_of_a_checkpoint_are_read_in_any_float(tmp_path: Path, dtype: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    tensors = {
        "a.weight": torch.randn(6, 512, generator=generator).to(dtype),
        "b.weight": torch.randn(3, 256, generator=generator).to(dtype),
        "conv": torch.randn(4, 32, 3, 3, generator=generator).to(dtype),  # rows of 288
        "bias": torch.randn(8, generator=generator).to(dtype),
        "count": torch.ones(2, dtype=torch.int64),
    }
    path = tmp_path / "m.safetensors"
    save_file(tensors, path)
    found = taken(path)
    assert found.data.about == (
        "19 of 19 pieces of the rows of 3 tensors; one tensor with shorter rows left out; one tensor without"
        " floating-point values left out ('count')"
    )
    pieces = {
        name: t.float().reshape(len(t), -1) for name, t in tensors.items() if name not in ("bias", "count")
    }
    rows = {
        bytes(r[i : i + 256].numpy().tobytes())
        for t in pieces.values()
        for r in t
        for i in range(0, r.numel() - 255, 256)
    }
    assert {v.tobytes() for v in found.values} == rows
    only = taken(path, include=["*.weight"], exclude=["b*"])
    assert only.data.vectors == 12
    assert {v.tobytes() for v in only.values} < rows


def test_a_folder_is_read_and_short_rows_set_the_length(tmp_path: Path) -> None:
    save_file({"w": torch.randn(40, 100)}, tmp_path / "a.safetensors")
    save_file({"v": torch.randn(10, 60)}, tmp_path / "b.safetensors")
    found = taken(tmp_path)
    assert found.values.shape == (40, 100)
    assert found.data.length == 100
    assert "one tensor with shorter rows left out" in found.data.about


def test_integers_packed_values_and_scales_are_counted_as_left_out(tmp_path: Path) -> None:
    tensors = {
        "w": torch.randn(8, 256),
        "packed": torch.zeros(64, 256, dtype=torch.uint8),
        "scales": torch.ones(8, 256).to(torch.float8_e8m0fnu),
        "int": torch.ones(64, 512, dtype=torch.int8),
        "mask": torch.ones(4, 256, dtype=torch.bool),
    }
    save_file(tensors, tmp_path / "m.safetensors")
    about = taken(tmp_path / "m.safetensors").data.about
    assert about == (
        "8 of 8 pieces of the rows of one tensor; 4 tensors without floating-point values left out"
        " ('int', 'mask', 'packed' and 1 more)"
    )
    assert "left out" not in taken(tmp_path / "m.safetensors", include=["w"]).data.about


def save(path: Path, array: Any) -> Path:
    np.save(path, array)
    return path


def test_what_cannot_be_taken_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ArgumentError, match="data='gauss' is no distribution and no file; expected one of variance, g"
    ):
        taken("gauss")
    with pytest.raises(DataError, match=r"array of int64; expected floating point"):
        taken(save(tmp_path / "i.npy", np.ones((3, 4), np.int64)))
    with pytest.raises(DataError, match=r"'n.npy' holds NaN, or values beyond float32; take them out of"):
        taken(save(tmp_path / "n.npy", np.array([[1.0, np.nan]])))
    with pytest.raises(DataError, match=r"holds NaN, or values beyond float32"):
        taken(save(tmp_path / "big.npy", np.array([[1.0, 1e300]])))
    with pytest.raises(DataError, match=r"all vectors of .*z.npy are zero"):
        taken(save(tmp_path / "z.npy", np.zeros((3, 4))))
    with pytest.raises(DataError, match=r"tiny.npy are zero, or too small for float32"):
        taken(save(tmp_path / "tiny.npy", np.full((3, 4), 1e-60)))
    with pytest.raises(DataError, match=r"holds no floating-point values"):
        taken(save(tmp_path / "e.npy", np.zeros((3, 0))))
    (tmp_path / "p.npy").write_bytes(b"\x80\x04K\x01.")
    with pytest.raises(DataError, match=r"cannot be read as a .npy array"):
        taken(tmp_path / "p.npy")
    with pytest.raises(DataError, match=r"cannot be read as a .npy array"):
        taken(save(tmp_path / "o.npy", np.array([{}], dtype=object)))
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    with pytest.raises(DataError, match=r"vectors are taken from .npy and .safetensors"):
        taken(tmp_path / "m.gguf")
    with pytest.raises(
        ArgumentError, match=r"`include` and `exclude` choose tensors of a file, and laplace has"
    ):
        taken("laplace", include=["*"])
    with pytest.raises(ArgumentError, match=r"choose tensors of a checkpoint, and .*f.npy is an array"):
        taken(save(tmp_path / "f.npy", np.ones((3, 4))), exclude=["f"])
    save_file({"w": torch.ones(2, 4)}, tmp_path / "m.safetensors")
    save_file({"w": torch.full((2, 4), torch.inf)}, tmp_path / "inf.safetensors")
    with pytest.raises(
        DataError, match=r"'w' holds NaN, or values beyond float32; leave it out by `exclude`"
    ):
        taken(tmp_path / "inf.safetensors")
    with pytest.raises(ArgumentError, match=r"include='x\*' matches no tensor"):
        taken(tmp_path / "m.safetensors", include=["x*"])
    for count in (0, 2.5, True):
        with pytest.raises(ArgumentError, match=f"vectors='{count}'; expected a whole number from 1 up"):
            taken("laplace", count)
    for seed in (-1, 0.5):
        with pytest.raises(ArgumentError, match=f"seed='{seed}'; expected a whole number from 0 up"):
            taken("laplace", seed=seed)


def test_a_single_line_and_a_big_endian_array_are_fine(tmp_path: Path) -> None:
    line = np.linspace(-1, 1, 300)
    assert np.array_equal(taken(save(tmp_path / "l.npy", line)).values, line[None, :256].astype(np.float32))
    swapped = line.reshape(2, 150).astype(">f4")
    assert np.array_equal(np.sort(taken(save(tmp_path / "s.npy", swapped)).values, axis=0), swapped)
