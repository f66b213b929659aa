"""Threads of the kernels: how many there are, that they survive a fork, and that results do not tell."""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import fewbits as fb
from fewbits import kernels
from fewbits.kernels import native
from fewbits.kernels.bits.options import options

ROOT = Path(__file__).parents[3]
FORKS = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")

START = """
import hashlib, os, signal, sys, time
import numpy as np
import fewbits as fb
{imports}

X = np.random.default_rng(0).standard_normal(1 << 18).astype(np.float32)

def work(_=None):
    "Quantize enough for every thread; say what came out."
    q = fb.fake_quantize(X, "mxfp4")
    again = fb.fake_quantize(X.astype(np.float16), "mx6", axis=-1)
    return hashlib.sha256(q.tobytes() + again.tobytes()).hexdigest()

def in_child(do):
    "Run in a forked child; one that hangs is ended after a minute, and then it is an error."
    child = os.fork()
    if child == 0:
        try:
            os._exit(0 if do() else 3)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(4)
    until = time.monotonic() + 60
    while time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "hung"

expected = work()
"""

AFTER_A_LARGE_CALL = """
assert in_child(lambda: work() == expected) == 0
assert in_child(lambda: in_child(lambda: work() == expected) == 0 and work() == expected) == 0
assert work() == expected
"""
WHILE_OTHERS_WORK = """
import threading
stop = threading.Event()
def always():
    while not stop.is_set():
        work()
other = threading.Thread(target=always)
other.start()
codes = [in_child(lambda: work() == expected) for _ in range(5)]
stop.set()
other.join()
assert codes == [0] * 5, codes
"""
AFTER_TORCH_WORKED = """
x = torch.arange(1 << 20) / (1 << 20)
y = x.exp()
assert in_child(lambda: work() == expected) == 0
assert work() == expected
assert in_child(lambda: torch.equal(x.exp(), y) and work() == expected and torch.equal(x.exp(), y)) == 0
assert torch.equal(x.exp(), y) and work() == expected
"""
MULTIPROCESSING = """
import multiprocessing
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map_async(work, range(4)).get(60) == [expected] * 4
"""
LOADER = """
class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, i):
        torch.set_num_threads(2)
        return fb.fake_quantize(torch.from_numpy(X), "mxfp4"), work() == expected
loader = torch.utils.data.DataLoader(Rows(), num_workers=2, timeout=60, multiprocessing_context="fork")
wanted = fb.fake_quantize(torch.from_numpy(X), "mxfp4")
assert all(torch.equal(rows[0], wanted) and bool(same) for rows, same in loader)
"""
# Workers, started either way: torch allows each of them one thread, and none of ours is started besides.
WORKERS = """
import os, sys
import torch
import fewbits as fb

X = torch.randn(8, 1 << 17, generator=torch.Generator().manual_seed(0))

def rounded():
    q = fb.quantize(X, "nvfp4")
    both = q.codes, q.scales, q.outer, fb.fake_quantize(X, "mxfp4"), fb.fake_quantize(X.numpy(), "mx6")
    return [torch.as_tensor(piece) for piece in both]

def started():
    before = len(os.listdir("/proc/self/task"))
    rounded()
    return len(os.listdir("/proc/self/task")) - before

def check(worker):  # before there is anything to send, for which a thread would be started
    assert (fb.kernels.threads(), started()) == (1, 0)

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, i):
        return rounded()

if __name__ == "__main__":
    assert (fb.kernels.threads(), started()) == (2, 1)  # a large call before the workers are forked
    wanted = rounded()
    loader = torch.utils.data.DataLoader(Rows(), batch_size=None, num_workers=int(sys.argv[2]), timeout=100,
                                         worker_init_fn=check, multiprocessing_context=sys.argv[1])
    found = [all(map(torch.equal, pieces, wanted)) for pieces in loader]
    assert found == [True] * 8, found
"""


def run(code: str, prelude: str = "", threads: str = "2") -> str:
    """Return what a process of its own prints; BLAS gets no threads, so that those there are are ours."""
    start = START.format(imports="import torch" if "torch." in code else "")
    variables = {"OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": "1"}
    there = {k: v for k, v in (os.environ | variables).items() if v}
    # From Python 3.12 on, os.fork warns where there are threads: they are what is tried.
    command = [sys.executable, "-W", "ignore", "-c", prelude + start + code]
    done = subprocess.run(
        command, cwd=ROOT, env=there, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@FORKS
@pytest.mark.parametrize("code", [AFTER_A_LARGE_CALL, WHILE_OTHERS_WORK, AFTER_TORCH_WORKED, MULTIPROCESSING,
                                  LOADER],
                         ids=["after a large call", "while others work", "after torch worked",
                              "multiprocessing", "DataLoader"])  # fmt: skip
def test_a_forked_child_quantizes_as_its_parent_does(code: str) -> None:
    run(code)


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted in /proc")
@pytest.mark.parametrize(("start", "count"), [("fork", 4), ("spawn", 2)])  # who is spawned imports torch anew
def test_workers_of_a_loader_quantize_with_one_thread_each(start: str, count: int, tmp_path: Path) -> None:
    script = tmp_path / "workers.py"  # spawned workers import it
    script.write_text(WORKERS)
    there = os.environ | {"OMP_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", str(script), start, str(count)]
    done = subprocess.run(command, env=there, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr


CALLERS_AT_ONCE = """
from concurrent.futures import ThreadPoolExecutor
from fewbits import kernels
idle = len(os.listdir("/proc/self/task"))
seen = []
def note(_):
    same = work() == expected
    seen.append(len(os.listdir("/proc/self/task")))
    return same
with ThreadPoolExecutor(6) as others:
    assert all(others.map(note, range(60)))
print(idle, max(seen))
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted in /proc")
def test_callers_at_once_share_the_threads_that_there_are() -> None:
    idle, most = map(int, run(CALLERS_AT_ONCE, threads="3").split())
    assert idle == 3
    assert idle < most <= idle + 6  # the callers themselves, and no team of threads for each


NATIVE = ROOT / "native"


def compiler_with(sanitizers: str, folder: Path) -> list[str]:
    """Return the command of a compiler that has the libraries of these sanitizers, or skip."""
    empty = folder / "empty.cpp"
    empty.write_text("int main() {}\n")
    for name in ("clang++", "g++"):
        if compiler := shutil.which(name):
            command = [compiler, "-std=c++20", "-O1", "-g", "-pthread", f"-fsanitize={sanitizers}"]
            build = [*command, str(empty), "-o", str(folder / "empty")]
            if subprocess.run(build, env=without_preload(), capture_output=True, check=False).returncode == 0:
                return command
    pytest.skip(f"no compiler here has the library of -fsanitize={sanitizers}")


def without_preload() -> dict[str, str]:
    """Return the environment without the library of another sanitizer, which `make sanitize` loads first."""
    return {k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}


Stressed = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture(scope="module")
def stressed(tmp_path_factory: pytest.TempPathFactory) -> Stressed:
    """Return what compiles pool_stress.cpp and runs it; most sources are the same for several programs."""
    here = Path(__file__).parent
    compiler = cache(lambda sanitizers: compiler_with(sanitizers, tmp_path_factory.mktemp("compiler")))

    def build(sanitizers: str, folder: Path, name: str, *options: str) -> Path:
        command = [*compiler(sanitizers), *options, "-o", str(folder / name)]
        subprocess.run(command, env=without_preload(), check=True)
        return folder / name

    @cache
    def compiled(sanitizers: str, text: str) -> str:
        folder = tmp_path_factory.mktemp("source")
        source = folder / "source.cpp"
        source.write_text(text)
        return str(build(sanitizers, folder, "source.o", f"-I{NATIVE}", "-c", str(source)))

    @cache
    def stand_in(sanitizers: str) -> Path:
        shared = ("-shared", "-fPIC", "-Wl,-soname,libtorch_cpu.so", str(here / "openmp_stand_in.cpp"))
        return build(sanitizers, tmp_path_factory.mktemp("stand_in"), "libtorch_cpu.so", *shared)

    def stress(
        folder: Path, sanitizers: str, argument: str, linked: bool, *, attempts: int = 1, **texts: str
    ) -> subprocess.CompletedProcess[str]:
        """Return what it did, linked with a stand-in for PyTorch's team or not.

        ``texts`` take the place of files of native/dispatch. It runs until it fails, ``attempts`` times at
        most.
        """
        places = {name: NATIVE / "dispatch" / f"{name}.cpp" for name in ("pool", "team")}
        given = [texts.get(name, place.read_text()) for name, place in places.items()]
        parts = [compiled(sanitizers, text) for text in (*given, (here / "pool_stress.cpp").read_text())]
        if linked:
            library = stand_in(sanitizers)
            parts += [str(library), f"-Wl,-rpath,{library.parent}"]
        program = build(sanitizers, folder, "stress", *parts, "-ldl")
        for _ in range(attempts):
            done = subprocess.run(
                [program, argument],
                env=without_preload(),
                capture_output=True,
                text=True,
                timeout=300,
                check=False,
            )
            if done.returncode:
                break
        return done

    return stress


LINUX = pytest.mark.skipif(sys.platform != "linux", reason="PyTorch's team is taken on Linux")


@FORKS
@pytest.mark.parametrize(("sanitizers", "argument"), [("thread", "once"), ("address,undefined", "fork")])
@pytest.mark.parametrize("linked", [False, pytest.param(True, marks=LINUX)], ids=["alone", "in a team"])
def test_no_sanitizer_finds_anything_in_the_pool(
    sanitizers: str, argument: str, linked: bool, tmp_path: Path, stressed: Stressed
) -> None:
    done = stressed(tmp_path, sanitizers, argument, linked)
    assert (done.returncode, done.stdout, done.stderr) == (0, "right\n", "")


def test_a_pool_that_does_not_wait_for_its_threads_is_found(tmp_path: Path, stressed: Stressed) -> None:
    pool = (NATIVE / "dispatch" / "pool.cpp").read_text()
    hasty = pool.replace("    p.done.wait(all);\n", "")
    assert hasty != pool
    # On a busy machine no thread may wake before the caller has done all: it waits until each has begun.
    # Even then it may have left nothing to do.
    alone = "    run(work, 0, p.parts);\n"
    begun = "    for (auto& thread : p.threads) while (thread.open.load()) std::this_thread::yield();\n"
    assert hasty.count(alone) == 1
    hasty = hasty.replace(alone, alone + begun)
    done = stressed(tmp_path, "thread", "once", linked=False, attempts=20, pool=hasty)
    assert done.returncode != 0
    assert "data race" in done.stderr or "wrong" in done.stdout


@LINUX
@pytest.mark.parametrize(
    ("rule", "broken", "argument"),
    [
        ("!call.begun[part].exchange(true)", "!call.begun[part]", "once"),  # a part that runs twice
        # more parts than are wanted
        ("std::min(call.openmp.threads(), call.threads)", "call.openmp.threads()", "fork"),
        ("->pause(soft)", "", "fork"),  # the team is still there in the child
        ("[] { forked = true; }", "nullptr", "fork"),  # and used there
        ("|| !is_first_thread()", "", "once"),  # teams for every thread
    ],
)
def test_a_team_without_one_of_its_rules_is_found(
    rule: str, broken: str, argument: str, tmp_path: Path, stressed: Stressed
) -> None:
    team = (NATIVE / "dispatch" / "team.cpp").read_text()
    assert team.count(rule) == 1
    sanitizers = "thread" if argument == "once" else "address,undefined"
    done = stressed(tmp_path, sanitizers, argument, linked=True, team=team.replace(rule, broken))
    assert done.returncode != 0
    assert "data race" in done.stderr or "AddressSanitizer" in done.stderr or "wrong" in done.stdout


THREADS = """
before = len(os.listdir("/proc/self/task"))  # the call above started them
from fewbits import kernels
print(before, kernels.threads())
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted in /proc")
@pytest.mark.parametrize(
    ("variable", "cores", "wanted"),
    [("1", None, 1), ("3", None, 3), ("3,1", None, 3), ("", 1, 1), ("0", 1, 1), ("some", 1, 1), ("2", 1, 2),
     ("", None, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1)],
)  # fmt: skip
def test_without_torch_the_environment_and_the_affinity_say_how_many_threads_there_are(
    variable: str, cores: int | None, wanted: int
) -> None:
    some = f"sorted(os.sched_getaffinity(0))[:{cores}]"
    pin = "" if cores is None else f"import os; os.sched_setaffinity(0, {some})"
    assert run(THREADS, pin, variable).split() == [str(wanted)] * 2


def test_with_torch_its_setting_counts() -> None:
    import torch

    before = torch.get_num_threads()
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            assert kernels.threads() == count
    finally:
        torch.set_num_threads(before)


def test_results_are_the_same_with_any_number_of_threads_and_from_threads_at_once() -> None:
    x = np.random.default_rng(0).standard_normal((300, 1000)).astype(np.float32)
    fmt = fb.format("mxfp4")
    chosen = options(fmt, rounding="stochastic", seed=3)

    def digest(threads: int) -> str:
        out = np.empty_like(x)
        native.fake_quantize(x, out, fmt, 1, chosen, None, threads=threads)
        return hashlib.sha256(out.tobytes()).hexdigest()

    expected = digest(1)
    assert {digest(n) for n in (2, 3, 5, 9, 2, 64)} == {expected}
    with ThreadPoolExecutor(4) as others:
        assert set(others.map(digest, [1, 2, 3, 4] * 10)) == {expected}
