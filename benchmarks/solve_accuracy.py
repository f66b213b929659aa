"""Is a system solved as accurately as LAPACK solves it in double precision, whatever the matrix?

The matrices are those of tests/solvers/collection.py: more than thirty kinds, numbers of unknowns on both
sides of where ``auto`` begins to try float32, three right-hand sides. Both answers are judged in extended
precision, by the componentwise backward error and by the 2-norm of the residual. Where one of ours is more
than ten times LAPACK's there has to be a warning; what rounding x itself leaves counts as LAPACK's where
that has less.

    python benchmarks/solve_accuracy.py [--largest 1210] [--write docs/solving.md] [--json FILE]
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from _alternating import machine

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from tests.solvers.collection import Comparison, compared, files, matrices, right_sides  # noqa: E402

SIZES = (100, 320, 1190, 1210)
START, END = "<!-- accuracy -->\n", "<!-- end of accuracy -->\n"


def comparisons(largest: int) -> Iterator[Comparison]:
    """Yield every matrix with every right-hand side."""
    data = Path(os.environ.get("FEWBITS_DATA", ROOT.parent / "shared" / "data"))
    of_sizes = (one for n in SIZES if n <= largest for one in matrices(n))
    for source in (of_sizes, files(data)):
        for kind, name, a in source:
            for side, b in right_sides(a).items():
                found = compared(kind, name, a, side, b)
                if found is not None:
                    yield found
            print(name, file=sys.stderr)


def table(found: list[Comparison]) -> str:
    """Return a Markdown table with a row for each kind."""
    rows = [
        "| kind | systems | in float32 | by entry | LAPACK | residual | LAPACK | largest ratio | warned |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for kind in dict.fromkeys(one.kind for one in found):
        of_kind = [one for one in found if one.kind == kind]
        worst = [
            max(getattr(one, name) for one in of_kind)
            for name in ("componentwise", "componentwise_of_lapack", "residual", "residual_of_lapack")
        ]
        silent = [one.ratio for one in of_kind if not one.warned]
        narrow = sum("fp64" not in one.path for one in of_kind)
        cells = [kind, str(len(of_kind)), str(narrow), *(f"{v:.0e}" for v in worst)]
        cells += [f"{max(silent):.1f}" if silent else "-", str(sum(one.warned for one in of_kind))]
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows) + "\n"


def main() -> None:
    """Print the table, write it where asked, and fail where one answer is worse without a warning."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--largest", type=int, default=SIZES[-1], help="unknowns of the largest matrices")
    parser.add_argument("--write", type=Path, help="a page with the two markers of the table")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    given = parser.parse_args()
    found = list(comparisons(given.largest))
    print(table(found))
    names = {one.name for one in found}
    unsound = [one for one in found if not one.sound]
    print(f"{len(names)} matrices, {len(found)} systems, {len(unsound)} worse without a warning")
    if given.write:
        before, rest = given.write.read_text("utf-8").split(START)
        given.write.write_text(before + START + table(found) + END + rest.split(END)[1], "utf-8")
    if given.json:
        import json

        rows = [asdict(one) for one in found]
        given.json.write_text(json.dumps({"machine": machine(), "rows": rows}, indent=2) + "\n")
    if unsound:
        sys.exit("\n".join(str(one) for one in unsound))


if __name__ == "__main__":
    main()
