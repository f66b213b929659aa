"""Where values lie, how many threads work and what lies beside the results: nothing of it may show."""

import ctypes
import mmap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from fewbits import _native, kernels
from fewbits.formats import parse
from fewbits.kernels import native
from fewbits.kernels.bits import reals
from fewbits.kernels.bits.layout import Packed, empty, layout
from fewbits.kernels.bits.options import options
from fewbits.kernels.native.jobs.geometry import geometry
from fewbits.kernels.native.jobs.kernel_format import kernel_format
from fewbits.kernels.native.jobs.tables import table
from fewbits.kernels.native.quantize import quantize as job
from tests import cases
from tests.native import inputs
from tests.native.definition import CONVERTING, bits, defined, difference, differences, possible, suited

Array = NDArray[Any]

# One of each family, packed widths that fill bytes and that do not, scales of less than a byte.
SOME = (
    "fp8_e4m3",
    "fp6_e3m2",
    "int4",
    "binary",
    "posit5_2",
    "fp16",
    "mxfp8_e5m2",
    "mxfp6_e2m3",
    "mxfp4",
    "msfp13",
    "mx9",
    "mx6",
    "bdr(m=3,d1=5,k1=12,d2=2,k2=3)",
    "bdr(m=4,d1=8,k1=8,d2=3,k2=8)",
    "bdr(m=1,d2=0,k2=16)",
    "nvfp4",
    "vsq4",
    "vsq6",
    "int8_tensor",
    "int4_channel",
    "fp8_e4m3_channel",
    "block(element=float(e=2,m=1),scale=exponent(5),size=6)",
    "block(element=posit(8,es=1),scale=e8m0,size=24)",
)


def values(shape: tuple[int, ...], dtype: Any = np.float32, seed: int = 0) -> Array:
    """Return values of many magnitudes, with zeros, of a type of the kernels."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape) * np.exp2(rng.integers(-9, 4, shape)) * (rng.random(shape) > 0.1)
    return reals.rounded_to_dtype(x.astype(np.float32), np.dtype(dtype))


def _unaligned(x: Array) -> Array:
    raw = np.zeros(x.nbytes + 8, np.uint8)[1 : 1 + x.nbytes]
    raw[:] = np.frombuffer(x.tobytes(), np.uint8)
    return raw.view(x.dtype).reshape(x.shape)


def _read_only(x: Array) -> Array:
    kept = x.copy()
    kept.setflags(write=False)
    return kept


def _with_a_step_of_odd_bytes(x: Array) -> Array:
    records = np.zeros(x.shape, np.dtype({"names": ["v"], "formats": [x.dtype], "itemsize": x.itemsize + 1}))
    records["v"] = x
    return records["v"]


VIEWS: dict[str, Callable[[Array], Array]] = {
    "in C order": lambda x: x,
    "transposed": lambda x: x.transpose(2, 1, 0),
    "turned": lambda x: x.transpose(1, 2, 0),
    "last two exchanged": lambda x: x.swapaxes(1, 2),
    "first two exchanged": lambda x: x.swapaxes(0, 1),
    "reversed": lambda x: x[::-1, ::-1, ::-1],
    "every second": lambda x: x[::2, ::3, ::2],
    "part": lambda x: x[1:, 2:, 1:-1],
    "Fortran order": np.asfortranarray,
    "unaligned": _unaligned,
    "odd steps": _with_a_step_of_odd_bytes,
    "read-only": _read_only,
    "broadcast first": lambda x: np.broadcast_to(x[:1], x.shape),
    "broadcast last": lambda x: np.broadcast_to(x[..., :1], x.shape),
    "broadcast middle": lambda x: np.broadcast_to(x[:, :1], x.shape),
    "one value": lambda x: np.broadcast_to(x[0, 0, 0], x.shape),
    "broadcast and transposed": lambda x: np.broadcast_to(x[:1], x.shape).transpose(2, 0, 1),
}


TYPED = ((np.float32, "nearest_even"), (np.uint16, "stochastic"), (np.float16, "up"))


def _view_equals_the_definition(name: str, view: str, typed: tuple[Any, str], axis: int) -> None:
    fmt, (dtype, rounding) = parse(name), typed
    chosen = options(fmt, rounding=rounding, seed=9)
    x = VIEWS[view](values((4, 37, 67), dtype))
    assert differences(x, fmt, axis, chosen) == [], (view, typed, axis)


@pytest.mark.parametrize(("name", "rows"), cases.by_first(cases.pairs(SOME, VIEWS, TYPED, range(3))))
def test_any_view_along_any_axis_equals_the_definition(name: str, rows: list[Any]) -> None:
    for row in rows:
        _view_equals_the_definition(name, *row)


@pytest.mark.slow
@pytest.mark.parametrize("name", SOME)
def test_every_view_of_every_type_along_every_axis_equals_the_definition(name: str) -> None:
    for row in product(VIEWS, TYPED, range(3)):
        _view_equals_the_definition(name, *row)


# Shapes around a length, each with an axis of theirs.
AROUND: tuple[tuple[Callable[[int], tuple[int, ...]], int], ...] = (
    *((lambda n: (n, 3), axis) for axis in range(2)),
    *((lambda n: (2, n, 65), axis) for axis in range(3)),
    *((lambda n: (65, n), axis) for axis in range(2)),
)


def _size_equals_the_definition(
    name: str, n: int, around: tuple[Callable[[int], tuple[int, ...]], int], rounding: str
) -> None:
    fmt, (shape, axis) = parse(name), around
    chosen = options(fmt, rounding=rounding, seed=3)
    assert differences(values(shape(n), seed=n), fmt, axis, chosen) == [], (shape(n), axis, rounding)


SIZED = (cases.SIZES[1:], AROUND, [rounding for _, rounding in TYPED])


@pytest.mark.parametrize(("name", "rows"), cases.by_first(cases.pairs(SOME, *SIZED)))
def test_awkward_sizes_along_every_axis_equal_the_definition(name: str, rows: list[Any]) -> None:
    for row in rows:
        _size_equals_the_definition(name, *row)


@pytest.mark.slow
@pytest.mark.parametrize("name", SOME)
def test_every_awkward_size_in_every_shape_and_rounding_equals_the_definition(name: str) -> None:
    for row in product(*SIZED):
        _size_equals_the_definition(name, *row)


@pytest.mark.parametrize("name", SOME)
def test_values_that_are_not_finite_keep_to_their_blocks_along_every_axis(name: str) -> None:
    fmt = parse(name)
    x = values((3, 67, 70))
    rng = np.random.default_rng(8)
    x[rng.random(x.shape) < 0.003] = np.nan
    x[rng.random(x.shape) < 0.003] = -np.inf
    for nonfinite, axis, dtype in cases.pairs(
        [name for name in cases.NONFINITES if possible(fmt, nonfinite=name)],
        range(3),
        (np.float32, np.float16, np.uint16),
    ):
        chosen = possible(fmt, nonfinite=nonfinite)
        assert chosen is not None
        narrow = reals.rounded_to_dtype(suited(x, chosen), np.dtype(dtype))
        assert differences(narrow, fmt, axis, chosen) == [], (nonfinite, axis, dtype)


@pytest.mark.parametrize("name", ["mxfp4", "fp6_e3m2", "mx6", "nvfp4", "int8_channel"])
def test_any_number_of_axes_equals_the_definition(name: str) -> None:
    fmt = parse(name)
    chosen = options(fmt, rounding="stochastic", seed=1)
    for shape in ((), (1,), (1, 1), (3, 2, 2, 5), (2,) * 9, (2, 1, 3, 2, 1, 2, 2, 1, 3, 2), (2,) * 11):
        x = values(shape)
        assert differences(x, fmt, 0, chosen) == []
        for axis in range(len(shape)):
            assert differences(x.T, fmt, axis, chosen) == [], (shape, axis)
        mixed = x.transpose(*range(1, len(shape), 2), *range(0, len(shape), 2))  # too many axes to walk over
        for axis in range(len(shape)):
            assert differences(mixed, fmt, axis, chosen) == [], (shape, axis)


def test_more_axes_than_the_kernels_walk_over_are_copied() -> None:
    x = values((2,) * 12).transpose(*range(1, 12, 2), *range(0, 12, 2))
    assert geometry(x, 0) is None
    assert geometry(np.ascontiguousarray(x), 5) is not None


@pytest.mark.parametrize("name", SOME)
def test_empty_arrays_of_any_shape_stay_empty(name: str) -> None:
    fmt = parse(name)
    for shape in ((0,), (0, 5), (5, 0), (3, 0, 2)):
        for axis in range(len(shape)):
            x = np.empty(shape, np.float32)
            assert kernels.fake_quantize(x, fmt, axis, options(fmt)).shape == shape
            parts = kernels.quantize(x, fmt, axis, options(fmt))
            assert [None if p is None else p.shape for p in parts] == list(layout(fmt, shape, axis))
            assert kernels.dequantize(parts, fmt, shape, axis, np.float32).shape == shape


# ------------------------------------------------------------------------------------------------ threads


@pytest.mark.parametrize("name", SOME)
def test_threads_do_not_show_in_any_result(name: str) -> None:
    fmt = parse(name)
    chosen = options(fmt, rounding="stochastic", seed=5)
    for shape, axis in (((100, 1031), 1), ((1031, 100), 0), ((3, 300, 77), 1), ((70_001,), 0)):
        x = values(shape)
        x = inputs.finite(x)
        assert differences(x, fmt, axis, chosen, threads=(1, 2, 3, 7)) == [], (shape, axis)


@pytest.mark.parametrize("rounding", ["stochastic", "nearest_even"])
def test_draws_follow_the_place_in_c_order_whatever_the_axis_and_the_strides(rounding: str) -> None:
    fmt = parse("int8")  # every value stands alone: only the draws could tell the axis
    chosen = options(fmt, rounding=rounding, seed=77)
    x = values((40, 50, 60)) * 20
    expected = kernels.fake_quantize(x, fmt, 2, chosen)
    for axis in (0, 1, 2):
        for layout_of_it in (x, np.asfortranarray(x), np.ascontiguousarray(x[::-1])[::-1]):
            for threads in (1, 2, 3, 7):
                out = np.empty_like(x)
                native.fake_quantize(layout_of_it, out, fmt, axis, chosen, None, threads=threads)
                assert difference(x, out, expected, f"axis {axis}") is None
    other = kernels.fake_quantize(x, fmt, 2, options(fmt, rounding=rounding, seed=78))
    assert np.array_equal(other, expected) == (rounding != "stochastic")


# ------------------------------------------------------------------------------------- neighbours in memory


def _guarded(shape: tuple[Any, ...] | None, dtype: Any, offset: int) -> tuple[Array | None, Array]:
    """Return an array that begins `offset` values into a larger one full of a pattern, and that one."""
    size = 0 if shape is None else int(np.prod(shape))
    whole = np.full(size + 64 + offset, 0x5A, np.uint8 if dtype == np.uint8 else dtype)
    return (None if shape is None else whole[offset : offset + size].reshape(shape)), whole


def _untouched(whole: Array, offset: int, size: int) -> bool:
    outside = np.concatenate([whole[:offset], whole[offset + size :]])
    return bool((outside == whole.dtype.type(0x5A)).all())


@pytest.mark.parametrize("name", SOME)
def test_nothing_is_written_beside_the_results(name: str) -> None:
    fmt = parse(name)
    chosen = options(fmt)
    for shape, axis in (
        ((3, 61), 1),
        ((61, 3), 0),
        ((2, 17, 70), 1),
        ((1,), 0),
        ((700, 97), 1),
        ((97, 700), 0),
    ):
        x = values(shape)
        expected = defined(x, fmt, axis, chosen)
        for isa in CONVERTING:
            native.force_isa(isa)
            for threads, offset in ((1, 3), (7, 5)):
                dtypes = (np.uint8, np.uint8, np.uint8, np.float32)
                parts = [
                    _guarded(s, d, offset) for s, d in zip(layout(fmt, shape, axis), dtypes, strict=True)
                ]
                planned, given = job.planned_for(x, fmt, axis, chosen)
                p, where = job.format_of_call(planned, given, 0, None, threads), planned.where
                ran, _ = _native.quantize(p, where, given, *(part for part, _ in parts), threads)
                assert ran == isa
                for (part, whole), wanted in zip(parts, expected.parts, strict=True):
                    if part is not None and wanted is not None:
                        assert difference(None, part, wanted, isa) is None
                        assert _untouched(whole, offset, part.size)
                out, whole = _guarded(shape, np.float32, offset)
                assert out is not None
                out[...] = 0x5A
                _native.fake_quantize(p, where, given, out, threads)
                assert difference(x, out, expected.values, isa) is None
                assert _untouched(whole, offset, out.size)
                out[...] = 0x5A
                native.dequantize(expected.parts, out, fmt, axis, threads=threads)
                assert difference(x, out, expected.values, isa) is None
                assert _untouched(whole, offset, out.size)


_FORBIDDEN = 0  # PROT_NONE


@contextmanager
def _protected(data: bytes) -> Iterator[Array]:
    """Give the bytes at the very end of readable memory: whoever reads on beyond them is killed."""
    page = mmap.PAGESIZE
    size = -(-len(data) // page) * page
    whole = mmap.mmap(-1, size + page)
    held = (ctypes.c_char * (size + page)).from_buffer(whole)
    protect = ctypes.CDLL(None, use_errno=True).mprotect
    edge = ctypes.c_void_p(ctypes.addressof(held) + size)
    assert protect(edge, page, _FORBIDDEN) == 0
    try:
        found = np.frombuffer(held, np.uint8)[size - len(data) : size]
        found[:] = np.frombuffer(data, np.uint8)
        yield found
    finally:
        protect(edge, page, mmap.PROT_READ | mmap.PROT_WRITE)


@pytest.mark.parametrize("name", SOME)
def test_nothing_is_read_behind_the_input(name: str) -> None:
    fmt = parse(name)
    chosen = options(fmt)
    for n in (1, 7, 33, 97, 515):
        x = values((3, n))
        expected = defined(x, fmt, 1, chosen)
        for isa in CONVERTING:
            native.force_isa(isa)
            with _protected(x.tobytes()) as raw:
                for view, axis in (
                    (raw.view(np.float32).reshape(3, n), 1),
                    (raw.view(np.float32).reshape(n, 3), 0),
                ):
                    found = kernels.fake_quantize(view, fmt, axis, chosen)
                    if axis == 1:
                        assert difference(x, found, expected.values, isa) is None
                    kernels.quantize(view, fmt, axis, chosen)
            for place, part in enumerate(expected.parts):
                if part is None or part.dtype != np.uint8:
                    continue
                with _protected(part.tobytes()) as raw:
                    parts = Packed(
                        *expected.parts[:place], raw.reshape(part.shape), *expected.parts[place + 1 :]
                    )
                    back = kernels.dequantize(parts, fmt, x.shape, 1, np.float32)
                assert difference(x, back, expected.values, isa) is None


# ----------------------------------------------------------------------- larger than a cache, flushing


@pytest.mark.parametrize("name", ["mxfp4", "fp8_e4m3", "int8_tensor", "mx9", "posit8_1"])
def test_results_larger_than_a_cache_are_the_same_wherever_they_begin(name: str) -> None:
    fmt = parse(name)
    chosen = options(fmt)
    x = values((1100, 1001))
    expected = defined(x, fmt, 1, chosen)
    turned = defined(x, fmt, 0, chosen)
    for isa in CONVERTING:
        native.force_isa(isa)
        for offset in (0, 1, 7, 16):
            out, whole = _guarded(x.shape, np.float32, offset)
            assert out is not None
            for axis, wanted in ((1, expected), (0, turned)):
                ran, _ = native.fake_quantize(x, out, fmt, axis, chosen, None, threads=2)
                assert ran == isa
                assert difference(x, out, wanted.values, f"{isa} {offset}") is None
                out[...] = 0x5A
                native.dequantize(wanted.parts, out, fmt, axis, threads=2)
                assert difference(x, out, wanted.values, f"{isa} {offset}") is None
                assert _untouched(whole, offset, out.size)


@pytest.mark.parametrize(
    "name", ["mxfp8_e5m2", "mx9", "bf16", "fp32", "nvfp4", "int8_channel", "int8_tensor", "posit16_2"]
)
def test_subnormals_survive_a_thread_that_flushes_them(name: str) -> None:
    fmt = parse(name)
    chosen = options(fmt)
    x = np.tile(np.array([2.0**-149, -3 * 2.0**-149, 2.0**-130, 2.0**-127], np.float32), 20_000)
    table.cache_clear()  # what is made on first use is made in that mode
    kernel_format.cache_clear()
    expected = defined(x, fmt, 0, chosen)
    assert np.count_nonzero(expected.values) > 0
    assert torch.set_flush_denormal(True)
    try:
        assert np.float32(2.0**-126) * np.float32(0.5) == 0  # it does flush
        found = []
        for isa in CONVERTING:
            native.force_isa(isa)
            for threads in (1, 3):
                out, back = np.empty_like(x), np.empty_like(x)
                native.fake_quantize(x, out, fmt, 0, chosen, None, threads=threads)
                parts = empty(fmt, x.shape, 0)
                native.quantize(x, parts, fmt, 0, chosen, None, threads=threads)
                native.dequantize(parts, back, fmt, 0, threads=threads)
                found.append((isa, out, back, parts))
    finally:
        torch.set_flush_denormal(False)
    for isa, out, back, parts in found:
        assert difference(x, out, expected.values, isa) is None
        assert difference(x, back, expected.values, isa) is None
        for part, wanted in zip(parts, expected.parts, strict=True):
            assert (part is None) == (wanted is None)
            assert part is None or np.array_equal(part, wanted)


def test_the_largest_and_smallest_magnitudes_are_found_in_any_layout() -> None:
    x = inputs.single(parse("fp8_e4m3"), True)
    for given in (x, x.T, x[::-2, ::3], np.zeros((2, 3), np.float32), np.full((4, 4), np.nan, np.float32)):
        finite, above = np.abs(given[np.isfinite(given)]), np.abs(given[np.abs(given) > 0])
        for isa in CONVERTING:
            native.force_isa(isa)
            for threads in (1, 3):
                assert native.magnitudes(given, threads=threads) == (
                    finite.max(initial=0),
                    above.min(initial=np.inf),
                    not np.isfinite(given).all(),
                )
    for dtype in (np.float16, np.uint16):
        half = inputs.every_half(dtype)
        wide = reals.widened(half)
        top = np.abs(wide[np.isfinite(wide)]).max()
        lowest = np.abs(wide[np.abs(wide) > 0]).min()
        assert native.magnitudes(half, threads=1) == (top, lowest, True)
        assert bits(half).dtype == np.uint16


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("name", ["mx9", "mx6", "mx4", "bdr(m=3,d1=8,k1=8,d2=1,k2=2)"])
def test_pairs_in_two_rows_of_whole_vectors(name: str, dtype: type) -> None:
    fmt = parse(name)
    for shape in ((33, 64), (16, 2, 48), (40, 1088)):
        x = values(shape).astype(dtype)
        x[0] = np.where(np.isfinite(x[0]), x[0], 1)
        for nonfinite in (False, True):
            given = x if nonfinite else np.nan_to_num(x, nan=1.0, posinf=2.0, neginf=-2.0)
            chosen = kernels.options(fmt)
            expected = defined(given, fmt, 0, chosen)
            for isa in CONVERTING:
                native.force_isa(isa)
                found = kernels.fake_quantize(given, fmt, 0, chosen)
                assert difference(given, found, expected.values, isa) is None
