"""fewbits.jax equals the definition bit for bit: every format, rounding, scale rule and special value."""

import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402  # JAX has to be there

import fewbits as fb  # noqa: E402
import fewbits.jax as fj  # noqa: E402
from fewbits.errors import ArgumentError, DataError, DTypeError  # noqa: E402
from fewbits.formats import CATALOGUE, Block, Float, Format, Lookup, parse, shares_scale  # noqa: E402
from fewbits.kernels.bits.options import options  # noqa: E402
from tests import cases  # noqa: E402
from tests.jax.definition import assert_equal, bits, converted  # noqa: E402

N = 97  # no multiple of any block
DETERMINISTIC = cases.ROUNDINGS[:-1]


@lru_cache(maxsize=2)
def lines(count: int) -> NDArray[np.float32]:
    """Every half and bfloat16 value, ``count`` random bit patterns and telling blocks, in lines of N."""
    random = np.random.default_rng(0).integers(0, 2**32, count, np.uint32).view(np.float32)
    x = np.concatenate(
        [cases.every_bfloat16(), cases.every_float16(), random, cases.blocks(300, 96).reshape(-1)]
    )
    x = np.resize(x, -(-x.size // N) * N).reshape(-1, N)
    x[:3] = 0
    x[3] = -0.0
    x[4:40, ::5] = 0
    return x


def choices(format: Format, **given: Any) -> dict[str, Any]:
    """Return options under which NaN and infinity have a value in any format."""
    refuses = options(format, **given).nonfinite == "raise"
    return {**given, "nonfinite": "saturate"} if refuses else given


def finite_where_shared(x: NDArray[Any], format: Format) -> NDArray[Any]:
    """Return ``x`` without NaN and infinity if one of them would decide the scale of a whole tensor."""
    with np.errstate(invalid="ignore"):  # ml_dtypes asks floats
        return np.where(np.isfinite(x), x, x.dtype.type(1)) if shares_scale(format, "tensor") else x


def both(x: jax.Array, format: Format, axis: int = -1, **given: Any) -> tuple[fj.NarrowArray, jax.Array]:
    """Return the packed and the rounded array."""
    return fj.quantize(x, format, axis=axis, **given), fj.fake_quantize(x, format, axis=axis, **given)


def check(x: NDArray[Any], format: Format, rows: list[dict[str, Any]]) -> list[fj.NarrowArray]:
    """Compare with the definition under rows of options, in one function, for XLA takes long to compile."""
    found = jax.jit(lambda x: [both(x, format, **given) for given in rows])(x)
    for given, (q, rounded) in zip(rows, found, strict=True):
        axis = given.get("axis", -1)
        rest = {name: choice for name, choice in given.items() if name != "axis"}
        assert_equal(q, rounded, converted(x, format, options(format, **rest), axis), (format, given))
    return [q for q, _ in found]


# XLA compiles each for seconds: they are another width, or another element, of a format that is not slow.
REPEATED = ("vsq6", "vsq8", "fp8_e4m3_channel", "fp8_e5m2_channel", "fp8_e4m3_tensor", "fp8_e5m2_tensor",
            "int4_channel", "int4_tensor", "quda_quarter", "ternary_tensor", "binary_tensor", "uint4",
            "int2")  # fmt: skip


def dearest_slow(format: Format) -> Any:
    name = cases.label(format)
    return pytest.param(format, id=name, marks=pytest.mark.slow if name in REPEATED else ())


@pytest.mark.parametrize("format", list(map(dearest_slow, cases.FORMATS)))
def test_every_format_equals_the_definition_under_jit(format: Format) -> None:
    x = finite_where_shared(lines(2**14), format)
    check(x, format, [choices(format)])


@pytest.mark.slow
@pytest.mark.parametrize("rounding", DETERMINISTIC)
@pytest.mark.parametrize("format", cases.FORMATS, ids=cases.label)
def test_a_million_random_bit_patterns_round_as_in_the_definition(format: Format, rounding: str) -> None:
    x = finite_where_shared(lines(10**6), format)
    check(x, format, [choices(format, rounding=rounding)])


@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16])
@pytest.mark.parametrize("name", ["fp8_e4m3", "mxfp4", "int8"])
def test_every_16_bit_value_rounds_in_its_own_type(name: str, dtype: Any) -> None:
    format = CATALOGUE[name].format
    x = np.arange(2**16, dtype=np.uint16).view(dtype).reshape(-1, 64)
    check(x, format, [choices(format)])


def sample(format: Format) -> NDArray[np.float32]:
    """A small array that tells roundings apart."""
    x = np.resize(cases.every_exponent(2000), 2048)
    x[:600] = np.resize(cases.telling(format.element) if format.element.bits <= 16 else x, 600)
    x[1000:1400] = cases.blocks(4, 100).reshape(-1)
    return finite_where_shared(x.reshape(32, 64), format)


# Blocks round their elements as scalars are rounded; of each kind of element one is in a block as well.
ROUNDED = [*cases.ELEMENTS, *cases.MADE[::46], *(CATALOGUE[name].format for name in ("mxfp4", "mx4"))]


# The first of each kind meets all roundings, others take turns; all by all are in the slow test above.
def turns(i: int) -> Sequence[str]:
    return DETERMINISTIC[1 + i % 2 :: 2]


FIRST = {type(format): format for format in reversed(ROUNDED)}.values()


@pytest.mark.parametrize(
    ("format", "roundings"),
    [
        pytest.param(format, DETERMINISTIC[1:] if format in FIRST else turns(i), id=cases.label(format))
        for i, format in enumerate(ROUNDED)
    ],
)
def test_every_rounding_equals_the_definition(format: Format, roundings: Sequence[str]) -> None:
    check(sample(format), format, [choices(format, rounding=rounding) for rounding in roundings])


@pytest.mark.parametrize("rule", cases.SCALE_RULES)
def test_every_scale_rule_chooses_as_the_definition_does(rule: str) -> None:
    arrays = [sample(format) for format in cases.POWER_SCALED]
    given = [choices(format, scale_rule=rule) for format in cases.POWER_SCALED]

    def scales(arrays: list[jax.Array]) -> list[jax.Array | None]:
        rows = zip(arrays, cases.POWER_SCALED, given, strict=True)
        return [fj.quantize(x, format, **choice).scales for x, format, choice in rows]

    found = jax.jit(scales)(arrays)
    for x, format, choice, mine in zip(arrays, cases.POWER_SCALED, given, found, strict=True):
        assert np.array_equal(mine, converted(x, format, options(format, **choice))[0].scales), format


def _allowed(format: Format) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for i, (overflow, nonfinite) in enumerate(product(cases.OVERFLOWS, cases.NONFINITES[:3])):
        given: dict[str, Any] = {"overflow": overflow, "nonfinite": nonfinite}
        with suppress(ArgumentError):
            options(format, **given)
            rows.append({**given, "zero_block": cases.ZERO_BLOCKS[i % 2]})
    return rows


@pytest.mark.parametrize(
    "name", ["fp8_e5m2", "fp8_e4m3", "posit8_2", "int8", "mxfp8_e5m2", "mx9", "int8_256"]
)
def test_overflow_nonfinite_and_zero_blocks_are_those_of_the_definition(name: str) -> None:
    format = CATALOGUE[name].format
    x = sample(format).copy()
    x[0] = 0
    check(x, format, _allowed(format))


def test_a_number_whose_quotient_is_beyond_float32_is_a_number_of_a_posit() -> None:
    x = np.array([[3e38, -3e38, 1, np.inf], [-np.inf, np.nan, 1e38, -1e-9]], np.float32)
    for scale in ("exponent(2,bias=3)", "float(e=2,m=1,bias=20)"):
        format = parse(f"block(element=posit(8),scale={scale},size=4)")
        (q,) = check(x, format, [{"nonfinite": "element"}])
        assert np.isfinite(np.asarray(q.dequantize())[0, :3]).all()


def test_zeros_under_scales_above_one_are_those_of_the_definition() -> None:
    format = parse("block(element=fp4_e2m1,scale=float(e=4,m=3,bias=-20),size=4)")
    x = np.array([[0, 0, 0, 0], [-0.0, 0, 0, 0], [2.0**19, 0, 0, 0]], np.float32)
    check(x, format, [choices(format, zero_block=zero_block) for zero_block in cases.ZERO_BLOCKS])


@pytest.mark.parametrize("name", ["mxfp4", "nvfp4"])
def test_any_shape_and_axis_has_the_bytes_of_the_definition(name: str) -> None:
    format = CATALOGUE[name].format
    rng = np.random.default_rng(1)
    for shape, axis in (((), -1), ((0, 5), 1), ((2, 3, 4, 17), 1)):
        x = np.asarray(rng.standard_normal(shape), np.float32)
        (q,) = check(x, format, [{"axis": axis, **choices(format)}])
        assert q.shape == shape
        assert np.array_equal(bits(q.dequantize()), converted(x, format, options(format), axis)[1])


def test_another_rounding_would_be_noticed() -> None:
    """The negative control of this file: XLA's own float arithmetic is not the definition."""
    x = np.float32([2.0**-127, 3 * 2.0**-127])
    scaled_by_floats = jax.jit(lambda x: jnp.round(x * 2.0**126 * 2) / 2 * 2.0**-126)(x)
    assert not np.asarray(scaled_by_floats).any()  # subnormal numbers are read as zero
    wanted = converted(x, CATALOGUE["mxint8"].format, options(CATALOGUE["mxint8"].format))
    assert_equal(fj.quantize(x, "mxint8"), fj.fake_quantize(x, "mxint8"), wanted, "subnormal numbers")
    with pytest.raises(AssertionError):
        assert_equal(fj.quantize(x, "mxint8"), jnp.asarray(scaled_by_floats), wanted, "flushed")


@pytest.mark.parametrize(("name", "dtype"), [("fp8_e4m3", "float8_e4m3fn"), ("fp8_e5m2", "float8_e5m2")])
def test_eight_bit_floats_are_those_of_ml_dtypes(name: str, dtype: str) -> None:
    x = cases.every_exponent(2**16)
    x = x[np.abs(x) < 400]
    other = x.astype(getattr(jnp, dtype)).view(np.uint8)
    assert np.array_equal(np.asarray(fj.quantize(x, name).codes), other)


def test_vmap_gives_each_row_its_own_scales_and_comes_back() -> None:
    x = np.random.default_rng(0).standard_normal((5, 4, 40)).astype(np.float32)
    for name in ("mxfp4", "int8_tensor"):
        given = choices(CATALOGUE[name].format)
        q = jax.vmap(lambda row, name=name, given=given: fj.quantize(row, name, axis=0, **given))(x)
        alone = [fj.fake_quantize(row, name, axis=0, **given) for row in x]
        assert q.shape == x.shape
        assert np.array_equal(bits(q.dequantize()), bits(np.stack(alone)))


def test_gradients_pass_straight_through_forward_and_backward() -> None:
    x = jnp.linspace(-9, 9, 64)
    weights = jnp.arange(64.0)
    for name in ("fp8_e4m3", "mxfp4"):
        loss = jax.jit(lambda x, name=name: (fj.fake_quantize(x, name) * weights).sum())
        assert np.array_equal(jax.grad(loss)(x), weights)
        rounded, tangent = jax.jvp(lambda x, name=name: fj.fake_quantize(x, name), (x,), (weights,))
        assert np.array_equal(tangent, weights)
        assert np.array_equal(rounded, fj.fake_quantize(x, name))
    key = jax.random.key(0)
    drawn = jax.grad(lambda x: fj.fake_quantize(x, "mxfp4", rounding="stochastic", key=key).sum())(x)
    assert np.array_equal(drawn, np.ones(64))


@pytest.mark.parametrize("name", ["fp4_e2m1", "int8", "posit8_1", "mx6", "binary"])
def test_stochastic_rounding_takes_neighbours_with_the_probability_of_the_distance(name: str) -> None:
    format = CATALOGUE[name].format
    row = np.float32([0.0, 0.3, -0.7, 1.1, 2.6, -2.9, 5.5, 6.0] * 4)
    x = np.tile(row, (4000, 1))
    given = choices(format)

    def drawn(key: jax.Array) -> jax.Array:
        return fj.fake_quantize(x, format, rounding="stochastic", key=key, **given)

    y = np.asarray(jax.jit(drawn)(jax.random.key(3)))
    down = np.asarray(fj.fake_quantize(x, format, rounding="down", **given))
    up = np.asarray(fj.fake_quantize(x, format, rounding="up", **given))
    assert ((y == down) | (y == up)).all()
    within = (down[0] <= row) & (row <= up[0])
    step = (up - down)[0]
    # The mean of 4000 draws of a coin: seven standard deviations.
    share = np.where(step > 0, (row - down[0]) / np.where(step > 0, step, 1), 0)
    bound = 7 * step * np.sqrt(np.clip(share * (1 - share), 0, 1) / len(x)) + 1e-6
    assert (np.abs(y.mean(0, dtype=np.float64) - row) <= bound)[within].all()
    assert within.any()
    again = np.asarray(jax.jit(drawn)(jax.random.key(3)))
    assert np.array_equal(y, again)
    if step.any():
        assert not np.array_equal(y, np.asarray(jax.jit(drawn)(jax.random.key(4))))


@pytest.mark.parametrize("name", ["fp8_e4m3", "fixed16_f14", "posit8_1", "binary"])
def test_values_of_the_format_stay_under_stochastic_rounding(name: str) -> None:
    format = CATALOGUE[name].format
    table = cases.real_codes(format.element)[1]
    x = table[np.isfinite(table)].astype(np.float32)
    given = choices(format)
    y = fj.fake_quantize(x, format, rounding="stochastic", key=jax.random.key(0), **given)
    assert np.array_equal(np.asarray(y), x)


SHARDED = """
import sys
import jax, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
import fewbits.jax as fj

assert len(jax.devices()) == 2
mesh = jax.make_mesh((2,), ("d",), axis_types=(AxisType.Auto,))
rng = np.random.default_rng(0)
x = rng.standard_normal((6, 128)).astype(np.float32)
for name in sys.argv[1:]:
    alone = fj.quantize(x, name)
    for spec in (P("d", None), P(None, "d")):
        parts = jax.device_put(x, NamedSharding(mesh, spec))
        q, rounded = jax.jit(lambda x: (fj.quantize(x, name), fj.fake_quantize(x, name)))(parts)
        for a, b in zip(q.pieces, alone.pieces):
            assert (a is None and b is None) or np.array_equal(a, b), (name, spec)
        assert np.array_equal(rounded, alone.dequantize()), (name, spec)
        assert len(rounded.sharding.device_set) == 2

shapes = ((4, 32), (8, 32), (8,), (4, 8), (6, 32))
x, w, b, c, v = (rng.integers(-3, 4, shape).astype(np.float32) for shape in shapes)  # whose sums are exact
eye = np.eye(8, dtype=np.float32)


def loss(w, b, x, c, v, key):
    of_rows = (fj.linear(x, w, "fp32", bias=b) * c).sum()  # each device has rows of its own
    of_columns = fj.linear(w, v, "fp32").sum() + fj.linear(b[None], eye, "fp32", bias=v[0, :8]).sum()
    drawn = fj.fake_quantize(w, "fp8_e4m3", rounding="stochastic", key=jax.random.wrap_key_data(key[0]))
    return jax.lax.psum(of_rows + of_columns + drawn.sum(), "d")


keys = jax.random.key_data(jax.random.split(jax.random.key(0)))
specs = (P(), P(), P("d"), P("d"), P("d"), P("d"))
whole = jax.shard_map(loss, mesh=mesh, in_specs=specs, out_specs=P())
of_w, of_b, of_x = jax.jit(jax.grad(whole, (0, 1, 2)))(w, b, x, c, v, keys)
assert np.array_equal(of_w, c.T @ x + v.sum(0) + 2)  # two devices, each of which draws w and takes b
assert np.array_equal(of_b, c.sum(0) + 2)
assert np.array_equal(of_x, c @ w)
print("equal")
"""


# A scale for all values needs those of both devices; XLA compiles the two levels of NVFP4 for seconds.
@pytest.mark.parametrize(
    "names",
    [["mxfp4", "int8_tensor"], pytest.param(["nvfp4", "int8_channel"], marks=pytest.mark.slow)],
    ids=" ".join,
)
def test_arrays_on_a_mesh_of_two_devices_have_the_bits_and_gradients_of_one(
    names: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    done = subprocess.run(
        [sys.executable, "-c", SHARDED, *names], capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "equal", done.stderr


@pytest.mark.parametrize("name", ["mxfp4", "mx6", "nvfp4", "e8m0", "posit8_1"])
def test_settings_of_jax_that_allow_no_implicit_promotion_are_kept(name: str) -> None:
    with jax.numpy_dtype_promotion("strict"), jax.numpy_rank_promotion("raise"):
        q, *found = jax.eval_shape(
            lambda x: (q := fj.quantize(x, name), q.dequantize(), fj.fake_quantize(x, name)),
            jax.ShapeDtypeStruct((3, 70), jnp.bfloat16),
        )
    assert {(y.shape, y.dtype.name) for y in found} == {((3, 70), "bfloat16")}
    assert q.nbytes == fb.quantize(np.zeros((3, 70)), name).nbytes  # of shapes without values too


def test_arrays_of_numpy_in_either_byte_order_are_taken() -> None:
    x = np.float32([1.7, -3.2, 0.3, 100.0])
    for dtype in (np.float32, np.float16):
        wanted = fj.fake_quantize(x.astype(dtype), "mxfp4")
        for order in "<>":
            found = fj.fake_quantize(x.astype(np.dtype(dtype).newbyteorder(order)), "mxfp4")
            assert found.dtype == dtype
            assert np.array_equal(found, wanted)
            assert fj.quantize(x.astype(np.dtype(dtype).newbyteorder(order)), "mxfp4").dtype == dtype


@pytest.mark.parametrize(
    "given",
    [
        None,
        "text",
        object(),
        [1.0, "text"],
        np.array(["text"]),
        np.ma.array(np.ones(4, np.float32), mask=[1, 0, 0, 0]),
    ],
)
def test_what_is_no_array_of_floats_is_refused_by_its_type(given: Any) -> None:
    for function in (fj.quantize, fj.fake_quantize):
        with pytest.raises(DTypeError, match=r"expected .*float32, bfloat16 or float16") as refused:
            function(given, "mxfp4")
        assert "\n" not in str(refused.value)


def test_what_cannot_be_done_is_refused() -> None:
    x = jnp.ones(4)
    with pytest.raises(DTypeError, match="an array of int32; expected float32, bfloat16 or float16"):
        fj.quantize(jnp.ones(4, jnp.int32), "mxfp4")
    for order in "<>":
        with pytest.raises(DTypeError, match="an array of float64"):
            fj.fake_quantize(np.ones(4, order + "f8"), "mxfp4")
    with pytest.raises(ArgumentError, match=r"scale_rule=.twn., which fewbits\.jax does not do"):
        fj.fake_quantize(x, "ternary_channel", scale_rule="twn")
    with pytest.raises(ArgumentError, match="axis=1 is out of range for an array of 1 dimensions"):
        fj.quantize(x, "mxfp4", axis=1)
    with pytest.raises(ArgumentError, match="key=None with rounding='stochastic'"):
        fj.quantize(x, "mxfp4", rounding="stochastic")
    with pytest.raises(ArgumentError, match="no other one does"):
        fj.fake_quantize(x, "mxfp4", key=jax.random.key(0))
    for key, told in (
        (3, "key=3"),
        (np.random.default_rng(0), "key=Generator"),
        (jnp.zeros(3, jnp.uint32), r"key=an array of uint32\[3\]"),
        (jax.random.split(jax.random.key(0)), r"key=an array of key<fry>\[2\]"),
    ):
        with pytest.raises(
            ArgumentError, match=rf"{told}.* with rounding='stochastic'; stochastic rounding takes"
        ):
            fj.fake_quantize(x, "mxfp4", rounding="stochastic", key=key)
    assert fj.fake_quantize(x, "mxfp4", rounding="stochastic", key=jax.random.PRNGKey(0)).shape == x.shape
    with pytest.raises(DataError, match="holds 2 NaN and infinities"):
        fj.quantize(jnp.array([1.0, np.nan, np.inf]), "int8")
    held, lost = jnp.array([1.0, -3.0]), np.array([1.0, np.nan], np.float32)
    assert np.array_equal(jax.jit(lambda: fj.fake_quantize(held, "int8"))(), held)  # its values are known
    with pytest.raises(DataError, match="holds 1 NaN and infinities"):
        jax.jit(lambda: fj.fake_quantize(lost, "int8"))()
    with pytest.raises(ArgumentError, match=r"nonfinite='raise'.* under jit, vmap or grad"):
        jax.jit(lambda x: fj.quantize(x, "int8"))(x)
    with pytest.raises(ArgumentError, match="values below 2\\^-126"):
        fj.quantize(x, Lookup((0.0, 1e-40, 1.0)))
    unheld = Block(Lookup((0.1, 1.0)), Float(4, 3, 7, "fn"), 8)
    with pytest.raises(ArgumentError, match="values that float32 does not hold"):
        fj.quantize(x, unheld, nonfinite="saturate")
    wide = Block(Float(5, 10), Float(5, 22), 8, Float(8, 23, 127, "ieee"))
    with pytest.raises(ArgumentError, match="elements of 11 significant bits by scales of 23"):
        fj.quantize(x, wide, nonfinite="saturate")
