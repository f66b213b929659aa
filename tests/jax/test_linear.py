"""fewbits.jax.linear computes what the layers of fewbits.nn compute, forward and backward."""

from typing import Any

import numpy as np
import pytest
import torch

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402  # JAX has to be there

import fewbits.jax as fj  # noqa: E402
from fewbits.errors import ArgumentError, DataError, DTypeError  # noqa: E402
from fewbits.formats import parse  # noqa: E402
from fewbits.jax.linear import followed, operand  # noqa: E402
from fewbits.nn import prepare  # noqa: E402
from fewbits.nn.layer_precision import LayerPrecision  # noqa: E402
from fewbits.recipes import recipe  # noqa: E402
from fewbits.recipes.recipe import OPERANDS  # noqa: E402

DTYPES = {torch.float32: jnp.float32, torch.bfloat16: jnp.bfloat16, torch.float16: jnp.float16}
UNIT = {jnp.float32: 2.0**-24, jnp.bfloat16: 2.0**-8, jnp.float16: 2.0**-11}


def wide(x: Any) -> Any:
    """Return an array of JAX or a tensor as float64."""
    return np.asarray(
        x.detach().double() if isinstance(x, torch.Tensor) else x.astype(jnp.float32), np.float64
    )


def assert_close(
    ours: jax.Array, theirs: torch.Tensor, magnitude: Any, terms: int, rounded: Any = None
) -> None:
    """Fail beyond what two orders of float32 sums differ by, each rounded once: to its dtype, if not said."""
    rounded = rounded or DTYPES[theirs.dtype]
    bound = 2 * (terms + 2) * 2.0**-24 * magnitude
    bound = bound + (2 * UNIT[rounded] * np.abs(wide(theirs)) if rounded != jnp.float32 else 0)
    assert (np.abs(wide(ours) - wide(theirs)) <= bound).all()


@pytest.mark.parametrize("name", ["mxfp8", "bf16-only", "fp16-master", "mxfp4", "mx6", "tf32", "fp8-lm"])
def test_a_layer_is_that_of_fewbits_nn_forward_and_backward(name: str) -> None:
    rng = np.random.default_rng(0)
    x, g = rng.standard_normal((6, 5, 100)), rng.standard_normal((6, 5, 70))
    torch.manual_seed(0)
    layer = torch.nn.Linear(100, 70)
    prepare(torch.nn.Sequential(torch.nn.Identity(), layer), name)  # the last layer of its model
    inputs = torch.tensor(x, dtype=torch.float32, requires_grad=True)
    y = layer(inputs)
    y.backward(torch.tensor(g).to(y.dtype))

    dtype = DTYPES[layer.weight.dtype]
    w, b = (jnp.asarray(p.detach().float().numpy()).astype(dtype) for p in (layer.weight, layer.bias))

    @jax.jit
    def computed(x: jax.Array, w: jax.Array, b: jax.Array, g: jax.Array) -> Any:
        y, back = jax.vjp(lambda *args: fj.linear(args[0], args[1], name, bias=args[2], last=True), x, w, b)
        return y, back(g.astype(y.dtype))

    ours, (of_x, of_w, of_b) = computed(jnp.asarray(x, jnp.float32), w, b, jnp.asarray(g, jnp.float32))
    assert ours.dtype == DTYPES[y.dtype]
    a, c, d = np.abs(x).reshape(-1, 100), np.abs(wide(layer.weight)), np.abs(g).reshape(-1, 70)
    assert inputs.grad is not None
    assert layer.weight.grad is not None
    assert layer.bias.grad is not None
    assert_close(ours, y, ((a @ c.T) + np.abs(wide(b))).reshape(y.shape), 100)
    assert_close(of_x, inputs.grad, (d @ c).reshape(x.shape), 70, rounded=dtype)
    assert_close(of_w, layer.weight.grad, d.T @ a, 30)
    assert_close(of_b, layer.bias.grad, d.sum(0), 30)
    if name == "mxfp8":  # the negative control: the same layer in another format, or without its own rounding
        other, back = jax.vjp(lambda x, w: fj.linear(x, w, "mxfp6", bias=b), jnp.asarray(x, jnp.float32), w)
        with pytest.raises(AssertionError):
            assert_close(other, y, ((a @ c.T) + np.abs(wide(b))).reshape(y.shape), 100)
        with pytest.raises(AssertionError):
            assert_close(back(jnp.asarray(g, other.dtype))[1], layer.weight.grad, d.T @ a, 30)


def test_each_product_rounds_along_the_axis_that_it_sums_over() -> None:
    """Against the definition of each product: operands by fake_quantize, sums in float64."""
    rng = np.random.default_rng(1)
    x, w, g = (np.float32(rng.standard_normal(s)) for s in ((40, 64), (33, 64), (40, 33)))
    mine = recipe("mxfp4:vector=fp32,logit_gradient=yes")

    def rounded(value: Any, axis: int, rule: str = "floor") -> Any:
        return np.asarray(fj.fake_quantize(value, "mxfp4", axis=axis, scale_rule=rule), np.float64)

    y, back = jax.vjp(lambda x, w: fj.linear(x, w, mine), jnp.asarray(x), jnp.asarray(w))
    of_x, of_w = back(jnp.asarray(g))
    assert np.allclose(y, rounded(x, 1) @ rounded(w, 1).T, atol=1e-4)
    assert np.allclose(of_x, rounded(g, 1, "rceil") @ rounded(w, 0), atol=1e-4)
    assert np.allclose(of_w, rounded(g, 0, "rceil").T @ rounded(x, 0), atol=1e-4)
    assert not np.allclose(of_w, rounded(g, 1, "rceil").T @ rounded(x, 1), atol=1e-2)


def test_the_gradient_of_the_logits_stays_where_the_recipe_says_so() -> None:
    x, w, g = jnp.ones((2, 32)), jnp.ones((32, 32)), jnp.linspace(0.1, 1.1, 64).reshape(2, 32)
    found = [jax.vjp(lambda w, last=last: fj.linear(x, w, "mx6", last=last), w)[1](g.astype(jnp.bfloat16))[0]
             for last in (True, False)]  # fmt: skip
    assert not np.array_equal(*found)


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("name", ["mxfp4", "fp8-stochastic:activation=fp8_e4m3,gradient=fp8_e5m2", "mx6"])
def test_operands_are_those_of_the_layers_bit_for_bit(name: str, first: bool, last: bool) -> None:
    layers = [torch.nn.Linear(64, 64) for _ in range(3)]
    prepare(torch.nn.Sequential(*layers), name)
    layer = layers[0 if first else -1 if last else 1]
    if first and last:
        layer = torch.nn.Linear(64, 64)
        prepare(torch.nn.Sequential(layer), name)
    precision = layer.precision
    assert isinstance(precision, LayerPrecision)
    mine = followed(recipe(name), first, last)
    x = np.float32(np.random.default_rng(0).standard_normal((64, 64)) * 300)
    x[0, 0] = 1e6  # beyond fp8_e5m2, which a dynamic loss scale has to see
    for role in OPERANDS:
        for axis in (0, 1):
            theirs = precision.round(role, torch.from_numpy(x), axis)
            ours = operand(role, jnp.asarray(x), axis, mine, last, None)
            assert np.array_equal(np.asarray(ours).view(np.uint32), theirs.numpy().view(np.uint32)), (
                role,
                axis,
            )


def test_a_layer_promotes_nothing_where_jax_is_set_to_refuse_it() -> None:
    def loss(x: jax.Array, w: jax.Array, bias: jax.Array) -> jax.Array:
        return fj.linear(x, w, "mxfp8", bias=bias).sum()

    given = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((2, 3, 64), (8, 64), (8,))]
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        found = jax.eval_shape(jax.grad(loss, (0, 1, 2)), *given)
    assert [g.shape for g in found] == [x.shape for x in given]


def test_operands_are_drawn_with_a_key_and_other_keys_draw_others() -> None:
    x, w = jax.random.normal(jax.random.key(0), (16, 64)), jax.random.normal(jax.random.key(1), (8, 64))

    @jax.jit
    def gradients(key: jax.Array) -> Any:
        return jax.grad(lambda w: fj.linear(x, w, "fp8-stochastic", key=key).sum().astype(jnp.float32))(w)

    one, same, other = (gradients(jax.random.key(seed)) for seed in (3, 3, 4))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("amp-bf16", "'amp-bf16' has autocast, which is PyTorch's, which fewbits.jax does not do"),
        ("add-multiply", "product=add"),
        ("muppet", "schedule=muppet"),
        ("posit8:schedule=", "a shift of its operands"),
        ("ternary", "scales chosen from a mean"),
        ("fp8-stochastic", "key=None with recipe 'fp8-stochastic'"),
        ("mxfp9", "there is no recipe 'mxfp9'"),
    ],
)
def test_what_a_product_does_not_do_is_refused(name: str, message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        fj.linear(jnp.ones((2, 32)), jnp.ones((4, 32)), name)


@pytest.mark.parametrize("name", ["fp32", "mxfp8"])
@pytest.mark.parametrize(
    ("n", "k", "rows"),
    [(3, 0, (2,)), (3, 0, ()), (3, 0, (0,)), (0, 32, (2, 3)), (0, 32, (0,)), (0, 32, ()), (0, 0, (2, 3))],
)
def test_a_layer_without_columns_or_rows_is_that_of_the_plain_product(
    n: int, k: int, rows: tuple[int, ...], name: str
) -> None:
    x, w, b = jnp.ones((*rows, k)), jnp.ones((n, k)), jnp.ones(n)
    y, back = jax.vjp(lambda *a: fj.linear(a[0], a[1], name, bias=a[2]).astype(jnp.float32), x, w, b)
    wanted, plain = jax.vjp(lambda x, w, b: x @ w.T + b, x, w, b)
    assert y.shape == wanted.shape
    assert np.array_equal(y, wanted)
    for found, expected in zip(back(jnp.ones_like(y)), plain(jnp.ones_like(y)), strict=True):
        assert found.shape == expected.shape
        assert np.array_equal(found, expected)


@pytest.mark.parametrize(
    ("x", "weight", "bias"),
    [
        ((3, 32), (3, 32), (1,)),
        ((3, 32), (3, 32), (3, 3)),
        ((3, 32), (3, 32), ()),
        ((3, 31), (3, 32), None),
        ((3, 32), (32,), None),
        ((), (3, 1), None),
    ],
)
def test_shapes_that_are_not_those_of_a_layer_are_refused(x: Any, weight: Any, bias: Any) -> None:
    given = None if bias is None else jnp.zeros(bias)
    with pytest.raises(ArgumentError, match=r"linear of x .*; expected \(..., k\), \(n, k\)"):
        fj.linear(jnp.ones(x), jnp.ones(weight), "mxfp8", bias=given)


def test_what_is_no_array_of_real_numbers_is_refused_by_name() -> None:
    x, w = np.ones((2, 32), np.float32), np.ones((4, 32), np.float32)
    packed = fj.NarrowArray(
        jnp.zeros((4, 32), jnp.uint8), None, None, None, parse("fp8_e4m3"), 32, -1, w.dtype
    )
    for a, b, bias, message in (
        (x * 1j, w, None, "x is an array of complex64; expected real numbers"),
        (x, w, w[:, 0] * 1j, "bias is an array of complex64"),
        (x, w.tolist(), None, "weight is a list; expected an array of real numbers"),
        (x, packed, None, r"weight is a NarrowArray; .* call .dequantize\(\) first"),
    ):
        with pytest.raises(DTypeError, match=message):
            fj.linear(a, b, "mxfp8", bias=bias)
    for given, told in (
        (jax.random.split(jax.random.key(0), (2, 32)), "x is an array of key<fry>; expected real numbers"),
        (np.ma.array(x, mask=x > 0), "x is a MaskedArray; expected an array"),
    ):
        with pytest.raises(DTypeError, match=told):
            fj.linear(given, w, "mxfp8")
    assert fj.linear(x > 0, w, "fp32", bias=w[:, 0])[0, 0] == 33


@pytest.mark.parametrize("kind", [">f4", "<f4", ">f2", "f8", "i4", "i1", "?", jnp.float8_e4m3fn])
def test_real_numbers_of_any_type_are_multiplied(kind: Any) -> None:
    x, w, bias = (np.resize(np.float32([1, 0, 1]), shape).astype(kind) for shape in ((2, 32), (4, 32), (4,)))
    wanted = x.astype(np.float64) @ w.astype(np.float64).T + bias.astype(np.float64)
    name = "fp32:forward_weight=fp8_e4m3"  # which has all of the values
    assert np.array_equal(fj.linear(x, w, name, bias=bias), wanted)
    with jax.enable_x64(True):
        whole = jnp.asarray(w.astype(np.float64))  # JAX has it as float32 where that is off
        assert np.array_equal(fj.linear(x, whole, name, bias=bias), wanted)


def test_nan_passes_a_format_without_it_under_grad_without_jit() -> None:
    x, w, name = jnp.ones((2, 4)), jnp.ones((3, 4)), "fp32:forward_activation=int8,dx_gradient=int8"
    bad = x.at[0, 0].set(jnp.nan)

    def loss(x: jax.Array, scale: float) -> jax.Array:
        return fj.linear(x, w, name).sum() * scale

    value, gradient = jax.value_and_grad(loss)(bad, 1.0)
    assert np.isnan(value)
    assert (gradient == 3).all()
    assert np.isposinf(jax.grad(loss)(x, jnp.inf)).all()
    with pytest.raises(DataError, match="holds 1 NaN and infinities"):
        loss(bad, 1.0)
