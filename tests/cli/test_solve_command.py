"""``fewbits solve``."""

import json
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse
from scipy.io import mmread, mmwrite

from fewbits.cli.main import run


@pytest.fixture
def system(tmp_path: Path) -> Path:
    """Return a folder with A.mtx and b.mtx, whose solution is 1, 2, 3, ..."""
    a = np.random.default_rng(0).standard_normal((60, 60))
    mmwrite(tmp_path / "A.mtx", sparse.csr_array(a))
    mmwrite(tmp_path / "b.mtx", (a @ np.arange(1.0, 61.0))[:, None])
    return tmp_path


def test_it_solves_and_writes_the_solution(system: Path, capsys: pytest.CaptureFixture[str]) -> None:
    given = ["solve", str(system / "A.mtx"), str(system / "b.mtx"), "--precision", "bf16x2"]
    assert run([*given, "--out", str(system / "x.mtx"), "--json", str(system / "table.json")]) == 0
    assert "bf16x2: 2" in capsys.readouterr().out
    assert np.allclose(mmread(system / "x.mtx")[:, 0], np.arange(1.0, 61.0), rtol=1e-10)
    document = json.loads((system / "table.json").read_text())
    assert document["kind"] == "system"
    assert document["scores"][0]["backward_error"] < 1e-14


def test_it_compares_every_precision(system: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["solve", str(system / "A.mtx"), "--compare"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "60 unknowns" in shown
    assert "warning" not in shown
    assert all(name in shown for name in ("dsgesv", "tf32", "bf16x3", "fp16_classical"))


def test_it_shows_stages_residuals_and_a_page(system: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = np.random.default_rng(0).standard_normal((60, 60))
    left, _, right = np.linalg.svd(a)
    mmwrite(system / "A.mtx", sparse.csr_array(left * np.logspace(0, -10, 60) @ right))
    given = ["solve", str(system / "A.mtx"), "--precision", "dsgesv", "--report", str(system / "r.html")]
    assert run([*given, "--json", str(system / "table.json")]) == 0
    said = capsys.readouterr()
    shown = " ".join(said.out.split())
    assert "dsgesv: left, fp64: 0" in shown
    assert "a step of refinement left" in shown
    assert "max |b - A x| / (|A| |x| + |b|)" in shown
    assert "refining in" in said.err
    page = (system / "r.html").read_text()
    assert "a step of refinement left" in page
    assert "--precision dsgesv" in page
    stages = json.loads((system / "table.json").read_text())["scores"][0]["stages"]
    assert [s["code"] for s in stages] == [-50, 0]
    assert len(stages[0]["history"]) > 1


@pytest.mark.parametrize(
    ("matrix", "right"),
    [("complex", "complex"), ("complex", "real"), ("real", "complex"), ("hermitian", "none")],
)
@pytest.mark.parametrize(
    "options", [[], ["--compare"], ["--solver", "gmres"], ["--solver", "gcr", "--compare"]], ids=" ".join
)
def test_complex_systems_are_solved_as_lapack_solves_them(
    system: Path, matrix: str, right: str, options: list[str]
) -> None:
    rng = np.random.default_rng(1)
    a = (
        np.eye(60) * 20
        + rng.standard_normal((60, 60))
        + (1j if matrix != "real" else 0) * rng.standard_normal((60, 60))
    )
    a = a + a.conj().T if matrix == "hermitian" else a
    b = rng.standard_normal((60, 1)) + (1j if right == "complex" else 0) * rng.standard_normal((60, 1))
    mmwrite(
        system / "A.mtx", sparse.csr_array(a), symmetry="hermitian" if matrix == "hermitian" else "general"
    )
    mmwrite(system / "b.mtx", b)
    given = [str(system / name) for name in ("A.mtx", "b.mtx")[: 1 if right == "none" else 2]]
    assert run(["solve", *given, "--out", str(system / "x.mtx"), *options]) == 0
    wanted = np.linalg.solve(a, a @ np.ones(60) if right == "none" else b[:, 0])
    assert np.allclose(mmread(system / "x.mtx")[:, 0], wanted, rtol=1e-8, atol=1e-9)


def test_cholesky_is_assumed_on_request(system: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mmwrite(system / "A.mtx", sparse.csr_array(np.eye(60) + np.ones((60, 60))))
    assert run(["solve", str(system / "A.mtx"), "--assume-a", "pos"]) == 0
    assert "Cholesky" in capsys.readouterr().out


def test_a_condition_beyond_double_is_a_warning(system: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mmwrite(system / "A.mtx", np.arange(1.0, 10).reshape(3, 3))
    assert run(["solve", str(system / "A.mtx")]) == 0
    assert "warning: A is singular to working precision" in capsys.readouterr().err


def test_it_shows_something_without_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("fewbits.compare.systems._DENSE_UNKNOWNS", 40)
    assert run(["solve"]) == 0
    assert "a random matrix" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([[1.0, 2.0], [2.0, 4.0]], "singular"),
        ([[1.0, 2.0, 3.0], [2.0, 4.0, 1.0]], "is 2 x 3; expected a square matrix"),
    ],
)
def test_what_has_no_solution_is_one_line(
    rows: list[list[float]], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mmwrite(tmp_path / "A.mtx", sparse.csr_array(np.array(rows)))
    assert run(["solve", str(tmp_path / "A.mtx")]) == 2
    assert said in capsys.readouterr().err


def test_a_right_hand_side_that_does_not_fit_is_one_line(
    system: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mmwrite(system / "b.mtx", np.ones((7, 1)))
    assert run(["solve", str(system / "A.mtx"), str(system / "b.mtx")]) == 2
    assert "b.mtx has 7 rows; expected 60" in capsys.readouterr().err


@pytest.mark.parametrize("options", [[], ["--solver", "gmres"]])
def test_zeros_on_the_right_have_zeros_for_a_solution(system: Path, options: list[str]) -> None:
    for zeros in (np.zeros((60, 1)), np.zeros((60, 2))):
        mmwrite(system / "b.mtx", zeros)
        given = ["solve", str(system / "A.mtx"), str(system / "b.mtx"), "--out", str(system / "x.mtx")]
        assert run([*given, *options]) == 0
        assert mmread(system / "x.mtx").tolist() == np.zeros(zeros.shape).tolist()


def test_a_matrix_of_zeros_is_refused(system: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mmwrite(system / "A.mtx", sparse.csr_array((9, 9)))
    assert run(["solve", str(system / "A.mtx")]) == 2
    assert "A.mtx holds no nonzero entries" in capsys.readouterr().err


def test_a_broken_file_and_an_unknown_precision_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "A.mtx").write_text("%%MatrixMarket matrix coordinate real general\n3 3 9\n1 1 1.0\n")
    assert run(["solve", str(tmp_path / "A.mtx")]) == 2
    assert "A.mtx" in capsys.readouterr().err
    assert run(["solve", "--precision", "fp12"]) == 2
    assert "there is no precision 'fp12'" in capsys.readouterr().err


@pytest.fixture
def sparse_system(tmp_path: Path) -> Path:
    """Return a folder with A.mtx, symmetric positive definite, and b.mtx."""
    line = sparse.diags([-1.0, 2.1, -1.0], [-1, 0, 1], shape=(300, 300))
    mmwrite(tmp_path / "A.mtx", sparse.csr_array(line))
    mmwrite(tmp_path / "b.mtx", (line @ np.arange(300.0))[:, None])
    return tmp_path


@pytest.mark.parametrize("solver", ["cg", "minres", "bicgstab", "gmres", "gcr"])
def test_it_iterates(solver: str, sparse_system: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = sparse_system
    given = ["solve", str(folder / "A.mtx"), str(folder / "b.mtx"), "--solver", solver, "--precision", "half"]
    assert run([*given, "--out", str(folder / "x.mtx"), "--report", str(folder / "r.html")]) == 0
    said = capsys.readouterr()
    shown = " ".join(said.out.split())
    assert solver in shown
    assert "residual |b - A x| / |b|" in shown
    assert f"half: {solver}" in " ".join(said.err.split())
    assert np.allclose(mmread(folder / "x.mtx")[:, 0], np.arange(300.0), atol=1e-5)
    assert f"--solver {solver}" in (folder / "r.html").read_text()


def test_it_compares_the_precisions_of_a_solver(
    sparse_system: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["solve", str(sparse_system / "A.mtx"), "--solver", "cg", "--compare", "--rtol", "1e-6"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert all(name in shown for name in ("auto", "double", "quarter", "site_int16"))


def test_an_absolute_tolerance_a_bound_on_iterations_and_a_restart_reach_the_solver(
    sparse_system: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = [
        "solve",
        str(sparse_system / "A.mtx"),
        "--solver",
        "gmres",
        "--report",
        str(sparse_system / "r.html"),
    ]
    table = sparse_system / "t.json"
    options = ["--rtol", "0", "--atol", "1e-3", "--maxiter", "4000", "--restart", "7", "--json", str(table)]
    assert run([*given, *options]) == 0
    score = json.loads(table.read_text())["scores"][0]
    norm = float(np.linalg.norm(mmread(sparse_system / "A.mtx") @ np.ones(300)))
    assert 1e-10 < score["backward_error"] <= 1e-3 / norm
    assert score["goal"] == pytest.approx(1e-3 / norm)
    assert "--restart 7" in (sparse_system / "r.html").read_text()
    assert run([*given, "--maxiter", "5"]) == 1
    capsys.readouterr()
    for words, said in (
        (["--restart", "5"], "--restart does nothing for --solver cg"),
        (["--assume-a", "pos"], "--assume-a does nothing for --solver cg"),
        (["--maxiter", "0"], "maxiter=0; expected at least 1"),
    ):
        assert run(["solve", str(sparse_system / "A.mtx"), "--solver", "cg", *words]) == 2
        assert said in " ".join(capsys.readouterr().err.split())
    assert run(["solve", str(sparse_system / "A.mtx"), "--atol", "1"]) == 2
    assert "--atol does nothing for --solver direct" in " ".join(capsys.readouterr().err.split())


def test_what_does_not_converge_says_so_by_its_exit_code_and_by_the_name_of_its_file(
    sparse_system: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["solve", str(sparse_system / "A.mtx"), "--solver", "cg", "--precision", "fp8_e5m2"]
    assert run([*given, "--out", str(sparse_system / "x.mtx")]) == 1
    said = capsys.readouterr()
    assert "the true residual stayed at" in " ".join(said.out.split())
    assert "fp8_e5m2 did not converge" in said.err
    assert not (sparse_system / "x.mtx").exists()
    assert mmread(sparse_system / "x.unconverged.mtx").shape == (300, 1)
    (sparse_system / "x.unconverged.mtx").write_bytes((sparse_system / "b.mtx").read_bytes())
    given.insert(2, str(sparse_system / "x.unconverged.mtx"))
    assert run([*given, "--out", str(sparse_system / "x.mtx")]) == 2
    assert "is an input" in capsys.readouterr().err
    for option in ("--json", "--report"):
        words = [*given[:2], *given[3:], "--out", str(sparse_system / "y.mtx")]
        assert run([*words, option, str(sparse_system / "y.unconverged.mtx")]) == 2
        assert "is where --json or --report goes; give another --out" in " ".join(
            capsys.readouterr().err.split()
        )
        assert not (sparse_system / "y.unconverged.mtx").exists()


def test_what_does_not_converge_replaces_nothing_of_another_kind(
    sparse_system: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["solve", str(sparse_system / "A.mtx"), "--solver", "cg", "--precision", "fp8_e5m2"]
    (sparse_system / "x.unconverged.mtx").write_text("notes")
    (sparse_system / "y.unconverged.mtx").mkdir()
    for name, said in (("x.mtx", "is there and not a MatrixMarket file"), ("y.mtx", "is a folder")):
        table = sparse_system / "t.json"
        assert run([*given, "--out", str(sparse_system / name), "--json", str(table)]) == 2
        assert said in capsys.readouterr().err
        assert not table.exists()
    assert (sparse_system / "x.unconverged.mtx").read_text() == "notes"


def test_a_precision_that_is_refused_does_not_end_a_comparison(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Definite by so little that narrow formats find a direction of negative curvature.
    a = np.diag(np.r_[1e-3, np.ones(40)]) + 1e-5 * np.ones((41, 41))
    mmwrite(tmp_path / "A.mtx", sparse.csr_array(a))
    run(["solve", str(tmp_path / "A.mtx"), "--solver", "cg", "--compare", "--json", str(tmp_path / "t.json")])
    scores = json.loads((tmp_path / "t.json").read_text())["scores"]
    assert len(scores) == 7
    capsys.readouterr()
    mmwrite(tmp_path / "A.mtx", sparse.csr_array(-a))
    assert run(["solve", str(tmp_path / "A.mtx"), "--solver", "cg", "--compare"]) == 2
    assert "not positive definite" in capsys.readouterr().err


def test_the_demonstration_of_a_solver(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["solve", "--solver", "cg", "--rtol", "1e-3"]) == 0
    assert "a Poisson problem" in " ".join(capsys.readouterr().out.split())


def test_bad_words_about_solvers_are_refused(sparse_system: Path, capsys: pytest.CaptureFixture[str]) -> None:
    matrix = str(sparse_system / "A.mtx")
    for given, said in (
        (["--solver", "magic"], "expected direct, cg"),
        (["--solver", "cg", "--precision", "tf33"], "there is no precision 'tf33'"),
        (["--solver", "cg", "--rtol", "2"], "rtol=2"),
    ):
        assert run(["solve", matrix, *given]) != 0
        assert said in " ".join(capsys.readouterr().err.split())
