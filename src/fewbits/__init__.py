"""fewbits: more science with fewer bits.

Choose, store and invent narrow number formats. The everyday names are here; each is loaded when first used,
so that ``import fewbits.formats`` stays free of torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fewbits.errors import (
    ArgumentError,
    DataError,
    DTypeError,
    FewbitsError,
    FormatError,
    MissingDependencyError,
)
from fewbits.versions import release as _release

if TYPE_CHECKING:
    from fewbits.integrations.loading import load
    from fewbits.metrics import measure, qsnr
    from fewbits.nn.prepare import prepare
    from fewbits.planner import plan
    from fewbits.solvers import solve
    from fewbits.sparsity import sparsify
    from fewbits.tensor import NarrowTensor, dequantize, fake_quantize, format, matmul, matvec, quantize

_HOMES = {
    "NarrowTensor": "fewbits.tensor",
    "dequantize": "fewbits.tensor",
    "fake_quantize": "fewbits.tensor",
    "format": "fewbits.tensor",
    "load": "fewbits.integrations.loading",
    "matmul": "fewbits.tensor",
    "matvec": "fewbits.tensor",
    "plan": "fewbits.planner",
    "prepare": "fewbits.nn",
    "solve": "fewbits.solvers",
    "sparsify": "fewbits.sparsity",
    "quantize": "fewbits.tensor",
    "measure": "fewbits.metrics",
    "qsnr": "fewbits.metrics",
}
_FOLDERS = (
    "bench",
    "compare",
    "distributed",
    "files",
    "formats",
    "kernels",
    "metrics",
    "nn",
    "optim",
    "planner",
    "profiling",
    "ptq",
    "recipes",
    "records",
    "report",
    "solvers",
    "sparsity",
    "tensor",
    "train",
    "typing",
)

__all__ = [
    "ArgumentError",
    "DTypeError",
    "DataError",
    "FewbitsError",
    "FormatError",
    "MissingDependencyError",
    "NarrowTensor",
    "dequantize",
    "fake_quantize",
    "format",
    "load",
    "matmul",
    "matvec",
    "measure",
    "plan",
    "prepare",
    "qsnr",
    "quantize",
    "solve",
    "sparsify",
]

__version__ = _release("fewbits")


# Loaded when asked for like the others, but not listed: they need a package of an extra.
_OPTIONAL = ("jax",)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        globals()[name] = found = getattr(import_module(_HOMES[name]), name)  # not asked for again
        return found
    if name in (*_FOLDERS, *_OPTIONAL):
        return import_module(f"fewbits.{name}")
    if not name.startswith("_"):
        from fewbits.formats import CATALOGUE

        if name in CATALOGUE:
            return CATALOGUE[name].format
    raise AttributeError(f"fewbits has no name {name!r}; `fewbits formats` lists the formats")


def __dir__() -> list[str]:
    from fewbits.formats import CATALOGUE

    return [*__all__, *_FOLDERS, *CATALOGUE]
