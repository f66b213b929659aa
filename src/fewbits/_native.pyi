"""Types of the compiled module: native/bind is its source, native/jobs tells its fields."""

from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

class Rounding(Enum):
    nearest_even = ...
    nearest_away = ...
    toward_zero = ...
    up = ...
    down = ...
    stochastic = ...

class Sign(Enum):
    none = ...
    bit = ...
    twos_complement = ...

class Overflow(Enum):
    saturate = ...
    inf = ...
    nan = ...

class Nonfinite(Enum):
    element = ...
    block_nan = ...
    saturate = ...
    refuse = ...

class Scales(Enum):
    none = ...
    power_of_two = ...
    shifted = ...
    real = ...
    two_level = ...

class Grid:
    bits: int
    m: int
    emin: int
    limit_above: int
    limit_below: int
    nan: int
    inf: int
    sign: Sign
    signed_zero: bool
    has_nan: bool
    rounds_by_addition: bool
    def __init__(self) -> None: ...

class Format:
    grid: Grid
    rounding: Rounding
    overflow: Overflow
    nonfinite: Nonfinite
    seed: int
    random_bits: int
    scales: Scales
    block: int
    sub_block: int
    scale_bits: int
    shift_bits: int
    rule_first: int
    rule_plus: int
    emax: int
    element_max: float
    scale_emin: int
    scale_emax: int
    scale_bias: int
    scale_zero: int
    scale_nan: int
    largest_shift: int
    scale_grid: Grid
    scale_smallest: int
    scale_of_zeros: int
    fill: float
    whole_known: bool
    whole: float
    whole_bad: bool
    keep: int
    group: int
    zero: int
    def __init__(self, other: Format = ...) -> None: ...
    def set_table(
        self,
        bits: int,
        steps: int,
        keys: NDArray[np.int32],
        base: NDArray[np.int32],
        codes: NDArray[np.int32],
        values: NDArray[np.float64],
        by_code: NDArray[np.float64],
        nan: int,
        has_nan: bool,
        infinity_is_nan: bool,
        negative_is_nan: bool,
    ) -> None: ...

class Geometry:
    @property
    def n(self) -> int: ...

def geometry(
    n: int, step: int, place_step: int, extent: list[int], stride: list[int], place_stride: list[int]
) -> Geometry: ...

# A tuple says where a tensor lies: its address, its extents, and what its values are; native/bind/lent.hpp.
def fake_quantize(
    format: Format,
    geometry: Geometry,
    x: NDArray[Any] | tuple[int, ...],
    out: NDArray[Any] | tuple[int, ...],
    threads: int,
) -> tuple[str, bool]: ...
def quantize(
    format: Format,
    geometry: Geometry,
    x: NDArray[Any] | tuple[int, ...],
    codes: Bytes | tuple[int, ...],
    scales: Bytes | tuple[int, ...] | None,
    shifts: Bytes | tuple[int, ...] | None,
    outer: NDArray[np.float32] | tuple[int, ...] | None,
    threads: int,
) -> tuple[str, bool]: ...
def dequantize(
    format: Format,
    geometry: Geometry,
    codes: Bytes | tuple[int, ...],
    scales: Bytes | tuple[int, ...] | None,
    shifts: Bytes | tuple[int, ...] | None,
    outer: NDArray[np.float32] | tuple[int, ...] | None,
    out: NDArray[Any] | tuple[int, ...],
    add: bool,
    threads: int,
) -> None: ...
def quantize_with_feedback(
    format: Format,
    reading: Format,
    geometry: Geometry,
    x: NDArray[Any] | tuple[int, ...] | None,
    residual: NDArray[np.float32] | tuple[int, ...],
    codes: Bytes | tuple[int, ...],
    scales: Bytes | tuple[int, ...] | None,
    shifts: Bytes | tuple[int, ...] | None,
    outer: NDArray[np.float32] | tuple[int, ...] | None,
    threads: int,
) -> bool: ...
def gemv(
    format: Format,
    x: NDArray[Any] | tuple[int, ...],
    batch: int,
    narrow: bool,
    codes: Bytes | tuple[int, ...],
    scales: Bytes | tuple[int, ...] | None,
    shifts: Bytes | tuple[int, ...] | None,
    outer: NDArray[np.float32] | tuple[int, ...] | None,
    y: NDArray[Any] | tuple[int, ...],
    threads: int,
    activation: Format | None = None,
) -> None: ...
def has_unit(unit: str) -> bool: ...
def product(
    unit: str,
    a: NDArray[Any],
    format_a: Format | None,
    b: NDArray[Any],
    format_b: Format | None,
    block: int,
    y: NDArray[Any],
    threads: int,
    lower: str = "",
    subtracts: bool = False,
) -> bool: ...
def addition_product(
    a: NDArray[np.float32], b: NDArray[np.float32], y: NDArray[np.float32], threads: int
) -> None: ...
def plane_product(
    codes: Bytes,
    weight_bits: int,
    x: NDArray[np.uint8],
    bits: int,
    is_signed: bool,
    scales: NDArray[np.float32] | None,
    x_scales: NDArray[np.float32],
    by_bytes: bool,
    y: NDArray[np.float32],
    threads: int,
) -> None: ...

class Storage(Enum):
    f64 = ...
    f32 = ...
    f16 = ...
    i16 = ...

class StoredNumbers:
    def __init__(
        self, storage: Storage, values: NDArray[Any], norms: NDArray[np.float32] | None, scale: float
    ) -> None: ...

class Stencil:
    def __init__(
        self,
        nx: int,
        ny: int,
        nz: int,
        x: StoredNumbers,
        y: StoredNumbers,
        z: StoredNumbers,
        high: NDArray[np.float64],
        shift: float,
    ) -> None: ...
    @property
    def direction_items(self) -> int: ...
    @property
    def residual_items(self) -> int: ...
    @property
    def workspace(self) -> int: ...

def serves(vectors: Storage, faces: Storage) -> bool: ...
def update_direction(
    a: Stencil,
    r: StoredNumbers,
    p: StoredNumbers,
    next: StoredNumbers,
    q: StoredNumbers,
    x: NDArray[Any] | None,
    alpha: float,
    earlier: float,
    gamma: float,
    beta: float,
    workspace: NDArray[np.uint8],
    sums: NDArray[np.float64],
    threads: int,
) -> None: ...
def update_residual(
    a: Stencil,
    r: StoredNumbers,
    q: StoredNumbers,
    r_scale: float,
    alpha: float,
    sums: NDArray[np.float64],
    threads: int,
) -> None: ...
def pack_stencil(
    a: Stencil,
    values: NDArray[np.float64],
    to: StoredNumbers,
    p: StoredNumbers,
    sums: NDArray[np.float64],
    threads: int,
) -> None: ...

class SparseRows:
    def __init__(
        self,
        rows: int,
        first: NDArray[np.int64],
        start: NDArray[np.int64],
        base: NDArray[np.int64],
        storage: Storage,
        values: NDArray[Any],
        columns: NDArray[Any],
        runs: NDArray[np.int32],
        unit: NDArray[np.float32],
        place: NDArray[np.int32],
    ) -> None: ...

def multiply_rows(a: SparseRows, x: NDArray[np.float32], y: NDArray[np.float32], threads: int) -> None: ...
def residuals(
    a: NDArray[np.float64],
    x: NDArray[np.float64],
    b: NDArray[np.float64],
    r: NDArray[np.float64],
    sizes: NDArray[np.float64],
    threads: int,
) -> None: ...
def extents(
    a: NDArray[np.float64],
    largest: NDArray[np.float64],
    sums: NDArray[np.float64],
    columns: NDArray[np.float64],
    single: NDArray[np.float32] | None,
    left: NDArray[np.float64] | None,
    right: NDArray[np.float64] | None,
    threads: int,
) -> None: ...
def substitute(
    t: NDArray[np.float32] | NDArray[np.float64],
    x: NDArray[np.float64],
    upper: bool,
    unit: bool,
    transposed: bool,
    threads: int,
) -> None: ...
def factorize_lu(
    a: NDArray[np.float32] | NDArray[np.float64], exchanges: NDArray[np.int64], threads: int
) -> None: ...
def exchange_rows(a: NDArray[np.float32], exchanges: NDArray[np.int64], threads: int) -> None: ...

class NmPermutation:
    def __init__(
        self,
        magnitudes: NDArray[np.int32],
        order: NDArray[np.int32],
        edges: NDArray[np.int32],
        bases: NDArray[np.int64],
        scores: NDArray[np.int64],
        keep: int,
    ) -> None: ...

def evaluate_groups(swaps: NmPermutation, threads: int) -> None: ...
def anneal(
    swaps: NmPermutation, pairs: NDArray[np.int32], allowances: NDArray[np.int64], gains: NDArray[np.int64]
) -> int: ...
def top_k(x: NDArray[Any] | tuple[int, ...], places: NDArray[np.int64], threads: int) -> None: ...
def counter_uniform(
    seed: int, position: int, unit: float, out: NDArray[np.float32], threads: int
) -> None: ...
def compress_lines(
    codes: NDArray[np.uint8],
    n: int,
    bits: int,
    keep: int,
    group: int,
    zero: int,
    minus_zero: int,
    stream: NDArray[np.uint8],
    threads: int,
) -> int: ...
def expand_lines(
    stream: NDArray[np.uint8],
    n: int,
    bits: int,
    keep: int,
    group: int,
    zero: int,
    codes: NDArray[np.uint8] | None,
    threads: int,
) -> int: ...
def magnitudes(
    geometry: Geometry, x: NDArray[Any] | tuple[int, ...], threads: int
) -> tuple[float, float, bool]: ...
def lattice_hop(
    extent: tuple[int, int, int, int],
    split: tuple[bool, bool, bool, bool],
    links: NDArray[Any],
    blocks: NDArray[Any] | None,
    block_norms: NDArray[np.float32] | None,
    on_result: bool,
    diagonal: float,
    hopping: float,
    chiral: bool,
    parity: int | None,
    field: NDArray[Any],
    field_norms: NDArray[np.float32] | None,
    own: NDArray[Any],
    own_norms: NDArray[np.float32] | None,
    out: NDArray[Any],
    out_norms: NDArray[np.float32] | None,
    alpha: float | None,
    threads: int,
) -> tuple[list[float], list[float]]: ...
def lattice_update_direction(
    extent: tuple[int, int, int, int],
    split: tuple[bool, bool, bool, bool],
    r: NDArray[Any],
    r_norms: NDArray[np.float32] | None,
    p: NDArray[Any],
    p_norms: NDArray[np.float32] | None,
    x: NDArray[Any],
    alpha: float,
    gamma: float,
    beta: float,
    parity: int | None,
    threads: int,
) -> list[float]: ...
def lattice_update_solution(
    extent: tuple[int, int, int, int],
    split: tuple[bool, bool, bool, bool],
    p: NDArray[Any],
    p_norms: NDArray[np.float32] | None,
    x: NDArray[Any],
    alpha: float,
    threads: int,
) -> None: ...
def lattice_store_residual(
    extent: tuple[int, int, int, int],
    split: tuple[bool, bool, bool, bool],
    wide: NDArray[np.float64],
    r: NDArray[Any],
    r_norms: NDArray[np.float32] | None,
    p: NDArray[Any],
    p_norms: NDArray[np.float32] | None,
    threads: int,
) -> tuple[list[float], list[float]]: ...
def tally(
    format: Format,
    x: NDArray[Any],
    n: int,
    part: int,
    element_max: float,
    scale_of_line: bool,
    threads: int,
) -> tuple[float, float, float, float, int, int, int, bool]: ...
def tally_pairs(
    x: NDArray[Any], y: NDArray[Any], limit: NDArray[np.float64], part: int, threads: int
) -> tuple[float, float, float, float, int, int, int, bool]: ...
def isa_names(available: bool) -> list[str]: ...
def active_isa() -> str: ...
def force_isa(name: str | None) -> None: ...
def force_nontemporal(wanted: bool | None) -> None: ...
def scratch(bytes: int) -> NDArray[np.uint8]: ...
def ask_for_huge_pages(address: int, bytes: int) -> None: ...
def enter_exact() -> int: ...
def leave_exact(saved: int) -> None: ...
