"""Staggered hops and clover blocks in compiled kernels: the bits of the definitions on every CPU."""

from typing import Any

import numpy as np
import pytest

from fewbits.kernels import native
from fewbits.kernels.bits import lattice
from fewbits.kernels.native.lattice import passes
from fewbits.kernels.reference.lattice import clover, spinors, staggered
from fewbits.kernels.reference.lattice import wilson as reference
from fewbits.solvers.lattice import random_links
from fewbits.solvers.lattice.blocks import Blocks
from fewbits.solvers.lattice.order import extent_of, grouped, natural
from tests import cases

DTYPES = ("float64", "float32", "int16", "int8")
SHAPES = ((4, 4, 4, 4), (4, 8, 4, 12))


def arithmetic(dtype: str) -> Any:
    return np.float64 if dtype == "float64" else np.float32


def stored(values: Any, dtype: str) -> tuple[Any, Any, lattice.Field]:
    """Return codes and norms of (T, Z, Y, X, n) values, and the same in the order of the kernels."""
    codes, norms = spinors.encode_spinors(values.astype(arithmetic(dtype)), dtype)
    of_groups = None if norms is None else grouped(norms[..., None])[:, 0]
    return codes, norms, lattice.Field(grouped(codes), of_groups)


def links(shape: Any, numbers: int, dtype: str) -> tuple[Any, Any]:
    codes = lattice.encode_links(lattice.compress_links(random_links(shape, seed=1), numbers), dtype)
    groups = grouped(np.moveaxis(codes, 0, 4).reshape(*shape, -1))
    return codes, groups.reshape(len(groups), 4, numbers, lattice.SITES)


def values(shape: Any, n: int, seed: int) -> Any:
    v = np.random.default_rng(seed).standard_normal((*shape, n))
    v[0, 0, 0, 0] = 0
    v[1, 0, 1, 0] *= 2.0**-110
    return v


@pytest.mark.parametrize("isa", native.available_isas())
@pytest.mark.parametrize(("shape", "numbers", "dtype"), cases.pairs(SHAPES, (18, 12), DTYPES))
def test_staggered_hops_are_the_definition_bit_for_bit(
    shape: Any, numbers: int, dtype: str, isa: str
) -> None:
    native.force_isa(isa)
    codes, packed = links(shape, numbers, dtype)
    chi, norms, field = stored(values(shape, 6, 0), dtype)
    before, before_norms, out = stored(values(shape, 6, 1), dtype)
    own = spinors.decode_spinors(chi, norms)
    image = staggered.stored_hop(codes, chi, norms, own, 0.3, -0.5)
    layout = lattice.Layout(extent_of(shape))
    found = lattice.zeros(layout.groups, dtype, 6)
    sums = passes.hop(layout, packed, 0.3, field, found, hopping=-0.5, threads=1)
    number = arithmetic(dtype)
    after = spinors.decode_spinors(before, before_norms) - number(0.25) * image
    both = passes.hop(layout, packed, 0.3, field, out, hopping=-0.5, alpha=0.25, threads=2)
    for result, expected, length2 in ((found, image, sums[0]), (out, after, both[0])):
        new, new_norms = spinors.encode_spinors(expected, dtype)
        assert np.array_equal(natural(result.values, shape), new)
        if new_norms is not None and result.norms is not None:
            assert np.array_equal(natural(result.norms[:, None], shape)[..., 0], new_norms)
        wide = spinors.decode_spinors(new, new_norms).astype(np.float64)
        assert length2 == pytest.approx((wide**2).sum(), rel=1e-14)
    wrong = staggered.stored_hop(codes, chi, norms, own, 0.3, 0.5)
    assert np.abs(wrong - image).max() > 0.1


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("numbers", [18, 12, 8])
def test_staggered_hops_are_the_formula_and_the_same_on_every_isa(numbers: int, dtype: str) -> None:
    shape = (4, 4, 8, 4)
    codes, packed = links(shape, numbers, dtype)
    chi, norms, field = stored(values(shape, 6, 0), dtype)
    wide = np.ascontiguousarray(spinors.decode_spinors(chi, norms), np.float64).view(complex)
    matrices = lattice.expand_links(lattice.decode_links(codes))
    exact = staggered.staggered(matrices, wide, 0.3).view(np.float64)
    results = []
    for isa in native.available_isas():
        native.force_isa(isa)
        out = lattice.zeros(len(packed), dtype, 6)
        layout = lattice.Layout(extent_of(shape))
        results.append((passes.hop(layout, packed, 0.3, field, out, hopping=-0.5, threads=1), out))
    (sums, first), *others = results
    assert all(one == sums and np.array_equal(out.values, first.values) for one, out in others)
    found = natural(first.values, shape).astype(np.float64)
    half_a_step: Any = 0.0
    if first.norms is not None:
        scale = natural(first.norms[:, None], shape)
        found, half_a_step = found * scale, 0.5 * scale
    unit = 2.0**-53 if dtype == "float64" else 2.0**-24
    bound = (64 if numbers == 8 else 4) * unit * 12 * np.abs(wide).max()
    assert (np.abs(found - exact) <= bound + half_a_step).all()


@pytest.mark.parametrize("isa", native.available_isas())
@pytest.mark.parametrize("dtype", DTYPES)
def test_blocks_on_a_spinor_and_on_a_result_are_the_definition_bit_for_bit(dtype: str, isa: str) -> None:
    native.force_isa(isa)
    shape, generator = (4, 4, 4, 8), np.random.default_rng(2)
    a = generator.standard_normal((*shape, 2, 6, 6, 2)).view(complex)[..., 0]
    blocks = Blocks.packed(a + a.conj().swapaxes(-1, -2), dtype)
    numbers = natural(blocks.values.reshape(-1, 72, 16), shape).reshape(*shape, 2, 36)
    of_blocks = None if blocks.norms is None else natural(blocks.norms, shape)
    _, packed = links(shape, 12, dtype)
    psi, norms, field = stored(values(shape, 24, 0), dtype)
    own = spinors.decode_spinors(psi, norms)
    layout, number = lattice.Layout(extent_of(shape)), arithmetic(dtype)

    def multiplied(by: Blocks, diagonal: float, *, on_result: bool) -> Any:
        """Return the codes of the product: without hops, and with gamma_5 where ``own`` is multiplied."""
        out = lattice.zeros(layout.groups, dtype)
        options: dict[str, Any] = {"chiral": not on_result, "on_result": on_result}
        passes.hop(layout, packed, diagonal, field, out, hopping=0.0, blocks=by, threads=1, **options)
        return natural(out.values, shape)

    chiral = np.repeat(reference.GAMMA_5, 6).astype(number) * clover.multiply(numbers, of_blocks, own)
    assert np.array_equal(multiplied(blocks, 1.0, on_result=False), spinors.encode_spinors(chiral, dtype)[0])
    whole = clover.multiply(numbers, of_blocks, number(0.75) * own)
    codes = spinors.encode_spinors(whole, dtype)[0]
    assert np.array_equal(multiplied(blocks, 0.75, on_result=True), codes)
    transposed = Blocks.packed(a.conj() + a.swapaxes(-1, -2), dtype)
    assert not np.array_equal(multiplied(transposed, 0.75, on_result=True), codes)


def test_blocks_that_do_not_fit_are_refused() -> None:
    field, out = lattice.zeros(1, "int16"), lattice.zeros(1, "int16")
    packed, layout = np.zeros((1, 4, 12, 16), np.int16), lattice.Layout((1, 1, 1, 1))
    values_, norms = np.zeros((1, 2, 36, 16), np.int16), np.zeros((1, 2, 16), np.float32)
    for blocks, said in (
        ((values_, None), "integers have norms"),
        ((values_.astype(np.float32), None), "type of the fields"),
        ((values_[:, :1].copy(), norms), "two blocks of 36 numbers"),
        ((values_, norms[:, :1].copy()), "a block needs one norm"),
    ):
        with pytest.raises(ValueError, match=said):
            passes.hop(layout, packed, 1.0, field, out, blocks=blocks, threads=1)
    colours = [lattice.zeros(1, "int16", 6) for _ in range(2)]
    with pytest.raises(ValueError, match="24 numbers"):
        passes.hop(layout, packed, 1.0, *colours, blocks=(values_, norms), threads=1)
    with pytest.raises(ValueError, match="as many numbers"):
        passes.hop(layout, packed, 1.0, field, colours[0], threads=1)
    with pytest.raises(ValueError, match="halo"):
        passes.hop(
            lattice.Layout((1, 1, 1, 1), (True, False, False, False)), packed, 1.0, field, out, threads=1
        )
