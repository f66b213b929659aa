"""Write the catalogue into docs/formats.md, between its two markers."""

from pathlib import Path

from fewbits.formats import CATALOGUE

PAGE = Path(__file__).parent.parent / "docs" / "formats.md"
START, END = "<!-- catalogue -->\n", "<!-- end of catalogue -->\n"


def table() -> str:
    """Return the catalogue as a Markdown table."""
    rows = ["| name | bits per value | written as | what it is | source |", "|---|---|---|---|---|"]
    rows += [
        f"| `{e.name}` | {e.format.bits_per_value:.4g} | `{e.format.grammar}` | {e.summary} | {e.source} |"
        for e in CATALOGUE.values()
    ]
    return "\n".join(rows) + "\n"


def page(text: str) -> str:
    """Return the page with the table between the markers made anew."""
    before, rest = text.split(START)
    return before + START + table() + END + rest.split(END)[1]


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text("utf-8")), "utf-8")
