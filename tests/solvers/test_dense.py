"""Dense systems: never less accurate than LAPACK's double precision, whatever the matrix."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import linalg, sparse
from scipy.io import mmread

from fewbits.errors import ArgumentError, DataError
from fewbits.kernels import ops
from fewbits.solvers import PRECISIONS, Precision, factorize, lstsq, precision, solve
from fewbits.solvers.dense.rounded_products import rounded_product
from tests.solvers.systems import EPS, Array, N, backward_error, checked, randsvd


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fewbits.solvers.dense.plan.BEFORE_DOUBLE", {64: ("fp32",)})


@pytest.mark.parametrize("mode", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("condition", [1e2, 1e4, 1e8, 1e12, 1e16])
def test_singular_values_of_every_mode(condition: float, mode: int) -> None:
    checked(randsvd(condition, mode, 160))


HARD = ["rows", "columns", "huge", "near singular", "hilbert", "triangular", "growth"]


def hard(name: str, n: int = N) -> Array:
    """Return a matrix that is difficult in the way its name says."""
    generator = np.random.default_rng(2)
    normal, scales = generator.standard_normal((n, n)), np.logspace(-30, 30, n)
    growth = np.eye(n) - np.tril(np.ones((n, n)), -1)
    growth[:, -1] = 1  # partial pivoting doubles its last column at every step
    found: Array = {
        "normal": normal,
        "rows": normal * scales[:, None],
        "columns": normal * scales,
        "both": normal * scales[:, None] * scales[::-1],
        "graded": normal * np.minimum(scales[::-1, None], scales[::-1]),
        "huge": normal * 1e300,
        "tiny": normal * 1e-300,
        "near singular": np.c_[normal[:, :-1], normal[:, :1] + 1e-14 * normal[:, -1:]],
        "hilbert": linalg.hilbert(n),
        "triangular": np.triu(normal) + 2 * np.eye(n),
        "growth": growth,
        "growth, transposed": growth.T.copy(),
    }[name]
    return found


@pytest.mark.parametrize("name", [*HARD, "normal", "both", "graded", "tiny", "growth, transposed"])
def test_matrices_that_are_hard_in_other_ways(name: str) -> None:
    checked(hard(name))


@pytest.mark.parametrize("name", ["watt_2", "cryg2500", "bcsstk13", "rajat19"])
def test_matrices_from_practice(name: str, shared_data: Path) -> None:
    checked(np.asarray(mmread(shared_data / "matrices" / f"{name}.mtx").todense(), np.float64))


@pytest.mark.parametrize("name", PRECISIONS)
def test_no_precision_is_less_accurate_than_lapack(name: str) -> None:
    for kind in HARD:
        checked(hard(kind, 160), name)
    for condition, mode in ((1e4, 3), (1e6, 5), (1e8, 2), (1e12, 4), (1e10, 1), (1e16, 3)):
        checked(randsvd(condition, mode, 160), name)


@pytest.mark.slow
@pytest.mark.parametrize("name", PRECISIONS)
def test_no_precision_is_less_accurate_than_lapack_on_any_spectrum_and_matrix(
    name: str, shared_data: Path
) -> None:
    for mode in range(1, 6):
        for exponent in range(2, 17, 2):
            checked(randsvd(10.0**exponent, mode), name)
    for path in sorted((shared_data / "matrices").glob("*.mtx")):
        checked(np.asarray(mmread(path).todense(), np.float64), name)


@pytest.mark.parametrize("name", PRECISIONS)
def test_every_precision_reaches_double_accuracy(name: str) -> None:
    found = checked(randsvd(1e2, 3), name)
    assert found.stages[0].precision == name
    assert not found.fell_back


def test_the_formats_stand_in_the_order_of_the_published_table() -> None:
    """cuSOLVER's IRS: TF32 and scaled FP16 carry further than BF16, FP32 further than both."""
    reached = {
        name: [not checked(randsvd(c, 3), name).fell_back for c in (1e3, 1e5, 1e7, 1e8)]
        for name in ("fp32", "bf16x2", "tf32", "fp16", "bf16")
    }
    assert reached["fp32"] == [True, True, True, True]
    assert reached["bf16x2"] == [True, True, True, False]
    assert reached["tf32"] == reached["fp16"] == [True, True, False, False]
    assert reached["bf16"] == [True, False, False, False]


def test_gmres_carries_further_than_classical_refinement() -> None:
    a = randsvd(1e8, 3)
    assert checked(a, "dsgesv").fell_back
    found = checked(a, "fp32")
    assert not found.fell_back
    assert found.iterations <= 5
    assert found.stages[0].inner <= 40


def test_without_scaling_half_precision_overflows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control of the balancing: entries of 1e7 are infinite in float16."""
    a = 1e7 * np.random.default_rng(0).standard_normal((N, N))
    assert not checked(a, "fp16").fell_back
    monkeypatch.setattr(
        "fewbits.solvers.dense.prepared_matrix.to_single", lambda a, *_, **__: (a.float(), None, None)
    )
    assert [(s.precision, s.code) for s in checked(a, "fp16").stages] == [("fp16", -2), ("fp64", 0)]
    assert not checked(a, "tf32").fell_back


def test_bfloat16_does_not_refine_classically_from_a_condition_of_ten_thousand() -> None:
    for condition in (1e4, 1e6):
        found = checked(randsvd(condition, 3), "bf16_classical")
        assert found.stages[0].code == -50
        assert found.fell_back
    assert not checked(randsvd(1e2, 3), "bf16_classical").fell_back


def test_split_products_have_the_accuracy_of_their_terms() -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(64, 64, generator=generator) for _ in range(2))
    exact, scale = a.double() @ b.double(), a.abs().double() @ b.abs().double()
    errors = [
        float(((rounded_product(f)(a, b) - exact) / scale).abs().max())
        for f in ("bf16", "bf16x2", "bf16x3", "fp32")
    ]
    assert errors[0] > 2.0**-10 > errors[1] > 2.0**-19 > errors[2]
    assert errors[2] < 4 * errors[3]


@pytest.mark.parametrize(("slices", "bits"), [(2, 15), (3, 22)])
def test_integer_slices_are_exact_products_of_what_they_keep(slices: int, bits: int) -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(65, 65, generator=generator) for _ in range(2))
    a, b = a * torch.logspace(-15, 15, 65)[:, None], b * torch.logspace(15, -15, 65)
    found = rounded_product(f"int8x{slices}")(a, b).double()
    error = (found - a.double() @ b.double()).abs()
    sizes = a.double().abs().amax(1, keepdim=True) * b.double().abs().amax(0, keepdim=True)
    assert float((error / sizes).max()) < 65 * 2.0 ** (1 - bits)
    whole = torch.randint(-100, 101, (65, 65), generator=generator).float()
    assert torch.equal(rounded_product(f"int8x{slices}")(whole, whole), whole @ whole)


def test_the_path_is_told() -> None:
    found = checked(randsvd(1e12, 3))
    assert found.fell_back
    assert [(s.precision, s.code) for s in found.stages] == [("fp32", -1), ("fp64", 0)]
    assert "pivots fall as if the last would be 2^-" in found.stages[0].reason
    assert found.stages[-1].reason == ""
    assert 1e11 < found.condition < 1e15
    assert all(s.factor_seconds > 0 for s in found.stages)


def test_a_stage_that_was_left_says_why_and_shows_its_residuals() -> None:
    found = checked(randsvd(1e8, 3), "dsgesv")
    assert found.stages[0].code == -50
    assert "a step of refinement left" in found.stages[0].reason
    assert len(found.stages[0].history) >= 2
    assert found.history == found.stages[-1].history
    assert found.history[-1] <= math.sqrt(N) * EPS


def test_every_residual_is_watched() -> None:
    seen: list[tuple[str, int, float]] = []
    a, b = randsvd(1e12, 2), np.ones(N)
    found = factorize(a).solve(b, watch=lambda *what: seen.append(what))
    assert found.stages[0].inner > 0
    assert [size for _, _, size in seen] == list(found.history)
    assert [(name, step) for name, step, _ in seen] == [("fp32", i) for i in range(len(seen))]


def test_one_factorization_serves_many_right_hand_sides() -> None:
    a = randsvd(1e3, 3)
    factors = factorize(a, "fp32")
    b = np.random.default_rng(3).standard_normal((N, 5))
    x = factors.solve(b).x
    again = factors.solve(b[:, 2])
    assert again.stages[0].factor_seconds == 0
    assert np.allclose(again.x, x[:, 2], rtol=1e-10)
    assert backward_error(a, x[:, 2], b[:, 2]) < math.sqrt(N) * EPS


def test_a_complex_right_hand_side_after_a_real_one_keeps_its_imaginary_part() -> None:
    a = randsvd(1e2, 3)
    factors = factorize(a, "fp64")
    b = np.random.default_rng(4).standard_normal((N, 2))
    real, whole = factors.solve(b[:, 0]).x, factors.solve(b[:, 0] + 1j * b[:, 1]).x
    assert np.allclose(whole.real, real, rtol=1e-9)
    assert np.allclose(a @ whole.imag, b[:, 1], rtol=1e-9)


@pytest.mark.parametrize(
    "name", ["mx9", "mxint8", "posit16_1", "float(e=5,m=4,bias=15,special=ieee)", "fp16:working=fp32"]
)
def test_any_format_and_any_roles_serve(name: str) -> None:
    found = checked(randsvd(1e2, 3, 100), name)
    assert not found.fell_back
    assert [s.precision for s in found.stages] == [name]


def test_roles_of_a_precision_are_data() -> None:
    assert precision("bf16") == Precision("bf16", "bf16", "classical_gmres", "fp64", "fp64", "fp64")
    one = precision("fp32:factor=int8_channel, refinement=gmres,working=fp32")
    assert (one.factor, one.refinement, one.working) == ("int8_channel", "gmres", "fp32")
    assert precision(one) is one
    for text in (" fp32", "fp32 ", "fp32 : working = fp64"):  # the format fp32 would be emulated
        assert precision(text).factor == "fp32"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("bf17", "the nearest are bf16"),
        ("bf16:refine=gmres", "expected ROLE=VALUE with a role of factor, refinement"),
        ("bf16:refinement", "expected ROLE=VALUE"),
        ("bf16:", "expected ROLE=VALUE"),
        ("bf16:refinement=gmres,working=fp32,refinement=classical", "gives refinement twice"),
        ("bf16:refinement=more", "expected one of none, classical"),
        ("bf16:residual=fp32", "residual='fp32' of a precision; expected one of fp64"),
        ("fp64:factor=bf16", "factors in double precision, and they alone"),
        ("bf16:factor=int(99)", "or a format"),
    ],
)
def test_what_is_no_precision_is_refused(text: str, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        precision(text)


def test_families_batches_complex_and_zeros() -> None:
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(3, 2, 90, 90, generator=generator, dtype=torch.float64)
    b = torch.randn(3, 2, 90, 4, generator=generator, dtype=torch.float64)
    assert torch.allclose(solve(a, b), torch.linalg.solve(a, b), rtol=1e-8)
    c = torch.complex(a[0, 0], a[0, 1])
    d = torch.complex(b[0, 0], b[0, 1])
    assert torch.allclose(solve(c, d, precision="dsgesv"), torch.linalg.solve(c, d), rtol=1e-8)
    assert torch.equal(
        solve(a[0, 0], torch.zeros(90, dtype=torch.float64)), torch.zeros(90, dtype=torch.float64)
    )
    assert isinstance(solve(a[0, 0].numpy(), b[0, 0].numpy()), np.ndarray)
    assert solve(np.empty((0, 0)), np.empty(0)).shape == (0,)
    assert solve(np.array([[4.0]]), np.array([2.0])).tolist() == [0.5]


def test_many_small_systems_are_solved_together_and_judged_one_by_one() -> None:
    a = np.random.default_rng(0).standard_normal((2, 3, 20, 20))
    b = np.random.default_rng(1).standard_normal((2, 3, 20, 2))
    found = solve(a, b)
    assert isinstance(found, np.ndarray)
    assert found.shape == b.shape
    assert np.allclose(a @ found, b, atol=1e-10)
    assert solve(a[:0], b[:0]).shape == (0, 3, 20, 2)
    a[1, 1, :, 3] = a[1, 1, :, 4] * (1 + 1e-15)
    with pytest.warns(RuntimeWarning, match="singular to working precision"):
        solve(a, b)
    a[1, 1, :, 3] = 0
    with pytest.raises(DataError, match="system 4: A is singular: pivot 4 of 20"):
        solve(a, b)


@pytest.mark.parametrize("n", [3, 200])
def test_a_singular_matrix_is_an_error_that_says_so(n: int) -> None:
    a = np.random.default_rng(0).standard_normal((n, n))
    a[:, 1] = 0
    with pytest.raises(DataError, match=f"singular: pivot 2 of {n} is exactly zero"):
        solve(a, np.ones(n))


@pytest.mark.parametrize(
    ("a", "b", "error", "said"),
    [
        (np.ones((2, 3)), np.ones(2), ArgumentError, "expected a square matrix"),
        (np.eye(2), np.ones(3), ArgumentError, r"expected \(2,\) or \(2, k\)"),
        (np.array([[np.nan, 1], [1, 1]]), np.ones(2), DataError, "A holds NaN"),
        (np.eye(2), np.array([1, np.inf]), DataError, "b holds NaN"),
        (np.eye(2, dtype=object), np.ones(2), ArgumentError, "is of dtype object; expected a NumPy array"),
        (np.eye(2, dtype=np.longdouble), np.ones(2), ArgumentError, "is of dtype"),
        ([[1, 2], [3]], np.ones(2), ArgumentError, "is no array"),
        (np.ma.masked_array(np.eye(2)), np.ones(2), ArgumentError, "masked array"),
        (sparse.eye(2), np.ones(2), ArgumentError, r"A is sparse; .*A.toarray\(\)"),
        (torch.eye(2).to_sparse(), np.ones(2), ArgumentError, r"A.to_dense\(\)"),
        (
            np.eye(2),
            sparse.csr_array(np.ones((2, 1))),
            ArgumentError,
            r"b is sparse; .*b.toarray\(\) is one$",
        ),
        (np.eye(2), "two", ArgumentError, "b is of dtype"),
        (np.ones((2, 3, 3)), np.ones((3, 3, 1)), ArgumentError, "for an A of"),
        (np.ones((2, 3, 4)), np.ones((2, 4, 1)), ArgumentError, "expected square matrices"),
        (np.array(3.0), np.ones((2, 2, 2)), ArgumentError, r"A has the shape \(\); expected square matrices"),
        (
            np.ones((2, 3, 3)),
            np.array(1.0),
            ArgumentError,
            r"b has the shape \(\); expected \(2, 3, 'k'\)",
        ),
        (np.full((2, 3, 3), np.nan), np.ones((2, 3, 1)), DataError, "A holds NaN"),
    ],
)
def test_bad_input_is_refused(a: Array, b: Array, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        solve(a, b)


@pytest.mark.parametrize("solver", [solve, factorize, lstsq])
def test_a_precision_that_is_no_name_is_refused(solver: Any) -> None:
    with pytest.raises(ArgumentError, match="precision=None; expected a name or a Precision"):
        solver(np.eye(2), *([] if solver is factorize else [np.ones(2)]), precision=None)


def test_an_unknown_precision_names_the_nearest() -> None:
    with pytest.raises(ArgumentError, match="the nearest are bf16"):
        solve(np.eye(2), np.ones(2), precision="bf17")


def test_products_without_the_units_are_the_same_values(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(40, 40, generator=generator) for _ in range(2))
    here = rounded_product("bf16x2")(a, b)
    monkeypatch.setattr(ops, "bfloat16_product", torch.matmul)
    monkeypatch.setattr("fewbits.kernels.has_bfloat16_products", lambda: False)
    assert torch.allclose(rounded_product("bf16x2")(a, b), here, atol=1e-4)
