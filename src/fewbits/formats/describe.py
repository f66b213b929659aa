"""A format as text: its facts, one per line."""

from __future__ import annotations

from fewbits.formats.blocks import Bdr, Block
from fewbits.formats.catalogue import CATALOGUE, name_of
from fewbits.formats.elements import Element, Fixed, Float
from fewbits.formats.format import Format


def facts(fmt: Format) -> tuple[tuple[str, str], ...]:
    """Return (what, value) pairs: everything a reader of the specification would look up."""
    name = name_of(fmt)
    rows = [
        ("format", name or fmt.grammar),
        ("written as", fmt.grammar),
        ("bits per value", f"{fmt.bits_per_value:g}"),
    ]
    if isinstance(fmt, Block):
        rows += _block_facts(fmt)
    elif isinstance(fmt, Bdr):
        rows += [
            ("scale", f"{fmt.scale}, one per {fmt.k1} values"),
            ("microexponent", f"a shift by 0 to {fmt.largest_shift}, one per {fmt.k2} values"),
            ("element", f"{fmt.element.grammar}"),
        ]
    element = fmt if isinstance(fmt, Element) else fmt.element  # type: ignore[attr-defined]
    rows += _element_facts(element)
    if name:
        rows += [("summary", CATALOGUE[name].summary), ("source", CATALOGUE[name].source)]
    return tuple(rows)


def _block_facts(fmt: Block) -> list[tuple[str, str]]:
    per = fmt.size if isinstance(fmt.size, str) else f"{fmt.size} values"
    rows = [("scale", f"{fmt.scale}, one per {per}")]
    if fmt.outer is not None:
        rows.append(("outer scale", f"{fmt.outer}, one per {fmt.outer_size}"))
    return [*rows, ("element", str(fmt.element))]


def _element_facts(e: Element) -> list[tuple[str, str]]:
    rows = [("largest", f"{e.max:.9g}"), ("most negative", f"{e.min:.9g}")]
    if isinstance(e, Float):
        rows += [("bias", str(e.bias)), ("smallest normal", f"{e.smallest_normal:.9g}")]
        rows += [("smallest subnormal", f"{e.smallest_subnormal:.9g}")] if e.mantissa_bits else []
        rows += [("not numbers", {"none": "none", "fn": "one NaN", "fnuz": "one NaN (the code of -0)"}.get(
            e.special, "infinities and NaN"))]  # fmt: skip
    elif isinstance(e, Fixed):
        rows += [("step", f"{e.smallest_normal:.9g}"), ("coding", e.coding.replace("_", " "))]
    else:
        rows += [("smallest", f"{e.smallest_normal:.9g}")]
    return rows


def describe(fmt: Format) -> str:
    """Return the facts of a format as an aligned table, one fact per line."""
    rows = facts(fmt)
    width = max(len(what) for what, _ in rows)
    return "\n".join(f"{what:<{width}}  {value}" for what, value in rows)
