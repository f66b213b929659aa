"""That the published recipe works here: three models, three seeds, dense, pruned and retrained."""

from pathlib import Path
from statistics import fmean

import pytest

from fewbits.compare.pruning import prune_task
from fewbits.train.tasks import task as read_task

ENOUGH = {"accuracy": 0.5, "nll": 0.03}  # points; nats


@pytest.mark.slow
@pytest.mark.parametrize("name", ["digits", "mnist10k", "bytes"])
def test_retraining_brings_back_what_pruning_took(
    name: str, shared_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEWBITS_DATA", str(shared_data))
    found, _ = prune_task(read_task(name), "2:4", recipes=("fp32", "mxint8"), seeds=3)
    sign = 1 if found.lower_is_better else -1
    worse = [sign * difference for difference in found.differences]
    allowed = max(2 * found.spread, ENOUGH[found.metric])
    dense, pruned, *retrained = found.stages
    assert max(worse[2:]) <= allowed
    # The control: pruning alone is visibly worse, for every seed, than dense and than retrained.
    assert worse[1] > ENOUGH[found.metric]
    for better in (dense, *retrained):
        assert all(sign * (p - b) > 0 for p, b in zip(pruned.values, better.values, strict=True))
    if name == "bytes":  # the others' seeds differ by as much as pruning takes
        assert worse[1] > allowed
    assert all(0.65 < t.kept_magnitude < 0.8 for t in found.report.pruned)
    assert fmean(t.density for t in found.report.pruned) == 0.5
