"""Training with a fixed budget of weights: those that have changed most stay, the rest are initial values.

Full Deep Neural Network Training On A Pruned Weight Budget (Golub, Lemieux and Lis, MLSys 2019), section 2.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from numbers import Real
from typing import TypedDict, cast

import torch
from safetensors import safe_open
from torch import distributed, nn

from fewbits.errors import ArgumentError, DataError
from fewbits.files import load_file, save_file
from fewbits.kernels.ops.counter_uniform import counter_uniform
from fewbits.sparsity.layers import EMBEDDINGS
from fewbits.sparsity.regenerated_parameters import (
    Place,
    is_regenerated,
    places,
    regenerate,
    second_names,
    trained,
)
from fewbits.sparsity.tracked_weights import AT_ONCE, Selection, Tracked, moved, moved_alone
from fewbits.tensor.arrays import is_number
from fewbits.tensor.inputs import is_count
from fewbits.typing import StateDict

_KEY = "dropback"  # of a file's metadata


class _State(TypedDict):
    """What ``state_dict`` returns without momentum."""

    index: torch.Tensor  # of the tracked weights, rising
    change: torch.Tensor  # of each from its initial value
    seed: int
    gain: float
    weights: int  # of the model, tracked or not
    frozen: bool
    param_groups: list[dict[str, object]]


class _StateWithMomentum(_State, total=False):
    velocity: torch.Tensor


_KINDS: dict[str, type | tuple[type, ...]] = {
    "index": torch.Tensor,
    "change": torch.Tensor,
    "seed": int,
    "gain": (int, float),
    "weights": int,
    "frozen": bool,
    "param_groups": list,
}


def _is_state(given: object) -> bool:
    """Return whether something has all that ``state_dict`` returns."""
    if not isinstance(given, dict) or not all(isinstance(given.get(k), kind) for k, kind in _KINDS.items()):
        return False
    groups, velocity = given["param_groups"], given.get("velocity", given["change"])
    return len(groups) == 1 and isinstance(groups[0], dict) and isinstance(velocity, torch.Tensor)


class DropBack(torch.optim.Optimizer):
    """SGD that tracks at most ``budget`` weights of a model, and takes the place of its parameters.

    After each step the weights that are farthest from their initial values stay, over all layers together;
    every other goes back to its initial value, which is drawn again from the seed whenever it is needed. So a
    model is a seed and as many pairs of an index and a change as the budget has. No parameter lies in memory:
    a layer's are made when it runs, forward and backward, and each gradient is reduced to candidates as it
    comes. A layer with a matrix computes its forward pass twice for that.

    Initial values are equal on every device and for any number of threads: matrices uniform with the standard
    deviation ``gain / sqrt(fan_in)``, weights of norms 1, biases and the padding row of an embedding 0. Those
    that the model came with are not used, so it may be made on the meta device and never be dense. Parameters
    that are frozen, by ``requires_grad_(False)``, keep their values and are none of its weights. On a device
    all values stay there; the host waits for how many candidates there are.

    A gradient is seen by nobody else: clipping, unscaling and a group of several processes are refused. A
    copy of the model has tracked weights of its own; ``deepcopy((model, optimizer))`` gives a pair to train.

    Args:
        model: its parameters are replaced, but for frozen ones; none may have two names. Buffers stay as they
            are.
        budget: weights to track at most.
        lr: the learning rate; schedulers of torch change it.
        momentum: as published 0. Tracked weights keep a velocity, all others forget theirs at each step.
        seed: of the initial values, from 0 to 2^64 - 1.
        gain: 1 as published; the root of 2 suits ReLU.
        device: where tracked weights lie; default: that of the model, and the CPU for one on meta.

    Raises:
        ArgumentError: a value out of range, parameters with two names, of other dtypes than float32 or none,
            embeddings with sparse gradients, frozen parameters without values, or a model that has such an
            optimizer.
    """

    def __init__(
        self,
        model: nn.Module,
        budget: int,
        *,
        lr: float,
        momentum: float = 0.0,
        seed: int = 0,
        gain: float = 1.0,
        device: torch.device | str | None = None,
    ) -> None:
        _check(model, budget, lr, momentum, seed, gain)
        first = next(iter(trained(model).values())).device
        own = torch.device(device) if device is not None else first
        self.device = torch.device("cpu") if own.type == "meta" else own
        self.budget, self.seed, self.gain, self.frozen = int(budget), int(seed), float(gain), False
        self._places = places(model)
        every = dict(model.named_parameters(remove_duplicate=False))
        self._frozen_parameters = {name: p for name, p in every.items() if not p.requires_grad}
        self._names = tuple(every)
        self._tracked = Tracked.none(self.weights, self.device, momentum > 0)
        self._selection = Selection(budget)
        self._taken: set[str] = set()
        super().__init__(regenerate(model, self, self._places, self.device), {"lr": lr, "momentum": momentum})

    def __getstate__(self) -> dict[str, object]:
        """Return what copies are made of: everything, since a model computes with its optimizer."""
        return self.__dict__.copy()

    @property
    def weights(self) -> int:
        """The number of weights that are trained, tracked or not."""
        return self._places[-1].stop

    @property
    def tracked(self) -> int:
        """The number of weights that are tracked now."""
        return len(self._tracked)

    @torch.no_grad()
    def dense(self, place: Place) -> torch.Tensor:
        """Regenerate the values of one parameter: its initial values plus the tracked changes."""
        n = place.shape.numel()
        if place.unit:
            values = counter_uniform(self.seed, place.start, n, self.gain * place.unit, self.device)
        else:
            values = torch.full((n,), place.constant, device=self.device)
        if place.padding is not None:
            values.view(place.shape)[place.padding] = 0
        tracked = self._tracked[self._tracked.within(place.start, place.stop)]
        values[tracked.index - place.start] += tracked.change
        return values.view(place.shape)

    @torch.no_grad()
    def take(self, place: Place, gradient: torch.Tensor) -> None:
        """Reduce the gradient of one parameter to candidates for tracking; autograd calls this.

        Raises:
            ArgumentError: the parameter has had a gradient since the last step already.
        """
        if place.name in self._taken:
            raise ArgumentError(
                f"{place.name} has a second gradient before a step: gradients are reduced as they come and"
                " cannot be added up; call step() after each backward(), and use each layer once"
            )
        self._taken.add(place.name)
        group, flat = self.param_groups[0], gradient.reshape(-1)
        options = group["lr"], group["momentum"]
        if self.frozen:
            self._selection.keep(moved_alone(self._tracked, place.start, flat, *options))
            return
        for start in range(0, len(flat), AT_ONCE):
            part = flat[start : start + AT_ONCE]
            self._selection.add(moved(self._tracked, place.start + start, part, *options))

    @torch.no_grad()
    def step(  # type: ignore[override]  # torch overloads it; this is the union
        self, closure: Callable[[], float] | None = None
    ) -> float | None:
        """Keep the weights that have changed most, and reset all others to their initial values.

        Args:
            closure: computes the loss anew, with gradients; what it returns is returned.

        Raises:
            ArgumentError: there are several processes, whose gradients would have to be averaged.
        """
        together = distributed.is_available() and distributed.is_initialized()
        processes = distributed.get_world_size() if together else 1
        if processes > 1:
            raise ArgumentError(
                f"DropBack in a group of {processes} processes: gradients are reduced as they come and cannot"
                " be averaged over them; train in one process"
            )
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for place in self._places:
            if place.name not in self._taken:  # no gradient: nothing there has moved
                unmoved = self._tracked[self._tracked.within(place.start, place.stop)]
                (self._selection.keep if self.frozen else self._selection.add)(unmoved)
        self._tracked = self._selection.result()
        self.zero_grad()
        return loss

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients since the last step, whatever ``set_to_none`` is."""
        super().zero_grad(set_to_none=True)
        self._selection, self._taken = Selection(self.budget), set()

    def add_param_group(self, param_group: dict[str, object]) -> None:
        """Take the one group that the model's parameters are.

        Raises:
            ArgumentError: there is one already.
        """
        if self.param_groups:
            raise ArgumentError(
                "a second group of parameters: the weights of DropBack are those that its model had when it"
                " was made; make it of a model that holds all layers"
            )
        super().add_param_group(param_group)

    def freeze(self) -> None:
        """Keep the set of tracked weights from now on: only they are trained."""
        self.frozen = True

    def dense_parameters(self) -> dict[str, torch.Tensor]:
        """Return all parameters, dense, under the names that they had: for a plain copy of the model."""
        frozen = {name: p.detach().clone() for name, p in self._frozen_parameters.items()}
        values = frozen | {place.name: self.dense(place) for place in self._places}
        return {name: values[name] for name in self._names}

    def nbytes(self) -> int:
        """Return the bytes held between steps: the tracked weights, and a scalar for each parameter."""
        return sum(t.nbytes for t in self._tracked.tensors().values()) + 4 * len(self._places)

    def state_dict(self) -> StateDict:
        """Return the tracked weights, and the seed and gain from which all others are drawn."""
        facts = {"seed": self.seed, "gain": self.gain, "weights": self.weights, "frozen": self.frozen}
        groups = [{k: v for k, v in group.items() if k != "params"} for group in self.param_groups]
        return {**self._tracked.tensors(), **facts, "param_groups": groups}

    @torch.no_grad()
    def load_state_dict(self, state_dict: StateDict) -> None:
        """Restore a state of :meth:`state_dict`: the model's parameters become bit for bit what they were.

        Raises:
            ArgumentError: no state, that of a model of another size, or one of more weights than the budget.
            DataError: it is damaged.
        """
        if not _is_state(state_dict):
            raise ArgumentError(f"{state_dict!r:.200} is no state; expected what state_dict() returned")
        saved = cast(_StateWithMomentum, state_dict)
        index = saved["index"].to(self.device, torch.int64)  # the bound after the last index may be 2^31
        if saved["weights"] != self.weights or len(index) > self.budget:
            raise ArgumentError(
                f"a state of {len(index)} among {saved['weights']} weights, for a budget of"
                f" {self.budget} among {self.weights}; make the optimizer as it was made"
            )
        moving = [saved["change"], *([saved["velocity"]] if "velocity" in saved else [])]
        values = [x.to(self.device, torch.float32, copy=True) for x in moving]
        bounds = torch.tensor([-1, self.weights], device=self.device)
        rising = torch.cat([bounds[:1], index, bounds[1:]]).diff() > 0
        if any(v.shape != index.shape for v in values) or not bool(rising.all()):
            raise DataError("the tracked weights are damaged; load a state that state_dict() returned")
        index = index.to(self._tracked.index.dtype, copy=True)
        self._tracked = Tracked(index, values[0], values[1] if len(values) > 1 else None)
        self.seed, self.gain, self.frozen = saved["seed"], saved["gain"], saved["frozen"]
        for group, options in zip(self.param_groups, saved["param_groups"], strict=True):
            group.update(options)
        self.zero_grad()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the state to a ``.safetensors`` file, eight bytes for a tracked weight: all of it or none.

        Raises:
            ArgumentError: the folder does not exist, or an option is no number.
            OSError: the operating system refused.
        """
        state = self.state_dict()
        tensors = self._tracked.tensors()
        facts = {k: v for k, v in state.items() if k not in tensors}
        save_file(tensors, path, {_KEY: json.dumps(facts, default=_number)})

    def load(self, path: str | os.PathLike[str]) -> None:
        """Read a state that :meth:`save` wrote.

        Raises:
            ArgumentError: as :meth:`load_state_dict`.
            DataError: the file cannot be read, or is no such state.
        """
        tensors = load_file(path)
        with safe_open(path, "pt") as file:
            metadata = dict(file.metadata() or {})
        if _KEY not in metadata:
            raise DataError(f"{path} holds no tracked weights; expected a file that DropBack.save wrote")
        try:
            facts = json.loads(metadata[_KEY])
        except ValueError:
            facts = None
        if not isinstance(facts, dict) or not _is_state({**tensors, **facts}):
            raise DataError(f"{path} is damaged; expected a file that DropBack.save wrote")
        self.load_state_dict({**tensors, **facts})


def _number(x: object) -> object:
    """Return a learning rate of torch, or a number of NumPy, as one that JSON has."""
    if isinstance(x, (torch.Tensor, Real)):
        return x.item() if hasattr(x, "item") else float(x)
    raise ArgumentError(f"{x!r:.80} among the options of DropBack; a file takes numbers and texts")


def _check(model: nn.Module, budget: int, lr: float, momentum: float, seed: int, gain: float) -> None:
    parameters = trained(model)
    numbers = is_count(budget) and is_count(seed, 0) and all(map(is_number, (lr, momentum, gain)))
    if not (numbers and lr > 0 and 0 <= momentum < 1 and seed < 2**64 and gain > 0):
        raise ArgumentError(
            f"budget={budget!r}, lr={lr!r}, momentum={momentum!r}, seed={seed!r}, gain={gain!r}; expected a"
            " number of weights as budget, a learning rate and a gain above 0, a momentum from 0 to below 1,"
            " and as seed an integer from 0 to 2^64 - 1"
        )
    if is_regenerated(model):
        raise ArgumentError(
            f"{type(model).__name__} has a DropBack optimizer, which its parameters lie in; go on with that"
            " one, or make the model anew"
        )
    if not parameters:
        raise ArgumentError(
            f"{type(model).__name__} has no parameters to train; expected some that are not frozen"
        )
    empty = next((name for name, p in model.named_parameters() if p.is_meta and not p.requires_grad), None)
    if empty is not None:
        raise ArgumentError(
            f"{empty} is frozen and on the meta device, where it has no values; load them first, or train it"
        )
    misfit = next((name for name, p in parameters.items() if p.dtype != torch.float32), None)
    if misfit is not None:
        raise ArgumentError(
            f"{misfit} is {parameters[misfit].dtype}; expected float32: call .float() of the model"
        )
    for name, module in model.named_modules():
        if isinstance(module, EMBEDDINGS) and module.sparse and module.weight.requires_grad:
            raise ArgumentError(
                f"{name or type(module).__name__} has sparse gradients; make the embedding with sparse=False"
            )
    tied = next(second_names(model), None)
    if tied is not None:
        raise ArgumentError(
            f"{tied} is tied to another parameter, and a gradient that comes twice cannot be added up; give"
            " it weights of its own"
        )
