"""Records as JSON text: strictly valid, in a stable order, with what it takes to measure again.

Each document is one object: ``kind`` ("tasks", "checkpoint", "matrices", "cast", "inspect", "training",
"system", "pruning", "codecs", "scaling", "plan", "benchmark", "exploration", "choice" or "profile"),
``schema`` (the version of this layout, a number), ``provenance`` (``command``, ``versions``, ``seeds``) and
the records. The keys of a record are its fields in order of definition, then what is derived from them (mean,
difference, spread, totals).

JSON has no infinities and no NaN. They are written as the strings ``"inf"``, ``"-inf"`` and ``"nan"``, which
``float()`` reads back; ``null`` means that a value does not exist.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from inspect import getmro
from typing import cast

from fewbits.records import (
    BenchmarkReport,
    CastReport,
    CheckpointReport,
    CodecComparison,
    Exploration,
    FormatChoice,
    InspectReport,
    MatrixScore,
    PlanRecord,
    Prediction,
    Provenance,
    PrunedModel,
    QuantizeReport,
    SolveScore,
    StepProfile,
    TaskScore,
    TrainRun,
)
from fewbits.report.recipe_runs import grouped

SCHEMA = 1

Json = bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"] | None


def tasks_json(scores: Sequence[TaskScore], provenance: Provenance) -> str:
    """Write the scores of all tasks under ``scores``, in the order given."""
    return _document("tasks", provenance, scores=scores)


def checkpoint_json(report: CheckpointReport, provenance: Provenance) -> str:
    """Write a checkpoint's report under ``checkpoint``, with every tensor."""
    return _document("checkpoint", provenance, checkpoint=report)


def matrices_json(scores: Sequence[MatrixScore], provenance: Provenance) -> str:
    """Write the scores of all matrices under ``scores``, in the order given."""
    return _document("matrices", provenance, scores=scores)


def cast_json(report: CastReport, provenance: Provenance, calibrated: QuantizeReport | None = None) -> str:
    """Write what was cast under ``cast``, every format and tensor, and calibrated layers under theirs."""
    if calibrated is None:
        return _document("cast", provenance, cast=report)
    return _document("cast", provenance, cast=report, calibrated=calibrated)


def inspect_json(report: InspectReport, provenance: Provenance) -> str:
    """Write what a checkpoint holds under ``inspect``, with every tensor and problem."""
    return _document("inspect", provenance, inspect=report)


def train_json(runs: Sequence[TrainRun], provenance: Provenance) -> str:
    """Write every run under ``runs``, in the order given, and the means of each recipe under ``recipes``."""
    recipes = [
        {
            "recipe": of.runs[0].recipe,
            "mean": _plain(of.mean),
            "evidence": _plain(of.evidence),  # of the difference from fp32; null where no seed has both
            "verdict": of.verdict,
            "times_fp32": of.slower,
        }
        for of in grouped(runs)
    ]
    return _document("training", provenance, runs=runs, recipes=recipes)


def prune_json(models: Sequence[PrunedModel], provenance: Provenance) -> str:
    """Write what was pruned under ``models``, with every stage and tensor."""
    return _document("pruning", provenance, models=models)


def solve_json(scores: Sequence[SolveScore], provenance: Provenance) -> str:
    """Write the scores of a system under ``scores``, in the order given."""
    return _document("system", provenance, scores=scores)


def codecs_json(comparisons: Sequence[CodecComparison], provenance: Provenance) -> str:
    """Write the comparisons of codecs under ``comparisons``, in the order of tasks, with the rates."""
    return _document("codecs", provenance, comparisons=comparisons)


def scale_json(prediction: Prediction, provenance: Provenance) -> str:
    """Write predicted steps under ``prediction``, with what they come from."""
    return _document("scaling", provenance, prediction=prediction)


def benchmark_json(report: BenchmarkReport, provenance: Provenance) -> str:
    """Write a benchmark under ``benchmark``, with every run and evaluation."""
    return _document("benchmark", provenance, benchmark=report)


def plan_json(plan: PlanRecord, provenance: Provenance) -> str:
    """Write a plan under ``plan``, which :meth:`fewbits.planner.Plan.load` reads again."""
    return _document("plan", provenance, plan=plan)


def explore_json(exploration: Exploration, provenance: Provenance) -> str:
    """Write a design space under ``exploration``, with every format and front."""
    return _document("exploration", provenance, exploration=exploration)


def choice_json(choice: FormatChoice, provenance: Provenance) -> str:
    """Write the best format within a budget under ``choice``, with all finalists."""
    return _document("choice", provenance, choice=choice)


def profile_json(profiles: Sequence[StepProfile], provenance: Provenance) -> str:
    """Write the profiles of steps under ``profiles``, with every operation of every layer."""
    return _document("profile", provenance, profiles=profiles)


def _document(kind: str, provenance: Provenance, **records: object) -> str:
    origin: dict[str, Json] = {
        "command": provenance.command,
        "versions": dict(provenance.versions),
        "seeds": list(provenance.seeds),
    }
    document: dict[str, Json] = {"kind": kind, "schema": SCHEMA, "provenance": origin}
    document |= {name: _plain(record) for name, record in records.items()}
    # ASCII only: a tensor may be named with characters that no encoding but JSON's own escapes can carry.
    return json.dumps(document, indent=1, allow_nan=False, ensure_ascii=True) + "\n"


def _plain(value: object) -> Json:
    """Turn a record into dictionaries, lists, strings and finite numbers."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if is_dataclass(value):
        # A record may be of a class that adds methods, as Plan does: what is derived is inherited then.
        members = [item for base in reversed(getmro(type(value))) for item in vars(base).items()]
        derived = dict.fromkeys(name for name, member in members if isinstance(member, property))
        names = [*(field.name for field in fields(value)), *derived]
        return {name: _plain(getattr(value, name)) for name in names}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    return cast("Json", value)  # of anything else json.dumps says that it is none
