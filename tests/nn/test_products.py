"""The three products of a layer are those of operands rounded by the definition, along the axes of the paper.

Rouhani et al., Microscaling Data Formats for Deep Learning, 2023, figure 2. The definition is NumPy's; the
products are float64's.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.nn import functional

from fewbits.kernels.bits.options import options
from fewbits.nn import LayerPrecision, attention_product
from fewbits.recipes import Recipe, recipe
from tests.native.definition import defined
from tests.nn.prepared_layers import narrowed

MX = ("mxfp8_e4m3", "mxfp8_e5m2", "mxfp6_e3m2", "mxfp6_e2m3", "mxfp4", "mxint8")
FORMATS = (*MX, "mx9", "mx6", "mx4")
VECTORS = ("fp32", "bf16")

# The axis of the batch is 0, that of channels or features is 1.
AXES = {
    "forward_activation": 1,
    "forward_weight": 1,
    "dw_activation": 0,
    "dw_gradient": 0,
    "dx_gradient": 1,
    "dx_weight": 0,
}


class Product(NamedTuple):
    """What a layer found, and the product that it should be, of operands in float64."""

    found: torch.Tensor
    times: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    left: torch.Tensor
    right: torch.Tensor
    terms: int


def narrow(fmt: str, vector: str) -> Recipe:
    """Return a recipe whose gradients take another scale rule than the rest: neither passes for the other."""
    return recipe("fp32").extended(weight=fmt, activation=fmt, gradient=f"{fmt}/rceil", vector=vector)


# The axis that holds groups of channels, for the operands whose blocks lie along it.
GROUPED = {"forward_activation": 1, "dx_gradient": 1, "dx_weight": 0}


# A transposed convolution's weight lies the other way round: (channels, result's channels / groups, ...).
TRANSPOSED = {"forward_weight": 0, "dx_weight": 1}
TRANSPOSED_GROUPED = {"forward_activation": 1, "dx_gradient": 1, "forward_weight": 0}


def rounded(
    x: torch.Tensor, role: str, axis: int, chosen: Recipe, groups: int = 1, grouped: dict[str, int] = GROUPED
) -> torch.Tensor:
    """Return the operand, by the definition, in float64; blocks end where a group of channels ends."""
    if groups > 1 and role in grouped:
        held = grouped[role]
        parts = [rounded(part, role, axis, chosen) for part in x.chunk(groups, held)]
        return torch.cat(parts, held)
    how = chosen.operands[role]
    assert how is not None
    rule = options(how.format, scale_rule=how.scale_rule, overflow="saturate")
    values = torch.from_numpy(defined(x.detach().float().numpy(), how.format, axis, rule).values)
    return (values.bfloat16() if chosen.vector == "bf16" else values).double()


def check(products: list[Product], vector: str) -> None:
    """Hold products to (k + 2) 2^-24 |A| |B|, and one rounding more where the vector format is bfloat16."""
    for found, times, left, right, terms in products:
        exact = times(left, right)
        bound = (terms + 2) * 2.0**-24 * times(left.abs(), right.abs())
        if vector == "bf16":
            bound = bound + 2.0**-8 * (exact.abs() + bound)
        worst = ((found.double() - exact).abs() - bound).max().item()
        assert worst <= 0, f"{worst} beyond the bound"


def spread(size: tuple[int, ...], *axes: int) -> torch.Tensor:
    """Return numbers of 40 binades along each axis, so that even FP8 rounds otherwise along another one."""
    x = torch.randn(size)
    for axis in axes:
        scales = torch.exp2(torch.linspace(-20, 20, size[axis])[torch.randperm(size[axis])])
        x = x * scales.reshape(-1, *(1,) * (len(size) - 1 - axis % len(size)))
    return x


def of_layer(
    layer: nn.Module,
    x: torch.Tensor,
    chosen: Recipe,
    times: tuple[Callable[..., torch.Tensor], ...],
    axes: dict[str, int] = AXES,
) -> list[Product]:
    """Return the three products of a layer without bias; ``times`` are those products in float64."""
    groups = getattr(layer, "groups", 1)
    x = x.to(torch.bfloat16 if chosen.vector == "bf16" else torch.float32).requires_grad_()
    weight = layer.weight
    assert isinstance(weight, torch.Tensor)
    weight.data = spread(weight.shape, 0, 1)
    y = narrowed(layer, chosen)(x)
    g = spread(y.shape, 0, 1).to(y.dtype)
    of_x, of_weight = torch.autograd.grad(y, (x, weight), g)
    given = {"activation": x, "weight": weight, "gradient": g}
    turned = isinstance(layer, nn.modules.conv._ConvTransposeNd)
    grouped = TRANSPOSED_GROUPED if turned else GROUPED
    parts = {r: rounded(given[r.split("_")[1]], r, axes[r], chosen, groups, grouped) for r in AXES}
    one_result, one_of_x = weight[0].numel(), weight[:, 0].numel() // groups
    if turned:
        one_result, one_of_x = one_of_x, one_result
    one_of_weight = max(g[:, 0].numel(), x[:, 0].numel())
    return [
        Product(y, times[0], parts["forward_activation"], parts["forward_weight"], one_result),
        Product(of_x, times[1], parts["dx_gradient"], parts["dx_weight"], one_of_x),
        Product(of_weight, times[2], parts["dw_gradient"], parts["dw_activation"], one_of_weight),
    ]


def linear_products(
    fmt: str, vector: str, m: int, k: int, n: int, axes: dict[str, int] = AXES
) -> list[Product]:
    torch.manual_seed(m + k + n)
    times = (lambda a, b: a @ b.T, lambda g, b: g @ b, lambda g, a: g.T @ a)
    layer = nn.Linear(k, n, bias=False)
    return of_layer(layer, spread((m, k), 0, 1), narrow(fmt, vector), times, axes)


CONVOLUTIONS: dict[str, tuple[type[Any], tuple[int, ...], dict[str, Any]]] = {
    "1d": (nn.Conv1d, (3, 33, 9), {"out_channels": 35, "kernel_size": 3}),
    "1d-stride-dilation": (
        nn.Conv1d,
        (2, 5, 17),
        {"out_channels": 3, "kernel_size": 3, "stride": 2, "dilation": 2, "padding": 1},
    ),
    "1d-one": (nn.Conv1d, (1, 1, 1), {"out_channels": 1, "kernel_size": 1}),
    "2d": (nn.Conv2d, (35, 3, 5, 4), {"out_channels": 33, "kernel_size": (3, 2), "padding": (1, 0)}),
    "2d-stride-groups": (
        nn.Conv2d,
        (3, 70, 7, 6),
        {"out_channels": 66, "kernel_size": 3, "stride": (2, 1), "padding": 1, "groups": 2},
    ),
    "2d-depthwise": (nn.Conv2d, (2, 4, 6, 5), {"out_channels": 8, "kernel_size": 3, "groups": 4}),
    "3d": (nn.Conv3d, (2, 35, 3, 2, 4), {"out_channels": 33, "kernel_size": (2, 1, 3), "padding": (0, 0, 1)}),
    "1d-transposed": (
        nn.ConvTranspose1d,
        (3, 35, 5),
        {"out_channels": 33, "kernel_size": 3, "stride": 2, "padding": 1, "output_padding": 1},
    ),
    "2d-transposed-groups": (
        nn.ConvTranspose2d,
        (3, 66, 3, 4),
        {"out_channels": 70, "kernel_size": (3, 2), "stride": (2, 1), "dilation": 2, "groups": 2},
    ),
    "3d-transposed": (nn.ConvTranspose3d, (2, 33, 2, 3, 1), {"out_channels": 34, "kernel_size": 2}),
}


def convolution_products(fmt: str, vector: str, case: str, axes: dict[str, int] = AXES) -> list[Product]:
    kind, size, how = CONVOLUTIONS[case]
    torch.manual_seed(0)
    layer = kind(size[1], **how, bias=False)
    turned = isinstance(layer, nn.modules.conv._ConvTransposeNd)
    run = partial(
        getattr(functional, f"conv{'_transpose' if turned else ''}{len(size) - 2}d"),
        stride=layer.stride,
        padding=layer.padding,
        dilation=layer.dilation,
        groups=layer.groups,
        **({"output_padding": layer.output_padding} if turned else {}),
    )
    axes = axes | TRANSPOSED if turned and axes is AXES else axes

    def of_input(g: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        x = torch.zeros(size, dtype=torch.float64, requires_grad=True)
        return torch.autograd.grad(run(x, b), x, g)[0]

    def of_weight(g: torch.Tensor, a: torch.Tensor) -> torch.Tensor:
        weight = torch.zeros(layer.weight.shape, dtype=torch.float64, requires_grad=True)
        return torch.autograd.grad(run(a, weight), weight, g)[0]

    times = (run, of_input, of_weight)
    return of_layer(layer, spread(size, 0, 1), narrow(fmt, vector), times, axes)


# The operands of a b, of the gradient of a and of that of b; (role, axis) of each.
ATTENTION = {
    "a": ("forward_activation", -1),
    "b": ("forward_activation", -2),
    "g_of_a": ("dx_gradient", -1),
    "b_of_a": ("dw_activation", -1),
    "a_of_b": ("dw_activation", -2),
    "g_of_b": ("dw_gradient", -2),
}


def attention_products(
    fmt: str, vector: str, m: int, k: int, n: int, axes: dict[str, tuple[str, int]] = ATTENTION
) -> list[Product]:
    torch.manual_seed(m + k + n)
    chosen = narrow(fmt, vector)
    dtype = torch.bfloat16 if vector == "bf16" else torch.float32
    a = spread((2, m, k), -2, -1).to(dtype).requires_grad_()
    b = spread((2, k, n), -2, -1).to(dtype).requires_grad_()
    g = spread((2, m, n), -2, -1).to(dtype)
    y = attention_product(a, b, LayerPrecision(chosen))
    of_a, of_b = torch.autograd.grad(y, (a, b), g)
    given = {"a": a, "b": b, "g": g}
    parts = {name: rounded(given[name[0]], *how, chosen) for name, how in axes.items()}
    return [
        Product(y, torch.matmul, parts["a"], parts["b"], k),
        Product(of_a, lambda g, b: g @ b.mT, parts["g_of_a"], parts["b_of_a"], n),
        Product(of_b, lambda g, a: a.mT @ g, parts["g_of_b"], parts["a_of_b"], m),
    ]


SHAPES = ((1, 1, 1), (3, 31, 2), (33, 33, 31), (2, 70, 33), (70, 5, 70))


@pytest.mark.parametrize("vector", VECTORS)
@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_linear_layer_rounds_each_operand_along_the_axis_of_its_sum(
    shape: tuple[int, int, int], fmt: str, vector: str
) -> None:
    check(linear_products(fmt, vector, *shape), vector)


@pytest.mark.parametrize("vector", VECTORS)
@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_a_convolution_rounds_channels_forward_and_the_batch_for_its_weight(
    case: str, fmt: str, vector: str
) -> None:
    check(convolution_products(fmt, vector, case), vector)


@pytest.mark.parametrize("vector", VECTORS)
@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_attention_rounds_each_operand_along_the_axis_of_its_sum(
    shape: tuple[int, int, int], fmt: str, vector: str
) -> None:
    check(attention_products(fmt, vector, *shape), vector)


def fails(products: list[Product], vector: str) -> None:
    with pytest.raises(AssertionError, match="beyond the bound"):
        check(products, vector)


@pytest.mark.parametrize("vector", VECTORS)
@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("role", AXES)
def test_the_check_sees_an_operand_of_the_wrong_axis(role: str, fmt: str, vector: str) -> None:
    """For ``dx_weight`` that is the forward operand transposed: a rounded W is not a rounded W^T."""
    wrong = AXES | {role: 1 - AXES[role]}
    fails(linear_products(fmt, vector, 33, 34, 35, wrong), vector)
    fails(convolution_products(fmt, vector, "2d", wrong), vector)


@pytest.mark.parametrize("vector", VECTORS)
@pytest.mark.parametrize("fmt", FORMATS)
@pytest.mark.parametrize("operand", ATTENTION)
def test_the_check_sees_an_operand_of_attention_of_the_wrong_axis(
    operand: str, fmt: str, vector: str
) -> None:
    role, axis = ATTENTION[operand]
    fails(attention_products(fmt, vector, 33, 34, 35, ATTENTION | {operand: (role, -3 - axis)}), vector)


@pytest.mark.parametrize("role", GROUPED)
def test_the_check_sees_blocks_that_reach_into_the_next_group(
    role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """35 channels in a group are blocks of 32 and 3, and 33 are blocks of 32 and 1."""
    monkeypatch.delitem(GROUPED, role)
    fails(convolution_products("mxfp4", "fp32", "2d-stride-groups"), "fp32")


@pytest.mark.parametrize("role", TRANSPOSED_GROUPED)
def test_the_check_sees_blocks_that_reach_into_the_next_group_of_a_transposed_convolution(
    role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delitem(TRANSPOSED_GROUPED, role)
    fails(convolution_products("mxfp4", "fp32", "2d-transposed-groups"), "fp32")


@pytest.mark.parametrize("role", TRANSPOSED)
def test_the_check_sees_a_weight_of_a_transposed_convolution_along_the_wrong_axis(role: str) -> None:
    wrong = AXES | TRANSPOSED | {role: 1 - TRANSPOSED[role]}
    fails(convolution_products("mxfp4", "fp32", "1d-transposed", wrong), "fp32")
