"""``fewbits solve``: a linear system, factorized narrow and refined, or by iterations in narrow formats."""

from __future__ import annotations

import shlex
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fewbits.cli.arguments import JsonOption, ReportOption, provenance, refuse_idle
from fewbits.cli.kinds import MATRIX, Reads, Writes
from fewbits.cli.paths import check_kind, tables_console, write_report
from fewbits.cli.progress import progress_bar
from fewbits.errors import ArgumentError
from fewbits.files.atomic import write_bytes

if TYPE_CHECKING:
    from fewbits.solvers.operators import LinearMap
    from fewbits.typing import NumpyArray

_LARGEST = 20000  # rows of a matrix that is made dense: 3 GiB
_DEFAULTS = {
    "--solver": "direct",
    "--rtol": "1e-10",
    "--atol": "0.0",
    "--maxiter": "None",
    "--restart": "None",
    "--assume-a": "gen",
}


def solve(
    context: typer.Context,
    matrix: Annotated[
        Path | None,
        Reads(),
        typer.Argument(
            help="A square .mtx matrix, real or complex. Default: a random one.", show_default=False
        ),
    ] = None,
    right: Annotated[
        Path | None,
        Reads(),
        typer.Argument(help="Right-hand sides, a .mtx file. Default: A times ones.", show_default=False),
    ] = None,
    precision: Annotated[
        str,
        typer.Option(help="auto, fp64, fp32, dsgesv, tf32, bf16x2, ...; with a --solver double, half, ..."),
    ] = "auto",
    solver: Annotated[
        str, typer.Option(help="direct, or for sparse matrices cg, minres, bicgstab, gmres or gcr.")
    ] = "direct",
    rtol: Annotated[float, typer.Option(help="Of a --solver that iterates: |b - A x| / |b|.")] = 1e-10,
    atol: Annotated[float, typer.Option(help="Likewise: |b - A x|; the larger bound counts.")] = 0.0,
    maxiter: Annotated[
        int | None, typer.Option(help="Iterations of each precision. Default: 10 n.", show_default=False)
    ] = None,
    restart: Annotated[
        int | None, typer.Option(help="Vectors that gmres (50) and gcr (20) hold.", show_default=False)
    ] = None,
    assume_a: Annotated[str, typer.Option(help="gen, or pos: positive definite (Cholesky).")] = "gen",
    compare: Annotated[bool, typer.Option("--compare", help="Try every precision, and time LAPACK.")] = False,
    out: Annotated[
        Path | None, Writes(MATRIX), typer.Option(help="Write the solution as a .mtx file.")
    ] = None,
    report: ReportOption = None,
    json: JsonOption = None,
) -> None:
    """Solve A x = b with the backward error of LAPACK's double precision.

    The tables say what was tried, why it was left, how many steps of refinement it took and for how long; a
    plot shows the residual after each. --compare measures the speed against LAPACK in double precision.

    Example, with a matrix made here: fewbits solve --compare

    A matrix of your own: fewbits solve matrix.mtx --precision auto --report report.html --out x.mtx

    A large sparse one: fewbits solve matrix.mtx --solver cg --precision half

    Where it does not converge it says so, writes what it has with .unconverged in its name, and exits with 1.
    """
    from fewbits.compare import measure_system
    from fewbits.compare.systems import KRYLOV_SOLVERS, RESTARTED
    from fewbits.report import history_plot, solve_json, solve_page, solve_table, stages_table
    from fewbits.solvers import KRYLOV_PRECISIONS, PRECISIONS, krylov_precision
    from fewbits.solvers import precision as read

    if solver not in ("direct", *KRYLOV_SOLVERS):
        raise ArgumentError(f"--solver {solver}: expected direct, {', '.join(KRYLOV_SOLVERS)}")
    direct = solver == "direct"
    idle = {"rtol", "atol", "maxiter"} if direct else {"assume_a"}
    idle |= ({"precision"} if compare else set()) | (set() if solver in RESTARTED else {"restart"})
    refuse_idle(context, idle, f"--solver {solver}" + " with --compare" * compare)
    if precision != "auto":
        (read if direct else krylov_precision)(precision)
    unconverged = None if out is None else _unconverged(out, (matrix, right), (json, report))
    a, b = _system(matrix, right, direct)
    name = str(matrix or ("a random matrix" if direct else "a Poisson problem"))
    names = ["auto", *(PRECISIONS if direct else KRYLOV_PRECISIONS)] if compare else [precision]
    with warnings.catch_warnings(record=True) as raised, progress_bar() as show:
        warnings.simplefilter("always", RuntimeWarning)
        measured = measure_system(
            a, b, names, solver=solver, name=name, rtol=rtol, atol=atol, maxiter=maxiter, restart=restart,
            assume_a=assume_a, progress=show,
        )  # fmt: skip
    for text in dict.fromkeys(str(w.message) for w in raised):
        typer.echo(f"warning: {text}", err=True)
    scores, failed = measured.scores, measured.failure
    written = unconverged if failed else out
    if written is not None:
        write_bytes(written, _matrix_market(measured.x))
        typer.echo(f"wrote {written}", err=True)
    console = tables_console(report, json)
    console.print(solve_table(scores))
    console.print(stages_table(scores))
    console.print(history_plot(scores[0]))
    write_report(json, lambda: solve_json(scores, provenance()))
    options = {
        "--solver": solver,
        "--rtol": repr(rtol),
        "--atol": repr(atol),
        "--maxiter": str(maxiter),
        "--restart": str(restart),
        "--assume-a": assume_a,
    }
    base = _base_command(matrix, right, options)
    write_report(report, lambda: solve_page(scores, provenance(), base_command=base))
    if failed:
        typer.echo(f"fewbits: {scores[0].precision} did not converge: {failed}", err=True)
        raise typer.Exit(1)


def _unconverged(out: Path, inputs: tuple[Path | None, ...], outputs: tuple[Path | None, ...]) -> Path:
    """Return the name of what does not converge, checked before the work.

    Raises:
        ArgumentError: it is that of an input, of another output, or of a file or folder of another kind.
    """
    path = out.with_name(f"{out.stem}.unconverged{out.suffix}")
    name = f"--out {out}: without convergence {path}"
    for paths, what in ((inputs, "an input"), (outputs, "where --json or --report goes")):
        if any(other is not None and path.resolve() == other.resolve() for other in paths):
            raise ArgumentError(f"{name} would be written, which is {what}; give another --out")
    check_kind(f"{name} would be written, which", path, MATRIX)
    return path


def _system(matrix: Path | None, right: Path | None, direct: bool) -> tuple[LinearMap, NumpyArray]:
    """Return the matrix, dense for a direct solution, and the right-hand side."""
    import numpy as np

    from fewbits.compare.systems import poisson_system, random_system
    from fewbits.files.matrix import read_columns, read_matrix

    if matrix is None:
        return random_system() if direct else poisson_system()
    sparse = read_matrix(matrix, complex_too=True)
    rows, columns = sparse.shape
    if rows != columns:
        raise ArgumentError(f"{matrix} is {rows} x {columns}; expected a square matrix")
    if rows > _LARGEST and direct:
        raise ArgumentError(
            f"{matrix} has {rows} rows; solved dense, at most {_LARGEST} fit. Take --solver cg where it is"
            " symmetric positive definite, else gmres"
        )
    a = sparse.toarray() if direct else sparse
    if right is None:
        return a, a @ np.ones(columns)
    b = read_columns(right)
    if len(b) != rows:
        raise ArgumentError(f"{right} has {len(b)} rows; expected {rows}, as many as {matrix}")
    return a, b[:, 0] if b.shape[1] == 1 else b


def _base_command(matrix: Path | None, right: Path | None, options: dict[str, str]) -> str:
    words = ["fewbits", "solve", *(str(p) for p in (matrix, right) if p is not None)]
    changed = (pair for pair in options.items() if _DEFAULTS[pair[0]] != pair[1])
    return shlex.join([*words, *(word for pair in changed for word in pair)])


def _matrix_market(x: NumpyArray) -> bytes:
    from io import BytesIO

    from scipy.io import mmwrite

    file = BytesIO()
    mmwrite(file, x.reshape(len(x), -1))
    return file.getvalue()
