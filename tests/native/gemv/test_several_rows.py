"""Several vectors times packed lines: lanes of values, of rows and of pairs of rows keep the bound."""

import numpy as np
import pytest
import torch

import fewbits as fb
from fewbits import kernels
from fewbits.kernels import native
from fewbits.kernels.ops.tensors import packed

UNIT = 2.0**-24
FORMATS = (
    "mxfp4",
    "nvfp4",
    "int4_channel",
    "mxfp6_e2m3",
    "mxfp8_e4m3",
    "mxfp8_e5m2",
    "mxint8",
    "mx9",
    "bf16",
    "binary_channel",
    "block(element=lookup(-1,-0.5,0,0.75,1),scale=fp32,size=24)",
    "block(element=binary,scale=fp8_e4m3,size=16,outer=fp32,outer_size=channel)",
)
# Those of which registers decode codes, by lookups, units or halves; of some the pairs have shifts.
IN_REGISTERS = (
    *("mxfp4", "nvfp4", "int4_channel", "mx4", "mx6", "mx9", "mxfp6_e2m3", "mxfp8_e4m3", "mxfp8_e5m2"),
    *("mxint8", "int8_channel", "msfp13", "msfp14", "block(element=int(4),scale=fp32,size=8)"),
)
NIBBLES = ("mxfp4", "nvfp4", "int4_channel", "block(element=int(4),scale=fp32,size=8)")
ROWS = (2, 5, 6, 7, 8, 12, 13, 16, 17, 40, 49, 64, 65, 130)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def product(q: fb.NarrowTensor, x: torch.Tensor) -> torch.Tensor:
    """Return the float32 sums for x that holds bfloat16 values, which is what the kernel is told."""
    assert torch.equal(x, x.bfloat16().float())
    y = kernels.gemv(x.numpy(), packed(q.pieces), q.format, q.shape[0], bfloat16=True)
    return torch.from_numpy(y)


def excess(found: torch.Tensor, x: torch.Tensor, q: fb.NarrowTensor) -> float:
    """Return the largest error over its bound (n + 2) u |x| |W|."""
    w = q.dequantize().double()
    bound = (x.shape[1] + 2) * UNIT * (x.double().abs() @ w.abs().t())
    return float(((found.double() - x.double() @ w.t()).abs() / bound.clamp(min=2.0**-149)).max())


@pytest.mark.parametrize("name", FORMATS)
def test_rows_of_bfloat16_meet_packed_weights_within_the_bound(name: str, isa: str) -> None:
    for n, lines in ((1, 1), (40, 25), (512 + 130, 13), (1024 + 17, 49), (512, 100)):
        q = fb.quantize(normal(lines, n) * 3, name)
        for rows in ROWS:
            x = normal(rows, n, seed=rows).bfloat16().float()
            assert excess(product(q, x), x, q) <= 1, (n, lines, rows)


@pytest.mark.parametrize("name", IN_REGISTERS)
def test_few_rows_have_the_products_of_each_alone_bit_for_bit(name: str, isa: str) -> None:
    """Codes are decoded once for up to eight rows, and multiplied in the order that one vector has."""
    if isa == "baseline":
        pytest.skip("baseline decodes nothing in registers: its sums of one vector have another order")
    for n, lines in ((1, 1), (500, 7), (4096 + 176, 5), (1024, 61), (9000, 50)):
        q = fb.quantize(normal(lines, n) * 3, name)
        for rows in range(2, 9):
            x = normal(rows, n, seed=rows)
            alone = torch.cat([fb.matvec(q, row[None]) for row in x])
            assert torch.equal(fb.matvec(q, x), alone), (n, lines, rows)
            if name in NIBBLES:  # of the others one vector of bfloat16 has a way of its own
                narrow = x.bfloat16().float()
                alone = torch.cat([product(q, row[None]) for row in narrow])
                assert torch.equal(product(q, narrow), alone), (n, lines, rows)


@pytest.mark.parametrize("name", IN_REGISTERS)
@pytest.mark.parametrize("rows", [3, 8])
def test_what_is_not_finite_stays_in_its_row_of_few(name: str, rows: int, isa: str) -> None:
    q = fb.quantize(normal(30, 4096 + 300), name)
    x = normal(rows, 4096 + 300, seed=1)
    before = fb.matvec(q, x)
    x[1, 130], x[0, 4300] = torch.inf, torch.nan
    y = fb.matvec(q, x)
    assert y[0].isnan().all()
    # Infinite or not a number as the sign of what it is multiplied with says, as when it is alone.
    np.testing.assert_array_equal(y[1], fb.matvec(q, x[1][None])[0])
    assert not y[1].isfinite().any()
    assert torch.equal(y[2:], before[2:])


@pytest.mark.parametrize("rows", [2, 3, 8])
def test_a_nan_among_the_elements_is_found_for_each_of_few_rows(rows: int, isa: str) -> None:
    """Units take the code of NaN for a number; a look at all bytes of a line says that there was one."""
    for n in (4096, 600):
        q, x = fb.quantize(normal(30, n), "mxfp8_e4m3"), normal(rows, n, seed=1)
        before = fb.matvec(q, x)
        for line, code in ((5, 0xFF), (29, 0x7F)):
            q.codes.view(30, -1)[line, 77] = code
        y = fb.matvec(q, x)
        assert y[:, [5, 29]].isnan().all()
        others = [line for line in range(30) if line not in (5, 29)]
        assert torch.equal(y[:, others], before[:, others])


@pytest.mark.parametrize("name", ["mxfp4", "int8_channel", "mx4"])
def test_few_rows_meet_sparse_matrices_as_dense_ones(name: str, isa: str) -> None:
    """Streams are expanded, some lines at a time, and go on as dense codes."""
    for n, lines in ((4096 + 96, 61), (64, 3)):
        w = normal(lines, n) * torch.tensor([0.0, 1.0, 1.0, 0.0]).repeat(n // 4)
        dense, sparse = fb.quantize(w, name), fb.quantize(w, name, sparsity="2:4")
        for rows in (2, 4, 5, 8):
            x = normal(rows, n, seed=rows)
            assert torch.equal(fb.matvec(sparse, x), fb.matvec(dense, x)), (n, rows)


@pytest.mark.parametrize("rows", [3, 8, 64])
def test_products_below_the_normal_numbers_are_not_lost(rows: int, isa: str) -> None:
    # The instruction for bfloat16 takes subnormals for zero: 2^-16 times a scale of 2^-117 is one.
    for exponent, magnitude in ((10, 2.0**120), (40, 2.0**-60), (40, 2.0**-30)):
        q = fb.quantize(normal(30, 600), "mxfp8_e5m2")
        assert q.scales is not None
        q.scales.fill_(exponent)
        x = (normal(rows, 600, seed=1) * magnitude).bfloat16().float()
        y = product(q, x)
        assert (y != 0).any()
        assert excess(y, x, q) <= 1


@pytest.mark.parametrize("name", ["mxfp4", "mxint8"])
@pytest.mark.parametrize("rows", [2, 12, 40])
def test_scales_at_both_ends_multiply_as_those_of_decoded_weights(name: str, rows: int, isa: str) -> None:
    """Whole pieces are decoded otherwise where an exponent leaves the normal numbers."""
    q = fb.quantize(normal(30, 1024), name)
    assert q.scales is not None
    for scale in (0, 1, 2, 6, 7, 8, 127, 251, 252, 253, 254):
        q.scales[3, 5], q.scales[4] = scale, scale
        if not q.dequantize().isfinite().all():
            continue
        x = (normal(rows, 1024, seed=1) * 2.0**-10).bfloat16().float()
        if scale > 200:
            x *= 2.0**-60
        y = product(q, x)
        assert excess(y, x, q) <= 1, scale
        assert (y[:, 4] != 0).all()


@pytest.mark.parametrize("rows", [2, 8, 40])
def test_a_nan_is_not_what_follows_the_last_values_of_another_line(rows: int, isa: str) -> None:
    n = 8 * 512 + 40
    q, x = fb.quantize(normal(30, n), "mxfp4"), normal(rows, n, seed=1)
    assert q.scales is not None
    q.scales[28, 7 * 16 + 1] = 255
    for product_of in (fb.matvec(q, x), product(q, x.bfloat16().float())):
        assert product_of[:, 28].isnan().all()
        assert product_of[:, [i for i in range(30) if i != 28]].isfinite().all()


def test_nan_and_infinity_stay_in_their_row_and_line(isa: str) -> None:
    q = fb.quantize(normal(30, 600), "mxfp4")
    assert q.scales is not None
    q.scales[4, 3] = 255
    for rows in (2, 8, 20):
        x = normal(rows, 600, seed=1).bfloat16().float()
        expected = product(q, x)
        x[1, 130] = torch.inf
        y = product(q, x)
        assert y[:, 4].isnan().all()
        others = [line for line in range(30) if line != 4]
        assert not y[1, others].isfinite().any()
        rest = [row for row in range(rows) if row != 1]
        assert torch.equal(y[rest][:, others], expected[rest][:, others])
        assert y[rest][:, others].isfinite().all()


@pytest.mark.parametrize("rows", [2, 8, 16])
def test_the_sum_of_a_line_is_the_same_whatever_lines_and_threads_there_are(rows: int, isa: str) -> None:
    w, x = normal(200, 1100), normal(rows, 1100, seed=1)
    q = fb.quantize(w, "mxfp6_e2m3")
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = fb.matvec(q, x)
        torch.set_num_threads(2)
        assert torch.equal(fb.matvec(q, x), alone)
    finally:
        torch.set_num_threads(before)
    for part in (slice(0, 1), slice(7, 30), slice(199, 200)):
        assert torch.equal(fb.matvec(fb.quantize(w[part], "mxfp6_e2m3"), x), alone[:, part])


def test_units_for_bfloat16_give_other_sums_than_float32() -> None:
    """A control: the instruction was there, and multiplied."""
    if "avx512_bf16" not in native.available_isas():
        pytest.skip("this CPU has no AVX512-BF16")
    q, x = fb.quantize(normal(40, 4096), "mxfp4"), normal(16, 4096, seed=1).bfloat16().float()
    found = {}
    for isa in ("avx512_bf16", "avx512"):
        native.force_isa(isa)
        found[isa] = product(q, x).numpy()
    native.force_isa(None)
    assert not np.array_equal(found["avx512_bf16"], found["avx512"])
