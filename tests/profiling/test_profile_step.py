"""Real steps under the profiler, some of whose times are known."""

import itertools
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.profiler import ProfilerActivity
from torch.profiler import profile as torch_profile

from fewbits.errors import ArgumentError
from fewbits.profiling import profile_step
from fewbits.profiling.marks import marked
from fewbits.profiling.steps import task_step, user_step
from fewbits.records import MachineLimits, StepProfile
from fewbits.records.profiling import REST
from fewbits.train.reproducible import seeded
from fewbits.train.tasks import task

LIMITS = MachineLimits(1, 1e10, 1e10, {"float32": 1e11, "bfloat16": 1e11}, 1e-6)
PAUSE = 0.02  # seconds


def taken(profile: StepProfile, name: str, kind: str = "") -> float:
    return sum(o.seconds for o in profile.operations if o.name == name and kind in ("", o.kind))


class Slow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(32, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        time.sleep(PAUSE)
        y: torch.Tensor = self.fc(x)
        return y


def test_sleeps_are_where_they_were_and_the_classes_are_those_of_the_step() -> None:
    model, x = Slow(), torch.ones(4, 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step() -> None:
        time.sleep(2 * PAUSE)  # hidden from every class
        loss = functional.mse_loss(model(x), torch.zeros(4, 8))
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    found = profile_step(step, steps=3, limits=LIMITS)
    seconds = found.seconds_of
    assert seconds[REST] >= 2 * PAUSE
    assert seconds["forward"] >= PAUSE
    assert next(o.layer for o in found.operations if o.name == "Python" and o.kind == "forward") == "Slow"
    assert taken(found, "aten::addmm", "forward") > 0
    assert {o.layer for o in found.operations if o.name == "aten::addmm"} == {"fc"}
    assert {o.layer for o in found.operations if o.name == "aten::mm" and o.kind == "backward"} == {"fc"}
    assert taken(found, "aten::mse_loss", "forward") > 0
    assert taken(found, "aten::_foreach_norm", "optimizer") > 0  # clipping
    assert min(seconds["backward"], seconds["optimizer"]) > 0
    assert seconds["communication"] == seconds["rounding"] == 0
    assert sum(o.seconds for o in found.operations) == pytest.approx(found.seconds)
    assert found.plain_seconds >= 3 * PAUSE
    assert found.accounted == pytest.approx(1 - seconds[REST] / found.seconds)


def test_copies_have_the_bytes_that_they_move() -> None:
    source, target = torch.ones(1 << 16), torch.zeros(1 << 16)

    def step() -> None:
        for _ in range(3):
            target.copy_(source)

    (copies,) = [o for o in profile_step(step, steps=2, limits=LIMITS).operations if o.name == "aten::copy_"]
    assert (copies.calls, copies.moved_bytes, copies.bound) == (3, 3 * 8 * (1 << 16), "memory")
    assert copies.limit_seconds == pytest.approx(copies.moved_bytes / 1e10)
    assert copies.kind == REST  # nothing says what for: it does not vanish


@pytest.mark.parametrize("recipe", ["fp32", "mxfp8"])
def test_a_class_has_95_percent_of_a_step_of_training(recipe: str) -> None:
    chosen = task("bytes")
    with seeded(chosen, 0):
        found = profile_step(task_step(chosen, recipe), steps=5, limits=LIMITS)
    assert found.accounted >= 0.95
    rounding = [o for o in found.operations if o.kind == "rounding"]
    assert bool(rounding) == (recipe == "mxfp8")
    if rounding:
        assert {o.name for o in rounding} >= {"fewbits::fake_quantize", "fewbits::quantize"}
        assert any(o.layer == "blocks.0.mlp_in" for o in rounding)
    names = {"aten::mm", "aten::addmm", "fewbits::rounded_product"}  # the last where CPUs lack bfloat16 units
    products = [o for o in found.operations if o.name in names and o.layer == "head"]
    # The logits, and two products of their gradient; 16 windows of 64 bytes, width 128.
    assert sum(o.flops for o in products) == 3 * 2 * (16 * 64) * 128 * 256


def test_the_step_of_a_task_is_the_one_that_trains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Marks, counting and the profiler change no bit of what is learned."""
    from fewbits.train.by_recipe import recipe_trainer

    chosen = task("digits")

    def losses(profiled: bool) -> list[float]:
        with seeded(chosen, 0):
            seen: list[float] = []
            trainer = recipe_trainer(chosen, "mxfp8", steps=1000)
            step: Any = task_step(chosen, "mxfp8") if profiled else trainer.step

            def noted() -> None:
                seen.append(step().loss)

            if profiled:
                profile_step(noted, steps=1, processes=2, limits=LIMITS)  # of two: threads are left alone
            else:
                for _ in range(8):
                    noted()
            return seen

    assert losses(True) == losses(False)


def test_calls_on_shapes_that_were_not_counted_are_calls_without_bytes() -> None:
    layer, lengths = nn.Linear(64, 64), itertools.count(100)
    found = profile_step(lambda: layer(torch.ones(next(lengths), 64)), steps=3, processes=2, limits=LIMITS)
    (product,) = [o for o in found.operations if o.name == "aten::addmm"]
    assert (product.calls, product.counted, product.fraction) == (1, False, None)
    assert found.alike == 1
    assert found.uncounted >= product.seconds / found.seconds > 0
    assert not any(said.startswith("aten::addmm") and "between" in said for said in found.advice)


def test_products_of_a_dtype_that_given_limits_lack_are_held_to_its_own_rate() -> None:
    a = torch.ones(64, 64, dtype=torch.float64)
    found = profile_step(lambda: a @ a, steps=1, processes=2, limits=LIMITS)
    assert set(found.limits.product_flops) == {"float32", "bfloat16", "float64"}


@pytest.mark.parametrize("processes", [1, 2])
def test_a_step_runs_as_often_as_the_manual_says(processes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    runs = list[int]()
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(2), raising=False)
    monkeypatch.setattr("fewbits.profiling.profiled.torch.get_num_threads", lambda: 1)
    profile_step(lambda: runs.append(1), steps=10, processes=processes, limits=LIMITS)
    assert len(runs) == 3 + 1 + 10 + (1 + 10) + 10 + (1 + 10) * (processes == 1)


def test_fewer_threads_are_advised_where_they_are_faster_and_are_put_back() -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        found = profile_step(
            lambda: time.sleep(PAUSE * (torch.get_num_threads() > 1)), steps=1, limits=LIMITS
        )
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert any("take 1, by torch.set_num_threads" in said for said in found.advice)


def test_what_the_profiler_adds_is_that_of_whole_steps_not_of_the_medians_of_parts() -> None:
    which, model = itertools.count(), nn.Sequential(*(nn.Identity() for _ in range(9)))

    def step() -> None:  # in each step another part is slow: the median of each is fast
        slow, x = next(which) % 9, torch.ones(2)
        for i, layer in enumerate(model):
            time.sleep(PAUSE * (i == slow))
            x = layer(x)

    found = profile_step(step, steps=9, processes=2, limits=LIMITS)
    assert found.seconds < PAUSE / 2
    assert found.profiled_seconds >= PAUSE
    assert found.overhead == found.profiled_seconds / found.plain_seconds


def test_a_trace_is_written_on_request(tmp_path: Path) -> None:
    x, path = torch.ones(8), tmp_path / "trace.json"
    one: Any = np.int64(1)
    found = profile_step(lambda: x.mul_(1.0), steps=one, limits=LIMITS, trace=path)
    assert '"traceEvents"' in path.read_text("utf-8")
    assert type(found.steps) is int  # which JSON has


def test_a_trace_without_a_folder_and_no_steps_are_refused_before_any_step(tmp_path: Path) -> None:
    seen: list[int] = []
    with pytest.raises(ArgumentError, match="its folder does not exist; create it first"):
        profile_step(lambda: seen.append(1), limits=LIMITS, trace=tmp_path / "none" / "trace.json")
    wrong: Any
    for wrong in (0, 2.5, True):
        with pytest.raises(ArgumentError, match=f"steps={wrong}; expected a whole number, at least one"):
            profile_step(lambda: seen.append(1), limits=LIMITS, steps=wrong)
    assert not seen


def test_a_profiler_that_is_on_is_refused() -> None:
    with (
        torch_profile(activities=[ProfilerActivity.CPU]),
        pytest.raises(ArgumentError, match="a profiler is on"),
    ):
        profile_step(lambda: None, limits=LIMITS)


def test_an_error_in_a_layer_leaves_no_hooks_behind() -> None:
    broken = nn.Linear(3, 2)
    with pytest.raises(RuntimeError):
        profile_step(lambda: broken(torch.ones(4)), limits=LIMITS)
    assert not nn.modules.module._global_forward_hooks
    assert not nn.modules.module._global_forward_pre_hooks


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.b(self.a(x))
        return y


@pytest.mark.parametrize("in_place", [False, True])
def test_a_compiled_model_is_profiled_as_it_runs_without_a_profiler(in_place: bool) -> None:
    compiles, runs = [], []

    def backend(graph: Any, _: Any) -> Any:
        compiles.append(1)

        def run(*given: Any) -> Any:
            runs.append(1)
            return graph.forward(*given)

        return run

    torch._dynamo.reset()
    model, x = Two(), torch.ones(4, 8)
    if in_place:
        model.compile(backend=backend)
        compiled: Any = model
    else:
        compiled = torch.compile(model, backend=backend)
    called = []

    def step() -> None:
        compiled(x)
        called.append(1)

    found = profile_step(step, steps=4, processes=2, limits=LIMITS)
    assert len(compiles) == 1  # neither for marks, nor for each layer, nor in each step
    assert len(runs) == len(called) - 1  # all but the one that is counted
    assert sum(o.calls for o in found.operations if o.name == "aten::addmm") == 2
    assert {o.layer for o in found.operations} <= {"", "OptimizedModule"}  # of no layer inside


def test_a_mark_passes_arguments_and_results_on() -> None:
    assert marked("data", lambda a, b=0: a + b)(1, b=2) == 3


def test_a_step_that_takes_arguments_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "profiled_steps.py").write_text(
        "def step(x, y=1):\n    pass\n\ndef fine(y=1):\n    return 7\n"
    )
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArgumentError, match=r"profiled_steps:step takes x, and is called without"):
        user_step("profiled_steps:step")
    with pytest.raises(ArgumentError, match="write one that makes one training step"):
        user_step("profiled_steps:none")
    assert user_step("profiled_steps:fine")() == 7
