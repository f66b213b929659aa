"""A linear system measured in several precisions."""

import numpy as np
import pytest
import scipy.sparse

from fewbits.compare.systems import measure_system, poisson_system, random_system
from fewbits.errors import ArgumentError, DataError, FewbitsError

A = np.random.default_rng(0).standard_normal((40, 40))
B = A @ np.arange(40.0)


def test_a_dense_system_has_a_score_for_each_precision() -> None:
    measured = measure_system(A, B, ["auto", "fp64", "dsgesv"], name="mine")
    assert [score.precision for score in measured.scores] == ["auto", "fp64", "dsgesv"]
    assert [score.stages[-1].precision for score in measured.scores] == ["fp64", "fp64", "dsgesv"]
    assert all(score.matrix == "mine" and score.unknowns == 40 for score in measured.scores)
    assert all(0 < score.backward_error < 1e-14 for score in measured.scores)
    assert np.allclose(measured.x, np.arange(40.0))
    assert measured.failure == ""
    speeds = [score.of_double for score in measured.scores]
    assert speeds[1] == 1.0
    assert all(speed is not None and speed > 0 for speed in speeds)


def test_one_precision_alone_has_no_speed() -> None:
    assert measure_system(A, B, ["fp64"]).scores[0].of_double is None


def test_a_solver_that_iterates_stops_at_its_bounds_and_says_why_it_failed() -> None:
    a = scipy.sparse.diags([-1.0, 2.1, -1.0], [-1, 0, 1], shape=(300, 300)).tocsr()
    b = a @ np.ones(300)
    measured = measure_system(a, b, ["single"], solver="gmres", atol=1e-3, restart=9)
    assert measured.scores[0].goal == 1e-3 / np.linalg.norm(b)
    assert measured.scores[0].backward_error <= measured.scores[0].goal
    assert np.linalg.norm(b - a @ measured.x) <= 1e-3
    few = measure_system(a, b, ["single"], solver="gmres", maxiter=2)
    assert "the true residual stayed at" in few.failure
    assert few.scores[0].iterations == 2


def test_a_precision_that_is_refused_is_recorded_unless_all_are() -> None:
    measured = measure_system(A, B, ["fp12", "fp64"])
    assert "there is no precision 'fp12'" in measured.failure
    assert np.allclose(measured.x, np.arange(40.0))
    with pytest.raises(FewbitsError, match="no precision 'fp12'"):
        measure_system(A, B, ["fp12"])
    with pytest.raises(DataError, match="not positive definite"):
        measure_system(-np.eye(40), B, ["double", "single"], solver="cg")


def test_progress_ends_where_all_is_done() -> None:
    seen: list[tuple[str, float, float]] = []
    measure_system(A, B, ["fp32", "fp64"], progress=lambda *told: seen.append(told))
    assert seen[-1] == ("precisions", 2, 2)
    assert ("fp32: factorizing", 1, 1) in seen
    assert any(what == "fp32: refining in fp32" and done == 1 for what, done, _ in seen)


def test_arguments_are_named_not_flags() -> None:
    with pytest.raises(ArgumentError, match="solver='magic'; expected direct, cg"):
        measure_system(A, B, solver="magic")
    with pytest.raises(ArgumentError, match="no precisions to measure"):
        measure_system(A, B, [])


def test_the_demonstrations_are_repeatable() -> None:
    a, b = random_system()
    assert a.shape == (1200, 1200)
    assert np.array_equal(b, a @ np.ones(1200))
    operator, right = poisson_system()
    assert operator.n == len(right) == 40**3
