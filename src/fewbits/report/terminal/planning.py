"""Plans as tables in the terminal."""

from __future__ import annotations

from rich.console import Group, RenderableType
from rich.text import Text

from fewbits.records import PlanRecord
from fewbits.report.columns.planning import (
    PLAN_COLUMNS,
    STRATEGY_COLUMNS,
    about_plan,
    device_count,
    plan_rows,
    strategy_rows,
)
from fewbits.report.terminal.sheet import Heading, Sheet, Wrapped


def plan_table(plan: PlanRecord) -> Group:
    """Lay out a row for each layer, and below it what the plan takes beside what others would choose."""
    parts: list[RenderableType] = [
        Sheet(Heading(plan.network, device_count(plan)), PLAN_COLUMNS, plan_rows(plan))
    ]
    if plan.strategies:
        parts.append(Sheet(Heading("Strategies", plan.machine.name), STRATEGY_COLUMNS, strategy_rows(plan)))
    return Group(*parts, *(Wrapped(line) for line in about_plan(plan)), Text())
