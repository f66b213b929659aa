"""A design space of formats, and the best within a budget, as tables in the terminal."""

from __future__ import annotations

from rich.console import Group
from rich.text import Text

from fewbits.records import Exploration, FormatChoice
from fewbits.report.columns.exploring import (
    BEST_COLUMNS,
    FINALIST_COLUMNS,
    PLACED_COLUMNS,
    SENSITIVITY_COLUMNS,
    SENSITIVITY_SENTENCE,
    about_choice,
    about_exploration,
    best_within,
    bound_sentence,
    winner_sentence,
)
from fewbits.report.terminal.sheet import Heading, Sheet, Wrapped


def explore_table(exploration: Exploration) -> Group:
    """Lay out the best formats by bits, the named formats beside the front, and what BDR's front rests on."""
    name = exploration.data.name
    return Group(
        Sheet(
            Heading("Best formats", f"within every half bit, on {name}"),
            BEST_COLUMNS,
            best_within(exploration),
        ),
        Text(),
        Sheet(Heading("Named formats", "beside the Pareto fronts"), PLACED_COLUMNS, exploration.placed),
        Text(),
        Sheet(Heading("BDR", "one value only"), SENSITIVITY_COLUMNS, exploration.sensitivity),
        Wrapped(SENSITIVITY_SENTENCE),
        Text(),
        Wrapped(about_exploration(exploration)),
        Wrapped(bound_sentence(exploration), "bold"),
        Text(),
    )


def choice_table(choice: FormatChoice) -> Group:
    """Lay out the finalists, the best on held-out data first; the winner in full is to follow."""
    heading = Heading(f"At most {choice.budget:g} bits per value", f"on {choice.data.name}")
    return Group(
        Sheet(heading, FINALIST_COLUMNS, choice.finalists),
        Wrapped(about_choice(choice)),
        Wrapped(winner_sentence(choice), "bold"),
    )
