"""What do codecs do to the loss, beside gradients that travel as float32?

- ``bytes``: the byte model on four processes, under DistributedDataParallel and under fully_shard, AdamW and
  the steps of the task. Held-out loss in nats per byte.
- ``bytes-sgd``: the same under SGD with momentum 0.9, which for the largest 1 % the codec takes before it
  chooses. Nothing is clipped there, since that would cut off what feedback pays back.
- ``digits``: a perceptron on four processes, plain SGD whose rate is halved after each quarter. Accuracy in
  percent. Powers of two of four bits, with a scale that the processes agree on for each layer, and without
  one, which is a control that must fail; the largest 1 %, with feedback, and without, another control.
- ``fp8-lm``: the three levels of the recipe for the task digits on two processes, whose gradients travel in
  E4M3 with a scale for each tensor, beside one process. Accuracy in percent.

As good as its peer is what is worse by no more than 0.03 nats or half a point, or by twice the standard
deviation of the peer over seeds, whichever is more. Differences are paired by seed: a seed sets the initial
weights, and batches are the same for all.

    python benchmarks/codec_quality.py [--seeds 3] [--parts bytes,bytes-sgd,digits,fp8-lm] [--steps N]
        [--keep FOLDER] [--json FILE]

It takes hours on two cores; with ``--keep`` a second call goes on where the first one stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import pairwise, product
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import torch
from _alternating import table, write
from torch import distributed, multiprocessing, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from fewbits.distributed import ddp_hook, fsdp_codecs
from fewbits.recipes.rounding import joint_seed
from fewbits.train import recipe_trainer, seeded
from fewbits.train.learning_rates import linear_warm_up
from fewbits.train.tasks import Batch, Task
from fewbits.train.tasks import task as read_task

ENOUGH = {"nll": 0.03, "accuracy": 0.5}  # nats; points
TOPK = "topk:density=0.01,feedback"
MOVED = "topk:density=0.01,feedback,momentum=0.9"
SGD_RATE = 0.56  # of the byte model; 40 times that of AdamW
LM_CODEC = "fp8_e4m3:aps"
LEVELS = ("fp8-lm-o1", "fp8-lm-o2", "fp8-lm")
STEPS, RATE = 1000, 0.2  # of the perceptron


class Case(NamedTuple):
    """One line of the table."""

    part: str
    engine: str
    codec: str
    processes: int
    against: int  # the line that it is set beside
    recipe: str = "fp32"

    @property
    def name(self) -> str:
        return "-".join(filter(None, (self.part, self.engine, self.codec, self.recipe))).replace(" ", "_")


def cases() -> list[Case]:
    """Return every line; what others are set beside comes before them."""
    codecs = ("fp32", "fp4_e3m0:aps", "fp4_e3m0", TOPK, "topk:density=0.01")
    found = [Case("digits", "ddp", codec, 4, 0) for codec in codecs]
    for level in LEVELS:
        alone = len(found)
        found.append(Case("fp8-lm", "trainer", "", 1, alone, level))
        found.append(Case("fp8-lm", "trainer", LM_CODEC, 2, alone, level))
    wide = len(found)
    for codec in ("fp32", "mxfp8_e4m3", "int8_256:feedback", TOPK, "topk:density=0.01"):
        found.append(Case("bytes", "ddp", codec, 4, wide))
    for codec in ("mxfp8_e4m3", "int8_256:feedback", TOPK):
        found.append(Case("bytes", "fsdp", codec, 4, wide))
    found.append(Case("bytes", "fsdp, weights too", "mxfp8_e4m3", 4, wide))
    plain = len(found)
    for engine, codec in (("ddp", "fp32"), ("ddp", MOVED), ("ddp", TOPK), ("fsdp", MOVED)):
        found.append(Case("bytes-sgd", engine, codec, 4, plain))
    return found


def perceptron(seed: int) -> nn.Sequential:
    """Return the perceptron 64-128-128-10."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers: list[nn.Module] = [nn.Flatten()]
        for n, m in pairwise((64, 128, 128, 10)):
            layers += [nn.Linear(n, m), nn.ReLU()]
        return nn.Sequential(*layers[:-1])


@contextmanager
def wrapped(model: nn.Module, case: Case) -> Iterator[tuple[nn.Module, Any]]:
    """Give the model beneath its engine, and what counts its bytes."""
    if case.engine == "ddp":
        outer, hook = DistributedDataParallel(model), ddp_hook(case.codec)
        outer.register_comm_hook(None, hook)
        with closing(hook):
            yield outer, hook.traffic
        return
    # What is sharded together is chosen from together: the fewer the groups, the better the choice.
    for block in model.blocks if case.part == "bytes" else ():
        fully_shard(block)
    fully_shard(model)
    weight = case.codec if "weights" in case.engine else None
    yield model, fsdp_codecs(model, gradient=case.codec, weight=weight).traffic


def trained(task: Task, case: Case, seed: int, steps: int) -> dict[str, float]:
    """Train on this process's part of each batch; return the metric and the bytes sent in a step."""
    hyper, digits, by_sgd = task.hyper, case.part == "digits", case.part == "bytes-sgd"
    random, steps = torch.Generator().manual_seed(0), steps or (STEPS if digits else hyper.steps)
    rank, size = distributed.get_rank(), distributed.get_world_size()
    with wrapped(perceptron(seed) if digits else task.create(seed), case) as (model, traffic):
        options = {"betas": hyper.betas, "weight_decay": hyper.weight_decay}
        moved = 0.0 if "momentum" in case.codec or digits else 0.9
        optimizer: torch.optim.Optimizer = (
            torch.optim.SGD(model.parameters(), RATE, moved)
            if digits or by_sgd
            else torch.optim.AdamW(model.parameters(), hyper.lr, **options)
        )
        peak = SGD_RATE if by_sgd else hyper.lr
        for step in range(steps):
            lr = RATE * 0.5 ** (4 * step // steps) if digits else linear_warm_up(peak, step, steps)
            for group in optimizer.param_groups:
                group["lr"] = lr
            batch: Batch = task.draw_batch(random, hyper.batch_size)
            optimizer.zero_grad()
            task.loss(model, tuple(x.chunk(size)[rank] for x in batch)).backward()
            if not digits and not by_sgd:
                nn.utils.clip_grad_norm_(model.parameters(), hyper.max_norm)
            optimizer.step()
        return {"value": task.evaluate(model.eval()), "bytes": traffic.nbytes / steps}


def by_recipe(task: Task, case: Case, seed: int, steps: int) -> dict[str, float]:
    """Train as ``fewbits train`` does."""
    rank = distributed.get_rank() if case.processes > 1 else 0
    with seeded(task, joint_seed(seed, rank) if rank else seed):
        trainer = recipe_trainer(task, case.recipe, seed=seed, steps=steps, codec=case.codec)
        for _ in trainer:
            pass
        sent = 0 if trainer.together is None else trainer.together.bytes()[0]
        return {"value": trainer.evaluate(), "bytes": sent / trainer.steps}


def process(rank: int, folder: Path, runs: Sequence[tuple[int, Case]], steps: int) -> None:
    """Be one of the processes of some runs, each of a seed and a case; rank 0 writes what it finds."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    size = runs[0][1].processes
    if size > 1:
        meeting = f"file://{folder}/meeting{size}"
        distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size)
    for seed, case in runs:
        task = read_task("bytes" if case.part.startswith("bytes") else "digits")
        run = by_recipe if case.engine == "trainer" else trained
        found = run(task, case, seed, steps)
        if rank == 0:
            (folder / f"{case.name}-{seed}.json").write_text(json.dumps(found))
            print(f"{case.name}, seed {seed}: {found['value']:.4f}", file=sys.stderr, flush=True)
    if size > 1:
        distributed.destroy_process_group()


def measure(parts: Sequence[str], seeds: int, steps: int, folder: Path) -> list[dict[str, Any]]:
    """Return one row for each case of the parts; what the folder has is not run again."""
    every = [case for case in cases() if case.part in parts]
    for part, size in sorted({(case.part, case.processes) for case in every}, reverse=True):
        runs = [
            (seed, case)
            for seed, case in product(range(seeds), every)
            if (case.part, case.processes) == (part, size)
            and not (folder / f"{case.name}-{seed}.json").exists()
        ]
        if runs:
            (folder / f"meeting{size}").unlink(missing_ok=True)
            multiprocessing.start_processes(
                process, args=(folder, runs, steps), nprocs=size, start_method="spawn"
            )

    def found(case: Case) -> list[dict[str, float]]:
        return [json.loads((folder / f"{case.name}-{seed}.json").read_text()) for seed in range(seeds)]

    return [row(case, found(case), found(cases()[case.against])) for case in every]


def row(case: Case, found: list[dict[str, float]], peers: list[dict[str, float]]) -> dict[str, Any]:
    """Return the figures of a case beside those that it is compared with."""
    values, usual = [[run["value"] for run in runs] for runs in (found, peers)]
    metric = "nll" if case.part.startswith("bytes") else "accuracy"
    worse = [(u - v) if metric == "accuracy" else (v - u) for v, u in zip(values, usual, strict=True)]
    spread = stdev(usual) if len(usual) > 1 else 0.0
    allowed = max(2 * spread, ENOUGH[metric])
    return {
        **case._asdict(),
        "metric": metric,
        "values": values,
        "mean": fmean(values),
        "worse_by": fmean(worse),
        "worse_by_seed": worse,
        "spread_of_peer": spread,
        "allowed": allowed,
        "as_good": fmean(worse) <= allowed,
        "bytes_sent_in_a_step": found[0]["bytes"],
    }


def main() -> None:
    """Print the table and write the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seeds", type=int, default=3, help="default 3")
    parser.add_argument(
        "--parts", default="bytes,bytes-sgd,digits,fp8-lm", help="comma-separated; default: all"
    )
    parser.add_argument("--steps", type=int, default=0, help="default: as many as each task says")
    parser.add_argument("--keep", type=Path, help="folder for finished runs")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        kept = (given.keep or Path(folder)).absolute()
        kept.mkdir(parents=True, exist_ok=True)
        rows = measure(given.parts.split(","), given.seeds, given.steps, kept)
    shown = ("part", "engine", "recipe", "codec", "processes", "mean", "worse_by", "allowed", "as_good")
    table(shown, [tuple(f"{r[k]:.4f}" if isinstance(r[k], float) else r[k] for k in shown) for r in rows])
    write(given.json, rows)


if __name__ == "__main__":
    main()
