"""A model whose weights lie in a checkpoint: those of a layer are in memory only while it is needed."""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from fewbits.errors import DataError
from fewbits.files.checkpoint import StoredTensor, chunks
from fewbits.kernels.bits.reals import widened


class PartialLoadError(DataError):
    """A model that cannot be run with one layer in memory at a time: it has to be loaded whole."""


class LoadedWeights:
    """The parameters of a model that is on the meta device, read when a module that holds them is called.

    They stay until :meth:`release`; while ``at_once`` is set they go as soon as their module has been called.
    A layer whose weight was chosen gets that one. Buffers are in memory, and parameters have to be used by
    the modules that hold them.
    """

    def __init__(self, model: nn.Module, tensors: Mapping[str, StoredTensor]) -> None:
        """Read nothing yet.

        Args:
            model: on the meta device.
            tensors: those of the checkpoint by the names of all parameters.
        """
        self.at_once = True
        self._chosen: dict[nn.Module, Callable[[], Tensor]] = {}
        self._tensors = dict(tensors)
        of_parameter = {id(p): tensors[name] for name, p in model.named_parameters()}
        self._empty: dict[nn.Module, dict[str, nn.Parameter]] = {}
        self._stored: dict[tuple[nn.Module, str], StoredTensor] = {}
        self._here: set[nn.Module] = set()
        self._under_way: Counter[nn.Module] = Counter()  # calls that have not returned
        for module in model.modules():
            own = {name: p for name, p in module.named_parameters(recurse=False) if p.is_meta}
            if own:
                self._empty[module] = own
                self._stored |= {(module, name): of_parameter[id(p)] for name, p in own.items()}
                module.register_forward_pre_hook(self._before)
                module.register_forward_hook(self._after, always_call=True)

    def load(self, module: nn.Module) -> None:
        """Read the parameters of a module, unless they are in memory.

        Raises:
            DataError: a file cannot be read any more.
        """
        if module in self._here:
            return
        for name, empty in self._empty.get(module, {}).items():
            chosen = self._chosen.get(module) if name == "weight" else None
            values = read(self._stored[module, name]) if chosen is None else chosen()
            module._parameters[name] = nn.Parameter(values.to(empty.dtype), requires_grad=False)
            self._here.add(module)

    def release(self) -> None:
        """Forget all parameters but those of modules whose part is being called, which go on after it."""
        needed = {module for module in self._here if self._under_way[module] > 0 and any(module.children())}
        self._forget(self._here - needed)

    def _forget(self, modules: set[nn.Module]) -> None:
        for module in self._here & modules:
            module._parameters.update(self._empty[module])
            self._here.remove(module)

    def choose(self, module: nn.Module, weight: Callable[[], Tensor]) -> None:
        """Give a module another weight from now on, which is read when it is called."""
        self._chosen[module] = weight
        self._forget({module})

    def values(self) -> Iterator[tuple[str, Tensor]]:
        """Yield all parameters by name, one in memory at a time."""
        for name, tensor in self._tensors.items():
            yield name, read(tensor)

    def _before(self, module: nn.Module, _: object) -> None:
        self._under_way[module] += 1
        self.load(module)

    def _after(self, module: nn.Module, *_: object) -> None:
        self._under_way[module] -= 1
        if self.at_once and self._under_way[module] <= 0:
            self._forget({module})


class NothingUnloaded(TorchDispatchMode):
    """Refuses operations on the meta device, some of which give numbers for weights that are not there."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run an operation.

        Raises:
            RuntimeError: it reads or makes a tensor on the meta device.
        """
        _check_loaded(func, (args, kwargs))
        made = func(*args, **(kwargs or {}))
        _check_loaded(func, made)
        return made


def _check_loaded(func: Any, values: object) -> None:
    if any(isinstance(x, Tensor) and x.is_meta for x in tree_leaves(values)):
        raise RuntimeError(f"{func} takes or makes a tensor on the device of a weight that is not loaded")


def read(tensor: StoredTensor) -> Tensor:
    """Return a tensor of a checkpoint, widened.

    Raises:
        DataError: its file cannot be read.
    """
    row = max(tensor.shape[-1] if tensor.shape else 1, 1)
    values = torch.empty(tensor.count)
    at = 0
    for piece in chunks(tensor, row):
        part = torch.from_numpy(widened(piece)).reshape(-1)
        if part.dtype == torch.float64:
            values = values.double()
        values[at : at + len(part)] = part
        at += len(part)
    return values.reshape(tensor.shape)


def fill(model: nn.Module, tensors: Mapping[str, StoredTensor], source: str) -> dict[str, str]:
    """Give the model the checkpoint's values; return the names of its tensors by those of the parameters.

    A model on the meta device gets them when it is called. What the checkpoint lacks of a model in memory
    stays as it is there, and a warning names it.

    Args:
        model: any module.
        tensors: those of the checkpoint, by name.
        source: what the checkpoint is called in errors.

    Raises:
        DataError: the checkpoint has none of the model's parameters or one of another shape, or different
            values for two that the model holds as one.
    """
    tie = differing_tie(model, tensors)
    if tie is not None:
        raise DataError(
            f"{source} has different values in {tie[0]!r:.200} and {tie[1]!r:.200}, and the model holds one"
            " parameter for both; give a model in which they are not tied"
        )
    found, held = stored_parameters(model, tensors), dict(model.named_parameters())
    if not found:
        raise DataError(
            f"{source} has no tensor of a name of the model's, such as {next(iter(held), '')!r:.200}"
        )
    buffers, averages = dict(model.named_buffers()), stored_buffers(model, tensors)
    for name, stored in averages.items():
        buffers[name].copy_(read(stored))
    lacking = sorted(held.keys() - found.keys())
    if any(p.is_meta for p in held.values()):
        if lacking:
            raise DataError(
                f"{source} has no tensor for the model's {lacking[0]!r:.200}, which has no values"
            )
        model.fewbits_weights = LoadedWeights(model, found)  # type: ignore[assignment]  # torch types attributes as tensors or modules
    else:
        for name, stored in found.items():
            held[name].detach().copy_(read(stored))
        saved = model.state_dict().keys() & {name for name, b in buffers.items() if b.is_floating_point()}
        lacking += sorted(saved - averages.keys())
        if lacking:
            more = f" and {len(lacking) - 1} more" if len(lacking) > 1 else ""
            warnings.warn(
                f"{source} has no tensor for the model's {lacking[0]!r:.200}{more}: what the model has there"
                " stays, and what is measured on it depends on that",
                stacklevel=2,
            )
    return {name: stored.name for name, stored in found.items()}


def stored_parameters(model: nn.Module, tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Return the tensors of a checkpoint by the names of a model's parameters, without those that it lacks.

    Raises:
        DataError: one has another shape than the parameter.
    """
    return _by_name(model, model.named_parameters(), tensors)


def stored_buffers(model: nn.Module, tensors: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """Return the tensors of a checkpoint by the names of a model's buffers of real numbers, as running means.

    Raises:
        DataError: one has another shape than the buffer.
    """
    real = {name: tensor for name, tensor in tensors.items() if tensor.is_float}
    return _by_name(model, model.named_buffers(), real)


def _by_name(
    model: nn.Module, named: Iterable[tuple[str, Tensor]], tensors: Mapping[str, StoredTensor]
) -> dict[str, StoredTensor]:
    found: dict[str, StoredTensor] = {}
    for name, own in named:
        stored = _stored_as(model, name, tensors)
        if stored is None:
            continue
        if stored.shape != tuple(own.shape):
            raise DataError(
                f"the model's {name!r:.200} is {tuple(own.shape)}; the checkpoint's {stored.shape}"
            )
        found[name] = stored
    return found


def differing_tie(model: nn.Module, tensors: Mapping[str, StoredTensor]) -> tuple[str, str] | None:
    """Return the names of two tensors of a checkpoint that differ, and that a model holds as one parameter.

    Where a configuration says that a head is tied and its tensor is another one, transformers does not tie
    it: a model in which it is tied is not that of the checkpoint. None: there are no such tensors.
    """
    first = {id(p): name for name, p in model.named_parameters()}
    for name, p in model.named_parameters(remove_duplicate=False):
        one, other = (_stored_as(model, n, tensors) for n in (first[id(p)], name))
        if one is not None and other is not None and one.name != other.name and not _equal(one, other):
            return one.name, other.name
    return None


def _equal(one: StoredTensor, other: StoredTensor) -> bool:
    """Return whether two tensors of a checkpoint have the same values, a piece in memory at a time."""
    if one.shape != other.shape or one.dtype != other.dtype or not one.is_float:
        return False
    row = max(one.shape[-1] if one.shape else 1, 1)
    pieces = zip(chunks(one, row), chunks(other, row), strict=True)
    return all(np.array_equal(widened(a), widened(b)) for a, b in pieces)


def _stored_as(model: nn.Module, name: str, tensors: Mapping[str, StoredTensor]) -> StoredTensor | None:
    """Return the tensor of a parameter, with or without the prefix of the model around it."""
    base = getattr(model, "base_model_prefix", "")
    alike = [name, *((name.removeprefix(f"{base}."), f"{base}.{name}") if base else ())]
    return next((tensors[n] for n in alike if n in tensors), None)
