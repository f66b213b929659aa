"""What a Krylov solver claims of random systems is so: an independent residual judges every claim."""

from collections import Counter
from dataclasses import replace

import pytest

from fewbits.solvers.krylov.problem import Problem
from tests.solvers.soak import case, cases, outcome

pytestmark = pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
SEED = 14


def counted(count: int, first: int = 0) -> tuple[Counter[str], list[str]]:
    """Return how many systems were solved, left and refused, and what was claimed falsely."""
    counts, false = Counter[str](), []
    for i in range(first, count):
        one = case(i, SEED)
        verdict, why = outcome(one)
        counts[verdict] += 1
        if verdict == "false":
            false.append(f"{i}: {one.solver}, {one.kind}, {one.layout}, {one.options}: {why}")
    return counts, false


def test_no_claim_on_a_sample_of_random_systems_is_false() -> None:
    counts, false = counted(150)
    assert not false
    assert counts["solved"] >= 50


@pytest.mark.parametrize("index", [1508, 3250, 3260])
def test_rounding_does_not_hide_that_zeros_were_better(index: int) -> None:
    """Matrices of entries so far apart that the residual of a large x, in double precision, says nothing."""
    verdict, why = outcome(case(index, SEED))
    assert verdict == "left", why


@pytest.mark.slow
def test_no_claim_on_five_thousand_random_systems_is_false() -> None:
    counts, false = counted(5000)
    print(dict(counts))
    assert not false
    assert counts["solved"] >= 2000


def test_a_solver_that_trusts_its_recurrence_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def verdicts() -> Counter[str]:
        careless = {"delta": None, "precision": "fp32/quda_half", "rtol": 1e-8}
        suited = (one for one in cases(60, SEED) if one.solver in ("cg", "bicgstab", "gcr"))
        return Counter(outcome(replace(one, options={**one.options, **careless}))[0] for one in suited)

    assert verdicts()["false"] == 0
    monkeypatch.setattr(Problem, "judge", lambda self: (self.claimed, self.claimed <= self.rtol * self.size))
    assert verdicts()["false"] > 0
