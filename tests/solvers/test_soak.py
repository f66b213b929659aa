"""What a Krylov solver claims of random systems is so: an independent residual judges every claim."""

from collections import Counter
from dataclasses import replace

import pytest

from fewbits.solvers.krylov.problem import Problem
from tests.solvers.soak import cases, outcome

pytestmark = pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
SEED = 14


def counted(count: int, first: int = 0) -> tuple[Counter[str], list[str]]:
    """Return how many systems were solved, left and refused, and what was claimed falsely."""
    counts, false = Counter[str](), []
    for i, case in enumerate(cases(count, SEED)):
        if i < first:
            continue
        verdict, why = outcome(case)
        counts[verdict] += 1
        if verdict == "false":
            false.append(f"{i}: {case.solver}, {case.kind}, {case.layout}, {case.options}: {why}")
    return counts, false


def test_no_claim_on_a_sample_of_random_systems_is_false() -> None:
    counts, false = counted(150)
    assert not false
    assert counts["solved"] >= 50


@pytest.mark.slow
def test_no_claim_on_five_thousand_random_systems_is_false() -> None:
    counts, false = counted(5000)
    print(dict(counts))
    assert not false
    assert counts["solved"] >= 2000


def test_a_solver_that_trusts_its_recurrence_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def verdicts() -> Counter[str]:
        careless = {"delta": None, "precision": "fp32/quda_half", "rtol": 1e-8}
        suited = (case for case in cases(60, SEED) if case.solver in ("cg", "bicgstab", "gcr"))
        return Counter(outcome(replace(case, options={**case.options, **careless}))[0] for case in suited)

    assert verdicts()["false"] == 0
    monkeypatch.setattr(Problem, "judge", lambda self: (self.claimed, self.claimed <= self.rtol * self.size))
    assert verdicts()["false"] > 0
