"""The operator as torch sees it: checked by torch itself, compiled, differentiated."""

from itertools import product

import numpy as np
import pytest
import torch

import fewbits as fb
from fewbits.errors import ArgumentError, DTypeError
from fewbits.formats import Element
from fewbits.kernels.bits.layout import layout
from fewbits.kernels.bits.options import options
from tests import cases

ARGUMENTS = ("nearest_even,floor,saturate,raise,one,16", 0, None)
COMPILED = (
    "mxfp4",
    "mx6",
    "nvfp4",
    "fp8_e4m3",
    "int8_channel",
    "posit8_1",
    "block(element=float(e=2,m=2),scale=e8m0,size=8)",
)


@pytest.mark.parametrize(
    ("dtype", "shape"),
    [(torch.float32, shape) for shape in ((), (0,), (33,), (2, 0, 3))]
    + [(dtype, (3, 40)) for dtype in (torch.float64, torch.bfloat16, torch.float16)],
)
def test_torch_finds_nothing_wrong_with_the_operator(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(dtype)
    x.requires_grad_()
    torch.library.opcheck(torch.ops.fewbits.fake_quantize, (x, 0, "mxfp4", *ARGUMENTS))


def test_torch_finds_nothing_wrong_with_strided_input() -> None:
    x = torch.randn(6, 5).t()[::2].requires_grad_()
    torch.library.opcheck(torch.ops.fewbits.fake_quantize, (x, 1, "mx6", *ARGUMENTS))


@pytest.mark.parametrize("fmt", cases.FORMATS, ids=cases.label)
def test_the_gradient_passes_straight_through(fmt: cases.Format) -> None:
    x = torch.rand(3, 40, generator=torch.Generator().manual_seed(1)).requires_grad_()
    weight = torch.rand(3, 40, generator=torch.Generator().manual_seed(2))
    (fb.fake_quantize(x, fmt) * weight).sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, weight)


def test_the_gradient_of_a_gradient_is_that_of_the_identity() -> None:
    x = torch.rand(40, dtype=torch.float64).requires_grad_()
    y = fb.fake_quantize(x, "mxfp8_e4m3") ** 2
    (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), x)
    assert torch.equal(h, torch.full_like(x, 2))


@pytest.mark.parametrize(("text", "backend"), [(t, "eager") for t in COMPILED] + [("mxfp4", "aot_eager")])
def test_compiled_without_a_break_it_gives_the_same_bits_and_gradients(text: str, backend: str) -> None:
    torch._dynamo.reset()

    def model(t: torch.Tensor) -> torch.Tensor:
        return fb.fake_quantize(t, text, axis=0) * 2

    x = torch.randn(33, 5, generator=torch.Generator().manual_seed(3)).requires_grad_()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    y = compiled(x)
    assert torch.equal(y, model(x))
    y.sum().backward()
    assert x.grad is not None
    assert torch.equal(x.grad, torch.full_like(x, 2))


def test_a_format_object_and_choices_compile_without_a_break() -> None:
    torch._dynamo.reset()
    fmt = fb.format("mxfp8_e4m3")

    def model(t: torch.Tensor) -> torch.Tensor:
        return fb.fake_quantize(
            t, fmt, scale_rule="rceil", rounding="stochastic", generator=5, overflow="nan"
        )

    x = torch.randn(4, 64)
    assert torch.equal(torch.compile(model, fullgraph=True, backend="eager")(x), model(x))


def test_it_compiles_with_a_batch_of_changing_size() -> None:
    torch._dynamo.reset()
    compiled = torch.compile(
        lambda t: fb.fake_quantize(t, "mxfp4"), fullgraph=True, backend="eager", dynamic=True
    )
    for n in (3, 8, 17):
        x = torch.randn(n, 40)
        assert torch.equal(compiled(x), fb.fake_quantize(x, "mxfp4"))


def test_it_exports() -> None:
    class Model(torch.nn.Module):
        def forward(self, t: torch.Tensor) -> torch.Tensor:
            return fb.fake_quantize(t, "mx9")

    x = torch.randn(2, 32)
    exported = torch.export.export(Model(), (x,))
    assert torch.equal(exported.module()(x), fb.fake_quantize(x, "mx9"))


def test_meta_tensors_take_shape_dtype_and_device() -> None:
    y = fb.fake_quantize(torch.empty(3, 5, device="meta", dtype=torch.bfloat16), "mxfp4")
    assert (y.shape, y.dtype, y.device.type) == ((3, 5), torch.bfloat16, "meta")


def test_under_autocast_the_operator_keeps_the_dtype_that_it_is_given() -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert fb.fake_quantize(torch.randn(4, 32), "mxfp4").dtype == torch.float32


def test_the_input_is_not_written_to() -> None:
    x = torch.randn(4, 40)
    kept = x.clone()
    y = fb.fake_quantize(x, "fp32")
    y.zero_()
    assert torch.equal(x, kept)


def test_a_saturated_infinity_is_the_largest_value_of_the_tensors_own_dtype() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        x = torch.tensor([torch.inf, -torch.inf, torch.nan, 1], dtype=dtype)
        own = torch.tensor([torch.finfo(dtype).max, torch.finfo(dtype).min, 0, 1], dtype=dtype)
        assert torch.equal(fb.fake_quantize(x, "fp32", nonfinite="saturate"), own)
        narrow = fb.fake_quantize(x, "mxfp8_e4m3", nonfinite="saturate", scale_rule="floor")
        assert torch.isfinite(narrow).all()
        assert torch.equal(narrow, fb.quantize(x, "mxfp8_e4m3", nonfinite="saturate").dequantize())
        wide = fb.fake_quantize(x.float().numpy().astype(np.float16), "fp32", nonfinite="saturate")
        assert wide.tolist() == [65504, -65504, 0, 1]


@pytest.mark.parametrize("dtype", [torch.int32, torch.bool])
def test_a_tensor_of_something_else_is_refused(dtype: torch.dtype) -> None:
    for function in (fb.fake_quantize, fb.quantize):
        with pytest.raises(
            DTypeError, match=f"a tensor of {dtype}; expected floating point: convert it with x.float"
        ):
            function(torch.ones(3, dtype=dtype), "mxfp4")


def test_an_argument_out_of_range_is_the_same_error_for_tensors() -> None:
    with pytest.raises(
        ArgumentError, match="axis=2 is out of range for an array of 1 dimensions; use -1 to 0"
    ):
        fb.fake_quantize(torch.ones(3), "mxfp4", axis=2)
    with pytest.raises(ArgumentError, match="rounding='odd' is not one of"):
        fb.fake_quantize(torch.ones(3), "mxfp4", rounding="odd")


def test_every_element_format_survives_the_trip_through_the_operators_text() -> None:
    x = torch.rand(40)
    for fmt in (*cases.MADE[::7], *cases.BLOCKED):
        expected = fb.fake_quantize(x.numpy(), fmt)
        assert np.array_equal(fb.fake_quantize(x, fmt).numpy(), expected, equal_nan=True)
        assert isinstance(fmt, Element | cases.Block | cases.Bdr)


SHAPES = ((), (33,), (2, 0, 3), (3, 40))
STORED = ("mxfp4", "mx6", "nvfp4", "int8_channel", "fp8_e4m3", "posit8_1")


def packed(x: torch.Tensor, text: str, axis: int) -> tuple[torch.Tensor | None, ...]:
    """Return codes, scales, shifts and outer scales from the operator, None where the format has none."""
    parts = iter(torch.ops.fewbits.quantize(x, axis, text, *default(text)))
    has = layout(fb.format(text), tuple(x.shape), axis)
    return tuple(None if shape is None else next(parts) for shape in has)


def default(text: str) -> tuple[object, ...]:
    """Return the operator's arguments behind the axis."""
    return (options(fb.format(text)).text, 0, None)


PLACES = [(shape, axis) for shape in SHAPES for axis in range(max(len(shape), 1))]
CHECKED = (STORED, (torch.float32, torch.float64, torch.bfloat16, torch.float16), PLACES)


@pytest.mark.parametrize(("text", "dtype", "place"), cases.pairs(*CHECKED), ids=str)
def test_torch_finds_nothing_wrong_with_the_operators_that_store_and_restore(
    text: str, dtype: torch.dtype, place: tuple[tuple[int, ...], int]
) -> None:
    shape, axis = place
    x = torch.rand(shape, generator=torch.Generator().manual_seed(0)).to(dtype)
    torch.library.opcheck(torch.ops.fewbits.quantize, (x, axis, text, *default(text)))
    arguments = (*packed(x, text, axis), text, list(shape), axis, dtype)
    torch.library.opcheck(torch.ops.fewbits.dequantize, arguments)
    restored = torch.ops.fewbits.dequantize(*arguments)
    assert torch.equal(restored, fb.fake_quantize(x, text, axis=axis))


@pytest.mark.slow
def test_torch_finds_nothing_wrong_with_them_in_any_combination() -> None:
    for row in product(*CHECKED):
        test_torch_finds_nothing_wrong_with_the_operators_that_store_and_restore(*row)


@pytest.mark.parametrize("text", STORED)
def test_the_operators_that_store_and_restore_compile_and_export(text: str) -> None:
    torch._dynamo.reset()

    class Model(torch.nn.Module):
        def forward(self, t: torch.Tensor) -> torch.Tensor:
            parts = packed(t, text, 1)
            return torch.ops.fewbits.dequantize(*parts, text, list(t.shape), 1, torch.float32) * 2

    x = torch.rand(5, 40)
    expected = fb.fake_quantize(x, text, axis=1) * 2
    assert torch.equal(Model()(x), expected)
    exported = torch.export.export(Model(), (x,))
    assert torch.equal(exported.module()(x), expected)
    assert any("fewbits.quantize" in str(node.target) for node in exported.graph.nodes)

    def stored(t: torch.Tensor) -> list[torch.Tensor]:
        return torch.ops.fewbits.quantize(t, 1, text, *default_arguments)

    default_arguments = default(text)
    compiled = torch.compile(stored, fullgraph=True, backend="aot_eager")
    for ours, theirs in zip(compiled(x), stored(x), strict=True):
        assert torch.equal(ours, theirs)
