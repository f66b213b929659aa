"""The packed array: its size, its layout, and what comes back."""

import copy
import io
import pickle
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import fewbits as fb
from fewbits.errors import ArgumentError, DTypeError, FewbitsError
from fewbits.formats import Bdr, Block, Element, packed_bits, parse
from fewbits.kernels.bits.packing import unpack
from tests import cases
from tests.tensor.packed import packed, values


@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "int8_tensor"])
def test_a_deep_copy_keeps_what_shares_bytes_and_shares_none_with_the_original(name: str) -> None:
    q = packed(name, (4, 64))
    kept = q.clone()
    whole, row, turned, piece, same, codes, other = copy.deepcopy(
        [q, q[1], q.t(), q[:, 32:], q, q.codes, q.clone()]
    )
    assert same is whole
    assert torch.equal(row, q[1])
    assert torch.equal(piece, q[:, 32:])
    whole.copy_(torch.full((4, 64), 2.0))
    for view, values_ in ((row, 2.0), (turned, 2.0)):
        assert torch.equal(view.dequantize(), torch.full(view.shape, values_))
    assert torch.equal(codes, whole.codes)
    for original in (q, other):
        assert torch.equal(original, kept)


def test_a_piece_that_shares_its_scale_shares_it_in_a_deep_copy() -> None:
    q = packed("int8_tensor", (4, 64))
    whole, row = copy.deepcopy((q, q[1]))
    with pytest.raises(ArgumentError, match="would change a scale that other values share"):
        row.copy_(torch.ones(64))
    assert torch.equal(whole, q)


def test_a_deep_copy_is_made_under_torch_func_too() -> None:
    q, x = packed("mxfp4", (4, 64)), torch.randn(64)
    gradient = torch.func.grad(lambda v: (copy.deepcopy(q) @ v).sum())(x)
    torch.testing.assert_close(gradient, torch.as_tensor(q.dequantize()).sum(0))


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
        assert torch.equal(q.codes, moved.codes)
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
    assert unpack(q.codes.numpy(), parse("fp4_e2m1").element.bits, 3).tolist() == [2, 7, 9]


@pytest.mark.parametrize("fmt", cases.FORMATS, ids=cases.label)
def test_it_is_a_tensor_of_the_shape_dtype_and_device_of_its_values(fmt: cases.Format) -> None:
    for shape in cases.SHAPES:
        q = packed(fmt, shape, axis=0)
        assert isinstance(q, torch.Tensor)
        assert (q.shape, q.dtype, q.device.type, q.requires_grad) == (shape, torch.float32, "cpu", False)
        assert (q.format, q.axis, q.numel(), q.ndim) == (fmt, 0, int(np.prod(shape)), len(shape))
        assert q.codes.dtype == torch.uint8
        dtypes = [None if part is None else part.dtype for part in q.pieces[1:]]
        assert all(
            d in (None, t) for d, t in zip(dtypes, (torch.uint8, torch.uint8, torch.float32), strict=True)
        )


@pytest.mark.parametrize("dtype", [">f4", "f2", "f4", "f8", ml_dtypes.bfloat16])
def test_what_was_a_numpy_array_is_one_again_in_its_own_dtype_also_after_a_view(dtype: Any) -> None:
    x = values(fb.mxfp8_e4m3, (4, 64)).numpy().astype(dtype)
    q = fb.quantize(x, "mxfp8_e4m3")
    wanted = fb.fake_quantize(x, "mxfp8_e4m3")
    for piece, part in (
        (q, wanted),
        (q[1:, :32], wanted[1:, :32]),
        (q.t(), wanted.T),
        (copy.copy(q), wanted),
        (q.to("cpu", copy=True), wanted),
        (q.to(q.dtype, copy=True).to("cpu"), wanted),
    ):
        y = piece.dequantize()
        assert type(y) is np.ndarray
        assert y.dtype == np.dtype(dtype)
        assert np.array_equal(y, part)
        assert isinstance(piece.dense(), torch.Tensor)
    # A conversion of torch's, to its dtype or device.
    other = torch.float64 if q.dtype != torch.float64 else torch.float32
    for changed in (q.to(other), q.to(other).to(q.dtype), q.to(other, copy=True), q.to("meta")):
        assert isinstance(changed.dequantize(), torch.Tensor)


def test_what_is_packed_is_not_packed_again() -> None:
    q = packed("mxfp4", (2, 32))
    for function in (fb.quantize, fb.fake_quantize):
        with pytest.raises(
            DTypeError, match=r"NarrowTensor\(mxfp4.*expected the values themselves: call .deq"
        ):
            function(q, "mxfp4")
    with pytest.raises(DTypeError, match=r"a tensor of torch.float8_e5m2; .*fewbits.tensor.from_torch"):
        fb.quantize(torch.ones(3).to(torch.float8_e5m2), "mxfp4")


@pytest.mark.parametrize("fmt", cases.FORMATS, ids=cases.label)
def test_from_parts_puts_together_what_quantize_made_without_a_copy(fmt: cases.Format) -> None:
    q = packed(fmt, (3, 40), axis=0)
    again = fb.NarrowTensor.from_parts(*q.pieces, format=fmt, shape=(3, 40), axis=-2, dtype=torch.float16)
    assert torch.equal(again, q)
    assert torch.equal(again.dequantize(), q.dequantize().half())
    assert again.codes.data_ptr() == q.codes.data_ptr()
    for i, part in enumerate(q.pieces):
        wrong: list[Any] = list(q.pieces)
        wrong[i] = torch.zeros(1, dtype=torch.uint8) if part is None else None
        with pytest.raises(
            ArgumentError, match="were given; .* has none" if part is None else "are missing; .* needs"
        ):
            fb.NarrowTensor.from_parts(*wrong, format=fmt, shape=(3, 40), axis=0, dtype=torch.float32)


def test_parts_that_do_not_fit_are_refused() -> None:
    q = packed("mxfp4", (3, 64))
    assert q.scales is not None

    def make(codes: Any = q.codes, scales: Any = q.scales, **changed: Any) -> fb.NarrowTensor:
        given: dict[str, Any] = {"format": q.format, "shape": (3, 64), "axis": 1, "dtype": torch.float32}
        return fb.NarrowTensor.from_parts(codes, scales, None, None, **{**given, **changed})

    assert torch.equal(make(), q)
    message = (
        r"codes of shape \(3, 31\); mxfp4 of shape \(3, 64\) with axis=1 needs \(3, 32\), the block axis last"
    )
    with pytest.raises(ArgumentError, match=message):
        make(q.codes[:, 1:])
    with pytest.raises(ArgumentError, match=r"codes of shape \(3, 32\); .* needs \(64, 2\)"):
        make(axis=0)
    with pytest.raises(ArgumentError, match="axis=2 is out of range for an array of 2 dimensions"):
        make(axis=2)
    with pytest.raises(
        DTypeError, match=r"scales given of torch.int8; .* needs a torch.Tensor of torch.uint8"
    ):
        make(scales=q.scales.view(torch.int8))
    with pytest.raises(DTypeError, match=r"codes given as ndarray; .* needs a torch.Tensor of torch.uint8"):
        make(q.codes.numpy())
    with pytest.raises(ArgumentError, match="scales on meta and codes on cpu; put them on one device"):
        make(scales=q.scales.to("meta"))
    with pytest.raises(
        DTypeError, match=r"dtype=torch.int8; values are float32, bfloat16, float16 or float64"
    ):
        make(dtype=torch.int8)
    for name in ("codes", "scales"):
        with pytest.raises(DTypeError, match=rf"{name} of layout sparse_coo; .* needs a dense tensor"):
            make(**{name: getattr(q, name).to_sparse()})
    for shape in ((3.0, 64), 3, (3, -64), (3, None), torch.ones(2), "a"):
        with pytest.raises(
            ArgumentError, match=r"shape=.*; expected the lengths of the axes, such as \(4, 64\)"
        ):
            make(shape=shape)
    for shape in (torch.Size((3, 64)), [3, 64], np.array([3, 64])):
        assert torch.equal(make(shape=shape), q)
    nested = packed("nvfp4", (2, 32))
    assert nested.outer is not None
    with pytest.raises(
        DTypeError, match=r"outer given of torch.float64; .* needs a torch.Tensor of torch.float32"
    ):
        fb.NarrowTensor.from_parts(
            nested.codes, nested.scales, None, nested.outer.double(),
            format=nested.format, shape=(2, 32), axis=1, dtype=torch.float32,
        )  # fmt: skip


@pytest.mark.parametrize("fmt", cases.FORMATS, ids=cases.label)
def test_a_copy_shares_bytes_and_a_deep_copy_has_its_own(fmt: cases.Format) -> None:
    q = packed(fmt, (3, 40))
    shallow, deep = copy.copy(q), copy.deepcopy(q)
    assert torch.equal(shallow, q)
    assert torch.equal(deep, q)
    q.codes[0, 0] ^= 1
    assert torch.equal(shallow, q)
    assert not torch.equal(deep, q)
    first, second = copy.deepcopy([q, q])
    assert first is second


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_it_is_never_pickled_and_says_what_to_do(protocol: int) -> None:
    q = packed("mxfp4", (2, 32))
    layer = module()
    for thing in (q, torch.nn.Parameter(q), {"w": q}, layer.state_dict()):
        with pytest.raises(
            FewbitsError, match=r"write it as safetensors with fewbits.files.save_file, or pickle what"
        ):
            pickle.dumps(thing, protocol)
        with pytest.raises(FewbitsError, match=r"not pickled, nor saved by torch.save"):
            torch.save(thing, io.BytesIO())


def module(seed: int = 0, name: str = "mxfp4") -> torch.nn.Linear:
    """Return a linear layer with a packed weight."""
    layer = torch.nn.Linear(64, 8)
    layer.weight = torch.nn.Parameter(packed(name, (8, 64), seed=seed), requires_grad=False)
    return layer


@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "mx9", "int8_tensor", "fp8_e4m3"])
def test_a_module_holds_it_as_a_parameter(name: str) -> None:
    layer = module(name=name)
    assert dict(layer.named_parameters())["weight"] is layer.weight
    assert isinstance(layer.weight, torch.nn.Parameter)
    assert isinstance(layer.weight, fb.NarrowTensor)
    assert not layer.weight.requires_grad
    deep = copy.deepcopy(layer)
    assert isinstance(deep.weight, torch.nn.Parameter)
    assert torch.equal(deep.weight, layer.weight)
    deep.weight.codes.zero_()
    assert not torch.equal(deep.weight, layer.weight)
    deep.load_state_dict(layer.state_dict())
    assert torch.equal(deep.weight, layer.weight)
    x = torch.randn(5, 64)
    assert torch.equal(deep(x), layer(x))


def test_a_state_dict_is_loaded_by_copy_and_by_assignment() -> None:
    one, other = module(0), module(1)
    kept = other.weight
    other.load_state_dict(one.state_dict())
    assert other.weight is kept
    assert torch.equal(other.weight, one.weight)
    dense = torch.nn.Linear(64, 8)
    dense.load_state_dict(one.state_dict(), assign=True)
    assert isinstance(dense.weight, fb.NarrowTensor)
    assert (dense.weight.codes.data_ptr(), dense.weight.requires_grad) == (one.weight.codes.data_ptr(), False)
    one.load_state_dict(torch.nn.Linear(64, 8).state_dict())  # ordinary values are quantized
    assert isinstance(one.weight, fb.NarrowTensor)
    with pytest.raises(RuntimeError, match="expected one format, axis and sparsity"):
        module(name="mxfp8_e4m3").load_state_dict(one.state_dict())


@pytest.mark.parametrize(
    "convert", [lambda m: m.to(torch.bfloat16), lambda m: m.half(), lambda m: m.double()]
)
def test_a_module_converts_with_its_packed_parameters(convert: Any) -> None:
    layer, kept = module(), module()
    found = convert(layer)
    assert isinstance(found.weight, torch.nn.Parameter)
    assert isinstance(found.weight, fb.NarrowTensor)
    assert found.weight.dtype == found.bias.dtype != torch.float32
    assert torch.equal(found.weight, kept.weight)
    assert found(torch.ones(2, 64, dtype=found.bias.dtype)).dtype == found.bias.dtype
    assert found.to("meta").weight.codes.device.type == "meta"


def test_it_takes_no_gradient_whatever_is_asked() -> None:
    assert not torch.nn.Parameter(packed("mxfp4", (2, 32))).requires_grad
    assert not module().requires_grad_().weight.requires_grad


def test_an_attribute_that_asks_for_a_gradient_is_refused() -> None:
    layer = module()
    for q in (packed("mxfp4", (2, 32)), layer.weight, layer.weight[2:]):
        with pytest.raises(
            ArgumentError, match=r"requires_grad=True of NarrowTensor.*: train an ordinary tensor"
        ):
            q.requires_grad = True
        q.requires_grad = False
        assert not q.requires_grad
    x = torch.randn(3, 64, requires_grad=True)
    layer(x).sum().backward()
    assert (layer.weight.grad, x.grad is None) == (None, False)


def test_a_scalar_prints_as_every_other() -> None:
    q = packed("mxfp4", ())
    assert f"{q}" == str(q) == repr(q) == "NarrowTensor(mxfp4, shape=(), axis=0, 2 bytes)"
    assert f"{q:>60}".startswith("  ")
