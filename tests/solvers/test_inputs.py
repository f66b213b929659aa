"""What can be given to a dense solver, and what comes back: families, shapes, gradients, batches."""

from typing import Any

import numpy as np
import pytest
import torch

from fewbits.errors import ArgumentError
from fewbits.kernels.arrays import dense
from fewbits.solvers import bicgstab, cg, factorize, gcr, gmres, lsqr, lstsq, minres, solve
from fewbits.solvers.dense import plan
from tests.cases import pairs

# PyTorch's own decompositions for forward mode are scripts, which it warns of.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "BEFORE_DOUBLE", {64: ("fp32",)})


def torch_system(n: int, k: int | None = None, dtype: torch.dtype = torch.float64) -> Any:
    generator = torch.Generator().manual_seed(n)
    a = torch.randn(n, n, generator=generator, dtype=dtype) + 2 * n**0.5 * torch.eye(n)
    b = torch.randn(*(n, k) if k else (n,), generator=generator, dtype=dtype)
    return a, b


def test_integers_lists_and_arrays_that_cannot_be_written_are_taken() -> None:
    a, b = [[2, 1], [1, 3]], [3, 5]
    expected = np.linalg.solve(a, b)
    frozen = np.array(a)
    frozen.flags.writeable = False
    for given in (
        a,
        np.array(a),
        np.array(a, np.int8),
        np.array(a, np.float16),
        frozen,
        np.array(a)[::-1][::-1],
    ):
        for right in (b, np.array(b), np.array(b, np.uint8), tuple(b)):
            found = solve(given, right)
            assert isinstance(found, np.ndarray)
            assert np.allclose(found, expected)
    assert np.allclose(solve(np.asfortranarray(a), np.broadcast_to(3.0, 2)), np.linalg.solve(a, [3, 3]))
    assert solve(torch.tensor(a), torch.tensor(b)).dtype == torch.float64
    assert np.allclose(solve(np.array(a, dtype=">f8"), b), expected)
    assert np.allclose(solve(np.eye(2, dtype=bool), b), b)
    assert np.allclose(solve(np.array(a) * 1j, b), expected / 1j)
    left, right = ((torch.tensor(v) * -1j).to(torch.complex128).conj().imag for v in (a, b))
    assert left.is_neg()  # PyTorch then reads memory with a sign, and gives NumPy none of it
    for found in (solve(left, right), factorize(left).solve(right).x, lstsq(left, right).x):
        assert np.allclose(found, expected)


def test_a_matrix_without_rows_has_an_empty_solution() -> None:
    nothing = np.zeros((0, 0))
    for b in (np.zeros(0), np.zeros((0, 3))):
        for dtype in (float, complex):
            assert factorize(nothing.astype(dtype)).solve(b).x.shape == b.shape
        for krylov in (cg, minres, bicgstab, gmres, gcr, lsqr):
            assert krylov(nothing, b).x.shape == b.shape


@pytest.mark.parametrize(("m", "n"), [(0, 0), (3, 0), (0, 3)])
def test_a_system_without_numbers_has_a_solution_for_each_column(m: int, n: int) -> None:
    b = np.ones((m, 2))
    b[:, 1] = 0
    solvers = [lambda a, b: factorize(a).solve(b), cg] if m == n else []
    for solver in (lstsq, lsqr, *solvers):
        whole = solver(np.zeros((m, n)), b)
        assert [column.x.tolist() for column in whole.columns] == [[0.0] * n] * 2
        # Nothing of b is reached, as numpy.linalg.lstsq returns zeros.
        assert [column.residual for column in whole.columns] == [float(m > 0), 0.0]
        assert whole.residual == solver(np.zeros((m, n)), b[:, 0]).residual == float(m > 0)
        assert solver(np.zeros((m, n)), b[:, :0]).residual == 0
        assert all(column.converged and column.columns == () for column in whole.columns)


@pytest.mark.parametrize("front", [(), (3,), (0,)])
@pytest.mark.parametrize(("n", "k"), [(0, 2), (3, 0)])
def test_what_is_empty_is_of_the_dtype_of_a_whole_solution(n: int, k: int, front: tuple[int, ...]) -> None:
    a, b = np.broadcast_to(np.eye(n), (*front, n, n)), np.zeros((*front, n, k))
    for left in (a, 1j * a):
        for right in (b, 1j * b):
            expected = np.linalg.solve(left, right)
            assert solve(left, right).dtype == expected.dtype
            assert solve(left, right).shape == expected.shape
            if not front:
                assert factorize(left)(right).dtype == factorize(left).solve(right).x.dtype == expected.dtype


@pytest.mark.parametrize("precision", ["fp64", "fp32"])
@pytest.mark.parametrize("scale", [1.0, 2.0**90])
def test_small_entries_beside_huge_ones_are_kept(precision: str, scale: float) -> None:
    a, b = np.diag([1.0, scale, 1.0]), np.array([1e300, 1e-30, -1e-100])
    assert np.array_equal(solve(a, b, precision=precision), b / a.diagonal())


@pytest.mark.parametrize("n", [5, 80])
@pytest.mark.parametrize(
    ("front", "sides"),
    [
        ((3,), (3, -1)),
        ((3,), (3, -1, 2)),
        ((3,), (-1,)),
        ((2, 3), (2, 3, -1)),
        ((2, 3), (3, -1, 1)),
        ((), (4, -1, 2)),
        ((1,), (4, -1, 2)),
    ],
)
def test_shapes_are_those_of_torch(n: int, front: tuple[int, ...], sides: tuple[int, ...]) -> None:
    generator = torch.Generator().manual_seed(0)
    a = torch.randn(*front, n, n, generator=generator, dtype=torch.float64) + 2 * n**0.5 * torch.eye(n)
    b = torch.randn(*(n if s < 0 else s for s in sides), generator=generator, dtype=torch.float64)
    expected = torch.linalg.solve(a, b)
    found = solve(a, b)
    assert found.shape == expected.shape
    assert torch.allclose(found, expected, rtol=1e-10)
    assert isinstance(solve(a.numpy(), b.numpy()), np.ndarray)
    assert np.allclose(solve(a.tolist(), b.tolist()), expected)


@pytest.mark.parametrize(
    ("precision", "dtype", "k"),
    pairs(("fp64", "fp32", "bf16x2"), (torch.float64, torch.complex128), (None, 2)),
)
def test_gradients_are_those_of_finite_differences(precision: str, dtype: torch.dtype, k: int | None) -> None:
    a, b = torch_system(3, k, dtype)
    a, b = a.requires_grad_(), b.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda a, b: solve(a, b, precision=precision), (a, b), check_forward_ad=True
    )
    assert torch.autograd.gradgradcheck(lambda a, b: solve(a, b, precision=precision), (a, b))


@pytest.mark.parametrize("kind", ["auto", "Cholesky", "kept", "full"])
def test_gradients_come_from_the_kept_factors(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = torch_system(90)
    a = a + a.mH
    a, b = a.requires_grad_(), b.requires_grad_()
    expected = torch.autograd.grad(torch.linalg.solve(a, b).square().sum(), (a, b))
    made = []
    for module, name in ((torch.linalg, "lu_factor_ex"), (dense, "factorize_lu")):
        whole = getattr(module, name)
        monkeypatch.setattr(module, name, lambda a, w=whole, **k: made.append(len(a)) or w(a, **k))
    if kind == "kept":
        x = factorize(a)(b)
    elif kind == "full":
        x = factorize(a).solve(b).x
    else:
        x = solve(a, b, assume_a="pos" if kind == "Cholesky" else "gen")
    found = torch.autograd.grad(x.square().sum(), (a, b))
    assert all(torch.allclose(one, other, rtol=1e-9) for one, other in zip(found, expected, strict=True))
    assert made.count(90) == (kind != "Cholesky")


def test_a_real_matrix_has_a_real_gradient_with_complex_sides_and_float32_has_its_own() -> None:
    a, _ = torch_system(70)
    b = torch.randn(70, 2, dtype=torch.complex128)
    for dtype in (torch.float64, torch.float32):
        given = a.to(dtype).clone().requires_grad_()
        solve(given, b).abs().square().sum().backward()
        wide = a.to(dtype).double().clone().requires_grad_()
        torch.linalg.solve(wide + 0j, b).abs().square().sum().backward()
        assert given.grad is not None
        assert wide.grad is not None
        assert given.grad.dtype == dtype
        assert torch.allclose(given.grad.double(), wide.grad, rtol=1e-5)


def test_a_gradient_that_would_be_lost_is_refused() -> None:
    a, b = torch_system(5)
    with pytest.raises(ArgumentError, match=r"pass b as a torch tensor, or A.detach\(\)"):
        solve(a.requires_grad_(), b.numpy())


@pytest.mark.parametrize("n", [4, 70])
def test_torch_func_serves(n: int) -> None:
    a, b = torch_system(n)
    many, sides = torch.stack([a, 2 * a, a.T]), torch.stack([b, b + 1, b - 1])
    expected = torch.linalg.solve(many, sides)
    assert torch.allclose(torch.func.vmap(solve)(many, sides), expected)
    assert torch.allclose(torch.func.vmap(solve, (0, None))(many, b), torch.linalg.solve(many, b))
    assert torch.allclose(torch.func.vmap(solve, (None, 0))(a, sides), torch.linalg.solve(a, sides.T).T)
    assert torch.allclose(torch.func.vmap(factorize(a))(sides), torch.linalg.solve(a, sides.T).T)

    def loss(solver: Any) -> Any:
        return lambda a, b: solver(a, b).square().sum()

    for which in (0, 1):
        ours = torch.func.vmap(torch.func.grad(loss(solve), which))(many, sides)
        theirs = torch.func.vmap(torch.func.grad(loss(torch.linalg.solve), which))(many, sides)
        assert torch.allclose(ours, theirs, rtol=1e-8)
    tangent = torch.func.jvp(solve, (a, b), (a.T.contiguous(), b.flip(0)))[1]
    assert torch.allclose(
        tangent, torch.func.jvp(torch.linalg.solve, (a, b), (a.T.contiguous(), b.flip(0)))[1]
    )
    assert torch.allclose(torch.func.jacrev(solve, 1)(a, b), torch.linalg.inv(a), rtol=1e-8)


@pytest.mark.parametrize("uneven", [1.0, 1e6])
def test_torch_func_serves_batches(uneven: float) -> None:
    a, b = torch_system(4)
    many = torch.stack([a, uneven ** torch.tensor([[-1.0], [0], [1], [0]]) * a, a.T])
    sides = torch.stack([b, b + 1, b - 1])
    for transform in (
        lambda solver: torch.func.vmap(solver, (0, None))(torch.stack([many, 2 * many]), sides),
        lambda solver: torch.func.vmap(solver, (None, 0))(many, torch.stack([sides, sides.flip(0)])),
        lambda solver: torch.func.vmap(lambda s: s * solver(many, sides))(torch.ones(2)),
        lambda solver: torch.func.jacfwd(solver)(many, sides),
        lambda solver: torch.func.jacrev(solver, 1)(many, sides),
        lambda solver: torch.func.jvp(solver, (many, sides), (many.mT, sides.flip(0)))[1],
    ):
        assert torch.allclose(transform(solve), transform(torch.linalg.solve), rtol=1e-8)


@pytest.mark.parametrize("precision", ["fp64", "fp32"])
def test_a_solution_outside_the_range_is_said_and_the_matrix_is_not_called_singular(precision: str) -> None:
    a = np.random.default_rng(0).standard_normal((50, 50))
    b = np.ones((50, 2)) * [1.0, 0.0]  # zero has a solution of zeros, which loses nothing
    for of_a, of_b, told in (
        (1e-300, 1e300, "^x holds NaN or infinity: the solution exceeds"),
        (1e300, 1e-300, "^x is not a solution: it, or what counts of it, lies below the normal numbers"),
    ):
        with pytest.warns(RuntimeWarning, match=told):
            found = factorize(of_a * a, precision).solve(of_b * b)
        assert not found.converged
    found = factorize(1e300 * a, precision).solve(b)  # 1e-300 is a normal number
    assert found.converged
    assert found.x[:, 0] * 1e300 == pytest.approx(np.linalg.solve(a, b[:, 0]), rel=1e-9)
