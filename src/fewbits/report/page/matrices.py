"""The page of matrices in several formats."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Sequence

from fewbits.fronts import pareto_front
from fewbits.records import MatrixScore, Provenance
from fewbits.report import quantities as q
from fewbits.report.columns.matrices import MATRIX_COLUMNS
from fewbits.report.judgement import by_matrix
from fewbits.report.page.axes import log_axis
from fewbits.report.page.figures import Dot, dots
from fewbits.report.page.front import FRONT_SIGNS, front_series, not_drawn
from fewbits.report.page.markup import Block, Commands, Paragraph, Plot, Section, Table, page


def matrices_page(
    scores: Sequence[MatrixScore], provenance: Provenance, *, base_command: str = "fewbits compare"
) -> str:
    """Write the page of matrices: for each the error of its entries in each format, and the table.

    Args:
        scores: At least one; each matrix gets its own part of the page.
        provenance: The command and versions that the foot of the page repeats.
        base_command: The command with the options that all rows share; a row adds its matrix and format.

    Raises:
        ArgumentError: There are no scores.
        MissingDependencyError: Plotly or Jinja2 is not installed.
    """

    def again(score: MatrixScore) -> str:
        return f"{base_command} {shlex.quote(score.matrix)} --formats {shlex.quote(score.format)}"

    parts = [_matrix(i, matrix, group, again) for i, (matrix, group) in enumerate(by_matrix(scores).items())]
    lead = (
        "Matrices whose entries were stored in each format: what it does to the entries and to the condition."
    )
    return page("What narrow formats do to a matrix", lead, parts, provenance)


def _matrix(
    number: int, matrix: str, scores: Sequence[MatrixScore], again: Callable[[MatrixScore], str]
) -> Section:
    condition = q.condition(scores[0].condition_fp64)
    blocks: list[Block] = [
        Paragraph(f"Condition number in FP64, estimated in the 1-norm: {condition}."),
        *_errors_plot(number, matrix, scores),
        Table(f"{matrix} by format", MATRIX_COLUMNS, scores),
        Commands([(s.format, again(s)) for s in scores]),
    ]
    return Section(matrix, blocks)


def _errors_plot(number: int, matrix: str, scores: Sequence[MatrixScore]) -> list[Plot]:
    drawn = [s for s in scores if 0 < s.frobenius_error < math.inf]
    if not drawn:
        return []
    points = [_dot(i, score) for i, score in enumerate(drawn)]
    front = pareto_front([(s.bits_per_value, -s.frobenius_error) for s in drawn])
    about = f"{matrix}: each format with its bits per value; right is better. "
    exact = [s.format for s in scores if s.frobenius_error == 0]
    about += f"Exact and so not drawn: {', '.join(exact)}. " if exact else ""
    about += not_drawn([s.format for s in scores if not math.isfinite(s.frobenius_error)])
    figure = dots(
        [f"{s.format}, {q.bits(s.bits_per_value)}" for s in drawn],
        front_series(points, front),
        log_axis("relative error", [s.frobenius_error for s in drawn]).reversed(),
        front=[points[i] for i in front],
    )
    title = "Relative error of the entries, Frobenius norm"
    return [Plot(f"matrix-{number}", title, figure, about, FRONT_SIGNS)]


def _dot(row: int, score: MatrixScore) -> Dot:
    hover = (
        f"{q.bits(score.bits_per_value)} bits per value, {q.size(score.values_bytes)}",
        f"Frobenius error: {q.relative(score.frobenius_error)}",
        f"condition: {q.condition(score.condition)}",
    )
    return Dot(row, score.frobenius_error, hover)
