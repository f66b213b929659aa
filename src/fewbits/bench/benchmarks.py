"""A benchmark as data: what is trained, how good it has to be, and which choices a run has."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fewbits.bench.rules import FEWEST, check_seeds
from fewbits.errors import ArgumentError

if TYPE_CHECKING:
    from fewbits.train import Settings


_TYPES: dict[str, type | tuple[type, ...]] = {
    "name": str, "task": str, "size": str, "target": (int, float), "lr": (int, float), "seeds": tuple,
    **dict.fromkeys(("evaluate_every", "steps", "batch_size", "eval_samples", "runs"), int),
}  # fmt: skip


@dataclass(frozen=True)
class Benchmark:
    """One benchmark. The recipe, which names the optimizer and the schedule, is what differs between runs.

    Attributes:
        name: in tables and logs.
        task: data and model, as ``fewbits train --task`` takes them, or MODULE:FUNCTION of a Task.
        target: the quality, in the metric of the task, that ends a run.
        evaluate_every: steps from one evaluation to the next; the last step is followed by one, too.
        steps: at most; the learning rate is planned for them.
        batch_size: samples in a step, of all processes together.
        lr: learning rate: its peak.
        eval_samples: held-out samples that an evaluation looks at.
        runs: N, that a result takes.
        seeds: that are allowed; none: all.
        size: of the model, "small" or "base".
    """

    name: str
    task: str
    target: float
    evaluate_every: int
    steps: int
    batch_size: int
    lr: float
    eval_samples: int
    runs: int = 5
    seeds: tuple[int, ...] = ()
    size: str = "small"

    def __post_init__(self) -> None:
        """Raise if nothing could be measured so."""
        for field, kind in _TYPES.items():
            value = getattr(self, field)
            if not isinstance(value, kind) or isinstance(value, bool):
                raise ArgumentError(
                    f"{field}={value!r} of benchmark {self.name!r} is {type(value).__name__}; expected"
                    f" {'a number' if kind == (int, float) else getattr(kind, '__name__', kind)}"
                )
        if any(type(seed) is not int for seed in self.seeds):
            raise ArgumentError(
                f"seeds={self.seeds!r} of benchmark {self.name!r}; expected a tuple of integers"
            )
        if not (math.isfinite(self.lr) and self.lr > 0):
            raise ArgumentError(f"lr={self.lr!r} of benchmark {self.name!r}; expected a number above 0")
        if not math.isfinite(self.target):
            raise ArgumentError(
                f"target={self.target!r} of benchmark {self.name!r}; expected a finite number"
            )
        for field in ("evaluate_every", "steps", "batch_size", "eval_samples"):
            if getattr(self, field) < 1:
                raise ArgumentError(
                    f"{field}={getattr(self, field)} of benchmark {self.name!r}; expected 1 or more"
                )
        if self.runs < FEWEST:
            raise ArgumentError(
                f"runs={self.runs} of benchmark {self.name!r}; expected {FEWEST} or more, as the fastest and"
                " the slowest are dropped"
            )
        check_seeds(self.seeds)

    @property
    def train_samples(self) -> int:
        """Samples that are drawn to train on, at most."""
        return self.steps * self.batch_size

    def settings(self, recipe: str, seed: int, processes: int = 1, codec: str = "") -> Settings:
        """Return the settings of one run."""
        from fewbits.train import Settings

        return Settings(
            self.task,
            recipe,
            size=self.size,
            steps=self.steps,
            seed=seed,
            lr=self.lr,
            batch_size=self.batch_size,
            processes=processes,
            codec=codec,
        )


_BUILT_IN = (
    # FP32 reaches these on two cores in seconds (the classifiers) or about a minute (the models of text).
    Benchmark("digits", "digits", 95.0, 10, 400, 32, 1e-2, 897),
    Benchmark("mnist10k", "mnist10k", 98.0, 25, 500, 64, 5e-3, 2000),
    Benchmark("bytes", "bytes", 1.5, 100, 2400, 16, 1.4e-2, 64),
    Benchmark("lstm", "lstm", 1.5, 100, 2400, 16, 2e-2, 64),
)
BENCHMARKS: dict[str, Benchmark] = {b.name: b for b in _BUILT_IN}
"""The built-in benchmarks, by name."""


def benchmark(name: str) -> Benchmark:
    """Return a built-in benchmark, or one of your own.

    Args:
        name: ``digits``, ``mnist10k``, ``bytes``, ``lstm``, or ``MODULE:FUNCTION`` of a function that returns
            a :class:`Benchmark`; the module's code runs.

    Raises:
        ArgumentError: there is no such benchmark, module or function, or it returns something else.

    >>> benchmark("digits").target
    95.0
    """
    if name in BENCHMARKS:
        return BENCHMARKS[name]
    if ":" not in name:
        raise ArgumentError(
            f"there is no benchmark {name!r}; expected {', '.join(BENCHMARKS)} or MODULE:FUNCTION of your own"
        )
    from fewbits.train.tasks.user_model import user_function

    made = user_function(name, "returns a fewbits.bench.Benchmark", "my_benchmarks")()
    if not isinstance(made, Benchmark):
        raise ArgumentError(f"{name} does not return a fewbits.bench.Benchmark; write a function that does")
    return made
