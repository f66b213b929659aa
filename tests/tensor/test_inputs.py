"""Every everyday function with every odd input: the plain result, or one sentence that says what to do."""

import itertools
import re
import warnings
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import fewbits as fb
from fewbits.errors import FewbitsError
from fewbits.tensor.inputs import is_count

X = np.random.default_rng(0).standard_normal((4, 32)).astype(np.float32)
T = torch.from_numpy(X)

FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "quantize": lambda x: fb.quantize(x, "mxfp4").dequantize(),
    "fake_quantize": lambda x: fb.fake_quantize(x, "mxfp4"),
    "measure": lambda x: fb.measure(x, "mxfp4"),
    "qsnr": lambda x: fb.qsnr(x, fb.fake_quantize(X, "mxfp4")),
    "qsnr of the second": lambda x: fb.qsnr(X, x),
    "dequantize": fb.dequantize,
    "matmul": lambda x: fb.matmul(x, T.t(), "mxfp4"),
    "matmul of the second": lambda x: fb.matmul(T.t(), x, "mxfp4"),
    "matmul as it is": lambda x: fb.matmul(x, T.t()),
    "matvec": lambda x: fb.matvec(fb.quantize(T, "mxfp4"), x),
}

# What is told to do, for what cannot be rounded as it is.
ODD: dict[str, tuple[Callable[[], Any], str]] = {
    "complex array": (lambda: X.astype(np.complex64), "x.real and x.imag"),
    "complex tensor": (lambda: T.to(torch.complex64), "view_as_real"),
    "masked array": (lambda: np.ma.masked_array(X, X > 0), "x.filled"),
    "integers": (lambda: np.ones((4, 32), np.int32), "astype"),
    "integer tensor": (lambda: torch.ones(4, 32, dtype=torch.int32), "x.float()"),
    "booleans": (lambda: X > 0, "astype"),
    "boolean tensor": (lambda: T > 0, "x.float()"),
    "objects": (lambda: X.astype(object), "astype"),
    "long doubles": (lambda: X.astype(np.longdouble), "astype"),
    "float8 array": (lambda: X.astype(ml_dtypes.float8_e4m3fn), "astype"),
    "float4 array": (lambda: X.astype(ml_dtypes.float4_e2m1fn), "astype"),
    "float8 tensor": (lambda: T.to(torch.float8_e4m3fn), "from_torch"),
    "e8m0 tensor": (lambda: T.abs().to(torch.float8_e8m0fnu), "from_torch"),
    "float4 tensor": (
        lambda: torch.ones(4, 16, dtype=torch.uint8).view(torch.float4_e2m1fn_x2),
        "from_torch",
    ),
    "COO tensor": (T.to_sparse, "x.to_dense()"),
    "CSR tensor": (T.to_sparse_csr, "x.to_dense()"),
    "mkldnn tensor": (T.to_mkldnn, "x.to_dense()"),
    "nested tensor": (lambda: torch.nested.nested_tensor([T[0], T[1, :7]]), "x.unbind()"),
    "jagged tensor": (
        lambda: torch.nested.nested_tensor([T[0], T[1, :7]], layout=torch.jagged),
        "x.unbind()",
    ),
    "quantized tensor": (lambda: torch.quantize_per_tensor(T, 0.1, 0, torch.qint8), "x.dequantize()"),
    "packed tensor": (lambda: fb.quantize(T, "mxfp4"), "dequantize()"),
    "list": (X.tolist, "expected"),
    "integer": (lambda: 3, "expected"),
    "boolean": (lambda: True, "expected"),
    "complex number": (lambda: 1 + 2j, "expected"),
    "None": (lambda: None, "expected"),
    "text": (lambda: "mxfp4", "expected"),
    "bytes": (X.tobytes, "expected"),
}
PLAIN: dict[str, tuple[Any, Any]] = {  # each beside what it equals
    "read-only": (np.frombuffer(X.tobytes(), np.float32).reshape(X.shape), X),
    "big-endian": (X.astype(">f4"), X),
    "Fortran order": (np.asfortranarray(X), X),
    "broadcast": (np.broadcast_to(X[:1], X.shape), np.repeat(X[:1], 4, 0)),
    "backwards": (X[::-1, ::-1], X[::-1, ::-1].copy()),
    "expanded": (T[:1].expand(4, 32), T[:1].repeat(4, 1)),
    "transposed": (T.t().contiguous().t(), T),
    "parameter": (torch.nn.Parameter(T.clone()), T),
    "conjugate view": (torch.complex(T, -T).conj().imag, T),  # negated when it is read
    "inference": (torch.inference_mode()(T.clone)(), T),
    "subclass": (T.as_subclass(type("Own", (torch.Tensor,), {})), T),
    "memory map of Python": (np.asarray(memoryview(X)), X),
}


def told(call: Callable[[], Any]) -> str | None:
    """Return the sentence of a refusal, or None where there is none; any other error passes."""
    try:
        call()
    except FewbitsError as refused:
        return str(refused)
    return None


@pytest.mark.filterwarnings("ignore:.*(Sparse CSR|nested tensors|quantization|deprecated).*")
@pytest.mark.parametrize("kind", ODD)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_cannot_be_rounded_as_it_is_is_refused_with_the_remedy(name: str, kind: str) -> None:
    make, remedy = ODD[kind]
    x = make()
    if kind == "packed tensor" and name not in ("quantize", "fake_quantize", "measure", "qsnr"):
        assert told(lambda: FUNCTIONS[name](x)) is None  # products, qsnr and dequantize take it
        return
    if name == "qsnr of the second" and kind in ("float8 tensor", "e8m0 tensor"):
        assert told(lambda: FUNCTIONS[name](x)) is None  # it is measured, not rounded again
        return
    sentence = told(lambda: FUNCTIONS[name](x))
    assert sentence is not None
    assert "expected" in sentence
    assert "\n" not in sentence
    told_to = "NarrowTensor" if name == "dequantize" else "tensor" if name.startswith("mat") else remedy
    assert told_to in sentence


@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize("name", [n for n in FUNCTIONS if n != "dequantize"])
def test_what_only_looks_odd_gives_the_plain_result(name: str, kind: str) -> None:
    x, plain = PLAIN[kind]
    if isinstance(x, np.ndarray) and name.startswith("mat"):
        assert "torch.as_tensor" in str(told(lambda: FUNCTIONS[name](x)))
        return
    found, expected = FUNCTIONS[name](x), FUNCTIONS[name](plain)
    if isinstance(found, np.ndarray):
        assert np.array_equal(found, expected)
    elif isinstance(found, torch.Tensor):
        close = 1e-5 if name == "matmul as it is" else 0.0  # BLAS sums in the order that the strides suggest
        torch.testing.assert_close(found.as_subclass(torch.Tensor), expected, rtol=close, atol=close)
    else:
        assert found == expected


BOTH = (fb.quantize, fb.fake_quantize)


def rounded(function: Any, x: Any, name: str, **choices: Any) -> Any:
    """Return the values of either function."""
    y = function(x, name, **choices)
    return y.dequantize() if function is fb.quantize else y


@pytest.mark.parametrize("function", BOTH)
@pytest.mark.parametrize(
    "amax",
    [3, 3.0, np.float32(3), np.int64(3), np.float16(3), np.array(3.0), torch.tensor(3.0),
     torch.tensor(3, dtype=torch.int64), torch.tensor(3.0, dtype=torch.bfloat16)],
    ids=lambda v: f"{type(v).__name__} {getattr(v, 'dtype', '')}",
)  # fmt: skip
def test_an_amax_is_a_number_of_any_kind(function: Any, amax: Any) -> None:
    for x, name in itertools.product((X, T), ("int8_tensor", "nvfp4")):
        expected = np.asarray(rounded(function, x, name, amax=3.0))
        assert np.array_equal(np.asarray(rounded(function, x, name, amax=amax)), expected)
        assert not np.array_equal(np.asarray(rounded(function, x, name)), expected)


@pytest.mark.parametrize("function", BOTH)
@pytest.mark.parametrize(
    "amax",
    [True, np.True_, torch.tensor(True), -1.0, np.nan, np.inf, 1j, "3", [3.0], np.ones(1), torch.ones(1)],
)
def test_an_amax_that_is_no_magnitude_is_refused(function: Any, amax: Any) -> None:
    for x in (X, T):
        sentence = told(lambda x=x: function(x, "int8_tensor", amax=amax))
        assert "is not a finite number from 0 up" in str(sentence)


@pytest.mark.parametrize("function", BOTH)
@pytest.mark.parametrize("name", ["mxfp4", "mx6", "fp8_e4m3", "int8_channel", "vsq8", "posit8_1"])
def test_an_amax_that_would_have_no_effect_is_refused(function: Any, name: str) -> None:
    for x in (X, T):
        sentence = told(lambda x=x: function(x, name, amax=3.0))
        assert f"amax=3.0 for {name}; only a scale of a whole tensor" in str(sentence)


@pytest.mark.parametrize("function", BOTH)
def test_a_seed_is_an_integer_of_any_kind(function: Any) -> None:
    for x in (X, T):
        expected = np.asarray(rounded(function, x, "mxfp4", rounding="stochastic", generator=3))
        for seed in (np.int64(3), np.uint8(3)):
            found = rounded(function, x, "mxfp4", rounding="stochastic", generator=seed)
            assert np.array_equal(np.asarray(found), expected)
        for wrong in (True, np.True_, -1, 2**63, 3.0, "3", None, np.array([3])):
            sentence = told(lambda x=x, w=wrong: function(x, "mxfp4", rounding="stochastic", generator=w))
            assert "needs a seed from 0 to 2^63 - 1" in str(sentence)


@pytest.mark.parametrize("function", BOTH)
def test_a_generator_that_would_draw_nothing_is_refused(function: Any) -> None:
    for x in (X, T):
        for generator in (3, np.random.default_rng(0), torch.Generator()):
            sentence = told(lambda x=x, g=generator: function(x, "mxfp4", generator=g))
            assert "rounding='nearest_even', which draws nothing; leave it out" in str(sentence)


@pytest.mark.parametrize("sparsity", [3, 2.4, True, "2", "4:2", "2:4:8", (2, 4), b"2:4", 0])
def test_a_pattern_that_is_none_is_refused(sparsity: Any) -> None:
    for x in (X, T):
        assert told(lambda x=x: fb.quantize(x, "mxfp4", sparsity=sparsity)) is not None


SHAPES = (
    (),
    (3,),
    (32,),
    (2, 32),
    (32, 2),
    (3, 2, 32),
    (3, 32, 2),
    (1, 32, 2),
    (2, 32, 2),
    (0, 32),
    (2, 1, 32, 5),
)


def test_a_product_is_refused_exactly_where_torch_has_none() -> None:
    weight = fb.quantize(torch.ones(5, 32), "mxfp4")
    for left, right in itertools.product(SHAPES, SHAPES):
        a, b = torch.ones(left), torch.ones(right)
        try:
            expected = torch.matmul(a, b)
        except RuntimeError:
            for fmt in (None, "mxfp4"):
                sentence = told(lambda a=a, b=b, fmt=fmt: fb.matmul(a, b, fmt))
                assert re.match(r"a @ b of shapes .*; expected .*: ", str(sentence)), (left, right)
        else:
            assert torch.equal(fb.matmul(a, b), expected)
            assert fb.matmul(a, b, "mxfp4").shape == expected.shape
        if left and left[-1] == 32:
            assert fb.matvec(weight, a).shape == (*left[:-1], 5)
        else:
            assert "expected (n, k) and (..., k)" in str(told(lambda a=a: fb.matvec(weight, a)))


def test_a_product_of_two_dtypes_is_refused_by_name() -> None:
    for a, b in ((T, T.double()), (fb.quantize(T, "mxfp4"), T.bfloat16())):
        assert "expected one dtype" in str(told(lambda a=a, b=b: fb.matmul(a, b.t())))
        assert "expected one dtype" in str(told(lambda a=a, b=b: fb.matvec(b, a)))


def test_functions_of_torch_refuse_a_packed_operand_of_another_dtype_by_name() -> None:
    q, x, bias = fb.quantize(torch.ones(5, 32), "mxfp4"), torch.ones(3, 32), torch.ones(5)
    products = (
        lambda x: torch.nn.functional.linear(x, q),
        lambda x: torch.nn.functional.linear(x, q, bias),
        lambda x: x @ q.t(),
        lambda x: q @ x.t(),
        lambda x: torch.mv(q, x[0]),
        lambda x: torch.bmm(x[None], q.t()[None]),
        lambda x: fb.quantize(x, "mxfp4") @ q.t(),
    )
    for product in products:
        assert product(x).dtype == torch.float32
        for other in (torch.float64, torch.bfloat16):
            assert f"{other}" in str(told(lambda p=product, o=other: p(x.to(o))))
            assert "expected one dtype" in str(told(lambda p=product, o=other: p(x.to(o))))


def test_odd_values_of_the_other_arguments_are_refused() -> None:
    wrong: dict[str, tuple[Any, ...]] = {
        "axis": (0.5, True, None, "0", 2, np.array([1]), [0]),
        "rounding": ("odd", None, 3, ["up"]),
        "scale_rule": ("odd", None, 1.75),
        "overflow": ("odd", 3, True),
        "nonfinite": ("odd", 3, True),
        "zero_block": ("odd", 3, True),
    }
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for function, x, (name, values) in itertools.product(BOTH, (X, T), wrong.items()):
            for value in values:
                assert told(lambda f=function, x=x, n=name, v=value: f(x, "mxfp4", **{n: v})), (name, value)
    for fmt in (3, None, ["mxfp4"], b"mxfp4", np.float32):
        for function in BOTH:
            assert "a format is written as text" in str(told(lambda f=function, fmt=fmt: f(X, fmt)))


def test_counts_are_whole_numbers_of_python_or_numpy_and_no_truth_values() -> None:
    assert all(is_count(n) for n in (1, 7, np.int64(3), np.uint8(1)))
    assert not any(
        is_count(n) for n in (0, -1, 1.0, np.float32(2), True, np.True_, "1", None, np.ones(1, int))
    )
    assert is_count(0, 0)
    assert is_count(np.int8(-2), -2)
    assert not any(is_count(n, 0) for n in (-1, False, 0.0))
