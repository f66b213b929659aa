"""What a grid allows is what quantizing leaves as it is; a searched scale loses no more than another."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import fewbits as fb
from fewbits.formats import CATALOGUE, parse
from fewbits.kernels import has_scale_rule
from fewbits.kernels.bits.options import RULES
from fewbits.ptq.blocks import blocks_of
from fewbits.ptq.grid import Target, grid
from fewbits.ptq.scales import searched

FORMATS = [name for name in CATALOGUE if name != "e8m0"]  # a scale: it has no zero and no minus
AWKWARD = [
    "block(element=posit(6,es=1),scale=e8m0,size=16)",
    "block(element=lookup(-1,-0.3,0,0.2,1),scale=e8m0,size=8)",
    "block(element=int(8),scale=e8m0,size=32)",
    "block(element=fp8_e4m3,scale=fp32,size=7)",
    "bdr(m=3,d1=6,k1=12,d2=2,k2=4)",
]


def drawn(seed: int, spread: float = 1.0) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    w = torch.randn(9, 75, generator=random)
    return w * torch.exp(spread * torch.randn(9, 75, generator=random)) / 16


@pytest.mark.parametrize("name", [*FORMATS, *AWKWARD])
def test_what_is_chosen_from_a_grid_is_stored_as_it_is(name: str) -> None:
    target = Target(parse(name))
    for seed in range(4):
        w = drawn(seed)
        moved = w.double() * (1 + 0.5 * torch.randn(w.shape, generator=torch.Generator().manual_seed(seed)))
        chosen = grid(w, target).nearest(moved).float()
        settled = target.settled(chosen)
        assert settled is not None
        torch.testing.assert_close(settled, chosen, rtol=2e-6, atol=0)
        q = fb.quantize(settled, name, axis=1)
        assert torch.equal(q.dequantize(), settled)
        assert torch.equal(fb.quantize(q.dequantize(), name, axis=1).codes, q.codes)


def test_without_anchors_scales_would_be_lost() -> None:
    target, w = Target(parse("nvfp4")), drawn(0)
    free = grid(w, target)
    free.least.zero_()
    chosen = free.nearest(w.double() * 0.7).float()
    settled = target.settled(chosen)
    assert settled is None or not torch.allclose(settled, chosen, rtol=1e-3, atol=0)


@pytest.mark.parametrize("name", ["mxfp4", "mxfp6_e3m2", "mxint8", "mx6", "fp8_e5m2", "posit8_1", "int4"])
def test_the_nearest_value_of_a_grid_is_that_of_rounding(name: str) -> None:
    w = drawn(3)
    assert torch.equal(
        grid(w, Target(parse(name))).nearest(w.double()).float(), Target(parse(name)).rounded(w)
    )


@given(seed=st.integers(0, 2**16), rule=st.sampled_from(RULES), name=st.sampled_from(FORMATS))
@settings(max_examples=60)
def test_any_scale_rule_finds_the_values_again(seed: int, rule: str, name: str) -> None:
    format = parse(name)
    target = Target(format, rule if has_scale_rule(format) else "floor")
    w = drawn(seed, spread=2.0)
    moved = w.double() + 0.3 * drawn(seed + 1).double()
    chosen = grid(w, target).nearest(moved).float()
    settled = target.settled(chosen)
    assert settled is not None
    assert torch.equal(target.rounded(settled), settled)


@pytest.mark.parametrize(
    "name", ["mxfp4", "mxfp8_e4m3", "nvfp4", "int4_channel", "int8_tensor", "mx4", "vsq4"]
)
def test_a_searched_scale_loses_no_more_in_any_block_and_less_in_all(name: str) -> None:
    target, w = Target(parse(name)), drawn(5)
    importance = torch.rand(w.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    size = target.format.groups.scales.size

    def loss(like: Tensor) -> Tensor:
        error = grid(w, target, like).nearest(w.double()) - w.double()
        return blocks_of(error.square() * importance, size).sum(2)

    usual, best = loss(w), loss(searched(w, importance, target))
    assert bool((best <= usual * (1 + 1e-6)).all())
    assert name == "int8_tensor" or best.sum() < usual.sum()
