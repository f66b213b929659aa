"""Write docs/landscape.md, what fewbits has of each technique of the field, out of tools/landscape.json.

    python tools/landscape.py [MORE.json ...]

Rows of other files of the same shape are added to the data first: to the group of the same name, or as a new
one.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

DATA = Path(__file__).with_name("landscape.json")
PAGE = Path(__file__).parents[1] / "docs" / "landscape.md"
HEAD = """\
# The field

Techniques of narrow arithmetic, of training and solving with it, and of many machines: where each is from,
what fewbits has of it under which name, and a proof that you can run. A source is where a technique is from,
not a promise that its figures come out here: what was measured is on the pages that the rows name.

The word before a name says what takes it: a *format* is for `fewbits.quantize`, a *recipe* for
`fewbits.prepare` and `fewbits train`, a *codec* for `fewbits.distributed`, a *precision* for the solvers.
Options are written as `quantize(rounding=)`. A proof in `tests/` runs with `python -m pytest TEST`.

`tools/landscape.py` writes this page out of `tools/landscape.json`; a test holds each name, link, test and
command line to what is there.
"""
TABLE = """\
| technique | source | fewbits | where | proof |
|---|---|---|---|---|
"""
KINDS = ("format", "recipe", "codec", "precision")


def page(data: Any) -> str:
    """The whole page."""
    return HEAD + "".join(
        f"\n## {group['name']}\n\n{TABLE}" + "".join(_line(row) for row in group["rows"])
        for group in data["groups"]
    )


def _line(row: Any) -> str:
    """One row of a table."""
    offers = f"not offered: {row['refused']}" if "refused" in row else _offers(row["offers"])
    note = f"; {row['note']}" if "note" in row else ""
    docs = f"[{row['docs'].split('#')[0]}]({row['docs']})" if "docs" in row else "-"
    proof = f"`{row['proof']}`" if "proof" in row else "-"
    cells = (row["technique"], row["source"], offers + note, docs, proof)
    return "| " + " | ".join(cell.replace("|", r"\|") for cell in cells) + " |\n"


def _offers(offers: Sequence[str]) -> str:
    """Names as code, with the kind once before those that share it."""
    parts = []
    for kind, of_kind in groupby(map(kind_and_name, offers), key=lambda found: found[0]):
        names = [f"`{name}`" for _, name in of_kind]
        parts.append(f"{kind} {', '.join(names)}".lstrip())
    return "; ".join(parts)


def kind_and_name(offer: str) -> tuple[str, str]:
    """``("recipe", "mxfp6")`` of "recipe mxfp6"; of a public name or a command line ``("", offer)``."""
    found = re.fullmatch(rf"({'|'.join(KINDS)}) (.+)", offer)
    return (found[1], found[2]) if found else ("", offer)


def joined(data: Any, more: Any) -> Any:
    """The data with the rows of more behind those of their groups."""
    groups = {group["name"]: list(group["rows"]) for group in data["groups"]}
    for group in more["groups"]:
        groups.setdefault(group["name"], []).extend(group["rows"])
    return {"groups": [{"name": name, "rows": rows} for name, rows in groups.items()]}


def main() -> None:
    """Add the rows of other files, and write the page."""
    data = json.loads(DATA.read_text("utf-8"))
    for path in sys.argv[1:]:
        data = joined(data, json.loads(Path(path).read_text("utf-8")))
    DATA.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", "utf-8")
    PAGE.write_text(page(data), "utf-8")


if __name__ == "__main__":
    main()
