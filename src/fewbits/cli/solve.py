"""``fewbits solve``: a linear system, factorized narrow and refined, or by iterations in narrow formats."""

from __future__ import annotations

import math
import shlex
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fewbits.cli.arguments import provenance, refuse_idle
from fewbits.cli.kinds import JSON, MATRIX, PAGE, Reads, Writes
from fewbits.cli.krylov import SOLVERS, demonstration, krylov_scores
from fewbits.cli.paths import tables_console, write_report
from fewbits.cli.progress import Report, progress_bar
from fewbits.errors import ArgumentError, FewbitsError
from fewbits.files.atomic import write_bytes

if TYPE_CHECKING:
    from fewbits.records import SolveScore

_DEMONSTRATION = 1200  # unknowns
_LARGEST = 20000  # rows of a matrix that is made dense: 3 GiB


def solve(
    context: typer.Context,
    matrix: Annotated[
        Path | None,
        Reads(),
        typer.Argument(help="A square .mtx matrix. Default: a random one.", show_default=False),
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
    assume: Annotated[str, typer.Option(help="general, or positive definite (Cholesky).")] = "general",
    compare: Annotated[bool, typer.Option("--compare", help="Try every precision, and time LAPACK.")] = False,
    report: Annotated[
        Path | None,
        Writes(PAGE),
        typer.Option(help="Write tables and residuals as one HTML page.", show_default=False),
    ] = None,
    out: Annotated[
        Path | None, Writes(MATRIX), typer.Option(help="Write the solution as a .mtx file.")
    ] = None,
    json: Annotated[Path | None, Writes(JSON), typer.Option(help="Write the records as JSON.")] = None,
) -> None:
    """Solve A x = b with the backward error of LAPACK's double precision.

    The tables say what was tried, why it was left, how many steps of refinement it took and for how long; a
    plot shows the residual after each. --compare measures the speed against LAPACK in double precision.

    Example, with a matrix made here: fewbits solve --compare

    A matrix of your own: fewbits solve matrix.mtx --precision auto --report report.html --out x.mtx

    A large sparse one: fewbits solve matrix.mtx --solver cg --precision half

    Where it does not converge it says so, writes what it has with .unconverged in its name, and exits with 1.
    """
    from fewbits.report import history_plot, solve_json, solve_page, solve_table, stages_table
    from fewbits.solvers import KRYLOV_PRECISIONS, PRECISIONS, krylov_precision
    from fewbits.solvers import precision as read

    if report is not None:
        from fewbits.report import check_plots

        check_plots()  # refuses now rather than after the work
    if solver not in ("direct", *SOLVERS):
        raise ArgumentError(f"--solver {solver}: expected direct, {', '.join(SOLVERS)}")
    direct = solver == "direct"
    idle = {"rtol" if direct else "assume", *(["precision"] if compare else [])}
    refuse_idle(context, idle, f"--solver {solver}" + " with --compare" * compare)
    if precision != "auto":
        (read if direct else krylov_precision)(precision)
    a, b = _system(matrix, right, direct)
    name = str(matrix or ("a random matrix" if direct else "a Poisson problem"))
    names = ["auto", *(PRECISIONS if direct else KRYLOV_PRECISIONS)] if compare else [precision]
    if direct:
        scores, x = _scores(name, a, b, names, assume, in_double=compare)
    else:
        scores, x = krylov_scores(name, a, b, solver, names, rtol)
    failed = scores[0].stages[-1].reason if scores[0].stages and scores[0].stages[-1].code < 0 else ""
    if out is not None:
        out = _named(out, (matrix, right)) if failed else out
        write_bytes(out, _matrix_market(x))
        typer.echo(f"wrote {out}", err=True)
    console = tables_console(report, json)
    console.print(solve_table(scores))
    console.print(stages_table(scores))
    console.print(history_plot(scores[0]))
    write_report(json, lambda: solve_json(scores, provenance()))
    base = _base_command(matrix, right, {"--assume": assume, "--solver": solver, "--rtol": f"{rtol:g}"})
    write_report(report, lambda: solve_page(scores, provenance(), base_command=base))
    if failed:
        typer.echo(f"fewbits: {scores[0].precision} did not converge: {failed}", err=True)
        raise typer.Exit(1)


def _named(out: Path, inputs: tuple[Path | None, ...]) -> Path:
    """Return the name of what did not converge.

    Raises:
        ArgumentError: it is that of an input.
    """
    found = out.with_name(f"{out.stem}.unconverged{out.suffix}")
    if any(path is not None and found.resolve() == path.resolve() for path in inputs):
        raise ArgumentError(f"no convergence, and {found} is an input; give another --out")
    return found


def _system(matrix: Path | None, right: Path | None, direct: bool) -> tuple[Any, Any]:
    """Return the matrix, dense for a direct solution, and the right-hand side."""
    import numpy as np

    from fewbits.files.matrix import read_matrix

    if matrix is None and not direct:
        return demonstration()
    if matrix is None:
        a = np.random.default_rng(0).standard_normal((_DEMONSTRATION, _DEMONSTRATION))
        return a, a @ np.ones(len(a))
    found = read_matrix(matrix)
    rows, columns = found.shape
    if rows != columns:
        raise ArgumentError(f"{matrix} is {rows} x {columns}; expected a square matrix")
    if rows > _LARGEST and direct:
        raise ArgumentError(
            f"{matrix} has {rows} rows; solved dense, at most {_LARGEST} fit. Take --solver cg where it is"
            " symmetric positive definite, else gmres"
        )
    a = found.toarray() if direct else found
    if right is None:
        return a, a @ np.ones(columns)
    b = read_matrix(right).toarray()
    if len(b) != rows:
        raise ArgumentError(f"{right} has {len(b)} rows; expected {rows}, as many as {matrix}")
    return a, b[:, 0] if b.shape[1] == 1 else b


def _scores(
    name: str, a: Any, b: Any, precisions: list[str], assume: str, *, in_double: bool
) -> tuple[list[SolveScore], Any]:
    """Solve in each precision, also after one was refused; the solution is that of the first that gave one.

    Raises:
        FewbitsError: what the solver raises, where it does in every precision.
    """
    from dataclasses import replace

    _wake()
    scores: list[SolveScore] = []
    solutions, errors = [], []
    with progress_bar() as show:
        for i, one in enumerate(precisions):
            began = time.perf_counter()
            try:
                score, x = _score(name, a, b, one, assume, show)
                solutions.append(x)
            except FewbitsError as error:
                score = _refused(name, len(a), one, str(error), time.perf_counter() - began)
                errors.append(error)
            scores.append(score)
            if len(precisions) > 1:
                show("precisions", i + 1, len(precisions), one)
    if not solutions:
        raise errors[0]
    double = [score.seconds for score in scores if score.precision == "fp64"]
    if in_double and double:
        scores = [replace(score, of_double=double[0] / score.seconds) for score in scores]
    return scores, solutions[0]


_GOAL = 2.0**-53
_MEASURE = "max |b - A x| / (|A| |x| + |b|)"


def _refused(name: str, n: int, precision: str, reason: str, seconds: float) -> SolveScore:
    from fewbits.records import SolveScore, Stage

    stage = Stage(precision, "-", -50, 0, seconds, 0.0, reason, ())
    measured = 0, math.nan, math.nan, seconds, None, _GOAL, _MEASURE
    return SolveScore(name, n, precision, (stage,), *measured)


def _score(name: str, a: Any, b: Any, one: str, assume: str, show: Report) -> tuple[SolveScore, Any]:
    import numpy as np

    from fewbits.records import SolveScore
    from fewbits.solvers import solve as solve_system

    first = 1.0
    factorizing = f"{one}: factorizing"

    def watch(stage: str, step: int, size: float) -> None:
        nonlocal first
        if step == 0:
            first = size
            show(factorizing, 1, 1)
        far = math.log(first / _GOAL) if first > _GOAL else 0.0
        done = 1 - math.log(size / _GOAL) / far if far and size > _GOAL else float(size <= _GOAL)
        show(f"{one}: refining in {stage}", max(done, 0.0), 1, f"step {step}, error {size:.1e}")

    show(factorizing, 0, 1, f"{len(a)} unknowns")
    with warnings.catch_warnings(record=True) as raised:
        warnings.simplefilter("always", RuntimeWarning)
        began = time.perf_counter()
        result = solve_system(a, b, precision=one, assume=assume, full=True, watch=watch)
        seconds = time.perf_counter() - began
    for text in dict.fromkeys(str(w.message) for w in raised):
        typer.echo(f"warning: {text}", err=True)
    score = SolveScore(
        name,
        len(a),
        one,
        result.stages,
        result.iterations,
        result.backward_error,
        result.condition,
        seconds,
        None,
        _GOAL,
        _MEASURE,
        result.componentwise_error,
        result.forward_error,
    )
    return score, np.asarray(result.x)


def _wake() -> None:
    """Start the threads and load what the first factorization of a process loads."""
    import numpy as np

    from fewbits.solvers import solve as solve_system

    solve_system(np.eye(64), np.ones(64), precision="fp32", full=True)


def _base_command(matrix: Path | None, right: Path | None, options: dict[str, str]) -> str:
    words = ["fewbits", "solve", *(str(p) for p in (matrix, right) if p is not None)]
    defaults = {"--assume": "general", "--solver": "direct", "--rtol": "1e-10"}
    return shlex.join(
        [*words, *(word for pair in options.items() if defaults[pair[0]] != pair[1] for word in pair)]
    )


def _matrix_market(x: Any) -> bytes:
    from io import BytesIO

    from scipy.io import mmwrite

    file = BytesIO()
    mmwrite(file, x.reshape(len(x), -1))
    return file.getvalue()
