"""Which narrow class takes the place of a module's own, and what is left wide without one."""

from __future__ import annotations

import re
from typing import Any

from torch import nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from fewbits.nn.layers import LAYERS, NO_ADDITION
from fewbits.nn.layers.experts import NarrowExperts, NarrowRouter, is_experts
from fewbits.nn.layers.input_first import NarrowInputFirstLinear
from fewbits.recipes import Recipe
from fewbits.tensor import NarrowTensor

# By name: to import the package of such a class would take seconds, and not everybody has it.
_ELSEWHERE: dict[str, type[nn.Module]] = {"transformers.pytorch_utils.Conv1D": NarrowInputFirstLinear}
_ROUTER = re.compile(r"transformers\.models\..*\.\w+Top[Kk]Router")
_CLASSES: dict[tuple[type[nn.Module], type[nn.Module]], type[nn.Module]] = {}  # what derived() has made
# A subclass may define these without another arithmetic.
_FREE = ("reset_parameters", "extra_repr", "from_pretrained")


def narrow_class(module: nn.Module) -> type[nn.Module] | None:
    """Return the class that computes for a module with narrow operands; None if there is none.

    A subclass of a known layer has one if it changes no method by which that layer computes.
    """
    kind = type(module)
    if "forward" in vars(module) or _is_lazy(module):  # the instance's own would hide that of any class
        return None
    known = LAYERS.get(kind) or _ELSEWHERE.get(_full_name(kind))
    if known is not None:
        return known
    for layer, narrow in LAYERS.items():
        if issubclass(kind, layer) and not _overridden(kind, layer):
            return derived(narrow, kind)
    if is_experts(module):
        return derived(NarrowExperts, kind)
    if _ROUTER.fullmatch(_full_name(kind)) and own_matrices(module) == ["weight"]:
        return derived(NarrowRouter, kind)
    return None


def obstacle(module: nn.Module, chosen: Recipe) -> str | None:
    """Return why a module that multiplies by matrices has no narrow form; None for any other module."""
    narrow, kind = narrow_class(module), type(module)
    if narrow is not None:
        if any(isinstance(p, NarrowTensor) for p in module.parameters()):
            return "its weights are packed already"
        if chosen.product == "add" and issubclass(narrow, NO_ADDITION):
            return "its products have no form without multiplications"
        if chosen.parameter is not None and _is_normed(module):
            return f"its weight is computed from others, which are not to be held in {chosen.parameter}"
        return "its weights are complex" if any(p.is_complex() for p in module.parameters()) else None
    layer = next((base for base in LAYERS if issubclass(kind, base)), None)
    if _is_lazy(module):
        return "it has no weights yet: run a batch through the model first"
    if layer is not None and "forward" in vars(module):
        return "its forward was replaced on the instance"
    if layer is not None:
        return f"a {layer.__name__} with a {_overridden(kind, layer)[0]} of its own"
    matrices = own_matrices(module)
    return f"it holds {' and '.join(matrices)} itself" if matrices else None


def _is_normed(module: nn.Module) -> bool:
    """Whether a weight is computed by a parametrization, or before each call by a norm of the older kind."""
    older = [h for h in module._forward_pre_hooks.values() if isinstance(h, (WeightNorm, SpectralNorm))]
    return parametrize.is_parametrized(module) or bool(older)


def own_matrices(module: nn.Module) -> list[str]:
    """Return the names of the matrices among a module's own parameters; norms multiply element by element."""
    if isinstance(module, (nn.LayerNorm, nn.RMSNorm)):
        return []
    own = [] if _is_lazy(module) else module.named_parameters(recurse=False)
    return [
        n for n, p in own if (p.is_floating_point() or p.is_complex()) and sum(k > 1 for k in p.shape) > 1
    ]


def derived(narrow: type[nn.Module], kind: type[nn.Module]) -> type[nn.Module]:
    """Return a class that computes as ``narrow`` does and is a ``kind`` in everything else."""
    if (narrow, kind) not in _CLASSES:
        bases = (_Derived, narrow, kind)
        _CLASSES[narrow, kind] = type(f"Narrow{kind.__name__}", bases, {"__module__": __name__})
    return _CLASSES[narrow, kind]


def become_narrow(module: nn.Module) -> None:
    """Give a module that has a narrow class that class."""
    narrow, kind = narrow_class(module), type(module)
    assert narrow is not None
    if parametrize.is_parametrized(module):
        # As torch has it: a class of the module's own, above that which remove_parametrizations restores.
        (plain,), (_, narrow, _) = kind.__bases__, narrow.__bases__
        below = narrow if LAYERS.get(plain) is narrow else derived(narrow, plain)
        own = {n: x for n, x in vars(kind).items() if n not in ("__dict__", "__weakref__")}
        narrow = type(f"Parametrized{below.__name__}", (below,), own)
    module.__class__ = narrow


class _Derived(nn.Module):
    """Lets copies and pickles find a class that was made while the program ran."""

    def __reduce_ex__(self, protocol: Any) -> Any:
        _, narrow, kind = type(self).__bases__
        return (_blank, (narrow, kind), *super().__reduce_ex__(protocol)[2:])


def _blank(narrow: type[nn.Module], kind: type[nn.Module]) -> nn.Module:
    return nn.Module.__new__(derived(narrow, kind))


def _overridden(kind: type, layer: type) -> list[str]:
    """Return the names of methods of a known layer that a subclass defines anew."""
    bases = layer.__mro__[: layer.__mro__.index(nn.Module)]
    methods = {n for base in bases for n in vars(base) if not n.startswith("__") and n not in _FREE}
    methods |= {"__call__", "_call_impl", "__torch_function__"}
    between = [base for base in kind.__mro__ if base not in layer.__mro__]
    return sorted((n for base in between for n in vars(base) if n in methods), key=lambda n: n != "forward")


def _is_lazy(module: nn.Module) -> bool:
    return any(map(is_lazy, module.parameters(recurse=False)))


def _full_name(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"
