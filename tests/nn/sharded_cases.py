"""What the processes of test_distributed.py do, and one process for comparison."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.nn.parallel import DistributedDataParallel

import fewbits as fb
from fewbits.errors import ArgumentError, DTypeError
from fewbits.optim import AdamW, scaler
from fewbits.optim.packed_gradient import PackedGradient
from fewbits.recipes.catalogue import RECIPES
from fewbits.train import schedule
from tests.cases import pairs
from tests.processes import joined

STEPS = 5
ROWS = 64  # of each process: two whole blocks of 32 along the batch
EVERY = tuple(name for name in RECIPES if name != "assigned")  # which several processes refuse


def built(chosen: str, way: str, **options: Any) -> nn.Module:
    """Return a prepared model, the same in every process, wrapped as ``way`` says."""
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(
        *(nn.Linear(40, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 37), nn.ReLU(), nn.Linear(37, 10))
    )
    fb.prepare(model, chosen)
    if way == "fsdp":  # what is kept as float32 beside 16-bit weights is sharded apart
        for layer in model:
            if list(layer.parameters()):
                fully_shard(layer, **options)
        fully_shard(model, **options)
    return DistributedDataParallel(model) if way == "ddp" else model


def train(
    chosen: str, way: str, rank: int, processes: int, *, clip: str = "torch", **options: Any
) -> list[float]:
    """Return the loss of each step on this process's part of the batch, or on all of it."""
    model = built(chosen, way, **options)
    optimizer = AdamW(model.parameters(), lr=1e-2, recipe=chosen)
    scale, plan = scaler(chosen), schedule(model, chosen, STEPS)
    torch.manual_seed(1)
    x, y = torch.randn(ROWS * processes, 40), torch.randint(10, (ROWS * processes,))
    if way != "alone":
        x, y = x.chunk(processes)[rank], y.chunk(processes)[rank]
    losses = []
    for step in range(STEPS):
        torch.manual_seed(100 + step)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        scale.scale(loss).backward()
        if scale.is_enabled():
            scale.unscale_(optimizer)
        if clip == "torch":
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        else:
            optimizer.clip_(0.5)
        plan.after_backward()
        scale.step(optimizer)
        scale.update()
        plan.after_step()
        losses.append(float(loss.detach()))
    return losses


def held_after_averaging(way: str) -> bool:
    """Whether gradients are wide until the processes have averaged them, and of the format then."""
    torch.manual_seed(distributed.get_rank())
    model = built("fp8-lm-o1", way)
    optimizer = AdamW(model.parameters(), recipe="fp8-lm-o1")
    model(torch.randn(8, 40)).square().mean().backward()
    weight = model.module[0].weight if way == "ddp" else model[0].weight
    before = whole(weight.grad).clone()
    optimizer.clip_(torch.inf)
    held = fb.fake_quantize(before, optimizer.recipe.held_gradient.format, scale_rule="rceil")
    packed = isinstance(weight.grad, PackedGradient) is (way == "ddp")
    return packed and not torch.equal(before, held) and torch.equal(whole(weight.grad) + 0, held)


def after_an_overflow(way: str, rank: int) -> bool:
    """Whether an infinity in the data of one process makes all of them skip the step."""
    model = built("fp16-master", way)
    optimizer, scale = AdamW(model.parameters(), lr=1e-2, recipe="fp16-master"), scaler("fp16-master")
    before = [whole(p).clone() for p in model.parameters()]
    x = torch.randn(8, 40)
    x[0, 0] = torch.inf if rank == 0 else 0.0
    scale.scale(model(x).square().mean()).backward()
    old = scale.get_scale()
    scale.step(optimizer)
    scale.update()
    same = all(torch.equal(whole(p), b) for p, b in zip(model.parameters(), before, strict=True))
    return same and scale.get_scale() < old


def whole(p: torch.Tensor) -> torch.Tensor:
    """Return a parameter, gathered where it is sharded."""
    return p.detach().full_tensor() if isinstance(p, DTensor) else p.detach()


def copies_stay_alike(rank: int, processes: int) -> bool:
    """Whether stochastic rounding leaves replicas equal though each process draws from a seed of its own."""
    model = built("bf16-only", "ddp")
    optimizer = AdamW(model.parameters(), lr=1e-2, recipe="bf16-only")
    torch.manual_seed(rank)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(8, 40)).square().mean().backward()
        optimizer.step()
    flat = torch.cat([p.detach().float().flatten() for p in model.parameters()])
    every = [torch.empty_like(flat) for _ in range(processes)]
    distributed.all_gather(every, flat)
    return all(torch.equal(one, flat) for one in every)


# The same shape and axis again and again: a sharding that is remembered by them alone would be wrong.
FORMATS = ("mxfp4", "fp8_e4m3", "int8_tensor", "mx6", "nvfp4", "int8_channel", "mxfp8_e4m3", "posit8_1")


def wrong_shardings(processes: int) -> Iterator[str]:
    """Yield where a sharded tensor is not rounded to the bits of the whole one."""
    mesh = init_device_mesh("cpu", (processes,))
    for shape in ((128, 64), (37, 50), (3, 5, 33)):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * torch.logspace(-3, 3, shape[-1])
        placed = {
            place: distribute_tensor(x, mesh, [place])
            for place in (Replicate(), *map(Shard, range(len(shape))))
        }
        ways: tuple[dict[str, Any], ...] = ({}, {"rounding": "stochastic", "generator": 5})
        for name, place, axis, options in pairs(FORMATS, placed, range(len(shape)), ways):
            found = fb.fake_quantize(placed[place], name, axis=axis, **options)
            if not torch.equal(found.full_tensor(), fb.fake_quantize(x, name, axis=axis, **options)):
                yield f"{name} {shape} {place} {axis} {options}"
    held = distribute_tensor(x, mesh, [Shard(0)]).requires_grad_()
    (fb.fake_quantize(held, "mxfp4") * held).sum().backward()
    if not torch.equal(whole(held.grad), fb.fake_quantize(x, "mxfp4") + x):
        yield "gradient"


def placements(processes: int) -> dict[str, str]:
    """Return where results lie: what can stay cut is not gathered."""
    mesh = init_device_mesh("cpu", (processes,))
    rows = distribute_tensor(torch.randn(128, 64), mesh, [Shard(0)])
    return {
        "other axis": str(fb.fake_quantize(rows, "mxfp4", axis=1).placements),
        "whole blocks": str(fb.fake_quantize(rows, "mxfp4", axis=0).placements),
        "cut blocks": str(fb.fake_quantize(rows[:100], "mxfp4", axis=0).placements),
        "one scale": str(fb.fake_quantize(rows, "int8_tensor", axis=1).placements),
    }


def stored_states_are_parts_of_the_whole(processes: int) -> bool:
    """Whether what each process packs is its part of the packed whole, and comes back sharded."""
    from fewbits.optim.packing import pack, unpack
    from fewbits.recipes.role_format import read_role_format

    mesh = init_device_mesh("cpu", (processes,))
    for text in (
        "block(element=fp8_e4m3,scale=e8m0,size=tensor)/rceil",
        "mxfp8_e4m3",
        "nvfp4",
        "int8_channel",
    ):
        for shape in ((64, 40), (37, 50), (1, 32), (130,), (128,)):
            x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
            x.view(-1)[-1] = 1000.0  # in the last process's part
            held = distribute_tensor(x, mesh, [Shard(0)])
            back = unpack(pack(held, read_role_format(text)), held)
            if not torch.equal(back.full_tensor(), unpack(pack(x, read_role_format(text)))):
                return False
    big = distribute_tensor(torch.randn(128, 64), mesh, [Shard(0)])
    return pack(big, read_role_format("mxfp8_e4m3")).shape == (128 // processes, 64)


def refused_of_shards(processes: int) -> list[str]:
    """Return what is said to who packs a DTensor, or saves packed states of one."""
    said = []
    held = distribute_tensor(torch.randn(64, 32), init_device_mesh("cpu", (processes,)), [Shard(0)])
    with pytest.raises(DTypeError) as refused:
        fb.quantize(held, "mxfp4")
    said.append(str(refused.value))
    chosen = "fp8-lm-o2"
    model = built(chosen, "fsdp")
    optimizer = AdamW(model.parameters(), recipe=chosen)
    model(torch.randn(8, 40)).sum().backward()
    optimizer.step()
    with pytest.raises(ArgumentError) as state:
        optimizer.state_dict()
    return [*said, str(state.value)]


def work(rank: int, folder: str, processes: int, patience: float, names: tuple[str, ...]) -> None:
    """Do everything as one of the processes, and leave what was found in the folder."""
    with joined(rank, folder, processes, patience):
        found: dict[str, Any] = {
            f"{way} {name}": train(name, way, rank, processes) for way in ("ddp", "fsdp") for name in names
        }
        found["clip"] = train("mxfp8", "fsdp", rank, processes, clip="own")
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        found["policy"] = train("mxfp8", "fsdp", rank, processes, mp_policy=policy)
        found["held"] = [held_after_averaging(way) for way in ("ddp", "fsdp")]
        found["overflow"] = [after_an_overflow(way, rank) for way in ("ddp", "fsdp")]
        found["alike"] = copies_stay_alike(rank, processes)
        found["wrong"] = list(wrong_shardings(processes))
        found["placements"] = placements(processes)
        found["stored"] = stored_states_are_parts_of_the_whole(processes)
        found["shards"] = refused_of_shards(processes)
        (Path(folder) / f"{rank}.json").write_text(json.dumps(found))


def worker(processes: int, patience: float, names: tuple[str, ...]) -> Callable[[int, str], None]:
    """Return what each process calls."""
    return partial(work, processes=processes, patience=patience, names=names)
