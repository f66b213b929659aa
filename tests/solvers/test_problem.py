"""What the solvers share keeps out of their way."""

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from fewbits.solvers import CompressedRows
from fewbits.solvers.krylov.space import Space
from fewbits.solvers.krylov.stopping import Stopping
from fewbits.solvers.krylov.system import System
from fewbits.solvers.krylov.torch_vectors import TorchVectors
from fewbits.solvers.precision import krylov_precision


def test_a_residual_that_was_taken_stays_when_the_next_is_computed() -> None:
    problem = System(np.diag([1.0, 2.0]), np.ones(2)).problem(0, Stopping())
    vectors = TorchVectors(Space(problem.a, krylov_precision("double")))
    r = problem.add(torch.zeros(2, dtype=torch.float64))
    vectors.load(r)
    later = problem.add(torch.full((2,), 0.5, dtype=torch.float64))
    assert later.tolist() == [0.0, -0.5]
    assert vectors.r.tolist() == [0.5, 0.5]


@pytest.mark.parametrize("null", [1e100, np.inf, np.nan])  # zero times each is zero where no zero is stored
def test_an_iterate_that_no_double_holds_is_not_the_best_one_if_it_is_no_solution(null: float) -> None:
    singular = CompressedRows(sp.csr_array(np.diag([1.0, 0.0])))
    b = np.array([2.0, 1.0])
    problem = System(singular, 2.0**900 * b).problem(0, Stopping())
    for y, expected in (((0.4, 0.0), 0.4), ((0.1, null), 0.4), ((0.0, 0.0), 0.5)):
        problem.add(torch.tensor(y, dtype=torch.float64))
        problem.y = torch.where(problem.y.abs() < 1, problem.y, 0.0)  # the next one starts without it
        residual, converged = problem.judge()
        assert float(problem.best[0]) == pytest.approx(expected)
        assert not converged
        assert bool(torch.isfinite(problem.x).all())
    assert residual == pytest.approx(0.25)  # of b scaled to (0.5, 0.25): its part outside the range of A
