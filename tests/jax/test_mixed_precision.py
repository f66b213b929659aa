"""Casts, loss scaling and skipped steps: what MPX describes, with each gradient divided by its own scale."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest

jax = pytest.importorskip("jax")
optax = pytest.importorskip("optax")
equinox = pytest.importorskip("equinox")

import jax.numpy as jnp  # noqa: E402  # JAX has to be there

import fewbits.jax as fj  # noqa: E402
from fewbits.errors import ArgumentError, DTypeError  # noqa: E402
from fewbits.formats import parse  # noqa: E402
from fewbits.jax.trees import select  # noqa: E402


def tree() -> dict[str, Any]:
    return {
        "weight": jnp.ones((2, 2)),
        "array": np.ones(3, np.float32),
        "steps": jnp.arange(3),
        "mask": jnp.array([True, False]),
        "key": jax.random.key(0),
        "old_key": jax.random.PRNGKey(0),
        "rate": 0.1,
        "function": jnp.tanh,
        "nothing": None,
    }


def test_only_floating_point_arrays_are_cast() -> None:
    before = tree()
    after = fj.cast_tree(before, jnp.float16)
    assert after["weight"].dtype == after["array"].dtype == jnp.float16
    for name in ("steps", "mask", "key", "old_key"):
        assert after[name].dtype == before[name].dtype, name
    assert (after["rate"], after["function"], after["nothing"]) == (0.1, jnp.tanh, None)


def test_numpy_arrays_are_rounded_once_and_selected_with_numbers() -> None:
    x = np.array([1 + 2.0**-11 + 2.0**-40])  # float32 has the tie, which goes to 1
    assert fj.cast_tree(x, jnp.float16).astype(jnp.float32) == 1 + 2.0**-10
    new, old = (2, 2.5, np.float32(2), True, jnp.tanh), (1, 1.5, np.float32(1), False, jnp.sin)
    kept = select(jnp.asarray(False), new, old)
    assert (*map(float, kept[:4]), kept[4]) == (1, 1.5, 1, 0, jnp.tanh)
    assert (*map(float, select(jnp.asarray(True), new, old)[:4]),) == (2, 2.5, 2, 1)


def test_a_narrow_array_among_parameters_keeps_its_values_and_takes_no_step() -> None:
    ones, one = jnp.full(16, 0x22, jnp.uint8), jnp.full(2, 0x38, jnp.uint8)  # in E2M1 and in E4M3
    scale = np.float32(2.0**-31 + 2.0**-41)  # 0 in float16, and another one in bfloat16
    outer = jnp.full(1, scale)
    frozen = fj.NarrowArray(ones, one, None, outer, parse("nvfp4"), 32, -1, np.dtype(np.float32))
    wanted = np.full(32, scale)
    assert np.array_equal(fj.cast_tree({"q": frozen}, jnp.float16)["q"].dequantize(), wanted)
    parameters = {"q": frozen, "w": jnp.ones(32)}

    def loss(parameters: Any) -> jax.Array:
        assert parameters["q"].outer.dtype == jnp.float32
        return (parameters["q"].outer.sum() * 2.0**32 * parameters["w"]).sum()

    *_, finite, gradients = fj.filter_value_and_grad(loss, None)(parameters)
    assert finite
    assert gradients["q"] is None
    assert gradients["w"].any()
    unscaled = fj.DynamicLossScaling().unscale({"q": frozen, "w": jnp.full(32, 2.0**15)})
    assert np.array_equal(unscaled["q"].dequantize(), wanted)
    assert (unscaled["w"] == 1).all()
    optimizer = optax.sgd(0.1)
    state = optimizer.init({"q": None, "w": parameters["w"]})
    stepped, _ = fj.optimizer_update(parameters, optimizer, state, gradients, finite)
    # A narrow array in the state of an optimizer is no moment in the recipe's format.
    packing = fj.RecipeOptimizer(
        optax.chain(optimizer, optax.GradientTransformation(lambda p: frozen, lambda u, s, p: (u, s))),
        "bf16-only-nearest",
    )
    held, begun = packing.init(parameters)
    after, following = packing.update(held, begun, gradients)
    for kept in (stepped["q"], held["q"], after["q"], begun.inner[1], following.inner[1]):
        assert np.array_equal(kept.dequantize(), wanted)
    assert not np.array_equal(stepped["w"], parameters["w"])
    assert not np.array_equal(after["w"], held["w"])


@pytest.mark.parametrize(
    ("dtype", "before", "update", "wanted"),
    [
        (jnp.bfloat16, 1.0, 2.0**-8 + 2.0**-20, 1 + 2.0**-7),  # an update of bfloat16 is 2^-8: a tie, to 1
        (jnp.float16, 1.0, 2.0**-11 + 2.0**-23, 1 + 2.0**-10),
        (jnp.float16, -60000.0, 70000.0, 10000.0),  # beyond float16
    ],
)
def test_an_update_is_added_to_narrow_parameters_with_one_rounding(
    dtype: Any, before: float, update: float, wanted: float
) -> None:
    optimizer, parameters = optax.sgd(1.0), {"w": jnp.full(3, before, dtype)}
    other = jnp.float16 if dtype == jnp.bfloat16 else jnp.bfloat16
    found = []
    with jax.numpy_dtype_promotion("strict"):
        state = optimizer.init(parameters)
        for gradient in (jnp.float32(-update), other(-update)):  # no type of 16 bits holds the other
            gradients = {"w": jnp.broadcast_to(gradient, 3)}
            stepped, _ = fj.optimizer_update(parameters, optimizer, state, gradients, jnp.asarray(True))
            found.append(stepped["w"])
    assert {x.dtype for x in found} == {jnp.dtype(dtype)}
    assert found[0].astype(jnp.float32).tolist() == [wanted] * 3


@pytest.mark.parametrize("kind", ["<f8", ">f8", ">f4", ">f2"])
def test_arrays_of_numpy_are_asked_and_unscaled_as_they_are(kind: str) -> None:
    large = np.array([np.finfo(kind).max, 2.0**15], kind)  # of float64 beyond float32
    assert fj.all_finite([large, jnp.ones(2)])
    assert not fj.all_finite([np.append(large, np.array(np.nan, kind)), jnp.ones(2)])
    assert fj.DynamicLossScaling().unscale(large[1:])[0] == 1


@pytest.mark.parametrize(
    ("finite", "told"),
    [
        (jnp.array([True, False, True]), r"an array of bool\[3\]"),  # which stepped some of the numbers
        (0.5, r"0\.5"),
        (jnp.float32(jnp.nan), r"an array of float32\[\]"),
        (jax.random.key(0), r"an array of key<fry>\[\]"),
        ("no", "'no'"),
    ],
)
def test_whether_all_is_finite_is_one_boolean(finite: Any, told: str) -> None:
    optimizer, parameters = optax.sgd(0.1), {"w": jnp.ones(3)}
    recipes = fj.RecipeOptimizer(optimizer, "fp32")
    for step in (
        lambda: fj.optimizer_update(parameters, optimizer, optimizer.init(parameters), parameters, finite),
        lambda: recipes.update(*recipes.init(parameters), parameters, finite=finite),
        lambda: fj.DynamicLossScaling().adjusted(finite),
    ):
        with pytest.raises(ArgumentError, match=f"finite={told}; expected one boolean, as .*all_finite"):
            step()
    for one in (True, np.True_, np.array(True), jnp.array(True), jnp.int32(1)):  # as pmin of devices has it
        stepped, _ = recipes.update(*recipes.init(parameters), parameters, finite=one)
        assert (stepped["w"] == np.float32(0.9)).all()
        assert fj.DynamicLossScaling().adjusted(one).good_steps == 1


def test_functions_cast_what_they_take_and_what_they_return() -> None:
    def kinds(x: jax.Array, *, y: jax.Array, n: jax.Array) -> tuple[jax.Array, str]:
        return x * y, f"{x.dtype} {y.dtype} {n.dtype}"

    x, n = jnp.ones(2), jnp.arange(2)
    half = fj.cast_function(kinds, jnp.float16)
    product, seen = half(x, y=x, n=n)
    assert (product.dtype, seen) == (jnp.float16, "float16 float16 int32")
    wide = fj.force_full_precision(kinds, jnp.bfloat16)
    product, seen = wide(x.astype(jnp.float16), y=x, n=n)
    assert (product.dtype, seen) == (jnp.bfloat16, "float32 float32 int32")
    assert fj.force_full_precision(kinds)(x.astype(jnp.float16), y=x, n=n)[0].dtype == jnp.float32


def test_sums_in_full_precision_do_not_overflow_float16() -> None:
    x = jnp.full(1000, 100, jnp.float16)
    assert fj.force_full_precision(jnp.sum)(x) == 100_000
    assert jnp.isinf(jnp.sum(x).astype(jnp.float16))


def test_whether_all_is_finite_asks_floats_alone() -> None:
    assert fj.all_finite(tree())
    assert fj.all_finite({"steps": jnp.arange(3)})
    assert not fj.all_finite({**tree(), "bad": jnp.array([1.0, jnp.nan])})
    assert not fj.all_finite([jnp.array(jnp.inf, jnp.float16)])


def test_the_scale_doubles_after_a_period_halves_on_overflow_and_keeps_its_bounds() -> None:
    scaling = fj.DynamicLossScaling(period=3)
    adjust = jax.jit(lambda scaling, finite: scaling.adjusted(finite))
    assert (scaling.loss_scale, fj.DynamicLossScaling().period) == (2.0**15, 2000)
    seen = []
    for finite in (True, True, False, True, True, True, True, True, True, False, True, True, False):
        scaling = adjust(scaling, jnp.asarray(finite))
        seen.append(float(scaling.loss_scale))
    k = 2.0**10
    assert seen == [32 * k, 32 * k, 16 * k, 16 * k, 16 * k, 32 * k, 32 * k, 32 * k, 32 * k, 16 * k,
                    16 * k, 16 * k, 8 * k]  # fmt: skip
    low = fj.DynamicLossScaling(loss_scale=jnp.float32(1.5))
    assert low.adjusted(jnp.asarray(False)).loss_scale == 1.0


def squares(parameters: Any, x: jax.Array) -> jax.Array:
    return ((parameters["w"] * x) ** 2).sum()


def gradients_of_steps(count: int, run: Any, parameters: Any, x: jax.Array) -> tuple[list[Any], list[float]]:
    """Gradients of the same parameters in steps in a row, and the scale that each step began with."""
    scaling = fj.DynamicLossScaling(loss_scale=jnp.float32(64), period=2)
    found, scales = [], []
    for _ in range(count):
        scales.append(float(scaling.loss_scale))
        scaling, finite, gradients = run(scaling, parameters, x)
        assert finite
        found.append(gradients)
    return found, scales


def ours(scaling: fj.DynamicLossScaling, parameters: Any, x: jax.Array) -> Any:
    return fj.filter_grad(squares, scaling)(parameters, x)


def as_published(scaling: fj.DynamicLossScaling, parameters: Any, x: jax.Array) -> Any:
    """The order of the code published with MPX: adjust the scale, then divide by the new one."""
    half = fj.cast_tree(parameters, jnp.float16)
    scaled = jax.grad(lambda p: scaling.scale(squares(p, x.astype(jnp.float16))))(half)
    finite = fj.all_finite(scaled)
    following = scaling.adjusted(finite)
    return following, finite, following.unscale(scaled)


def test_a_gradient_is_divided_by_the_scale_of_its_own_step() -> None:
    parameters, x = {"w": jnp.array([0.5, -0.25])}, jnp.array([1.0, 2.0])
    exact = jax.grad(squares)(parameters, x)["w"]
    found, scales = gradients_of_steps(5, jax.jit(ours), parameters, x)
    assert scales == [64, 64, 128, 128, 256]  # it changed twice on the way
    assert all(np.array_equal(g["w"], exact) for g in found)
    wrong, same_scales = gradients_of_steps(5, jax.jit(as_published), parameters, x)
    assert same_scales == scales
    ratios = [float(g["w"][0] / exact[0]) for g in wrong]
    assert ratios == [1, 0.5, 1, 0.5, 1]  # the negative control: half on each step where the scale grows


@pytest.mark.parametrize(("scale", "dtype"), [(65504.0, jnp.bfloat16), (10001.0, jnp.float16)])
def test_a_gradient_is_divided_by_the_scale_as_the_dtype_of_the_loss_holds_it(
    scale: float, dtype: Any
) -> None:
    scaling = fj.DynamicLossScaling(loss_scale=jnp.float32(scale))
    assert float(scaling.loss_scale.astype(dtype)) != scale
    run = fj.filter_grad(lambda w: (w * w).astype(dtype), scaling, dtype=None)
    for function in (run, jax.jit(run)):
        _, finite, gradient = function(jnp.float32(4))
        assert finite
        assert gradient == 8


def test_the_scaling_of_a_recipe_is_the_recipes() -> None:
    assert fj.DynamicLossScaling.of("mxfp8") is None
    dynamic = fj.DynamicLossScaling.of("fp16-master")  # which begins at 65536, above the largest float16
    assert dynamic is not None
    assert (dynamic.loss_scale, dynamic.factor, dynamic.period) == (2.0**15, 2, 2000)
    static = fj.DynamicLossScaling.of("fp16-master-static")
    assert static is not None
    assert {float(static.adjusted(jnp.asarray(f)).loss_scale) for f in (True, False)} == {1024.0}
    with pytest.raises(
        ArgumentError, match=r"recipe 'fp8-stochastic' scales .* at least 8192 from step 40000"
    ):
        fj.DynamicLossScaling.of("fp8-stochastic")


def test_values_aux_and_keyword_arguments_come_through() -> None:
    def loss(parameters: Any, x: jax.Array, *, shift: jax.Array) -> tuple[jax.Array, Any]:
        total = squares(parameters, x) + shift
        return total, (total.dtype, parameters["steps"])

    parameters = {"w": jnp.array([0.5, -0.25]), "steps": jnp.arange(2)}
    x, shift = jnp.array([1.0, 2.0]), jnp.float32(1)
    scaling = fj.DynamicLossScaling(loss_scale=jnp.float32(256))
    (value, (dtype, steps)), following, finite, gradients = fj.filter_value_and_grad(
        loss, scaling, has_aux=True
    )(parameters, x, shift=shift)
    assert (value, dtype, finite) == (1.5, jnp.float16, True)
    assert np.array_equal(steps, np.arange(2))
    assert gradients["steps"] is None
    assert gradients["w"].dtype == jnp.float32
    assert following.good_steps == 1
    alone = fj.filter_grad(loss, scaling, has_aux=True)(parameters, x, shift=shift)
    assert len(alone) == 4
    value, none, _, wide = fj.filter_value_and_grad(squares, None, dtype=None)(parameters, x)
    assert (value.dtype, none, wide["w"].dtype) == (jnp.float32, None, jnp.float32)


@pytest.mark.parametrize("scaling", [None, fj.DynamicLossScaling()], ids=["unscaled", "scaled"])
@pytest.mark.parametrize("dtype", [jnp.int32, jnp.bool_, jnp.complex64])
def test_a_loss_that_has_no_gradient_is_refused(dtype: Any, scaling: fj.DynamicLossScaling | None) -> None:
    with pytest.raises(DTypeError, match=f"a loss of {jnp.dtype(dtype)}; expected a real floating-point one"):
        fj.filter_value_and_grad(lambda w: w.sum().astype(dtype), scaling)(jnp.ones(3))


@pytest.mark.parametrize("scaling", [1024.0, "dynamic", fj.DynamicLossScaling])
def test_what_is_no_scaling_is_refused_before_the_loss_is_computed(scaling: Any) -> None:
    for function in (fj.filter_value_and_grad, fj.filter_grad):
        with pytest.raises(ArgumentError, match=r"scaling=.*; expected a DynamicLossScaling, or None"):
            function(squares, scaling)


def test_a_loss_that_is_a_number_is_scaled_too() -> None:
    scaled = fj.DynamicLossScaling().scale(2.0)
    assert scaled.dtype == jnp.float32
    assert float(scaled) == 2.0**16


def test_small_gradients_survive_by_the_scale_alone() -> None:
    parameters, x = {"w": jnp.array([2.0**-20])}, jnp.array([2.0**-3])
    scaled = fj.filter_grad(squares, fj.DynamicLossScaling())(parameters, x)[2]["w"]
    plain = fj.filter_grad(squares, None)(parameters, x)[2]["w"]
    assert np.array_equal(scaled, jax.grad(squares)(parameters, x)["w"])
    assert not np.array_equal(plain, scaled)


def test_an_overflow_skips_the_step_and_halves_the_scale_and_training_goes_on() -> None:
    optimizer = optax.adam(0.02)
    parameters = {"w": jnp.array([0.5, -0.25]), "steps": jnp.arange(2)}
    state = optimizer.init(fj.cast_tree({"w": parameters["w"], "steps": None}, jnp.float32))

    @jax.jit
    def step(parameters: Any, state: Any, scaling: Any, x: jax.Array) -> Any:
        loss, scaling, finite, gradients = fj.filter_value_and_grad(squares, scaling)(parameters, x)
        return *fj.optimizer_update(parameters, optimizer, state, gradients, finite), scaling, finite, loss

    scaling, losses = fj.DynamicLossScaling(loss_scale=jnp.float32(4096)), []
    for i in range(12):
        x = jnp.array([1.0, 300.0 if i == 5 else 1.0])  # 2 w x^2 times the scale is above 65504
        before = jax.tree.leaves((parameters, state))
        parameters, state, scaling, finite, loss = step(parameters, state, scaling, x)
        after = jax.tree.leaves((parameters, state))
        assert bool(finite) == (i != 5)
        assert all(np.array_equal(a, b) for a, b in zip(before, after, strict=True)) == (i == 5)
        assert scaling.loss_scale == (4096 if i < 5 else 2048)
        losses.append(float(loss))
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[4] < losses[0]
    assert parameters["steps"].dtype == jnp.int32


def test_modules_of_equinox_train_with_functions_keys_and_integers_among_their_leaves() -> None:
    class Model(equinox.Module):
        layers: list[Any]
        key: jax.Array
        calls: jax.Array

        def __call__(self, x: jax.Array) -> jax.Array:
            for layer in self.layers:
                x = layer(x)
            return x

    keys = jax.random.split(jax.random.key(0), 2)
    layers = [equinox.nn.Linear(4, 8, key=keys[0]), jax.nn.relu, equinox.nn.Linear(8, 1, key=keys[1])]
    model = Model(layers, jax.random.key(7), jnp.asarray(3))
    optimizer = optax.sgd(0.05)
    state = optimizer.init(equinox.filter(model, equinox.is_inexact_array))
    x = jax.random.normal(jax.random.key(1), (64, 4))
    y = x[:, :1] - x[:, 1:2]

    def loss(model: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        assert model.layers[0].weight.dtype == jnp.float16
        return fj.force_full_precision(jnp.mean)((jax.vmap(model)(x) - y) ** 2)

    @equinox.filter_jit
    def step(model: Any, state: Any, scaling: Any) -> Any:
        value, scaling, finite, gradients = fj.filter_value_and_grad(loss, scaling)(model, x, y)
        return *fj.optimizer_update(model, optimizer, state, gradients, finite), scaling, value

    scaling, losses = fj.DynamicLossScaling(), []
    for _ in range(40):
        model, state, scaling, value = step(model, state, scaling)
        losses.append(float(value))
    assert losses[-1] < losses[0] / 4
    assert model.layers[0].weight.dtype == jnp.float32
    assert (model.calls, model.layers[1]) == (3, jax.nn.relu)
    assert jnp.array_equal(jax.random.key_data(model.key), jax.random.key_data(jax.random.key(7)))


def test_without_jax_the_import_says_what_to_install_and_with_it_torch_is_not_loaded() -> None:
    blocked = "import sys; sys.modules['jax'] = None\nimport fewbits.jax"
    done = subprocess.run([sys.executable, "-c", blocked], capture_output=True, text=True, check=False)
    assert "MissingDependencyError: fewbits.jax needs JAX" in done.stderr
    assert "pip install 'fewbits[jax]'" in done.stderr
    code = "import sys, fewbits as fb; fb.jax.quantize; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "False", done.stderr
