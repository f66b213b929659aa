"""Every recipe but one under fully_shard (FSDP2) and DistributedDataParallel: the losses of a plain loop."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.nn import sharded_cases as cases
from tests.processes import run

# How far losses may lie from those of one process: sums are ordered anew, and one on the other side of a tie
# rounds elsewhere. Measured in brackets.
SUMS = 1e-5  # of float32 (3e-7)
SIXTEEN = 3e-3  # of 16 bits in operands or weights (1e-3)
NARROW = 0.03  # (8e-3)
TOLERANCES = {
    **dict.fromkeys(("fp32", "add-multiply"), SUMS),
    **dict.fromkeys(("amp-bf16", "amp-fp16", "fp16-master", "fp16-master-static", "tf32"), SIXTEEN),
    **dict.fromkeys(("fp16-no-scaling", "fp16-no-master", "fp16-only"), SIXTEEN),
    **dict.fromkeys(("bf16-only", "bf16-only-kahan", "bf16-only-nearest"), SIXTEEN),
}
MOST_USED = ("fp32", "amp-bf16", "fp16-master", "mxfp8", "mx6", "fp8-lm", "bf16-only", "posit-stages")
PATIENCE = 900


def found_by(processes: int, names: tuple[str, ...], folder: Path) -> list[dict[str, Any]]:
    """Return what each process found."""
    run(cases.worker(processes, PATIENCE, names), folder, processes, PATIENCE)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(processes)]


def check(found: list[dict[str, Any]], names: tuple[str, ...]) -> None:
    """Hold all of it against one process."""
    processes = len(found)

    def mean(key: str) -> list[float]:
        return [sum(losses) / processes for losses in zip(*(one[key] for one in found), strict=True)]

    for name in names:
        plain = name.partition(":")[0]
        alone = cases.train(name, "alone", 0, processes)
        tolerance = TOLERANCES.get(plain, NARROW)
        for way in ("ddp", "fsdp"):
            assert mean(f"{way} {name}") == pytest.approx(alone, rel=tolerance), f"{way} {name}"
        # Two gradients have one sum; four are added in another order.
        alike = 1e-5 if processes == 2 else tolerance
        assert mean(f"fsdp {name}") == pytest.approx(mean(f"ddp {name}"), rel=alike), name
        assert alone[-1] < alone[0]
    alone = cases.train("mxfp8", "alone", 0, processes)
    assert mean("clip") == pytest.approx(alone, rel=NARROW)
    assert mean("policy") == pytest.approx(alone, rel=0.05)
    for one in found:
        assert one["held"] == [True, True]
        assert one["overflow"] == [True, True]
        assert one["alike"]
        assert one["wrong"] == []
        assert one["stored"]
        assert one["placements"] == {
            "other axis": "(Shard(dim=0),)",
            "whole blocks": "(Shard(dim=0),)",
            "cut blocks": "(Replicate(),)",
            "one scale": "(Replicate(),)",
        }
        assert "quantize x.to_local(), with amax= of the whole" in one["shards"][0]
        assert "take the recipe with first_moment=fp32,second_moment=fp32 to save it" in one["shards"][1]


def test_the_most_used_recipes_train_in_two_processes_as_in_one(tmp_path: Path) -> None:
    check(found_by(2, MOST_USED, tmp_path), MOST_USED)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])
def test_every_recipe_trains_in_several_processes_as_in_one(processes: int, tmp_path: Path) -> None:
    check(found_by(processes, cases.EVERY, tmp_path), cases.EVERY)
