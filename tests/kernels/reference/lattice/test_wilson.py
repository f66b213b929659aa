"""The definition of the Wilson operator and of narrow links: laws, and what each way to keep a link costs."""

from typing import Any

import numpy as np
import pytest

from fewbits.kernels.bits import lattice
from fewbits.kernels.reference.lattice import spinors
from fewbits.kernels.reference.lattice import wilson as reference

EYE = np.eye(4)


def matrices(count: int) -> Any:
    """Return random matrices of SU(3)."""
    generator = np.random.default_rng(0)
    q, _ = np.linalg.qr(
        generator.standard_normal((count, 3, 3)) + 1j * generator.standard_normal((count, 3, 3))
    )
    return q / np.linalg.det(q)[:, None, None] ** (1 / 3)


def errors(u: Any, numbers: int, dtype: str) -> Any:
    stored = lattice.encode_links(lattice.compress_links(u, numbers), dtype)
    return np.abs(lattice.expand_links(lattice.decode_links(stored)) - u).max((1, 2))


def test_the_gamma_matrices_anticommute_and_gamma_5_is_their_product() -> None:
    for mu, a in enumerate(reference.GAMMAS):
        for nu, b in enumerate(reference.GAMMAS):
            assert np.array_equal(a @ b + b @ a, 2 * EYE * (mu == nu))
    product = np.linalg.multi_dot(list(reference.GAMMAS))
    assert np.array_equal(product, np.diag(reference.GAMMA_5))


@pytest.mark.parametrize(
    ("numbers", "dtype", "median", "largest"),
    [
        (18, "float64", 0, 0),
        (12, "float64", 5e-16, 2e-15),
        (8, "float64", 1e-15, 2e-13),
        (18, "int16", 1.8e-5, 2.2e-5),
        (12, "int16", 2.0e-5, 4.1e-5),
        (8, "int16", 3.6e-5, 4e-3),
        (18, "int8", 4.6e-3, 5.6e-3),
        (12, "int8", 5.1e-3, 1.1e-2),
        (8, "int8", 9.2e-3, 0.15),
    ],
)
def test_twenty_thousand_links_come_back(numbers: int, dtype: str, median: float, largest: float) -> None:
    found = errors(matrices(20000), numbers, dtype)
    assert np.median(found) <= median
    assert found.max() <= largest


def test_the_tail_of_eight_numbers_is_thin() -> None:
    assert np.quantile(errors(matrices(20000), 8, "int16"), 0.999) <= 7e-4


@pytest.mark.parametrize("dtype", ["float64", "float32", "int16", "int8"])
@pytest.mark.parametrize("numbers", [18, 12, 8])
def test_the_unit_link_comes_back_exactly(numbers: int, dtype: str) -> None:
    assert errors(np.eye(3, dtype=complex)[None], numbers, dtype).max() == 0


def test_a_link_that_eight_numbers_do_not_determine_comes_back_finite() -> None:
    swap = np.array([[0, 1, 0], [1, 0, 0], [0, 0, -1]], complex)  # second row (1, 0, 0)
    assert np.isfinite(lattice.expand_links(lattice.compress_links(swap, 8))).all()


def test_sites_of_zeros_and_of_next_to_nothing_are_kept_as_zeros() -> None:
    psi = np.zeros((3, 24), np.float32)
    psi[1, 5], psi[2, 7] = 2.0**-101, -(2.0**-100)
    codes, norms = spinors.encode_spinors(psi, "int16")
    assert norms is not None
    assert codes[2, 7] == -32767
    assert not codes[:2].any()
    assert not norms[:2].any()
