"""A lattice split over processes: the bits of one process's answer, what travels, and what is refused."""

import math
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from fewbits.errors import ArgumentError, DataError
from fewbits.kernels.bits.lattice import added
from fewbits.solvers import lattice
from fewbits.solvers.lattice.domain import Domain
from fewbits.solvers.lattice.sums import exact_parts
from fewbits.solvers.precision import krylov_precision
from fewbits.train import launch
from tests.copies import start_copies
from tests.processes import joined, run

SHAPE = (8, 4, 4, 8)
LINKS = lattice.smooth_links(SHAPE, 0.4, seed=2)
PATIENCE = 900.0
SPLITS = {2: (2, 1, 1, 1), 4: (2, 1, 1, 2)}
RTOL = 1e-6
# Each operator in each precision, on all sites and on the even ones; not every combination.
CASES = {
    "wilson": (("half", False), ("half", True), ("double", True)),
    "clover": (("double", False), ("half", True)),
    "staggered": (("half", False), ("half", True), ("double", True)),
}
SITE = {"double": (192, 48), "half": (52, 16), "quarter": (28, 10)}  # bytes of a Wilson and a staggered site


def spinor(seed: int = 0) -> Any:
    generator = np.random.default_rng(seed)
    return generator.standard_normal((*SHAPE, 4, 3)) + 1j * generator.standard_normal((*SHAPE, 4, 3))


def operators(**where: Any) -> dict[str, Any]:
    return {
        "wilson": lattice.Wilson(LINKS, mass=0.5, **where),
        "clover": lattice.Clover(LINKS, mass=0.5, boundary=(-1, 1, 1, -1), **where),
        "staggered": lattice.Staggered(LINKS, mass=0.5, **where),
    }


def right(kind: str) -> Any:
    return spinor()[..., 0, :] if kind == "staggered" else spinor()


def solutions(**where: Any) -> dict[str, Any]:
    """Return what each operator gives for the sites of this process."""
    found: dict[str, Any] = {}
    for kind, one in operators(**where).items():
        b = right(kind)[one.part]
        found[f"{kind} apply"], found[f"{kind} adjoint"] = one.apply(b), one.apply_adjoint(b)
        for precision, even_odd in CASES[kind]:
            solution = one.solve(b, precision=precision, even_odd=even_odd, rtol=RTOL)
            case = f"{kind} {precision}{' even-odd' * even_odd}"
            found[case] = solution.x
            evidence = (solution.iterations, solution.reliable_updates, solution.converged)
            found[f"{case}: evidence"] = np.array([*evidence, solution.residual, *solution.history])
        if kind == "wilson":
            found["wilson bicgstab"] = one.solve(b, precision="half", method="bicgstab", rtol=RTOL).x
        if kind == "staggered":
            vectors = lattice.RitzVectors(2, solves=1)
            for turn in range(2):
                found[f"staggered deflated {turn}"] = one.solve(b, deflation=vectors, rtol=RTOL).x
    return found


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    kept = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, kept)


def traffic(kind: str, precision: str, split: Any, *, even_odd: bool) -> tuple[int, int]:
    """Return bytes of halos as the operator counts them and as torch is given them, for products with H."""
    one, given = operators(split=split)[kind], list[int]()
    normal = one.normal
    if even_odd:
        normal = one.even_normal if kind == "staggered" else one.normal.even_odd_operator()
    vectors = normal.cg_vectors(krylov_precision(precision))
    zeros = torch.zeros(normal.n, dtype=torch.float64)
    vectors.load(zeros)
    before = one.sent.halos
    real = dist.P2POp

    def counted(kind_: Any, tensor: torch.Tensor, *rest: Any) -> Any:
        given.append(tensor.nbytes if kind_ is dist.isend else 0)
        return real(kind_, tensor, *rest)

    with replaced(dist, "P2POp", counted):
        vectors.update_direction(1.0, 0.0)
        vectors.update_residual(0.5)
    return one.sent.halos - before, sum(given)


def wrong(split: Any) -> dict[str, Any]:
    """Return products with a halo that is not exchanged, or of the wrong sign, of links or of vectors."""
    fill, found = Domain.fill, dict[str, Any]()

    def none(domain: Any, field: Any, parity: Any = None) -> None:
        del domain, field, parity

    def negative(domain: Any, field: Any, parity: Any = None) -> None:
        fill(domain, field, parity)
        field.values[domain.groups :] *= -1

    for name, other in (("not exchanged", none), ("of the wrong sign", negative)):
        for kind, one in operators(split=split).items():
            b = right(kind)[one.part]
            one.apply(0 * b)  # its links are exchanged now, and a halo of zeros
            with replaced(Domain, "fill", other):
                found[f"vectors {name}: {kind}"] = one.apply(b)
        with replaced(Domain, "fill", other):
            ones = operators(split=split)
            for one in ones.values():
                one.normal.exact_hops()
        for kind, one in ones.items():
            found[f"links {name}: {kind}"] = one.apply(right(kind)[one.part])
    return found


class NoNumber(float):
    """A number that raises what is no error of fewbits."""

    def __float__(self) -> float:
        raise TypeError


def refused(call: Callable[[], Any]) -> str:
    try:
        call()
    except (ArgumentError, DataError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def refusals(rank: int) -> dict[str, str]:
    """Return what two processes are told of bad input; where one alone is wrong, that is the second."""
    odd, six = lattice.unit_links((6, 2, 2, 2)), lattice.unit_links((4, 4, 4, 6))
    one = lattice.Wilson(LINKS, mass=0.5, split=(2, 1, 1, 1))
    b, two = spinor()[one.part], (2, 1, 1, 1)
    short, second = lattice.Wilson(six, mass=0.5, split=two), rank == 1
    return {
        "processes": refused(lambda: lattice.Wilson(LINKS, mass=0.5, split=(2, 1, 1, 2))),
        "split": refused(lambda: lattice.Clover(LINKS, mass=0.5, split=(2, 1))),
        "divisible": refused(lambda: lattice.Wilson(lattice.unit_links((3, 2, 2, 2)), mass=0.5, split=two)),
        "odd": refused(lambda: lattice.Wilson(odd, mass=0.5, split=two)),
        "one site": refused(lambda: lattice.Wilson(odd, mass=0.5, split=(1, 2, 1, 1))),
        "staggered": refused(lambda: lattice.Staggered(six, mass=0.5, split=(1, 1, 1, 2))),
        "multiple": refused(lambda: lattice.Staggered(lattice.unit_links((4, 4, 4, 4)), mass=0.5, split=two)),
        "even-odd": refused(lambda: short.solve(np.ones((2, 4, 4, 6, 4, 3), complex), even_odd=True)),
        "whole b": refused(lambda: one.solve(spinor())),
        "nan": refused(lambda: one.solve(b * np.nan if second else b)),
        "mass": refused(lambda: lattice.Wilson(LINKS, mass=0.5 + rank, split=two)),
        "rtol": refused(lambda: one.solve(b, rtol=0.1 if second else 0.01)),
        "other split": refused(
            lambda: lattice.Wilson(LINKS, mass=0.5, split=(1, 2, 1, 1) if second else two)
        ),
        "type": refused(lambda: lattice.Wilson(LINKS, mass=NoNumber() if second else 0.5, split=two)),
        "deflation": refused(
            lambda: one.solve(b, deflation=lattice.RitzVectors(2) if second else None, maxiter=1)
        ),
        "apply": refused(lambda: one.apply(b[:1] if second else b)),
    }


def work(size: int, folder: str) -> None:
    """Be one of the processes, and leave everything in the folder."""
    rank, split = dist.get_rank(), SPLITS[size]
    found = {**solutions(split=split), **wrong(split)}
    for kind in ("wilson", "staggered"):
        for precision in SITE:
            for even_odd in (False, True):
                name = f"traffic {kind} {precision} {even_odd}"
                found[name] = np.array(traffic(kind, precision, split, even_odd=even_odd))
    if size == 2:
        found["refusals"] = np.array(list(refusals(rank).items()))
    np.savez(Path(folder) / f"{rank}.npz", **found)


def work_of_four(rank: int, folder: str) -> None:
    with joined(rank, folder, 4, PATIENCE):
        work(4, folder)


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], list[Any]]:
    """What two processes left that the library's own function starts, or four that others start."""

    @cache
    def of(size: int) -> list[Any]:
        folder = tmp_path_factory.mktemp(str(size))
        if size == 2:
            with replaced(launch, "start_processes", start_copies):
                launch.start(2, partial(work, 2, str(folder)))
        else:
            run(work_of_four, folder, 4, PATIENCE)
        return [dict(np.load(folder / f"{rank}.npz")) for rank in range(size)]

    return of


@pytest.fixture(scope="module")
def alone() -> dict[str, Any]:
    return solutions()


def whole(parts: list[Any], name: str) -> Any:
    """Return a field of the whole lattice from the parts of 2 or 4 processes, along T and then along X."""
    if len(parts) == 2:
        return np.concatenate([p[name] for p in parts], 0)
    lines = [np.concatenate([p[name] for p in parts[i : i + 2]], 3) for i in (0, 2)]
    return np.concatenate(lines, 0)


@pytest.mark.parametrize("size", SPLITS)
def test_all_bits_are_those_of_one_process(
    size: int, found: Callable[[int], list[Any]], alone: dict[str, Any]
) -> None:
    for name, expected in alone.items():
        if name.endswith("evidence"):  # the same decisions, and the same residuals, in every process
            assert all(np.array_equal(part[name], expected) for part in found(size)), name
            assert expected[2], name
        elif "deflated" in name:  # small matrices are added in the order of processes
            assert np.abs(whole(found(size), name) - expected).max() < 1e-4, name
        else:
            assert np.array_equal(whole(found(size), name), expected), name


@pytest.mark.parametrize("size", SPLITS)
def test_without_its_halo_no_product_is_right(
    size: int, found: Callable[[int], list[Any]], alone: dict[str, Any]
) -> None:
    names = [name for name in found(size)[0] if name.startswith(("vectors ", "links "))]
    assert len(names) == 12
    for name in names:
        expected = alone[f"{name.split()[-1]} apply"]
        assert np.abs(whole(found(size), name) - expected).max() > 0.1, name


@pytest.mark.parametrize("precision", SITE)
@pytest.mark.parametrize("even_odd", [False, True])
@pytest.mark.parametrize("kind", ["wilson", "staggered"])
@pytest.mark.parametrize("size", SPLITS)
def test_what_travels_are_the_sites_of_the_faces_as_they_are_stored(
    size: int, kind: str, even_odd: bool, precision: str, found: Callable[[int], list[Any]]
) -> None:
    faces = {2: 2 * (4 * 4 * 8), 4: 2 * (4 * 4 * 4) + 2 * (4 * 4 * 4)}  # sites of a process's faces
    each = SITE[precision][kind == "staggered"]
    # Two products with H, or four of half the sites each; staggered fermions go there and back once.
    products = 1.0 if even_odd and kind == "staggered" else 2.0
    for part in found(size):
        counted, given = part[f"traffic {kind} {precision} {even_odd}"]
        assert counted == given == products * faces[size] * each


def test_what_cannot_be_split_is_refused_in_every_process(found: Callable[[int], list[Any]]) -> None:
    first, second = (dict(part["refusals"]) for part in found(2))
    for name, said in {
        "processes": "split=(2, 1, 1, 2) is for 4 processes, and the group has 2",
        "split": "split=(2, 1); expected the number of processes along T, Z, Y and X",
        "divisible": "the 3 sites along T are no multiple of 2",
        "odd": "leaves 3 of 6 sites along T to a process; expected an even number",
        "one site": "leaves 1 of 2 sites along Z to a process; expected an even number, at least 2",
        "staggered": "leaves 3 of 6 sites along X",
        "multiple": "expected multiples of 4 along the axes that are split",
        "even-odd": "even_odd=True on a lattice of (2, 4, 4, 6) sites in each process",
        "whole b": "expected complex (4, 4, 4, 8, 4, 3)",
        "mass": "processes disagree: split=(2, 1, 1, 1), Wilson of links",
        "rtol": "processes disagree: split=(2, 1, 1, 1), solve with",
        "other split": "processes disagree: split=",
        "deflation": "processes disagree",
    }.items():
        assert said in first[name], name
        assert said in second[name], name
    assert first["nan"].startswith("ArgumentError: process 1 refused its part: the spinor field holds NaN")
    assert first["type"].startswith("ArgumentError: process 1 refused its part: ")
    assert second["type"].startswith("TypeError")
    assert second["nan"].startswith("DataError: the spinor field holds NaN")
    assert "process 1 refused its part: a spinor field is complex128 (1, 4, 4, 8, 4, 3)" in first["apply"]


def test_without_a_process_group_it_is_refused() -> None:
    with pytest.raises(ArgumentError, match=r"split=\(2, 1, 1, 1\) and no process group"):
        lattice.Wilson(LINKS, mass=0.5, split=(2, 1, 1, 1))
    with pytest.raises(ArgumentError, match=r"split=\(0, 1, 1, 1\); expected"):
        lattice.Staggered(LINKS, mass=0.5, split=(0, 1, 1, 1))


def test_parts_add_up_to_the_exact_sum_in_any_order() -> None:
    generator = np.random.default_rng(0)
    for spread in (0, 30, 300):
        v = generator.standard_normal(1000) * 2.0 ** generator.integers(-spread, spread + 1, 1000)
        v = np.concatenate([v, -v[:500], [5e-324, 1e-310]])
        pieces = [exact_parts(piece) for piece in np.split(generator.permutation(v), [1, 300, 900])]
        assert math.fsum(x for piece in pieces for x in piece) == math.fsum(v)
    assert exact_parts(np.zeros(0)) == exact_parts(np.zeros(5)) == (0.0, 0.0, 0.0)
    assert np.isnan(exact_parts(np.array([1.0, np.nan]))[0])
    assert exact_parts(np.array([1.0, np.inf]))[0] == np.inf
    assert added(([1e308, 1e308], [-1e308, -1e308, 1.0], [np.inf, -np.inf]))[:2] == (np.inf, -np.inf)
    assert np.isnan(added(([np.inf, -np.inf],))[0])


@pytest.mark.slow
def test_torchrun_starts_it_too(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        "import numpy as np, torch.distributed as dist\n"
        "from fewbits.solvers import lattice\n"
        "dist.init_process_group('gloo')\n"
        "links = lattice.smooth_links((8, 4, 4, 4), 0.4, seed=0)\n"
        "b = np.random.default_rng(0).standard_normal((8, 4, 4, 4, 4, 3)) + 0j\n"
        "wilson = lattice.Wilson(links, mass=0.5, split=(2, 1, 1, 1))\n"
        "x = wilson.solve(b[wilson.part], even_odd=True).x\n"
        "alone = lattice.Wilson(links, mass=0.5).solve(b, even_odd=True).x\n"
        "assert np.array_equal(x, alone[wilson.part])\n"
        "dist.destroy_process_group()\n"
    )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    subprocess.run([*command, str(program)], check=True, env=environment, timeout=PATIENCE)
