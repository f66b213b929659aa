"""Do flow experts that never hear of each other beat one model of equal operations, as McAllister et al. say?

Eight blobs in the plane, four experts of two each, and scikit-learn's digits in four clusters of k-means.
Each expert takes as many steps as the one model with a quarter of its batch, so that all together have its
operations; a router is trained apart. Its operations are no part of the experts', so a second model trains
for as many steps more. Errors are those of the velocity on held-out data with one draw of noise: the experts
together, the likeliest alone for each sample, and the control, which has to lose: the router's order shifted
by one, so that another expert is asked. A part of each error is noise that no model can know.

    python benchmarks/decentralized.py [--seeds 3] [--json FILE]
"""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import fmean, stdev
from typing import Any, NamedTuple

import torch
from _alternating import table, write
from _training import arguments
from torch import Tensor, nn

from fewbits.evidence import paired
from fewbits.train import RoutedExperts, router_loss, velocity_loss

EXPERTS = 4
ONE, ONE_LONGER = "one model", "one model, the router's steps too"
Draw = Callable[[int, int | None, torch.Generator], tuple[Tensor, Tensor]]


class Task(NamedTuple):
    """Data, and the models and steps that fit them."""

    draw: Draw  # so many samples of a cluster, or of all, and their clusters
    held_out: Tensor
    features: int
    hidden: int
    steps: int
    batch: int
    lr: float


class Net(nn.Module):
    """A perceptron of samples (n, features) and their times (n,)."""

    def __init__(self, features: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(features + 3, hidden), nn.SiLU(),
            nn.Linear(hidden, hidden), nn.SiLU(),
            nn.Linear(hidden, outputs),
        )  # fmt: skip

    def forward(self, samples: Tensor, times: Tensor) -> Tensor:
        """Return a velocity, or logits."""
        t = times[:, None]
        found: Tensor = self.layers(torch.cat([samples, t, (6 * t).sin(), (6 * t).cos()], 1))
        return found


def blobs() -> Task:
    """Return eight normal blobs on a circle in the plane, two in a cluster."""

    def draw(count: int, cluster: int | None, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        blob = torch.randint(8 if cluster is None else 2, (count,), generator=generator) + 2 * (cluster or 0)
        centres = 2 * torch.stack([(blob * math.pi / 4).cos(), (blob * math.pi / 4).sin()], 1)
        return centres + 0.1 * torch.randn(count, 2, generator=generator), blob // 2

    held_out = draw(4000, None, torch.Generator().manual_seed(1000))[0]
    return Task(draw, held_out, features=2, hidden=48, steps=300, batch=256, lr=3e-3)


def digits() -> Task:
    """Return digits from -1 to 1 and clusters of k-means; the last ones are held out."""
    from sklearn.cluster import KMeans
    from sklearn.datasets import load_digits

    images = torch.tensor(load_digits().data, dtype=torch.float32) / 8 - 1
    clusters = KMeans(EXPERTS, n_init=4, random_state=0).fit_predict(images[:1400].numpy())
    of = torch.from_numpy(clusters).long()

    def draw(count: int, cluster: int | None, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        own = torch.arange(len(of)) if cluster is None else (of == cluster).nonzero().view(-1)
        chosen = own[torch.randint(len(own), (count,), generator=generator)]
        return images[chosen], of[chosen]

    return Task(draw, images[1400:], features=64, hidden=128, steps=400, batch=128, lr=2e-3)


def fitted(task: Task, seed: int, part: int | None, steps: int, *, route: bool = False) -> Net:
    """Train the expert of a cluster, with its share of the batch; or one for all; or the router.

    Its initial weights, samples and noise come from the seed and the part alone, whatever was trained before.
    """
    own = 10 * seed + (EXPERTS if part is None else part)
    drawn = torch.Generator().manual_seed(own)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(own)
        net = Net(task.features, task.hidden, EXPERTS if route else task.features)
    optimizer = torch.optim.Adam(net.parameters(), lr=task.lr)
    for _ in range(steps):
        data, clusters = task.draw(task.batch if part is None else task.batch // EXPERTS, part, drawn)
        loss = router_loss(net, data, clusters, drawn) if route else velocity_loss(net, data, drawn)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net.eval()


def operations(net: nn.Module, samples: int) -> int:
    """Return the multiplications of both passes: three for each weight and sample, two in the first layer.

    Nobody asks for the gradient of the data.
    """
    first, *others = (p.numel() for p in net.parameters() if p.ndim > 1)
    return samples * (2 * first + 3 * sum(others))


def errors(task: Task, seed: int) -> dict[str, float]:
    """Return the held-out error of each way."""
    experts = [fitted(task, seed, part, task.steps) for part in range(EXPERTS)]
    router = fitted(task, seed, None, task.steps, route=True)
    spent = task.steps * sum(operations(expert, task.batch // EXPERTS) for expert in experts)
    more = task.steps * operations(router, task.batch)
    one = fitted(task, seed, None, task.steps)
    assert spent == task.steps * operations(one, task.batch)
    longer = fitted(task, seed, None, math.ceil((spent + more) / operations(one, task.batch)))
    models: dict[str, nn.Module] = {
        ONE: one,
        ONE_LONGER: longer,
        "experts together": RoutedExperts(experts, router),
        "likeliest expert, top=1": RoutedExperts(experts, router, top=1),
        "control: router's order shifted": RoutedExperts([*experts[1:], experts[0]], router),
    }
    noise = lambda: torch.Generator().manual_seed(2000)  # noqa: E731  # the same for all
    with torch.no_grad():
        return {way: float(velocity_loss(model, task.held_out, noise())) for way, model in models.items()}


def rows_of(name: str, task: Task, seeds: int) -> list[dict[str, Any]]:
    """Return a row for each way: its error, and how far it is from each of the one models."""
    found = [errors(task, seed) for seed in range(seeds)]
    rows = []
    for way in found[0]:
        values = [errors[way] for errors in found]
        row: dict[str, Any] = {"data": name, "way": way, "error": fmean(values), "values": values}
        row["spread"] = stdev(values) if seeds > 1 else None
        for key, than in (("one", ONE), ("longer", ONE_LONGER)):
            over = paired(values, [errors[than] for errors in found])
            row |= {f"over_{key}": over.mean, f"margin_{key}": over.margin, f"differs_{key}": over.differs}
        rows.append(row)
    return rows


def main() -> None:
    """Print the table and write the figures."""
    given = arguments(__doc__ or "")
    torch.set_num_threads(1)
    rows = [row for task in (blobs, digits) for row in rows_of(task.__name__, task(), given.seeds)]
    keys = ("error", "spread", "over_one", "margin_one", "over_longer", "margin_longer")
    head = ("data", "way", "error", "spread", "over one", "+-", "over longer", "+-")
    fine = [tuple("-" if row[key] is None else f"{row[key]:.4f}" for key in keys) for row in rows]
    table(head, [(row["data"], row["way"], *values) for row, values in zip(rows, fine, strict=True)])
    print("Less is better. A difference that is smaller than its 95 % interval (+-) shows nothing.")
    write(given.json, rows)


if __name__ == "__main__":
    main()
