"""The two passes of conjugate gradients on a stencil: compiled kernels equal the definition bit for bit."""

import itertools
from typing import Any

import numpy as np
import pytest

from fewbits.kernels import native
from fewbits.kernels.bits.stencil import ScaledArray, stride_of, zeros
from fewbits.kernels.reference.stencil import passes as reference
from tests import cases

SHAPES = ((1, 1, 1), (3, 4, 5), (2, 3, 32), (66, 2, 33), (3, 35, 40))
STORAGES = (  # vectors, faces
    ("f64", "f64"),
    ("f32", "f32"),
    ("f16", "f16"),
    ("f16", "f32"),
    ("f16", "i16"),
    ("i16", "i16"),
    ("i16", "f32"),
)


def numbers(shape: tuple[int, ...], storage: str, nx: int, seed: int, spread: float = 2.0) -> ScaledArray:
    """Return random numbers of many magnitudes; zero beyond nx."""
    rng = np.random.default_rng(seed)
    v = rng.standard_normal(shape) * 2.0 ** rng.uniform(-spread, spread, shape)
    v[..., nx:] = 0
    if shape[-1] > 32:
        v[..., :32] *= 1e-33  # a block whose norm is not stored
    found = zeros(shape, storage)
    found.scale = 2.0**-3
    reference.store(found, v if storage == "f64" else v.astype(np.float32))
    return found


def grid(shape: tuple[int, int, int], storage: str) -> reference.Grid:
    nz, ny, nx = shape
    stride = stride_of(nx)
    faces = [
        numbers(s, storage, nx, i)
        for i, s in enumerate([(nz, ny, stride), (nz, ny + 1, stride), (nz + 1, ny, stride)])
    ]
    return reference.Grid(nx, *faces, np.random.default_rng(5).standard_normal((nz, ny)), 0.125)


def same(a: ScaledArray, b: ScaledArray) -> bool:
    alike = a.values.tobytes() == b.values.tobytes() and a.scale == b.scale
    return alike and (a.norms is None or (b.norms is not None and a.norms.tobytes() == b.norms.tobytes()))


def vectors(shape: tuple[int, int, int], storage: str) -> list[ScaledArray]:
    nz, ny, nx = shape
    found = [numbers((nz, ny, stride_of(nx)), storage, nx, 10 + i) for i in range(4)]
    for one, scale in zip(found, (2.0**-3, 2.0**-3, 2.0**-2, 2.0**-14), strict=True):
        one.scale = scale  # of q: some values saturate
    return found


SCALARS = ((0.3, 0.0, 0.9, 0.7), (0.3, -0.6, 0.9, 0.7), (0.0, 0.0, 0.9, 0.7))
PASSES = (STORAGES, SHAPES, SCALARS, native.available_isas())


@pytest.mark.parametrize(("storages", "shape", "scalars", "isa"), cases.pairs(*PASSES), ids=str)
def test_both_passes_equal_the_definition(
    storages: tuple[str, str], shape: tuple[int, int, int], scalars: tuple[float, ...], isa: str
) -> None:
    native.force_isa(isa)
    storage, faces = storages
    a = grid(shape, faces)
    ours, theirs = vectors(shape, storage), vectors(shape, storage)
    x: Any = np.random.default_rng(3).standard_normal(ours[0].values.shape)
    x = x if storage == "f64" else x.astype(np.float32)
    y = x.copy()
    passes = native.StencilPasses(a, 2)
    found = passes.update_direction(*ours, x, *scalars)
    expected = reference.update_direction(a, *theirs, y, *scalars)
    assert found == pytest.approx(expected, rel=1e-13)
    assert all(itertools.starmap(same, zip(ours, theirs, strict=True)))
    assert x.tobytes() == y.tobytes()
    assert passes.update_residual(ours[0], ours[3], 0.5, 0.2) == pytest.approx(
        reference.update_residual(theirs[0], theirs[3], 0.5, 0.2), rel=1e-13
    )
    assert all(itertools.starmap(same, zip(ours, theirs, strict=True)))
    values = np.random.default_rng(4).standard_normal(shape)
    assert passes.pack(values, ours[1], ours[0]) == pytest.approx(
        reference.pack(values, theirs[1], theirs[0]), rel=1e-12
    )
    assert all(itertools.starmap(same, zip(ours, theirs, strict=True)))


@pytest.mark.slow
def test_both_passes_equal_the_definition_in_every_combination() -> None:
    for row in itertools.product(*PASSES):
        test_both_passes_equal_the_definition(*row)


@pytest.mark.parametrize("storage", ["f64", "i16"])
def test_sums_do_not_depend_on_the_number_of_threads(storage: str) -> None:
    shape = (70, 70, 40)
    a, found = grid(shape, storage), []
    for threads in (1, 2, 3):
        parts = vectors(shape, storage)
        x = np.zeros(parts[0].values.shape, np.float64 if storage == "f64" else np.float32)
        found.append(native.StencilPasses(a, threads).update_direction(*parts, x, 0.3, 0.1, 0.9, 0.7))
    assert found[0] == found[1] == found[2]


def test_the_kernels_say_which_pairs_of_storages_they_serve() -> None:
    kinds = ("f64", "f32", "f16", "i16")
    served = {pair for pair in itertools.product(kinds, kinds) if native.serves(*pair)}
    assert served == set(STORAGES)


def test_what_does_not_fit_is_refused() -> None:
    a = grid((3, 4, 5), "f32")
    passes = native.StencilPasses(a, 1)
    r, p, following, q = vectors((3, 4, 5), "f32")
    x = np.zeros(r.values.shape, np.float32)
    with pytest.raises(ValueError, match="workspace of its own"):
        passes.update_direction(r, p, p, q, x, 0.0, 0.0, 1.0, 0.0)
    with pytest.raises(ValueError, match="float32"):
        passes.update_direction(r, p, following, q, x.astype(np.float64), 0.0, 0.0, 1.0, 0.0)
    with pytest.raises(ValueError, match="vectors: "):
        passes.update_direction(*vectors((3, 4, 40), "f32"), x, 0.0, 0.0, 1.0, 0.0)
    with pytest.raises(ValueError, match="no kernel"):
        passes.update_direction(*vectors((3, 4, 5), "f64"), x.astype(np.float64), 0.0, 0.0, 1.0, 0.0)
    with pytest.raises(ValueError, match="stored alike"):
        passes.update_residual(r, vectors((3, 4, 5), "f64")[0], 1.0, 0.0)
