"""Four processes give the iterations and the answer of one."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from fewbits.errors import ArgumentError, DataError, FewbitsError
from fewbits.solvers import (
    Deflation,
    Partitioned,
    bicgstab,
    cg,
    gcr,
    gmres,
    low_modes,
    minres,
    multishift_cg,
)
from tests.processes import joined, run

PATIENCE = 900  # seconds for everything that the processes do, beside other work
PROCESSES = 4
SIDE = 24  # a quarter of the unknowns is a whole number of sites of 24
SOLVERS: dict[str, Any] = {"cg": cg, "bicgstab": bicgstab, "gmres": gmres, "gcr": gcr}
CASES = {
    f"{name} {precision}": (name, precision) for name in SOLVERS for precision in ("double", "fp32/quda_half")
}


def laplacian() -> Any:
    """Return a matrix that each solver meets in some 25 iterations: each sum takes four processes a while."""
    line = sp.diags([-1.0, 2.0, -1.0], [-1, 0, 1], shape=(SIDE, SIDE))
    one = sp.identity(SIDE)
    return (sp.kron(line, one) + sp.kron(one, line) + 2 * sp.identity(SIDE**2)).tocsr()


def magnetic() -> Any:
    """Return the Laplacian in a magnetic field: complex, Hermitian, and scaled far away."""
    turned = laplacian().astype(complex)
    entries = turned.tocoo()
    entries.data *= np.exp(0.3j * (entries.col - entries.row))
    return (1e-100 * entries).tocsr()


def right() -> Any:
    return np.random.default_rng(0).standard_normal(SIDE**2)


def work(rank: int, folder: str) -> None:
    """Solve every case as one of the processes, and leave the parts in the folder."""
    with joined(rank, folder, PROCESSES, PATIENCE):
        a, b = Partitioned.split(laplacian()), right()
        mine = slice(a.start, a.start + a.n)
        told, parts = {}, {}
        for case, (name, precision) in CASES.items():
            found = SOLVERS[name](a, b[mine], precision=precision)
            told[case] = (found.iterations, found.residual, found.converged)
            parts[case] = found.x
        turned = Partitioned.split(magnetic())
        both = np.stack([b[mine] + 1j, 1e150 * b[mine]], 1)
        found = cg(turned, both, precision="fp32/quda_half")
        parts["complex"], told["complex"] = found.x, (0, found.residual, found.converged)
        parts["shifts"] = multishift_cg(a, b[mine], [0.5, 0.0], precision="single")[0].x
        told["shifts"] = (0, 0.0, True)
        broken = b[mine].copy()
        broken[0] = np.nan if rank == 2 else broken[0]
        with pytest.raises(DataError, match="b holds NaN" if rank == 2 else "another process refused"):
            cg(a, broken)
        # A rank whose vectors have a wrong length, or several columns, fails on all at once; none waits.
        short = b[mine][:-1] if rank == 1 else b[mine]
        for options in ({}, {"x0": short}):
            with pytest.raises(FewbitsError, match="has" if rank == 1 else "another process refused"):
                cg(a, b[mine] if options else short, **options)
        uneven = np.stack([b[mine]] * (2 if rank == 3 else 1), 1)
        with pytest.raises(ArgumentError, match="columns"):
            cg(a, uneven)
        rows = laplacian()[mine]
        rows.data[0] = np.inf if rank == 1 else rows.data[0]
        with pytest.raises(DataError, match="A holds NaN" if rank == 1 else "process 1 refused"):
            Partitioned(rows)
        with pytest.raises(FewbitsError, match="rows are a str" if rank == 3 else "process 3 refused"):
            Partitioned("rows" if rank == 3 else laplacian()[mine])
        with pytest.raises(ArgumentError, match="expected a square matrix"):
            Partitioned(laplacian()[mine][:, 1:] if rank == 0 else laplacian()[mine])
        with pytest.raises(ArgumentError, match="expected a square matrix"):
            Partitioned(laplacian()[mine][:, 1:])
        np.savez(Path(folder) / f"{rank}.npz", **parts)
        (Path(folder) / f"{rank}.json").write_text(json.dumps(told))


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """What each process was told, and the solutions put together."""
    folder = tmp_path_factory.mktemp("four")
    run(work, folder, PROCESSES, PATIENCE)
    told = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(PROCESSES)]
    parts = [np.load(folder / f"{rank}.npz") for rank in range(PROCESSES)]
    return told, {case: np.concatenate([p[case] for p in parts]) for case in told[0]}


@pytest.mark.parametrize("case", CASES)
def test_four_processes_solve_as_one_does(
    case: str, four: tuple[list[dict[str, Any]], dict[str, Any]]
) -> None:
    told, x = four
    name, precision = CASES[case]
    alone = SOLVERS[name](laplacian(), right(), precision=precision)
    iterations, residual, converged = told[0][case]
    assert all(one[case] == told[0][case] for one in told)  # every process took the same decisions
    assert converged
    assert alone.converged
    # Sums are ordered anew: the last digits differ, with them what is rounded, and BiCGstab amplifies that.
    part = 0.2 if name == "bicgstab" else 0.05
    few = 1 if precision == "double" and name != "bicgstab" else part * alone.iterations + 2
    assert abs(iterations - alone.iterations) <= few
    assert residual <= 1.000001e-10
    assert np.linalg.norm(right() - laplacian() @ x[case]) <= 1.0001e-10 * np.linalg.norm(right())
    assert np.linalg.norm(x[case] - alone.x) <= 1e-8 * np.linalg.norm(alone.x)


def test_a_complex_matrix_is_spread_too(four: tuple[list[dict[str, Any]], dict[str, Any]]) -> None:
    told, x = four
    assert all(one["complex"][2] for one in told)
    for column, b in zip(x["complex"].T, (right() + 1j, 1e150 * right()), strict=True):
        assert np.linalg.norm(b - magnetic() @ column) <= 1.0001e-10 * np.linalg.norm(b)


def test_shifts_are_solved_together_too(four: tuple[list[dict[str, Any]], dict[str, Any]]) -> None:
    x = four[1]["shifts"]
    assert np.linalg.norm(right() - laplacian() @ x - 0.5 * x) <= 1.0001e-10 * np.linalg.norm(right())


def opposed(sign: float) -> Any:
    """Return [[4, S], [sign S, 4]] for a symmetric S: what two processes tell each other may cancel."""
    s = np.random.default_rng(1).standard_normal((6, 6))
    s = (s + s.T) / 8
    return sp.csr_array(np.block([[4 * np.eye(6), s], [sign * s, 4 * np.eye(6)]]))


def refuse_together(rank: int, a: Any, b: Any) -> None:
    """Give one of two processes what both have to refuse; a process that goes on alone would wait."""
    modes = np.eye(6, 3)
    broken = np.where(modes == 1, np.nan, modes) if rank else modes
    with pytest.raises(
        DataError, match="modes holds NaN" if rank else "another process refused its part of the"
    ):
        Deflation(a, broken)
    with pytest.raises(ArgumentError, match="modes: 2 columns in one process and 3 in another"):
        Deflation(a, modes[:, : 3 - rank])
    with pytest.raises(ArgumentError, match="modes have 13 columns for 12 unknowns"):
        Deflation(a, np.eye(6, 13))
    with pytest.raises(
        ArgumentError, match=rf"M is given {'here and' if rank else 'in another process and'} not"
    ):
        cg(a, b, M=np.eye(6) if rank else None)
    with pytest.raises(DataError, match="M times a vector holds NaN"):
        cg(a, b, M=lambda v: v * (np.nan if rank else 1.0))
    far = Partitioned.split(sp.diags([1e300, 1e300, 1.0, 1e-20]).tocsr())
    with pytest.raises(DataError, match="holds values more than 1e300 apart"):
        cg(far, np.ones(2))


def work_of_two(rank: int, folder: str) -> None:
    """Give two processes what they have to refuse or to agree on."""
    with joined(rank, folder, 2, PATIENCE):
        a, b = Partitioned.split(opposed(1.0)), np.arange(1.0, 13)
        mine, nonsymmetric = slice(a.start, a.start + a.n), Partitioned.split(opposed(-1.0))
        for symmetric_only in (cg, minres, lambda a, b: multishift_cg(a, b, [0.5])):
            with pytest.raises(ArgumentError, match="A is not symmetric"):
                symmetric_only(nonsymmetric, b[mine])
        with pytest.raises(ArgumentError, match=r"A is spread over processes.*modes\[A.start"):
            low_modes(a, a.n, 2)
        modes = low_modes(opposed(1.0), 12, 8)[mine]  # of which a process has fewer rows than columns
        modes = modes.to(torch.complex64) if rank else modes
        deflated = cg(a, torch.from_numpy(b[mine]), deflation=Deflation(a, modes, None))
        # One process's part of b is complex, and so are both parts of x.
        right = b[mine] + 1j if rank else b[mine]
        both = [cg(a, right).x, gcr(nonsymmetric, right, x0=b[mine] if rank else None).x]
        assert all(x.dtype == np.complex128 for x in both)
        given = opposed(1.0).toarray() if rank else opposed(1.0)
        with pytest.raises(FewbitsError, match="rows are a ndarray" if rank else "process 1 refused"):
            Partitioned.split(given)
        refuse_together(rank, a, b[mine])
        twice = sp.coo_array((np.full(4, 100, np.int8), ([0, 0, 1, 1], [0, 0, 1, 1])), shape=(2, 2))
        assert cg(Partitioned.split(twice), np.array([200.0])).x == [1.0]  # 100 + 100 is -56 in int8
        np.savez(Path(folder) / f"{rank}.npz", deflated=deflated.x, symmetric=both[0], nonsymmetric=both[1])


def test_what_two_processes_refuse_or_agree_on(tmp_path: Path) -> None:
    run(work_of_two, tmp_path, 2, PATIENCE)
    parts = [np.load(tmp_path / f"{rank}.npz") for rank in range(2)]
    found = {name: np.concatenate([p[name] for p in parts]) for name in parts[0]}
    b = np.arange(1.0, 13)
    turned = b + 1j * (np.arange(12) >= 6)
    for name, sign, right_side in (
        ("deflated", 1.0, b),
        ("symmetric", 1.0, turned),
        ("nonsymmetric", -1.0, turned),
    ):
        assert np.allclose(found[name], np.linalg.solve(opposed(sign).toarray(), right_side), rtol=1e-8), name
    with pytest.raises(ArgumentError, match="A is not symmetric"):
        cg(opposed(-1.0), b)


def test_without_a_process_group_it_is_refused() -> None:
    with pytest.raises(ArgumentError, match="no process group"):
        Partitioned(laplacian())
    with pytest.raises(ArgumentError, match="no process group"):
        Partitioned.split(laplacian())
