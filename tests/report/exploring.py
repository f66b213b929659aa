"""Records of a design space, and of a choice within a budget, that look like real ones."""

from __future__ import annotations

import math

from fewbits.records import (
    Exploration,
    ExploredData,
    ExploredFormat,
    ExploredFront,
    Finalist,
    FormatChoice,
    FrontSensitivity,
    PlacedFormat,
)

DATA = ExploredData(
    "variance", "normal, the variance of each vector drawn as |N(0, 1)|", 10000, 256, 0, "floor"
)
TABLE = f"lookup({','.join(f'{v / 16:g}' for v in range(-15, 17))})"
ELEMENTS = {
    "float": "float(e=2,m={})",
    "int": "int({},coding=symmetric)",
    "posit": "posit({},es=1)",
    "lookup": TABLE,
}
SCALES = {"power of two": "e8m0", "float": "fp8_e4m3", "integer": "int(8,coding=unsigned)"}


def formats() -> tuple[ExploredFormat, ...]:
    """BDR and blocks of every family and kind of scale, some without a finite QSNR."""
    found = [
        ExploredFormat(
            f"bdr(m={m},d1={d1},k1={k1})", "bdr", "power of two", m + 1.5 + d1 / k1,
            6.02 * m + 4 - k1 / 40, 0.02 * m**1.8, 6.02 * m - 8 - k1 / 40,
        )
        for m in range(1, 9) for d1 in (4, 8) for k1 in (8, 16, 64)
    ]  # fmt: skip
    for i, (family, element) in enumerate(ELEMENTS.items()):
        for j, (kind, scale) in enumerate(SCALES.items()):
            for bits in range(3, 9):
                shared = f"scale={scale},size=16,outer=fp32,outer_size=tensor"
                name = f"block(element={element.format(bits)},{shared})"
                qsnr = 5.9 * bits - 3 * i + j
                found.append(
                    ExploredFormat(name, family, kind, bits + 0.25 * j, qsnr, 0.03 * bits**2, math.nan)
                )
    found.append(ExploredFormat("int8", "int", "none", 8.0, -math.inf, 0.4, math.nan))
    return tuple(sorted({f.format: f for f in found}.values(), key=lambda f: f.bits_per_value))


def exploration() -> Exploration:
    """A space of 110 formats, one of them with a long name beside the front."""
    of = formats()
    names = tuple(f.format for f in of[::9])
    fronts = tuple(
        ExploredFront(cost, scale, names) for cost in ("bits", "proxy") for scale in ("any", "power of two")
    )
    placed = tuple(
        PlacedFormat(f, 0.0 if i == 1 else 0.31 * i, -0.55, 3.61, math.inf) for i, f in enumerate(of[5::13])
    )
    values = [
        (name, value)
        for name, of_name in (("d1", (4, 8)), ("k1", (8, 16)), ("d2", (0, 1)), ("k2", (1, 2)))
        for value in of_name
    ]
    sensitivity = tuple(
        FrontSensitivity(
            name, value, 639 - value, 0.1 * value, 0.4 * value, 0.2 * value, math.nan if value == 8 else 13.4
        )
        for name, value in values
    )
    return Exploration(DATA, of, fronts, placed, sensitivity)


def choice() -> FormatChoice:
    """A table that wins, and others of each kind."""
    named = {f.family: f for f in formats()}
    table = ExploredFormat(
        f"block(element={TABLE},scale=fp8_e4m3,size=16)", "lookup", "float", 4.5, 22.48, 0.97, math.nan
    )
    finalists = [Finalist(table, "table", 22.44)]
    finalists += [Finalist(f, kind, 22 - i) for i, (kind, f) in enumerate(named.items())]
    finalists.append(Finalist(next(f for f in formats() if f.format == "int8"), "named", -math.inf))
    return FormatChoice(DATA, 4.5, 764, 24, tuple(finalists))
