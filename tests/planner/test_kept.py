"""What a plan keeps for the backward pass, against what autograd saves."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fewbits.planner import plan
from fewbits.planner.capture import capture
from tests.planner import small


def saved(model: nn.Module, x: Tensor) -> int:
    """Bytes of the distinct memory that autograd saves and that the model does not own."""
    own = {t.untyped_storage().data_ptr() for t in (*model.parameters(), *model.buffers())}
    found: dict[int, tuple[Tensor, int]] = {}

    def pack(t: Tensor) -> Tensor:
        found[t.untyped_storage().data_ptr()] = t, t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        model(x)
    return sum(size for at, (_, size) in found.items() if at not in own)


def kept(model: nn.Module, x: Tensor) -> float:
    """Bytes that a plan has on one device beside weights with their gradients and states of AdamW."""
    made = plan(model, (x,), devices=1, machine=small.SLOW, memory=math.inf)
    model(x).sum().backward()
    used = [p for p in model.parameters() if p.grad is not None or not p.requires_grad]
    return made.memory_bytes - sum((16 if p.requires_grad else 4) * p.numel() for p in used)


class Between(nn.Module):
    """Two products of one tensor, a function of both, and a product of what it makes."""

    def __init__(self, function: Callable[[Tensor, Tensor, Tensor], Tensor], trained: bool = True) -> None:
        super().__init__()
        self.stem, self.gate, self.up, self.down = (nn.Linear(16, 16) for _ in range(4))
        self.scale = nn.Parameter(torch.ones(16), requires_grad=trained)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        y: Tensor = self.down(self.function(self.gate(x), self.up(x), self.scale))
        return y


ONE: dict[str, Callable[[Tensor], Tensor]] = {
    **{
        name: getattr(torch, name)
        for name in (
            *("abs", "acos", "asin", "atan", "cos", "cosh", "erf", "erfc", "exp", "exp2", "expm1", "log"),
            *("log10", "log1p", "log2", "neg", "reciprocal", "relu", "rsqrt", "sigmoid", "sin", "sinh"),
            *("sqrt", "square", "tan", "tanh", "celu", "selu"),
        )
    },
    **{
        name: getattr(functional, name)
        for name in (
            *("elu", "gelu", "hardsigmoid", "hardswish", "hardtanh", "leaky_relu", "mish", "relu6", "silu"),
            *("softplus", "softshrink", "tanhshrink", "dropout"),
        )
    },
    "in place": lambda h: functional.silu(h, inplace=True),
    "in place, from its result": lambda h: functional.leaky_relu(h, inplace=True),
    "clamp": lambda h: h.clamp(-1, 1),
    "threshold": lambda h: functional.threshold(h, 0.1, 0.0),
    "a square": lambda h: h**2,
    "a product with itself": lambda h: h * h,
    "times a number": lambda h: h * 2.0,
    "over a number": lambda h: h / 2.0,
    "a gate of itself": lambda h: h.sigmoid() * h,
    "dropout of relu": lambda h: functional.dropout(h.relu()),
    "relu, shifted": lambda h: h.relu() + 1.0,
    "where": lambda h: torch.where(h > 0, h, 0.1 * h),
    "masked_fill": lambda h: h.masked_fill(h > 0, 0.0),
    "halves": lambda h: torch.cat([h[:, :8] * h[:, 8:]] * 2, -1),
    "glu": lambda h: torch.cat([functional.glu(h)] * 2, -1),
    "softmax": lambda h: h.softmax(-1),
    "log_softmax": lambda h: h.log_softmax(-1),
    "layer_norm": lambda h: functional.layer_norm(h, (16,)),
    "mean": lambda h: h - h.mean(-1, keepdim=True),
    "times its mean": lambda h: h * h.mean(-1, keepdim=True),
    "amax": lambda h: h - h.amax(-1, keepdim=True),
    "max": lambda h: h - h.max(-1, keepdim=True)[0],
    "var": lambda h: h - h.var(-1, keepdim=True),
    "std": lambda h: h - h.std(-1, keepdim=True),
    "norm": lambda h: h / h.norm(dim=-1, keepdim=True),
    "logsumexp": lambda h: h - h.logsumexp(-1, keepdim=True),
    "prod": lambda h: h - h.prod(-1, keepdim=True),
    "cumsum": lambda h: h.cumsum(-1),
    "cumprod": lambda h: h.cumprod(-1),
    "sort": lambda h: h.sort(-1)[0],
    "gather": lambda h: h.gather(1, torch.zeros(24, 16, dtype=torch.long)),
    "index": lambda h: h[:, torch.arange(16)],
}
TWO: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sum": lambda a, b: a + b,
    "product": lambda a, b: a * b,
    "product in place": lambda a, b: a.mul_(b),
    "SwiGLU": lambda a, b: functional.silu(a) * b,
    "ReGLU": lambda a, b: functional.relu(a) * b,
    "softmax times": lambda a, b: a.softmax(-1) * b,
    "softmax plus": lambda a, b: a.softmax(-1) + b,
    "sigmoid plus": lambda a, b: a.sigmoid() + b,
    "silu plus": lambda a, b: functional.silu(a) + b,
    "times a mean": lambda a, b: a * b.mean(-1, keepdim=True),
    "where": lambda a, b: torch.where(a > 0, a, b),
    "pow": lambda a, b: a.abs() ** b,
    "addcmul": lambda a, b: torch.addcmul(a, a, b),
    "lerp": lambda a, b: torch.lerp(a, b, 0.5),
    "div": torch.div,
    **{
        name: getattr(torch, name)
        for name in (
            *("atan2", "copysign", "fmod", "logaddexp", "maximum", "max", "minimum", "remainder", "xlogy"),
        )
    },
}


@pytest.mark.parametrize("name", ONE)
def test_of_one_tensor_as_much_is_kept_as_autograd_saves(name: str) -> None:
    model, x = Between(lambda a, b, w: ONE[name](a)), torch.rand(24, 16)
    model.up = nn.Identity()  # not read
    assert kept(model, x) == saved(model, x)


@pytest.mark.parametrize("name", TWO)
def test_of_two_tensors_as_much_is_kept_as_autograd_saves(name: str) -> None:
    model, x = Between(lambda a, b, w: TWO[name](a, b)), torch.rand(24, 16)
    assert kept(model, x) == saved(model, x)


@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize(
    "function",
    [
        lambda a, b, w: a * w + b,
        lambda a, b, w: a / w + b,
        lambda a, b, w: functional.layer_norm(a, (16,)) * w + b,
    ],
)
def test_what_a_weight_multiplies_is_kept_if_it_is_trained(
    function: Callable[[Tensor, Tensor, Tensor], Tensor], trained: bool
) -> None:
    model, x = Between(function, trained), torch.rand(24, 16)
    assert kept(model, x) == saved(model, x)


@pytest.mark.parametrize(
    "layer",
    [
        nn.MaxPool2d(2),
        nn.AvgPool2d(2),
        nn.AdaptiveAvgPool2d(4),
        nn.GroupNorm(2, 4),
        nn.InstanceNorm2d(4),
        nn.BatchNorm2d(4),
        nn.Sequential(nn.ReLU(), nn.MaxPool2d(2)),
        nn.Sequential(nn.BatchNorm2d(4), nn.ReLU()),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_between_convolutions_as_much_is_kept_as_autograd_saves(layer: nn.Module) -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), layer, nn.Conv2d(4, 2, 3, padding=1))
    x = torch.rand(2, 3, 8, 8)
    assert kept(model, x) == saved(model, x)


def test_attention_by_hand_keeps_probabilities_alone() -> None:
    """The function reads queries, keys and values from three products of one tensor."""

    def attend(a: Tensor, b: Tensor, w: Tensor) -> Tensor:
        return (a @ b.mT / 4).softmax(-1) @ b

    model, x = Between(attend), torch.rand(3, 8, 16)
    assert kept(model, x) == saved(model, x)


def test_what_a_layer_needs_of_its_result_stays_wide_beside_a_narrow_copy() -> None:
    """In MXFP8 the next product keeps 8.25 bits a value; ReLU needs its result as it is."""
    found = {
        name: plan(
            nn.Sequential(nn.Linear(32, 32), layer, nn.Linear(32, 32)), (torch.zeros(24, 32),),
            devices=1, machine="h100", recipe="mxfp8",
        ).memory_bytes
        for name, layer in (("relu", nn.ReLU()), ("none", nn.Identity()))
    }  # fmt: skip
    assert found["relu"] - found["none"] == 2 * 24 * 32


CELLS = {"LSTM": 6, "GRU": 6, "RNN": 1}


@pytest.mark.parametrize(("name", "options"), [
    *((name, options) for name in CELLS for options in (
        {}, {"bidirectional": True}, {"bias": False}, {"num_layers": 2}, {"num_layers": 3, "bias": False},
        {"num_layers": 2, "bidirectional": True, "bias": False},
    )),
    ("LSTM", {"proj_size": 4}), ("LSTM", {"proj_size": 4, "num_layers": 2, "bias": False}),
])  # fmt: skip
def test_every_cell_of_a_recurrence_keeps_its_gates(name: str, options: dict[str, int]) -> None:
    layer = getattr(nn, name)(6, 16, batch_first=True, **options)
    (found,) = capture(layer, (torch.zeros(4, 5, 6),)).layers
    cells = options.get("num_layers", 1) * (1 + options.get("bidirectional", 0))
    assert found.saved == CELLS[name] * 4 * 5 * 16 * cells
