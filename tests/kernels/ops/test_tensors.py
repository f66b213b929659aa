"""Results of operators: memory that torch owns, and the values that the kernels give NumPy users."""

from collections.abc import Callable, Iterator

import pytest
import torch

import fewbits as fb
from fewbits import kernels
from fewbits.formats import parse
from fewbits.formats.pattern import pattern
from fewbits.kernels import native, ops
from fewbits.kernels.arrays import nm
from fewbits.kernels.bits.options import options
from fewbits.kernels.ops import tensors
from fewbits.kernels.ops.counter_uniform import counter_uniform
from tests import cases

X = torch.randn(6, 64, generator=torch.Generator().manual_seed(0))
SPARSE = X * (torch.arange(64) % 2)
FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
Results = Callable[[], list[torch.Tensor]]


def parts(q: fb.NarrowTensor) -> list[torch.Tensor]:
    return [part for part in q.pieces if part is not None]


def both(*names: str) -> list[torch.Tensor]:
    formats = [parse(name) for name in names]
    chosen = [options(format).text for format in formats]
    found = torch.ops.fewbits.quantize_both(X, *(format.grammar for format in formats), *chosen)
    wanted = [
        p for name, axis in zip(names, (1, 0), strict=True) for p in parts(fb.quantize(X, name, axis=axis))
    ]
    assert all(torch.equal(*pair) for pair in zip(found, wanted, strict=True))
    return list(found)


# Every operator by its name, so that a new one has to appear here.
RESULTS: dict[str, Results] = {
    "fake_quantize": lambda: [fb.fake_quantize(X.to(d), "mxfp4") for d in FLOATS],
    "quantize": lambda: [p for name in ("mxfp4", "mx6", "nvfp4") for p in parts(fb.quantize(X, name))],
    "quantize_both": lambda: both("mxfp4", "mxfp8_e4m3"),
    "dequantize": lambda: [fb.quantize(X.to(d), "mxfp4").dequantize() for d in FLOATS],
    "gemv": lambda: [X[:2] @ fb.quantize(X, "mxfp4").t()],
    "gemv_int8": lambda: [fb.matvec(fb.quantize(X, "mxfp4"), X[:2], activation="int8_32")],
    "plane_product": lambda: [
        fb.matvec(fb.quantize(X, "ternary_channel", scale_rule="twn"), X[:2], activation="int8_channel")
    ],
    "all_finite": lambda: [torch.ops.fewbits.all_finite(X, "mxfp4")],
    "bfloat16_product": lambda: [ops.bfloat16_product(X.bfloat16().float(), X.t().bfloat16().float())],
    "rounded_product": lambda: [fb.matmul(X, X.t(), "mxint8")],
    "addition_product": lambda: [ops.addition_product(X, X.t().contiguous())],
    "compress": lambda: parts(fb.quantize(SPARSE, "mxfp4", sparsity="2:4")),
    "expand": lambda: parts(fb.quantize(SPARSE, "mxfp4", sparsity="2:4").with_all_codes()),
}


def names() -> Iterator[str]:
    for schema in torch._C._jit_get_all_schemas():
        if schema.name.startswith("fewbits::"):
            yield schema.name.removeprefix("fewbits::")


def test_the_table_has_every_operator() -> None:
    assert set(names()) == set(RESULTS)


@pytest.mark.parametrize("name", RESULTS)
def test_every_result_lies_in_memory_that_torch_can_resize(name: str) -> None:
    if name == "bfloat16_product" and not native.has_bfloat16_products():
        pytest.skip("the CPU has no products of bfloat16")
    for found in RESULTS[name]():
        assert found.untyped_storage().resizable()
        assert found.data_ptr() % 64 == 0  # a line of the cache: wide stores do not cross into the next
        found.untyped_storage().resize_(0)


def test_parts_of_numpy_arrays_and_drawn_values_lie_there_too() -> None:
    stored = parts(fb.quantize(X.numpy(), "nvfp4"))
    for found in (*stored, counter_uniform(1, 0, 100, 1.0, torch.device("cpu"))):
        assert found.untyped_storage().resizable()
    assert not torch.from_numpy(X.numpy().copy()).untyped_storage().resizable()  # what the test rejects


@pytest.mark.parametrize("name", ["mxfp4", "nvfp4"])
def test_what_is_rounded_and_restored_stays_resizable(name: str) -> None:
    """Tensor.numpy would forbid it, and a gathered parameter is resized after every use."""
    x = X.clone()
    q = fb.quantize(x, name)
    fb.fake_quantize(x, name)
    fb.fake_quantize(torch.zeros_like(x), name, out=x)
    q.dequantize()
    fb.quantize(SPARSE, name, sparsity="2:4").dequantize()
    x[:2] @ q.t()
    fb.matmul(q, q.t())
    for touched in (x, *parts(q)):
        assert touched.untyped_storage().resizable()


def test_a_tensor_whose_sign_is_only_noted_is_read_with_it() -> None:
    negated = torch.complex(X, X).conj().imag
    assert negated.is_neg()
    assert torch.equal(fb.fake_quantize(negated, "mxfp4"), fb.fake_quantize(-X, "mxfp4"))
    assert torch.equal(fb.quantize(negated, "mxfp4"), fb.quantize(-X, "mxfp4"))


@pytest.mark.parametrize("fmt", cases.FORMATS, ids=cases.label)
def test_an_operator_gives_what_the_kernels_give_an_array(fmt: cases.Format) -> None:
    chosen = options(fmt)
    for dtype in FLOATS:
        x = X[:3, :41].to(dtype)
        own = kernels.fake_quantize(tensors.array(x), fmt, 1, chosen)
        given = fb.fake_quantize(x, fmt)
        assert (tensors.array(given).tobytes(), given.dtype) == (own.tobytes(), dtype)
        stored = kernels.quantize(tensors.array(x), fmt, 1, chosen)
        found = tensors.packed(fb.quantize(x, fmt).pieces)
        assert [None if p is None else p.tobytes() for p in found] == [
            None if p is None else p.tobytes() for p in stored
        ]


def test_streams_are_those_of_the_kernels() -> None:
    fmt, kept = fb.format("mxfp4"), pattern("2:4")
    q = fb.quantize(SPARSE, fmt)
    own = nm.compress(q.codes.numpy(), fmt, 64, kept)
    stream = ops.compress(q.codes, fmt, 64, kept)
    assert stream.numpy().tobytes() == own.tobytes()
    back = nm.expand(own, fmt, 64, kept)
    assert ops.expand(stream, fmt, 64, kept).numpy().tobytes() == back.tobytes()
