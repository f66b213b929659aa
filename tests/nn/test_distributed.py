"""A prepared model under DistributedDataParallel: two processes train what one trains on the whole batch."""

import json
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from fewbits.nn import prepare
from fewbits.optim import SGD
from tests.processes import joined, run
from tests.training import losses_of

PATIENCE = 600  # seconds for everything that the two processes do
STEPS = 20
PROCESSES = 2
MX = "mx:weight=mxfp6_e3m2,activation=mxfp6_e3m2,gradient=mxfp6_e3m2/rceil,vector=fp32"
# A recipe, the rows of a batch and how far the losses of the two ways may lie apart. Blocks of a weight's
# gradient run along the batch: of 64 rows each process has a whole block, and only sums are ordered anew; of
# 32 rows each has half of one, which gets a scale of its own, as does a whole tensor. Measured:
# 2e-7, 2e-7, 4e-3 and 8e-4; the room above that is for sums that fall on the other side of a tie.
CASES = {
    "fp32": ("fp32", 64, 1e-5),
    "whole blocks": (MX, 64, 1e-4),
    "half blocks": (MX, 32, 0.02),
    "tensor scales": ("fp8-lm-o1", 64, 0.01),
    "packed moments": ("fp8-lm-o2", 64, 0.01),
    "FP16 weights": ("fp8-lm", 64, 0.01),
}


def train(chosen: str, rows: int, rank: int | None = None) -> list[float]:
    """Return the loss of each step on this process's part of the batch, or on all of it."""
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(
        nn.Linear(40, 48), nn.ReLU(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 10)
    )
    prepare(model, chosen)
    optimizer = SGD(model.parameters(), lr=0.1, momentum=0.9, recipe=chosen)
    if rank is not None:
        model = DistributedDataParallel(model)
    x, y = torch.randn(rows, 40), torch.randint(10, (rows,))
    if rank is not None:
        x, y = x.chunk(PROCESSES)[rank], y.chunk(PROCESSES)[rank]
    return losses_of(model, optimizer, x, y, STEPS)


def work(rank: int, folder: str) -> None:
    """Train every case as one of the processes, and leave the losses in the folder."""
    with joined(rank, folder, PROCESSES, PATIENCE):
        found = {name: train(chosen, rows, rank) for name, (chosen, rows, _) in CASES.items()}
        (Path(folder) / f"{rank}.json").write_text(json.dumps(found))


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    """The losses of two processes, averaged, for each case."""
    folder = tmp_path_factory.mktemp("two")
    run(work, folder, PROCESSES, PATIENCE)
    one, other = (json.loads((folder / f"{rank}.json").read_text()) for rank in range(PROCESSES))
    return {name: [(a + b) / 2 for a, b in zip(one[name], other[name], strict=True)] for name in CASES}


@pytest.mark.parametrize("case", CASES)
def test_two_processes_train_as_one_does(case: str, both: dict[str, list[float]]) -> None:
    chosen, rows, tolerance = CASES[case]
    alone = train(chosen, rows)
    assert both[case] == pytest.approx(alone, rel=tolerance)
    assert alone[-1] < 0.9 * alone[0]


def test_blocks_that_are_cut_are_what_differs(both: dict[str, list[float]]) -> None:
    chosen, rows, _ = CASES["half blocks"]
    assert both["half blocks"] != pytest.approx(train(chosen, rows), rel=CASES["whole blocks"][2])
