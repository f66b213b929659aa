"""The largest and the smallest magnitude of an array are NumPy's, wherever in it they lie."""

import numpy as np
import pytest

from fewbits.kernels import native


@pytest.mark.parametrize("isa", native.available_isas())
@pytest.mark.parametrize("n", [1, 15, 16, 63, 64, 65, 1000, 1023, 1024, 1100, 2500])
def test_extremes_are_found_at_every_place(n: int, isa: str) -> None:
    x = np.random.default_rng(n).uniform(1, 2, n).astype(np.float32)
    x[::3] = 0
    native.force_isa(isa)
    for place in {0, 1, n // 2, n - 2, n - 1} & set(range(n)):
        for extreme in (2.0**100, 2.0**-140):
            given = x.copy()
            given[place] = -extreme
            found = np.abs(given[given != 0])
            assert native.magnitudes(given, threads=1) == (found.max(), found.min(), False), place
        for bad in (np.nan, -np.inf):
            given = x.copy()
            given[place] = bad
            found = np.abs(given[(given != 0) & np.isfinite(given)])
            largest, smallest = (found.max(), found.min()) if found.size else (0, np.inf)
            assert native.magnitudes(given, threads=1) == (largest, smallest, True), place
