"""ZeRO: each process holds the optimizer's state of some tensors, and sends their new values to all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, TypedDict, cast

import torch
from torch import distributed
from torch.utils.weak import TensorWeakRef

from fewbits.distributed.arguments import checked_codec, checked_tensor, described, flat, peers_of
from fewbits.distributed.gradients import kept, no_gradient
from fewbits.distributed.held_weights import is_exact, octets, packed, refill_
from fewbits.distributed.reduction import Reduction, agreed
from fewbits.distributed.state import CodecState
from fewbits.distributed.traffic import Traffic
from fewbits.errors import ArgumentError
from fewbits.files.nested import from_bytes, to_bytes
from fewbits.kernels.ops.sharding import is_sharded
from fewbits.recipes import Codec, Recipe
from fewbits.recipes.parameter_marks import take_unrounded
from fewbits.tensor import NarrowTensor
from fewbits.tensor.arrays import is_number
from fewbits.tensor.narrow.torch_dtypes import dtype_name
from fewbits.typing import ProcessGroup, StateDict

_NOT, _PACKED, _WIDE = range(3)  # how a parameter's new values travel, if they do


class _Saved(TypedDict):
    """What an optimizer's ``state_dict`` returns."""

    state: dict[int, dict[str, object]]
    param_groups: list[dict[str, Any]]


def _is_state(given: object) -> bool:
    """Return whether something has what ``state_dict`` returns."""
    if not (isinstance(given, dict) and isinstance(given.get("state"), dict)):
        return False
    groups = given.get("param_groups")
    return isinstance(groups, list) and all(isinstance(g, dict) and "params" in g for g in groups)


def owners(sizes: Sequence[int], processes: int) -> list[int]:
    """Return who holds the state of each tensor: the largest go first, each to who has least so far.

    A scale belongs to a whole tensor, so none is cut (Peng et al., FP8-LM, 2023, section 3.3).

    >>> owners([3, 10, 4, 6], 2)
    [0, 0, 1, 1]
    """
    load, dealt = [0] * processes, [0] * len(sizes)
    for i in sorted(range(len(sizes)), key=lambda i: -sizes[i]):
        dealt[i] = load.index(min(load))
        load[dealt[i]] += sizes[i]
    return dealt


class ZeroOptimizer(torch.optim.Optimizer):
    """Wraps an optimizer so that each process holds the states and master weights of its own tensors only.

    Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models, 2020, section
    5.2, for tensors that keep their scales: Peng et al., FP8-LM, 2023, section 3.3.

    Gradients go to the owners of their parameters, who take the step, and the new weights to all, in the
    format in which the recipe holds them, without another rounding: all processes end with the bits that the
    wrapped optimizer alone gives from the same gradients. Options and ``step`` are as they were, and whatever
    else the optimizer can do is called through it.

    torch's ``ZeroRedundancyOptimizer`` deals tensors out in the same way. But it needs the mean of every
    gradient on every process, sends weights of a narrow format as the float32 tensors that hold them, clips
    by the norm of a process's own gradients, and collects its state by pickle.

    Args:
        optimizer: of the parameters of the model, which is the same on each process; one of this package or
            of torch, with no steps yet. Each state has to be made in the first step of its parameter, not
            before as in torch's Adagrad, and to depend on no other parameter, as in SGD, Adam and LARS.
        codec: in which gradients travel to the owner, who adds them in float32 in the order of ranks; with
            ``fp32`` the bits are those of :func:`average_gradients`, and narrow ones are rounded once less.
            None: every process has the mean already, as beneath ``DistributedDataParallel``.
        group: a process group, or a mesh of one dimension; None: all processes.
        state: what the codec remembers, by the numbers of the parameters.
        traffic: counts the bytes sent.

    Attributes:
        optimizer: the wrapped one. Its own ``state_dict`` has what this process holds.
        owner: the rank that holds the state of each parameter, in the order of the groups.

    Raises:
        ArgumentError: no process group, sharded parameters, a loss scale, the schedule of ``muppet``, LARS
            with a group, a codec that does not fit, or an optimizer that has states.
    """

    _step_supports_amp_scaling = True  # so that a loss scaler comes to `step`, where it is refused

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        codec: str | Codec | None = None,
        group: ProcessGroup = None,
        *,
        state: CodecState | None = None,
        traffic: Traffic | None = None,
    ) -> None:
        self.optimizer = optimizer
        self._peers = peers_of(group, traffic)
        self.traffic = self._peers.traffic
        self._codec = None if codec is None else checked_codec(codec, state)
        self._memory = state
        self._averaged = False
        self._means: list[TensorWeakRef] = []  # of this process's parameters, where they were averaged
        if optimizer.state:
            raise ArgumentError(
                f"{type(optimizer).__name__} with states of all parameters: it has taken steps, or makes them"
                " as it is constructed, as torch's Adagrad does; wrap an optimizer that makes them in the"
                " first step, before that, and load a state_dict into the wrapper"
            )
        recipe = self._recipe
        if recipe is not None and recipe.scaling is not None:
            raise ArgumentError(
                f"recipe {recipe.name!r} scales the loss ({recipe.scaling}), and processes that see their own"
                " gradients only would choose different scales; take it with scaling=none, or another one"
            )
        if getattr(optimizer, "_group", None) is not None:
            raise ArgumentError(
                f"{type(optimizer).__name__} with a group, whose processes have all gradients and share the"
                " norms of all layers, and here each has those of its own; leave group out of it"
            )
        if recipe is not None and recipe.schedule == "muppet":
            raise ArgumentError(
                f"recipe {recipe.name!r} chooses formats by all gradients together, and each process has"
                " those of its own tensors only; leave ZeroOptimizer out, or shard the model by fully_shard"
            )
        self._deal()
        self.__setstate__({})  # hooks and profiling as torch has them

    def _deal(self) -> None:
        self._parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        for p in self._parameters:
            if is_sharded(p):
                raise ArgumentError(
                    f"a sharded parameter of shape {tuple(p.shape)}; fully_shard deals out states itself:"
                    " leave ZeroOptimizer out"
                )
        self.owner = owners([p.numel() for p in self._parameters], self._peers.size)
        for i, p in enumerate(self._parameters):
            if self.owner[i] != self._peers.rank:
                take_unrounded(p)  # what a master copy begins from is held by the owner alone

    @property
    def _own(self) -> list[int]:
        return [i for i, owner in enumerate(self.owner) if owner == self._peers.rank]

    @torch.no_grad()
    def average_gradients(self) -> None:
        """Send each gradient to the owner of its parameter, where the mean stays; all others are dropped.

        :meth:`step` and :meth:`clip_` do that where there are gradients that came after the last time.

        Raises:
            ArgumentError: gradients were added to those that were averaged already.
        """
        if self._averaged and not self._has_new():
            return
        if self._codec is not None:
            self._reduce(self._codec)
        for p, owner in zip(self._parameters, self.owner, strict=True):
            if owner != self._peers.rank:
                p.grad = None
        self._averaged = True
        self._note_means()

    def _note_means(self) -> None:
        self._means = [
            TensorWeakRef(p.grad) for i in self._own if (p := self._parameters[i]).grad is not None
        ]

    def _has_new(self) -> bool:
        """Whether any process has gradients of others' parameters again: those were dropped when averaged."""
        new = any(
            p.grad is not None
            for p, owner in zip(self._parameters, self.owner, strict=True)
            if owner != self._peers.rank
        )
        if self._codec is None:  # the means of all are on every process
            return new
        means = {id(mean()) for mean in self._means} - {id(None)}
        kept = any(id(self._parameters[i].grad) in means for i in self._own)
        told = self._peers.agree(f"gradients of {described(self._parameters)} once more", [new, kept])
        new, kept = (any(row[i] for row in told) for i in range(2))
        if new and kept:
            raise ArgumentError(
                "gradients were added to those that were averaged already, which no mean is right for; call"
                " this optimizer's zero_grad() before backward(), or clip_ after the last backward()"
            )
        return new

    def _reduce(self, codec: Codec) -> None:
        peers, parameters = self._peers, self._parameters
        order = sorted(range(len(parameters)), key=lambda i: self.owner[i])
        with peers.telling():
            gradients = [
                no_gradient(parameters[i]) if (g := parameters[i].grad) is None else checked_tensor(g)
                for i in order
            ]
        layers = [g.numel() for g in gradients]
        pieces = [
            sum(n for n, i in zip(layers, order, strict=True) if self.owner[i] == rank)
            for rank in range(peers.size)
        ]
        x = flat(gradients)
        what = f"gradients of {described(gradients)} to their owners as {codec}"
        keys = [str(i) for i in order]
        finite, residual, velocity = agreed(x, codec, peers, what, self._memory, keys, layers)
        peers.traffic.count("reduce_scatter", 0, wide=(x.numel() - pieces[peers.rank]) * x.element_size())
        mine = torch.full((pieces[peers.rank],), torch.nan, dtype=torch.float32, device=x.device)
        if finite:
            job = Reduction(
                x,
                pieces,
                codec,
                peers,
                mean=True,
                layers=layers,
                state=self._memory,
                residual=residual,
                velocity=velocity,
            )
            job.own_sum(mine)
            if job.powers is not None:
                job.powers.scale(mine, sum(pieces[: peers.rank]), -1)
            job.close()
        has = peers.maxima(torch.tensor([p.grad is not None for p in parameters], dtype=torch.uint8))
        places = [k for k, i in enumerate(order) if self.owner[i] == peers.rank]
        lengths = [layers[k] for k in places]
        for k, part in zip(places, mine.split(lengths), strict=True):
            p = parameters[order[k]]
            if has[order[k]]:
                p.grad = kept(p, part.view(p.shape))

    @torch.no_grad()
    def step(  # type: ignore[override]  # torch overloads it; this is the union
        self, closure: Callable[[], float] | None = None
    ) -> float | None:
        """Update the parameters of this process, and take over those of the others.

        Args:
            closure: computes the loss anew, with gradients; what it returns is returned.

        Raises:
            ArgumentError: a loss scaler takes the step, or another process failed in it.
        """
        with self._peers.telling():
            if hasattr(self, "found_inf"):
                raise ArgumentError(
                    "a loss scaler took the step of a ZeroOptimizer, whose processes see their own gradients"
                    " only; train without one"
                )
            loss = None
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
        self.average_gradients()
        with self._peers.telling():
            updated = [i for i in self._own if self._parameters[i].grad is not None]
            self.optimizer.step()
        self._peers.agree(f"the step of an optimizer of {described(self._parameters)}")
        self._send(updated)
        self._averaged = False
        return loss

    def _send(self, updated: Sequence[int]) -> None:
        """Send the parameters that this process updated to all, and take over theirs."""
        peers, parameters, recipe = self._peers, self._parameters, self._recipe
        narrow = {i: packed(parameters[i], recipe) for i in updated}
        how = torch.zeros(len(parameters), dtype=torch.uint8)
        for i, q in narrow.items():
            how[i] = _WIDE if q is None or not is_exact(q, parameters[i]) else _PACKED
        ways = peers.maxima(how).tolist()
        for rank in range(peers.size):
            sent = [i for i, owner in enumerate(self.owner) if owner == rank and ways[i] != _NOT]
            if rank != peers.rank:  # what a process has itself has the shapes of what comes
                narrow |= {i: packed(parameters[i], recipe) for i in sent if ways[i] == _PACKED}
            held = [parameters[i] if ways[i] == _WIDE else cast(NarrowTensor, narrow[i]) for i in sent]
            wide = sum(parameters[i].nbytes for i in sent)
            row = self._broadcast(octets(held), rank, wide)
            for x in held if rank == peers.rank else ():
                name = str(x.format) if isinstance(x, NarrowTensor) else dtype_name(x.dtype)
                peers.traffic.encoded(name, x.numel())
            if rank != peers.rank:
                refill_(held, row)
                for i, x in zip(sent, held, strict=True):
                    if isinstance(x, NarrowTensor):
                        parameters[i].copy_(x.dense())

    def _broadcast(self, row: torch.Tensor, rank: int, wide: int) -> torch.Tensor:
        """Return the bytes that one process has; all know how many."""
        peers = self._peers
        sent = row.to(peers.device)
        if sent.numel():
            distributed.broadcast(sent, group=peers.group, group_src=rank)
        times = peers.size - 1 if rank == peers.rank else 0
        peers.traffic.count("broadcast", times * sent.numel(), wide=times * wide)
        return sent.to(row.device)

    @property
    def _recipe(self) -> Recipe | None:
        recipe = getattr(self.optimizer, "recipe", None)
        return recipe if isinstance(recipe, Recipe) else None

    def gradients(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield each parameter of this process that has a gradient, and the mean in float32."""
        if not self._averaged:
            self.average_gradients()
        if hasattr(self.optimizer, "gradients"):
            yield from self.optimizer.gradients()
        else:
            yield from ((p, p.grad.float()) for p in self._parameters if p.grad is not None)

    @torch.no_grad()
    def clip_(self, max_norm: float, *, loss_scale: float = 1.0) -> float:
        """Shrink all gradients together so that the norm over all processes is at most ``max_norm``.

        Args:
            max_norm: of all gradients as one vector.
            loss_scale: 1; other scales are refused.

        Returns:
            The norm before, the same number on each process; computed in float32.

        Raises:
            ArgumentError: a norm that is not above 0, a loss scale, or processes that differ; on all.
        """
        with self._peers.telling():
            if not (is_number(max_norm) and float(max_norm) > 0):
                raise ArgumentError(f"max_norm={max_norm!r}; expected a norm above 0")
            if loss_scale != 1:
                raise ArgumentError(
                    f"loss_scale={loss_scale} of a ZeroOptimizer; expected 1: it has no loss scale"
                )
        self._peers.agree(f"gradients of {described(self._parameters)} clipped to {float(max_norm)!r}")
        self.average_gradients()
        norms = {id(p): float(torch.linalg.vector_norm(g)) for p, g in self.gradients()}
        found = [norms.get(id(p), -1.0) for p in self._parameters]  # -1: there is no gradient
        mine = torch.tensor(found, dtype=torch.float32)
        rows = self._peers.all_gather(mine.view(torch.uint8), "maxima").view(torch.float32)
        every = rows[self.owner, range(len(self.owner))]
        norm = float(torch.linalg.vector_norm(every[every != -1]))
        if not norm <= max_norm:  # NaN too
            scale = getattr(self.optimizer, "_scale_gradients", self._scale_own)  # FP16 ones in float32
            scale(max_norm / norm)
            self._note_means()
        return norm

    def _scale_own(self, factor: float) -> None:
        for i in self._own:
            gradient = self._parameters[i].grad
            if gradient is not None:
                gradient.mul_(factor)

    def state_dict(self) -> StateDict:
        """Return the state of all parameters, as the wrapped optimizer alone would; every process calls it.

        It loads into any number of processes, and into the optimizer alone. What one process holds is in
        ``optimizer.state_dict()``. Hooks that were registered here run as torch has them.

        Raises:
            ArgumentError: a state that is no tensor, number or text.
        """
        for hook in self._optimizer_state_dict_pre_hooks.values():
            hook(self)
        mine = cast(_Saved, self.optimizer.state_dict())
        with self._peers.telling():
            row = torch.frombuffer(bytearray(to_bytes(mine["state"])), dtype=torch.uint8)
        sizes = self._peers.agree(f"the state of {described(self._parameters)}", [len(row)])
        entries: dict[int, dict[str, object]] = {}
        for rank, (size, *_) in enumerate(sizes):
            run = row if rank == self._peers.rank else torch.empty(size, dtype=torch.uint8)
            entries |= cast("dict[int, Any]", from_bytes(self._broadcast(run, rank, size).numpy().tobytes()))
        whole: StateDict = {**mine, "state": dict(sorted(entries.items()))}
        return self._after(self._optimizer_state_dict_post_hooks, whole)

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Take over this process's part of a state of all parameters.

        Args:
            state_dict: what :meth:`state_dict` returned, with any number of processes, or that of the
                optimizer without them.

        Raises:
            ArgumentError: no state.
            ValueError: as the wrapped optimizer does.
        """
        given = state_dict
        if isinstance(given, dict):  # whatever a caller without types passes
            given = self._after(self._optimizer_load_state_dict_pre_hooks, given.copy())
        if not _is_state(given):
            raise ArgumentError(f"{given!r:.200} is no state; expected what state_dict() returned")
        saved = cast(_Saved, given)
        keys = [key for group in saved["param_groups"] for key in group["params"]]
        own = {keys[i] for i in self._own if i < len(keys)}
        mine = {key: entries for key, entries in saved["state"].items() if key in own}
        self.optimizer.load_state_dict({**given, "state": mine})
        for hook in self._optimizer_load_state_dict_post_hooks.values():
            hook(self)

    def _after(self, hooks: Mapping[int, Callable[..., StateDict | None]], state: StateDict) -> StateDict:
        """Return what hooks make of a state: each may change it, or return another one."""
        for hook in hooks.values():
            changed = hook(self, state)
            state = state if changed is None else changed
        return state

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop all gradients."""
        self._averaged = False
        self.optimizer.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, object]) -> None:
        """Add parameters with options of their own, before the first step.

        Raises:
            ArgumentError: steps were taken; states do not move from process to process.
        """
        if self.optimizer.state:
            raise ArgumentError(
                "parameters for a ZeroOptimizer that has taken steps; add them before, or save its state_dict"
                " and wrap an optimizer of all parameters anew"
            )
        self.optimizer.add_param_group(param_group)
        self._deal()

    @property
    def param_groups(self) -> list[dict[str, object]]:  # type: ignore[override]  # an attribute there
        """The wrapped optimizer's groups of parameters, with their options."""
        groups: list[dict[str, object]] = self.optimizer.param_groups
        return groups

    @property
    def state(self) -> MutableMapping[torch.Tensor, dict[str, object]]:  # type: ignore[override]  # an attribute there
        """The wrapped optimizer's states, those of this process."""
        state: MutableMapping[torch.Tensor, dict[str, object]] = self.optimizer.state
        return state

    @property
    def defaults(self) -> dict[str, object]:  # type: ignore[override]  # an attribute there
        """The wrapped optimizer's default options."""
        options: dict[str, object] = self.optimizer.defaults
        return options

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "optimizer":
            raise AttributeError(name)
        return getattr(self.optimizer, name)
