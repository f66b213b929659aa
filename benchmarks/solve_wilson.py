"""How much faster does a 16-bit solver reach the solution of a double one, for the Wilson operator?

Clover and staggered fermions follow, each iteration and each application against Wilson's in the same run.

Peer: the same solver in double precision, on the same links with 18 and with 12 numbers. All solve M x = b to
the same true residual, in one process, alternating, medians; milliseconds for each iteration come from the
same runs, with every computation of the true residual in them. Limit: bytes that an iteration has to move,
each field read once in each pass, at the speed of a copy. On even sites an iteration applies the operator
twice too, as its Schur complement: "times fewer" are the applications that this saves.

    python benchmarks/solve_wilson.py [--time 32] [--space 16] [--rounds 5] [--json FILE]
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from _alternating import arguments, seconds, table, write

from fewbits.solvers import lattice
from fewbits.solvers.precision import krylov_precision

KINDS = (
    *(("double", 18, False), ("double", 12, False), ("double", 12, True)),
    *(("single", 12, False), ("half", 18, False), ("half", 12, False), ("half", 12, True)),
    *(("half", 8, False), ("quarter", 12, False), ("quarter", 12, True)),
)
# Clover and staggered fermions on the same links, beside Wilson's.
Case = tuple[str, str, bool]
OTHERS: tuple[Case, ...] = tuple(
    (kind, precision, even_odd)
    for kind in ("clover", "staggered")
    for precision, even_odd in (("double", False), ("half", False), ("half", True))
)
STAGGERED_MASS = 0.2
APPLICATIONS = 10  # in one measurement
BYTES = {"double": (192, 192, 8), "single": (96, 96, 4), "half": (52, 96, 2), "quarter": (28, 96, 1)}
ROUGHNESS, MASS, TOL = 0.5, 0.0, 1e-10


def megabytes(precision: str, numbers: int, even_odd: bool, sites: int) -> float:
    """Return what an iteration moves: x, p, r; p, links, t; t, links, r; x, p and r there and back.

    On even sites: half of x and of each spinor; what goes through the odd ones is six halves more, and each
    of the four half applications reads all links.
    """
    spinor, x, each = BYTES[precision]
    if even_odd:
        return sites * (x + 7 * spinor + 4 * 4 * numbers * each) / 1e6
    return sites * (2 * x + 8 * spinor + 2 * 4 * numbers * each) / 1e6


def name_of(precision: str, numbers: int, even_odd: bool) -> str:
    """Return the name of a row."""
    return f"{precision}-{numbers}" + " even-odd" * even_odd


def others(time: int, space: int, rounds: int) -> list[dict[str, Any]]:
    """Return time to solution of clover and staggered fermions, and each iteration against Wilson's."""
    shape = (time, space, space, space)
    links = lattice.smooth_links(shape, ROUGHNESS, seed=0)
    parts = np.random.default_rng(0).standard_normal((*shape, 4, 3, 2))
    b = parts.view(np.complex128)[..., 0]
    operators: dict[str, Any] = {
        "wilson": lattice.Wilson(links, mass=MASS),
        "clover": lattice.Clover(links, mass=MASS),
        "staggered": lattice.Staggered(links, mass=STAGGERED_MASS),
    }
    found: dict[Case, Any] = {}

    def solve(kind: str, precision: str, even_odd: bool) -> None:
        right = b[..., 0, :] if kind == "staggered" else b
        found[kind, precision, even_odd] = operators[kind].solve(
            right, precision=precision, rtol=TOL, even_odd=even_odd
        )

    wilson = tuple(dict.fromkeys(("wilson", precision, even_odd) for _, precision, even_odd in OTHERS))
    calls = {key: partial(solve, *key) for key in (*wilson, *OTHERS)}
    taken = seconds(calls, rounds)
    each = {key: 1e3 * taken[key] / found[key].iterations for key in calls}
    once = seconds({key: application(operators[key[0]], *key[1:]) for key in calls}, rounds)
    return [
        {
            "kind": f"{kind} {precision}" + " even-odd" * even_odd,
            "iterations": found[kind, precision, even_odd].iterations,
            "residual": found[kind, precision, even_odd].residual,
            "seconds": taken[kind, precision, even_odd],
            "milliseconds_each": each[kind, precision, even_odd],
            "times_wilsons_iteration": each[kind, precision, even_odd] / each["wilson", precision, even_odd],
            "milliseconds_of_an_application": 1e3 * once[kind, precision, even_odd] / APPLICATIONS,
            "times_wilsons_application": once[kind, precision, even_odd]
            / once["wilson", precision, even_odd],
        }
        for kind, precision, even_odd in calls
    ]


def application(operator: Any, precision: str, even_odd: bool) -> Callable[[], None]:
    """Return what applies an operator to packed vectors: H, or D of staggered fermions.

    On even sites that is the Schur complement, and of staggered fermions D from even to odd ones.
    """
    normal = operator.normal
    if even_odd:
        normal = operator.even_normal if hasattr(operator, "even_normal") else normal.even_odd_operator()
    vectors = normal.cg_vectors(krylov_precision(precision))
    vectors.load(torch.randn(normal.n, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    vectors.update_direction(1.0, 0.0)

    def apply() -> None:
        for _ in range(APPLICATIONS):
            vectors.hops.curvature(vectors.p, vectors.t, 1.0)

    return apply


def measure(time: int, space: int, rounds: int) -> list[dict[str, Any]]:
    """Return time to solution and time for each iteration of every kind."""
    shape = (time, space, space, space)
    links = lattice.smooth_links(shape, ROUGHNESS, seed=0)
    parts = np.random.default_rng(0).standard_normal((*shape, 4, 3, 2))
    b = parts.view(np.complex128)[..., 0]
    found: dict[str, Any] = {}

    def solve(name: str, operator: lattice.Wilson, precision: str, even_odd: bool) -> None:
        found[name] = operator.solve(b, precision=precision, rtol=TOL, even_odd=even_odd)

    calls: dict[str, Callable[[], Any]] = {}
    for precision, numbers, even_odd in KINDS:
        operator = lattice.Wilson(links, mass=MASS, reconstruct=numbers)
        name = name_of(precision, numbers, even_odd)
        calls[name] = partial(solve, name, operator, precision, even_odd)
    sites = b.size // 12
    source = torch.zeros(2**24)
    target = torch.empty_like(source)
    calls["copy"] = lambda: target.copy_(source)
    taken = seconds(calls, rounds)
    best = min(taken["double-18"], taken["double-12"])
    rows = []
    for precision, numbers, even_odd in KINDS:
        name = name_of(precision, numbers, even_odd)
        one, moved = found[name], megabytes(precision, numbers, even_odd, sites)
        each = 1e3 * taken[name] / one.iterations
        rows.append(
            {
                "kind": name,
                "iterations": one.iterations,
                "reliable_updates": one.reliable_updates,
                "residual": one.residual,
                "seconds": taken[name],
                "milliseconds_each": each,
                "megabytes_each": moved,
                "of_limit": 1e3 * taken["copy"] * moved * 1e6 / (2 * source.nbytes) / each,
                "times_faster_than_double": best / taken[name],
                "times_fewer_applications": (
                    found[name_of(precision, numbers, False)].iterations / one.iterations
                ),
            }
        )
    return rows


def main() -> None:
    """Print the table and write the figures."""
    given = arguments(__doc__ or "", time=32, space=16)
    rows = measure(given.time, given.space, given.rounds)
    lattice_size = f"{given.space}^3 x {given.time} sites"
    print(f"{lattice_size}, links 1 + {ROUGHNESS} noise, mass {MASS}, |b - M x| <= {TOL} |b|")
    table(
        (
            "kind",
            "iterations",
            "updates",
            "residual",
            "s",
            "ms each",
            "MB each",
            "of limit",
            "times double",
            "times fewer",
        ),
        [
            (
                r["kind"],
                r["iterations"],
                r["reliable_updates"],
                f"{r['residual']:.1e}",
                r["seconds"],
                r["milliseconds_each"],
                r["megabytes_each"],
                r["of_limit"],
                r["times_faster_than_double"],
                r["times_fewer_applications"],
            )
            for r in rows
        ],
    )
    more = others(given.time, given.space, given.rounds)
    table(
        (
            "kind",
            "iterations",
            "residual",
            "s",
            "ms each",
            "times Wilson's",
            "ms an application",
            "times Wilson's",
        ),
        [
            (
                r["kind"],
                r["iterations"],
                f"{r['residual']:.1e}",
                r["seconds"],
                r["milliseconds_each"],
                r["times_wilsons_iteration"],
                r["milliseconds_of_an_application"],
                r["times_wilsons_application"],
            )
            for r in more
        ],
    )
    write(given.json, rows + more)


if __name__ == "__main__":
    main()
