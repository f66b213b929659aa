"""The processes that train one model: each takes its part of a batch, and all hold the same model."""

from __future__ import annotations

import hashlib
from typing import TypedDict, cast

import torch
from torch import distributed, nn

from fewbits.distributed import CodecState, LocalSteps, Traffic, ZeroOptimizer, average_gradients
from fewbits.distributed.peers import Peers
from fewbits.errors import ArgumentError
from fewbits.optim.sharded import processes
from fewbits.train.tasks import Batch
from fewbits.typing import StateDict


def rank() -> int:
    """Return the number of this process."""
    return distributed.get_rank() if processes() > 1 else 0


class _Saved(TypedDict):
    """What ``state_dict`` returns."""

    bytes: list[int]
    memory: StateDict


class Together:
    """What a trainer asks of the other processes.

    Args:
        model: the same on each.
        codec: in which gradients, or updates, travel.
        local_steps: from one exchange of updates to the next; 0: gradients are averaged in each step.
        seed: of stochastic rounding.
    """

    def __init__(self, model: nn.Module, codec: str, local_steps: int, seed: int) -> None:
        self.model, self._state = model, CodecState(codec, seed=seed)
        self._local = LocalSteps(model, steps=local_steps, codec=codec, seed=seed) if local_steps else None
        self.traffic = Traffic() if self._local is None else self._local.traffic
        self._peers = Peers()
        self._sharded: ZeroOptimizer | None = None
        self._before = (0, 0)  # bytes that were sent before the checkpoint that this process began from
        self._peers.agree(f"a model of digest {_digest(model)}")

    def part(self, batch: Batch) -> Batch:
        """Return this process's samples of a batch that all drew.

        Raises:
            ArgumentError: the samples cannot be dealt out evenly.
        """
        size = self._peers.size
        if any(len(x) % size for x in batch):
            raise ArgumentError(
                f"{len(batch[0])} samples in a step for {size} processes; take a batch size that they divide"
            )
        return tuple(x.chunk(size)[self._peers.rank] for x in batch)

    def sharded(self, optimizer: torch.optim.Optimizer) -> ZeroOptimizer:
        """Return the optimizer with its states dealt out; gradients then go to their owners."""
        self._sharded = ZeroOptimizer(optimizer, self._state.codec, state=self._state, traffic=self.traffic)
        return self._sharded

    def after_backward(self) -> None:
        """Average the gradients, unless processes train on their own."""
        if self._sharded is not None:
            self._sharded.average_gradients()
        elif self._local is None:
            average_gradients(self.model, self._state.codec, state=self._state, traffic=self.traffic)

    def after_step(self, last: bool) -> None:
        """Exchange updates where it is time; after the last step all hold the same weights."""
        if self._local is not None and not self._local.step() and last:
            self._local.exchange()

    def mean(self, value: float) -> float:
        """Return the mean over the processes, of a number that is only reported."""
        mine = torch.tensor([value], dtype=torch.float64).view(torch.uint8)
        return float(self._peers.all_gather(mine, "reports").view(torch.float64).mean())

    def bytes(self) -> tuple[int, int]:
        """Return the bytes that this process sent in the run, and what the values take as they are."""
        return self._before[0] + self.traffic.nbytes, self._before[1] + self.traffic.wide

    def state_dict(self) -> StateDict:
        """Return what this process remembers."""
        memory = self._state if self._local is None else self._local
        return {"bytes": list(self.bytes()), "memory": memory.state_dict()}

    def load_state_dict(self, state: StateDict) -> None:
        """Take over what :meth:`state_dict` returned on this process."""
        saved = cast(_Saved, state)
        sent, wide = saved["bytes"]
        self._before = (sent - self.traffic.nbytes, wide - self.traffic.wide)
        (self._state if self._local is None else self._local).load_state_dict(saved["memory"])

    def newest(self, steps: list[int]) -> int | None:
        """Return the last of the steps that every process has a checkpoint of; None if there is none."""
        count = max(int(n[0]) for n in self._peers.agree("checkpoints", [len(steps)]))
        mine = torch.tensor(steps + [-1] * (count - len(steps)), dtype=torch.int64).view(torch.uint8)
        rows = self._peers.all_gather(mine, "agreement").view(torch.int64).tolist() if count else []
        common = set.intersection(*map(set, cast("list[list[int]]", rows))) - {-1} if rows else set()
        return max(common, default=None)

    def wait(self) -> None:
        """Return when every process has come here."""
        self._peers.agree("the end of a checkpoint")


def _digest(model: nn.Module) -> str:
    """Return a digest of the weights: processes that begin from different ones would never agree."""
    found = hashlib.blake2b(digest_size=8)
    for p in model.parameters():
        if p.numel():
            found.update(p.detach().contiguous().view(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()
