"""Causal attention as a module: torch's own where nothing is narrow, and the narrow one beside it."""

from typing import Any

import pytest
import torch

from fewbits.formats import parse
from fewbits.kernels import ops
from fewbits.nn import DotProductAttention, LayerPrecision, prepare
from fewbits.nn.layer_precision import Operand, goes_by_panels
from fewbits.nn.layers.dot_product import NarrowDotProductAttention, _CausalSoftmax
from fewbits.nn.products import _with_zeros, attention_product
from fewbits.recipes import RECIPES, recipe
from tests.cases import pairs


def _given(length: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randn(2, 3, length, 16, generator=generator, dtype=dtype).requires_grad_() for _ in range(3)
    ]


@pytest.mark.parametrize("length", [1, 7, 33])
def test_without_rounding_it_is_torchs(length: int) -> None:
    plain, narrow = DotProductAttention(), NarrowDotProductAttention()
    narrow.precision = LayerPrecision(RECIPES["fp32"])
    q, k, v = _given(length)
    expected, found = plain(q, k, v), narrow(q, k, v)
    assert torch.allclose(found, expected, atol=1e-6)
    wanted = torch.autograd.grad(expected.square().sum(), (q, k, v))
    for one, other in zip(torch.autograd.grad(found.square().sum(), (q, k, v)), wanted, strict=True):
        assert torch.allclose(one, other, atol=1e-5)


def test_no_position_sees_a_later_one() -> None:
    # Blocks of v lie along time: without a block, nothing of a later value can reach an earlier result.
    module = prepare(DotProductAttention(), recipe("fp32:activation=fp8_e4m3"))
    q, k, v = (t.detach() for t in _given(40))
    before = module(q, k, v)
    k[..., 20:, :], v[..., 20:, :] = 5.0, -5.0
    assert torch.equal(module(q, k, v)[..., :20, :], before[..., :20, :])


def test_a_prepared_one_keeps_close() -> None:
    module = prepare(DotProductAttention(), "mx9")
    q, k, v = _given(40)
    assert module(q, k, v).dtype == torch.float32
    assert torch.allclose(module(q, k, v), DotProductAttention()(q, k, v), atol=0.05)


def _by_steps(
    module: NarrowDotProductAttention, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> torch.Tensor:
    """Return what ``module`` has to, with a softmax of torch's own operations."""
    scores = attention_product(q, k.mT, module.precision)
    later = torch.ones(scores.shape[-2:]).triu(1) > 0
    p = (scores.float() / q.shape[-1] ** 0.5).masked_fill(later, -torch.inf).softmax(-1)
    return attention_product(p.to(scores.dtype), v, module.precision)


@pytest.mark.parametrize("name", ["mxfp8", "amp-bf16"])
def test_a_softmax_in_place_is_torchs_and_so_are_both_derivatives(name: str) -> None:
    module = NarrowDotProductAttention()
    module.precision = LayerPrecision(RECIPES[name], packs_activations=False)
    results = []
    for attend in (module, lambda *x: _by_steps(module, *x)):
        q, k, v = _given(40)
        y = attend(q, k, v)
        first = torch.autograd.grad(y.float().square().sum(), (q, k, v))
        again = torch.autograd.grad(attend(q, k, v).float().square().sum(), (q, k, v), create_graph=True)
        second = torch.autograd.grad(torch.stack([g.square().sum() for g in again]).sum(), (q, k, v))
        results.append((y, *first, *again, *second))
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)
    assert results[0][0].dtype == module.precision.dtype


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_a_softmax_in_place_takes_batches_of_gradients(dtype: torch.dtype) -> None:
    scores = torch.randn(3, 8, 8, generator=torch.Generator().manual_seed(0)).to(dtype).requires_grad_()
    gradients = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1)).to(dtype)
    p, _ = _CausalSoftmax.apply(scores, 16)

    def back(gradient: torch.Tensor) -> torch.Tensor:
        return torch.autograd.grad(p, scores, gradient, retain_graph=True)[0]

    expected = torch.stack([back(g) for g in gradients])
    assert torch.equal(torch.vmap(back)(gradients), expected)
    (batch,) = torch.autograd.grad(p, scores, gradients, is_grads_batched=True)
    assert torch.equal(batch, expected)


def _results(name: str, queries: int, keys: int, nan: str) -> list[torch.Tensor]:
    """Return attention and its gradients, with a NaN in the middle of one tensor if it is named."""
    generator = torch.Generator().manual_seed(queries + keys)
    sizes = {"q": queries, "k": keys, "v": keys, "g": queries}
    given = {n: torch.randn(2, 3, length, 32, generator=generator) for n, length in sizes.items()}
    if nan:
        given[nan][0, 1, len(given[nan][0, 1]) // 2, 5] = torch.nan
    module = NarrowDotProductAttention()
    module.precision = LayerPrecision(recipe(name))
    q, k, v = (given[n].requires_grad_() for n in "qkv")
    y = module(q, k, v)
    return [y, *torch.autograd.grad(y, (q, k, v), given["g"].to(y.dtype))]


@pytest.mark.parametrize(
    ("name", "nan", "lengths"),
    pairs(
        ("mxfp8", "mxfp6", "mxint8", "fp32:activation=mxfp8_e4m3,gradient=mxfp8_e4m3"),
        ("", "q", "k", "v", "g"),
        ((1, 1), (33, 33), (130, 130), (70, 101), (101, 70)),
    ),
)
def test_products_without_what_is_masked_equal_those_of_everything(
    name: str, nan: str, lengths: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    named, product = set(), ops.rounded_product

    def whole(*given: Any, lower: str = "") -> torch.Tensor:
        named.add(lower)
        return product(*given)

    found = _results(name, *lengths, nan)
    monkeypatch.setattr(ops, "rounded_product", whole)
    for one, other in zip(found, _results(name, *lengths, nan), strict=True):
        bits = torch.int32 if one.dtype == torch.float32 else torch.int16
        assert torch.equal(one.view(bits), other.view(bits))
    ours = torch.randn(1).bfloat16()
    if goes_by_panels(ours):
        assert named == {"result", "left", "left transposed", "right"}


def test_a_sum_beyond_the_diagonal_that_overflows_reaches_no_earlier_position() -> None:
    module = NarrowDotProductAttention()
    module.precision = LayerPrecision(RECIPES["mxfp8"])
    q, k, v = (t.detach() for t in _given(40))
    q[..., :20, :], k[..., 20:, :] = 1e30, 2e38
    scores = attention_product(q, k.mT, module.precision, "result")
    assert torch.isinf(scores[..., 19, 20]).all()
    assert torch.isfinite(module(q, k, v)[..., :20, :]).all()


def test_a_format_in_which_zero_is_another_number_is_multiplied_whole() -> None:
    signs = parse("block(element=lookup(1,-1),scale=e8m0,size=32)")
    assert not signs.element.has_zero
    a, b = Operand(torch.ones(2, 2), signs), Operand(torch.ones(2, 2), parse("mxint8"))
    assert [_with_zeros(lower, a, b) for lower in ("result", "left", "left transposed", "right")] == [
        "result",
        "",
        "",
        "right",
    ]
