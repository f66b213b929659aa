"""How tests of this folder compile: without a break, by what traces operators, and slowly by Inductor."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

BACKENDS = ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)]
"""aot_eager traces into operators and runs those; Inductor writes code, and takes seconds for each case."""

# Torch's own modules use what it deprecates when Inductor loads.
inductor_loads = pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning")


def compiled(
    function: Callable[..., Any], backend: str, *, dynamic: bool | None = True
) -> Callable[..., Any]:
    """Return the function in one graph, its sizes symbols; with None those alone that inputs mark."""
    torch._dynamo.reset()
    found: Callable[..., Any] = torch.compile(function, fullgraph=True, backend=backend, dynamic=dynamic)
    return found
