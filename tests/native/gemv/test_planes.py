"""Products by planes and by bytes: on every instruction set they are the whole numbers of int64."""

from itertools import product as every

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import fewbits as fb
from fewbits.errors import ArgumentError, DTypeError
from fewbits.formats import decode, values
from fewbits.kernels import native
from fewbits.kernels.arrays import planes
from fewbits.kernels.bits.layout import Packed
from fewbits.kernels.bits.packing import pack
from fewbits.kernels.native.gemv.planes import MOST_BY_BYTES
from fewbits.kernels.reference.gemv.planes import counted, product

# The first use of forward mode compiles what torch itself deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")

Integers = NDArray[np.int64]
WAYS = (False, True)  # by planes, by bytes
LENGTHS = (1, 3, 4, 5, 63, 64, 65, 127, 255, 256, 257, 511, 512, 513, 1024, 1024 + 77, 3 * 512 + 511)
KINDS = [(bits, is_signed) for bits in range(1, 9) for is_signed in (False, True)]


def code_of(w: Integers, weight_bits: int) -> NDArray[np.uint8]:
    """Return the codes of weights: two's complement, or one bit for the sign."""
    return (w & 3 if weight_bits == 2 else w < 0).astype(np.uint8)


def multiplied(
    x: Integers,
    bits: int,
    is_signed: bool,
    w: Integers,
    weight_bits: int,
    by_bytes: bool | None,
    threads: int = 1,
) -> Integers:
    """Return what the kernels make of integers; float32 holds it exactly here."""
    y = np.empty((len(x), len(w)), np.float32)
    packed, ones = pack(code_of(w, weight_bits), weight_bits), np.ones(len(x), np.float32)
    octets = np.ascontiguousarray(x).astype(np.uint8)
    native.plane_product(
        *(packed, weight_bits, octets, bits, is_signed, None, ones, y), threads=threads, by_bytes=by_bytes
    )
    return y.astype(np.int64)


def all_integers(bits: int, is_signed: bool) -> Integers:
    half = 2 ** (bits - 1)
    return np.arange(-half, half) if is_signed else np.arange(2 * half)


def drawn(bits: int, is_signed: bool, *shape: int, seed: int = 0) -> Integers:
    return np.random.default_rng(seed).choice(all_integers(bits, is_signed), shape)


def weights(weight_bits: int, *shape: int, seed: int = 0) -> Integers:
    return np.random.default_rng(seed + 1).choice([-1, 0, 1] if weight_bits == 2 else [-1, 1], shape)


def ways(weight_bits: int, bits: int, is_signed: bool) -> list[bool]:
    return [by_bytes for by_bytes in WAYS if not by_bytes or (weight_bits == 2 and (is_signed or bits < 8))]


@pytest.mark.parametrize(("bits", "is_signed"), KINDS)
def test_every_pair_of_a_weight_and_an_integer(bits: int, is_signed: bool, isa: str) -> None:
    x = all_integers(bits, is_signed)[:, None]
    for weight_bits, w in ((2, np.array([[-2], [-1], [0], [1]])), (1, np.array([[-1], [1]]))):
        for by_bytes in ways(weight_bits, bits, is_signed):
            assert (multiplied(x, bits, is_signed, w, weight_bits, by_bytes) == x @ w.T).all()
    assert (counted(x, bits, is_signed, w) == x @ w.T).all()


def test_every_line_of_three_weights_with_every_three_integers_of_two_bits(isa: str) -> None:
    x = np.array(list(every(range(-2, 2), repeat=3)))
    w = np.array(list(every((-2, -1, 0, 1), repeat=3)))
    for by_bytes in WAYS:
        assert (multiplied(x, 2, True, w, 2, by_bytes) == x @ w.T).all()
    assert (counted(x, 2, True, w) == x @ w.T).all()


@pytest.mark.parametrize(("bits", "is_signed"), KINDS)
def test_every_length_gives_the_product_of_int64(bits: int, is_signed: bool, isa: str) -> None:
    for n, weight_bits in every(LENGTHS, (1, 2)):
        x, w = drawn(bits, is_signed, 2, n, seed=n), weights(weight_bits, 5, n, seed=n)
        for by_bytes in ways(weight_bits, bits, is_signed):
            assert (multiplied(x, bits, is_signed, w, weight_bits, by_bytes) == x @ w.T).all(), (
                n,
                weight_bits,
            )


@pytest.mark.parametrize(("bits", "is_signed"), [(1, False), (4, True), (8, False), (8, True)])
def test_the_definition_by_planes_gives_the_product_of_int64(bits: int, is_signed: bool) -> None:
    x, w = drawn(bits, is_signed, 3, 70), weights(2, 4, 70)
    assert (counted(x, bits, is_signed, w) == x @ w.T).all()


@pytest.mark.parametrize("by_bytes", WAYS)
def test_the_largest_integers_do_not_overflow(by_bytes: bool, isa: str) -> None:
    """2^17 values whose products are all 128 or -128: each sum of bytes is as large as it gets."""
    n = 2**17
    x = np.full((1, n), -128)
    w = np.stack([np.full(n, -1), np.full(n, 1), np.full(n, -2)])
    assert multiplied(x, 8, True, w, 2, by_bytes).tolist() == [[2**24, -(2**24), 2**25]]


def test_the_longest_lines_do_not_overflow_whichever_way_is_taken(isa: str) -> None:
    """The largest bytes of one sign, so that all sums of 32 bits are as large as they get."""
    for n in (MOST_BY_BYTES, 2 * MOST_BY_BYTES, 16 * MOST_BY_BYTES):
        w = np.full((1, n), 1)
        for value in (127, -128):
            assert multiplied(np.full((1, n), value), 8, True, w, 2, None).item() == value * n
            if native.can_multiply_bytes(2, n, 8, is_signed=True):
                assert multiplied(np.full((1, n), value), 8, True, w, 2, True).item() == value * n


def test_the_control_without_a_plane_is_another_number(isa: str) -> None:
    x, w = drawn(4, False, 1, 600), weights(2, 3, 600)
    assert (multiplied(x, 3, False, w, 2, False) != x @ w.T).any()
    assert (multiplied(x, 4, True, w, 2, False) != x @ w.T).any()  # the top plane's sign


@pytest.mark.parametrize("weight_bits", [1, 2])
def test_what_lies_beyond_the_end_of_a_line_does_not_count(weight_bits: int, isa: str) -> None:
    n, bits = 512 + 3, 5
    x, w = drawn(bits, True, 1, n), weights(weight_bits, 4, n)
    packed = pack(code_of(w, weight_bits), weight_bits)
    packed[:, -1] |= np.uint8(0xFF << (n * weight_bits % 8) & 0xFF)
    # The control: with these bits a line has more weights, and another product with ones.
    longer = np.unpackbits(packed, axis=1, bitorder="little")
    assert longer.shape[1] > n * weight_bits
    assert longer[:, n * weight_bits :].all()
    for by_bytes in ways(weight_bits, bits, True):
        y = np.empty((1, 4), np.float32)
        arguments = (packed, weight_bits, x.astype(np.uint8), bits, True, None, np.ones(1, np.float32), y)
        native.plane_product(*arguments, threads=1, by_bytes=by_bytes)
        assert (y == x @ w.T).all()


def test_the_number_of_threads_does_not_matter(isa: str) -> None:
    x, w = drawn(3, True, 2, 4096 + 9), weights(2, 301, 4096 + 9)
    for by_bytes in WAYS:
        assert (multiplied(x, 3, True, w, 2, by_bytes, threads=2) == x @ w.T).all()


def test_what_cannot_be_multiplied_as_bytes_is_refused() -> None:
    x = drawn(8, False, 1, 16)
    for weight_bits, bits in ((1, 4), (2, 8)):
        assert not native.can_multiply_bytes(weight_bits, 16, bits, is_signed=False)
        with pytest.raises(ValueError, match="not to be multiplied as bytes"):
            multiplied(x % 16, bits, False, weights(weight_bits, 2, 16), weight_bits, by_bytes=True)


WEIGHTS = (
    *("ternary_channel", "ternary_tensor", "binary_channel", "binary_tensor"),
    *("ternary", "binary", "int2", "block(element=int2,scale=fp32,size=channel)"),
)
ACTIVATIONS = (
    *("int8_channel", "int4_channel", "binary_channel", "ternary_channel"),
    *(f"block(element=int({k},coding=symmetric),scale=fp32,size=channel)" for k in (3, 5, 6, 7)),
    *(f"block(element=int({k},coding=unsigned),scale=fp32,size=channel)" for k in range(1, 9)),
    "block(element=int(8),scale=fp32,size=channel)",
)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def by_definition(x: torch.Tensor, q: fb.NarrowTensor, activation: str) -> torch.Tensor:
    rule = "absmean" if activation == "binary_channel" else "floor"
    rounded = fb.quantize(x, activation, scale_rule=rule)
    of_x, of_w = rounded.parts(), q.parts()
    integers, w = decode(rounded.format.element, of_x.codes), decode(q.format.element, of_w.codes)
    assert of_x.scales is not None
    x_scales = of_x.scales.astype(np.uint32).view(np.float32).reshape(-1)
    w_scales = np.ones(1, np.float32)
    if of_w.scales is not None:
        w_scales = of_w.scales.astype(np.uint32).view(np.float32).reshape(-1)
    return torch.from_numpy(product(integers.astype(np.int64), x_scales, w.astype(np.int64), w_scales))


@pytest.mark.parametrize("name", WEIGHTS)
def test_matvec_equals_the_definition_for_every_activation(name: str, isa: str) -> None:
    for n, lines, batch in ((1, 1, 1), (513, 5, 1), (700, 4, 3)):
        q = fb.quantize(normal(lines, n) * 3, name)
        x = normal(batch, n, seed=n)
        for activation in ACTIVATIONS:
            expected = by_definition(x, q, activation)
            assert torch.equal(fb.matvec(q, x, activation=activation), expected), (activation, n)


@pytest.mark.parametrize("rule", ["absmean", "twn"])
def test_a_product_is_that_of_the_rounded_operands(rule: str) -> None:
    q = fb.quantize(normal(40, 3000), "ternary_channel", scale_rule=rule)
    x = normal(2, 3000, seed=5)
    rounded, w = fb.fake_quantize(x, "int8_channel").double(), q.dense().double()
    bound = (
        2.0**-22 * rounded.abs() @ w.t().abs()
    )  # values of x and of w are rounded to float32 when dequantized
    y = fb.matvec(q, x, activation="int8_channel").double()
    assert ((y - rounded @ w.t()).abs() <= bound).all()
    assert ((y - x.double() @ w.t()).abs() > bound).any()  # the control


def test_matmul_counts_where_the_weight_is_ternary_and_the_format_integers() -> None:
    q, x = fb.quantize(normal(30, 700), "ternary_channel", scale_rule="twn"), normal(3, 4, 700)
    y = fb.matmul(x, q.t(), "int8_channel")
    assert torch.equal(y, fb.matvec(q, x, activation="int8_channel"))
    assert y.shape == (3, 4, 30)
    many = normal(65, 700, seed=2)
    wide = fb.matmul(many, q.t(), "int8_channel")
    assert torch.allclose(wide, fb.matvec(q, many, activation="int8_channel"), rtol=1e-4, atol=1e-3)


def test_scales_that_are_nan_and_vectors_of_zeros_act_as_in_the_definition() -> None:
    q, x = fb.quantize(normal(4, 600), "ternary_channel"), normal(3, 600, seed=1)
    x[0] = 0
    x[1, 7] = torch.nan
    y = fb.matvec(q, x, activation="int4_channel")
    assert (y[0] == 0).all()
    assert y[1].isnan().all()
    assert torch.equal(y[2:], by_definition(x[2:], q, "int4_channel"))


def test_vectors_of_zeros_stay_near_zero_without_a_zero_among_their_elements() -> None:
    q = fb.quantize(normal(4, 600), "ternary_channel", scale_rule="twn")
    assert (fb.matvec(q, torch.zeros(2, 600), activation="binary_channel").abs() < 1e-40).all()
    assert (fb.fake_quantize(torch.zeros(2, 600), "binary_channel") == 2.0**-149).all()


def test_empty_operands_and_other_dtypes() -> None:
    q = fb.quantize(normal(4, 64).bfloat16(), "ternary_channel", scale_rule="absmean")
    x = normal(2, 64).bfloat16()
    y = fb.matvec(q, x, activation="int8_channel")
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, by_definition(x.float(), q, "int8_channel").bfloat16())
    assert fb.matvec(q, x[:0], activation="int8_channel").shape == (0, 4)
    with pytest.raises(DTypeError):
        fb.matvec(q, x.float(), activation="int8_channel")


def test_gradients_are_those_of_the_product_with_x_as_it_is() -> None:
    q = fb.quantize(normal(5, 70), "ternary_channel", scale_rule="twn")
    x = normal(3, 70).requires_grad_()
    (of_x,) = torch.autograd.grad(fb.matvec(q, x, activation="int8_channel").sum(), x)
    assert torch.equal(of_x, torch.ones(3, 5) @ q.dense())
    forward = torch.func.jvp(
        lambda v: fb.matvec(q, v, activation="int8_channel"), (x.detach(),), (torch.ones(3, 70),)
    )
    assert torch.equal(forward[1], torch.ones(3, 70) @ q.dense().t())
    each = torch.func.vmap(lambda v: fb.matvec(q, v[None], activation="int4_channel")[0])(x.detach())
    assert torch.equal(each, fb.matvec(q, x.detach(), activation="int4_channel"))


@pytest.mark.parametrize(
    "activation", ["int8", "nonsense", "mxint8", "int8_tensor", "int8_256", "fp8_e4m3_channel", "vsq8"]
)
def test_an_activation_that_is_no_integer_with_a_scale_for_each_vector_is_refused(activation: str) -> None:
    q = fb.quantize(normal(4, 64), "ternary_channel")
    with pytest.raises(ArgumentError, match="expected None or 'int8_32', or with ternary"):
        fb.matvec(q, normal(1, 64), activation=activation)


def test_a_minus_zero_is_no_integer_of_two_bits() -> None:
    """Its code is that of -2 in two's complement."""
    signs = "block(element=int(2,coding=sign_magnitude),scale=fp32,size=channel)"
    q, x = fb.quantize(torch.tensor([[0.0, -0.3, 1, -1]]), signs), torch.tensor([[1.0, 2, 3, 4]])
    assert q.dequantize().tolist() == [[0, 0, 1, -1]]
    rounded = fb.fake_quantize(x, "int8_channel").double()
    exact = float((rounded @ torch.tensor([0.0, 0, 1, -1]).double())[0])
    assert float(fb.matmul(x, q.t(), "int8_channel")) == pytest.approx(exact, rel=1e-6)


def test_a_weight_that_is_not_ternary_or_binary_is_refused() -> None:
    x = normal(1, 64)
    signs = "int(2,coding=sign_magnitude)"
    for name in ("mxfp4", "int4_channel", "block(element=ternary,scale=fp16,size=16)", "uint2", signs):
        with pytest.raises(ArgumentError, match="it takes ternary or binary weights"):
            fb.matvec(fb.quantize(normal(4, 64).abs(), name), x, activation="int8_channel")
    sparse = fb.quantize(torch.tensor([1.0, 0, -1, 0]).repeat(4, 16), "ternary_channel", sparsity="2:4")
    with pytest.raises(ArgumentError, match="all stored"):
        fb.matvec(sparse, x, activation="int8_channel")
    for weight in (normal(4, 64), fb.quantize(normal(64, 64), "ternary_channel", axis=0)):
        with pytest.raises(ArgumentError, match="packed along its last axis"):
            fb.matvec(weight, x, activation="int8_channel")
    array = np.zeros((1, 4), np.float32)
    packed = Packed(np.zeros((2, 2), np.uint8))
    with pytest.raises(ArgumentError, match="expected ternary or binary weights"):
        planes.plane_product(array, packed, fb.format("int4"), 2, fb.format("int8_channel"))


def test_ternary_weights_of_the_format_have_the_values_that_planes_have() -> None:
    assert values(fb.format("ternary_channel").element).tolist() == [0, 1, -2, -1]
    assert values(fb.format("binary_channel").element).tolist() == [1, -1]
