"""The least noise within a number of bytes, as brute force finds it; and the proposal that comes of it."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from scipy.optimize import Bounds, LinearConstraint, milp

from fewbits.cli import main as cli
from fewbits.compare import knapsack
from fewbits.compare.allocation import Choice, allocate, allocate_within
from fewbits.compare.checkpoint import measure_checkpoint
from fewbits.errors import ArgumentError

pairs = st.tuples(st.integers(1, 30), st.one_of(st.floats(0, 8), st.integers(0, 3).map(float)))
problems = st.lists(st.lists(pairs, min_size=1, max_size=4), min_size=1, max_size=5)


def made(problem: list[list[tuple[int, float]]]) -> list[list[Choice]]:
    return [[Choice(*pair) for pair in pairs] for pairs in problem]


def cost(tensors: list[list[Choice]], chosen: Any) -> tuple[int, float]:
    picked = [of[k] for of, k in zip(tensors, chosen, strict=True)]
    return sum(c.bytes for c in picked), sum(c.noise for c in picked)


@given(problem=problems, most=st.integers(1, 120))
@settings(max_examples=300)
def test_no_choice_within_the_bytes_has_less_noise(problem: Any, most: int) -> None:
    tensors = made(problem)
    every = [cost(tensors, chosen) for chosen in product(*(range(len(of)) for of in tensors))]
    within = [noise for size, noise in every if size <= most]
    if not within:
        with pytest.raises(ArgumentError, match="the smallest choices take"):
            allocate_within(tensors, most)
        return
    size, noise = cost(tensors, allocate_within(tensors, most))
    assert size <= most
    assert noise == pytest.approx(min(within), rel=1e-9, abs=1e-12)


def random_model(tensors: int) -> list[list[Choice]]:
    """Formats from 4 to 9 bits, whose noise falls by four with each bit, in tensors of many sizes."""
    random = np.random.default_rng(0)
    return [
        [
            Choice(int(n * b / 8), float(s * 4.0**-b * f))
            for b, f in zip(BITS, random.uniform(0.7, 1.3, 9), strict=True)
        ]
        for n, s in zip(random.integers(1000, 10**6, tensors), random.lognormal(0, 3, tensors), strict=True)
    ]


BITS = (4, 4.25, 4.5, 5, 6, 6.25, 8, 8.25, 9)


@given(problem=problems, most=st.integers(1, 120), kept=st.integers(1, 4))
@settings(max_examples=200)
def test_few_sums_that_are_kept_are_never_those_that_lead_nowhere(problem: Any, most: int, kept: int) -> None:
    tensors = made(problem)
    if sum(min(c.bytes for c in of) for of in tensors) > most:
        return
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(knapsack, "_MOST", kept)
        size, noise = cost(tensors, allocate_within(tensors, most))
    assert size <= most
    # What remains is at least as good as taking whole steps along the hulls while they fit.
    pairs = [[(c.bytes, c.noise) for c in of] for of in tensors]
    steps = knapsack._Steps.of(pairs).behind(-1)
    assert noise <= steps.reached(np.array([most - steps.smallest]))[0] * (1 + 1e-9) + 1e-12


def test_few_sums_that_are_kept_are_those_that_promise_most(monkeypatch: pytest.MonkeyPatch) -> None:
    tensors = random_model(60)
    most = sum(of[3].bytes for of in tensors)
    best = cost(tensors, allocate_within(tensors, most))
    monkeypatch.setattr(knapsack, "_MOST", 20)
    assert cost(tensors, allocate_within(tensors, most)) == best
    monkeypatch.setattr(knapsack, "_MOST", 1)
    assert best[1] < cost(tensors, allocate_within(tensors, most))[1] < best[1] * 1.001


def test_a_large_model_is_as_good_as_an_integer_program_finds_it() -> None:
    tensors = random_model(60)
    most = sum(of[3].bytes for of in tensors)
    size, noise = cost(tensors, allocate_within(tensors, most))
    assert size <= most
    flat = [c for of in tensors for c in of]
    scale = sum(of[3].noise for of in tensors)
    one_each = np.kron(np.eye(len(tensors)), np.ones(len(BITS)))
    found = milp(
        np.array([c.noise for c in flat]) / scale * 1e4,
        integrality=np.ones(len(flat)),
        bounds=Bounds(0, 1),
        constraints=[
            LinearConstraint(one_each, 1, 1),
            LinearConstraint(np.array([[c.bytes / most for c in flat]]), 0, 1),
        ],
        options={"mip_rel_gap": 0, "time_limit": 20},
    )
    assert noise <= found.fun / 1e4 * scale * (1 + 1e-6)
    # The other way round: with the noise that was reached as the bound, no choice takes fewer bytes.
    wide = [[*of, Choice(10**9, 0.0)] for of in tensors]
    assert cost(wide, allocate(wide, noise))[0] == size


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    w = {f"w{i}": torch.randn(64, 32 * (i + 1)) * torch.exp(i * torch.randn(64, 1)) for i in range(4)}
    save_file({**w, "bias": torch.ones(7)}, tmp_path / "model.safetensors")
    return tmp_path / "model.safetensors"


@pytest.mark.parametrize("budget", [4.25, 4.5, 5.0, 8.3, 40.0])
def test_a_proposal_keeps_its_budget_and_loses_least(checkpoint: Path, budget: float) -> None:
    formats = ["mxfp4", "nvfp4", "mx6", "mx9"]
    report = measure_checkpoint(checkpoint, formats, budget=budget)
    assert report.proposed_bits_per_value <= budget
    noise = {(s.tensor, s.format): (s.packed_bytes, 10 ** (-s.error.qsnr_db / 10)) for s in report.scores}
    names = [t.tensor for t in report.tensors if t.castable]
    values = sum(64 * 32 * (i + 1) for i in range(4))
    stored = {t.tensor: (t.stored_bytes, 0.0) for t in report.tensors}

    def total(chosen: Any) -> tuple[int, float]:
        found = [noise.get((n, f), stored[n]) for n, f in zip(names, chosen, strict=True)]
        return sum(size for size, _ in found), sum(lost for _, lost in found)

    every = [total(chosen) for chosen in product([*formats, None], repeat=len(names))]
    least = min(lost for size, lost in every if 8 * size <= budget * values)
    own = total([t.proposed for t in report.tensors if t.castable])
    assert own[1] == pytest.approx(least, rel=1e-9)


def test_a_budget_that_nothing_meets_is_refused(checkpoint: Path) -> None:
    with pytest.raises(ArgumentError, match=r"budget of 3 bits per value is less .* 4.25"):
        measure_checkpoint(checkpoint, ["mxfp4", "mx9"], budget=3)
    with pytest.raises(ArgumentError, match=r"expected one such as 4\.5"):
        measure_checkpoint(checkpoint, ["mxfp4"], budget=float("nan"))


def test_the_least_budget_that_is_told_is_enough_and_one_is_taken_as_it_is_typed(tmp_path: Path) -> None:
    save_file({"w": torch.randn(7, 83)}, tmp_path / "a.safetensors")  # 7 * (42 + 3) bytes are 4.337 bits
    with pytest.raises(ArgumentError, match=r"formats take, 4\.3374; allow"):
        measure_checkpoint(tmp_path / "a.safetensors", ["mxfp4"], budget=4.3373)
    report = measure_checkpoint(tmp_path / "a.safetensors", ["mxfp4"], budget=4.3374)
    assert report.tensors[0].proposed == "mxfp4"
    save_file({"w": torch.randn(5, 160)}, tmp_path / "b.safetensors")  # 435 bytes, of 4.35 bits
    format = "block(element=fp4_e2m1,scale=e8m0,size=23)"
    report = measure_checkpoint(tmp_path / "b.safetensors", [format], budget=4.35)
    assert report.proposed_bits_per_value == 4.35


def test_cast_takes_what_a_budget_proposes(checkpoint: Path, capsys: Any) -> None:
    proposal, narrow = checkpoint.parent / "proposal.json", checkpoint.parent / "narrow.safetensors"
    asked = ["compare", str(checkpoint), "--budget", "5", "--json", str(proposal)]
    assert cli.run(asked) == 0
    assert "within 5 bits per value" in capsys.readouterr().out
    assert json.loads(proposal.read_text())["checkpoint"]["budget"] == 5
    assert cli.run(["cast", str(checkpoint), str(narrow), "--map", str(proposal)]) == 0
    assert narrow.stat().st_size * 8 / (64 * 32 * 10) < 6
    assert cli.run([*asked, "--min-qsnr", "30"]) == 2
    assert "--min-qsnr does nothing" in capsys.readouterr().err
