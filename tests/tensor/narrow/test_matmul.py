"""Narrow products against float64: the error bound, the ends of the scales, the choice of units."""

import threading
from typing import Any

import numpy as np
import pytest
import torch

import fewbits as fb
from fewbits.kernels import native
from fewbits.tensor.narrow import products

UNIT = 2.0**-24
GEMV_FORMATS = (
    *("mxfp4", "mxfp6_e3m2", "mxfp6_e2m3", "mxfp8_e4m3", "mxfp8_e5m2", "mxint8", "mx4", "mx6", "mx9"),
    *("nvfp4", "int4_channel", "int8_channel", "int8_tensor", "msfp12", "vsq4", "vsq8", "quda_half"),
    *("fp8_e4m3", "bf16", "int4", "posit8_1"),
)
NARROWED = ("mxfp4", "mxfp6_e2m3", "mxfp8_e4m3", "mxfp8_e5m2", "mxint8", "mx9", "nvfp4")


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def excess(found: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> float:
    """Return the largest error over its bound (k + 2) u |a| |b|."""
    exact = a.double() @ b.double()
    bound = (a.shape[-1] + 2) * UNIT * (a.double().abs() @ b.double().abs())
    return float(((found.double() - exact).abs() / bound.clamp(min=2.0**-149)).max())


@pytest.mark.parametrize("name", GEMV_FORMATS)
def test_few_vectors_meet_packed_weights_within_the_bound(name: str) -> None:
    for k in (1, 15, 16, 33, 128, 160, 1000, 4096 + 144):
        q = fb.quantize(normal(7, k) * 3, name)
        dense = q.dequantize()
        for isa in native.available_isas():
            native.force_isa(isa)
            for batch in (1, 2, 5, 16):
                x = normal(batch, k, seed=batch)
                assert excess(fb.matvec(q, x), x, dense.t()) <= 1
                assert excess(q @ x.t(), dense, x.t()) <= 1
        native.force_isa(None)


@pytest.mark.parametrize(
    "name", ["mxfp4", "mxfp6_e2m3", "mx6", "nvfp4", "quda_half", "int8_channel", "posit8_1"]
)
def test_batches_meet_packed_weights_within_the_bound(name: str) -> None:
    for k, lines in ((16, 3), (33, 17), (512 + 48, 16), (1024 + 7, 35)):
        q = fb.quantize(normal(lines, k) * 3, name)
        dense = q.dequantize()
        for isa in native.available_isas():
            native.force_isa(isa)
            for batch in (3, 6, 7, 17, 32, 33, 64, 65):
                x = normal(batch, k, seed=batch)
                assert excess(fb.matvec(q, x), x, dense.t()) <= 1
        native.force_isa(None)


@pytest.mark.parametrize("name", ["mxfp4", "mx9", "int8_channel"])
def test_a_bound_far_tighter_is_refuted(name: str) -> None:
    q, x = fb.quantize(normal(64, 4096), name), normal(4, 4096, seed=1)
    assert excess(fb.matvec(q, x), x, q.dequantize().t()) > 1e-5


@pytest.mark.parametrize("name", ["mxfp4", "int8_channel", "binary_channel", "posit8_1"])
def test_weights_of_more_vectors_than_the_limit_are_unpacked_and_of_no_fewer(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    q = fb.quantize(normal(3, 40), name)
    unpacked: list[int] = []
    whole = fb.NarrowTensor.dense
    monkeypatch.setattr(fb.NarrowTensor, "dense", lambda q: (unpacked.append(1), whole(q))[1])
    table = q.format.element.grid is None
    for isa in native.available_isas():
        native.force_isa(isa)
        limit = {"baseline": 16, "avx2": 64 if table else 512}.get(isa, 64)
        for vectors in (1, limit, limit + 1):
            x = normal(vectors, 40, seed=1)
            for product in (lambda x: fb.matvec(q, x), lambda x: x @ q.t()):
                unpacked.clear()
                product(x)
                assert len(unpacked) == (vectors > limit), (isa, vectors)
    native.force_isa(None)


@pytest.mark.parametrize("name", ["mxfp4", "mxfp8_e5m2", "mx6", "nvfp4"])
def test_sixty_five_vectors_are_multiplied_with_the_unpacked_weights(name: str) -> None:
    q = fb.quantize(normal(8, 96), name)
    for batch in (64, 65):
        x = normal(batch, 96, seed=2)
        assert excess(fb.matvec(q, x), x, q.dequantize().t()) <= 1


@pytest.mark.parametrize(
    "name", ["mxfp4", "mxfp6_e2m3", "mxfp8_e4m3", "mxfp8_e5m2", "mxint8", "mx9", "nvfp4"]
)
def test_both_operands_are_narrowed_in_the_call_along_the_reduction_axis(name: str) -> None:
    a, b = normal(33, 100), normal(100, 29, seed=1)
    rounded = fb.fake_quantize(a, name, axis=1), fb.fake_quantize(b, name, axis=0)
    assert excess(fb.matmul(a, b, name), *rounded) <= 1
    packed = fb.quantize(a, name, axis=1), fb.quantize(b, name, axis=0)
    assert excess(fb.matmul(*packed), *rounded) <= 1
    assert excess(fb.matmul(a, b), *rounded) > 1  # the operands were rounded indeed


def test_matmul_takes_batches_and_vectors() -> None:
    a, b = normal(2, 5, 64), normal(64, 3, seed=1)
    assert fb.matmul(a, b, "mxfp8_e4m3").shape == (2, 5, 3)
    assert fb.matmul(a[0, 0], b, "mxfp4").shape == (3,)
    assert fb.matmul(a[0], b[:, 0], "mxfp4").shape == (5,)


def filled(code: int, scale: int) -> fb.NarrowTensor:
    """Return (2, 32) MXFP8 E5M2, all elements and all scales of one code."""
    codes, scales = (torch.full(s, c, dtype=torch.uint8) for s, c in (((2, 32), code), ((2, 1), scale)))
    fmt = fb.format("mxfp8_e5m2")
    return fb.NarrowTensor.from_parts(
        codes, scales, None, None, format=fmt, shape=(2, 32), axis=1, dtype=torch.float32
    )


def test_the_ends_of_the_scale_keep_their_values() -> None:
    low = filled(1, 0)  # E5M2's smallest value times the smallest scale: a float32 subnormal, no bfloat16
    assert float(low.dequantize()[0, 0]) == 2.0**-16 * 2.0**-127
    assert low.dequantize().bfloat16().count_nonzero() == 0
    big = torch.full((3, 32), 2.0**120)
    expected = 32 * 2.0**-143 * 2.0**120
    assert torch.equal(fb.matvec(low, big), torch.full((3, 2), expected))
    assert torch.equal(low @ fb.quantize(big, "mxfp8_e5m2").t(), torch.full((2, 3), expected))
    high = filled(0x7B, 254)  # 57344 times 2^127 leaves float32, in a product as when it is dequantized
    assert torch.isinf(high.dequantize()).all()
    assert torch.isinf(fb.matvec(high, torch.ones(1, 32))).all()


def test_values_too_small_for_units_of_bfloat16_are_multiplied_all_the_same() -> None:
    low = normal(4, 64)
    low[1, :32] *= 2.0**-120
    rounded = fb.fake_quantize(low, "mxfp8_e5m2"), fb.fake_quantize(low.t(), "mxfp8_e5m2", axis=0)
    assert excess(fb.matmul(low, low.t(), "mxfp8_e5m2"), *rounded) <= 1


@pytest.mark.parametrize("name", ["mxfp4", "nvfp4", "int8_channel", "bf16"])
@pytest.mark.parametrize("vectors", [1, 9, 64, 65, 513])
def test_subnormal_bfloat16_values_count_however_many_vectors_there_are(name: str, vectors: int) -> None:
    w = fb.quantize((normal(8, 64) * 2.0**100).bfloat16(), name)
    x = (normal(vectors, 64, seed=1) * 2.0**-130).bfloat16().requires_grad_()
    v = fb.fake_quantize(x.detach(), "mxint8")
    low = fb.quantize((normal(8, 64) * 2.0**-127).bfloat16(), name)
    big = fb.fake_quantize((normal(vectors, 64, seed=1) * 2.0**100).bfloat16(), "mxint8")
    products = (
        (fb.matvec(w, x), x, w),
        (x @ w.t(), x, w),
        ((w @ x.t()).t(), x, w),
        (fb.matmul(x, w.t(), "mxint8"), v, w),
        (fb.matmul(v, w.t()), v, w),
        (fb.matmul(big, low.t(), "mxint8"), big, low),
    )
    for found, a, b in products:
        assert found.dtype == torch.bfloat16
        of_a, of_b = a.detach().double(), b.dequantize().double()
        exact, bound = of_a @ of_b.t(), of_a.abs() @ of_b.abs().t()
        assert bound.min() > 2.0**-40
        # Two units: kernels hold values of real scales in float32, and dequantize() rounds them once.
        assert ((found.double() - exact).abs() <= 2.0**-8 * (exact.abs() + bound) * 1.01).all()


def test_subnormal_gradients_in_bfloat16_count_too() -> None:
    w, x = fb.quantize((normal(8, 64) * 2.0**100).bfloat16(), "mxfp4"), torch.zeros(9, 64).bfloat16()
    gradient = (normal(9, 8, seed=1) * 2.0**-130).bfloat16()
    exact = gradient.double() @ w.dequantize().double()
    bound = 2.0**-8 * (gradient.double().abs() @ w.dequantize().double().abs())
    for product in (lambda v: fb.matvec(w, v), lambda v: fb.matmul(v, w.t(), "mxfp4")):
        leaf = x.clone().requires_grad_()
        (found,) = torch.autograd.grad(product(leaf), leaf, gradient)
        assert ((found.double() - exact).abs() <= bound).all()


def settings() -> tuple[Any, ...]:
    """Return what the whole process computes by."""
    return (
        torch.backends.mkldnn.matmul.fp32_precision,
        torch.backends.mkldnn.conv.fp32_precision,
        torch.backends.mkldnn.fp32_precision,
        torch.backends.fp32_precision,
        torch.get_float32_matmul_precision(),
        torch.get_num_threads(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        np.geterr(),
    )


def everything(x: torch.Tensor) -> None:
    """Do all that multiplies or rounds."""
    q = fb.quantize(x, "mxfp8_e4m3")
    fb.matmul(x, x.t(), "mxfp8_e4m3")
    fb.matmul(q, q.t())
    fb.matvec(q, x[:2])
    products.bfloat16_product(x.bfloat16().float(), x.t().bfloat16().float())
    model = fb.prepare(torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.Linear(32, 64)), "mxfp8")
    (model(x) ** 2).sum().backward()
    fb.solve(x @ x.t() + 64 * torch.eye(len(x)), x[:, 0])


def test_no_setting_of_the_process_changes_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of float32 in other threads compute by the same settings, also where PyTorch has tiles."""
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    for name in ("_set_fp32_precision_setter", "_set_float32_matmul_precision"):
        assert hasattr(torch._C, name)
        monkeypatch.setattr(torch._C, name, lambda *_: pytest.fail("a setting of the process is turned"))
    before, ended = settings(), threading.Event()
    a, b = normal(64, 64, seed=3), normal(64, 64, seed=4)
    expected, seen = a @ b, []

    def other() -> None:
        while not ended.is_set():
            seen.append(settings() == before and torch.equal(a @ b, expected))

    thread = threading.Thread(target=other)
    thread.start()
    try:
        everything(normal(64, 64))
    finally:
        ended.set()
        thread.join()
    assert seen
    assert all(seen)


@pytest.mark.parametrize("isa", native.available_isas())
def test_units_are_taken_only_where_they_are_exact(isa: str, monkeypatch: pytest.MonkeyPatch) -> None:
    taken = []
    real = native.product

    def watched(*given: Any, **options: Any) -> bool:
        done = real(*given, **options)
        if done:
            taken.append(given[3])
        return done

    monkeypatch.setattr(native, "product", watched)
    native.force_isa(isa)
    a, b, low = normal(2, 20, 64), normal(64, 30, seed=1), normal(64, 30) * 2.0**-120

    def first(*units: str) -> str:
        return next(unit for unit in units if native.has_unit(unit))

    for name, right, unit in (
        ("mxfp8_e5m2", b, first("bfloat16", "float32")),
        ("mx9", b, first("bfloat16", "integers16", "float32")),
        ("mxint8", b, first("integers", "bfloat16", "integers16", "float32")),
        ("mxfp8_e5m2", low, "float32"),
        ("mxint8", low, "float32"),
    ):
        rounded = fb.fake_quantize(a, name), fb.fake_quantize(right, name, axis=0)
        packed = fb.quantize(a[0], name), fb.quantize(right, name, axis=0)
        taken.clear()
        assert excess(fb.matmul(a, right, name), *rounded) <= 1
        assert excess(fb.matmul(*packed), rounded[0][0], rounded[1]) <= 1
        assert len(taken) == 2
        assert taken == [unit] * 2
    taken.clear()
    fb.matmul(a, b, "int8_channel")
    fb.matmul(a.double(), b.double(), "mx9")
    assert taken == []
    native.force_isa(None)


def test_gradients_pass_a_product_straight_to_what_was_rounded() -> None:
    a, b = normal(20, 64).requires_grad_(), normal(64, 30, seed=1).requires_grad_()
    fb.matmul(a, b, "mxfp4").sum().backward()
    rounded_a, rounded_b = fb.fake_quantize(a, "mxfp4"), fb.fake_quantize(b, "mxfp4", axis=0)
    one = torch.ones(20, 30)
    assert torch.allclose(a.grad, one @ rounded_b.detach().t(), rtol=1e-6, atol=1e-5)
    assert torch.allclose(b.grad, rounded_a.detach().t() @ one, rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_products_do_not_depend_on_the_dtype_that_new_tensors_get(dtype: torch.dtype) -> None:
    w, x = normal(7, 64), normal(3, 64, seed=1)
    q, ternary = fb.quantize(w, "mxfp4"), fb.quantize(w, "ternary_channel")

    def products_of_all_kinds() -> list[torch.Tensor]:
        return [
            *(fb.matvec(q, x), x @ q.t(), fb.matmul(x, q.t(), "mxfp8_e4m3")),
            fb.matvec(q.to(torch.bfloat16), x.bfloat16()),
            fb.matvec(q, x, activation="int8_32"),
            fb.matvec(ternary, x, activation="int8_channel"),
            products.ops.bfloat16_product(x.bfloat16().float(), q.dequantize().t()),
            products.ops.addition_product(x, w.t()),
        ]

    expected = products_of_all_kinds()
    torch.set_default_dtype(dtype)
    try:
        found = products_of_all_kinds()
    finally:
        torch.set_default_dtype(torch.float32)
    for i, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        assert mine.dtype == theirs.dtype, i
        assert torch.equal(mine, theirs), i
