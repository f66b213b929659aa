"""Reports: pure functions from records to tables in the terminal, JSON text and one HTML page.

``columns`` says what tables hold, ``terminal`` and ``page`` lay them out.
"""

from fewbits.report.json_text import (
    benchmark_json,
    cast_json,
    checkpoint_json,
    choice_json,
    codecs_json,
    explore_json,
    inspect_json,
    matrices_json,
    plan_json,
    profile_json,
    prune_json,
    scale_json,
    solve_json,
    tasks_json,
    train_json,
)
from fewbits.report.page.benchmark import benchmark_page
from fewbits.report.page.checkpoint import checkpoint_page
from fewbits.report.page.codecs import codecs_page
from fewbits.report.page.exploring import choice_page, explore_page
from fewbits.report.page.markup import check_plots
from fewbits.report.page.matrices import matrices_page
from fewbits.report.page.models import tasks_page
from fewbits.report.page.planning import plan_page
from fewbits.report.page.profiling import profile_page
from fewbits.report.page.pruning import prune_page
from fewbits.report.page.scaling import scale_page
from fewbits.report.page.solving import solve_page
from fewbits.report.page.training import train_page
from fewbits.report.terminal.benchmark import benchmark_table, logs_table
from fewbits.report.terminal.codecs import codecs_table, scale_table
from fewbits.report.terminal.compare import checkpoint_table, matrices_table, tasks_table
from fewbits.report.terminal.exploring import choice_table, explore_table
from fewbits.report.terminal.planning import plan_table
from fewbits.report.terminal.profiling import profile_table
from fewbits.report.terminal.pruning import prune_table
from fewbits.report.terminal.quantizing import quantize_table
from fewbits.report.terminal.recipes import recipe_json, recipe_table, recipes_json, recipes_table
from fewbits.report.terminal.solving import history_plot, solve_table, stages_table
from fewbits.report.terminal.storage import cast_table, inspect_table
from fewbits.report.terminal.training import train_table

__all__ = [
    "benchmark_json",
    "benchmark_page",
    "benchmark_table",
    "cast_json",
    "cast_table",
    "check_plots",
    "checkpoint_json",
    "checkpoint_page",
    "checkpoint_table",
    "choice_json",
    "choice_page",
    "choice_table",
    "codecs_json",
    "codecs_page",
    "codecs_table",
    "explore_json",
    "explore_page",
    "explore_table",
    "history_plot",
    "inspect_json",
    "inspect_table",
    "logs_table",
    "matrices_json",
    "matrices_page",
    "matrices_table",
    "plan_json",
    "plan_page",
    "plan_table",
    "profile_json",
    "profile_page",
    "profile_table",
    "prune_json",
    "prune_page",
    "prune_table",
    "quantize_table",
    "recipe_json",
    "recipe_table",
    "recipes_json",
    "recipes_table",
    "scale_json",
    "scale_page",
    "scale_table",
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
