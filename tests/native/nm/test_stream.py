"""Streams and products of every instruction set: the definition's bytes, and the bound of products."""

from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

import fewbits as fb
from fewbits.errors import DataError, FormatError
from fewbits.formats import Format, pattern
from fewbits.kernels import native
from fewbits.kernels.arrays.nm import zeros
from fewbits.kernels.bits.packing import unpack
from fewbits.kernels.reference.nm import stream as reference
from tests import cases

# Tails of every segment and block: 64, 128 and 512 values; what several lines at once leave; long scales.
COLUMNS = (4, 60, 68, 188, 512, 516, 700, 1024, 4096 + 640)
PATTERNS = ("2:4", "1:2", "4:8", "2:5")
# Each way to decode: words of both kinds, nibbles, bytes of either sign and with NaN; then what has no way
# of its own. Scales of each kind, and bytes whose blocks are shorter and longer than eight groups.
FORMATS = (
    *("bf16", "fp16", "mxfp4", "nvfp4", "int4_channel", "int8_channel", "mxint8", "mxfp8_e4m3"),
    *(f"block(element=int(8),scale=fp32,size={size})" for size in (8, 16, 64)),
)
OTHERS = (
    "fp8_e5m2_tensor",
    "fp8_e4m3fnuz",
    "int8",
    "mxfp6_e3m2",
    "mx9",
    "mx4",
    "vsq4",
    "posit8_1",
    "fp32",
    "quda_half",
)


def sparse(text: str, lines: int, columns: int, seed: int = 0) -> torch.Tensor:
    """Return a matrix of the pattern, its kept values of every sign and some of them zero."""
    p, generator = pattern(text), torch.Generator().manual_seed(seed)
    w = torch.randn(lines, columns // p.group, p.group, generator=generator)
    w[torch.rand(w.shape, generator=generator) < 0.1] = 0.0
    chosen = torch.rand(w.shape, generator=generator).argsort(-1) < p.keep
    return torch.where(chosen, w, 0.0).reshape(lines, columns // p.group * p.group)


def both(text: str, name: str | Format, lines: int, columns: int) -> tuple[fb.NarrowTensor, fb.NarrowTensor]:
    dense = fb.quantize(sparse(text, lines, columns), name)
    return dense, dense.compressed(text)


def _stream_is_the_definitions(fmt: cases.Format, isa: str, text: str, columns: int) -> None:
    native.force_isa(isa)
    p = pattern(text)
    w = sparse(text, 3, columns)
    dense, n = fb.quantize(w, fmt), w.shape[1]
    try:
        zero, minus_zero = zeros(fmt)
    except FormatError:
        with pytest.raises(FormatError, match="has no zero"):
            dense.compressed(text)
        return
    q, bits = dense.compressed(text), fmt.element.bits
    codes = unpack(dense.codes.numpy(), bits, n)
    wanted = reference.compress(codes, p, bits, zero, minus_zero)
    assert wanted is not None
    assert np.array_equal(q.codes.numpy(), wanted)
    values, back = dense.dequantize(), q.dequantize()
    kept = reference.kept(codes, p, zero, minus_zero)
    assert kept is not None
    same = torch.from_numpy(kept) | (values.view(torch.int32) == 0)
    assert torch.equal(back.view(torch.int32)[same], values.view(torch.int32)[same])
    assert bool((values[~same] == 0).all())  # minus zeros for which there was no room


STREAMED = (native.available_isas(), ("2:4", "2:5"), (60, 700))


@pytest.mark.parametrize(("fmt", "rows"), cases.by_first(cases.pairs(cases.FORMATS, *STREAMED)))
def test_streams_are_the_definitions_and_give_every_format_back(fmt: cases.Format, rows: list[Any]) -> None:
    for row in rows:
        _stream_is_the_definitions(fmt, *row)


@pytest.mark.slow
@pytest.mark.parametrize("fmt", cases.FORMATS, ids=cases.label)
def test_streams_of_every_instruction_set_pattern_and_length_give_every_format_back(
    fmt: cases.Format,
) -> None:
    for row in product(*STREAMED):
        _stream_is_the_definitions(fmt, *row)


def _within_the_bound(y: torch.Tensor, x: torch.Tensor, dense: fb.NarrowTensor) -> bool:
    """Return whether y is x times the dense matrix, within the bound of docs/products.md."""
    wide, weight = x.double(), dense.dequantize().double().t()
    bound = (x.shape[1] + 2) * 2.0**-24 * (wide.abs() @ weight.abs())
    rounding, exact = 0.0 if x.dtype == torch.float32 else 2.0**-8, wide @ weight
    return bool(((y.double() - exact).abs() <= bound + rounding * exact.abs() + 1e-37).all())


def _product_is_within_the_bound(name: str, columns: int, isa: str, dtype: torch.dtype, batch: int) -> None:
    native.force_isa(isa)
    dense, q = both("2:4", name, 7, columns)
    x = torch.randn(batch, columns, generator=torch.Generator().manual_seed(batch)).to(dtype)
    y = x @ q.to(dtype).t()
    assert _within_the_bound(y, x, dense), (columns, isa, dtype, batch)
    if batch > 1:  # expanded, then the dense kernel
        assert torch.equal(y, x @ dense.to(dtype).t()), (columns, isa, dtype, batch)


DTYPES = (torch.float32, torch.bfloat16)
MULTIPLIED = (COLUMNS, native.available_isas(), DTYPES, (1, 3))


@pytest.mark.parametrize(("name", "rows"), cases.by_first(cases.pairs(FORMATS, *MULTIPLIED)))
def test_products_are_within_the_bound_of_the_dense_ones(name: str, rows: list[Any]) -> None:
    for row in rows:
        _product_is_within_the_bound(name, *row)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS)
def test_products_of_every_length_and_instruction_set_are_within_the_bound(name: str) -> None:
    for row in product(*MULTIPLIED):
        _product_is_within_the_bound(name, *row)


@pytest.mark.parametrize("name", ["bf16", "fp16", "mxint8", "mxfp4", "mxfp8_e4m3"])
@pytest.mark.parametrize("columns", [512, 640, 4096 + 388])
def test_sums_without_rounding_have_the_bits_of_the_dense_kernel(isa: str, name: str, columns: int) -> None:
    """Every code, each times another integer: sums of such products are exact in any order."""
    generator = torch.Generator().manual_seed(columns)
    w = torch.randint(-6, 7, (9, columns // 4, 4), generator=generator).float()
    w = w.scatter(-1, torch.rand(w.shape, generator=generator).argsort(-1)[..., :2], 0.0).reshape(9, columns)
    dense = fb.quantize(w, name)
    x = torch.randint(-8, 9, (1, columns), generator=generator).float()
    wanted = (x.double() @ dense.dequantize().double().t()).float()
    for values in (x, x + 2.0**-12):  # all bfloat16, and not
        y = values @ dense.compressed("2:4").t()
        assert values is not x or torch.equal(y, wanted)
        assert _within_the_bound(y, values, dense)


@pytest.mark.parametrize("name", ["mxfp8_e4m3", "fp8_e5m2_tensor", "fp16", "bf16", "mxfp4"])
def test_codes_and_scales_that_are_no_numbers_make_no_numbers_of_their_lines(isa: str, name: str) -> None:
    dense, q = both("2:4", name, 9, 1024)
    x = torch.randn(1, 1024, generator=torch.Generator().manual_seed(3))
    if dense.format.element.bits >= 8:  # a kept code that is NaN, or infinity, in lines 1 and 4
        bits, last = dense.format.element.bits, q.codes.shape[1] - 1
        q.codes[1, last] = 0x7F
        q.codes[4, last] = 0xFF
        if bits == 16:
            q.codes[1, last - 1], q.codes[4, last - 1] = 0xC0, 0x80
    if name.startswith("mx"):
        q.scales[6, 3] = 255
    values = q.dequantize()
    y = x @ q.t()
    wanted = x.double() @ values.double().t()
    assert bool((y.isfinite() == wanted.isfinite()).all())
    assert 1 <= int((~y.isfinite()).sum()) <= 3
    numbers = y.isfinite()[0]
    assert torch.allclose(y[0, numbers].double(), wanted[0, numbers], rtol=1e-4, atol=1e-4)


def _pattern_multiplies_as_the_dense_kernel(name: str, text: str, isa: str, dtype: torch.dtype) -> None:
    native.force_isa(isa)
    dense, q = both(text, name, 5, 720)
    x = torch.randn(1, q.shape[1], generator=torch.Generator().manual_seed(2)).to(dtype)
    y, wanted = x @ q.to(dtype).t(), x @ dense.to(dtype).t()
    assert _within_the_bound(y, x, dense), (text, isa, dtype)
    if text != "2:4":  # expanded to what the dense kernel reads
        assert torch.equal(y, wanted), (text, isa, dtype)


PATTERNED = (PATTERNS, native.available_isas(), DTYPES)


@pytest.mark.parametrize(("name", "rows"), cases.by_first(cases.pairs(FORMATS + OTHERS, *PATTERNED)))
def test_every_pattern_and_format_multiplies_as_the_dense_kernel(name: str, rows: list[Any]) -> None:
    for row in rows:
        _pattern_multiplies_as_the_dense_kernel(name, *row)


@pytest.mark.slow
@pytest.mark.parametrize("name", FORMATS + OTHERS)
def test_every_pattern_and_format_multiplies_so_with_every_instruction_set(name: str) -> None:
    for row in product(*PATTERNED):
        _pattern_multiplies_as_the_dense_kernel(name, *row)


@pytest.mark.parametrize("name", ["bf16", "mxfp4", "int8_channel", "mxfp8_e4m3"])
def test_special_values_of_x_are_multiplied_as_by_the_dense_kernel(isa: str, name: str) -> None:
    dense, q = both("2:4", name, 5, 1024)
    for special in (float("inf"), float("nan"), -0.0, 1e-40, 3e38):
        x = torch.ones(1, 1024).bfloat16()
        x[0, 513] = special
        found, wanted = (x @ t.to(torch.bfloat16).t() for t in (q, dense))
        if special == 3e38:  # a kernel may overflow before it multiplies by a scale, the other not
            assert bool(found.isfinite().any())
            lines = found.isfinite()[0]
            assert _within_the_bound(found[:, lines], x, dense[lines])
        else:
            assert torch.equal(found.isnan(), wanted.isnan())
            torch.testing.assert_close(found.nan_to_num(7.0), wanted.nan_to_num(7.0), rtol=2.0**-7, atol=1e-5)


def test_threads_do_not_change_a_product(isa: str) -> None:
    _, q = both("2:4", "mxfp4", 67, 4096)
    x = torch.randn(1, 4096).bfloat16()
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        one = x @ q.to(torch.bfloat16).t()
        torch.set_num_threads(3)
        assert torch.equal(x @ q.to(torch.bfloat16).t(), one)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("name", ["bf16", "mxfp4", "int8_channel"])
def test_a_wrong_bit_of_a_mask_is_found(isa: str, name: str) -> None:
    """The control: a product that ignored the masks would not see it, nor would a reader that trusts them."""
    dense, q = both("2:4", name, 4, 1024)
    x = torch.randn(1, 1024, generator=torch.Generator().manual_seed(1)).bfloat16()
    wanted = x @ dense.to(torch.bfloat16).t()
    mask = q.codes[1, :64].numpy()
    first, second = mask[:16].copy(), mask[16:32].copy()
    mask[:16], mask[16:32] = second, first  # positions 0 and 1 of each group change places: still 2:4
    assert not torch.equal(x @ q.to(torch.bfloat16).t(), wanted)
    assert not torch.equal(q.dequantize(), dense.dequantize())
    mask[:16], mask[16:32] = first, second
    assert torch.equal(x @ q.to(torch.bfloat16).t(), wanted)
    mask[3] ^= 16
    with pytest.raises(DataError, match="line 1 has a mask that does not keep 2 of each 4"):
        q.dequantize()


def test_a_damaged_mask_reads_nothing_outside_the_matrix(isa: str) -> None:
    for name in ("bf16", "mxfp4", "mxfp6_e2m3"):
        _, q = both("2:4", name, 3, 700)
        q.codes[:] = 255
        for batch in (1, 2):
            torch.ones(batch, 700).bfloat16() @ q.to(torch.bfloat16).t()  # sanitizers see more


def test_more_values_than_the_pattern_keeps_are_refused(isa: str) -> None:
    w = sparse("2:4", 5, 1024)
    w[3, 600:604] = 1.0
    with pytest.raises(DataError, match="line 3 has a group of 4 with more than 2 values that are not zero"):
        fb.quantize(w, "bf16", sparsity="2:4")
