"""What a log may say of precision: the names of the official list, and that a claim is what ran."""

from __future__ import annotations

from fewbits.errors import ArgumentError, FormatError
from fewbits.formats import Block, parse
from fewbits.formats.narrowest import element_bits, narrowest
from fewbits.recipes.recipe import OPERANDS, Recipe
from fewbits.records import RanPrecision

ACCEPTED = (
    "fp64", "fp32", "tf32", "fp16", "fp8", "mxfp6", "nvfp4", "mxfp4", "bfloat16", "Graphcore FLOAT 16.16",
    "int8", "uint8", "int4", "uint4",
)  # fmt: skip
"""The names that the rules of version 6.1 list."""

# Formats of that list by their names here. MXFP8 has no name there: its elements are FP8.
_NAMES = {
    "fp64": "fp64", "fp32": "fp32", "tf32": "tf32", "bf16": "bfloat16", "fp16": "fp16",
    "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "hfp8_e4m3": "fp8", "mxfp8_e4m3": "fp8", "mxfp8_e5m2": "fp8",
    "mxfp6_e3m2": "mxfp6", "mxfp6_e2m3": "mxfp6", "mxfp4": "mxfp4", "nvfp4": "nvfp4",
    "int8": "int8", "uint8": "uint8", "int4": "int4", "uint4": "uint4", "mxint8": "int8",
}  # fmt: skip
# Elements of blocks whose scale the list does not name.
_ELEMENTS = {
    "fp8_e4m3": "fp8", "fp8_e5m2": "fp8", "fp16": "fp16",
    "int(8,coding=symmetric)": "int8", "int(4,coding=symmetric)": "int4", "int8": "int8", "int4": "int4",
}  # fmt: skip


def logged_name(format: str) -> str:
    """Return the name of a format in logs.

    Raises:
        ArgumentError: the list of the rules has no name for it.

    >>> logged_name("mxfp8_e4m3"), logged_name("int8_256"), logged_name("bf16")
    ('fp8', 'int8', 'bfloat16')
    """
    if format in _NAMES:
        return _NAMES[format]
    parsed = parse(format)
    name = _ELEMENTS.get(str(parsed.element)) if isinstance(parsed, Block) else _NAMES.get(str(parsed))
    if name is None:
        raise ArgumentError(
            f"format {format} has no name in the list of the rules ({', '.join(ACCEPTED)}): no log can"
            " disclose it; leave the logs of this recipe out"
        )
    return name


def bits(format: str) -> float:
    """Return the bits of a value, shares of scales counted."""
    return 64.0 if format == "fp64" else parse(format).bits_per_value


def claimed_linear(recipe: Recipe) -> list[str]:
    """Return the narrowest format that a recipe says products have; several, where they are equally wide."""
    formats = operand_formats(recipe)
    fewest = min(map(element_bits, formats))
    return [format for format in formats if element_bits(format) == fewest]


def operand_formats(recipe: Recipe) -> list[str]:
    """Return all formats that a recipe has for products: layers or attention alone may have any of them."""
    operands = [str(r.format) for name in OPERANDS if (r := getattr(recipe, name)) is not None]
    return list(dict.fromkeys([recipe.autocast or recipe.vector, *operands]))


def check_claim(recipe: Recipe, ran: RanPrecision) -> None:
    """Refuse a recipe whose products did not run as it says.

    Raises:
        ArgumentError: the narrowest format that products had is another one than the recipe has. A recipe
            that changes formats on the way claims none.
    """
    claimed = claimed_linear(recipe)
    if not recipe.schedule and _same(ran.linear) not in map(_same, claimed):
        raise ArgumentError(
            f"recipe {recipe.name} claims products in {' or '.join(claimed)}, and what ran had {ran.linear}:"
            " the model multiplies by itself, or has layers that the recipe does not reach; take the recipe"
            " that ran"
        )


def merged(seen: list[RanPrecision]) -> RanPrecision:
    """Return the narrowest that was seen of each class of operation, and where some steps had wider ones."""
    linear = narrowest(r.linear for r in seen)
    assert linear is not None, "nothing was seen"
    return RanPrecision(
        linear,
        narrowest(r.attention for r in seen if r.attention is not None),
        narrowest(r.communication for r in seen if r.communication is not None),
        tuple(dict.fromkeys([*(name for r in seen for name in r.wide_layers), *_changes(seen)])),
    )


def _changes(seen: list[RanPrecision]) -> list[str]:
    """Name the wider formats of steps that computed, or sent, in other ones than the narrowest."""
    found = []
    for role in ("linear", "attention", "communication"):
        formats = list(dict.fromkeys(f for r in seen if (f := getattr(r, role)) is not None))
        wider = [f for f in formats if f != narrowest(formats)]
        found += [f"{role} in some steps: {', '.join(wider)}"] if wider else []
    return found


def never_ran(recipe: Recipe, ran: RanPrecision) -> str:
    """Say that a recipe which changes formats did not get to the narrowest that it has; "" where it did."""
    claimed = claimed_linear(recipe)
    if not recipe.schedule or element_bits(ran.linear) <= element_bits(claimed[0]):
        return ""
    return (
        f"recipe {recipe.name} has {' or '.join(claimed)}, which never ran: products were in {ran.linear};"
        " give it more steps"
    )


def _same(format: str) -> str:
    """Return one spelling for a format."""
    try:
        return str(parse(format))
    except FormatError:
        return format
