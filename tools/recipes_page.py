"""Write docs/recipes.md: train every recipe with three seeds, and set that beside what the papers say.

    python tools/recipes_page.py [--runs FOLDER] [--task bytes] [--seeds 3]

Runs that FOLDER holds already are not repeated. The whole takes about an hour on two cores.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from statistics import fmean

from fewbits.evidence import Evidence, paired
from fewbits.recipes import RECIPES
from fewbits.records import TrainRun
from fewbits.report.judgement import verdict
from fewbits.train import Settings, run
from fewbits.train.runs import folder_name
from fewbits.train.tasks import task as read_task

# What the papers claim, and when to use a recipe.
NOTES = json.loads(Path(__file__).with_name("recipe_notes.json").read_text(encoding="utf-8"))
PAGE = Path(__file__).resolve().parents[1] / "docs" / "recipes.md"

HEAD = """# Recipes

What each recipe of `fewbits train` claims, and what it does here: the small byte-level model on the source
of Python's standard library, {steps} steps of 1,024 bytes, {seeds} seeds that differ in the initial weights
and in the stochastic rounding. This page is written by `python tools/recipes_page.py`; nothing in it is set
by hand but the claims of the papers and the advice.

The metric is the loss on held-out text in nats per byte, the mean over seeds. FP32 ends at {fp32:.4f}. *Less
FP32* is the mean difference from FP32 of the same seed and how well the seeds tell it: a 95 % interval,
Student's for paired differences. A recipe **loses** if that interval is above zero, and gains if it is below;
else there is *no evidence*, which is not the same as no loss: read how large it may be. One in twenty such
intervals leaves zero out by chance. A model of {values:,} parameters says little about one of a billion: read
a loss here as a warning, and its absence as permission to try.

*Bytes* are those of parameters, gradients and optimizer states per parameter value, as they lay in memory.
*Time* is that of a step over FP32's, on one thread of the CPU that wrote this page; the model is so small
that overheads count.

| recipe | nats | less FP32 | | bytes | time | warned |
|---|---|---|---|---|---|---|
"""

# Recipes that are known to break, what mends each, and the most used ones.
FAINT = (
    "fp32",
    "fp16-master",
    "fp16-no-scaling",
    "fp16-no-master",
    "bf16-only",
    "bf16-only-kahan",
    "bf16-only-nearest",
    "mxfp8",
)
FAINT_HEAD = """
## Small gradients, small updates

The model above trains for six hundred steps, in which gradients and updates are large: some recipes that
their papers call broken are not found out. The task `faint` has what is small late in long training: its
loss is divided by 2^20, and its weights are large beside the learning rate, so that an update is below half
a unit in the last place of bfloat16 and mostly of FP16. FP32 is not disturbed by either. The metric is the
loss on held-out digits in nats.

| recipe | nats | less FP32 | |
|---|---|---|---|
"""


def main() -> None:
    """Train what is not there yet, and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--runs", type=Path, default=Path("fewbits-train"))
    parser.add_argument("--task", default="bytes")
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    assert set(NOTES) == set(RECIPES), set(NOTES) ^ set(RECIPES)
    seeds = range(given.seeds)
    found = {name: [_run(given.task, name, seed, given.runs) for seed in seeds] for name in RECIPES}
    faint = {name: [_run("faint", name, seed, given.runs) for seed in seeds] for name in FAINT}
    PAGE.write_text(_page(found, faint, given.task), encoding="utf-8")
    print(f"wrote {PAGE}")


def _run(task: str, name: str, seed: int, folder: Path) -> TrainRun:
    settings = Settings(task, name, seed=seed)
    done = run(settings, folder / folder_name(settings), resume=True)
    print(f"{task} {name} seed {seed}: {done.value:.4f}", flush=True)
    return done


def _page(found: dict[str, list[TrainRun]], faint: dict[str, list[TrainRun]], task: str) -> str:
    base = found["fp32"]
    fp32 = fmean(r.value for r in base)
    values = sum(p.numel() for p in read_task(task).create(0).parameters())
    text = HEAD.format(steps=base[0].steps, seeds=len(base), fp32=fp32, values=values)
    pace = fmean(r.seconds_per_step for r in base)
    for name, runs in found.items():
        mean = fmean(r.value for r in runs)
        evidence = _evidence(runs, base)
        time = fmean(r.seconds_per_step for r in runs) / pace
        warned = sum(bool(r.warnings) for r in runs)
        marks = f"{warned} of {len(runs)}" if warned else "-"
        text += (
            f"| [{name}](#{name}) | {mean:.4f} | {_difference(evidence)} | {_said(name, evidence)} |"
            f" {runs[0].bytes_per_value:.1f} | {time:.2f} | {marks} |\n"
        )
    text += FAINT_HEAD
    for name, runs in faint.items():
        evidence = _evidence(runs, faint["fp32"])
        text += (
            f"| [{name}](#{name}) | {fmean(r.value for r in runs):.4f} | {_difference(evidence)} |"
            f" {_said(name, evidence)} |\n"
        )
    for name, runs in found.items():
        text += _section(name, runs, _evidence(runs, base))
    return text


def _section(name: str, runs: list[TrainRun], evidence: Evidence) -> str:
    note = NOTES[name]
    mean = fmean(r.value for r in runs)
    ours = f"{mean:.4f} nats ({', '.join(f'{r.value:.4f}' for r in runs)}), {_difference(evidence)} from FP32"
    agreed = " That is a loss." if _said(name, evidence) == "**loses**" else ""
    said = "".join(f"\n\nIt warns: *{w}*" for w in dict.fromkeys(w for r in runs for w in r.warnings))
    departs = f"\n\n**Departs:** {note['departs']}" if "departs" in note else ""
    return (
        f"\n## {name}\n\n{RECIPES[name].paper}.\n\n**The paper:** {note['claim']}{departs}\n\n"
        f"**Here:** {ours}.{agreed}{said}\n\n**Use it:** {note['use']}\n\n```text\n{RECIPES[name]!r}\n```\n"
    )


def _evidence(runs: list[TrainRun], base: list[TrainRun]) -> Evidence:
    return paired([r.value for r in runs], [r.value for r in base], runs[0].resolution)


def _difference(evidence: Evidence) -> str:
    return f"{evidence.mean:+.4f}" + ("" if evidence.pairs < 2 else f" ± {evidence.margin:.4f}")


def _said(name: str, evidence: Evidence) -> str:
    if name == "fp32":
        return "-"
    return {"worse": "**loses**", "better": "gains"}.get(
        verdict(evidence, higher_is_better=False), "no evidence"
    )


if __name__ == "__main__":
    main()
