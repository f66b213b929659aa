"""The design space: every cell is what the definition says, and the fronts are what brute force finds."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fewbits import kernels
from fewbits.compare import design_space, explore_formats
from fewbits.compare.exploring import sweep
from fewbits.compare.exploring.space import FAMILIES, NAMED, SCALES, family_of, normal_table, scale_of
from fewbits.compare.exploring.sweep import qsnr_of, score_all, sensitivities
from fewbits.compare.exploring.vectors import vectors_of
from fewbits.errors import ArgumentError, FormatError
from fewbits.formats import Bdr, Format, channel_bits_per_value, parse
from fewbits.kernels import reference
from fewbits.metrics import qsnr_lower_bound
from fewbits.records import Exploration, ExploredFormat
from tests.compare.exploring import definitions as d

VECTORS = 300
SPACE = design_space()


@pytest.fixture(scope="module")
def explored() -> Exploration:
    return explore_formats("variance", ["block(element=posit6_2,scale=e8m0,size=24)"], vectors=VECTORS)


@pytest.fixture(scope="module")
def values() -> Any:
    return vectors_of("variance", VECTORS, 0, "floor").values


@pytest.fixture
def thinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the space hold an eighth of its formats, and those that are asked for by name."""
    kept = {parse(name) for name in (*NAMED, "int8_tensor")}
    few = tuple(f for i, f in enumerate(SPACE) if i % 8 == 0 or f in kept)
    monkeypatch.setattr(sweep, "design_space", lambda: few)


def by_name(explored: Exploration) -> dict[str, ExploredFormat]:
    return {f.format: f for f in explored.formats}


def test_the_space_has_a_thousand_formats_and_more_of_every_kind() -> None:
    assert len(SPACE) >= 1000
    assert {family_of(f) for f in SPACE} == set(FAMILIES)
    assert {scale_of(f) for f in SPACE} == set(SCALES)
    assert len(set(SPACE)) == len(SPACE)


def test_no_format_of_the_space_is_another_one_in_disguise() -> None:
    assert all(f.d2 == 0 or f.k2 < f.k1 for f in SPACE if isinstance(f, Bdr))  # no shift would ever happen
    assert not any(group.size == "channel" for f in SPACE for group in f.groups.shared)
    assert all(f.element.bits <= 16 and f.element.min < 0 for f in SPACE)


def test_every_text_parses_back_to_the_same_format() -> None:
    for f in SPACE:
        assert parse(str(f)) == f
        assert parse(f.grammar) == f


@pytest.mark.parametrize(
    ("name", "bits"),
    [
        ("mx9", 9.0), ("mx6", 6.0), ("mx4", 4.0), ("mxfp4", 4.25), ("nvfp4", 4.5), ("mxfp6_e2m3", 6.25),
        ("mxfp8_e4m3", 8.25), ("mxint8", 8.25), ("msfp12", 4.5), ("vsq4", 4.375),
        ("bdr(m=3,d1=4,k1=8,d2=2,k2=4)", 5.0), ("block(element=posit(6,es=1),scale=fp32,size=16)", 8.0),
        ("block(element=lookup(-1,0,0.5,1),scale=fp16,size=64)", 2.25),
        ("fp8_e4m3", 8.0), ("int4_channel", 4.125), ("int8_tensor", 8.0),
    ],
)  # fmt: skip
def test_bits_per_value_are_those_of_the_hand(name: str, bits: float) -> None:
    assert channel_bits_per_value(parse(name), 256) == bits


CELLS = [
    ("mx9", lambda x: d.bdr(x, 7, 16, 1, 2)),
    ("mx6", lambda x: d.bdr(x, 4, 16, 1, 2)),
    ("mx4", lambda x: d.bdr(x, 2, 16, 1, 2)),
    ("bdr(m=5,d1=6,k1=32,d2=3,k2=4)", lambda x: d.bdr(x, 5, 32, 3, 4)),
    ("bdr(m=3,d1=8,k1=64,d2=2,k2=1)", lambda x: d.bdr(x, 3, 64, 2, 1)),
    ("bdr(m=6,d1=8,k1=128,d2=0)", lambda x: d.bdr(x, 6, 128, 0, 128)),
    ("mxfp4", lambda x: d.power_of_two_block(x, d.E2M1, 2, 32)),
    ("mxfp6_e2m3", lambda x: d.power_of_two_block(x, d.E2M3, 2, 32)),
    (
        "block(element=int(6,coding=symmetric),scale=e8m0,size=16)",
        lambda x: d.power_of_two_block(x, d.INT6, 4, 16),
    ),
    ("block(element=int(4,coding=symmetric),scale=fp32,size=64)", lambda x: d.real_block(x, d.INT4, 64)),
    ("block(element=float(e=2,m=1),scale=fp32,size=8)", lambda x: d.real_block(x, d.E2M1, 8)),
    (
        "block(element=lookup(-1,-0.5,-0.125,0,0.25,0.625,1),scale=fp32,size=32)",
        lambda x: d.real_block(x, d.TABLE, 32),
    ),
]


@pytest.mark.parametrize(("name", "rounded"), CELLS, ids=[name for name, _ in CELLS])
def test_a_cell_is_what_the_papers_say_computed_in_numpy(name: str, rounded: Any, values: Any) -> None:
    x = values.astype(np.float64)
    assert qsnr_of(values, parse(name), "floor") == pytest.approx(d.qsnr(x, rounded(x)), abs=1e-4)


OTHERS = ["nvfp4", "vsq6", "block(element=posit(6,es=1),scale=e8m0,size=32)", "posit8_1", "fp8_e5m2",
          "block(element=float(e=3,m=2),scale=fp8_e5m2,size=16)", "mxfp8_e4m3"]  # fmt: skip


@pytest.mark.parametrize("name", [*(name for name, _ in CELLS), *OTHERS])
def test_a_cell_is_what_the_definition_gives(name: str, values: Any) -> None:
    f, x = parse(name), values[:40]
    parts = reference.quantize(x, f, kernels.options(f))
    y = reference.dequantize(parts, f, np.float64)
    assert qsnr_of(x, f, "floor") == pytest.approx(d.qsnr(x.astype(np.float64), y), abs=1e-4)


def test_another_format_in_the_place_of_a_cell_would_be_seen(values: Any) -> None:
    x = values.astype(np.float64)
    assert qsnr_of(values, parse("mx9"), "floor") != pytest.approx(d.qsnr(x, d.bdr(x, 7, 16, 1, 4)), abs=0.1)


def test_every_cell_of_bdr_keeps_the_bound_of_theorem_1(explored: Exploration) -> None:
    cells = [f for f in explored.formats if f.family == "bdr"]
    assert len(cells) > 1500
    for cell in cells:
        f = parse(cell.format)
        assert isinstance(f, Bdr)
        beta = 2**f.d2 - 1
        bound = 6.02 * f.m + 10 * math.log10(4**beta / (min(256, f.k1) + (4**beta - 1) * f.k2))
        assert cell.bound_db == pytest.approx(bound, abs=0.02)
        assert cell.qsnr_db >= cell.bound_db
    assert all(math.isnan(f.bound_db) for f in explored.formats if f.family != "bdr")


def test_without_its_shifts_mx4_would_fall_below_its_bound() -> None:
    x = np.array([[1.0] + [0.2499] * 15])  # just below half of an unshifted step
    bound = qsnr_lower_bound(Bdr(2), 16)
    assert d.qsnr(x, d.bdr(x, 2, 16, 0, 16)) < bound < d.qsnr(x, d.bdr(x, 2, 16, 1, 2))


def brute_front(formats: list[ExploredFormat], cost: str) -> set[str]:
    """Every pair is compared."""
    of = [(getattr(f, cost), f.qsnr_db) for f in formats]
    points = np.array(of)
    kept = set()
    for i, (c, q) in enumerate(of):
        beaten = (points[:, 0] <= c) & (points[:, 1] >= q) & ((points[:, 0] < c) | (points[:, 1] > q))
        if not beaten.any():
            kept.add(formats[i].format)
    return kept


def test_the_fronts_are_those_of_brute_force(explored: Exploration) -> None:
    axes = {"bits": "bits_per_value", "proxy": "proxy"}
    assert [(f.cost, f.scale) for f in explored.fronts] == [
        (cost, scale) for cost in ("bits", "proxy") for scale in ("any", "power of two")
    ]
    for front in explored.fronts:
        among = [f for f in explored.formats if front.scale in ("any", f.scale)]
        assert set(front.formats) == brute_front(among, axes[front.cost])
        costs = [getattr(by_name(explored)[name], axes[front.cost]) for name in front.formats]
        assert costs == sorted(costs)


def test_a_front_over_the_wrong_axis_would_be_seen(explored: Exploration) -> None:
    bits, _, proxy, _ = explored.fronts
    assert set(bits.formats) != brute_front(list(explored.formats), "proxy")
    assert set(proxy.formats) != brute_front(list(explored.formats), "bits_per_value")


def test_a_dominated_format_is_on_no_front(explored: Exploration) -> None:
    cells = by_name(explored)
    worse = cells["mxfp8_e4m3"]  # MX6 takes fewer bits, MXINT8 has 11 dB more in as many
    assert cells["mxint8"].qsnr_db > worse.qsnr_db
    assert cells["mxint8"].bits_per_value == worse.bits_per_value
    assert all(worse.format not in front.formats for front in explored.fronts)


def test_distances_to_the_front_are_those_of_brute_force(explored: Exploration) -> None:
    assert [p.format.format for p in explored.placed[:3]] == ["mx9", "mx6", "mx4"]
    for placed in explored.placed:
        own = placed.format
        found = []
        for cost in ("bits_per_value", "proxy"):
            within = [f for f in explored.formats if getattr(f, cost) <= getattr(own, cost)]
            for scale in ("", "power of two"):
                found.append(max(f.qsnr_db for f in within if scale in ("", f.scale)) - own.qsnr_db)
        said = [
            placed.below_db, placed.below_power_of_two_db,
            placed.below_proxy_db, placed.below_power_of_two_proxy_db,
        ]  # fmt: skip
        assert said == pytest.approx(found, abs=1e-12)


def test_mx9_mx6_and_mx4_are_within_half_a_decibel_of_the_front_of_powers_of_two(
    explored: Exploration,
) -> None:
    for placed in explored.placed[:3]:
        assert 0 < placed.below_power_of_two_db < 0.5
    mxfp8 = next(p for p in explored.placed if p.format.format == "mxfp8_e4m3")
    assert mxfp8.below_power_of_two_db > 10


def test_with_scales_of_eight_bits_they_are_on_that_front(explored: Exploration) -> None:
    def is_wide(f: Format) -> bool:
        scales = f.groups.scales
        return scales is not None and scales.power_of_two and scales.bits == 8

    wide = [f for f in explored.formats if is_wide(parse(f.format))]
    assert {"mx9", "mx6", "mx4"} <= brute_front(wide, "bits_per_value")
    assert "mxfp4" not in brute_front(wide, "bits_per_value")


def six_bits(explored: Exploration, d1: int) -> list[ExploredFormat]:
    formats = {f.format: parse(f.format) for f in explored.formats}
    bdr = [(f, formats[f.format]) for f in explored.formats if f.bits_per_value <= 6]
    return [f for f, own in bdr if isinstance(own, Bdr) and own.d1 == d1]


def test_16_2_1_is_undominated_among_bdr_of_six_bits(explored: Exploration) -> None:
    assert parse("mx6") == Bdr(m=4, d1=8, k1=16, d2=1, k2=2)
    assert "mx6" in brute_front(six_bits(explored, 8), "bits_per_value")
    assert max(six_bits(explored, 8), key=lambda f: f.qsnr_db).format == "mx6"
    # With a scale of four bits, which has no range, blocks of eight are better: (8, 2, 1).
    assert max(six_bits(explored, 4), key=lambda f: f.qsnr_db).format == "bdr(m=4,d1=4,k1=8)"


def test_by_the_proxy_a_bit_more_is_cheaper_than_the_shifters_of_mx9(explored: Exploration) -> None:
    cells = by_name(explored)
    plain = cells["bdr(m=8,d2=0)"]
    assert plain.proxy < cells["mx9"].proxy
    assert plain.qsnr_db > cells["mx9"].qsnr_db + 2
    assert explored.placed[0].below_proxy_db > 3  # MX9; of MX6 and MX4 the same holds as over bits
    assert all(p.below_power_of_two_proxy_db < 0.5 for p in explored.placed[1:3])


@pytest.mark.usefixtures("thinned")
def test_a_named_format_beyond_the_front_is_said_to_be(values: Any) -> None:
    own = "block(element=int(5,coding=symmetric),scale=e8m0,size=20)"  # not of the space
    assert parse(own) not in SPACE
    explored = explore_formats("gaussian", [own, own, "mx9"], vectors=4)
    assert [p.format.format for p in explored.placed].count("mx9") == 1
    assert explored.placed[-1].format.format == own
    assert own not in by_name(explored)


def test_what_a_parameter_is_worth_is_its_own_front_below_that_of_all() -> None:
    values = vectors_of("gaussian", 8, 1, "floor").values
    formats = [Bdr(m, 8, k1, d2, 2) for m in (2, 3, 4) for k1 in (8, 16) for d2 in (0, 1)]
    scores = score_all(values, formats, "floor")
    rows = {(s.parameter, s.value): s for s in sensitivities({**scores})}
    assert set(rows) == {("d1", 8), ("k1", 8), ("k1", 16), ("d2", 0), ("d2", 1), ("k2", 2)}
    assert rows["d1", 8].worst_db == 0
    assert rows["k2", 2].formats == 6  # those with microexponents
    front = brute_front([scores[f] for f in formats], "bits_per_value")
    losses = []
    for f in formats:
        if str(f) in front and f.m < 4:
            kept = [scores[g].qsnr_db for g in formats if g.d2 == 0 and g.bits_per_value <= f.bits_per_value]
            losses += [scores[f].qsnr_db - max(kept)] if kept else []
    assert rows["d2", 0].mean_db == pytest.approx(np.mean(losses))
    assert rows["d2", 0].worst_db == pytest.approx(max(losses))
    assert rows["d2", 0].worst_db > 0.5


def test_normal_tables_are_those_of_normal_float() -> None:
    # QLoRA, appendix E, as it prints NF4.
    published = [
        -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
        -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
        0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
        0.7229568362236023, 1.0,
    ]  # fmt: skip
    assert normal_table(4).values == pytest.approx(published, abs=2.0**-11)


def test_exact_formats_do_not_lie_below_each_other(tmp_path: Any) -> None:
    np.save(tmp_path / "ones.npy", np.sign(np.random.default_rng(0).standard_normal((4, 256))))
    explored = explore_formats(tmp_path / "ones.npy")
    assert explored.placed[0].format.qsnr_db == math.inf
    assert {p.below_db for p in explored.placed} == {0.0}
    rows = {(s.parameter, s.value): s for s in explored.sensitivity}
    assert rows["d1", 4].worst_db == 0
    assert math.isnan(rows["d1", 8].mean_db)  # the narrowest of all is exact, and none of these is as narrow


@pytest.mark.usefixtures("thinned")
def test_progress_is_told_to_the_end() -> None:
    seen: list[tuple[str, float, float]] = []
    explore_formats(vectors=1, progress=lambda what, done, total: seen.append((what, done, total)))
    assert {what for what, _, _ in seen} == {"measuring formats"}
    assert [done for _, done, _ in seen] == list(range(int(seen[-1][2]) + 1))


def test_wrong_requests_are_refused() -> None:
    with pytest.raises(ArgumentError, match=r"e8m0 has no negative values; explore takes formats of both"):
        explore_formats(formats=["e8m0"], vectors=1)
    with pytest.raises(FormatError, match="there is no format named 'mx99'"):
        explore_formats(formats=["mx99"], vectors=1)
    with pytest.raises(ArgumentError, match="scale_rule"):
        explore_formats(scale_rule="best", vectors=1)


@pytest.mark.usefixtures("thinned")
def test_the_scale_rule_counts() -> None:
    floor, ceil = (explore_formats(scale_rule=rule, vectors=2) for rule in ("floor", "ceil"))
    cells, others = by_name(floor), by_name(ceil)
    assert cells["mxfp4"] != others["mxfp4"]
    assert cells["int8_tensor"] == others["int8_tensor"]
    assert replace(floor.data, scale_rule="ceil") == ceil.data


@pytest.mark.slow
def test_the_claims_hold_on_ten_thousand_vectors() -> None:
    explored = explore_formats()
    assert explored.data.vectors == 10_000
    assert len(explored.formats) >= 1000
    assert all(0.2 < p.below_power_of_two_db < 0.4 for p in explored.placed[:3])
    published = {"mx9": 46.6, "mx6": 28.4, "mx4": 15.8, "mxfp4": 18.7, "mxint8": 42.0, "mxfp6_e2m3": 31.0}
    for name, qsnr_db in published.items():
        assert by_name(explored)[name].qsnr_db == pytest.approx(qsnr_db, abs=0.3)
    means = {(s.parameter, s.value): s.mean_db for s in explored.sensitivity}
    assert [means["d2", d2] for d2 in (0, 1, 2)] == pytest.approx([1.5, 0.1, 0.9], abs=0.05)
    nvfp4 = next(p for p in explored.placed if p.format.format == "nvfp4")
    assert nvfp4.below_db == pytest.approx(1.3, abs=0.05)


@pytest.mark.slow
@pytest.mark.parametrize(("data", "least", "most"), [("laplace", 0.6, 0.75), ("lognormal", 1.25, 1.55)])
def test_on_other_data_mx9_and_mx6_are_not_that_near_the_front(data: str, least: float, most: float) -> None:
    explored = explore_formats(data, vectors=2000)
    assert all(least < p.below_power_of_two_db < most for p in explored.placed[:2])
