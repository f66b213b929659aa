"""Substitution in double precision: all instruction sets equal the definition, and that LAPACK's answer."""

import itertools
from typing import Any

import numpy as np
import pytest
from scipy.linalg import solve_triangular

from fewbits.kernels import native
from fewbits.kernels.reference.dense import triangles as reference
from tests import cases

KINDS = [
    dict(zip(("upper", "unit", "transposed"), kind, strict=True))
    for kind in itertools.product((False, True), repeat=3)
]
SIZES = (1, 2, 7, 8, 31, 33, 64, 100, 131, 256, 257, 600)  # 256 are a block
TYPES = (np.float32, np.float64)
SYSTEMS = (SIZES, native.available_isas(), ("whole", "padded"), (1, 3), (1, 2), *[(False, True)] * 3, TYPES)


def system(n: int, k: int, held: str = "whole", dtype: Any = np.float32) -> Any:
    """Return a square of numbers and right-hand sides of very different sizes."""
    generator = np.random.default_rng(n)
    wide = (generator.standard_normal((n, n + 3)) * 10.0 ** generator.integers(-8, 3, (n, n + 3))).astype(
        dtype
    )
    t = wide[:, 1 : n + 1] if held == "padded" else np.ascontiguousarray(wide[:, :n])
    np.fill_diagonal(t, generator.uniform(1, 2, n) * generator.choice([-1, 1], n))
    return t, generator.standard_normal((k, n)) * 10.0 ** generator.integers(-20, 20, (k, n))


@pytest.mark.parametrize(
    ("n", "isa", "held", "k", "threads", "upper", "unit", "transposed", "dtype"), cases.pairs(*SYSTEMS)
)
def test_every_instruction_set_equals_the_definition(
    n: int, isa: str, held: str, k: int, threads: int, upper: bool, unit: bool, transposed: bool, dtype: Any
) -> None:
    native.force_isa(isa)
    kind = {"upper": upper, "unit": unit, "transposed": transposed}
    t, b = system(n, k, held, dtype)
    with np.errstate(over="ignore", invalid="ignore"):  # what grows beyond double precision is compared too
        expected = reference.substitute(t, b, **kind)
    x = b.copy()
    native.substitute(t, x, threads, **kind)
    assert x.tobytes() == expected.tobytes()


@pytest.mark.slow
def test_every_instruction_set_equals_the_definition_in_every_combination() -> None:
    for row in itertools.product(*SYSTEMS):
        test_every_instruction_set_equals_the_definition(*row)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize(
    "kind", KINDS, ids=lambda kind: "-".join(name for name, on in kind.items() if on) or "lower"
)
def test_the_definition_solves_the_system_of_the_triangle_alone(kind: dict[str, bool], dtype: Any) -> None:
    """LAPACK has the triangle alone; here the other one is NaN, and the diagonal where it is not read."""
    n = 77
    generator = np.random.default_rng(0)
    t = (generator.standard_normal((n, n)) / n + 2 * np.eye(n)).astype(dtype)
    b = generator.standard_normal((2, n))
    triangle = (np.triu if kind["upper"] else np.tril)(t).astype(float)
    expected = solve_triangular(
        triangle, b.T, trans=int(kind["transposed"]), lower=not kind["upper"], unit_diagonal=kind["unit"]
    ).T
    hidden = np.where(triangle != 0, t, dtype(np.nan))
    if kind["unit"]:
        np.fill_diagonal(hidden, np.nan)
    found = reference.substitute(hidden, b, **kind)
    assert np.abs(found - expected).max() <= 1e-14 * np.abs(expected).max()
    # In float32 the same system has seven digits: the control.
    single = solve_triangular(
        triangle.astype(np.float32),
        b.T.astype(np.float32),
        trans=int(kind["transposed"]),
        lower=not kind["upper"],
        unit_diagonal=kind["unit"],
    ).T
    assert np.abs(single - expected).max() > 1e-9 * np.abs(expected).max()


def test_what_does_not_fit_is_refused() -> None:
    t, b = system(9, 2)
    for square, x, said in (
        (t.T, b, "follow each other"),
        (t[:8], b, "as many rows as columns"),
        (t, b[:, :8].copy(), "a value of x for each row"),
    ):
        before = x.copy()
        with pytest.raises(ValueError, match=said):
            native.substitute(square, x, 1, upper=True)
        assert np.array_equal(x, before)
