"""A communication hook for DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from inspect import Parameter, Signature
from typing import cast

import torch
from torch import distributed, nn
from torch._C._distributed_c10d import GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

from fewbits.distributed.arguments import described, peers_of
from fewbits.distributed.collectives.all_reduce import reduced
from fewbits.distributed.memory import lent
from fewbits.distributed.peers import Peers
from fewbits.distributed.state import CodecState
from fewbits.distributed.traffic import Traffic
from fewbits.errors import ArgumentError
from fewbits.recipes import Codec
from fewbits.recipes import codec as read
from fewbits.typing import ProcessGroup, StateDict

_COMPRESSED_FROM = 2  # the first step of PowerSGD that is not plain: one of its own is needed before


# Groups of hooks that were closed, by ranks. torch would name the next one of the same ranks as the one that
# was destroyed, and processes might read where that one was to be found, and wait for it.
_IDLE: dict[tuple[int, ...], list[distributed.ProcessGroup]] = {}


def _group_like(joined: Peers) -> distributed.ProcessGroup:
    """Return a group of the same processes for one hook alone; each of them calls this."""
    own: distributed.ProcessGroup
    if joined.size == distributed.get_world_size():
        own = distributed.new_group()
        return own
    ranks = sorted(distributed.get_process_group_ranks(joined.group))
    idle = _IDLE.get(tuple(ranks), [])
    while idle:
        own = idle.pop()
        with suppress(ValueError):  # it ended with all others, and is not known any more
            distributed.get_rank(own)
            return own
    own = distributed.new_group(ranks, use_local_synchronization=True)
    return own


class DDPHook:
    """Averages gradients over the processes of DistributedDataParallel, as a codec says.

    Buckets travel one after the other in a thread and a process group of their own, beside the backward pass.
    Values are rounded where the bucket lies, and the network takes their bytes: for a group of the CPU (gloo)
    the host carries them. Every process gets the same bits. NaN or infinity in a gradient arrives on all of
    them, with a codec that sends the largest values perhaps in another gradient of its bucket. Feedback is in
    the units of the gradients: with a loss scale that changes it is off by that change once, and what a
    skipped step sent is lost.

    Args:
        codec: a codec or its text. ``powersgd`` and ``fp16_compress`` are torch's own hooks, whose traffic is
            not counted; PowerSGD begins with the third step.
        group: that of the model; None: all processes. Every process of it makes the hook at the same time.
        seed: of stochastic rounding.

    Attributes:
        codec: what travels.
        traffic: counts the bytes that this process sends.

    Raises:
        ArgumentError: no process group, or a codec that does not exist.
    """

    # torch compares annotations by identity, and these are text.
    __signature__ = Signature([Parameter(name, Parameter.POSITIONAL_ONLY) for name in ("state", "bucket")])

    def __init__(self, codec: str | Codec, group: ProcessGroup = None, *, seed: int = 0) -> None:
        self.__name__ = self.__qualname__ = "ddp_hook"  # by which torch names hooks
        self.codec, self.traffic = read(codec), Traffic()
        self._state = CodecState(self.codec, seed=seed)
        own = _group_like(peers_of(group, None))  # which raises if there is none
        self._peers = Peers(own, self.traffic)
        self._torch = _hook_of_torch(self.codec, own)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="fewbits-network")

    def __call__(self, state: object, bucket: GradBucket) -> torch.futures.Future[torch.Tensor]:
        """Return a future of the averaged bucket; ``state`` is not used."""
        device = bucket.buffer().device
        # A future of a tensor on a GPU has to know where it is.
        places: list[int | str | torch.device] = [] if device.type == "cpu" else [device]
        done: torch.futures.Future[None] = torch.futures.Future(devices=places)
        work = self._thread.submit(self._average, bucket)
        work.add_done_callback(lambda _: done.set_result(None))
        # Of a failed future torch's reducer knows only what a callback raised.
        return done.then(lambda _: work.result())

    @torch.no_grad()
    def _average(self, bucket: GradBucket) -> torch.Tensor:
        if self._torch is not None:
            # Of several at once each may wait for a thread of gloo that another one holds.
            return self._torch(bucket).wait()
        gradients, x = bucket.gradients(), bucket.buffer()
        mean = reduced(
            x.detach(),
            self.codec,
            self._peers,
            f"bucket {bucket.index()} of {described(gradients)} as {self.codec}",
            mean=True,
            layers=[g.numel() for g in gradients],
            state=self._state,
            keys=[id(p) for p in bucket.parameters()],
            out=lent(x),
        )
        return x if lent(x) is not None else x.copy_(mean)

    def close(self) -> None:
        """End the thread and the process group of a hook that is done, on every process at the same time.

        The group of a part of all processes waits for the next hook of the same ones.
        """
        self._thread.shutdown()
        group = self._peers.group
        if self._peers.size == distributed.get_world_size():
            distributed.destroy_process_group(group)
        else:
            _IDLE.setdefault(tuple(distributed.get_process_group_ranks(group)), []).append(group)

    def state_dict(self, model: nn.Module) -> StateDict:
        """Return what the codec remembers on this process, by the names of the model's parameters."""
        if self._torch is not None:
            raise ArgumentError(f"{self.codec} is torch's own hook, whose state is not here to be saved")
        names = {id(p): name for name, p in _named(model)}
        state = self._state.state_dict()
        for what in ("residuals", "velocities"):
            kept = cast("dict[int, torch.Tensor]", state[what])
            state[what] = {names[key]: x for key, x in kept.items() if key in names}
        return state

    def load_state_dict(self, model: nn.Module, states: StateDict | Sequence[StateDict]) -> None:
        """Take over a state.

        Args:
            model: has the parameters that the state names.
            states: what :meth:`state_dict` returned on this process; where the number of processes is another
                one now, a list of what it returned on each old one, in the order of ranks.

        Raises:
            ArgumentError: the state of another codec, or of parameters that the model does not have.
        """
        keys = {name: id(p) for name, p in _named(model)}
        self._state.load_state_dict(states, keys, self._peers.rank, self._peers.size)


def _named(model: nn.Module) -> list[tuple[str, nn.Parameter]]:
    plain = model.module if isinstance(model, nn.parallel.DistributedDataParallel) else model
    return list(plain.named_parameters())


def _hook_of_torch(
    codec: Codec, group: distributed.ProcessGroup
) -> Callable[[GradBucket], torch.futures.Future[torch.Tensor]] | None:
    if codec.hook == "powersgd":
        state = powerSGD_hook.PowerSGDState(
            group, matrix_approximation_rank=codec.rank, start_powerSGD_iter=_COMPRESSED_FROM
        )
        return lambda bucket: powerSGD_hook.powerSGD_hook(state, bucket)
    if codec.hook == "fp16_compress":
        return lambda bucket: default_hooks.fp16_compress_hook(group, bucket)
    return None


def ddp_hook(codec: str | Codec, group: ProcessGroup = None, *, seed: int = 0) -> DDPHook:
    """Return a hook for ``register_comm_hook``; see :class:`DDPHook`."""
    return DDPHook(codec, group, seed=seed)
