"""When torch's dispatcher would call nothing but an operator's kernel, which may then be called without it.

Through the dispatcher and its autograd a call takes three times as long as rounding a few thousand values.
"""

from __future__ import annotations

from functools import reduce
from operator import or_

import torch
from torch.autograd import forward_ad

_C = torch._C

# Of an ordinary tensor on the CPU, in inference mode or not. No other key means: no subclass, no mode, no
# transform of torch.func, no tracer, no sign or conjugation only noted, no other device. Under the key of
# autocast no operator of ours has a kernel, and under those of autograd only what records.
_ORDINARY = reduce(
    or_,
    (
        _C.DispatchKeySet(key).raw_repr()
        for key in (
            _C.DispatchKey.CPU,
            _C.DispatchKey.BackendSelect,
            _C.DispatchKey.ADInplaceOrView,
            _C.DispatchKey.AutogradCPU,
            _C.DispatchKey.AutocastCPU,
        )
    ),
)
_OTHERS = ~_ORDINARY

# Looked up once: each call on a small tensor asks all of them.
_is_compiling = torch.compiler.is_compiling
_keys, _keys_of_thread = _C._dispatch_keys, _C._dispatch_tls_local_include_set
_functions_watching = _C._len_torch_function_stack
_profiler_enabled = torch.autograd._profiler_enabled  # type: ignore[attr-defined]  # imported there, not exported


def is_ordinary(*tensors: torch.Tensor) -> bool:
    """Return whether the kernel alone would run for these tensors, but for what autograd records.

    The keys are those by which the dispatcher chooses: of the tensors and of this thread. A profiler and a
    mode of torch functions see calls that reach the dispatcher.
    """
    if _is_compiling() or _profiler_enabled() or _functions_watching():
        return False
    keys = _keys_of_thread().raw_repr()
    for x in tensors:
        keys |= _keys(x).raw_repr()
    return not keys & _OTHERS


def is_recorded(x: torch.Tensor) -> bool:
    """Return whether autograd, backward or forward, takes note of what is computed from ``x``."""
    return is_recorded_forward() or (x.requires_grad and torch.is_grad_enabled())


def is_recorded_forward() -> bool:
    """Return whether autograd computes derivatives along with values, of whatever tensor."""
    return forward_ad._current_level >= 0
