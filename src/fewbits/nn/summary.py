"""What has become of each layer of a prepared model, as a record that prints itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize
from torch.utils._python_dispatch import TorchDispatchMode

from fewbits.errors import ArgumentError
from fewbits.nn.layer_precision import LayerPrecision
from fewbits.nn.left_wide import LeftWide
from fewbits.nn.narrow_products import multiplies_narrow
from fewbits.recipes.recipe import OPERANDS, Recipe
from fewbits.tensor.evaluation import buffers_kept

# Layers that have not all operands; a scalar slope has none.
_ONLY: dict[type[nn.Module], tuple[str, ...]] = {
    nn.Embedding: ("forward_weight",),
    nn.EmbeddingBag: ("forward_weight",),
    nn.PReLU: (),
}
_GROUPS = ("weight", "activation", "gradient")


@dataclass(frozen=True)
class LayerSummary:
    """One layer, or something else that multiplies.

    Attributes:
        name: in the model.
        kind: the class that it was.
        state: ``narrow``; ``kept``, in the vector format only, because the recipe spares the first or the
            last layer; or ``wide``, as it was.
        operands: the format of each operand of its products that is rounded, as text.
        notes: why it is wide or kept, and what is particular about it.
    """

    name: str
    kind: str
    state: str
    operands: dict[str, str]
    notes: tuple[str, ...]

    def __str__(self) -> str:
        """Return one line."""
        parts = [f"{role}={text}" for role, text in _grouped(self.operands).items()]
        return "  ".join(x for x in (self.state, ", ".join(parts), "; ".join(self.notes)) if x)


@dataclass(frozen=True)
class Summary:
    """All layers of a prepared model, in its order; ``str`` makes a table of it."""

    recipe: Recipe
    layers: tuple[LayerSummary, ...]

    def __str__(self) -> str:
        """Return a line for each layer below one for the recipe."""
        rows = [(layer.name or "the model", layer.kind, str(layer)) for layer in self.layers]
        widths = [max((len(row[i]) for row in rows), default=0) for i in (0, 1)]
        flows = self.recipe.autocast or self.recipe.vector
        head = f"{self.recipe.name}: {flows} between products" + (
            ", by torch.autocast around the whole model" if self.recipe.autocast else ""
        )
        return "\n".join([head, *(f"{n:<{widths[0]}}  {k:<{widths[1]}}  {text}" for n, k, text in rows)])


def summary(model: nn.Module, *inputs: object) -> Summary:
    """Return what has become of each layer of a model that :func:`fewbits.nn.prepare` has prepared.

    Layers are named with the formats of their operands as they are now, those that were kept or excluded with
    the reason, and what else may multiply: attention that is written as functions, matrices among buffers.

    Args:
        model: a prepared model.
        inputs: with them the model runs forward once, without gradients, and every module that multiplies
            outside of narrow layers is named, with PyTorch's name of the product. So is every narrow layer
            that did not run: its model may read its weight by itself, and multiply wide. Buffers, as the
            averages of a norm, and PyTorch's random numbers stay as they were.

    Raises:
        ArgumentError: the model is not prepared.
    """
    recipe = getattr(model, "fewbits_recipe", None)
    if not isinstance(recipe, Recipe):
        raise ArgumentError(f"{type(model).__name__} is not prepared; call fewbits.nn.prepare on it first")
    names = dict(model.named_modules())
    owners = _owners(names)
    by_name = {n: _of_layer(n, m, recipe, owners) for n, m in names.items() if _rules(m) is not None}
    for left in getattr(model, "fewbits_wide", ()):
        assert isinstance(left, LeftWide)
        by_name[left.name] = LayerSummary(
            left.name, left.kind, "wide", {}, (left.why, *_ties(names.get(left.name), owners))
        )
    if inputs:
        run = _run(model, names, inputs)
        for name, products in run.products.items():
            kind = type(names[name]).__name__
            known = by_name.get(name, LayerSummary(name, kind, "wide", {}, ()))
            said = f"multiplies by {', '.join(sorted(products))}"
            by_name[name] = LayerSummary(name, kind, "wide", {}, (*known.notes, said))
        for name in by_name.keys() & names.keys() - run.ran:
            if _rules(names[name]) is not None and by_name[name].operands:
                by_name[name] = replace(
                    by_name[name], notes=(*by_name[name].notes, "did not run: see who reads its weight")
                )
    order = {name: i for i, name in enumerate(names)}
    place = lambda n: order.get(n, order.get(n.rpartition(".")[0], 0))  # noqa: E731 - a sort key
    return Summary(recipe, tuple(by_name[n] for n in sorted(by_name, key=place)))


def _rules(module: nn.Module) -> LayerPrecision | None:
    precision = getattr(module, "precision", None)
    return precision if isinstance(precision, LayerPrecision) else None


def _of_layer(
    name: str, layer: nn.Module, model_recipe: Recipe, owners: dict[int, list[str]]
) -> LayerSummary:
    precision = _rules(layer)
    assert precision is not None
    roles = next((only for kind, only in _ONLY.items() if isinstance(layer, kind)), OPERANDS)
    operands = {role: str(target) for role in roles if (target := precision.format_of(role)) is not None}
    notes = [f"kept as the {'last' if precision.last else 'first'} layer"] if precision.exempt else []
    notes += [f"recipe {precision.recipe.name}"] if precision.recipe.name != model_recipe.name else []
    if precision.last and not precision.exempt and not precision.recipe.logit_gradient:
        notes.append("gives the logits: their gradient is not rounded")
    notes += ["its weight is computed by a parametrization"] if parametrize.is_parametrized(layer) else []
    kind = type(layer).__name__.removeprefix("Narrow")
    state = "kept" if precision.exempt else "narrow" if precision.recipe.replaces_layers else "wide"
    return LayerSummary(name, kind, state, operands, (*notes, *_ties(layer, owners)))


def _owners(names: dict[str, nn.Module]) -> dict[int, list[str]]:
    owners: dict[int, list[str]] = {}
    for name, module in names.items():
        for p in module.parameters(recurse=False):
            owners.setdefault(id(p), []).append(name)
    return owners


def _ties(module: nn.Module | None, owners: dict[int, list[str]]) -> list[str]:
    """Return a note where a module has a parameter together with others."""
    own = [] if module is None else list(module.parameters(recurse=False))
    shared = {name for p in own if len(owners[id(p)]) > 1 for name in owners[id(p)]}
    return [f"a weight is that of {', '.join(sorted(shared))}"] if shared else []


def _grouped(operands: dict[str, str]) -> dict[str, str]:
    """Return operands as a recipe's text has them: one for weights, activations and gradients each."""
    grouped: dict[str, str] = {}
    for group in _GROUPS:
        members = {role: text for role, text in operands.items() if role.endswith(group)}
        same = len(set(members.values())) == 1 and len(members) in (2, len(operands))
        grouped |= {group: next(iter(members.values()))} if same else members
    return grouped


_PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "addmv", "dot", "convolution", "_grouped_mm")


class _Products(TorchDispatchMode):
    """Collects the products of the module that runs, unless a narrow layer runs around it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self.running: list[tuple[str, bool]] = []
        self.ran: set[str] = set()
        self.products: dict[str, set[str]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        multiplies = name in _PRODUCTS or name.startswith(
            ("_scaled_dot_product", "mkldnn", "_flash", "_efficient")
        )
        narrow = any(narrow for _, narrow in self.running) or multiplies_narrow()
        if multiplies and not narrow:
            self.products.setdefault(self.running[-1][0] if self.running else "", set()).add(name)
        return func(*args, **(kwargs or {}))


def _run(model: nn.Module, names: dict[str, nn.Module], inputs: tuple[object, ...]) -> _Products:
    products = _Products()
    with torch.no_grad(), _left_as_it_was(model), products, _followed(names, products):
        model(*inputs)
    return products


@contextmanager
def _left_as_it_was(model: nn.Module) -> Iterator[None]:
    """Give back the buffers' values and the random numbers: norms average, and dropout draws, as they run."""
    devices = {p.device.index for p in model.parameters() if p.device.type == "cuda"}
    with torch.random.fork_rng(devices=devices), buffers_kept(model):
        yield


@contextmanager
def _followed(names: dict[str, nn.Module], products: _Products) -> Iterator[None]:
    """Keep the names of the modules that run, the innermost last."""

    def entering(name: str) -> Callable[..., None]:
        def enter(module: nn.Module, *_: Any) -> None:
            products.running.append((name, _rules(module) is not None))
            products.ran.add(name)

        return enter

    def leaving(*_: Any) -> None:
        products.running.pop()

    hooks = [m.register_forward_pre_hook(entering(n)) for n, m in names.items()]
    hooks += [m.register_forward_hook(leaving) for m in names.values()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
