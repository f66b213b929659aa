"""Networks that the tests of the planner share."""

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional


def mlp(widths: tuple[int, ...] = (32, 64, 64, 16)) -> nn.Sequential:
    layers: list[nn.Module] = []
    for a, b in pairwise(widths):
        layers += [nn.Linear(a, b), nn.GELU()]
    return nn.Sequential(*layers[:-1])


class Block(nn.Module):
    """A block of GPT: attention with one product for queries, keys and values, or one for each."""

    def __init__(self, width: int, heads: int, fused: bool = True) -> None:
        super().__init__()
        self.heads, self.fused = heads, fused
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        if fused:
            self.qkv = nn.Linear(width, 3 * width)
        else:
            self.q, self.k, self.v = (nn.Linear(width, width) for _ in range(3))
        self.proj = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, d = x.shape
        y = self.norm1(x)
        parts = self.qkv(y).split(d, -1) if self.fused else (self.q(y), self.k(y), self.v(y))
        q, k, v = (z.view(b, s, self.heads, d // self.heads).transpose(1, 2) for z in parts)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, s, d))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class GPT(nn.Module):
    """Tokens (b, s) and targets (b, s) to the loss; without targets to logits."""

    def __init__(
        self, vocabulary: int, width: int, heads: int, blocks: int, length: int, fused: bool = True
    ) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads, fused) for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None) -> torch.Tensor:
        z = self.tokens(x) + self.places(torch.arange(x.shape[1], device=x.device))
        for block in self.blocks:
            z = block(z)
        logits = self.head(self.norm(z))
        return logits if y is None else functional.cross_entropy(logits.flatten(0, 1), y.flatten())


class RNN(nn.Module):
    """An LSTM language model."""

    def __init__(self, vocabulary: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.cells = nn.LSTM(width, 2 * width, 2, batch_first=True)
        self.head = nn.Linear(2 * width, vocabulary)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.cells(self.tokens(x))[0])


def cnn() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, groups=8, padding="same"),
        nn.ConvTranspose2d(8, 12, 3, stride=2, groups=4),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(12, 10),
    )


class Sum(nn.Module):
    """Products written as einsum, matmul and mm, and values that are picked, joined and written into."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.norm = nn.Parameter(torch.zeros(3, 4, 5)), nn.RMSNorm(5)
        self.other = nn.Parameter(torch.zeros(5, 7))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(torch.einsum("bi,ijk->bjk", x, self.weight))
        y = torch.cat([y, y.roll(1, 1)], 1) + y.softmax(-1).sum(-1).amax()
        y = y.matmul(y.transpose(1, 2)) @ y[:, [1, 2, 3, 0, 1, 2, 3, 0]]
        return y.flatten(0, 1).mm(self.other).mean()


def tokens(b: int, s: int, vocabulary: int) -> torch.Tensor:
    return torch.randint(vocabulary, (b, s), generator=torch.Generator().manual_seed(1))
