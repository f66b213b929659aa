"""Results in a thread that was told to flush subnormals, as some libraries do, are those of any other."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch

import fewbits as fb
from fewbits.formats import values
from fewbits.kernels import exact_arithmetic, force_backend, ops
from fewbits.kernels.arrays import lent
from fewbits.kernels.native.jobs.kernel_format import kernel_format
from fewbits.kernels.native.jobs.plan import plan, reading_plan
from fewbits.kernels.native.jobs.tables import table
from fewbits.kernels.reference.values.encode import sorted_codes
from fewbits.metrics import measure
from tests import cases

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@contextmanager
def flushing() -> Iterator[None]:
    """Flush subnormals in this thread; it is known to work where the block begins."""
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU does not flush subnormals")
    try:
        assert np.float32(2.0**-126) * np.float32(0.5) == 0
        yield
    finally:
        torch.set_flush_denormal(False)


def tiny(dtype: torch.dtype) -> torch.Tensor:
    """Return lines of magnitudes from the smallest subnormal of a type to well above those of float32."""
    rng = np.random.default_rng(0)
    exponents = np.concatenate(
        [np.linspace(-1074, -160, 12), np.arange(-152, -100, 3), np.arange(-26, -8, 3)]
    )
    lines = rng.standard_normal((exponents.size, 35)) * np.exp2(exponents)[:, None]
    lines[:, 3] = 0
    return torch.tensor(lines).to(dtype)


def results(x: Any, fmt: Any, **choices: Any) -> list[Any]:
    """Return everything that fewbits says of an array, floats as their bytes."""
    q = fb.quantize(x, fmt, nonfinite="saturate", **choices)
    rounded = fb.fake_quantize(x, fmt, nonfinite="saturate", **choices)
    parts = [None if p is None else p.numpy().tobytes() for p in q.pieces]
    dense = [torch.as_tensor(y).view(torch.uint8).numpy().tobytes() for y in (q.dequantize(), rounded)]
    return [*parts, *dense, repr(measure(x, fmt, nonfinite="saturate")), repr(fb.qsnr(x, rounded))]


def forget_tables() -> None:
    """Let what is made once be made again: it is to be the same in any thread."""
    for cached in (values, sorted_codes, table, kernel_format, plan, reading_plan, lent._rounding):
        cached.cache_clear()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_no_result_depends_on_whether_the_thread_flushes_subnormals(dtype: torch.dtype) -> None:
    x = tiny(dtype)
    formats = (
        *cases.FORMATS[dtype != torch.float64 :: 2],
        *cases.REAL_SCALED,
        fb.format("lookup(-1e-40,0,1e-45,1e-39)"),
    )
    expected = [results(x, fmt) for fmt in formats]
    forget_tables()
    with flushing():
        found = [results(x, fmt) for fmt in formats]
    assert [str(fmt) for fmt, a, b in zip(formats, found, expected, strict=True) if a != b] == []


@pytest.mark.parametrize("rule", cases.SCALE_RULES)
def test_no_scale_depends_on_it_either(rule: str) -> None:
    for dtype in DTYPES:
        x = tiny(dtype).float().numpy() if dtype == torch.bfloat16 else tiny(dtype).numpy()
        for name in ("mxfp4", "mx6", "block(element=fixed(6,frac=40,coding=symmetric),scale=e8m0,size=4)"):
            expected = results(x, name, scale_rule=rule, rounding="up")
            with flushing():
                assert results(x, name, scale_rule=rule, rounding="up") == expected


def test_the_thread_gets_its_own_state_back() -> None:
    with flushing():
        fb.fake_quantize(torch.ones(40), "mxfp4")
        with pytest.raises(fb.DataError):
            fb.quantize(np.full(3, np.nan), "int8")
        assert np.float32(2.0**-126) * np.float32(0.5) == 0
    with exact_arithmetic():
        assert np.float32(2.0**-126) * np.float32(0.5) > 0


def test_a_thread_that_flushes_gives_the_results_of_one_that_does_not() -> None:
    x = tiny(torch.float64).numpy()

    def flushed() -> list[Any]:
        with flushing():
            return results(x, "int8_channel")

    with ThreadPoolExecutor(1) as other:
        assert other.submit(flushed).result() == results(x, "int8_channel")


@pytest.mark.parametrize("backend", ["native", "portable"])
def test_the_largest_magnitude_may_be_subnormal(backend: str) -> None:
    x = torch.tensor([2.0**-140, -(2.0**-139), 0])
    force_backend(backend)
    try:
        with flushing():
            found = ops.largest_finite(x)
    finally:
        force_backend(None)
    assert found == (2.0**-139, True)
