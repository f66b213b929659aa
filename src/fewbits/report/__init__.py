"""Reports: pure functions from records to tables in the terminal, JSON text and one HTML page."""

from fewbits.report.html import checkpoint_page, matrices_page, tasks_page
from fewbits.report.json_text import checkpoint_json, matrices_json, tasks_json
from fewbits.report.table import checkpoint_table, matrices_table, tasks_table

__all__ = [
    "checkpoint_json",
    "checkpoint_page",
    "checkpoint_table",
    "matrices_json",
    "matrices_page",
    "matrices_table",
    "tasks_json",
    "tasks_page",
    "tasks_table",
]
