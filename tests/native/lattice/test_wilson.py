"""The passes over a lattice against the definition: the same codes, and sums within a few units."""

from itertools import product
from typing import Any

import numpy as np
import pytest

from fewbits.kernels import native
from fewbits.kernels.bits import lattice
from fewbits.kernels.native.lattice import passes
from fewbits.kernels.reference.lattice import spinors
from fewbits.kernels.reference.lattice import wilson as reference
from fewbits.solvers.lattice import random_links
from fewbits.solvers.lattice.order import extent_of, grouped, natural
from tests import cases

DTYPES = ("float64", "float32", "int16", "int8")
MASS = 0.1
UNIT = {"float64": 2.0**-53, "float32": 2.0**-24, "int16": 2.0**-24, "int8": 2.0**-24}


def layout(shape: Any) -> lattice.Layout:
    return lattice.Layout(extent_of(shape))


def values(shape: Any, seed: int) -> Any:
    """Return (groups, 24, 16) float64; one site is zero, one is tiny."""
    v = np.random.default_rng(seed).standard_normal((*shape, 24))
    v[0, 0, 0, 0] = 0
    v[1, 0, 1, 0] *= 2.0**-110
    return grouped(v)


def links(shape: Any, numbers: int, dtype: str) -> Any:
    """Return links as they are stored, in groups, and the matrices that these mean."""
    stored = lattice.encode_links(lattice.compress_links(random_links(shape, seed=1), numbers), dtype)
    groups = grouped(np.moveaxis(stored, 0, 4).reshape(*shape, -1))
    matrices = lattice.expand_links(lattice.decode_links(stored))
    return groups.reshape(len(groups), 4, numbers, lattice.SITES), matrices


def decoded(field: lattice.Field) -> Any:
    """Return what a field means, (groups, 24, 16) float64."""
    if field.norms is None:
        return field.values.astype(np.float64)
    return (field.values.astype(np.float32) * field.norms[:, None]).astype(np.float64)


def taken(shape: Any, dtype: str, seed: int, threads: int = 1) -> lattice.Field:
    groups = int(np.prod(shape)) // lattice.SITES
    field, other = lattice.zeros(groups, dtype), lattice.zeros(groups, dtype)
    passes.store_residual(layout(shape), values(shape, seed), field, other, threads=threads)
    return field


def same(a: lattice.Field, b: lattice.Field) -> bool:
    return np.array_equal(a.values, b.values) and (a.norms is None or np.array_equal(a.norms, b.norms))


def half_a_step(field: lattice.Field) -> Any:
    """Return how far rounding moves a value, (groups, 1, 16)."""
    return 0 if field.norms is None else 0.5 * field.norms[:, None]


@pytest.mark.parametrize("shape", [(2, 2, 2, 2), (4, 6, 2, 8)])
def test_there_and_back_is_the_same_order(shape: Any) -> None:
    v = np.random.default_rng(0).standard_normal((*shape, 5))
    assert np.array_equal(natural(grouped(v), shape), v)


@pytest.mark.parametrize("isa", native.available_isas())
@pytest.mark.parametrize("dtype", DTYPES)
def test_spinors_are_stored_as_defined(dtype: str, isa: str) -> None:
    native.force_isa(isa)
    shape = (4, 2, 6, 2)
    field = taken(shape, dtype, 0)
    wide = natural(values(shape, 0), shape)
    codes, norms = spinors.encode_spinors(wide, dtype)
    assert np.array_equal(natural(field.values, shape), codes)
    if norms is not None:
        assert field.norms is not None
        assert np.array_equal(natural(field.norms[:, None], shape)[..., 0], norms)


HOPS = (((2, 2, 2, 2), (2, 4, 6, 8), (4, 2, 8, 2)), (18, 12, 8), DTYPES)


@pytest.mark.parametrize(("shape", "numbers", "dtype"), cases.pairs(*HOPS))
def test_the_operator_is_the_definition_on_every_isa(shape: Any, numbers: int, dtype: str) -> None:
    packed, matrices = links(shape, numbers, dtype)
    field, results = taken(shape, dtype, 0), []
    psi = np.ascontiguousarray(natural(decoded(field), shape)).view(complex).reshape(*shape, 4, 3)
    exact = reference.hermitian(matrices, psi, MASS).view(float).reshape(*shape, 24)
    for isa in native.available_isas():
        native.force_isa(isa)
        out = lattice.zeros(len(packed), dtype)
        length2, _ = passes.hop(layout(shape), packed, 4 + MASS, field, out, threads=1)
        assert length2 == pytest.approx((decoded(out) ** 2).sum(), rel=1e-13)
        results.append((out, length2))
    first, sum_of_first = results[0]
    assert all(same(first, out) and length2 == sum_of_first for out, length2 in results)
    # A sum has at most 12 times the largest value, and rounds no more than a few times at that size; the rows
    # that 8 numbers leave out are less exact.
    bound = (64 if numbers == 8 else 4) * UNIT[dtype] * 12 * np.abs(psi).max()
    assert (np.abs(decoded(first) - grouped(exact)) <= bound + half_a_step(first)).all()


@pytest.mark.slow
def test_the_operator_is_the_definition_in_every_combination() -> None:
    for row in product(*HOPS):
        test_the_operator_is_the_definition_on_every_isa(*row)


@pytest.mark.parametrize("isa", native.available_isas())
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_other_passes_do_what_they_say(dtype: str, isa: str) -> None:
    native.force_isa(isa)
    shape = (2, 4, 2, 6)
    extent, (packed, _) = layout(shape), links(shape, 12, dtype)
    r, p, image = taken(shape, dtype, 0), taken(shape, dtype, 1), lattice.zeros(len(packed), dtype)
    passes.hop(extent, packed, 4 + MASS, p, image, threads=1)
    old_r, old_p = decoded(r), decoded(p)
    small = 64 * UNIT[dtype]

    _, mixed = passes.hop(extent, packed, 4 + MASS, p, r, alpha=0.25, threads=1)
    step = half_a_step(r) + 0.25 * half_a_step(image) + small * 12
    assert (np.abs(decoded(r) - (old_r - 0.25 * decoded(image))) <= step).all()
    assert mixed == pytest.approx((old_r * decoded(r)).sum(), rel=1e-13)

    x = np.ones(r.values.shape, np.float64 if dtype == "float64" else np.float32)
    length2 = passes.update_direction(extent, r, p, x, alpha=0.5, gamma=0.75, beta=-0.5, threads=1)
    assert np.abs(x - (1 + 0.5 * old_p)).max() <= small
    assert (np.abs(decoded(p) - (0.75 * decoded(r) - 0.5 * old_p)) <= half_a_step(p) + small).all()
    assert length2 == pytest.approx((decoded(p) ** 2).sum(), rel=1e-13)

    before = x.copy()
    passes.update_solution(extent, p, x, alpha=-2.0, threads=1)
    assert np.abs(x - (before - 2 * decoded(p))).max() <= small

    _, product = passes.store_residual(extent, values(shape, 3), r, p, threads=1)
    assert product == pytest.approx((decoded(r) * decoded(p)).sum(), rel=1e-13)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_number_of_threads_changes_no_bit(dtype: str) -> None:
    shape = (4, 8, 8, 16)  # enough sites that two threads share them
    packed, _ = links(shape, 12, dtype)
    found = []
    for threads in (1, 2, 3):
        field, out = taken(shape, dtype, 0, threads), lattice.zeros(len(packed), dtype)
        sums = passes.hop(layout(shape), packed, 4 + MASS, field, out, threads=threads)
        found.append((out, sums))
    assert all(same(out, found[0][0]) and sums == found[0][1] for out, sums in found)


def test_what_is_not_finite_shows_in_the_sum() -> None:
    shape = (2, 2, 2, 2)
    for bad in (np.nan, np.inf):
        wide = values(shape, 0)
        wide[0, 3, 5] = bad
        field, other = lattice.zeros(1, "int16"), lattice.zeros(1, "int16")
        length2, _ = passes.store_residual(layout(shape), wide, field, other, threads=1)
        assert not np.isfinite(length2)


def test_arrays_that_do_not_fit_are_refused() -> None:
    a, b, c = lattice.zeros(1, "int16"), lattice.zeros(1, "int16"), lattice.zeros(2, "int16")
    packed = np.zeros((1, 4, 12, 16), np.int16)
    calls = (
        (packed, a, a, "its own image"),
        (packed, a, c, "24 numbers"),
        (packed, lattice.zeros(1, "float32"), b, "one type"),
        (packed[:, :, :7].copy(), a, b, "18, 12 or 8"),
        (packed.astype(np.float32), a, b, "type of the fields"),
        (packed, lattice.Field(a.values), b, "integers have norms"),
        (
            packed.astype(np.int32),
            lattice.Field(a.values.astype(np.int32)),
            b,
            "float64, float32, int16 or int8",
        ),
    )
    for links_, field, out, said in calls:
        with pytest.raises(ValueError, match=said):
            passes.hop(lattice.Layout((1, 1, 1, 1)), links_, 4.0, field, out, threads=1)
    with pytest.raises(ValueError, match="from 1 to 32767"):
        passes.hop(lattice.Layout((1, 1, 1, 0)), packed, 4.0, a, b, threads=1)
    with pytest.raises(ValueError, match="x must be float32"):
        passes.update_solution(lattice.Layout((1, 1, 1, 1)), a, np.zeros(384), alpha=1.0, threads=1)


@pytest.mark.parametrize("isa", native.available_isas())
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_sites_of_one_parity_get_what_all_get_and_the_others_are_left_alone(dtype: str, isa: str) -> None:
    native.force_isa(isa)
    shape = (4, 4, 8, 4)
    extent, (packed, _) = layout(shape), links(shape, 12, dtype)
    field, whole = taken(shape, dtype, 0), lattice.zeros(len(packed), dtype)
    passes.hop(extent, packed, 4 + MASS, field, whole, threads=2)
    place = np.indices(extent.extent).sum(0).reshape(-1) % 2
    for parity in (0, 1):
        part = lattice.zeros(len(packed), dtype)
        length2, _ = passes.hop(extent, packed, 4 + MASS, field, part, parity=parity, threads=2)
        assert np.array_equal(part.values[place == parity], whole.values[place == parity])
        assert not part.values[place != parity].any()
        assert length2 == pytest.approx((decoded(part) ** 2).sum(), rel=1e-13)
        p, x = (
            taken(shape, dtype, 1),
            np.ones(field.values.shape, packed.dtype.type if dtype == "float64" else np.float32),
        )
        before = decoded(p)
        passes.update_direction(
            extent, field, p, x, alpha=0.5, gamma=0.75, beta=-0.5, parity=parity, threads=2
        )
        assert np.array_equal(decoded(p)[place != parity], before[place != parity])
        assert (x[place != parity] == 1).all()
        other, y = taken(shape, dtype, 1), np.ones_like(x)
        passes.update_direction(extent, field, other, y, alpha=0.5, gamma=0.75, beta=-0.5, threads=2)
        assert np.array_equal(p.values[place == parity], other.values[place == parity])
        assert np.array_equal(x[place == parity], y[place == parity])


def test_a_parity_needs_an_even_number_of_groups_along_each_axis() -> None:
    shape = (4, 4, 2, 4)
    packed, _ = links(shape, 12, "float32")
    field, out = taken(shape, "float32", 0), lattice.zeros(len(packed), "float32")
    for parity, extent in ((0, layout(shape)), (2, lattice.Layout((2, 2, 1, 2)))):
        with pytest.raises(ValueError, match="parity"):
            passes.hop(extent, packed, 4.0, field, out, parity=parity, threads=1)
