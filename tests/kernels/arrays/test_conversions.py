"""Blocks along any axis, work in pieces: neither may show in a result."""

import numpy as np
import pytest

from fewbits import kernels
from fewbits.errors import ArgumentError
from fewbits.formats import Element, parse
from fewbits.kernels.arrays import conversions
from tests import cases


def rounded(
    x: cases.Singles, fmt: cases.Format, axis: int = -1, seed: int = 0, **choices: str
) -> cases.Singles:
    """Return ``x`` rounded by the kernels."""
    return kernels.fake_quantize(x, fmt, axis, kernels.options(fmt, seed=seed, **choices))


@pytest.mark.parametrize("fmt", cases.FORMATS, ids=cases.label)
def test_every_axis_equals_the_last_axis_of_the_moved_array(fmt: cases.Format) -> None:
    for shape in cases.SHAPES[1:]:
        x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
        x = np.abs(x) if isinstance(fmt, Element) and fmt.min >= 0 else x
        for axis in range(-len(shape), len(shape)):
            moved = np.ascontiguousarray(np.moveaxis(x, axis, -1))
            expected = np.moveaxis(rounded(moved, fmt), -1, axis)
            found = rounded(x, fmt, axis)
            assert (found.shape, found.dtype) == (shape, np.float32)
            assert np.array_equal(found, expected), (shape, axis)


ALONE = tuple(f for f in cases.BLOCKED if isinstance(f.size, int) and getattr(f, "outer", None) is None)


@pytest.mark.parametrize("fmt", ALONE, ids=cases.label)
def test_a_partial_last_block_is_a_block_of_fewer_values(fmt: cases.Block) -> None:
    size = int(fmt.size)
    for n in cases.SIZES[1:]:
        x = cases.blocks(3, n, seed=n)
        whole = [rounded(np.ascontiguousarray(x[:, i : i + size]), fmt) for i in range(0, n, size)]
        assert np.array_equal(rounded(x, fmt), np.concatenate(whole, axis=-1)), n


@pytest.mark.parametrize("choice", [{}, {"rounding": "stochastic"}, {"nonfinite": "saturate"}], ids=str)
@pytest.mark.parametrize("fmt", cases.FORMATS, ids=cases.label)
def test_the_size_of_the_pieces_does_not_show(
    fmt: cases.Format, choice: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.random.default_rng(2).standard_normal((9, 5, 50)).astype(np.float32)
    x = np.abs(x) if isinstance(fmt, Element) and fmt.min >= 0 else x
    if choice.get("nonfinite") == "saturate":
        x[4, 2, 3], x[8, 0, 0] = np.inf, np.nan
    for axis in (0, 1, 2):
        whole = rounded(x, fmt, axis, seed=5, **choice)
        for piece in (1, 60, 777):
            monkeypatch.setattr(conversions, "_CHUNK", piece)
            # Beyond 2^127 e8m0 is NaN.
            assert np.array_equal(rounded(x, fmt, axis, seed=5, **choice), whole, equal_nan=True)
        monkeypatch.undo()


@pytest.mark.parametrize("fmt", [f for f in cases.BLOCKED if f.scale.has_nan], ids=cases.label)
def test_a_nan_in_one_piece_reaches_exactly_what_shares_its_scale(
    fmt: cases.Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.random.default_rng(2).standard_normal((9, 70)).astype(np.float32)
    x[7, 30] = np.nan
    whole = rounded(x, fmt, nonfinite="block_nan")
    monkeypatch.setattr(conversions, "_CHUNK", 70)
    assert np.array_equal(rounded(x, fmt, nonfinite="block_nan"), whole, equal_nan=True)
    assert np.isnan(whole[7, 30])
    assert np.isnan(whole).all() == (getattr(fmt, "size", 0) == "tensor")


@pytest.mark.parametrize("name", ["int8_tensor", "fp8_e4m3_tensor", "nvfp4"])
def test_a_given_amax_makes_a_part_round_as_in_the_whole(name: str) -> None:
    fmt = parse(name)
    x = np.random.default_rng(3).standard_normal((8, 64)).astype(np.float32)
    chosen = kernels.options(fmt)
    whole = kernels.fake_quantize(x, fmt, -1, chosen)
    amax = float(np.abs(x).max())
    parts = [kernels.fake_quantize(x[i : i + 2], fmt, -1, chosen, amax) for i in range(0, 8, 2)]
    assert np.array_equal(np.concatenate(parts), whole)
    alone = [kernels.fake_quantize(x[i : i + 2], fmt, -1, chosen) for i in range(0, 8, 2)]
    assert not np.array_equal(np.concatenate(alone), whole)


@pytest.mark.parametrize("fmt", cases.FORMATS, ids=cases.label)
def test_limits_bound_every_result_and_tell_saturated_values(fmt: cases.Format) -> None:
    x = np.random.default_rng(4).standard_normal((4, 3, 70)).astype(np.float32) * 300
    x = np.abs(x) if isinstance(fmt, Element) and fmt.min >= 0 else x
    chosen = kernels.options(fmt, overflow="saturate")
    for axis in (0, 1, -1):
        limit = kernels.limits(x, fmt, axis, chosen)
        y = kernels.fake_quantize(x, fmt, axis, chosen)
        largest = np.broadcast_to(limit, x.shape)
        inside = np.abs(x) <= largest * (1 - 2.0**-20)
        assert np.all(np.abs(y[inside]) <= largest[inside] * (1 + 2.0**-20))
        if fmt.element.min == -fmt.element.max:
            assert np.all(np.abs(y) <= largest * (1 + 2.0**-20))
    assert kernels.limits(np.array(3.0, np.float32), fmt, 0, chosen).shape == ()


@pytest.mark.parametrize("axis", [2, -3, 5, True])
def test_an_axis_that_is_none_is_refused_by_all(axis: int) -> None:
    fmt = parse("mxfp4")
    x, chosen = np.ones((3, 40), np.float32), kernels.options(fmt)
    q = kernels.quantize(x, fmt, 1, chosen)
    for function in (kernels.quantize, kernels.fake_quantize, kernels.limits, kernels.tally):
        with pytest.raises(ArgumentError, match=rf"^axis={axis} is (out of range|not an integer)"):
            function(x, fmt, axis, chosen)
    with pytest.raises(ArgumentError, match=rf"^axis={axis} is (out of range|not an integer)"):
        kernels.dequantize(q, fmt, (3, 40), axis, np.float32)
