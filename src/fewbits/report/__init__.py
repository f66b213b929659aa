"""Reports: pure functions from records to tables in the terminal, JSON text and one HTML page."""

from fewbits.report.html import checkpoint_page, matrices_page, tasks_page
from fewbits.report.json_text import (
    cast_json,
    checkpoint_json,
    inspect_json,
    matrices_json,
    prune_json,
    solve_json,
    tasks_json,
    train_json,
)
from fewbits.report.pruning import prune_page, prune_table
from fewbits.report.solving import history_plot, solve_table, stages_table
from fewbits.report.solving_page import solve_page
from fewbits.report.storage import cast_table, inspect_table
from fewbits.report.table import checkpoint_table, matrices_table, tasks_table
from fewbits.report.training import recipes_table, train_table
from fewbits.report.training_page import train_page

__all__ = [
    "cast_json",
    "cast_table",
    "checkpoint_json",
    "checkpoint_page",
    "checkpoint_table",
    "history_plot",
    "inspect_json",
    "inspect_table",
    "matrices_json",
    "matrices_page",
    "matrices_table",
    "prune_json",
    "prune_page",
    "prune_table",
    "recipes_table",
    "solve_json",
    "solve_page",
    "solve_table",
    "stages_table",
    "tasks_json",
    "tasks_page",
    "tasks_table",
    "train_json",
    "train_page",
    "train_table",
]
