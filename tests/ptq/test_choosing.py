"""No output of a layer loses more than it would by rounding, on the inputs that were shown."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from fewbits.formats import parse
from fewbits.ptq.choosing import METHODS, SCALES, Choice, choose, choose_rotation
from fewbits.ptq.gpfq import gpfq
from fewbits.ptq.grid import Target, grid
from fewbits.ptq.layers import LinearLayer
from fewbits.ptq.moments import Moments

FORMATS = ("mxfp4", "mx4", "nvfp4", "int4_channel", "int8_tensor", "mxfp8_e4m3", "ternary")


def shown(seed: int, vectors: int) -> tuple[LinearLayer, Moments]:
    """A layer, and few inputs that hang together: such that error diffusion often goes wrong."""
    random = torch.Generator().manual_seed(seed)
    module = nn.Linear(40, 16, bias=False)
    module.weight.data = torch.randn(16, 40, generator=random)
    layer = LinearLayer(module)
    moments = Moments(layer)
    mixed = torch.randn(40, 40, generator=random) * torch.exp(2 * torch.randn(40, generator=random))
    moments.add(torch.randn(vectors, 40, generator=random) @ mixed)
    return layer, moments


def error(moments: Moments, w: Tensor, chosen: Tensor) -> Tensor:
    """The squared error of each output."""
    return moments.loss(w.double()[None], chosen.double()[None])[0]


@given(
    seed=st.integers(0, 2**16),
    vectors=st.sampled_from([3, 50, 400]),
    format=st.sampled_from(FORMATS),
    method=st.sampled_from(METHODS),
    scale=st.sampled_from(SCALES),
)
@settings(max_examples=80)
def test_each_output_loses_no_more_than_by_rounding(
    seed: int, vectors: int, format: str, method: str, scale: str
) -> None:
    layer, moments = shown(seed, vectors)
    target = Target(parse(format))
    chosen = choose(layer, moments, target, Choice(method, scale))
    rounded = target.settled(target.rounded(layer.weight))
    assert rounded is not None
    assert torch.equal(target.rounded(chosen.weight), chosen.weight)
    own, nearest = (error(moments, layer.weight, w) for w in (chosen.weight, rounded))
    assert own.sum() <= nearest.sum() * (1 + 1e-9)
    if format not in ("nvfp4", "int8_tensor"):  # rows of others share no scale, so each has its own best
        assert bool((own <= nearest * (1 + 1e-9)).all())


def test_without_that_choice_some_outputs_would_lose_more() -> None:
    target, worse = Target(parse("int4_channel")), 0
    for seed in range(30):
        layer, moments = shown(seed, 50)
        w = layer.weight.double()
        diffused = gpfq(w, moments.gram[0], moments.cross[0], grid(layer.weight, target).nearest)
        nearest = error(moments, w, target.rounded(layer.weight))
        worse += int((error(moments, w, diffused) > nearest).sum())
    assert worse > 0


def test_of_rotations_that_lose_as_little_the_smallest_blocks_are_taken() -> None:
    layer = LinearLayer(nn.Linear(32, 8, bias=False).requires_grad_(False))
    none = Moments(layer)  # of no inputs, where nothing loses anything
    offered = [none.rotated(8), none, none.rotated(4)]
    target, choice = Target(parse("mxfp4")), Choice("round")
    assert choose_rotation(layer, offered, target, choice).hadamard == 0
    assert choose_rotation(layer, offered[::2], target, choice).hadamard == 4


def test_where_all_inputs_are_zero_the_best_weights_are_those_there_are() -> None:
    layer = LinearLayer(nn.Linear(8, 4, bias=False))
    moments = Moments(layer, rounded=lambda x: x)
    moments.add(torch.zeros(3, 8))
    w = layer.weight.detach().double()[None]
    assert torch.equal(moments.best(w, 0.01), w)
