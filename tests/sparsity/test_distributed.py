"""Sparse models on two processes: DistributedDataParallel, and fully_shard with its sharded masks."""

import json
from pathlib import Path

import pytest
import torch
from torch import distributed, nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import fewbits as fb
from fewbits.errors import ArgumentError
from fewbits.kernels.ops.sharding import gathered, is_sharded
from fewbits.sparsity import Frozen, Gradual, MaskedOptimizer, Recomputed, is_sparse
from fewbits.sparsity.sharded import local
from tests.processes import joined, run
from tests.training import losses_of

PATIENCE = 120  # seconds for everything that the two processes do
STEPS = 6
PROCESSES = 2
SCHEDULES = {
    "frozen": Frozen(),
    "recomputed": Recomputed(every=2, decay=0.01),
    "gradual": Gradual(4, every=2),
}
CASES = [(how, schedule) for how in ("ddp", "fsdp") for schedule in SCHEDULES]
WEIGHTS = ("0.weight", "2.weight")


def wrapped(model: nn.Module, how: str | None) -> nn.Module:
    if how == "ddp":
        return DistributedDataParallel(model)
    if how == "fsdp":
        for layer in (model[0], model[2]):
            fully_shard(layer)
        fully_shard(model)
    return model


def train(how: str | None, schedule: str, rank: int | None = None) -> dict:
    """Return the loss of each step on this process's part of the batch, or on all of it, and the masks."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Linear(16, 20), nn.ReLU(), nn.Linear(20, 9))
    fb.sparsify(plain, "2:4", schedule=SCHEDULES[schedule])
    model = wrapped(plain, how)
    optimizer = MaskedOptimizer(torch.optim.AdamW(model.parameters(), lr=0.05), model)
    x, y = torch.randn(64, 16), torch.randint(9, (64,))
    if rank is not None:
        x, y = x.chunk(PROCESSES)[rank], y.chunk(PROCESSES)[rank]
    losses, rates = [], []
    for _ in range(STEPS):
        before = [gathered(plain.get_buffer(name + "_mask")).clone() for name in WEIGHTS]
        losses += losses_of(model, optimizer, x, y, 1)
        after = [gathered(plain.get_buffer(name + "_mask")) for name in WEIGHTS]
        flips = sum(int((a != b).sum()) for a, b in zip(after, before, strict=True))
        rates.append((optimizer.flip_rate, flips / sum(mask.numel() for mask in after)))
    state = {k.removeprefix("module."): gathered(v) for k, v in model.state_dict().items()}
    parts = [local(plain.get_buffer(name + "_mask")).numel() for name in WEIGHTS]
    return {
        "losses": losses,
        "rates": rates,
        "sparse": all(is_sparse(state[name], "2:4") for name in WEIGHTS),
        "masks": {name: state[name + "_mask"].tolist() for name in WEIGHTS},
        "sharded": [is_sharded(plain.get_buffer(name + "_mask")) for name in WEIGHTS],
        "parts": parts,
        "moments": float(sum(s.abs().sum() for s in moments(optimizer, plain))),
    }


def moments(optimizer: MaskedOptimizer, plain: nn.Module) -> list[torch.Tensor]:
    """Return the parts of the first moments where the masks are False."""
    found = []
    for name in WEIGHTS:
        layer, _, key = name.partition(".")
        p, kept = getattr(plain.get_submodule(layer), key), local(plain.get_buffer(name + "_mask"))
        found.append(local(optimizer.state[p]["exp_avg"])[~kept])
    return found


def one_row(rank: int) -> float:
    """Return the share of changes of a mask of which the second process has no part."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 1))
    fb.sparsify(model, "2:4", schedule=Recomputed())
    fully_shard(model)
    optimizer = MaskedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model)
    model(torch.arange(8.0)[None] * (1 - rank)).sum().backward()
    optimizer.step()
    return optimizer.flip_rate


def work(rank: int, folder: str) -> None:
    """Train every case as one of the processes, and leave what came out in the folder."""
    with joined(rank, folder, PROCESSES, PATIENCE):
        found = {f"{how} {schedule}": train(how, schedule, rank) for how, schedule in CASES}
        model = wrapped(nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)), "fsdp")
        with pytest.raises(ArgumentError, match="sharded; call sparsify before fully_shard"):
            fb.sparsify(model, "2:4")
        found["one row"] = one_row(rank)
        distributed.barrier()
        (Path(folder) / f"{rank}.json").write_text(json.dumps(found))


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> list[dict]:
    folder = tmp_path_factory.mktemp("two")
    run(work, folder, PROCESSES, PATIENCE)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(PROCESSES)]


@pytest.mark.parametrize(("how", "schedule"), CASES)
def test_two_processes_train_as_one_does(how: str, schedule: str, both: list[dict]) -> None:
    alone = train(None, schedule)
    one, other = (found[f"{how} {schedule}"] for found in both)
    losses = [(a + b) / 2 for a, b in zip(one["losses"], other["losses"], strict=True)]
    assert losses == pytest.approx(alone["losses"], rel=1e-4)
    assert one["masks"] == other["masks"] == alone["masks"]
    assert one["sparse"]
    assert other["sparse"]
    assert alone["sparse"]
    assert alone["losses"][-1] < alone["losses"][0]


@pytest.mark.parametrize("schedule", ["frozen", "gradual"])
def test_moments_are_masked_on_every_process(schedule: str, both: list[dict]) -> None:
    for found in both:
        assert found[f"ddp {schedule}"]["moments"] == found[f"fsdp {schedule}"]["moments"] == 0
    assert both[0]["ddp recomputed"]["moments"] > 0  # the control: there weights stay dense


def test_masks_are_cut_as_their_weights_are(both: list[dict]) -> None:
    for schedule in SCHEDULES:
        shares = [found[f"fsdp {schedule}"]["parts"] for found in both]
        assert [sum(share) for share in zip(*shares, strict=True)] == [16 * 20, 20 * 9]
        assert shares[0] != shares[1]  # nine rows are five and four
        assert all(found[f"fsdp {schedule}"]["sharded"] == [True, True] for found in both)
        assert all(found[f"ddp {schedule}"]["sharded"] == [False, False] for found in both)


def test_masks_that_change_do_change_here(both: list[dict]) -> None:
    assert both[0]["ddp recomputed"]["masks"] != both[0]["ddp frozen"]["masks"]


@pytest.mark.parametrize(("how", "schedule"), CASES)
def test_every_process_tells_how_much_of_the_whole_masks_changed(
    how: str, schedule: str, both: list[dict]
) -> None:
    for found in both:
        rates = found[f"{how} {schedule}"]["rates"]
        assert all(told == counted for told, counted in rates)
        assert any(told for told, _ in rates) == (schedule != "frozen")


def test_a_process_without_a_part_of_a_mask_tells_its_changes_too(both: list[dict]) -> None:
    assert both[0]["one row"] == both[1]["one row"] > 0
