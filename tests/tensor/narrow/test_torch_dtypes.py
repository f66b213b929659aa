"""torch's own narrow dtypes: the same bytes mean the same numbers, there and back."""

import pytest
import torch

import fewbits as fb
from fewbits.errors import ArgumentError, DTypeError, FormatError
from fewbits.formats import CATALOGUE, Element, values
from fewbits.tensor.narrow.torch_dtypes import DTYPE_OF, from_torch, to_torch
from tests import cases
from tests.tensor.packed import packed

FP4 = torch.float4_e2m1fn_x2
BYTE_WIDE = [fmt for fmt, dtype in DTYPE_OF.items() if dtype.itemsize == 1 and dtype != FP4]
SCALAR = list(DTYPE_OF)
WITH_SCALES = [f for f in cases.BLOCKED if f.scale in DTYPE_OF and f.element in DTYPE_OF]
WITHOUT = [f for f in cases.FORMATS if f not in SCALAR and f not in WITH_SCALES]


def numbers(elements: torch.Tensor) -> torch.Tensor:
    """Return what torch says the elements are, as float64; FP4 by its codes, for torch has no conversion."""
    if elements.dtype != FP4:
        return (
            elements.to(torch.float64)
            if elements.dtype != torch.float8_e8m0fnu
            else elements.float().double()
        )
    octets = elements.view(torch.uint8)
    codes = torch.stack([octets & 15, octets >> 4], -1).flatten(-2)
    return torch.from_numpy(values(fb.fp4_e2m1).copy())[codes.long()]


@pytest.mark.parametrize("fmt", BYTE_WIDE, ids=cases.label)
def test_all_256_codes_are_the_numbers_that_torch_reads(fmt: Element) -> None:
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    q = fb.NarrowTensor.from_parts(
        codes, None, None, None, format=fmt, shape=(256,), axis=0, dtype=torch.float64
    )
    elements, scales = to_torch(q)
    assert (scales, elements.dtype) == (None, DTYPE_OF[fmt])
    torch.testing.assert_close(numbers(elements), q.dequantize(), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(
        numbers(elements), torch.from_numpy(values(fmt).copy()), rtol=0, atol=0, equal_nan=True
    )


@pytest.mark.parametrize("fmt", SCALAR, ids=cases.label)
@pytest.mark.parametrize("axis", [0, 1])
def test_scalars_go_there_and_back_without_a_copy(fmt: Element, axis: int) -> None:
    q = packed(fmt, (6, 40), axis)
    elements, scales = to_torch(q)
    assert scales is None
    assert elements.data_ptr() == q.codes.data_ptr()
    if DTYPE_OF[fmt] != FP4:
        assert elements.shape == (6, 40)
        torch.testing.assert_close(numbers(elements), q.double().dequantize(), rtol=0, atol=0)
    back = from_torch(elements, axis=axis)
    assert torch.equal(back, q)
    assert back.codes.data_ptr() == q.codes.data_ptr()


@pytest.mark.parametrize("fmt", WITH_SCALES, ids=cases.label)
@pytest.mark.parametrize("axis", [0, 1])
def test_blocks_give_elements_and_scales_that_multiply_to_the_values(fmt: cases.Block, axis: int) -> None:
    q = packed(fmt, (6, 64) if axis else (64, 6), axis)
    elements, scales = to_torch(q)
    assert scales is not None
    assert q.scales is not None
    assert (elements.dtype, scales.dtype) == (DTYPE_OF[fmt.element], DTYPE_OF[fmt.scale])
    assert (elements.data_ptr(), scales.data_ptr()) == (q.codes.data_ptr(), q.scales.data_ptr())
    lines, factors = elements.view(torch.uint8), numbers(scales).movedim(axis, -1)
    number = numbers(lines.movedim(axis, -1).view(elements.dtype))
    if isinstance(fmt.size, int):
        factors = factors.repeat_interleave(fmt.size, -1)[..., :64]
    outer = 1 if q.outer is None else q.outer.double()
    assert torch.equal((number * factors * outer).movedim(-1, axis), q.double().dequantize())
    assert torch.equal(from_torch(elements, scales, format=fmt, axis=axis, outer=q.outer), q)


def test_a_format_may_be_its_text() -> None:
    q = packed("mxfp8_e4m3", (4, 64))
    elements, scales = to_torch(q)
    assert torch.equal(from_torch(elements, scales, format="mxfp8_e4m3"), q)
    text, x = str(q.format), q.dequantize()
    same = fb.NarrowTensor.from_parts(*q.pieces, format=text, shape=q.shape, axis=1, dtype=torch.float32)
    assert torch.equal(same.dequantize(), x)
    with pytest.raises(FormatError, match="mxfp8_e4m"):
        from_torch(elements, scales, format="mxfp8_e4m4")


def test_a_tensor_that_torch_rounded_is_taken_as_it_is() -> None:
    x = torch.randn(3, 40)
    for name, dtype in (("fp8_e4m3", torch.float8_e4m3fn), ("bf16", torch.bfloat16), ("fp16", torch.float16)):
        assert torch.equal(from_torch(x.to(dtype)), fb.quantize(x, name))
    assert torch.equal(from_torch(x.to(torch.bfloat16).t()), fb.quantize(x.t(), "bf16"))
    assert from_torch(x.to(torch.bfloat16), dtype=torch.bfloat16).dequantize().dtype == torch.bfloat16


@pytest.mark.parametrize("fmt", SCALAR, ids=cases.label)
def test_empty_tensors_and_scalars_have_dtypes_too(fmt: Element) -> None:
    for shape in ((0, 4), (4, 0)):
        elements, _ = to_torch(packed(fmt, shape))
        assert from_torch(elements).shape == shape
    if DTYPE_OF[fmt] != FP4:
        elements, _ = to_torch(packed(fmt, ()))
        assert elements.shape == ()
        assert torch.equal(from_torch(elements), packed(fmt, ()))


@pytest.mark.parametrize("fmt", WITHOUT, ids=cases.label)
def test_a_format_that_torch_lacks_is_refused_with_those_it_has(fmt: cases.Format) -> None:
    with pytest.raises(
        ArgumentError, match=r"torch has no dtype for .*; it has one for fp32, bf16, fp16, fp8_e4m3"
    ):
        to_torch(packed(fmt, (2, 40)))
    with pytest.raises(ArgumentError, match="torch has no dtype for"):
        from_torch(torch.ones(2, 40), format=fmt)


@pytest.mark.parametrize("name", ["fp8_e4m3", "fp16", "mxfp8_e4m3", "mxfp4"])
def test_elements_among_masks_are_refused_and_those_of_all_codes_are_the_values(name: str) -> None:
    x = torch.where(torch.arange(64) % 4 < 2, packed("mxfp4", (4, 64)).dequantize(), 0.0)
    q = fb.quantize(x, name, sparsity="2:4")
    with pytest.raises(ArgumentError, match=r"sparsity=2:4.* has masks .*: call .with_all_codes\(\) first"):
        to_torch(q)
    elements, scales = to_torch(q.with_all_codes())
    number = numbers(elements)
    if scales is not None:
        number = number * numbers(scales).repeat_interleave(32, -1)
    assert torch.equal(number, x.double())


def test_what_is_no_tensor_of_the_kind_is_refused_by_name() -> None:
    q = packed("fp8_e4m3", (4, 64))
    elements, _ = to_torch(q)
    for given, name in ((elements, "Tensor"), (elements.float().numpy(), "ndarray"), (None, "NoneType")):
        with pytest.raises(DTypeError, match=f"^{name}; expected the NarrowTensor that"):
            to_torch(given)
    for given, name in ((q, "NarrowTensor"), (elements.float().numpy(), "ndarray"), ([1.0], "list")):
        with pytest.raises(DTypeError, match=f"^elements given as {name}; expected a torch.Tensor in one of"):
            from_torch(given)
        with pytest.raises(DTypeError, match=f"^scales given as {name}; expected a torch.Tensor in one of"):
            from_torch(elements, given, format="mxfp8_e4m3")


def test_every_dtype_in_the_table_is_a_catalogued_format() -> None:
    assert set(DTYPE_OF) <= {entry.format for entry in CATALOGUE.values()}
    assert len(set(DTYPE_OF.values())) == len(DTYPE_OF) == 9


def test_what_does_not_fit_is_refused() -> None:
    e4m3, e8m0 = torch.ones(4, 64).to(torch.float8_e4m3fn), torch.ones(4, 2).to(torch.float8_e8m0fnu)
    assert from_torch(e4m3, e8m0, format=fb.mxfp8_e4m3).dequantize().eq(1).all()
    with pytest.raises(ArgumentError, match="scales without a format; say which block format"):
        from_torch(e4m3, e8m0)
    with pytest.raises(
        ArgumentError, match=r"scales are missing; mxfp8_e4m3 needs them in torch.float8_e8m0fnu"
    ):
        from_torch(e4m3, format=fb.mxfp8_e4m3)
    with pytest.raises(ArgumentError, match="scales were given, and fp8_e4m3 has none"):
        from_torch(e4m3, e8m0, format=fb.fp8_e4m3)
    with pytest.raises(
        DTypeError, match=r"elements of torch.float8_e4m3fn; mxfp8_e5m2 needs torch.float8_e5m2"
    ):
        from_torch(e4m3, e8m0, format=fb.mxfp8_e5m2)
    with pytest.raises(
        DTypeError, match=r"scales of torch.float8_e4m3fn; mxfp8_e4m3 needs torch.float8_e8m0fnu"
    ):
        from_torch(e4m3, e4m3, format=fb.mxfp8_e4m3)
    with pytest.raises(DTypeError, match=r"elements of torch.int8; expected one of torch.float32"):
        from_torch(torch.ones(3, dtype=torch.int8))
    with pytest.raises(
        ArgumentError, match=r"scales of shape \(4, 2\); mxfp8_e4m3 of shape \(4, 32\).* \(4, 1\)"
    ):
        from_torch(e4m3[:, :32], e8m0, format=fb.mxfp8_e4m3)
    with pytest.raises(ArgumentError, match="outer are missing; nvfp4"):
        from_torch(torch.zeros(2, 8, dtype=torch.uint8).view(FP4), torch.ones(2, 1).to(torch.float8_e4m3fn),
                   format=fb.nvfp4)  # fmt: skip
    with pytest.raises(ArgumentError, match="odd number of values along its block axis"):
        to_torch(packed("mxfp4", (3, 33)))
    with pytest.raises(ArgumentError, match="without an axis; a byte holds two values"):
        from_torch(torch.tensor(0, dtype=torch.uint8).view(FP4))
