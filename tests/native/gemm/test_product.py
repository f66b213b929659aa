"""Products by panels: integers against their definition, others against float64, in every corner."""

import numpy as np
import pytest
import torch

from fewbits import kernels
from fewbits.formats import parse
from fewbits.kernels import native, ops
from fewbits.kernels.arrays.products import _common_block, rounded_product
from fewbits.kernels.bits.options import Choices, Options, decide, options
from fewbits.kernels.reference.gemm.product import product as definition

# Around 4 and 6 rows, 48 and 64 columns, the 128 lines and 256 values that are packed together, and items.
SHAPES = (
    *((m, 33, 65) for m in (1, 2, 5, 6, 7, 129, 193, 400)),
    *((13, 7, n) for n in (1, 8, 16, 47, 49, 64, 65, 129, 255, 257, 520)),
    *((401, 40, 1537), (2, 33, 2600), (7, 600, 1541)),  # more columns than an item has
    *((7, k, 70) for k in (1, 2, 3, 15, 16, 17, 31, 32, 255, 257, 1023, 1025, 2049)),
)
INTEGERS = {"integers": 7, "integers16": 9}  # bits beside the sign
FLOATS = ("bfloat16", "float32")
UNITS = (*INTEGERS, *FLOATS)


def normal(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def rounded(x: np.ndarray, name: str, axis: int) -> np.ndarray:
    fmt = parse(name)
    return kernels.fake_quantize(x, fmt, axis, options(fmt))


def small_integers(
    shape: tuple[int, int], axis: int, seed: int, block: int = 32, bits: int = 7
) -> np.ndarray:
    """Return integers of so many bits times a power of two for each block of a line, some blocks of zeros."""
    draw = np.random.default_rng(seed)
    x = draw.integers(1 - 2**bits, 2**bits, shape).astype(np.float32)
    groups = [slice(None)] * 2
    for start in range(0, shape[axis], block):
        groups[axis] = slice(start, start + block)
        part = x[tuple(groups)]
        part *= np.ldexp(
            np.float32(1), draw.integers(-20, 20, (1, part.shape[1]) if axis == 0 else (len(part), 1))
        )
        part *= draw.random((1, part.shape[1]) if axis == 0 else (len(part), 1)) > 0.1
    return x


def product(a: np.ndarray, b: np.ndarray, unit: str, threads: int = 2, block: int = 32) -> np.ndarray | None:
    y = np.full((1, a.shape[0], b.shape[1]), np.nan, np.float32)
    done = native.product(a[None], b[None], y, unit, block=block, threads=threads)
    return y[0] if done else None


def laid_out(x: np.ndarray, order: str) -> np.ndarray:
    return np.asfortranarray(x) if order == "columns" else np.ascontiguousarray(x)


@pytest.mark.parametrize("unit", INTEGERS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_integers_equal_the_definition_on_every_instruction_set(
    shape: tuple[int, int, int], unit: str, isa: str
) -> None:
    (m, k, n), bits = shape, INTEGERS[unit]
    for block in (16, 32):
        a, b = small_integers((m, k), 1, 1, block, bits), small_integers((k, n), 0, 2, block, bits)
        expected = definition(a, b, block)
        for left in ("rows", "columns"):
            for threads in (1, 3):
                right = "rows" if threads == 1 else "columns"
                y = product(laid_out(a, left), laid_out(b, right), unit, threads, block)
                assert y is not None
                assert y.tobytes() == expected.tobytes()


def test_the_definition_is_within_its_bound_and_sums_blocks_in_order() -> None:
    a, b = small_integers((9, 1000), 1, 3), small_integers((1000, 11), 0, 4)
    exact, u, c = a.astype(float) @ b.astype(float), 2.0**-24, 32
    error = np.abs(definition(a, b, 32) - exact)
    assert (error <= (c - 1) * u / (1 - c * u) * (np.abs(a).astype(float) @ np.abs(b).astype(float))).all()
    assert error.max() > 0  # it rounds
    reverse = definition(a[:, ::-1][:, 8:], b[::-1][8:], 32)
    assert (reverse != definition(a[:, :992], b[:992], 32)).any()  # in another order, to other sums


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("unit", FLOATS)
def test_floats_are_within_the_bound_and_do_not_depend_on_threads_or_layout(
    shape: tuple[int, int, int], unit: str
) -> None:
    if unit == "bfloat16" and not native.has_unit(unit):
        pytest.skip("the CPU has no products of bfloat16")
    m, k, n = shape
    a, b = (
        torch.from_numpy(x).bfloat16().float().numpy() for x in (normal(m, k, seed=1), normal(k, n, seed=2))
    )
    y = product(a, b, unit, 1)
    assert y is not None
    bound = (k + 2) * 2.0**-24 * (np.abs(a).astype(float) @ np.abs(b).astype(float))
    assert (np.abs(y - a.astype(float) @ b.astype(float)) <= bound).all()
    for threads in (2, 3):
        assert np.array_equal(product(laid_out(a, "columns"), laid_out(b, "columns"), unit, threads), y)


@pytest.mark.parametrize("columns", [70, 1600])
def test_each_matrix_of_a_stack_is_multiplied_by_itself(columns: int, isa: str) -> None:
    a, b = (
        np.random.default_rng(4).integers(-16, 17, s).astype(np.float32)
        for s in ((3, 9, 70), (3, 70, columns))
    )
    for unit in UNITS:
        y = np.empty((3, 9, columns), np.float32)
        if native.has_unit(unit) or unit != "bfloat16":
            assert native.product(a, b, y, unit, threads=2)
            assert np.array_equal(y, a.astype(float) @ b.astype(float))


@pytest.mark.parametrize("unit", UNITS)
def test_small_integers_are_multiplied_exactly(unit: str, isa: str) -> None:
    if unit == "bfloat16" and not native.has_unit(unit):
        pytest.skip(f"{isa} has no products of bfloat16")
    a, b = (np.random.default_rng(3).integers(-16, 17, s).astype(np.float32) for s in ((37, 300), (300, 71)))
    assert np.array_equal(product(a, b, unit), a.astype(float) @ b.astype(float))


@pytest.mark.parametrize("a", ["mxint8", "mxfp4", "mxfp6_e2m3", "mx6", "mx4", "mxfp6_e3m2", "mx9"])
@pytest.mark.parametrize("b", ["mxint8", "mxfp6_e2m3", "mx4", "mxfp6_e3m2"])
def test_rounding_on_the_way_is_rounding_before(a: str, b: str, isa: str) -> None:
    x, w = normal(150, 300, seed=5), normal(300, 70, seed=6)
    formats = parse(a), parse(b)
    sides = rounded(x, a, 1), rounded(w, b, 0)
    for left, right, before in (
        (x, w, False),
        (np.asfortranarray(x), np.asfortranarray(w), False),
        (*sides, True),
    ):
        y = np.empty((1, 150, 70), np.float32)
        chosen = (None, None) if before else (options(formats[0]), options(formats[1]))
        rounded_product(left[None], right[None], formats, chosen, y)
        exact = sides[0].astype(float) @ sides[1].astype(float)
        bound = 302 * 2.0**-24 * (np.abs(sides[0]).astype(float) @ np.abs(sides[1]).astype(float))
        assert (np.abs(y[0] - exact) <= bound).all()
        bytes_hold_them = not {a, b} & {"mxfp6_e3m2", "mx9"}
        if native.has_unit("integers16") or (bytes_hold_them and native.has_unit("integers")):
            block = 16 if {a, b} & {"mx6", "mx4", "mx9"} else 32
            assert y[0].tobytes() == definition(*sides, block).tobytes()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "formats",
    [
        *(("mxfp8_e4m3", "mxfp8_e5m2"), ("mx9", "mx9"), ("mxint8", "mxint8")),
        ("block(element=fp8_e4m3,scale=e8m0,size=128)", "block(element=int8,scale=e8m0,size=256)"),
    ],
)
def test_stacks_of_either_type_are_rounded_and_multiplied(
    formats: tuple[str, str], dtype: torch.dtype, isa: str
) -> None:
    a, b = torch.from_numpy(normal(3, 20, 96, seed=7)), torch.from_numpy(normal(3, 96, 40, seed=8))
    if "size" in formats[0]:  # some blocks, and a part of one
        a, b = (torch.cat([x, -2 * x, 4 * x, x], axis) for x, axis in ((a, 2), (b, 1)))
    a, b = a.to(dtype), b.to(dtype)
    kinds = parse(formats[0]), parse(formats[1])
    of_a = ops.fake_quantize(a, kinds[0], 2, Choices(), 0, None)
    of_b = ops.fake_quantize(b, kinds[1], 1, Choices(), 0, None)
    y = ops.rounded_product(a, b, kinds, (Choices(), Choices()), dtype)
    assert torch.equal(y, ops.rounded_product(of_a, of_b, kinds, dtype=dtype))
    assert y.dtype == dtype
    exact = of_a.double() @ of_b.double()
    slack = ((a.shape[2] + 2) * 2.0**-24 + (2.0**-8 if dtype == torch.bfloat16 else 0)) * (
        of_a.double().abs() @ of_b.double().abs()
    )
    assert ((y.double() - exact).abs() <= slack).all()


@pytest.mark.parametrize(
    ("unit", "value", "where"),
    [
        ("integers", np.inf, "infinite"),
        ("integers", 2.0**-121, "too small"),
        ("integers", 1 + 2.0**-7, "eight bits"),
        ("integers", 2.0**-140, "subnormal"),
        ("integers16", np.inf, "infinite"),
        ("integers16", 2.0**-119, "too small"),
        ("integers16", 1 + 2.0**-9, "ten bits"),
        ("integers16", 2.0**-140, "subnormal"),
    ],
)
@pytest.mark.parametrize("columns", [50, 1537])
def test_what_integers_cannot_hold_is_refused(
    unit: str, value: float, where: str, columns: int, isa: str
) -> None:
    a, b = np.ones((5, 64), np.float32), np.ones((64, columns), np.float32)
    assert product(a, b, unit) is not None
    a[3, 33] = value
    if where in ("too small", "subnormal"):
        a[3, 32:] = value
    assert product(a, b, unit) is None, where
    assert product(np.asfortranarray(a), b, unit) is None, where
    assert product(b.T.copy(), a.T.copy(), unit) is None, where


@pytest.mark.parametrize("unit", INTEGERS)
def test_zeros_times_an_infinity_are_left_to_float32(unit: str, isa: str) -> None:
    zeros, b = np.zeros((5, 64), np.float32), np.ones((64, 50), np.float32)
    assert (product(zeros, b, unit) == 0).all()
    b[40, 3] = -np.inf
    assert product(zeros, b, unit) is None
    assert product(b.T.copy(), zeros.T.copy(), unit) is None
    y = np.empty((1, 5, 50), np.float32)
    rounded_product(zeros[None], b[None], (parse("mxint8"),) * 2, (None, None), y)
    assert np.isnan(y[0, :, 3]).all()


@pytest.mark.parametrize(
    ("text", "of_bytes", "of_pairs"),
    [
        ("mxint8", 32, 32),
        ("block(element=int(8),scale=e8m0,size=32)", 0, 32),  # 128 is one too many
        ("mxfp6_e3m2", 0, 32),
        ("mx9", 0, 16),
        ("block(element=int(10,coding=symmetric),scale=e8m0,size=48)", 0, 16),
        ("block(element=int(10),scale=e8m0,size=32)", 0, 0),  # and 512
        ("block(element=float(e=3,m=3),scale=e8m0,size=32)", 0, 0),
        ("block(element=int(10,coding=symmetric),scale=fp32,size=32)", 0, 0),
        ("block(element=int(10,coding=symmetric),scale=e8m0,size=24)", 0, 0),
    ],
)
def test_integers_are_chosen_by_their_bits_and_their_blocks(text: str, of_bytes: int, of_pairs: int) -> None:
    fmt = parse(text)
    assert (_common_block(fmt, fmt, 7), _common_block(fmt, fmt, 9)) == (of_bytes, of_pairs)
    assert _common_block(fmt, None, 9) == 0
    # Whatever is chosen is within the bound, the largest codes of both signs among what is multiplied.
    x, w = normal(9, 96, seed=21), normal(96, 20, seed=22)
    x[::2, ::7], w[5::9] = -8, 7.99
    sides, y = (rounded(x, text, 1), rounded(w, text, 0)), np.empty((1, 9, 20), np.float32)
    rounded_product(sides[0][None], sides[1][None], (fmt, fmt), (None, None), y)
    wide = [side.astype(float) for side in sides]
    assert (np.abs(y[0] - wide[0] @ wide[1]) <= 98 * 2.0**-24 * (np.abs(wide[0]) @ np.abs(wide[1]))).all()


def test_scales_whose_product_leaves_float32_are_refused(isa: str) -> None:
    ones = np.ones((32, 32), np.float32)
    for unit, least in (("integers", -57), ("integers16", -55)):
        for power, fits in ((60, True), (61, False), (least, True), (least - 1, False)):
            x = ones * np.float32(2.0**power)
            assert (product(x, x, unit) is not None) == fits, power


@pytest.mark.parametrize(("unit", "least"), [("integers", -57), ("integers16", -55)])
def test_products_at_the_ends_of_the_range_are_those_of_the_definition(
    unit: str, least: int, isa: str
) -> None:
    for power in (60, least):
        bits = INTEGERS[unit]
        a, b = small_integers((6, 64), 1, 9, bits=bits), small_integers((64, 50), 0, 10, bits=bits)
        top = np.abs(a).reshape(6, 2, 32).max(axis=2, keepdims=True)
        of_one = np.where(top > 0, np.exp2(-np.floor(np.log2(np.where(top > 0, top, 1)))), 1)
        a = (a.reshape(6, 2, 32) * of_one).reshape(6, 64).astype(np.float32)
        high = a * np.float32(2.0**power)
        b = np.sign(b) * np.float32(2.0**power)
        y = product(high, b, unit)
        assert y is not None
        assert y.tobytes() == definition(high, b, 32).tobytes()


def test_the_largest_integers_and_least_beside_them_do_not_overflow(isa: str) -> None:
    for unit, bits in INTEGERS.items():
        a = np.full((7, 320), 2**bits - 1, np.float32)
        a[:, ::3] *= -1
        b = a.T[:, :5].copy()
        for left in (a, -a, np.abs(a)):
            y = product(left, b, unit)
            assert y is not None
            assert y.tobytes() == definition(left, b, 32).tobytes()


@pytest.mark.parametrize("unit", INTEGERS)
def test_a_nan_makes_its_row_and_its_column_nan(unit: str, isa: str) -> None:
    a, b = small_integers((6, 64), 1, 11), small_integers((64, 70), 0, 12)
    a[2, 40], b[5, 66] = np.nan, np.nan
    y = product(a, b, unit)
    assert y is not None
    assert np.isnan(y[2]).all()
    assert np.isnan(y[:, 66]).all()
    assert np.isfinite(np.delete(np.delete(y, 2, 0), 66, 1)).all()


def test_values_that_are_no_bfloat16_are_refused() -> None:
    if not native.has_unit("bfloat16"):
        pytest.skip("the CPU has no products of bfloat16")
    one = np.ones((6, 64), np.float32)
    for value in (1 + 2.0**-9, 2.0**-127):
        assert product(one * np.float32(value), one.T, "bfloat16") is None
    assert (kernels.bfloat16_product(one * np.float32(1 + 2.0**-9), one.T) == 64 + 64 * 2.0**-9).all()


def test_infinity_and_nan_come_through() -> None:
    a, b = np.ones((2, 3), np.float32), np.ones((3, 65), np.float32)
    a[0, 1], b[2, 64] = np.inf, np.nan
    y = kernels.bfloat16_product(a, b)
    assert np.isposinf(y[0, :64]).all()
    assert np.isnan(y[:, 64]).all()
    assert (y[1, :64] == 3).all()


@pytest.mark.parametrize("unit", UNITS)
def test_nothing_to_add_is_zero_and_nothing_to_write_is_nothing(unit: str) -> None:
    if unit == "bfloat16" and not native.has_unit(unit):
        pytest.skip("the CPU has no products of bfloat16")
    assert (product(normal(7, 0, seed=1), normal(0, 70, seed=1), unit) == 0).all()
    for m, k, n in ((0, 3, 4), (4, 3, 0)):
        assert product(normal(m, k, seed=1), normal(k, n, seed=1), "float32").shape == (m, n)


def test_what_depends_on_the_whole_tensor_is_not_rounded_on_the_way() -> None:
    def accepts(name: str, **choices: str) -> bool:
        return native.rounds_in_product(parse(name), decide(parse(name), Choices(**choices)))

    assert accepts("mxfp8_e4m3")
    assert accepts("mx9", scale_rule="ceil")
    assert not accepts("mxfp8_e4m3", rounding="stochastic")
    assert not accepts("nvfp4")
    assert not accepts("int8_channel")
    assert not accepts("block(element=fp8_e4m3,scale=e8m0,size=tensor)")
    assert not accepts("block(element=fp8_e4m3,scale=e8m0,size=24)")
    stochastic: Options = decide(parse("mxint8"), Choices("stochastic"))
    row, y = np.ones((1, 1, 32), np.float32), np.empty((1, 1, 1), np.float32)
    given = parse("mxint8"), stochastic
    with pytest.raises(ValueError, match="draws"):
        native.product(row, row.transpose(0, 2, 1), y, "float32", of_a=given, threads=1)


def test_the_operators_are_those_of_torch() -> None:
    a, b = (
        torch.from_numpy(normal(*s, seed=4)).bfloat16().float().requires_grad_() for s in ((9, 10), (10, 11))
    )
    torch.library.opcheck(torch.ops.fewbits.bfloat16_product, (a, b))
    torch.library.opcheck(torch.ops.fewbits.rounded_product, (a, b, "", "", "", "", torch.float32))
    assert np.array_equal(
        kernels.bfloat16_product(a.detach().numpy(), b.detach().numpy()), ops.bfloat16_product(a, b).detach()
    )


def test_matrices_that_do_not_meet_are_refused() -> None:
    with pytest.raises(ValueError, match="as many rows as a has columns"):
        product(normal(3, 4, seed=1), normal(5, 6, seed=1), "float32")
    with pytest.raises(ValueError, match="lie side by side"):
        product(normal(8, 8, seed=1)[::2, ::2], normal(4, 4, seed=1), "float32")
