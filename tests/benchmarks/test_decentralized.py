"""The benchmark of experts without a wire counts operations as torch does; seeds share nothing."""

import sys
from pathlib import Path

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import decentralized

from fewbits.train import router_loss, velocity_loss

SMALL = decentralized.blobs()._replace(steps=3, batch=16)


def counted(*, part: int | None, route: bool = False) -> int:
    """Multiplications of one step, as torch counts those that ran."""
    drawn = torch.Generator().manual_seed(0)
    net = decentralized.Net(2, SMALL.hidden, decentralized.EXPERTS if route else 2)
    samples = SMALL.batch if part is None else SMALL.batch // decentralized.EXPERTS
    data, clusters = SMALL.draw(samples, part, drawn)
    with FlopCounterMode(display=False) as counter:
        loss = router_loss(net, data, clusters, drawn) if route else velocity_loss(net, data, drawn)
        loss.backward()
    found: int = counter.get_total_flops() // 2  # a multiplication and an addition count as two
    assert found == decentralized.operations(net, samples)
    return found


def test_four_experts_have_the_operations_of_one_model_and_the_router_comes_on_top() -> None:
    one = counted(part=None)
    assert sum(counted(part=part) for part in range(decentralized.EXPERTS)) == one
    assert counted(part=None, route=True) > one


def test_an_expert_sees_its_cluster_alone() -> None:
    drawn = torch.Generator().manual_seed(0)
    for part in range(decentralized.EXPERTS):
        samples, clusters = SMALL.draw(50, part, drawn)
        assert (clusters == part).all()
        assert len(samples) == 50
    assert set(SMALL.draw(200, None, drawn)[1].tolist()) == set(range(decentralized.EXPERTS))


def test_a_seed_alone_gives_what_it_gives_after_others() -> None:
    state = torch.get_rng_state()
    zero, after = (decentralized.errors(SMALL, seed) for seed in (0, 1))
    assert torch.equal(torch.get_rng_state(), state)
    assert decentralized.errors(SMALL, 1) == after
    assert zero != after


def test_rows_are_paired_with_both_models(monkeypatch: pytest.MonkeyPatch) -> None:
    found = [
        {decentralized.ONE: 2.0, decentralized.ONE_LONGER: 1.0, "experts": 1.5},
        {decentralized.ONE: 4.0, decentralized.ONE_LONGER: 3.0, "experts": 3.5},
    ]
    monkeypatch.setattr(decentralized, "errors", lambda task, seed: found[seed])
    row = decentralized.rows_of("blobs", SMALL, seeds=2)[-1]
    assert (row["error"], row["over_one"], row["over_longer"]) == (2.5, -0.5, 0.5)
    assert (row["margin_one"], row["differs_one"], row["differs_longer"]) == (0, True, True)
