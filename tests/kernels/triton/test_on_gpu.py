"""The kernels of Triton on a GPU equal the definition bit for bit, and the host waits for none of them.

Each skips by name where torch finds no GPU. ``pytest -n 12 tests/kernels/triton/test_on_gpu.py`` takes two
minutes where there is one: most of them the compiler of Triton.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

import fewbits as fb
from fewbits import optim
from fewbits.formats import Format
from fewbits.kernels import active_backend, force_backend
from fewbits.kernels.bits.options import options
from tests import cases

pytest.importorskip("triton", reason="fewbits[gpu] is not installed")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU here")

ROWS, STEP = 700, 35


@pytest.fixture(scope="module")
def compared() -> Any:
    """The comparisons that the interpreter runs on the CPU; here they run on the GPU."""
    from tests.kernels.triton import compared

    return compared


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    yield
    force_backend(None)
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("first", range(0, ROWS, STEP))
def test_conversions_equal_the_definition(compared: Any, first: int) -> None:
    found = list(compared.found("conversions", first, first + STEP))
    assert len(found) > 2 * STEP
    assert [sentence for sentence in found if sentence] == []


@pytest.mark.parametrize("group", ["others", "products"])
def test_everything_else_equals_the_definition(compared: Any, group: str) -> None:
    found = list(compared.found(group, 0, 0))
    assert len(found) > 30
    assert [sentence for sentence in found if sentence] == []


def test_other_draws_are_told_from_the_definition() -> None:
    x = torch.randn(64, 512, device="cuda")
    one, same, other = (
        fb.fake_quantize(x, "mxfp4", rounding="stochastic", generator=seed) for seed in (1, 1, 2)
    )
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def telling(dtype: torch.dtype, rows: int, columns: int) -> torch.Tensor:
    """Return values of every size, ties of narrow formats, zeros of both signs, a NaN and an infinity."""
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, columns, generator=generator)
    x[1::4] *= 2.0 ** torch.randint(-140, 120, (len(x[1::4]), columns), generator=generator)
    x[2::4] = (x[2::4] * 8).round() / 4
    x[3::4, ::3] *= 0.0
    x[5, 7], x[9, 11] = torch.nan, torch.inf
    return x.to(dtype)


def same(found: torch.Tensor | fb.NarrowTensor, wanted: torch.Tensor | fb.NarrowTensor) -> bool:
    """Return whether the bits are the same; all NaN count as one."""
    if isinstance(wanted, fb.NarrowTensor):
        assert isinstance(found, fb.NarrowTensor)
        pairs = zip(found.pieces, wanted.pieces, strict=True)
        return all(b is None or (a is not None and torch.equal(a.cpu(), b)) for a, b in pairs)
    found = found.cpu()
    bits = {4: torch.int32, 2: torch.int16, 8: torch.int64}[wanted.element_size()]
    equal = (found.view(bits) == wanted.view(bits)) | (found.isnan() & wanted.isnan())
    return bool(equal.all())


@pytest.mark.parametrize("fmt", cases.FORMATS, ids=cases.label)
@pytest.mark.parametrize("backend", ["triton", "portable"])
def test_large_tensors_have_the_bits_of_the_cpu(fmt: Format, backend: str) -> None:
    assert active_backend("cuda") == "triton"
    for dtype, shape, axis in (
        (torch.float32, (512, 1999), -1),
        (torch.bfloat16, (1030, 768), 0),
        (torch.float16, (256, 2048), -1),
    ):
        x = telling(dtype, *shape)
        there = x.cuda()
        for rounding in ("nearest_even", "stochastic"):
            choices: dict[str, Any] = {"axis": axis, "rounding": rounding}
            if options(fmt).nonfinite == "raise":
                choices["nonfinite"] = "saturate"
            if rounding == "stochastic":
                choices["generator"] = 7
            wanted = fb.fake_quantize(x, fmt, **choices)
            packed = fb.quantize(x, fmt, **choices)
            force_backend(backend)
            found, codes = fb.fake_quantize(there, fmt, **choices), fb.quantize(there, fmt, **choices)
            back = codes.dequantize()
            force_backend(None)
            assert found.is_cuda
            assert same(found, wanted), f"{dtype}, {rounding}: values"
            assert same(codes, packed), f"{dtype}, {rounding}: codes"
            assert same(back, packed.dequantize()), f"{dtype}, {rounding}: values of codes"


@pytest.mark.parametrize("backend", ["triton", "portable"])
def test_compiled_graphs_have_the_bits_of_the_cpu(backend: str) -> None:
    x = telling(torch.float32, 256, 1024)
    there = x.cuda()
    force_backend(backend)
    for name in ("mxfp4", "mxfp8_e4m3", "mx6", "int8_channel"):
        graph = torch.compile(lambda x, name=name: fb.fake_quantize(x * 2, name) + 1, fullgraph=True)
        found = graph(there)
        force_backend(None)
        assert same(found, fb.fake_quantize(x * 2, name) + 1), name
        force_backend(backend)


def without_waiting(call: Callable[[], Any]) -> Any:
    """Return what a call returns; it fails where the host waits for the GPU, which a first call may."""
    call()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    found = call()
    torch.cuda.set_sync_debug_mode("default")
    return found


def test_the_host_waits_for_nothing() -> None:
    x, v = torch.randn(256, 512, device="cuda"), torch.randn(4, 512, device="cuda")
    with pytest.raises(RuntimeError, match="synchronizing"):
        without_waiting(lambda: x.sum().item())
    for name in ("mxfp4", "nvfp4", "int8_channel", "mx6", "posit8_1", "vsq4"):
        q = without_waiting(lambda name=name: fb.quantize(x, name))
        without_waiting(q.dequantize)
        without_waiting(lambda name=name: fb.fake_quantize(x, name, rounding="stochastic", generator=3))
        without_waiting(lambda q=q: fb.matvec(q, v))
        without_waiting(lambda q=q: torch.nn.functional.linear(x, q))
        without_waiting(lambda name=name: fb.matmul(x, x.t(), name))


@pytest.mark.parametrize("recipe", ["mxfp8", "mxfp4w-mxfp6", "mx6", "bf16-only-kahan", "fp8-stochastic"])
def test_a_step_of_training_waits_for_nothing_and_learns(recipe: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 64)).cuda()
    model = fb.prepare(model, recipe)
    optimizer = optim.AdamW(model.parameters(), lr=1e-3, recipe=recipe)
    x = torch.randn(32, 64, device="cuda")
    scaler = optim.scaler(recipe)
    losses: list[torch.Tensor] = []

    def step() -> None:
        optimizer.zero_grad()
        loss = (model(x) - x).square().mean()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach())

    without_waiting(step)
    for _ in range(30):
        step()
    assert float(losses[-1]) < 0.9 * float(losses[0])


@pytest.mark.parametrize("precision", ["bf16x2", "fp32"])
def test_systems_are_solved_to_double_accuracy(precision: str) -> None:
    generator = torch.Generator().manual_seed(4)
    a = torch.randn(700, 700, dtype=torch.float64, generator=generator)
    b = torch.randn(700, dtype=torch.float64, generator=generator)
    x = fb.solve(a.cuda(), b.cuda(), precision=precision)
    assert x.is_cuda
    wanted = torch.linalg.solve(a, b)
    assert float((x.cpu() - wanted).abs().max() / wanted.abs().max()) < 1e-10


NOT_FINITE = """
import torch, fewbits as fb
x = torch.ones(64, 64, device="cuda")
fb.fake_quantize(x, "mxfp4", nonfinite="raise")
torch.cuda.synchronize()
print("finite")
x[3, 5] = float("nan")
fb.fake_quantize(x, "mxfp4", nonfinite="raise")
torch.cuda.synchronize()
print("not told")
"""


def test_the_device_stops_where_nan_is_to_raise() -> None:
    done = subprocess.run(
        [sys.executable, "-c", NOT_FINITE], capture_output=True, text=True, check=False, env=dict(os.environ)
    )
    assert done.stdout == "finite\n"
    assert "device-side assert" in done.stderr
