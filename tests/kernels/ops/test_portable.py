"""Operators of every kind with the portable backend forced: results are those of the compiled kernels."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

import fewbits as fb
from fewbits import kernels
from fewbits.errors import ArgumentError, DataError
from fewbits.formats import Format, parse, pattern
from fewbits.kernels import ops, portable
from fewbits.kernels.bits.options import Choices
from fewbits.kernels.ops.counter_uniform import counter_uniform
from fewbits.kernels.ops.tensors import array
from tests import cases
from tests.kernels.ops.test_flat import normal, views
from tests.native.definition import bits_of_part
from tests.native.gemv.test_planes import ACTIVATIONS, WEIGHTS
from tests.native.nm.test_stream import both, sparse
from tests.native.tally.test_tally import SHAPES, TYPES, values

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.fixture
def forced(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Force the portable backend, and list which of its functions run."""
    ran: list[str] = []

    def listed(name: str) -> Any:
        function = getattr(portable, name)

        def called(*args: Any) -> Any:
            ran.append(name)
            return function(*args)

        return called

    for name in portable.__all__:
        if name != "RowProduct":
            monkeypatch.setattr(portable, name, listed(name))
    kernels.force_backend("portable")
    yield ran
    kernels.force_backend(None)


def natively(function: Any, *args: Any) -> Any:
    """Call a function with the compiled kernels."""
    kernels.force_backend("native")
    try:
        return function(*args)
    finally:
        kernels.force_backend("portable")


def same(a: Any, b: Any) -> bool:
    """Return whether tensors, or structures of them, have the same bits; every NaN is the same."""
    if isinstance(a, torch.Tensor):
        alike = (a.shape, a.dtype) == (b.shape, b.dtype)
        if not a.is_floating_point():
            return alike and torch.equal(a, b)
        return alike and np.array_equal(bits_of_part(array(a)), bits_of_part(array(b)))
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return repr(a) == repr(b)


def flat(fmt: Format, n: int, dtype: torch.dtype, rounding: str) -> list[Any]:
    """Return all that flat operations make of some values."""
    x, residual, into = normal(n, dtype), normal(n + 1)[:n] * 0.01, normal(n + 2)[:n].clone()
    pieces, out = [views(fmt, n), views(fmt, n)], torch.full((n,), torch.nan, dtype=dtype)
    ops.quantize_flat(x, fmt, Choices(rounding), 5, pieces[0])
    ops.dequantize_flat(pieces[0], fmt, out)
    ops.dequantize_add(pieces[0], fmt, n, into)
    ops.quantize_with_feedback(x, residual, fmt, Choices(rounding), 5, pieces[1])
    return [*pieces, out, into, residual]


@pytest.mark.parametrize(
    ("fmt", "rows"),
    cases.by_first(cases.pairs(cases.FORMATS, (1, 33, 1025), DTYPES, ("nearest_even", "stochastic"))),
)
def test_flat_operations_have_the_bits_of_the_compiled_kernels(
    forced: list[str], fmt: Format, rows: list[Any]
) -> None:
    for n, dtype, rounding in rows:
        assert same(flat(fmt, n, dtype, rounding), natively(flat, fmt, n, dtype, rounding)), (n, dtype)
    assert set(forced) - {"is_finite"} == {"quantize", "dequantize"}


@pytest.mark.parametrize("dtype", DTYPES)
def test_top_k_and_magnitudes_are_those_of_the_compiled_kernels(
    forced: list[str], dtype: torch.dtype
) -> None:
    for n, k in ((0, 0), (1, 1), (5000, 50)):
        x = normal(n, dtype)
        assert same(ops.top_k(x, k), natively(ops.top_k, x, k))
        assert ops.largest_finite(x) == natively(ops.largest_finite, x)
    with pytest.raises(ArgumentError, match="k=9 of 8 values; expected 0 to 8"):
        ops.top_k(torch.ones(8), 9)
    assert set(forced) == {"top_k", "largest_finite"}


def test_initial_values_are_those_of_the_compiled_kernels(forced: list[str]) -> None:
    given = (7, 2**33 + 5, 1000, 0.3, torch.device("cpu"))
    assert same(counter_uniform(*given), natively(counter_uniform, *given))


@pytest.mark.parametrize("text", ["2:4", "2:5"])
def test_streams_are_those_of_the_compiled_kernels(forced: list[str], text: str) -> None:
    for fmt in cases.FORMATS:
        if not fmt.element.has_zero:
            continue
        q = natively(fb.quantize, sparse(text, 6, 700), fmt)
        codes = q.codes.reshape(2, 3, -1)
        streams = ops.compress(codes, fmt, q.shape[1], pattern(text))
        assert same(streams, natively(ops.compress, codes, fmt, q.shape[1], pattern(text))), fmt
        back = ops.expand(streams, fmt, q.shape[1], pattern(text))
        assert same(back, natively(ops.expand, streams, fmt, q.shape[1], pattern(text))), fmt
    assert set(forced) == {"compress", "expand"}


def test_lines_that_no_stream_holds_and_damaged_masks_are_refused(forced: list[str]) -> None:
    w = sparse("2:4", 5, 1024)
    w[3, 600:604] = w[4, 0:4] = 1.0
    q = natively(fb.quantize, w, "bf16")
    with pytest.raises(DataError, match="line 3 has a group of 4 with more than 2 values that are not zero"):
        q.compressed("2:4")
    _, q = natively(both, "2:4", "mxfp4", 4, 1024)
    q.codes[2, 70] ^= 1
    q.codes[2, 3] ^= 16
    with pytest.raises(DataError, match="line 2 has a mask that does not keep 2 of each 4"):
        q.with_all_codes()
    with pytest.raises(DataError, match="line 2 has a mask that does not keep 2 of each 4"):
        fb.NarrowTensor.from_parts(
            *q.pieces, format=q.format, shape=(4, 1024), axis=1, dtype=torch.float32, sparsity="2:4"
        )


def test_products_with_packed_weights_are_those_of_the_definition(forced: list[str]) -> None:
    q, x = natively(fb.quantize, normal(7 * 704).reshape(7, 704), "mxfp4"), normal(2 * 704).reshape(2, 704)
    assert same(
        fb.matvec(q, x, activation="int8_32"), natively(lambda: fb.matvec(q, x, activation="int8_32"))
    )
    wanted = x.double() @ natively(q.dequantize).double().t()
    for dtype, unit in ((torch.float32, 1e-5), (torch.bfloat16, 1e-2)):
        y = fb.matvec(q.to(dtype), x.to(dtype))
        assert y.dtype == dtype
        torch.testing.assert_close(y.double(), wanted, rtol=unit, atol=40 * unit)
    assert {"gemv", "gemv_int8"} <= set(forced)


@pytest.mark.parametrize("name", WEIGHTS)
def test_products_of_planes_are_those_of_the_compiled_kernels(name: str, forced: list[str]) -> None:
    for n, lines, batch in ((1, 1, 1), (700, 5, 3), (9001, 2, 1), (0, 3, 2)):
        q = natively(fb.quantize, normal(lines * n).reshape(lines, n) * 3, name)
        x = normal(batch * n).reshape(batch, n)
        if n and batch == 3:
            x[0], x[1, 3] = -0.0, torch.nan
        for activation in ACTIVATIONS:
            found = fb.matvec(q, x, activation=activation)
            assert same(found, natively(lambda a=activation, q=q, x=x: fb.matvec(q, x, activation=a))), (
                activation,
                n,
            )
    assert set(forced) >= {"plane_product"}


def test_long_lines_of_planes_are_summed_exactly(forced: list[str]) -> None:
    n = 2**18 + 1
    q, x = natively(fb.quantize, torch.ones(1, n), "ternary_channel"), torch.ones(1, n)
    x[0, ::2] = 126 / 127
    y = fb.matvec(q, x, activation="int8_channel")
    assert same(y, natively(lambda: fb.matvec(q, x, activation="int8_channel")))
    exact = np.float32(127 * (n // 2) + 126 * (n // 2 + 1))
    assert y.item() == exact * (np.float32(1) / np.float32(127))
    with pytest.raises(ArgumentError, match="expected ternary or binary weights"):
        torch.ops.fewbits.plane_product(x, q.codes, q.scales, 1, "int4", "int8_channel")


def test_a_gradient_flows_through_products_with_packed_weights(forced: list[str]) -> None:
    q = fb.quantize(normal(7 * 64).reshape(7, 64), "mxfp4")
    for activation in (None, "int8_32"):
        x = normal(2 * 64).reshape(2, 64).requires_grad_()
        fb.matvec(q, x, activation=activation).sum().backward()
        assert x.grad is not None
        torch.testing.assert_close(x.grad, q.dequantize().sum(0).expand(2, 64))


def test_products_of_matrices_are_those_of_the_compiled_kernels(forced: list[str]) -> None:
    a, b = normal(5 * 96).reshape(5, 96), normal(96 * 33).reshape(96, 33)
    assert same(ops.addition_product(a, b), natively(ops.addition_product, a, b))
    whole = a.bfloat16().float(), b.bfloat16().float()
    torch.testing.assert_close(ops.bfloat16_product(*whole), whole[0] @ whole[1])
    formats, choices = (parse("mxfp8_e4m3"), parse("mxint8")), (Choices(), Choices())
    for dtype in (torch.float32, torch.bfloat16):
        found = ops.rounded_product(a, b, formats, choices, dtype)
        exact = (
            fb.fake_quantize(a, formats[0], axis=1).double()
            @ fb.fake_quantize(b, formats[1], axis=0).double()
        )
        torch.testing.assert_close(
            found, exact.to(dtype), rtol=1e-2 if dtype == torch.bfloat16 else 1e-5, atol=1e-4
        )
        assert not torch.allclose(found.double(), a.double() @ b.double(), rtol=1e-4)  # the control


@pytest.mark.parametrize(
    ("fmt", "rows"), cases.by_first(cases.pairs(cases.FORMATS, SHAPES, TYPES, ("nearest_even", "down")))
)
def test_sums_of_errors_are_those_of_the_compiled_kernels(
    forced: list[str], fmt: Format, rows: list[Any]
) -> None:
    for shape, dtype, rounding in rows:
        chosen = kernels.options(fmt, rounding=rounding)
        given = values(fmt, shape, dtype)
        x = torch.from_numpy(given)
        x = x.view(torch.bfloat16) if dtype == kernels.BFLOAT16 else x
        assert repr(ops.tally(x, fmt, 1, chosen)) == repr(kernels.tally(given, fmt, 1, chosen)), (
            shape,
            rounding,
        )
    assert "tally" in forced


@pytest.mark.usefixtures("forced")
@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("ternary_tensor", {"scale_rule": "absmean"}),
        ("ternary_tensor", {"scale_rule": "twn"}),
        ("mxfp4", {"rounding": "stochastic", "seed": 5}),
        ("posit8_1", {"rounding": "stochastic", "seed": 5}),
    ],
)
def test_sums_of_what_the_whole_tensor_decides_are_those_of_the_compiled_kernels(
    name: str, given: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fewbits.kernels.arrays.tally.PIECE", 1000)
    fmt, x = parse(name), (normal(40 * 70).reshape(40, 70) * 8).round() / 8  # sums of eighths are exact
    for axis in (0, 1):
        chosen = kernels.options(fmt, **given)
        assert repr(ops.tally(x, fmt, axis, chosen)) == repr(kernels.tally(array(x), fmt, axis, chosen))


@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "int8_tensor", "fp16", "posit8_1", "mx6"])
def test_sums_of_what_is_not_finite_or_not_single_are_those_of_the_compiled_kernels(
    forced: list[str], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fewbits.kernels.arrays.tally.PIECE", 1000)
    fmt = parse(name)
    wild = normal(40 * 70).reshape(40, 70) * torch.exp2(torch.arange(70.0) - 35)
    wild[7, 3], wild[9, 1] = torch.inf, torch.nan
    for nonfinite in (None, "saturate"):
        chosen = kernels.options(fmt, nonfinite=nonfinite)
        for x in (wild, wild.t(), wild.double(), wild[:7].double(), wild.half()):
            for axis in (0, 1):
                wanted = kernels.tally(array(x.contiguous()), fmt, axis, chosen)
                assert repr(ops.tally(x, fmt, axis, chosen)) == repr(wanted), (nonfinite, x.dtype, axis)
