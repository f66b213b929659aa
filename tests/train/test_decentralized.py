"""Experts apart make the flow of all data together: held to closed forms, and to what must lose."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from fewbits.errors import ArgumentError
from fewbits.evidence import paired
from fewbits.train.decentralized import RoutedExperts, integrate_flow, noised, router_loss, velocity_loss

CLUSTERS = 4


class ExactFlow(nn.Module):
    """The velocity of some points in closed form: x_t given a point is normal about t times it."""

    def __init__(self, points: Tensor) -> None:
        super().__init__()
        self.points = points

    def log_densities(self, samples: Tensor, times: Tensor) -> Tensor:
        """Return (n, points), but for a constant."""
        away = samples[:, None] - times[:, None, None] * self.points
        return -away.square().sum(2) / (2 * (1 - times[:, None]).square())

    def forward(self, samples: Tensor, times: Tensor) -> Tensor:
        mean = self.log_densities(samples, times).softmax(1) @ self.points
        return (mean - samples) / (1 - times[:, None])


class OracleRouter(nn.Module):
    """The posterior of the clusters in closed form."""

    def __init__(self, flows: list[ExactFlow]) -> None:
        super().__init__()
        self.flows = flows

    def forward(self, samples: Tensor, times: Tensor) -> Tensor:
        logs = [flow.log_densities(samples, times).logsumexp(1) for flow in self.flows]
        return torch.stack(logs, 1)


def exact(dtype: torch.dtype) -> tuple[ExactFlow, RoutedExperts, Tensor, Tensor]:
    """Return the flow of all points, that of clusters of them with the oracle, and samples with times."""
    drawn = torch.Generator().manual_seed(0)
    sizes = [3, 20, 7, 11]
    clusters = [torch.randn(n, 5, generator=drawn, dtype=torch.float64) + 2 * k for k, n in enumerate(sizes)]
    points = torch.cat(clusters)
    samples, times, _ = noised(points[torch.randint(len(points), (400,), generator=drawn)], drawn)
    flows = [ExactFlow(c.to(dtype)) for c in clusters]
    mixed = RoutedExperts(flows, OracleRouter(flows))
    return ExactFlow(points.to(dtype)), mixed, samples.to(dtype), (0.9 * times).to(dtype)


def test_with_an_oracle_as_router_the_experts_are_the_flow_of_all_data() -> None:
    for dtype, within in ((torch.float64, 1e-11), (torch.float32, 1e-4)):
        whole, mixed, samples, times = exact(dtype)
        wanted = whole(samples, times)
        assert (mixed(samples, times) - wanted).abs().max() < within * wanted.abs().max()
    # Without the sizes of the clusters in the posterior, or with another's expert, it is another flow.
    whole, mixed, samples, times = exact(torch.float64)
    wanted = whole(samples, times)
    shuffled = RoutedExperts([*mixed.experts[1:], mixed.experts[0]], mixed.router)
    assert (shuffled(samples, times) - wanted).norm() > 0.1 * wanted.norm()
    top = RoutedExperts(list(mixed.experts), mixed.router, top=1)
    assert (top(samples, times) - wanted).norm() > 1e-6 * wanted.norm()


class Counting(nn.Module):
    def __init__(self, to: float) -> None:
        super().__init__()
        self.to_value, self.asked = to, 0

    def forward(self, samples: Tensor, times: Tensor) -> Tensor:
        assert len(samples) == len(times)
        self.asked += len(samples)
        return torch.full_like(samples, self.to_value)


class Logits(nn.Module):
    """The first features of a sample are its logits."""

    def forward(self, samples: Tensor, times: Tensor) -> Tensor:
        return samples[:, :3]


@pytest.mark.parametrize("top", [1, 2, 3])
def test_only_the_experts_of_the_largest_probabilities_are_asked(top: int) -> None:
    experts = [Counting(10.0**k) for k in range(3)]
    samples = torch.tensor([[3.0, 1.0, 0.0], [0.0, 1.0, 5.0], [-1.0, 2.0, 1.9]])
    found = RoutedExperts(experts, Logits(), top=top)(samples, torch.zeros(3))
    for row, made in zip(samples.tolist(), found.tolist(), strict=True):
        largest = sorted(range(3), key=lambda k: -row[k])[:top]
        weights = np.exp([row[k] for k in largest])
        wanted = sum(w * 10.0**k for w, k in zip(weights / weights.sum(), largest, strict=True))
        assert made == pytest.approx([wanted] * 3, rel=1e-5)
    assert sum(e.asked for e in experts) == 3 * top


def test_euler_steps_follow_a_known_flow() -> None:
    noise = torch.ones(2, 3, dtype=torch.float64)
    made = integrate_flow(lambda samples, times: samples, noise, steps=2000)  # dx = x dt
    assert made.numpy() == pytest.approx(math.e * np.ones((2, 3)), rel=1e-3)
    made = integrate_flow(lambda samples, times: times[:, None] * noise, noise, 4)
    assert made[0, 0] == 1 + (0.25 + 0.5 + 0.75) / 4


def test_noise_and_data_meet_at_their_times() -> None:
    data = torch.randn(500, 3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    samples, times, wanted = noised(data, torch.Generator().manual_seed(2))
    t = times[:, None, None]
    assert (samples + (1 - t) * wanted - data).abs().max() < 1e-12  # x + (1 - t)(data - noise) = data
    noise = data - wanted
    assert abs(float(noise.mean())) < 0.1
    assert float(noise.std()) == pytest.approx(1, abs=0.1)
    assert (float(times.min()), float(times.max())) == pytest.approx((0, 1), abs=0.05)


class Small(nn.Module):
    """A perceptron of samples in the plane and their times."""

    def __init__(self, hidden: int, outputs: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(5, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, outputs)
        )

    def forward(self, samples: Tensor, times: Tensor) -> Tensor:
        t = times[:, None]
        made: Tensor = self.layers(torch.cat([samples, t, (6 * t).sin(), (6 * t).cos()], 1))
        return made


def circle(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return points of eight normal blobs on a circle, and the quarter of each."""
    blob = torch.randint(8, (n,), generator=generator)
    angle = blob * (math.pi / 4)
    centres = 2 * torch.stack([angle.cos(), angle.sin()], 1)
    return centres + 0.1 * torch.randn(n, 2, generator=generator), blob // 2


def trained(seed: int) -> tuple[float, float, float]:
    """Return held-out errors: of experts together, with the router's outputs shuffled, and of one model."""
    drawn = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    experts, router, alone = [Small(48, 2) for _ in range(CLUSTERS)], Small(32, CLUSTERS), Small(48, 2)

    def fit(model: nn.Module, cluster: int | None, steps: int, *, route: bool = False) -> None:
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        for _ in range(steps):
            data, clusters = circle(256, drawn)
            if cluster is not None:
                data = data[clusters == cluster]
            loss = router_loss(model, data, clusters, drawn) if route else velocity_loss(model, data, drawn)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    for k, expert in enumerate(experts):
        fit(expert, k, 300)
    fit(router, None, 300, route=True)
    fit(alone, None, 300)  # as many operations: four experts with a quarter of each batch
    mixed = RoutedExperts(experts, router)
    shuffled = RoutedExperts([*experts[1:], experts[0]], router)
    data, _ = circle(4000, drawn)
    with torch.no_grad():
        first, second, third = (
            float(velocity_loss(model, data, torch.Generator().manual_seed(9)))
            for model in (mixed, shuffled, alone)
        )
    return first, second, third


def test_experts_without_a_wire_are_nearer_than_one_model_trained_with_equal_operations() -> None:
    rows = [trained(seed) for seed in range(3)]
    together, shuffled, alone = (tuple(row[i] for row in rows) for i in range(3))
    assert paired(together, alone).high < 0
    assert min(shuffled) > 2 * max(together)  # the control: a router that asks the wrong ones


@pytest.mark.parametrize("top", [1, CLUSTERS])
def test_autocast_computes_nearly_the_same_flow(top: int) -> None:
    torch.manual_seed(0)
    mixed = RoutedExperts([Small(16, 2) for _ in range(CLUSTERS)], Small(16, CLUSTERS), top)
    samples, _ = circle(64, torch.Generator().manual_seed(0))
    times = torch.linspace(0, 1, 64)
    with torch.no_grad():
        wanted = mixed(samples, times)
        with torch.autocast("cpu", torch.bfloat16):
            assert mixed.experts[0](samples, times).dtype == torch.bfloat16
            found = mixed(samples, times)
    assert found.dtype == samples.dtype
    off = (found - wanted).norm(dim=1) > 0.05 * wanted.norm(dim=1).mean()
    assert int(off.sum()) < 5  # the router's rounded probabilities may ask another one of two alike


def test_bad_input_is_refused() -> None:
    with pytest.raises(ArgumentError, match="of 0 experts"):
        RoutedExperts([], Logits())
    with pytest.raises(ArgumentError, match="top=4 of 2 experts"):
        RoutedExperts([Counting(0), Counting(1)], Logits(), top=4)
    with pytest.raises(ArgumentError, match=r"expected \(3, 2\)"):
        RoutedExperts([Counting(0), Counting(1)], Logits())(torch.ones(3, 3), torch.ones(3))
    with pytest.raises(ArgumentError, match="steps=0"):
        integrate_flow(Counting(0), torch.ones(1, 2), 0)
    with pytest.raises(ArgumentError, match=r"steps=1\.5"):
        integrate_flow(Counting(0), torch.ones(1, 2), 1.5)
    drawn = torch.Generator()
    with pytest.raises(ArgumentError, match=r"velocities of shape \(4, 1\) for samples of \(4, 3\)"):
        velocity_loss(lambda x, t: x[:, :1], torch.ones(4, 3), drawn)
    for data in (torch.ones(4, 3, dtype=torch.int64), torch.tensor(1.0)):
        with pytest.raises(ArgumentError, match="expected floating-point samples"):
            velocity_loss(lambda x, t: x, data, drawn)
