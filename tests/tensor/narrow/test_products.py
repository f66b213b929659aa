"""Products: those of the dequantized tensor, with gradients for the ordinary operand alone."""

from collections.abc import Callable

import pytest
import torch
from torch.autograd import forward_ad
from torch.nn import functional

import fewbits as fb
from fewbits.errors import ArgumentError, DTypeError
from fewbits.kernels import force_backend
from fewbits.tensor.narrow import products
from tests import cases
from tests.tensor.packed import packed, values

Product = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
BIAS = torch.arange(8.0)
PRODUCTS: dict[str, Product] = {
    "linear of a batch": lambda x, q: functional.linear(x, q, BIAS),
    "linear of a matrix": lambda x, q: functional.linear(x[0], q, BIAS),
    "linear of a vector": lambda x, q: functional.linear(x[0, 0], q, BIAS),
    "linear without a bias": functional.linear,
    "x @ q.t()": lambda x, q: x @ q.t(),
    "x @ q.T, a matrix": lambda x, q: x[0] @ q.T,
    "x @ q.T, a vector": lambda x, q: x[0, 0] @ q.T,
    "q @ x": lambda x, q: q @ x.mT,
    "q @ x, a vector": lambda x, q: q @ x[0, 0],
    "mm": lambda x, q: torch.mm(q, x[0].t()),
    "bmm": lambda x, q: torch.bmm(x, q.t().expand(3, 64, 8)),
    "addmm": lambda x, q: torch.addmm(torch.ones(5, 8), x[0], q.t(), beta=0.5, alpha=2),
    "addmm with a row": lambda x, q: torch.addmm(BIAS, x[0], q.t()),
    "matmul": lambda x, q: torch.matmul(x, q[:4].t()),
}


@pytest.mark.parametrize("product", PRODUCTS.values(), ids=PRODUCTS)
@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "mx9", "int8_channel", "fp8_e4m3"])
def test_a_product_is_that_of_the_dequantized_tensor(product: Product, name: str) -> None:
    q = packed(name, (8, 64))
    y = q.dequantize()
    x = torch.randn(3, 5, 64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    found, wanted = product(x, q), product(x, y)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-4)  # sums of another order
    for a, b in zip(torch.autograd.grad(found.sum(), x), torch.autograd.grad(wanted.sum(), x), strict=True):
        torch.testing.assert_close(a, b)
    assert not torch.equal(found, product(x, y * 2))  # the comparison sees another weight
    with torch.inference_mode():
        torch.testing.assert_close(product(x, q), wanted, rtol=1e-5, atol=1e-4)
    with torch.autocast("cpu", torch.bfloat16):
        # The values themselves become bfloat16 only where they are unpacked.
        torch.testing.assert_close(product(x, q), product(x, y), rtol=0.02, atol=0.25)


def test_a_summand_that_counts_nothing_is_not_read() -> None:
    q, x = packed("mxfp4", (8, 64)), torch.randn(5, 64)
    for bias in (torch.full((8,), torch.nan), torch.full((5, 8), torch.inf)):
        assert torch.equal(torch.addmm(bias, x, q.t(), beta=0), x @ q.t())


@pytest.mark.parametrize("vectors", [1, 5, 65])
@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "posit8_1"])
def test_products_of_float64_are_those_of_float64(name: str, vectors: int) -> None:
    q = packed(name, (8, 64)).double()
    x = torch.randn(vectors, 64, dtype=torch.float64) * 1e200
    for y in (x @ q.t(), functional.linear(x, q), fb.matvec(q, x), (q @ x.t()).t()):
        torch.testing.assert_close(y, x @ q.dequantize().t(), rtol=1e-12, atol=1e190)


@pytest.mark.parametrize(
    "shapes", [((3, 0), (0, 4)), ((0,), (0, 4)), ((2, 3, 0), (0, 4)), ((3, 5), (5, 0)), ((0, 5), (5, 4))]
)
@pytest.mark.parametrize("name", ["mxfp4", "mxint8", "int8_channel"])
def test_products_of_nothing_are_zeros_as_in_torch(
    name: str, shapes: tuple[tuple[int, ...], tuple[int, ...]]
) -> None:
    a, b = (torch.ones(shape) for shape in shapes)
    p, q = fb.quantize(a, name), fb.quantize(b, name, axis=0)
    wanted = a @ b
    for found in (fb.matmul(a, b, name), a @ q, p @ q, fb.matvec(q.t(), a)):
        assert torch.equal(found, wanted)


@pytest.mark.parametrize("fmt", cases.FORMATS, ids=cases.label)
def test_linear_and_matmul_take_every_format_packed_on_either_side(fmt: cases.Format) -> None:
    a, b = values(fmt, (5, 40)), values(fmt, (3, 40), seed=1)
    p, q = fb.quantize(a, fmt), fb.quantize(b, fmt)
    for mine, theirs in ((a, q), (p, b), (p, q)):
        dense = [t.dequantize() if isinstance(t, fb.NarrowTensor) else t for t in (mine, theirs)]
        wanted = functional.linear(dense[0], dense[1])
        torch.testing.assert_close(functional.linear(mine, theirs), wanted, rtol=1e-5, atol=1e-4)
        for found in (products.linear(mine, theirs), products.matmul(mine, theirs.t()), mine @ theirs.T):
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-4)  # sums of another order


def test_the_gradient_goes_to_the_ordinary_operand_and_to_the_bias_only() -> None:
    q = packed("mxfp4", (8, 64)).requires_grad_()
    x, bias = torch.randn(5, 64).requires_grad_(), torch.zeros(8).requires_grad_()
    functional.linear(x, q, bias).sum().backward()
    assert x.grad is not None
    assert bias.grad is not None
    assert (q.requires_grad, q.grad) == (False, None)
    torch.testing.assert_close(x.grad, q.dequantize().sum(0).expand(5, 64))


@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "int8_tensor", "posit8_1"])
def test_an_embedding_dequantizes_the_rows_it_takes_and_no_others(name: str) -> None:
    q = packed(name, (10, 40))
    where = torch.tensor([[3, 0], [9, 3]])
    assert torch.equal(functional.embedding(where, q), functional.embedding(where, q.dequantize()))
    q.codes[5] = 255 - q.codes[5]  # another row
    kept = functional.embedding(where, q)
    q.codes[3] = 255 - q.codes[3]
    assert not torch.equal(functional.embedding(where, q), kept)
    assert torch.equal(functional.embedding(where, q)[0, 1], kept[0, 1])


def test_an_embedding_whose_blocks_lie_across_the_rows_is_refused() -> None:
    with pytest.raises(ArgumentError, match="an index tensor along the block axis 0 of"):
        functional.embedding(torch.tensor([1]), packed("mxfp4", (32, 8), axis=0))


def test_a_vector_as_the_weight_of_a_linear_layer_takes_no_bias_as_in_torch() -> None:
    row, x = packed("mxfp4", (64,)), torch.randn(3, 64)
    torch.testing.assert_close(functional.linear(x, row), functional.linear(x, row.dequantize()))
    with torch.inference_mode():  # a number is added in another way than a vector
        number = torch.tensor(1.0)
        found = functional.linear(x[None], row, number)
        torch.testing.assert_close(found, functional.linear(x[None], row.dequantize(), number))
    for inference in (False, True):
        for given in (x, x[0], x[None]):
            for bias in (torch.ones(1), torch.ones(3), *([torch.tensor(1.0)] if given is x else [])):
                with torch.inference_mode(inference):
                    with pytest.raises(RuntimeError, match="mat2 must be a matrix, got 1-D tensor"):
                        functional.linear(given, row.dequantize(), bias)
                    with pytest.raises(ArgumentError, match=r"and a bias; expected a matrix"):
                        functional.linear(given, row, bias)


@pytest.mark.parametrize("vectors", [1, 3, 65])
def test_a_bias_of_another_dtype_or_with_more_rows_is_refused_as_in_torch(
    vectors: int,
) -> None:
    q, x = packed("mxfp4", (8, 64)), torch.randn(vectors, 64)
    dense = q.dequantize()
    calls: tuple[Callable[[torch.Tensor, torch.Tensor], torch.Tensor], ...] = (
        lambda w, bias: functional.linear(x, w, bias),
        lambda w, bias: functional.linear(x[None], w, bias),
        lambda w, bias: torch.addmm(bias, x, w.t()),
        lambda w, bias: torch.addmm(bias, x, w.t(), beta=0),
        lambda w, bias: torch.addmm(bias, x, w.t(), beta=0.5, alpha=2),
    )
    for call in calls:
        for dtype in (torch.float64, torch.bfloat16, torch.complex64, torch.int64):
            bias = torch.ones(8, dtype=dtype)
            with pytest.raises(RuntimeError, match="must have the same dtype"):
                call(dense, bias)
            with pytest.raises(DTypeError, match=r"added to a product of torch\.float32; expected one dtype"):
                call(q, bias)
        for shape in ((5,), (vectors + 1, 8), (2, 2, vectors, 8)):
            with pytest.raises(RuntimeError, match=r"expand|shape|size"):
                call(dense, torch.ones(shape))
            # Torch itself adds more than a row to a product of more than a matrix.
            with pytest.raises((ArgumentError, RuntimeError), match=r"expands to it|broadcast|must match"):
                call(q, torch.ones(shape))
        for shape in ((8,), (1,), (1, 8), (vectors, 1), ()):
            found = call(q, torch.ones(shape))
            torch.testing.assert_close(found, call(dense, torch.ones(shape)), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("inference", [False, True])
def test_operations_on_matrices_take_nothing_else_as_in_torch(inference: bool) -> None:
    q = packed("mxfp4", (8, 64))
    stack = q.expand(3, 8, 64)
    calls: tuple[Callable[[torch.Tensor, torch.Tensor], torch.Tensor], ...] = (
        lambda w, _: torch.mm(w, torch.ones(2, 64, 3)),
        lambda w, _: torch.mm(w, torch.ones(64)),
        lambda w, _: torch.mm(torch.ones(2, 3, 64), w.t()),
        lambda w, _: torch.mv(w, torch.ones(64, 2)),
        lambda _, s: torch.mv(s, torch.ones(64)),
        lambda w, _: torch.bmm(torch.ones(3, 64), w.t()),
        lambda w, _: torch.bmm(torch.ones(2, 3, 64), w.t()),
        lambda _, s: torch.bmm(s, torch.ones(1, 64, 2)),
        lambda _, s: torch.bmm(s[:1], torch.ones(3, 64, 2)),
        lambda w, _: torch.addmm(torch.zeros(8), torch.ones(2, 3, 64), w.t()),
        lambda _, s: torch.addmm(torch.zeros(2), s, torch.ones(64, 2), beta=0.5),
    )
    for call in calls:
        with torch.inference_mode(inference):
            with pytest.raises(RuntimeError):
                call(q.dequantize(), stack.dequantize())
            with pytest.raises(ArgumentError, match=r"^(mm|mv|bmm|addmm) of shapes .*take torch\.matmul"):
                call(q, stack)


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("vectors", [1, 600])
def test_operands_on_two_devices_are_refused(vectors: int, inference: bool) -> None:
    q, x = packed("ternary_channel", (8, 64)), torch.randn(vectors, 64)
    calls: tuple[Product, ...] = (
        functional.linear,
        lambda x, w: functional.linear(x[None], w),
        lambda x, w: x @ w.t(),
        lambda x, w: w @ x.t(),
        lambda x, w: torch.addmm(x.new_zeros(8), x, w.t(), beta=0.5),
        lambda x, w: torch.bmm(x[None], w.t()[None]),
        lambda x, w: fb.matvec(w, x),
        lambda x, w: fb.matvec(w, x, activation="int8_32"),
        lambda x, w: fb.matvec(w, x, activation="int8_channel"),
        lambda x, w: fb.matmul(x, w.t(), "int8_channel"),
        lambda x, w: fb.matmul(packed("ternary_channel", (3, 64)).to(x.device), w.t()),
    )
    # What torch multiplies on its meta device with a tensor of values is memory that nobody wrote to.
    with torch.inference_mode(inference):
        for call in calls:
            for operands in ((x, q.to("meta")), (x.to("meta"), q)):
                with pytest.raises(
                    ArgumentError, match=r"on (cpu and meta|meta and cpu); expected one device"
                ):
                    call(*operands)
        assert functional.linear(x.to("meta"), q.to("meta")).shape == (vectors, 8)


def test_shapes_that_do_not_fit_are_torchs_own_error() -> None:
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        torch.ones(5, 63) @ packed("mxfp4", (8, 64)).t()


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # torch's own forward mode
@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "mx9", "int8_channel"])
@pytest.mark.parametrize("sparse", [False, True])
def test_matvec_and_matmul_have_every_derivative(name: str, sparse: bool) -> None:
    pruned = torch.randn(8, 64, generator=torch.Generator().manual_seed(2)) * (torch.arange(64) % 4 < 2)
    q = fb.quantize(pruned, name, sparsity="2:4" if sparse else None)
    x, dense = torch.randn(3, 64, generator=torch.Generator().manual_seed(1)), q.dequantize()
    assert isinstance(dense, torch.Tensor)

    def loss(product: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
        return lambda v: (product(v) ** 2).sum()

    wanted = loss(lambda v: v @ dense.t())
    for product in (lambda v: fb.matvec(q, v), lambda v: fb.matmul(v, q.t()), lambda v: v @ q.t()):
        mine = loss(product)
        leaf = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(mine(leaf), leaf)
        torch.testing.assert_close(gradient, torch.func.grad(wanted)(x), rtol=1e-4, atol=1e-3)
        for way in (torch.func.grad, torch.func.jacfwd):
            torch.testing.assert_close(way(mine)(x), way(wanted)(x), rtol=1e-4, atol=1e-3)
        found = torch.vmap(product)(x[:, None])
        torch.testing.assert_close(found, (x @ dense.t())[:, None], rtol=1e-5, atol=1e-4)
    each = [fb.quantize(pruned * k, "mxfp4") for k in (1, 2)]
    codes, scales = (torch.stack([getattr(one, part) for one in each]) for part in ("codes", "scales"))
    text = each[0].format.grammar
    stacked = torch.vmap(lambda c, s: torch.ops.fewbits.gemv(x, c, s, None, None, text, None, 8))(
        codes, scales
    )
    assert torch.equal(stacked, torch.stack([fb.matvec(one, x) for one in each]))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # torch's own forward mode
def test_products_with_views_taken_inside_of_a_transform_have_the_derivatives_of_backward() -> None:
    q, x = packed("mxfp4", (4, 32)), torch.randn(3, 32, generator=torch.Generator().manual_seed(1))
    turned = q.t()
    losses: tuple[Callable[[torch.Tensor], torch.Tensor], ...] = (
        lambda v: fb.matmul(v, turned, "mxfp8_e4m3").sum(),
        lambda v: fb.matmul(v, q.t(), "mxfp8_e4m3").sum(),
        lambda v: fb.matmul(q[1:], v.t(), "mxfp4").sum(),
        lambda v: fb.matmul(v, packed("ternary_channel", (4, 32)).t(), "int8_channel").sum(),
        lambda v: fb.matvec(q[:2], v, activation="int8_32").sum(),
        lambda v: (v @ q[:2].t().dequantize()).sum(),
        lambda v: (v @ fb.dequantize(q[:2].t())).sum(),
        lambda v: (v @ packed("mxfp4", (4, 32))[:2].t().dequantize()).sum(),
        lambda v: (v @ fb.quantize(v, "mxfp4")[:2].t()).sum(),
        lambda v: (v.double() @ q.double().t().dequantize()).float().sum(),
    )
    for loss in losses:
        leaf = x.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(loss(leaf), leaf)
        torch.testing.assert_close(torch.func.grad(loss)(x), gradient)
        torch.testing.assert_close(torch.func.vjp(torch.func.grad(loss), x)[0], gradient)
        torch.testing.assert_close(torch.func.jvp(loss, (x,), (x,))[1], (gradient * x).sum())


def test_torch_finds_nothing_wrong_with_the_product_of_vectors() -> None:
    q = packed("nvfp4", (8, 64))
    for rows in (1, 3, 0):
        x = torch.randn(rows, 64).requires_grad_()
        torch.library.opcheck(torch.ops.fewbits.gemv, (x, *q.pieces, q.format.grammar, None, 8))


def test_a_product_under_autocast_has_the_dtype_that_torch_gives_it() -> None:
    q, x = packed("mxfp4", (8, 64)), torch.randn(3, 64)
    with torch.autocast("cpu", torch.bfloat16):
        assert (x @ q.t()).dtype == (x @ q.dequantize().t()).dtype == torch.bfloat16
    assert (x @ q.t()).dtype == torch.float32


@pytest.mark.parametrize("backend", ["native", "portable"])
@pytest.mark.parametrize("vectors", [3, 100])
def test_matvec_and_matmul_give_the_same_bits_under_autocast(backend: str, vectors: int) -> None:
    generator = torch.Generator().manual_seed(vectors)
    x, w = torch.randn(vectors, 64, generator=generator), torch.randn(8, 64, generator=generator)
    q, ternary = fb.quantize(w, "mxfp4"), fb.quantize(w, "ternary_channel")
    calls: tuple[Product, ...] = (
        lambda v, q: fb.matvec(q, v),
        lambda v, q: fb.matvec(q, v, activation="int8_32"),
        lambda v, _: fb.matvec(ternary, v, activation="int8_channel"),
        lambda v, _: fb.matvec(w, v),
        lambda v, q: fb.matmul(v, q.t()),
        lambda v, q: fb.matmul(v, q.t(), "mxfp4"),
        lambda v, q: fb.matmul(v, q.t(), "int8_channel"),
        lambda v, _: fb.matmul(v, w.t(), "int8_channel"),
        lambda v, _: fb.matmul(v, ternary.t(), "int8_channel"),
        lambda v, _: fb.matmul(v, w.t()),
    )
    force_backend(backend)
    try:
        for call in calls:
            leaf = x.clone().requires_grad_()
            y = call(leaf, q)
            (wanted,) = torch.autograd.grad(y.sum(), leaf)
            with torch.autocast("cpu", torch.bfloat16):
                found = call(leaf, q)
                assert torch.equal(call(x, q), call(leaf, q))
            assert found.dtype == torch.float32
            assert torch.equal(found, y)
            assert torch.equal(torch.autograd.grad(found.sum(), leaf)[0], wanted)
    finally:
        force_backend(None)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # torch's own forward mode
@pytest.mark.parametrize("backend", ["native", "portable"])
def test_derivatives_of_operators_are_not_rounded_by_autocast(backend: str) -> None:
    q, x = packed("ternary_channel", (8, 64)), torch.randn(3, 64, generator=torch.Generator().manual_seed(1))
    gradient = torch.randn(3, 8, generator=torch.Generator().manual_seed(2))
    calls: tuple[Product, ...] = (
        lambda v, q: fb.matvec(q, v),
        lambda v, q: fb.matvec(q, v, activation="int8_32"),
        lambda v, q: fb.matvec(q, v, activation="int8_channel"),
        lambda v, q: fb.matmul(v, q.t().dequantize(), "mxfp4"),
    )

    def tangent(call: Product) -> torch.Tensor:
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(call(forward_ad.make_dual(x, x), q)).tangent

    force_backend(backend)
    try:
        for call in calls:
            leaf = x.clone().requires_grad_()
            with torch.autocast("cpu", torch.bfloat16):
                (found,) = torch.autograd.grad(call(leaf, q), leaf, gradient)
                tangents = tangent(call)
            assert torch.equal(found, torch.autograd.grad(call(leaf, q), leaf, gradient)[0])
            assert torch.equal(tangents, tangent(call))
    finally:
        force_backend(None)


@pytest.mark.parametrize("vectors", [3, 100])
def test_compiled_products_keep_their_dtype_under_autocast(vectors: int) -> None:
    q, x = packed("mxfp4", (8, 64)), torch.randn(vectors, 64, generator=torch.Generator().manual_seed(1))
    w = torch.randn(64, 8, generator=torch.Generator().manual_seed(2))
    for call in (lambda v: fb.matvec(q, v), lambda v: fb.matmul(v, w, "int8_channel")):
        with torch.autocast("cpu", torch.bfloat16):
            found = torch.compile(call, backend="aot_eager", fullgraph=True)(x)
        torch.testing.assert_close(found, call(x), rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_vectors_of_any_dtype_and_layout_give_the_values_of_rows_in_order(dtype: torch.dtype) -> None:
    q = packed("mxfp4", (8, 64)).to(dtype)
    x = torch.randn(64, 6, generator=torch.Generator().manual_seed(1)).to(dtype)
    for rows in (x.t()[::2], x.t()[:1], x[:, 1]):
        found = rows @ q.t()
        assert found.dtype == dtype
        assert torch.equal(found, rows.contiguous() @ q.t())
        torch.testing.assert_close(found, rows @ q.dequantize().t(), rtol=2e-2, atol=5e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("vectors", [64, 65, 511, 512, 513])
def test_many_vectors_have_the_bound_of_few(
    vectors: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)  # as on most CPUs
    generator = torch.Generator().manual_seed(vectors)
    x = torch.randn(vectors, 96, generator=generator).to(dtype)
    for name in ("mxfp4", "nvfp4", "mx9", "posit8_1"):
        w = fb.quantize(torch.randn(9, 96, generator=generator).to(dtype), name)
        # Of values that 16 bits cannot hold, such as those of NVFP4, none is rounded before.
        stored = w.to(torch.float32).dequantize().double()
        exact, bound = x.double() @ stored.t(), x.double().abs() @ stored.abs().t()
        last = torch.finfo(dtype).eps / 2 if dtype is not torch.float32 else 0.0
        for y in (functional.linear(x, w), fb.matmul(x, w.t()), (w @ x.t()).t()):
            assert y.dtype == dtype
            assert ((y.double() - exact).abs() <= last * exact.abs() + 98 * 2.0**-24 * bound).all(), name


@pytest.mark.parametrize("shared", [1, 2], ids=["own heads", "grouped"])
@pytest.mark.parametrize("masked", ["", "causal", "mask"])
def test_attention_to_packed_keys_and_values_is_that_of_their_values(masked: str, shared: int) -> None:
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, 4, 6, 64, generator=generator, requires_grad=True)
    held = torch.randn(2, 2, 4 // shared, 6, 64, generator=generator)
    options = {
        "": {},
        "causal": {"is_causal": True},
        "mask": {"attn_mask": torch.randn(2, 4, 6, 6, generator=generator)},
    }[masked] | ({"enable_gqa": True} if shared > 1 else {})
    results = []
    for keys, values_of_keys in (
        [fb.quantize(x, "mxfp8_e4m3") for x in held],
        [fb.fake_quantize(x, "mxfp8_e4m3") for x in held],
    ):
        y = functional.scaled_dot_product_attention(query, keys, values_of_keys, **options)
        (gradient,) = torch.autograd.grad(y.square().sum(), [query])
        results.append((y, gradient))
    for found, wanted in zip(*results, strict=True):
        torch.testing.assert_close(found, wanted)


def test_a_packed_mask_of_attention_counts_by_its_values() -> None:
    generator = torch.Generator().manual_seed(1)
    shapes = ((1, 1, 5, 32), (1, 1, 6, 32), (5, 6))
    query, keys, mask = (torch.randn(shape, generator=generator) for shape in shapes)
    added = fb.quantize(mask, "mxfp4")
    for held in (keys, fb.quantize(keys, "mxfp8_e4m3")):
        found = functional.scaled_dot_product_attention(query, held, keys, attn_mask=added)
        plain = held.dequantize() if held is not keys else keys
        score = query.double() @ plain.double().mT / 32**0.5 + added.dequantize().double()
        wanted = score.softmax(-1) @ keys.double()
        torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("masked", ["", "mask"])
@pytest.mark.parametrize("shape", [(2, 4, 0, 64), (0, 4, 3, 64)])
def test_attention_to_an_empty_cache_is_that_of_no_values(shape: tuple[int, ...], masked: str) -> None:
    query = torch.randn(shape[0], 4, 6, 64, requires_grad=True)
    options = {"attn_mask": torch.zeros(6, shape[2])} if masked else {}
    held = torch.zeros(shape)
    y = functional.scaled_dot_product_attention(query, *[fb.quantize(held, "mxfp8_e4m3")] * 2, **options)
    wanted = functional.scaled_dot_product_attention(query, held, held, **options)
    assert torch.equal(y, wanted)
    y.sum().backward()
    assert not query.grad.any()
    with torch.inference_mode():
        packed = [fb.quantize(held, "mxfp8_e4m3")] * 2
        assert torch.equal(functional.scaled_dot_product_attention(query, *packed, **options), wanted)
