"""Predicted costs: against messages carried one by one, figures by hand, and bytes that were sent."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from fewbits.distributed import CodecState, Traffic, all_reduce, sent_bytes
from fewbits.distributed.cost import (
    AGREEMENT,
    Exchange,
    Link,
    Network,
    by_halving,
    by_levels,
    by_owners,
    by_ring,
    by_tree,
    reductions,
    step_seconds,
)
from fewbits.distributed.rates import measured_rates
from fewbits.errors import ArgumentError
from fewbits.recipes import codec
from fewbits.records import CodecRates
from tests.distributed import network as simulated
from tests.distributed.team import Team

Teams = Callable[[int], Team]
RATES = CodecRates("any", 0.7, 0.4, 0.3)
WIDE = CodecRates("fp32", 0.2, 0.15, 0.11)
LINK = Link(2.0, 5.0)
CODECS = ("fp32", "mxfp8_e4m3", "int8_256:feedback", "mxfp4", "topk:density=0.02,feedback")


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ({"ranks": 0}, "ranks=0; expected a whole number of at least 1"),
        ({"ranks": -1}, "ranks=-1"),
        ({"n": -5}, "n=-5; expected a whole number of at least 0"),
        ({"n": 5.5}, "n=5.5"),
        ({"layers": 0}, "layers=0"),
        ({"ranks": True}, "ranks=True"),
    ],
)
def test_bytes_of_no_count_are_refused(counts: dict[str, Any], said: str) -> None:
    given: dict[str, Any] = {"n": 5, "ranks": 2, **counts}
    with pytest.raises(ArgumentError, match=said):
        sent_bytes("fp32", **given)


def simulation(text: str, ranks: int, n: int, link: Link = LINK) -> simulated.Simulation:
    draw = np.random.default_rng(ranks)
    given = [draw.integers(-1000, 1000, n) for _ in range(ranks)]
    return simulated.Simulation(given, codec(text), RATES, lambda a, b, octets: link.seconds(octets))


def check(name: str, predict: Callable[..., Exchange], text: str, ranks: int, n: int) -> None:
    """Raise unless a prediction is what the messages of that reduction take."""
    walk = getattr(simulated, name)
    given = simulation(text, ranks, n)
    found = walk(given, [AGREEMENT]) if name == "owners" else walk(given)
    exchange = predict(codec(text), n, Network(ranks, LINK), RATES)
    sums = codec(text).density is None
    if name == "tree" and sums and ranks & (ranks - 1):  # a smaller branch may round while others still add
        level = 1e-9 * n * RATES.encode_ns * (ranks - 1).bit_length()
        assert found * (1 - 1e-9) <= exchange.seconds <= found + level, (name, text, ranks)
        return
    assert exchange.seconds == pytest.approx(found, rel=1e-9), (name, text, ranks)


PREDICTED = {"owners": by_owners, "ring": by_ring, "tree": by_tree, "halving": by_halving}


@pytest.mark.parametrize("ranks", [2, 3, 4, 5, 6, 8, 13, 16])
@pytest.mark.parametrize("text", CODECS)
@pytest.mark.parametrize("name", PREDICTED)
def test_predictions_are_the_longest_path_of_messages(name: str, text: str, ranks: int) -> None:
    if name == "halving" and codec(text).density is not None:
        pytest.skip("sums of what is kept are not sparse")
    power = 1 << (ranks.bit_length() - 1)
    check(name, PREDICTED[name], text, ranks, 256 * (power if name == "halving" else ranks))


def half(whole: Callable[..., Exchange]) -> Callable[..., Exchange]:
    """Return a model that forgets the way back."""
    return lambda *given: replace(found := whole(*given), link_seconds=found.link_seconds / 2)


@pytest.mark.parametrize("name", PREDICTED)
def test_a_model_that_forgets_the_all_gather_is_noticed(name: str) -> None:
    check(name, PREDICTED[name], "mxfp8_e4m3", 4, 4096)
    with pytest.raises(AssertionError):
        check(name, half(PREDICTED[name]), "mxfp8_e4m3", 4, 4096)


def test_pieces_that_differ_count_as_the_longest() -> None:
    given = simulation("fp32", 4, 1001)
    longest = by_owners(codec("fp32"), 1001, Network(4, LINK), RATES).seconds
    assert simulated.owners(given, [AGREEMENT]) == pytest.approx(longest, rel=1e-9)
    assert by_owners(codec("fp32"), 1000, Network(4, LINK), RATES).seconds < longest


def test_levels_are_those_of_nodes_whose_ranks_send_in_turns() -> None:
    """Without latency it is the same whether ranks share a link or take turns on it."""
    nodes, each, n = 3, 4, 3 * 4 * 256
    link, inner, fast = Link(2.0), Link(20.0), CodecRates("fp32", 0, 0, 0)
    found = by_levels(
        codec("mxfp8_e4m3"), n, Network(nodes * each, link, each, inner), replace(fast), wide=fast
    )
    piece = n // each
    within = 2 * (each - 1) * inner.seconds(4 * piece) + (each - 1) * inner.seconds(AGREEMENT)
    turns = each * link.seconds(256 * (1 + 1 / 32))  # all ranks of a node, one after the other
    between = 2 * (nodes - 1) * turns + (nodes - 1) * each * link.seconds(AGREEMENT)
    assert found.link_seconds == pytest.approx(within + between, rel=1e-9)
    assert found.codec_seconds == 0


def test_levels_round_between_nodes_only() -> None:
    network = Network(8, Link(1.0), 4, Link(1.0))
    n = 4 * 512
    found = by_levels(codec("mxfp8_e4m3"), n, network, RATES, wide=WIDE)
    # n values out, one piece of four runs added and out again, n in; a quarter of that between two nodes.
    own = (n + n / 4) * WIDE.encode_ns + n * WIDE.add_ns + n * WIDE.decode_ns
    piece = n // 4
    outer = (piece + piece / 2) * RATES.encode_ns + piece * (RATES.add_ns + RATES.decode_ns)
    assert found.codec_seconds == pytest.approx(1e-9 * (own + outer), rel=1e-12)


def test_figures_by_hand() -> None:
    """Four ranks, 4096 float32, 1 Gbit/s, 10 us: messages of 4096 bytes take 42.768 us, of 512 14.096 us."""
    n, network = 4096, Network(4, Link(1.0, 10.0))
    free = CodecRates("fp32", 0, 0, 0)
    found = {k: 1e6 * v.link_seconds for k, v in reductions(codec("fp32"), n, network, free, free).items()}
    assert found == pytest.approx(
        {
            "owners": 6 * 42.768 + 3 * 14.096,
            "ring": 6 * 42.768,
            "tree": 4 * (10 + 131.072),
            "halving": 2 * (42.768 + 75.536),
        }
    )
    kept = codec("topk:density=0.25")  # 1024 values and places of 12 bits: 4096 + 1536 bytes
    found = {k: 1e6 * v.link_seconds for k, v in reductions(kept, n, network, free, free).items()}
    assert found == pytest.approx(
        {
            "owners": 3 * (10 + 45.056) + 3 * 14.096,
            "ring": 3 * (10 + 45.056),
            "tree": (10 + 45.056) + (10 + 90.112),
        }
    )


def test_a_wide_link_within_nodes_makes_levels_the_fastest() -> None:
    network = Network(64, Link(10.0, 20.0), 8, Link(400.0, 2.0))
    found = reductions(codec("fp32"), 10**7, network, WIDE, WIDE)
    assert min(found, key=lambda name: found[name].seconds) == "levels"
    assert list(found)[:2] == ["owners", "levels"]
    assert "levels" not in reductions(codec("fp32"), 10**7, replace(network, ranks=60), WIDE, WIDE)
    assert "levels" not in reductions(codec("fp32"), 10**7, replace(network, ranks=8), WIDE, WIDE)


@pytest.mark.parametrize("name", PREDICTED)
def test_one_node_takes_its_own_links_only(name: str) -> None:
    inner = Link(400.0, 2.0)
    one = PREDICTED[name](codec("mxfp4"), 4096, Network(4, LINK, 4, inner), RATES)
    assert one == PREDICTED[name](codec("mxfp4"), 4096, Network(4, inner), RATES)


def test_what_is_kept_grows_with_the_ranks_and_pieces_do_not() -> None:
    def seconds(text: str, ranks: int) -> float:
        return by_owners(codec(text), 10**6, Network(ranks, Link(10.0)), RATES).link_seconds

    assert seconds("topk:density=0.01", 256) / seconds("topk:density=0.01", 2) > 200
    assert seconds("mxfp8_e4m3", 256) / seconds("mxfp8_e4m3", 2) < 2.3


def test_messages_hide_behind_compute_and_rounding_does_not() -> None:
    assert step_seconds(10.0, Exchange(2.0, 4.0)) == 16.0
    assert step_seconds(10.0, Exchange(2.0, 4.0), 0.3) == 13.0
    assert step_seconds(10.0, Exchange(2.0, 4.0), 0.9) == 12.0


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: Link(0.0), "a link of 0 Gbit/s; expected a number above 0"),
        (lambda: Link(-1.0), "a link of -1 Gbit/s"),
        (lambda: Link(float("nan")), "a link of nan Gbit/s"),
        (lambda: Link(1.0, -2.0), "a latency of -2 us; expected 0 or more"),
        (lambda: Link(1.0, float("inf")), "a latency of inf us"),
        (lambda: Network(1, LINK), "1 ranks; expected two or more"),
        (lambda: Network(2, LINK, 0), "0 ranks in a node"),
        (lambda: Network(4, LINK, 2), "no link within it; give its speed"),
        (lambda: sent_bytes("powersgd:rank=2", 10, 2), "hook of torch's DistributedDataParallel"),
        (
            lambda: by_levels(codec("fp32"), 8, Network(6, LINK, 4, LINK), RATES, wide=WIDE),
            "6 ranks, 4 in a node, have no two levels",
        ),
    ],
)
def test_what_cannot_be_is_refused(make: Callable[[], Any], said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        make()


SENT = (*CODECS, "mxfp6_e3m2", "fp8_e5m2:aps", "fp8_e4m3:auto_scale", "int8_tensor", "fp16:kahan")


def count_all(rank: int, size: int) -> None:
    for text in SENT:
        for n in (1, 1000):
            traffic = Traffic()
            all_reduce(torch.randn(n), text, state=CodecState(text), traffic=traffic)
            sent = torch.tensor(traffic.nbytes)
            torch.distributed.all_reduce(sent, torch.distributed.ReduceOp.MAX)
            assert sent_bytes(text, n, size) == int(sent), (text, n)
    traffic = Traffic()
    all_reduce([torch.randn(40)] * 5, "fp8_e5m2:aps", traffic=traffic)
    assert sent_bytes("fp8_e5m2:aps", 200, size, layers=5) >= traffic.nbytes
    assert sent_bytes("fp8_e5m2:aps", 200, size, layers=5) - sent_bytes("fp8_e5m2:aps", 200, size) == 4 * (
        size - 1
    )


@pytest.mark.parametrize("size", [2, 4])
def test_predicted_bytes_are_those_that_are_sent(team: Teams, size: int) -> None:
    team(size).run(count_all)


@pytest.mark.parametrize("text", SENT)
def test_rates_are_measured_for_every_kind_of_codec(text: str) -> None:
    threads = torch.get_num_threads()
    rates = measured_rates(text, 4096)
    assert rates.codec == str(codec(text))
    assert all(0 < ns < 1e6 for ns in (rates.encode_ns, rates.add_ns, rates.decode_ns))
    assert torch.get_num_threads() == threads
