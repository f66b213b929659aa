"""One vector times packed lines: within the bound, wherever scales, units and what is not finite may be."""

import numpy as np
import pytest
import torch

import fewbits as fb
from fewbits import kernels
from fewbits.kernels.ops.tensors import packed

UNIT = 2.0**-24
FORMATS = (
    *("mxfp6_e2m3", "mxfp6_e3m2", "mxfp8_e4m3", "mxfp8_e5m2", "mxint8", "mx4", "mx6", "mx9"),
    *("fp8_e4m3", "fp8_e5m2", "fp8_e4m3fnuz", "fp6_e2m3", "int8_channel"),
    "block(element=float(e=4,m=3),scale=e8m0,size=16)",
    "block(element=float(e=4,m=3,special=fn),scale=fp32,size=128)",
    "block(element=float(e=2,m=5),scale=float(e=4,m=3,special=fn),size=64)",
    "block(element=int(8),scale=fp32,size=16)",
    "block(element=float(e=3,m=3),scale=e8m0,size=24)",
    "bdr(m=6,d1=8,k1=32,d2=1,k2=2)",
    "bdr(m=3,d1=8,k1=64,d2=0,k2=2)",
    *("msfp13", "msfp14", "msfp15", "nvfp4", "bdr(m=2,d1=8,k1=128,d2=1,k2=2)"),
    *("block(element=int(5),scale=fp32,size=8)", "block(element=float(e=3,m=2),scale=e8m0,size=8)"),
    *("mxfp4", "int4_channel", "fp4_e2m1", "bdr(m=2,d1=8,k1=32,d2=1,k2=2)"),
    *(f"block(element=int(4),scale=fp32,size={size})" for size in (8, 64)),
)
# Values of tables: of one bit to four, with codes that are none, and two levels of scales; then in loops.
TABLES = (
    *("binary_channel", "binary_tensor", "block(element=binary,scale=e8m0,size=32)", "binary"),
    "block(element=binary,scale=fp8_e4m3,size=16,outer=fp32,outer_size=channel)",
    "block(element=lookup(-1,-0.5,0,0.75,1),scale=fp32,size=24)",
    "block(element=lookup(-1,-0.625,-0.5,-0.375,-0.25,-0.125,0,0.0625,0.125,0.25,1),scale=fp8_e5m2,size=64)",
    *("block(element=lookup(-1,-0.3,0,0.3,1),scale=fp32,size=64)", "posit5_2"),
)
NIBBLES = (*FORMATS[-6:-4], *FORMATS[-3:])  # those with scales
# Around a group of values that are multiplied together, around a run of scales, and what is left of a line.
LENGTHS = (1, 31, 32, 33, 80, 496, 4096 - 32, 4096, 4096 + 48, 9000)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def unlike(q: fb.NarrowTensor, x: torch.Tensor, y: torch.Tensor) -> str | None:
    """Return what is wrong with y: beyond the bound (n + 2) u |x| |W|, or not NaN where a product is."""
    w, wide = q.dequantize().double(), x.double()
    expected, bound = wide @ w.t(), (x.shape[1] + 2) * UNIT * (wide.abs() @ w.abs().t())
    finite = bound.isfinite() & (bound < 2.0**127)
    if not torch.equal(y.isnan()[~expected.isfinite()], expected.isnan()[~expected.isfinite()]):
        return "not NaN where it should be"
    excess = ((y.double() - expected).abs() / bound.clamp(min=2.0**-149))[finite]
    return f"{excess.max()} times the bound" if excess.numel() and not bool((excess <= 1).all()) else None


@pytest.mark.parametrize("name", [*FORMATS, *TABLES])
def test_a_vector_meets_packed_weights_within_the_bound(name: str, isa: str) -> None:
    for n in LENGTHS:
        for lines in (1, 4, 7):
            q, x = fb.quantize(normal(lines, n) * 3, name), normal(1, n, seed=1)
            assert unlike(q, x, fb.matvec(q, x)) is None, (n, lines)


@pytest.mark.parametrize("name", [*NIBBLES, "nvfp4", "fp4_e2m1"])
def test_a_vector_of_bfloat16_meets_nibbles_within_the_bound(name: str, isa: str) -> None:
    for n in (1, 127, 128, 496, 4096 + 48, 9000):
        for lines in (1, 4, 7):
            q, x = fb.quantize(normal(lines, n) * 3, name), normal(1, n, seed=1).bfloat16().float()
            y = kernels.gemv(x.numpy(), packed(q.pieces), q.format, lines, bfloat16=True)
            assert unlike(q, x, torch.from_numpy(y)) is None, (n, lines)


def test_sums_of_bfloat16_that_become_subnormal_are_not_lost(isa: str) -> None:
    """The instruction for bfloat16 takes them for zero: vectors of which there can be such are not its."""
    q = fb.quantize(torch.ones(5, 1024, dtype=torch.bfloat16), "mxfp4")
    x = torch.tensor([1.0 + 2.0**-7] * 4 + [-1.0] * 4).repeat(128).mul(2.0**-126).bfloat16()[None]
    for y in (fb.matvec(q, x), x @ q.t(), torch.nn.functional.linear(x, q)):
        assert y.tolist() == [[2.0**-124] * 5]


@pytest.mark.parametrize("name", [*FORMATS[:8], "mxfp4"])
def test_neither_end_of_float32_is_lost_on_the_way(name: str, isa: str) -> None:
    """A unit of the elements goes into x or into the sum: nothing is too large or too small for it."""
    for exponent in (-120, -60, 100, 118):
        q = fb.quantize(normal(5, 544) * 2.0**exponent, name)
        for other in (-exponent, 4 - exponent, -exponent - 4):
            x = normal(1, 544, seed=1) * 2.0 ** min(other, 120)
            y = fb.matvec(q, x)
            assert unlike(q, x, y) is None, (exponent, other)
            assert (y != 0).all()


@pytest.mark.parametrize("name", [*FORMATS, *TABLES])
def test_a_vector_with_a_single_one_gives_a_column(name: str, isa: str) -> None:
    """Every place of a group meets its own value, scale and shift, and no other."""
    blocks = torch.exp2(torch.arange(272) // 8 * 5 % 23 - 11.0)  # neighbouring scales differ
    pairs = torch.where(torch.arange(272) // 2 % 3 == 0, 1.0, 0.25)  # and shifts
    q = fb.quantize(normal(5, 272) * blocks * pairs, name)
    w = q.dequantize()
    for place in range(272):
        x = torch.zeros(1, 272)
        x[0, place] = 1
        assert torch.equal(fb.matvec(q, x)[0], w[:, place]), place


@pytest.mark.parametrize("name", [*FORMATS[:8], *FORMATS[18:19], "msfp13", "msfp14", "msfp15", *NIBBLES])
def test_subnormals_times_large_weights_are_not_lost(name: str, isa: str) -> None:
    """Elements are multiplied as whole numbers, half a step too: each product is a multiple of x.

    With two levels of scales the sum that the outer one multiplies is subnormal itself.
    """
    q = fb.quantize(normal(5, 544) * 2.0**110, name)
    x = torch.randint(-3, 4, (1, 544), generator=torch.Generator().manual_seed(1)).float() * 2.0**-149
    assert unlike(q, x, fb.matvec(q, x)) is None


@pytest.mark.parametrize("name", [*FORMATS, *TABLES])
def test_codes_of_any_kind_are_multiplied_as_what_they_are(name: str, isa: str) -> None:
    rng = np.random.default_rng(0)
    for part in (1.0, 0.002, 0.0005):
        q, x = fb.quantize(normal(13, 1100), name), normal(1, 1100, seed=1)
        codes = q.codes.numpy()
        chosen = rng.random(codes.shape) < part
        codes[chosen] = rng.integers(0, 256, codes.shape, np.uint8)[chosen]
        assert unlike(q, x, fb.matvec(q, x)) is None, part
        x = x.bfloat16().float()
        y = kernels.gemv(x.numpy(), packed(q.pieces), q.format, 13, bfloat16=True)
        assert unlike(q, x, torch.from_numpy(y)) is None, part


@pytest.mark.parametrize("name", ["mxint8", "int8_channel", "int8_tensor", "int8_256", "int8"])
def test_the_lowest_code_of_eight_bits_is_a_number_like_others(name: str, isa: str) -> None:
    """No rounding of a symmetric format writes -128, but files of others have it."""
    q = fb.quantize(torch.full((5, 256), 127.0), name)  # scales of a power of two
    q.codes[:, ::3] = 0x80
    q.codes[:, 1::3] = 0x7F
    for x in (torch.ones(1, 256), 3.0 - torch.arange(256.0)[None] % 7):
        for given in (x, x.bfloat16(), x.expand(3, -1).bfloat16()):
            expected = given.double() @ q.dequantize().double().t()
            assert torch.equal(fb.matvec(q.to(given.dtype), given), expected.to(given.dtype))


@pytest.mark.parametrize("name", ["mxfp8_e4m3", "mxfp6_e2m3", "mxint8", "mx9", "mx4", "mx6", "mxfp4"])
def test_the_sum_of_a_line_is_the_same_whatever_lines_there_are(name: str, isa: str) -> None:
    w, x = normal(41, 1100), normal(1, 1100, seed=1)
    alone = fb.matvec(fb.quantize(w, name), x)
    for part in (slice(0, 1), slice(7, 30), slice(40, 41)):
        assert torch.equal(fb.matvec(fb.quantize(w[part], name), x), alone[:, part])


def test_a_nan_stays_in_its_line_and_changes_no_other(isa: str) -> None:
    w, x = normal(9, 1100), normal(1, 1100, seed=1)
    q = fb.quantize(w, "mxfp8_e4m3")
    before = fb.matvec(q, x)
    q.codes[5, 77] = 0xFF
    y = fb.matvec(q, x)
    assert y[0, 5].isnan()
    others = [line for line in range(9) if line != 5]
    assert torch.equal(y[:, others], before[:, others])
    # Where x is infinite every line is, or NaN.
    x[0, 3] = torch.inf
    assert not fb.matvec(q, x).isfinite().any()


def test_a_product_beyond_the_bound_is_seen() -> None:
    """The control."""
    q, x = fb.quantize(normal(4, 512), "mxfp8_e4m3"), normal(1, 512, seed=1)
    y = fb.matvec(q, x)
    assert unlike(q, x, y) is None
    y[0, 2] += 0.5
    assert unlike(q, x, y) is not None
    y[0, 2] = torch.nan
    assert unlike(q, x, y) is not None
