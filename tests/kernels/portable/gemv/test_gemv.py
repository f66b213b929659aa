"""Products with a packed matrix by operations of torch: the definition of integers, the bound of floats."""

import pytest
import torch

import fewbits as fb
from fewbits.formats import parse, pattern
from fewbits.kernels.arrays.nm import zeros
from fewbits.kernels.portable.gemv import int8
from fewbits.kernels.portable.gemv.gemv import gemv, gemv_int8
from tests import cases
from tests.native.gemv.test_int8 import INTEGERS, LENGTHS, OTHERS, UNIT, by_definition, normal
from tests.native.nm.test_stream import PATTERNS, both


def int8_product(x: torch.Tensor, q: fb.NarrowTensor) -> torch.Tensor:
    zero = 0 if q.sparsity is None else zeros(q.format)[0]
    return gemv_int8(x, q.pieces, q.format, q.shape[0], q.sparsity, zero)


def float_product(x: torch.Tensor, q: fb.NarrowTensor) -> torch.Tensor:
    zero = 0 if q.sparsity is None else zeros(q.format)[0]
    return gemv(x, q.pieces, q.format, q.shape[0], q.sparsity, zero)


@pytest.mark.parametrize("name", INTEGERS)
def test_products_of_integers_equal_the_definition(name: str) -> None:
    for n in LENGTHS:
        for lines, batch in ((1, 1), (7, 1), (5, 3)):
            q, x = fb.quantize(normal(lines, n) * 3, name), normal(batch, n, seed=n)
            x[:, ::5] *= 40
            assert torch.equal(int8_product(x, q), by_definition(x, q)), (n, lines, batch)


@pytest.mark.parametrize(
    "text",
    [
        "block(element=float(e=2,m=1),scale=e8m0,size=64)",
        "block(element=int(4),scale=fp16,size=128)",
        "block(element=int(8),scale=fp32,size=256)",
        "int4",
        "int8",
    ],
)
def test_scales_of_several_blocks_equal_the_definition(text: str) -> None:
    q, x = fb.quantize(normal(5, 700) * 3, text), normal(3, 700, seed=1)
    assert torch.equal(int8_product(x, q), by_definition(x, q))
    # The control: a scale that served its neighbours too would show.
    assert not torch.equal(int8_product(x, q), by_definition(x.roll(32, 1), q))


@pytest.mark.parametrize("name", ["mxfp4", "mxint8"])
def test_the_largest_integers_are_exact(name: str) -> None:
    for sign in (1, -1):
        w, x = torch.full((4, 1024), 448.0 * sign), torch.full((1, 1024), -3.0)
        w[:, ::3] *= -1
        x[:, ::3] *= -1
        q = fb.quantize(w, name)
        assert torch.equal(int8_product(x, q), by_definition(x, q))


def test_scales_that_are_nan_or_zero_or_subnormal_act_as_in_the_definition() -> None:
    q = fb.quantize(normal(4, 1024), "mxfp4")
    assert q.scales is not None
    q.scales[0, 3], q.scales[1, 31], q.scales[2, 7] = 255, 0, 1
    x = normal(1, 1024, seed=2)
    x[0, 64:96] = 0
    y = int8_product(x, q)
    assert y[0, 0].isnan()
    assert torch.equal(y[0, 1:], by_definition(x, q)[0, 1:])


def test_which_formats_hold_integers() -> None:
    held = {name for name in cases.NAMES if int8.holds_integers(parse(name))}
    assert set(INTEGERS) <= held
    assert not held & set(OTHERS)
    assert not held & {"fp32", "fp8_e4m3", "int4_g16", "mx9", "nf4", "uint8"}


@pytest.mark.parametrize("name", OTHERS)
def test_other_products_with_int8_are_within_their_bound(name: str) -> None:
    q, x = fb.quantize(normal(9, 552), name), normal(2, 552, seed=1)
    rounded = fb.fake_quantize(x, int8.ACTIVATION).double()
    wanted, w = rounded @ q.dequantize().double().t(), q.dequantize().double().abs()
    bound = (552 + 8) * UNIT * (rounded.abs() @ w.t())
    assert bool(((int8_product(x, q).double() - wanted).abs() <= bound).all())
    assert not bool(((x.double() @ q.dequantize().double().t() - wanted).abs() <= bound).all())  # the control


@pytest.mark.parametrize("fmt", cases.FORMATS, ids=cases.label)
def test_every_format_multiplies_within_the_bound(fmt: cases.Format) -> None:
    q = fb.quantize(normal(7, 188), fmt)
    x = normal(3, 188, seed=1)
    w = q.dequantize().double().t()
    error = (float_product(x, q).double() - x.double() @ w).abs()
    bound = (188 + 2) * UNIT * (x.double().abs() @ w.abs())
    assert torch.equal(error.isnan(), w.isnan().any(0).expand(error.shape))
    assert bool(((error <= bound) | error.isnan()).all())


@pytest.mark.parametrize("text", PATTERNS)
def test_sparse_matrices_multiply_as_dense_ones(text: str) -> None:
    for name in ("mxfp4", "bf16", "int8_channel", "mxfp6_e2m3"):
        dense, q = both(text, name, 5, 720)
        x = torch.randn(3, q.shape[1], generator=torch.Generator().manual_seed(2))
        assert torch.equal(float_product(x, q), float_product(x, dense))
        assert q.sparsity == pattern(text)


def test_nothing_times_nothing_is_empty_or_zero() -> None:
    q = fb.quantize(normal(5, 64), "mxfp4")
    assert int8_product(torch.empty(0, 64), q).shape == float_product(torch.empty(0, 64), q).shape == (0, 5)
    none = fb.quantize(torch.empty(5, 0), "mxfp4")
    assert float_product(torch.empty(2, 0), none).tolist() == [[0.0] * 5] * 2
    assert int8_product(torch.empty(2, 0), none).tolist() == [[0.0] * 5] * 2
