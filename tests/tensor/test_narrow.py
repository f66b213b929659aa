"""The packed array: its size, its layout, and what comes back."""

import numpy as np
import pytest
import torch

import fewbits as fb
from fewbits.formats import Bdr, Block, Element, packed_bits, parse
from fewbits.kernels.reference import unpack
from tests import cases


def parts_bytes(fmt: cases.Format, shape: tuple[int, ...], axis: int) -> int:
    """Return the bytes of codes, scales, microexponents and outer scales, every line in whole bytes."""
    lines = int(np.prod([d for i, d in enumerate(shape) if i != axis], dtype=int))
    n = shape[axis] if shape else 1

    def stream(size: object, bits: int) -> int:
        count, each = (
            (1, 1) if size == "tensor" else (lines, 1 if size == "channel" else -(-n // int(str(size))))
        )
        return count * -(-each * bits // 8)

    if isinstance(fmt, Element):
        return stream(1, fmt.bits)
    assert isinstance(fmt, Block | Bdr)
    own = stream(1, fmt.element.bits) + stream(fmt.size, fmt.scale.bits)
    if isinstance(fmt, Bdr):
        return own + (stream(fmt.k2, fmt.d2) if fmt.d2 else 0)
    return own + (stream(fmt.outer_size, 32) if fmt.outer else 0)


@pytest.mark.parametrize("fmt", [*cases.FORMATS, Bdr(3, d2=0), Bdr(3, 5, 12, 3, 4)], ids=cases.label)
def test_nbytes_are_the_packed_bits_each_line_rounded_up_to_bytes(fmt: cases.Format) -> None:
    for shape in cases.SHAPES:
        x = np.random.default_rng(0).random(shape).astype(np.float32)
        for axis in range(max(len(shape), 1)):
            nbytes = fb.quantize(x, fmt, axis=axis).nbytes
            assert nbytes == parts_bytes(fmt, shape, axis)
            assert nbytes * 8 >= packed_bits(fmt, shape, axis)


@pytest.mark.parametrize("fmt", cases.FORMATS, ids=cases.label)
def test_codes_lie_in_c_order_with_the_block_axis_last(fmt: cases.Format) -> None:
    x = np.random.default_rng(1).random((3, 4, 5)).astype(np.float32)
    for axis in (0, 1, 2):
        q = fb.quantize(x, fmt, axis=axis)
        moved = fb.quantize(np.ascontiguousarray(np.moveaxis(x, axis, -1)), fmt)
        assert q.codes.tobytes() == moved.codes.tobytes()
        assert q.parts().codes.shape == moved.shape
        assert np.array_equal(np.moveaxis(q.dequantize(), axis, -1), moved.dequantize())


def test_each_part_unpacks_to_one_integer_for_each_thing_it_says() -> None:
    x = np.random.default_rng(1).standard_normal((3, 40)).astype(np.float32)
    parts = fb.quantize(x, "mx9").parts()
    assert parts.scales is not None
    assert parts.shifts is not None
    assert (parts.codes.shape, parts.scales.shape, parts.shifts.shape) == ((3, 40), (3, 3), (3, 20))
    parts = fb.quantize(x, "nvfp4").parts()
    assert parts.scales is not None
    assert parts.outer is not None
    assert (parts.scales.shape, parts.outer.shape, parts.shifts) == ((3, 3), (1, 1), None)
    assert fb.quantize(x, "fp8_e4m3").parts().scales is None
    assert fb.quantize(x, "bdr(m=3,d2=0)").shifts is None


def test_it_prints_format_shape_axis_and_size() -> None:
    assert (
        repr(fb.quantize(np.ones((2, 32), np.float32), "mxfp4"))
        == "NarrowTensor(mxfp4, shape=(2, 32), axis=1, 34 bytes)"
    )
    assert "axis=0, " in repr(fb.quantize(np.ones(3), "int8"))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_result_has_family_dtype_and_shape_of_what_was_quantized(dtype: torch.dtype) -> None:
    for shape in ((), (3, 0), (2, 33)):
        x = torch.rand(shape).to(dtype)
        y = fb.quantize(x, "mxfp8_e4m3", axis=0).dequantize()
        assert (y.dtype, y.shape) == (dtype, x.shape)


def test_two_fp4_codes_share_a_byte_the_first_in_the_low_half() -> None:
    q = fb.quantize(np.array([1.0, 6.0, -0.5], np.float32), "fp4_e2m1")
    assert q.codes.tolist() == [0x72, 0x09]
    assert unpack(q.codes, parse("fp4_e2m1").bits, 3).tolist() == [2, 7, 9]  # type: ignore[attr-defined]
