"""Vectors rounded to int8: every instruction set equals the definition, and the error is within its bound."""

import numpy as np
import pytest
import torch

import fewbits as fb
from fewbits.errors import ArgumentError
from fewbits.formats import decode
from fewbits.kernels.reference.gemv.int8 import ACTIVATION, product
from fewbits.kernels.reference.values.blocks import spread

UNIT = 2.0**-24
INTEGERS = ("mxfp4", "int4", "int4_channel", "mxint8", "int8_channel", "int8_tensor")
OTHERS = ("mxfp6_e2m3", "mxfp8_e4m3", "nvfp4", "mx6", "posit8_1")
LENGTHS = (1, 31, 32, 33, 511, 512, 513, 1024 + 96, 4096 + 512 + 17)


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def by_definition(x: torch.Tensor, q: fb.NarrowTensor) -> torch.Tensor:
    """Return what the definition makes of decoded integers and scales."""
    fmt, grid = q.format, q.format.element.grid
    assert grid is not None
    parts = q.parts()
    unit = 2.0 ** (grid.emin - grid.mantissa_bits)
    w = decode(fmt.element, parts.codes) / unit
    assert (w == np.rint(w)).all()
    n, blocks = q.shape[1], -(-q.shape[1] // 32)
    scales = np.ones((q.shape[0], n))
    if parts.scales is not None:
        group = fmt.groups.scales
        assert group is not None
        scales = np.broadcast_to(
            spread(decode(group.element, parts.scales), group.size, (q.shape[0], n)), scales.shape
        )
    rounded = fb.quantize(x, ACTIVATION).parts()
    assert rounded.scales is not None
    codes = decode(ACTIVATION.element, rounded.codes).astype(np.int8)
    of_x = decode(ACTIVATION.groups.scales.element, rounded.scales).astype(np.float32).reshape(len(x), blocks)
    return torch.from_numpy(
        product(codes, of_x, w.astype(np.int64), scales[:, ::32].astype(np.float32), unit)
    )


@pytest.mark.parametrize("name", INTEGERS)
def test_every_instruction_set_equals_the_definition(name: str, isa: str) -> None:
    for n in LENGTHS:
        for lines, batch in ((1, 1), (7, 1), (5, 3)):
            q, x = fb.quantize(normal(lines, n) * 3, name), normal(batch, n, seed=n)
            x[:, ::5] *= 40
            expected = by_definition(x, q)
            assert torch.equal(fb.matvec(q, x, activation="int8_32"), expected), (n, lines, batch)


@pytest.mark.parametrize("name", ["mxfp4", "mxint8"])
def test_the_largest_integers_do_not_saturate(name: str, isa: str) -> None:
    for sign in (1, -1):
        w, x = torch.full((4, 1024), 448.0 * sign), torch.full((1, 1024), -3.0)
        w[:, ::3] *= -1
        x[:, ::3] *= -1
        q = fb.quantize(w, name)
        assert torch.equal(fb.matvec(q, x, activation="int8_32"), by_definition(x, q))


@pytest.mark.parametrize("name", [*INTEGERS, *OTHERS])
def test_the_error_is_within_its_bound(name: str, isa: str) -> None:
    for n in (33, 512 + 40, 4096):
        q, x = fb.quantize(normal(9, n), name), normal(2, n, seed=1)
        w = q.dequantize().double().abs()
        largest = torch.cat([p.abs().amax(1, True).expand(p.shape) for p in x.double().split(32, 1)], 1)
        sums = (n + 8) * UNIT * (x.double().abs() + largest / 253) @ w.t()
        bound = largest / 253 @ w.t() + sums
        error = (
            fb.matvec(q, x, activation="int8_32").double() - x.double() @ q.dequantize().double().t()
        ).abs()
        assert (error <= bound).all()
        assert (error > bound / 1000).any()  # x was rounded indeed


def test_scales_that_are_nan_or_zero_or_subnormal_act_as_in_the_definition(isa: str) -> None:
    q = fb.quantize(normal(4, 1024), "mxfp4")
    q.scales[0, 3], q.scales[1, 31], q.scales[2, 7] = 255, 0, 1
    x = normal(1, 1024, seed=2)
    x[0, 64:96] = 0
    y = fb.matvec(q, x, activation="int8_32")
    assert y[0, 0].isnan()
    assert torch.equal(y[0, 1:], by_definition(x, q)[0, 1:])


def test_threads_and_empty_operands_do_not_matter(isa: str) -> None:
    q, x = fb.quantize(normal(300, 1024), "mxfp4"), normal(2, 1024, seed=3)
    before = torch.get_num_threads()
    try:
        found = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            found.append(fb.matvec(q, x, activation="int8_32"))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*found)
    assert fb.matvec(q, x[:0], activation="int8_32").shape == (0, 300)
    assert fb.matvec(q, x.bfloat16().float(), activation="int8_32").dtype == torch.float32


def test_other_activations_and_weights_are_refused() -> None:
    q, x = fb.quantize(normal(4, 64), "mxfp4"), normal(1, 64)
    for wrong in ("int8", ["int8_32"]):
        with pytest.raises(ArgumentError, match="expected None or 'int8_32'"):
            fb.matvec(q, x, activation=wrong)
    for weight in (normal(4, 64), fb.quantize(normal(64, 64), "mxfp4", axis=0)):
        with pytest.raises(ArgumentError, match="packed along its last axis"):
            fb.matvec(weight, x, activation="int8_32")
