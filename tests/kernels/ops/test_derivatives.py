"""Derivatives of rounding in every mode, held against a straight-through model made of sums alone."""

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import fewbits as fb
from fewbits.errors import ArgumentError
from fewbits.kernels import ops
from fewbits.kernels.arrays import products
from fewbits.kernels.bits.options import Choices
from fewbits.kernels.ops.backends import force_backend

# torch scripts a few of its own formulas when forward mode is first used.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")

Function = Callable[[torch.Tensor], torch.Tensor]
X = torch.randn(40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
V = torch.randn(40, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
FORMATS = ("mxfp4", "mx6", "nvfp4", "fp8_e4m3", "int8_channel", "posit8_1", "fp8-tensor")
TENSOR = "block(element=fp8_e4m3,scale=e8m0,size=tensor)"


def rounded(x: torch.Tensor, name: str) -> torch.Tensor:
    return fb.fake_quantize(x, TENSOR if name == "fp8-tensor" else name)


def straight_through(name: str) -> Function:
    """Return the value of rounding X with the derivative of the identity, by no operator of this package."""
    q, at = rounded(X, name), X.clone()
    return lambda x: q + (x - at)


def loss(rounding: Function, x: torch.Tensor) -> torch.Tensor:
    return (rounding(x * 1.0) ** 3 * V).sum() + (rounding(x) * x).sum()


def by_dual_numbers(f: Function, x: torch.Tensor) -> torch.Tensor:
    with forward_ad.dual_level():
        dual = f(forward_ad.make_dual(x, V))
        tangent: torch.Tensor = forward_ad.unpack_dual(dual).tangent
    return tangent


def by_two_backward_passes(f: Function, x: torch.Tensor) -> torch.Tensor:
    x = x.clone().requires_grad_()
    (g,) = torch.autograd.grad(f(x), x, create_graph=True)
    (h,) = torch.autograd.grad(g @ V, x)
    return h


WAYS: dict[str, Callable[[Function, torch.Tensor], torch.Tensor]] = {
    "grad": lambda f, x: grad(f)(x),
    "vjp": lambda f, x: vjp(f, x)[1](torch.tensor(2.0, dtype=x.dtype))[0],
    "jvp": lambda f, x: jvp(f, (x,), (V,))[1],
    "dual numbers": by_dual_numbers,
    "forward over reverse": lambda f, x: jvp(grad(f), (x,), (V,))[1],
    "reverse over forward": lambda f, x: grad(lambda y: jvp(f, (y,), (V,))[1])(x),
    "reverse over reverse": lambda f, x: grad(lambda y: grad(f)(y) @ V)(x),
    "two backward passes": by_two_backward_passes,
    "hessian": lambda f, x: hessian(f)(x),
    "jacrev of grad": lambda f, x: jacrev(grad(f))(x),
    "jacfwd": lambda f, x: jacfwd(f)(x),
    "third": lambda f, x: grad(lambda y: hessian(f)(y).sum())(x),
}


@pytest.mark.parametrize("name", FORMATS)
def test_every_derivative_is_that_of_a_model_made_of_sums(name: str) -> None:
    ours, theirs = partial(loss, partial(rounded, name=name)), partial(loss, straight_through(name))
    assert torch.equal(ours(X), theirs(X))
    for way, derivative in WAYS.items():
        expected = derivative(theirs, X)
        assert expected.abs().sum() > 0, way
        torch.testing.assert_close(derivative(ours, X), expected, rtol=1e-12, atol=1e-12, msg=way)


def test_compiled_derivatives_are_the_same() -> None:
    f = partial(loss, partial(rounded, name="mxfp4"))
    torch._dynamo.reset()
    whole = partial(WAYS["forward over reverse"], f)
    torch.testing.assert_close(torch.compile(whole, backend="aot_eager")(X), whole(X))
    compiled = torch.compile(f, backend="aot_eager")
    torch.testing.assert_close(by_dual_numbers(compiled, X), by_dual_numbers(f, X))


def test_without_a_tangent_there_is_none() -> None:
    with forward_ad.dual_level():
        _, tangent = forward_ad.unpack_dual(fb.fake_quantize(X, "mxfp4"))
    assert tangent is None
    with torch.no_grad():
        assert not fb.fake_quantize(X.clone().requires_grad_(), "mxfp4").requires_grad


def test_a_dual_number_through_a_backward_pass() -> None:
    x = X.clone().requires_grad_()
    with forward_ad.dual_level():
        y = loss(partial(rounded, name="mxfp4"), forward_ad.make_dual(x, V))
        (g,) = torch.autograd.grad(y, x, create_graph=True)
        mixed = forward_ad.unpack_dual(g).tangent
    torch.testing.assert_close(mixed, hessian(partial(loss, straight_through("mxfp4")))(X) @ V)


BATCH = (
    torch.randn(3, 5, 40, generator=torch.Generator().manual_seed(2))
    * torch.tensor([1.0, 30, 2e-3])[:, None, None]
)


def each(f: Function, x: torch.Tensor, dim: int) -> torch.Tensor:
    return torch.stack([f(one) for one in x.unbind(dim)])


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_vmap_rounds_each_as_a_loop_does(name: str, dim: int) -> None:
    fmt = TENSOR if name == "fp8-tensor" else name
    for axis in (0, -1):
        for options in ({}, {"rounding": "stochastic", "generator": 7}):
            one = partial(fb.fake_quantize, format=fmt, axis=axis, **options)
            with warnings.catch_warnings():
                warnings.simplefilter("error")  # torch's slow loop would warn
                found = vmap(one, in_dims=dim)(BATCH)
            assert torch.equal(found, each(one, BATCH, dim))
    scalars = BATCH[0, 0]
    assert torch.equal(
        vmap(partial(fb.fake_quantize, format=fmt))(scalars),
        each(partial(fb.fake_quantize, format=fmt), scalars, 0),
    )
    inner = partial(each, partial(fb.fake_quantize, format=fmt), dim=0)
    assert torch.equal(vmap(vmap(partial(fb.fake_quantize, format=fmt)))(BATCH), each(inner, BATCH, 0))


def test_a_nan_spoils_its_own_example_alone() -> None:
    x = BATCH.clone()
    x[1, 2, 3] = torch.nan
    found = vmap(partial(fb.fake_quantize, format=TENSOR, nonfinite="block_nan"))(x)
    assert found[1].isnan().all()
    assert not found[[0, 2]].isnan().any()
    assert vmap(partial(fb.fake_quantize, format=TENSOR))(x[:0]).shape == (0, 5, 40)


def test_vmap_of_gradients_is_a_loop_of_gradients() -> None:
    f = partial(loss, partial(rounded, name="mxfp4"))
    batch = torch.stack([X, 2 * X, -X])
    torch.testing.assert_close(vmap(grad(f))(batch), each(grad(f), batch, 0), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(vmap(hessian(f))(batch), each(hessian(f), batch, 0), rtol=1e-12, atol=1e-12)


def test_functional_call_sees_the_parameters_that_it_is_given() -> None:
    class Rounded(torch.nn.Linear):
        def forward(self, input: torch.Tensor) -> torch.Tensor:
            return input @ fb.fake_quantize(self.weight, "mxfp4").t()

    layer, x = Rounded(40, 3, bias=False), torch.randn(2, 40)
    other = torch.randn(3, 40)
    assert torch.equal(
        functional_call(layer, {"weight": other}, (x,)), x @ fb.fake_quantize(other, "mxfp4").t()
    )
    found = grad(lambda w: functional_call(layer, {"weight": w}, (x,)).sum())(other)
    torch.testing.assert_close(found, x.sum(0).expand(3, 40))


def test_vmap_of_a_packed_result_is_refused() -> None:
    def stored(x: torch.Tensor) -> torch.Tensor:
        return fb.quantize(x, "mxfp4").dequantize()

    with pytest.raises(ArgumentError, match=r"under torch\.vmap; a packed tensor is not one of a batch"):
        vmap(stored)(BATCH)


@pytest.mark.parametrize("given", [(0, 1), (0,), (1,)])
def test_the_product_of_bfloat16_values_has_all_its_derivatives(
    given: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "bfloat16_product", lambda a, b, out: out.__setitem__(..., a @ b))
    a, b = torch.randn(3, 4).bfloat16().float(), torch.randn(4, 5).bfloat16().float()
    tangents = tuple(torch.randn_like(t) for t in (a, b))

    def derivatives(product: Callable[..., torch.Tensor]) -> Iterator[torch.Tensor]:
        def f(*some: torch.Tensor) -> torch.Tensor:
            whole: list[Any] = [a, b]
            for i, t in zip(given, some, strict=True):
                whole[i] = t
            return (product(*whole) ** 2).sum()

        at, along = tuple((a, b)[i] for i in given), tuple(tangents[i] for i in given)
        yield jvp(f, at, along)[1]
        yield from grad(f, tuple(range(len(given))))(*at)
        yield jvp(grad(f), at, along)[1]

    def any_product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return ops.rounded_product(x, w, (None, None))

    for ours in (ops.bfloat16_product, any_product):
        for found, expected in zip(derivatives(ours), derivatives(torch.matmul), strict=True):
            torch.testing.assert_close(found, expected)


def test_a_product_that_rounds_takes_a_batch_as_one_more_axis() -> None:
    x, w = torch.randn(4, 7, 64), torch.randn(64, 5)
    formats = (fb.format("mxint8"), fb.format("mxfp8_e4m3"))

    def product(row: torch.Tensor) -> torch.Tensor:
        return ops.rounded_product(row, w, formats, (Choices(), Choices()))

    torch.testing.assert_close(vmap(product)(x), torch.stack([product(one) for one in x]))


@pytest.fixture(params=["native", "portable"])
def _each_backend(request: pytest.FixtureRequest) -> Iterator[None]:
    force_backend(request.param)
    yield
    force_backend(None)


W = torch.randn(6, 64, generator=torch.Generator().manual_seed(3))
RESULTS: dict[str, Function] = {
    **{name: partial(rounded, name=name) for name in FORMATS},
    "one value": lambda x: rounded(x[0, 0], "fp8_e4m3"),
    "vectors": lambda x: fb.matvec(fb.quantize(W, "mxfp4"), x),
    "vectors in eight bits": lambda x: fb.matvec(fb.quantize(W, "mxfp4"), x, activation="int8_32"),
    "integers": lambda x: fb.matvec(fb.quantize(W, "ternary_channel"), x, activation="int8_channel"),
    "additions": lambda x: ops.addition_product(x, W.t()),
    "rounded": lambda x: fb.matmul(x, W.t(), "mxfp4"),
}


@pytest.mark.usefixtures("_each_backend")
@pytest.mark.parametrize("name", RESULTS)
def test_results_may_change_in_place(name: str) -> None:
    x = torch.randn(3, 64, requires_grad=True)
    (once,) = torch.autograd.grad(RESULTS[name](x).sum(), x)
    (twice,) = torch.autograd.grad(RESULTS[name](x).mul_(2).sum(), x)
    assert torch.equal(twice, 2 * once)


@pytest.mark.usefixtures("_each_backend")
@pytest.mark.parametrize("name", ["vectors", "vectors in eight bits", "integers"])
def test_vectors_may_change_once_they_are_multiplied_by_packed_weights(name: str) -> None:
    x = torch.randn(3, 64, requires_grad=True)
    given = x * 1.0
    y = RESULTS[name](given)
    given.add_(1)  # as a residual connection does
    (found,) = torch.autograd.grad(y.sum(), x)
    weight = fb.fake_quantize(W, "ternary_channel" if name == "integers" else "mxfp4")
    torch.testing.assert_close(found, weight.sum(0).expand(3, 64))
