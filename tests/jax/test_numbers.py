"""Products and quotients in integers are those of IEEE 754, subnormal numbers included."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402  # JAX has to be there

from fewbits.jax.numbers import divide, from_floats, multiply, to_floats  # noqa: E402
from tests import cases  # noqa: E402
from tests.jax.definition import bits  # noqa: E402

SPECIAL = np.float32([0.0, -0.0, 1.0, np.inf, -np.inf, np.nan, 2.0**-149, 2.0**-126, 3e38, -3.0])


def operands() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Pairs of all exponents, near ties and at the ends of the range, and all pairs of special values."""
    rng = np.random.default_rng(0)
    a, b = cases.every_exponent(300_000, 1), cases.every_exponent(300_000, 2)
    # Results among the subnormal numbers and around the largest: exponents that nearly cancel.
    top = rng.integers(0, 255, 200_000, np.uint32)
    low = np.clip(rng.integers(-27, 3, 200_000) + 127 - top.astype(np.int64), 0, 254).astype(np.uint32)
    some, others = (rng.integers(0, 2**23, 200_000, np.uint32) for _ in range(2))
    c, d = (top << 23 | some).view(np.float32), (low << 23 | others).view(np.float32)
    pairs = np.meshgrid(SPECIAL, SPECIAL)
    return np.concatenate([a, c, pairs[0].ravel()]), np.concatenate([b, d, pairs[1].ravel()])


@pytest.mark.parametrize("dtype", [np.float32, np.float16, jnp.bfloat16])
def test_taken_apart_and_put_together_a_float_is_itself(dtype: Any) -> None:
    word = np.uint32 if dtype == np.float32 else np.uint16
    x = (cases.every_exponent(2**16).view(word) if word == np.uint32 else np.arange(2**16, dtype=word)).view(
        dtype
    )
    same = jax.jit(lambda x: to_floats(from_floats(x), x.dtype))(x)
    with np.errstate(invalid="ignore"):
        assert np.array_equal(bits(same), bits(x))


@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16])
def test_float32_is_rounded_to_16_bits_as_numpy_does(dtype: Any) -> None:
    x = cases.every_exponent(2**17)
    with np.errstate(over="ignore", invalid="ignore"):
        assert np.array_equal(
            bits(jax.jit(lambda x: to_floats(from_floats(x), dtype))(x)), bits(x.astype(dtype))
        )


def test_products_and_quotients_are_those_of_the_processor() -> None:
    a, b = operands()

    def integers(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
        x, y = from_floats(a), from_floats(b)
        return to_floats(multiply(x, y), jnp.float32), to_floats(divide(x, y), jnp.float32)

    product, quotient = jax.jit(integers)(a, b)
    with np.errstate(all="ignore"):
        assert np.array_equal(bits(product), bits(a * b))
        assert np.array_equal(bits(quotient), bits(a / b))


def test_floats_of_xla_would_not_do() -> None:
    a, b = operands()
    with np.errstate(all="ignore"):
        assert not np.array_equal(bits(jax.jit(lambda a, b: a * b)(a, b)), bits(a * b))
