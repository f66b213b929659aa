"""scikit-learn's digits and a small network: what the controls of this folder train."""

from collections.abc import Callable
from functools import cache

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional

from fewbits.optim import AdamW, Optimizer, scaler
from fewbits.recipes import Recipe

Maker = Callable[[nn.Module], Optimizer]


@cache
def digits(centred: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Return pixels from 0 to 1, or with mean 0 and deviation 1, which plain descent learns sooner."""
    found = load_digits()
    order = torch.randperm(len(found.target), generator=torch.Generator().manual_seed(0))
    x = torch.from_numpy(found.images.reshape(-1, 64)).float() / 16
    if centred:
        x = (x - x.mean(0)) / (x.std(0) + 0.01)
    return x[order], torch.from_numpy(found.target)[order].long()


def network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


def accuracy(model: nn.Module, make: Maker, *, epochs: int, batch: int = 50, centred: bool = False) -> float:
    """Train on 1400 digits in the model's own dtype; return the percentage of the others it recognizes."""
    torch.set_num_threads(1)
    x, y = digits(centred)
    x, optimizer = x.to(next(model.parameters()).dtype), make(model)
    scale, shuffle = scaler(optimizer.recipe), torch.Generator().manual_seed(1)
    for _ in range(epochs):
        for rows in torch.randperm(1400, generator=shuffle).split(batch):
            loss = functional.cross_entropy(model(x[rows]).float(), y[rows])
            scale.scale(loss).backward()
            scale.step(optimizer)
            scale.update()
            optimizer.zero_grad()
    with torch.no_grad():
        return float((model(x[1400:]).argmax(-1) == y[1400:]).float().mean()) * 100


def adamw(recipe: Recipe) -> Maker:
    return lambda model: AdamW(model.parameters(), lr=1e-3, recipe=recipe)
