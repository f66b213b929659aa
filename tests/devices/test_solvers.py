"""Systems on a device: solved there by torch's linear algebra, as accurately as SciPy's LAPACK on the CPU."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import scipy.sparse
import torch
from scipy import linalg

from fewbits import solvers
from fewbits.errors import ArgumentError, DataError
from fewbits.solvers import lattice
from tests.devices.fake_device import DEVICE, FakeDevice
from tests.fake_group import imagined

PRECISIONS = ("auto", "fp64", "fp32", "bf16x2", "int8x2", "fp16", "mxfp8_e4m3")


def matrix(n: int, kind: type = float, *, definite: bool = False, condition: float = 1e4) -> Any:
    """Return a matrix of this condition number, Hermitian positive definite if that is asked for."""
    rng = np.random.default_rng(n)
    q, r = (
        np.linalg.qr(rng.normal(size=(n, n)) + (1j * rng.normal(size=(n, n)) if kind is complex else 0))[0]
        for _ in range(2)
    )
    a = (q * np.logspace(0, -np.log10(condition), n)) @ (q.conj().T if definite else r)
    return (a + a.conj().T) / 2 if definite else a


def large(device: FakeDevice, n: int) -> list[str]:
    """Return what the host read that has the size of the matrix."""
    return [str(t) for t in device.reads if f"({n}, {n}" in t.what]


def copies(device: FakeDevice) -> list[str]:
    """Return what the host copied; to check that values are finite it waits for one truth."""
    return [str(t) for t in device.reads if not t.what.startswith("a ")]


@pytest.mark.parametrize(
    ("precision", "kind", "definite"),
    [
        *((precision, float, False) for precision in PRECISIONS),
        *((precision, complex, True) for precision in PRECISIONS[:4]),
        ("fp32", complex, False),
        ("bf16x2", float, True),
    ],
)
def test_dense_systems_are_solved_there_as_lapack_solves_them(
    device: FakeDevice, precision: str, kind: type, definite: bool
) -> None:
    n, a = 140, matrix(140, kind, definite=definite)
    b = np.random.default_rng(0).normal(size=(n, 2))
    there = device.put(torch.from_numpy(a))
    assume = "pos" if definite else "gen"
    found = solvers.factorize(there, precision, assume_a=assume).solve(device.put(torch.from_numpy(b)))
    wanted = linalg.solve(a, b, assume_a=assume)
    assert found.converged
    assert found.x.device == DEVICE
    assert large(device, n) == []
    x = device.seen(found.x).numpy()
    assert abs(x - wanted).max() <= 1e-10 * abs(wanted).max()
    own = (abs(b - a @ x) / (abs(a) @ abs(x) + abs(b))).max()
    assert own <= 4e-16 * np.sqrt(n)
    if precision != "auto":
        assert found.path == (precision,)


def test_a_badly_scaled_system_and_a_singular_one(device: FakeDevice) -> None:
    a = matrix(90)
    scales = 2.0 ** np.random.default_rng(1).integers(-300, 300, 90)
    b = a @ np.ones(90) * scales
    found = solvers.solve(
        device.put(torch.from_numpy(a * scales[:, None])), device.put(torch.from_numpy(b)), precision="fp32"
    )
    assert abs(device.seen(found).numpy() - 1).max() <= 1e-10
    nothing = device.put(torch.zeros(4, 4, dtype=torch.float64))
    with pytest.raises(DataError, match="A is singular"):
        solvers.solve(nothing, device.put(torch.ones(4, dtype=torch.float64)))


def test_gradients_and_batches_of_systems_stay_there(device: FakeDevice) -> None:
    a, b = torch.from_numpy(np.stack([matrix(12), matrix(12).T])), torch.ones(2, 12, dtype=torch.float64)
    x = solvers.solve(device.put(a), device.put(b))
    assert torch.allclose(device.seen(x), torch.linalg.solve(a, b), rtol=1e-10)
    one, right = device.put(a[0]).requires_grad_(), device.put(b[0]).requires_grad_()
    solvers.solve(one, right).sum().backward()
    assert right.grad is not None
    assert torch.allclose(device.seen(right.grad), torch.linalg.solve(a[0].T, b[0]), rtol=1e-8)


@pytest.mark.parametrize("shape", [(60, 20), (20, 60)])
@pytest.mark.parametrize("precision", ["auto", "fp32"])
def test_least_squares_are_solved_there(device: FakeDevice, precision: str, shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(2)
    a, b = rng.normal(size=shape), rng.normal(size=shape[0])
    found = solvers.lstsq(
        device.put(torch.from_numpy(a)), device.put(torch.from_numpy(b)), precision=precision
    )
    wanted = linalg.lstsq(a, b)[0]
    assert abs(device.seen(found.x).numpy() - wanted).max() <= 1e-10 * abs(wanted).max()


@pytest.mark.parametrize(
    ("solver", "kind", "precision"),
    [
        *((solver, float, "single") for solver in ("cg", "minres", "gmres", "gcr", "bicgstab", "lsqr")),
        *((solver, complex, "double") for solver in ("cg", "minres", "gmres", "lsqr")),
        *((solver, complex, "quda_half") for solver in ("cg", "gmres")),
    ],
)
def test_krylov_vectors_lie_there(device: FakeDevice, solver: str, kind: type, precision: str) -> None:
    # Operators that hide the CPU are slow: a short system shows as well where its vectors lie.
    a = matrix(20, kind, definite=True, condition=10)
    b = np.random.default_rng(3).normal(size=20)
    method: Callable[..., Any] = getattr(solvers, solver)
    found = method(device.put(torch.from_numpy(a)), device.put(torch.from_numpy(b)), precision=precision)
    assert found.converged
    assert large(device, 20) == []
    assert not any("(20,)" in t.what for t in device.reads)  # no vector either
    wanted = linalg.solve(a, b)
    assert abs(device.seen(found.x).numpy() - wanted).max() <= 1e-6 * abs(wanted).max()


def test_functions_are_called_with_vectors_there(device: FakeDevice) -> None:
    a = matrix(40, definite=True, condition=100)
    there, b = device.put(torch.from_numpy(a)), device.put(torch.ones(40, dtype=torch.float64))
    found = solvers.cg(lambda v: there @ v, b)
    assert abs(device.seen(found.x).numpy() - linalg.solve(a, np.ones(40))).max() <= 1e-7
    with pytest.raises(ArgumentError, match=f"a result on cpu for a vector on {DEVICE}; expected both there"):
        solvers.cg(lambda v: torch.ones(40), b)


def test_residuals_there_have_twice_the_precision(device: FakeDevice) -> None:
    """Judged by exact fractions: |error| is at most 2^-53 |r| and n^2 2^-104 of the sizes."""
    from fractions import Fraction

    from fewbits.kernels.portable.dense.residuals import residuals

    rng = np.random.default_rng(4)
    a = rng.normal(size=(6, 9)) * 2.0 ** rng.integers(-30, 30, (6, 9))
    x = rng.normal(size=9)
    b = a @ x  # so that nearly everything cancels
    r, sizes = residuals(*(device.put(torch.from_numpy(v)) for v in (a, x[None], b[None])))
    for i in range(6):
        exact = Fraction(b[i]) - sum(Fraction(p) * Fraction(q) for p, q in zip(a[i], x, strict=True))
        bound = abs(exact) * Fraction(1, 2**53) + Fraction(device.seen(sizes)[0, i].item()) * 81 / 2**104
        assert abs(Fraction(device.seen(r)[0, i].item()) - exact) <= bound
        assert exact == 0 or abs(Fraction(b[i] - (a[i] * x).sum()) - exact) > bound  # in one float64 it fails


def test_two_devices_are_refused(device: FakeDevice) -> None:
    a, b = torch.eye(4, dtype=torch.float64), torch.ones(4, dtype=torch.float64)
    there = device.put(a)
    remedy = rf"A is on {DEVICE} and b on cpu; a system is solved where both lie: move one of them, as b with"
    for solve in (solvers.solve, solvers.lstsq):
        with pytest.raises(ArgumentError, match=remedy):
            solve(there, b)
        with pytest.raises(ArgumentError, match=remedy):
            solve(there, b.numpy())
    with pytest.raises(ArgumentError, match=remedy):
        solvers.solve(there.expand(2, 4, 4), b.expand(2, 4))
    with pytest.raises(ArgumentError, match=f"A is a matrix on {DEVICE}, and the vectors are on cpu"):
        solvers.cg(there, b)
    with pytest.raises(ArgumentError, match=f"A is a matrix on cpu, and the vectors are on {DEVICE}"):
        solvers.cg(a, device.put(b))
    with pytest.raises(ArgumentError, match=f"x0 is on cpu and b on {DEVICE}; give x0 where b lies"):
        solvers.cg(there, device.put(b), b)
    with pytest.raises(ArgumentError, match=f"M is a matrix on cpu, and the vectors are on {DEVICE}"):
        solvers.cg(there, device.put(b), M=a)
    assert copies(device) == []


def test_what_only_the_cpu_multiplies_is_refused_by_name(device: FakeDevice) -> None:
    b = device.put(torch.ones(64, dtype=torch.float64))
    rows = scipy.sparse.eye_array(64, format="csr")
    for operator, name in (
        (solvers.Stencil(np.ones((4, 4, 5)), np.ones((4, 5, 4)), np.ones((5, 4, 4))), "Stencil"),
        (scipy.sparse.linalg.aslinearoperator(rows), "Function"),
    ):
        with pytest.raises(ArgumentError, match=f"A is a {name}, which multiplies on cpu, .* give b.cpu()"):
            solvers.cg(operator, b)
    for sparse in (rows, solvers.CompressedRows(rows)):
        with pytest.raises(ArgumentError, match=f"A is a matrix on cpu, and the vectors are on {DEVICE}"):
            solvers.cg(sparse, b)
    assert copies(device) == []


def test_low_modes_and_lattices_are_of_the_cpu(device: FakeDevice) -> None:
    there = device.put(torch.eye(16, dtype=torch.float64))
    with pytest.raises(ArgumentError, match=f"A is a matrix on {DEVICE}, and the vectors are on cpu"):
        solvers.low_modes(there, 16, 2)
    fermions = lattice.Wilson(lattice.unit_links((2, 2, 2, 2)), mass=0.5)
    field: Any = device.put(torch.zeros(2, 2, 2, 2, 4, 3, dtype=torch.complex128))
    with pytest.raises(
        ArgumentError, match=r"a spinor field is DeviceTensor; expected complex \(2, 2, 2, 2, 4, 3\)"
    ):
        fermions.solve(field)
    assert copies(device) == []


def test_a_lattice_over_processes_of_a_device_is_refused() -> None:
    from fewbits.solvers.lattice.processes import Processes

    with (
        imagined(2),
        pytest.raises(ArgumentError, match="these solvers run on the CPU: pass group="),
    ):
        Processes((1, 1, 1, 2))


def test_sparse_tensors_elsewhere_are_refused() -> None:
    there = torch.empty(4, 4, dtype=torch.float64, layout=torch.sparse_coo, device="meta")
    with pytest.raises(
        ArgumentError, match=r"A is a sparse tensor on meta, .* give A.cpu\(\) and b.cpu\(\), or"
    ):
        solvers.CompressedRows(there)
