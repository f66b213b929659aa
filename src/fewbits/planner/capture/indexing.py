"""Values picked, moved or added up along some axes, which stay whole while the others are free.

Where they came from is kept as integers of 64 bits, which count as two values.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from torch.fx import Node

from fewbits.planner.capture.arguments import argument, extents, operation, tensors
from fewbits.planner.capture.draft import Draft, Names, Use, axis_names
from fewbits.planner.capture.products import shape_of


def _drafted(uses: list[Use], outputs: list[Names], shape: tuple[int, ...], places: int = 0) -> Draft:
    draft = Draft("elementwise", uses, outputs, {}, flops=float(math.prod(shape)), saved=2 * places)
    draft.run_along(shape, outputs[0])
    return draft


def joined(node: Node) -> Draft:
    """Tensors one after the other along an axis."""
    given, out = tensors(node), extents(node)[0]
    dim = _integer(argument(node, 1, "dim", 0)) % len(out)
    stacked = len(shape_of(given[0])) < len(out)
    dims = _without(out, {dim})
    read = tuple(d for i, d in enumerate(dims) if not stacked or i != dim)
    return _drafted([Use(x, read, kept=False) for x in given if shape_of(x) != (0,)], [dims], out)


def along(node: Node) -> Draft:
    """Sums, orders, shifts and margins along axes."""
    (x, *_) = tensors(node)
    out = extents(node)[0]
    dims = _without(out, _moved(node, len(out)))
    name = operation(node)
    draft = _drafted(
        [Use(x, dims, kept=name == "cumprod")],
        [dims for _ in extents(node)],
        out,
        math.prod(out) if name in {"sort", "topk"} else 0,
    )
    draft.keeps_output = name == "cumprod"
    return draft


def _moved(node: Node, rank: int) -> set[int]:
    name = str(node.target).split(".")[1]
    if name in {"pad", "constant_pad_nd"}:
        padding = argument(node, 1, "pad")
        return {rank - 1 - i // 2 for i, n in enumerate(padding if isinstance(padding, list) else []) if n}
    if name in {"tril", "triu"}:
        return {rank - 2, rank - 1}
    where = {"roll": 2, "topk": 2}.get(name, 1)
    # Without an axis, roll moves values of the flattened tensor; the others take the last one.
    default = None if name == "roll" else -1
    given = argument(node, where, "dims" if name in {"roll", "flip"} else "dim", default)
    dims = given if isinstance(given, (list, tuple)) else [given]
    return {d % rank for d in dims if isinstance(d, int) and rank} or set(range(rank))


def gather(node: Node) -> Draft:
    """``y[i, j] = x[index[i, j], j]``: the axis picked from stays whole, and others that are not as long."""
    x, index = tensors(node)
    given, out = shape_of(x), extents(node)[0]
    dim = _integer(argument(node, 1, "dim")) % len(out)
    dims = tuple(
        d if n == given[i] else None for i, (d, n) in enumerate(zip(_without(out, {dim}), out, strict=True))
    )
    return _drafted([Use(x, dims), Use(index, dims, kept=False)], [dims], out, math.prod(out))


def index_select(node: Node) -> Draft:
    """``y[i, j] = x[index[i], j]``."""
    x, index = tensors(node)
    out = extents(node)[0]
    dims = _without(out, {_integer(argument(node, 1, "dim")) % len(out)})
    return _drafted(
        [Use(x, dims, kept=False), Use(index, (None,), kept=False)], [dims], out, math.prod(shape_of(index))
    )


def index(node: Node) -> Draft | None:
    """``x[:, i, j]``: the axes that indices pick from stay whole; None where they do not stand together."""
    x, *indices = tensors(node)
    given, out = shape_of(x), extents(node)[0]
    listed = argument(node, 1, "indices")
    places = (
        [i for i, one in enumerate(listed) if one is not None] if isinstance(listed, (list, tuple)) else []
    )
    if not places or places != list(range(places[0], places[-1] + 1)):
        return None
    picked = len(out) - (len(given) - len(places))
    names = axis_names(len(out))
    before, after = names[: places[0]], names[places[0] + picked :]
    output: Names = (*before, *(None,) * picked, *after)
    reads = [Use(x, (*before, *(None,) * len(places), *after), kept=False)]
    reads += [Use(i, (None,) * len(shape_of(i)), kept=False) for i in indices]
    return _drafted(reads, [output], out, sum(math.prod(shape_of(i)) for i in indices))


def _integer(given: object) -> int:
    assert isinstance(given, int)
    return given


def _without(shape: tuple[int, ...], gone: set[int]) -> Names:
    return tuple(None if i in gone else name for i, name in enumerate(axis_names(len(shape))))


INDEXING: dict[str, Callable[[Node], Draft | None]] = {
    **dict.fromkeys(("cat", "concat", "stack"), joined),
    **dict.fromkeys(("cumsum", "cumprod", "flip", "roll", "pad", "constant_pad_nd", "tril", "triu"), along),
    **dict.fromkeys(("sort", "argsort", "topk"), along),
    "gather": gather,
    "index_select": index_select,
    "index": index,
}
