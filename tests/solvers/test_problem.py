"""What the solvers share keeps out of their way."""

import numpy as np
import torch

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
