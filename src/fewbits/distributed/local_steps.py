"""Processes that train on their own for some steps, and then share how far they came."""

from __future__ import annotations

from math import inf
from typing import TypedDict, cast

import torch
from torch import nn

from fewbits.distributed.arguments import check_has_values, checked_codec, described, peers_of
from fewbits.distributed.collectives.all_reduce import reduced
from fewbits.distributed.state import CodecState
from fewbits.distributed.traffic import Traffic
from fewbits.errors import ArgumentError
from fewbits.kernels.ops.sharding import is_sharded
from fewbits.recipes import Codec
from fewbits.typing import ProcessGroup, StateDict


class _Saved(TypedDict):
    """What ``state_dict`` returns."""

    done: int
    shared: dict[str, torch.Tensor]
    momentum: dict[str, torch.Tensor]
    codec: StateDict


class LocalSteps:
    """Lets the processes of a plain loop exchange updates every so many steps: local SGD, and DiLoCo.

    Call :meth:`step` behind that of the optimizer. Each process begins from the same weights, trains on its
    own, and after ``steps`` steps sends by how much its weights moved, as the codec says. The mean of that is
    the gradient of an outer SGD with Nesterov's momentum on the shared weights, from which all go on with the
    same bits.

    ``LocalSteps(model, steps=8)`` averages the weights (Stich, Local SGD Converges Fast and Communicates
    Little, 2019). DiLoCo is ``LocalSteps(model, steps=500, lr=0.7, momentum=0.9)`` around AdamW (Douillard et
    al., DiLoCo: Distributed Low-Communication Training of Language Models, 2023, algorithm 1).

    Args:
        model: the same on each process, as rank 0 has it; without DistributedDataParallel. Its buffers stay
            what each process has. An optimizer with master weights of its own would not see the shared ones:
            take one without.
        steps: from one exchange to the next.
        codec: what travels.
        lr: of the outer optimizer; 1 is the mean itself.
        momentum: of the outer optimizer.
        group: a process group, or a mesh of one dimension; None: all processes.
        seed: of stochastic rounding.

    Attributes:
        traffic: counts the bytes that this process sends.

    Raises:
        ArgumentError: no process group, no parameters, sharded ones, some of float64 or without values, or an
            option out of its range.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        steps: int,
        codec: str | Codec = "fp32",
        lr: float = 1.0,
        momentum: float = 0.0,
        group: ProcessGroup = None,
        seed: int = 0,
    ) -> None:
        self.traffic = Traffic()
        self._peers = peers_of(group, self.traffic)
        with self._peers.telling():
            _check_options(steps, lr, momentum)
            self._parameters = _checked_parameters(model)
            self._state = CodecState(codec, seed=seed)
            checked_codec(codec, self._state)
        self.steps, self.done = steps, 0
        self._rates = f"lr={float(lr)!r}, momentum={float(momentum)!r}"
        flat = torch.cat([p.detach().float().reshape(-1) for p in self._parameters.values()])
        first = flat if self._peers.rank == 0 else torch.zeros_like(flat)
        # The weights of rank 0: the others add zeros.
        flat = reduced(first, Codec(), self._peers, self._what("weights"), mean=False)
        self._shared = dict(zip(self._parameters, self._cut(flat), strict=True))
        nesterov = momentum > 0
        self._outer = torch.optim.SGD(self._shared.values(), lr, momentum, nesterov=nesterov)
        self._take()

    def step(self) -> bool:
        """Count one step of the optimizer; return whether the processes exchanged their updates after it."""
        self.done += 1
        if self.done % self.steps:
            return False
        self.exchange()
        return True

    @torch.no_grad()
    def exchange(self) -> None:
        """Exchange updates now: at the end of training, whose last steps may be fewer."""
        moved = torch.cat(
            [
                (shared - p.detach().float()).reshape(-1)
                for shared, p in zip(self._shared.values(), self._parameters.values(), strict=True)
            ]
        )
        mean = reduced(
            moved,
            self._state.codec,
            self._peers,
            self._what(str(self._state.codec)),
            mean=True,
            layers=[p.numel() for p in self._parameters.values()],
            state=self._state,
            keys=list(self._parameters),
        )
        for shared, gradient in zip(self._shared.values(), self._cut(mean), strict=True):
            shared.grad = gradient
        self._outer.step()
        self._outer.zero_grad()
        self._take()

    def _cut(self, flat: torch.Tensor) -> list[torch.Tensor]:
        parameters = list(self._parameters.values())
        parts = flat.split([p.numel() for p in parameters])
        return [part.view(p.shape).clone() for part, p in zip(parts, parameters, strict=True)]

    @torch.no_grad()
    def _take(self) -> None:
        """Go on from the shared weights."""
        for name, p in self._parameters.items():
            p.copy_(self._shared[name])

    def _what(self, what: str) -> str:
        tensors = described(list(self._parameters.values()))
        return f"local steps, {self.steps}, {self._rates} of {tensors}, as {what}"

    def state_dict(self) -> StateDict:
        """Return the shared weights, the outer optimizer, and what the codec remembers on this process."""
        return {
            "done": self.done,
            "shared": {name: x.clone() for name, x in self._shared.items()},
            "momentum": {
                name: self._outer.state[x]["momentum_buffer"].clone()
                for name, x in self._shared.items()
                if self._outer.state.get(x, {}).get("momentum_buffer") is not None
            },
            "codec": self._state.state_dict(),
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Take over what :meth:`state_dict` returned on this process; the model's weights stay as they are.

        Raises:
            ArgumentError: no state, or that of another model or codec; then nothing is changed.
        """
        saved = self._checked(state)
        self._state.load_state_dict(saved["codec"])  # which changes nothing if it raises
        self.done = saved["done"]
        for name, x in saved["shared"].items():
            self._shared[name].copy_(x)
        self._outer.state.clear()  # a state of before the first exchange has no momentum
        for name, x in saved["momentum"].items():
            self._outer.state[self._shared[name]]["momentum_buffer"] = x.clone()

    def _checked(self, state: object) -> _Saved:
        """Return a state after checking that its tensors are those of this model."""
        kinds = {"done": int, "shared": dict, "momentum": dict, "codec": dict}
        if not isinstance(state, dict) or not all(isinstance(state.get(k), t) for k, t in kinds.items()):
            raise ArgumentError(f"{state!r:.200} is no state; expected what state_dict() returned")
        saved, here = cast(_Saved, state), {name: tuple(x.shape) for name, x in self._shared.items()}
        shared, momentum = _shapes(saved["shared"]), _shapes(saved["momentum"])
        if shared != here or not momentum.items() <= here.items():
            other = shared if shared != here else momentum
            raise ArgumentError(
                f"the state of another model, of {_listed(other)}; expected one of {_listed(here)}: load that"
                " of this model"
            )
        return saved


def _check_options(steps: object, lr: object, momentum: object) -> None:
    if type(steps) is not int or steps < 1:
        raise ArgumentError(f"steps={steps!r}; expected an integer from 1 up")
    for name, value in (("lr", lr), ("momentum", momentum)):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < inf:
            raise ArgumentError(f"{name}={value!r}; expected a finite number from 0 up")


def _checked_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return what is shared, by name: whole weights that take a gradient, of at most float32."""
    parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
    for name, p in parameters.items():
        if is_sharded(p):
            raise ArgumentError(
                f"{name} is sharded; local steps need whole weights in each process: leave fully_shard out"
            )
        check_has_values(p, name)
        if p.dtype == torch.float64:
            raise ArgumentError(
                f"{name} is float64, and weights are shared in float32; convert the model with .float()"
            )
    if not parameters:
        raise ArgumentError("a model without parameters that take a gradient; there is nothing to share")
    return parameters


def _shapes(tensors: dict[str, torch.Tensor]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(getattr(x, "shape", ())) for name, x in tensors.items()}


def _listed(shapes: dict[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {shape}" for name, shape in shapes.items())
