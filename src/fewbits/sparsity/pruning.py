"""Prune the layers of a model to a pattern, and keep its masks in the model."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from fewbits.errors import ArgumentError
from fewbits.formats import Pattern
from fewbits.formats import pattern as read
from fewbits.kernels.ops.sharding import is_sharded
from fewbits.names import check_fits, listed, with_shared, within
from fewbits.records import PrunedTensor, PruneReport
from fewbits.sparsity.layers import other_matrices, reduction_axes
from fewbits.sparsity.masks import SEARCHES, density, kept_magnitude, mask, transposable_mask
from fewbits.sparsity.schedules import Frozen, Gradual, Recomputed, Schedule
from fewbits.tensor.memory import overlap, unready

MASK, DENSE, STEP = "_mask", "_dense", "sparsity_step"  # buffers: two after their parameter, one of the model
_AXES = "fewbits_sparse_axes"  # attributes of a module: of a layer, and of the model
_SPARSITY = "fewbits_sparsity"


@dataclass(frozen=True)
class Sparsity:
    """How a model is sparse; it is the model's attribute ``fewbits_sparsity``."""

    pattern: Pattern
    transposable: str | None  # the search of masks whose transpose follows the pattern too
    schedule: Schedule

    def mask(self, w: torch.Tensor, axis: int) -> torch.Tensor:
        """Return the mask of ``w``, which is summed along ``axis``."""
        if self.transposable is None:
            return mask(w, self.pattern, axis=axis)
        return transposable_mask(w, self.pattern, search=self.transposable)

    def misfit(self, shape: tuple[int, ...], axis: int) -> str:
        """Return why a tensor cannot follow the pattern; an empty text if it can."""
        axes = (axis,) if self.transposable is None else (0, 1)
        short = [a for a in axes if shape[a] % self.pattern.group]
        m = self.pattern.group
        return f"axis {short[0]} of {tuple(shape)} is no multiple of {m}" if short else ""


def sparsify(
    model: nn.Module,
    pattern: str | Pattern,
    *,
    include: str | Iterable[str] = "*",
    exclude: str | Iterable[str] = (),
    transposable: str | None = None,
    schedule: Schedule = Frozen(),  # noqa: B008 - frozen data
) -> PruneReport:
    """Prune a model in place. Make its optimizer then, and wrap that as :class:`MaskedOptimizer`.

    Call it before ``prepare``, ``DistributedDataParallel`` or ``fully_shard``. Weights are grouped along the
    axis that their products sum over, of a convolution the input channels. Each mask is a buffer of its
    layer, ``weight_mask`` beside ``weight``, and so a part of ``state_dict`` and of copies; layers and
    parameters stay what they are.

    Args:
        model: any module. The weights of linear, convolutional, recurrent and attention layers are pruned.
        pattern: ``N:M``, such as ``2:4``.
        include: patterns of module names, as in ``("blocks.*", "conv?")``, for all that lies within them.
        exclude: the same of modules to leave dense.
        transposable: ``greedy`` or ``optimal`` for masks that hold for weights and their transposes: the
            search of :func:`transposable_mask`.
        schedule: when masks are made. With :class:`Recomputed` weights stay dense in a further buffer,
            ``weight_dense``; with :class:`Gradual` the model is dense at first.

    Returns:
        The tensors that were pruned, and every other matrix of the layers that were meant, with the reason:
        sizes that do not fit, weights that serve as something else too or belong to an excluded layer too,
        embeddings, and layers of which it is not known what they sum over, as transposed convolutions or
        stacks of experts.

    Raises:
        FormatError: no such pattern.
        ArgumentError: a pattern of names that fits no module, no layer that could be pruned, a model that is
            sparse or sharded already, weights without values or that cannot change in place, something that
            is no schedule. The model is as it was then.
        DTypeError: weights that are not floating point; the model is as it was.
    """
    model = model._modules.get("_orig_mod") or model  # of a compiled model, what was compiled
    if any(own_sparsity(module) is not None for module in model.modules()):
        raise ArgumentError(
            "the model is sparse already; call fewbits.sparsity.remove_masks(model) first, or load its"
            " state_dict into a new one"
        )
    _check_sizes(model)
    named = dict(model.named_modules(remove_duplicate=False))
    included, excluded = listed("include", include), listed("exclude", exclude)
    check_fits("include", included, list(named))
    check_fits("exclude", excluded, list(named))
    included = with_shared(included, named.items())
    if transposable not in (None, *SEARCHES):
        raise ArgumentError(f"transposable={transposable!r} is not one of {', '.join(SEARCHES)}, or None")
    if not isinstance(schedule, Schedule):
        raise ArgumentError(
            f"schedule={schedule!r} is no schedule; expected one of fewbits.sparsity, as Gradual(steps=1000)"
        )
    if hasattr(model, STEP) and not isinstance(schedule, Frozen):
        raise ArgumentError(
            f"the model has something named {STEP}, which is where steps are counted; rename it"
        )
    sparsity = Sparsity(read(pattern), transposable, schedule)
    found: list[_Pruned] = []
    left, uses = [], _uses(model)
    for name, module in model.named_modules():
        if within(name, included) and not within(name, excluded):
            for key, axis in reduction_axes(module).items():
                full = f"{name}.{key}" if name else key
                p = module._parameters[key]
                assert p is not None
                reason = _reason(full, p, axis, sparsity, uses[_place(p)], included, excluded)
                if reason:
                    left.append((full, reason))
                else:
                    found.append(_pruned(module, key, axis, sparsity, full))
            others = other_matrices(module)
            left += [(f"{name}.{key}" if name else key, reason) for key, reason in others.items()]
    if not found:
        why = f"; {left[0][0]}: {left[0][1]}" if left else ""
        raise ArgumentError(
            f"{type(model).__name__} has no layer to prune to {sparsity.pattern}{why}; expected a linear,"
            " convolutional, recurrent or attention layer that is included and not excluded"
        )
    for layer in found:  # nothing has changed so far
        layer.apply(schedule)
    vars(model)[_SPARSITY] = sparsity
    if not isinstance(schedule, Frozen):
        # Beside the masks: a loss scaler says on their device whether a step counts.
        model.register_buffer(STEP, torch.zeros((), dtype=torch.int64, device=found[0].mask.device))
    return PruneReport(str(sparsity.pattern), tuple(layer.told for layer in found), tuple(left))


def remove_masks(model: nn.Module) -> None:
    """Take the masks out of a model: its weights stay as they are, and its ``state_dict`` is a plain one.

    Raises:
        ArgumentError: the model is not sparse.
    """
    root = sparse_root(model)
    for module, name, _ in sparse_parameters(model):
        for suffix in (MASK, DENSE):
            module._buffers.pop(name + suffix, None)
    for module in model.modules():
        vars(module).pop(_AXES, None)
    root._buffers.pop(STEP, None)
    del vars(root)[_SPARSITY]


def sparse_root(model: nn.Module) -> nn.Module:
    """Return the module that was given to :func:`sparsify`, which ``model`` is or holds.

    Raises:
        ArgumentError: there is none, or there are several.
    """
    roots = [m for m in model.modules() if own_sparsity(m) is not None]
    if not roots:
        raise ArgumentError(
            f"{type(model).__name__} is not sparse; call fewbits.sparsify(model, '2:4') first"
        )
    if len(roots) > 1:
        raise ArgumentError(
            f"{type(model).__name__} holds {len(roots)} models that were made sparse; take them one by one"
        )
    return roots[0]


def own_sparsity(module: nn.Module) -> Sparsity | None:
    """Return how a module is sparse on which :func:`sparsify` was called; None of any other."""
    found: Sparsity | None = _own(module, _SPARSITY)
    return found


def sparse_parameters(model: nn.Module) -> Iterator[tuple[nn.Module, str, int]]:
    """Yield each layer that has masks, with the name of a parameter and the axis of its groups."""
    for module in model.modules():
        for name, axis in (_own(module, _AXES) or {}).items():
            yield module, name, axis


def _check_sizes(model: nn.Module) -> None:
    """Raise where a lazy layer has no sizes yet, so that nobody can tell what fits a pattern."""
    for name, p in model.named_parameters():
        if is_lazy(p):
            raise ArgumentError(f"{name} {unready(p)}")


def _own(module: nn.Module, name: str) -> Any:
    """Return an attribute of the module itself: wrappers forward lookups to the module that they wrap."""
    return vars(module).get(name)


_Use = tuple[str, int | None, tuple[int, ...]]  # a name, the axis that is summed, and the steps of all axes


def _uses(model: nn.Module) -> dict[int, list[_Use]]:
    """Return all uses of the parameters of each place, with the axis that a product sums over, or None."""
    uses: dict[int, list[_Use]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        axes = reduction_axes(module)
        for key, p in module._parameters.items():
            if p is not None:
                uses.setdefault(_place(p), []).append(
                    (f"{name}.{key}" if name else key, axes.get(key), _steps(p))
                )
    return uses


def _place(p: nn.Parameter) -> int:
    """Return what tied parameters have in common: where values begin, or which tensor it is."""
    plain = type(p) is nn.Parameter and p.layout == torch.strided and not p.is_meta
    return p.data_ptr() if plain and p.numel() else id(p)


def _steps(p: nn.Parameter) -> tuple[int, ...]:
    return (*p.shape, *p.stride()) if p.layout == torch.strided else tuple(p.shape)


def _reason(
    name: str,
    p: nn.Parameter,
    axis: int,
    sparsity: Sparsity,
    uses: list[_Use],
    included: tuple[str, ...],
    excluded: tuple[str, ...],
) -> str:
    """Return why a parameter stays dense; an empty text if it is pruned."""
    if is_sharded(p):
        raise ArgumentError(f"{name} is sharded; call sparsify before fully_shard")
    for other, its_axis, steps in uses:
        if within(other.rpartition(".")[0], excluded):
            return f"it is {other} too, which is excluded"
        if steps != _steps(p):
            return f"it shares memory with {other}, whose shape or order is another"
        if its_axis != axis:
            return f"it is {other} too, which is summed otherwise"
    first = next(other for other, *_ in uses if within(other.rpartition(".")[0], included))
    return f"it is {first} too" if first != name else sparsity.misfit(tuple(p.shape), axis)


@dataclass(frozen=True)
class _Pruned:
    """A parameter that is to be pruned, and its mask."""

    module: nn.Module
    key: str
    mask: torch.Tensor
    told: PrunedTensor

    @torch.no_grad()
    def apply(self, schedule: Schedule) -> None:
        """Prune the parameter as a schedule begins, and put its buffers into its layer."""
        p, gradual = self.module._parameters[self.key], isinstance(schedule, Gradual)
        assert p is not None
        self.module.register_buffer(self.key + MASK, torch.ones_like(self.mask) if gradual else self.mask)
        if isinstance(schedule, Recomputed):
            self.module.register_buffer(self.key + DENSE, p.detach().clone())
        if not gradual:
            p.copy_(p.masked_fill(~self.mask, 0))
        vars(self.module)[_AXES] = {**(_own(self.module, _AXES) or {}), self.key: self.told.axis}


@torch.no_grad()
def _pruned(module: nn.Module, key: str, axis: int, sparsity: Sparsity, full: str) -> _Pruned:
    """Choose what a parameter keeps; nothing of the model changes.

    Raises:
        ArgumentError: the layer has something where the mask would lie, or the parameter cannot change.
    """
    p = module._parameters[key]
    assert p is not None
    if why := unready(p) or overlap(p):
        raise ArgumentError(f"{full} {why}")
    for suffix in (MASK, DENSE):
        if hasattr(module, key + suffix):
            raise ArgumentError(
                f"{full}{suffix} is there already; rename it, or remove what else prunes {full}"
            )
    final = sparsity.mask(p, axis)
    shares = density(p.masked_fill(~final, 0)), kept_magnitude(p, final)
    return _Pruned(module, key, final, PrunedTensor(full, tuple(p.shape), axis, *shares))
