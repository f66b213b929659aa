"""A run that is killed and resumed ends with the bits of one that was not."""

import json
import math
import shutil
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest

from fewbits.errors import ArgumentError, DataError
from fewbits.files import load_file
from fewbits.train import Settings, run
from fewbits.train.checkpoint import CHECKPOINT
from fewbits.train.log import column
from tests.copies import kill_after

SETTINGS = Settings("digits", "fp8-lm", steps=30, save_every=2, observe_every=10)
# Stochastic bits, packed moments, compensations, a moving loss scale, gradients kept by a schedule.
RECIPES = ("mxfp6", "fp8-lm", "bf16-only", "fp16-only", "fp8-stochastic", "muppet", "assigned", "fixed16")


class _Stopped(Exception):  # noqa: N818
    """Stands for a kill between two steps."""


@pytest.fixture(scope="module")
def _finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of one whole run, which no test writes to."""
    folder = tmp_path_factory.mktemp("finished")
    run(SETTINGS, folder)
    return folder


@pytest.fixture
def finished(_finished: Path, tmp_path: Path) -> Path:
    """The folder of a whole run, of one's own."""
    return Path(shutil.copytree(_finished, tmp_path / "finished"))


def _bits(folder: Path) -> bytes:
    return (folder / CHECKPOINT).read_bytes()


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_stopped_run_goes_on_to_the_same_bits(recipe: str, tmp_path: Path) -> None:
    settings = replace(SETTINGS, recipe=recipe, steps=20)
    whole = run(settings, tmp_path / "whole")

    def stop(what: str, done: float, total: float) -> None:
        if done == 13:  # the checkpoint is that of step 12
            raise _Stopped

    with pytest.raises(_Stopped):
        run(settings, tmp_path / "parts", progress=stop)
    resumed = run(settings, tmp_path / "parts", resume=True)
    assert _bits(tmp_path / "parts") == _bits(tmp_path / "whole")
    assert column(tmp_path / "parts", "loss") == column(tmp_path / "whole", "loss")
    assert replace(resumed, seconds_per_step=0) == replace(whole, seconds_per_step=0)


def test_a_run_from_another_seed_has_other_bits(finished: Path, tmp_path: Path) -> None:
    run(replace(SETTINGS, seed=1), tmp_path / "other")
    one, other = (load_file(n / CHECKPOINT)["model/head.weight"] for n in (finished, tmp_path / "other"))
    assert not one.equal(other)


def _told(folder: Path, steps: Connection) -> None:
    run(SETTINGS, folder, resume=True, progress=lambda *_: steps.send(None))


def _killed_at_random(whole: Path, folder: Path, moments: int) -> None:
    generator = np.random.default_rng(0)
    for moment in range(moments):
        part = folder / f"part{moment}"
        told = int(generator.integers(1, SETTINGS.steps))
        kill_after(told, _told, part, float(generator.uniform(0, 0.02)))
        run(SETTINGS, part, resume=True)
        assert _bits(part) == _bits(whole), f"moment {moment}"


def test_kill_at_a_random_moment(finished: Path, tmp_path: Path) -> None:
    _killed_at_random(finished, tmp_path, 1)


@pytest.mark.slow
def test_kill_at_ten_random_moments(finished: Path, tmp_path: Path) -> None:
    _killed_at_random(finished, tmp_path, 10)


def test_a_checkpoint_of_other_settings_is_refused(finished: Path) -> None:
    with pytest.raises(ArgumentError, match="steps=30, and this one has 40"):
        run(replace(SETTINGS, steps=40), finished, resume=True)
    (finished / CHECKPOINT).write_bytes(b"half")
    with pytest.raises(DataError):
        run(SETTINGS, finished, resume=True)


def test_a_log_that_ends_in_half_a_line_is_mended(finished: Path) -> None:
    expected = column(finished, "loss")
    with (finished / "log.jsonl").open("a") as file:
        file.write('{"kind": "step", "st')
    run(SETTINGS, finished, resume=True)
    assert column(finished, "loss") == expected


@pytest.mark.parametrize("log", [None, "", "no log\n", "[]\n", '{"kind": "step"}\n', "{" * 2000 + "\n"])
def test_a_log_that_is_gone_or_is_none_is_refused_and_left(finished: Path, log: str | None) -> None:
    path = finished / "log.jsonl"
    path.unlink()
    if log is not None:
        path.write_text(log)
    with pytest.raises(DataError, match=r"log\.jsonl (has 0 of the 30 steps|is no log of a training run)"):
        run(SETTINGS, finished, resume=True)
    assert (path.read_text() if path.exists() else None) == log


def test_the_log_of_a_run_that_diverges_is_json(tmp_path: Path) -> None:
    ran = run(replace(SETTINGS, recipe="mxfp6", steps=4, observe_every=1, lr=1e30), tmp_path)

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    records = [json.loads(line, parse_constant=refuse) for line in lines]
    losses = [r["loss"] for r in records if r["kind"] == "step"]
    assert [loss is None for loss in losses] == [math.isnan(loss) for loss in column(tmp_path, "loss")]
    assert losses[-1] is None
    assert math.isnan(ran.final_loss)
