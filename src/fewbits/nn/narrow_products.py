"""Products that a prepared model writes as functions in its ``forward``, made narrow where asked for."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from fewbits.errors import ArgumentError
from fewbits.names import Selection, parents
from fewbits.nn.function_products import PRODUCTS, WIDE
from fewbits.nn.layer_classes import narrow_class
from fewbits.nn.layer_precision import LayerPrecision
from fewbits.nn.left_wide import LeftWide

Model = TypeVar("Model", bound=nn.Module)


def narrow_products(
    model: Model, *, include: str | Iterable[str] = "*", exclude: str | Iterable[str] = ()
) -> Model:
    """Make the products that modules of a prepared model write as functions narrow, forward and backward.

    These are ``a @ b``, torch.matmul, mm, bmm, mv, dot, vdot, inner, tensordot, addmm, addmv, baddbmm, einsum
    of two tensors, functional.linear and functional.scaled_dot_product_attention, called while ``forward`` of
    the model or of a module of it runs, in any thread. Operands are rounded as the recipe rounds activations,
    along the axis that the product sums over; a parameter of the model as it rounds weights. Results have the
    dtype that PyTorch gives them. Products over one value, integers, float64 and matrices that were excluded
    from the recipe stay as they are. Of functions that multiply and have no narrow form, as
    functional.conv2d, a warning names the module. Where a schedule changes the formats of layers, these
    products keep those of the recipe.

    Args:
        model: that :func:`fewbits.nn.prepare` was called with.
        include: patterns of module names: only what they and modules within them compute is changed.
        exclude: patterns of module names to leave out.

    Returns:
        The model itself.

    Raises:
        ArgumentError: the model was not prepared, its attention was made narrow already, or a pattern fits no
            module. In ``forward``: a product that cannot be narrow, or torch.compile.
    """
    recipe = getattr(model, "fewbits_recipe", None)
    if recipe is None:
        raise ArgumentError(
            f"{type(model).__name__} was not prepared; call fewbits.prepare(model, recipe) first"
        )
    names = dict(model.named_modules())
    if any(hasattr(m, "fewbits_attention") or hasattr(m, "fewbits_products") for m in names.values()):
        raise ArgumentError(f"the products of {type(model).__name__} are narrow already; ask for it once")
    selection = Selection.of(include, exclude, dict(model.named_modules(remove_duplicate=False)))
    wide: tuple[LeftWide, ...] = model.fewbits_wide  # type: ignore[assignment]  # torch types attributes as tensors or modules
    left = {entry.name for entry in wide if entry.why == "excluded"}
    around = parents(names) & left  # modules whose own products were excluded
    products = _Products(model, _wide_parameters(model, left))
    for name, module in names.items():
        prepared = isinstance(getattr(module, "precision", None), LayerPrecision)
        layer = prepared or narrow_class(module) is not None
        if not layer and name in selection and name not in left - around:
            module.fewbits_products = LayerPrecision(recipe, name)
    products.attach()
    seen = {n for n, m in names.items() if hasattr(m, "fewbits_products")}
    kept = tuple(entry for entry in wide if entry.name not in seen or entry.why == "excluded")
    model.fewbits_wide = kept  # type: ignore[assignment]  # as above
    return model


def _wide_parameters(model: nn.Module, left: set[str]) -> set[str]:
    """Return the names of parameters that are excluded themselves or lie in an excluded layer."""
    return {n for n, _ in model.named_parameters() if n in left or n.rpartition(".")[0] in left}


@dataclass
class _Running:
    """The modules whose ``forward`` runs in one thread, from the outermost in, and the mode around them."""

    mode: _Mode
    modules: list[nn.Module]


class _Products:
    """Hooks that know whose ``forward`` runs, and a mode around the outermost.

    That is the model, or a module of it that is called alone, as gradient checkpointing does when it computes
    a part again.
    """

    def __init__(self, model: nn.Module, wide: set[str]) -> None:
        self.model, self.wide = model, wide  # names of parameters
        self._by_thread: dict[int, _Running] = {}

    def attach(self) -> None:
        """Make the products of every forward pass of the model narrow."""
        for module in self.model.modules():
            module.register_forward_pre_hook(self.begin)
            module.register_forward_hook(self.end, always_call=True)

    def begin(self, module: nn.Module, *_: object) -> None:
        if _is_compiled():
            raise ArgumentError(
                "torch.compile with narrow_products: a compiled model calls no functions to look at; leave"
                " one of them out"
            )
        thread = threading.get_ident()
        own = self._by_thread.get(thread)
        if own is not None and own.modules[0] is module:  # it was interrupted: torch then calls no hooks
            self._leave(thread)
            own = None
        if own is None:
            own = self._by_thread[thread] = self._enter()
        own.modules.append(module)
        own.mode.precision = _precision(module)

    def end(self, module: nn.Module, *_: object) -> None:
        if _is_compiled():
            return
        thread = threading.get_ident()
        own = self._by_thread.get(thread)
        if own is None or own.modules[-1] is not module:  # it failed before it began
            return
        own.modules.pop()
        if not own.modules:
            self._leave(thread)
        else:
            own.mode.precision = _precision(own.modules[-1])

    def _enter(self) -> _Running:
        parameters = dict(self.model.named_parameters(remove_duplicate=False))
        mode = _Mode({id(parameters[name]) for name in self.wide})
        mode.__enter__()  # type: ignore[no-untyped-call]  # torch gives it no types
        return _Running(mode, [])

    def _leave(self, thread: int) -> None:
        self._by_thread.pop(thread).mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]  # as above


_NARROW: ContextVar[bool] = ContextVar("narrow", default=False)


def multiplies_narrow() -> bool:
    """Return whether what runs is a product that was made narrow, by whatever torch computes it."""
    return _NARROW.get()


def _precision(module: nn.Module) -> LayerPrecision | None:
    precision = getattr(module, "fewbits_products", None)
    return precision if isinstance(precision, LayerPrecision) else None


def _is_compiled() -> bool:
    """Whether torch.compile traces, or calls what it could not trace."""
    return torch.compiler.is_compiling() or bool(torch._C._dynamo.eval_frame.get_eval_frame_callback())


class _Mode(TorchFunctionMode):
    """Sees the functions of torch that are called, and takes the place of products."""

    def __init__(self, wide: set[int]) -> None:
        super().__init__()
        self.wide = wide
        self.precision: LayerPrecision | None = None  # of the module whose ``forward`` runs

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        precision = self.precision
        product = None if precision is None else PRODUCTS.get(func)
        given = (*args, *named.values()) if product is not None or func in WIDE else ()
        sparse = any(isinstance(x, torch.Tensor) and x.layout != torch.strided for x in given)
        if product is not None and not sparse and not any(self._is_wide(x) for x in given):
            if named.pop("out", None) is not None:
                raise ArgumentError(
                    f"{func.__name__} with out= is not made narrow; write `y = ...`, or exclude the module"
                )
            assert precision is not None
            token = _NARROW.set(any(precision.recipe.operands.values()))
            try:
                result = product(precision, *args, **_as_torch(func, named))
            finally:
                _NARROW.reset(token)
            if result is not None:
                return result
        if precision is not None and (func in WIDE or sparse):
            name = f"{getattr(func, '__name__', func)}{' with a sparse tensor' * sparse}"
            warnings.warn(
                f"the products of {name} in {precision.layer or 'the model'} stay wide; write them as matmul,"
                " einsum or a layer of dense tensors, or exclude the module",
                stacklevel=2,
            )
        return func(*args, **(kwargs or {}))

    def _is_wide(self, x: object) -> bool:
        return isinstance(x, torch.Tensor) and (id(x) in self.wide or id(x._base) in self.wide)


_NAMES = {"mat1": "a", "mat2": "b", "other": "b", "tensor": "b", "tensor2": "b", "batch1": "a", "batch2": "b"}
_NAMES |= {"mat": "a", "vec": "b"}
_FIRST = (
    torch.matmul,
    torch.mm,
    torch.bmm,
    torch.mv,
    torch.dot,
    torch.vdot,
    torch.inner,
    torch.linalg.matmul,
)


def _as_torch(func: object, named: dict[str, Any]) -> dict[str, Any]:
    """Return arguments by the names that products have, where torch has others."""
    names = _NAMES | {"input": "a"} if func in _FIRST else _NAMES
    return {names.get(name, name): value for name, value in named.items()}
