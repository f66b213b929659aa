"""What does 2:4 sparsity cost in quality, before and after the model is trained again?

Each task is trained dense with several seeds, pruned, and trained once more with its mask frozen, in FP32 and
in MXINT8. Peers: the dense model, and the dense model trained as often. A retrained model is as good as the
dense one if it is worse by no more than twice the spread of dense models over seeds, or half a point of
accuracy or 0.03 nats, whichever is more.

    python benchmarks/sparse_training.py [--seeds 3] [--pattern 2:4] [--schedule frozen] [--json FILE]

A task whose data are not there is left out by name; mnist10k reads the folder that FEWBITS_DATA names.
"""

from __future__ import annotations

from statistics import fmean
from typing import Any

from _alternating import table, write
from _tasks import available, parser

from fewbits.compare.pruning import prune_task
from fewbits.records import PrunedModel

ENOUGH = {"accuracy": 0.5, "nll": 0.03}  # points; nats


def rows_of(found: PrunedModel) -> list[dict[str, Any]]:
    """Return one row per stage, with how much worse it is than dense and what would be too much."""
    allowed = max(2 * found.spread, ENOUGH[found.metric])
    sign = 1 if found.lower_is_better else -1
    return [
        {
            "task": found.model,
            "stage": stage.stage,
            "recipe": stage.recipe,
            "metric": found.metric,
            "mean": fmean(stage.values),
            "worse_by": sign * difference + 0.0,  # no minus zero
            "allowed": allowed,
            "as_good": sign * difference <= allowed,
            "worse_seeds": sum(
                sign * (v - d) > 0 for v, d in zip(stage.values, found.stages[0].values, strict=True)
            ),
            "values": stage.values,
        }
        for stage, difference in zip(found.stages, found.differences, strict=True)
    ]


def main() -> None:
    """Print the table and write the figures."""
    options = parser(__doc__ or "", tasks="digits,mnist10k,bytes")
    options.add_argument("--pattern", default="2:4", help="default 2:4")
    options.add_argument("--schedule", default="frozen", help="frozen, recomputed, gradual or sr_ste")
    given = options.parse_args()
    rows: list[dict[str, Any]] = []
    for task in available(given.tasks):
        found, _ = prune_task(
            task,
            given.pattern,
            recipes=("fp32", "mxint8"),
            schedule=given.schedule,
            seeds=given.seeds,
            control=True,
        )
        rows += rows_of(found)
    shown = ("task", "stage", "recipe", "mean", "worse_by", "allowed", "as_good", "worse_seeds")
    table(shown, [tuple(f"{r[k]:.4f}" if isinstance(r[k], float) else r[k] for k in shown) for r in rows])
    write(given.json, rows)


if __name__ == "__main__":
    main()
