"""The settings of a training run: everything that decides the bits of its result."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from fewbits.errors import ArgumentError
from fewbits.train.tasks.task import Hyperparameters

# Of whole numbers the least.
_COUNTS = dict.fromkeys(("steps", "seed", "local_steps"), 0) | dict.fromkeys(
    ("batch_size", "observe_every", "save_every", "processes"), 1
)


@dataclass(frozen=True)
class Settings:
    """One run. Two runs with equal settings on one machine end with the same bits."""

    task: str  # "bytes", "lstm", "digits", "faint", "mnist10k", the path of a text, or MODULE:FUNCTION
    recipe: str
    size: str = "small"  # of the model: "small" or "base"
    steps: int = 0  # 0: as many as the task says
    seed: int = 0
    lr: float | None = None  # learning rate: its peak; None: as the task says
    batch_size: int | None = None  # samples in one step; None: as many as the task says
    include: tuple[str, ...] = ("*",)  # patterns of the layers that follow the recipe
    exclude: tuple[str, ...] = ()  # patterns of those that stay as they are
    observe_every: int = 50  # steps from one look at the rounding to the next
    save_every: int = 50  # steps from one checkpoint to the next
    processes: int = 1  # that share each batch
    codec: str = ""  # in which gradients, or updates, travel between them; "" for one process
    local_steps: int = 0  # from one exchange of updates to the next; 0: gradients are averaged in each step
    model: str = ""  # "lstm": what reads the text of the task; "": as the task says
    shard_states: bool = False  # each process holds the optimizer's state of its own tensors only
    start: str = ""  # path of the checkpoint whose weights it starts from; "": those of the seed

    def __post_init__(self) -> None:
        """Raise if a number is out of its range, or settings do not fit each other."""
        given: object = self.lr  # whatever a caller without types passes
        if given is not None and not (isinstance(given, (int, float)) and 0 < given < math.inf):
            raise ArgumentError(f"lr={self.lr!r}; expected a number above 0")
        for name, least in _COUNTS.items():
            value: object = getattr(self, name)
            if value is None and name == "batch_size":
                continue
            if type(value) is not int or value < least:  # checkpoints hold numbers of Python alone
                raise ArgumentError(f"{name}={value!r}; expected {least} or more, a whole number of Python")
        if self.processes == 1 and (self.codec or self.local_steps or self.shard_states):
            raise ArgumentError(
                "codec, local_steps and shard_states are of several processes, and there is one; start some"
                " with torchrun, or with --processes"
            )
        if self.local_steps and self.shard_states:
            raise ArgumentError(
                "local_steps with shard_states: a process that trains on its own needs all states; take one"
            )
        if self.processes > 1 and not self.codec:
            raise ArgumentError(
                f"{self.processes} processes without a codec; name what travels, as mxfp8_e4m3, or fp32"
            )

    def apply(self, hyper: Hyperparameters) -> Hyperparameters:
        """Return the hyperparameters of a task with what differs in this run."""
        return replace(
            hyper,
            steps=self.steps or hyper.steps,
            lr=self.lr or hyper.lr,
            batch_size=self.batch_size or hyper.batch_size,
        )
