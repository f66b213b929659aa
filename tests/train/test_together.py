"""Several processes train one model: as one does, and again after one of them was killed."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch

import fewbits as fb
from fewbits.cli.main import run as run_command
from fewbits.evidence import paired
from fewbits.files import load_file
from fewbits.train import Settings, launch, run, runs
from tests.copies import copies, start_copies

COMMON = ("--task", "digits", "--recipe", "fp32", "--steps", "24")


def command(*options: str, out: Path) -> list[str]:
    """Return the command; an option that is given takes the place of the usual one."""
    usual = [
        x for pair in zip(COMMON[::2], COMMON[1::2], strict=True) if pair[0] not in options for x in pair
    ]
    return [sys.executable, "-m", "fewbits", "train", *usual, *options, "--out", str(out)]


def trained(*options: str, out: Path) -> dict[str, float]:
    """Return the only record of a run."""
    (record,) = records(*options, out=out)
    return record


def values(*options: str, out: Path) -> list[float]:
    """Return the metric of each seed."""
    return [record["value"] for record in records(*options, out=out)]


def ran(*options: str, out: Path) -> tuple[int, str]:
    """Run a command in this process; return the exit code and the errors, in one line."""
    with redirect_stderr(StringIO()) as errors:
        code = run_command(command(*options, out=out)[3:])
    return code, " ".join(errors.getvalue().split())


def records(*options: str, out: Path) -> list[dict[str, float]]:
    """Return the records of the runs of a command."""
    page = out.with_suffix(".json")
    code, errors = ran(*options, "--json", str(page), out=out)
    assert code == 0, errors
    found: list[dict[str, float]] = json.loads(page.read_text())["runs"]
    return found


def weights(folder: Path) -> dict[str, torch.Tensor]:
    """Return the model of the only run below a folder; each process has the same bits."""
    paths = sorted(folder.glob("*/checkpoint*.safetensors"))
    found = [{name: x for name, x in load_file(path).items() if name.startswith("model/")} for path in paths]
    for other in found[1:]:
        assert other.keys() == found[0].keys()
        assert all(torch.equal(x, found[0][name]) for name, x in other.items())
    return found[0]


def test_two_processes_train_as_one_and_say_what_they_sent(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = trained(out=tmp_path / "one")
    with monkeypatch.context() as copied:
        copied.setattr(launch, "start_processes", start_copies)
        both = trained("--processes", "2", out=tmp_path / "two")
    assert both["final_loss"] == pytest.approx(alone["final_loss"], rel=1e-4)
    narrow = trained("--processes", "2", "--codec", "mxfp8_e4m3", out=tmp_path / "narrow")
    assert narrow["final_loss"] == pytest.approx(alone["final_loss"], rel=0.05)
    said = capfd.readouterr().out  # of a process that was started, too
    assert "2 processes, mxfp8_e4m3: each sent" in said
    assert "times fewer" in said
    assert 3 < narrow["bytes_wide"] / narrow["bytes_sent"] < 4
    assert len(weights(tmp_path / "narrow")) > 2
    assert len(list((tmp_path / "narrow").glob("*/checkpoint-rank*-step24.safetensors"))) == 2


@pytest.mark.usefixtures("copied_processes")
@pytest.mark.parametrize(
    "options",
    [
        ("--recipe", "lars", "--lr", "0.05", "--steps", "10"),  # rounding of FP16 grows with more
        ("--recipe", "fp16-master", "--task", "bytes", "--model", "lstm", "--steps", "6"),
    ],
    ids=["lars", "lstm"],
)
def test_large_batches_and_an_lstm_train_on_two_processes_as_on_one(
    tmp_path: Path, options: tuple[str, ...]
) -> None:
    alone = trained(*options, out=tmp_path / "one")
    both = trained(*options, "--processes", "2", "--codec", "fp16", out=tmp_path / "two")
    assert both["final_loss"] == pytest.approx(alone["final_loss"], rel=0.02)
    assert both["task"] == alone["task"] == ("lstm" if "lstm" in options else "digits")
    assert len(weights(tmp_path / "two")) > 2


@pytest.mark.slow
def test_an_lstm_in_fp16_on_four_processes_ends_with_the_loss_of_fp32(tmp_path: Path) -> None:
    given = ("--model", "lstm", "--task", "bytes", "--steps", "200", "--seeds", "3")
    narrow = ("--recipe", "fp16-master", "--processes", "4", "--codec", "fp16")
    ends = [values(*given, *more, out=tmp_path / str(i)) for i, more in enumerate(((), narrow))]
    found = paired(ends[1], ends[0])
    assert not found.differs, found
    assert abs(found.mean) < 0.02  # nats


@pytest.mark.usefixtures("copied_processes")
def test_local_steps_send_less_and_end_with_one_model(tmp_path: Path) -> None:
    often = trained("--processes", "2", out=tmp_path / "often")
    seldom = trained("--processes", "2", "--local-steps", "7", out=tmp_path / "seldom")
    assert seldom["bytes_sent"] < often["bytes_sent"] / 4
    assert len(weights(tmp_path / "seldom")) > 2


def states(folder: Path) -> list[dict[str, torch.Tensor]]:
    """Return the optimizer's states in each part of the checkpoint of the only run below a folder."""
    paths = sorted(folder.glob("*/checkpoint-*"))
    return [{name: x for name, x in load_file(path).items() if "optimizer/" in name} for path in paths]


@pytest.mark.usefixtures("copied_processes")
def test_lars_with_sharded_states_ends_with_the_bits_of_states_that_all_hold(tmp_path: Path) -> None:
    options = ("--processes", "2", "--recipe", "fp32:optimizer=lars", "--lr", "0.05", "--steps", "4")
    trained(*options, out=tmp_path / "every")
    trained(*options, "--shard-states", out=tmp_path / "sharded")
    before, after = weights(tmp_path / "every"), weights(tmp_path / "sharded")
    assert all(torch.equal(x, after[name]) for name, x in before.items())


@pytest.mark.usefixtures("copied_processes")
def test_sharded_states_end_with_the_bits_of_states_that_all_hold(tmp_path: Path) -> None:
    options = ("--processes", "2", "--recipe", "fp8-lm")
    every = trained(*options, out=tmp_path / "every")
    sharded = trained(*options, "--shard-states", out=tmp_path / "sharded")
    assert sharded["value"] == every["value"]
    before, after = weights(tmp_path / "every"), weights(tmp_path / "sharded")
    assert all(torch.equal(x, after[name]) for name, x in before.items())
    whole, *_ = states(tmp_path / "every")
    first, second = states(tmp_path / "sharded")
    assert first
    assert second
    assert not first.keys() & second.keys()
    assert whole.keys() == first.keys() | second.keys()
    assert sharded["bytes_per_value"] < every["bytes_per_value"]
    # Gradients once, in float32, and weights once, in FP16.
    assert sharded["bytes_sent"] < 0.8 * every["bytes_sent"]


def begun(folder: Path) -> bool:
    return any(folder.glob("*/checkpoint-*"))


def _forked(work: Any, args: tuple[Any, ...], nprocs: int, **options: Any) -> None:
    torch.multiprocessing.start_processes(work, args, nprocs, **options | {"start_method": "fork"})


def _begin(given: list[str]) -> None:
    """Run a command as the first of a session; the processes that it starts are of the same one."""
    os.setsid()
    launch.start_processes = _forked
    run_command(given)


@pytest.mark.usefixtures("copied_processes")
@pytest.mark.parametrize(
    ("codec", "more"),
    [
        pytest.param("topk:density=0.05,feedback", (), marks=pytest.mark.slow),
        # A codec that remembers and draws, and a recipe whose updates draw, by the number of the step.
        ("mxfp4:feedback,stochastic", ("--recipe", "bf16-only")),
        pytest.param("mxfp4:feedback,stochastic", (), marks=pytest.mark.slow),
        pytest.param("int8_256:feedback", ("--shard-states", "--recipe", "fp8-lm"), marks=pytest.mark.slow),
        pytest.param("fp32", ("--recipe", "bf16-only"), marks=pytest.mark.slow),
    ],
)
def test_a_run_that_was_cut_off_ends_with_the_bits_of_one_that_was_not(
    tmp_path: Path, codec: str, more: tuple[str, ...]
) -> None:
    options = ("--processes", "2", "--codec", codec, "--steps", "130", *more)
    whole_record = trained(*options, out=tmp_path / "whole")
    cut = tmp_path / "cut"
    began = copies().Process(target=_begin, args=(command(*options, out=cut)[3:],))
    began.start()
    try:
        until = time.monotonic() + 120
        while not begun(cut) and began.is_alive() and time.monotonic() < until:
            time.sleep(0.01)
        time.sleep(random.Random(codec).uniform(0, 0.5))
    finally:
        os.killpg(began.pid, signal.SIGKILL)  # the session that was begun above
        began.join()
    steps = [int(path.stem.partition("-step")[2]) for path in cut.glob("*/checkpoint-*")]
    assert 50 <= min(steps) < 130  # it has something to go on from, and something to do
    record = trained(*options, "--resume", out=cut)
    before, after = weights(tmp_path / "whole"), weights(cut)
    assert all(torch.equal(x, after[name]) for name, x in before.items())
    assert record["bytes_sent"] == pytest.approx(whole_record["bytes_sent"], rel=0.01)
    again = trained(*options, "--resume", out=cut)  # of a run that is done nothing is left to do
    assert again["value"] == record["value"]


@pytest.mark.usefixtures("copied_processes")
def test_a_run_of_another_number_of_processes_is_not_gone_on_with(tmp_path: Path) -> None:
    trained("--processes", "2", out=tmp_path / "run")
    for options in (("--processes", "4"), ()):
        code, errors = ran(*options, "--resume", out=tmp_path / "run")
        assert code == 2
        assert "another number of processes" in errors
    assert len(weights(tmp_path / "run")) > 2


@pytest.mark.usefixtures("copied_processes")
@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--codec", "mxfp4"), "--codec is of several processes"),
        (("--processes", "2", "--codec", "mxfp9"), "mxfp9"),
        (("--processes", "3"), "take a batch size that they divide"),
        (
            ("--processes", "2", "--local-steps", "2", "--codec", "powersgd"),
            "a hook of",
        ),
        (("--processes", "2", "--recipe", "assigned"), "would choose formats"),
        (
            ("--processes", "2", "--codec", "mxfp4:feedback", "--recipe", "fp16-master"),
            "whose loss scale changes",
        ),
        (("--processes", "2", "--local-steps", "2", "--recipe", "muppet"), "local steps with recipe"),
        (("--processes", "2", "--shard-states", "--recipe", "muppet"), "looks at all gradients"),
        (("--processes", "2", "--shard-states", "--recipe", "fp16-master"), "depends on all gradients"),
        (("--processes", "2", "--shard-states", "--local-steps", "2"), "needs all states"),
        (("--shard-states",), "are of several processes"),
    ],
)
def test_what_cannot_be_is_said_in_one_line(tmp_path: Path, options: tuple[str, ...], said: str) -> None:
    code, errors = ran(*options, out=tmp_path / "run")
    assert code == 2
    assert said in errors
    assert "Traceback" not in errors


def test_settings_of_several_processes_do_not_run_in_one(tmp_path: Path) -> None:
    with pytest.raises(fb.ArgumentError, match="settings of 2 processes, and there are 1"):
        run(Settings("digits", "fp32", processes=2, codec="fp32"), tmp_path)
    with pytest.raises(fb.ArgumentError, match="without a codec"):
        Settings("digits", "fp32", processes=2)
    with pytest.raises(fb.ArgumentError, match="there is one"):
        Settings("digits", "fp32", local_steps=2)
    with pytest.raises(fb.ArgumentError, match="expected 0 or more"):
        Settings("digits", "fp32", processes=2, codec="fp32", local_steps=-1)


def test_each_process_rounds_and_drops_at_random_on_its_own(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    drawn = []

    def draw(*_: object, **__: object) -> None:
        drawn.append(torch.rand(4).tolist())
        raise InterruptedError

    monkeypatch.setattr(runs, "recipe_trainer", draw)
    for number in (0, 1, 2, 0):
        monkeypatch.setattr(runs, "rank", lambda number=number: number)
        with pytest.raises(InterruptedError):
            run(Settings("digits", "fp32", seed=3), tmp_path)
    assert len({tuple(x) for x in drawn}) == 3
    assert drawn[0] == drawn[3]


@pytest.mark.slow
def test_torchrun_restarts_a_run_whose_ranks_are_killed_and_the_bits_stay(tmp_path: Path) -> None:
    """One of four ranks is killed at ten random moments; every other time the run has come further first."""
    options = ("--codec", "mxfp4:feedback", "--steps", "2000")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4"]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}

    def arguments(out: Path, *more: str) -> list[str]:
        return [*torchrun, "--max-restarts", "20", "-m", *command(*options, *more, out=out)[2:]]

    subprocess.run(arguments(tmp_path / "whole"), check=True, env=environment, timeout=1800)
    going = subprocess.Popen(arguments(tmp_path / "cut", "--resume"), env=environment)
    chance, killed, came_to = random.Random(0), 0, 0
    try:
        while killed < 10:
            time.sleep(chance.uniform(0, 10))
            assert going.poll() is None, f"the run ended after {killed} ranks were killed"
            ranks, now_at = _ranks_of(going.pid), _last_step(tmp_path / "cut")
            if ranks and (killed % 2 or now_at > came_to):
                os.kill(chance.choice(ranks), signal.SIGKILL)
                killed, came_to = killed + 1, now_at
        assert going.wait(timeout=1800) == 0
    finally:
        if going.poll() is None:
            going.kill()
    before, after = weights(tmp_path / "whole"), weights(tmp_path / "cut")
    assert all(torch.equal(x, after[name]) for name, x in before.items())


def _last_step(out: Path) -> int:
    """Return the step of the last checkpoint; 0: there is none."""
    paths = out.glob("*/checkpoint-*.safetensors")
    return max((int(path.stem.partition("-step")[2]) for path in paths), default=0)


def _ranks_of(parent: int) -> list[int]:
    """Return the processes that torchrun, with this number, has started."""
    text = Path(f"/proc/{parent}/task/{parent}/children").read_text(encoding="ascii")
    return [int(child) for child in text.split()]
