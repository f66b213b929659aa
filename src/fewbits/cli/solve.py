"""``fewbits solve``: a dense linear system, factorized narrow and refined to double accuracy."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from fewbits.cli.arguments import check_writable, provenance
from fewbits.cli.progress import progress_bar
from fewbits.errors import ArgumentError
from fewbits.files.atomic import write_bytes, write_text

if TYPE_CHECKING:
    from fewbits.records import SolveScore

_DEMONSTRATION = 1200  # unknowns
_LARGEST = 20000  # rows of a matrix that is made dense: 3 GiB


def solve(
    matrix: Annotated[
        Path | None, typer.Argument(help="A square .mtx matrix. Default: a random one.", show_default=False)
    ] = None,
    right: Annotated[
        Path | None,
        typer.Argument(help="Right-hand sides, a .mtx file. Default: A times ones.", show_default=False),
    ] = None,
    precision: Annotated[
        str, typer.Option(help="auto, fp64, fp32, dsgesv, tf32, fp16, bf16, bf16x2, bf16x3, ...")
    ] = "auto",
    compare: Annotated[bool, typer.Option("--compare", help="Try every precision.")] = False,
    out: Annotated[Path | None, typer.Option(help="Write the solution as a .mtx file.")] = None,
    json: Annotated[Path | None, typer.Option(help="Write the table as JSON.")] = None,
) -> None:
    """Solve A x = b with the backward error of LAPACK's double precision.

    The table says what was tried, how many steps of refinement it took, and the time over that of LAPACK.

    Example, with a matrix made here: fewbits solve --compare

    A matrix of your own: fewbits solve matrix.mtx --precision auto --out x.mtx
    """
    check_writable(json, out)
    from fewbits.report import solve_json, solve_table
    from fewbits.solvers import PRECISIONS
    from fewbits.solvers import precision as read

    names = list(PRECISIONS) if compare else [precision]
    if precision != "auto":
        read(precision)
    a, b = _system(matrix, right)
    scores, x = _scores(str(matrix or "a random matrix"), a, b, names)
    Console().print(solve_table(scores))
    if out is not None:
        write_bytes(out, _matrix_market(x))
        typer.echo(f"wrote {out}", err=True)
    if json is not None:
        write_text(json, solve_json(scores, provenance()))
        typer.echo(f"wrote {json}", err=True)


def _system(matrix: Path | None, right: Path | None) -> tuple[Any, Any]:
    import numpy as np

    from fewbits.files.matrix import read_matrix

    if matrix is None:
        a = np.random.default_rng(0).standard_normal((_DEMONSTRATION, _DEMONSTRATION))
        return a, a @ np.ones(len(a))
    found = read_matrix(matrix)
    if found.shape[0] > _LARGEST:
        raise ArgumentError(f"{matrix} has {found.shape[0]} rows; solved dense, at most {_LARGEST} fit")
    a = found.toarray()
    if right is None:
        return a, a @ np.ones(a.shape[1])
    b = read_matrix(right).toarray()
    return a, b[:, 0] if b.shape[1] == 1 else b


def _scores(name: str, a: Any, b: Any, precisions: list[str]) -> tuple[list[SolveScore], Any]:
    import numpy as np

    from fewbits.records import SolveScore
    from fewbits.solvers import solve as solve_system

    found, x = [], None
    with progress_bar() as show:
        solve_system(a, b, precision="fp64")  # wakes the threads, and refuses what has no solution
        began = time.perf_counter()
        solve_system(a, b, precision="fp64")
        lapack = time.perf_counter() - began
        for i, one in enumerate(precisions):
            began = time.perf_counter()
            result = solve_system(a, b, precision=one, full=True)
            seconds = time.perf_counter() - began
            x = np.asarray(result.x)
            path = tuple(f"{s.precision}: {s.code}" for s in result.stages)
            found.append(
                SolveScore(
                    name,
                    len(a),
                    one,
                    path,
                    result.iterations,
                    result.backward_error,
                    result.condition,
                    seconds,
                    lapack / seconds,
                )
            )
            show("solving", i + 1, len(precisions), one)
    return found, x


def _matrix_market(x: Any) -> bytes:
    from io import BytesIO

    from scipy.io import mmwrite

    file = BytesIO()
    mmwrite(file, x.reshape(len(x), -1))
    return file.getvalue()
