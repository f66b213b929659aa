"""What each figure has to reach, as data: which rows of a benchmark, which value of a row, and its bar.

A bar belongs to one benchmark and may differ by instruction set. Rows of which nothing is asked are in the
JSON alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from fewbits.formats import CATALOGUE, Bdr, Block

Row = Mapping[str, Any]
BLOCKS = frozenset(e.name for e in CATALOGUE.values() if isinstance(e.format, Block | Bdr))
GIBIBYTE = 2**29  # weights that are one in bfloat16
VNNI = ("amx", "avx512_bf16", "avx512_vnni", "avx2_vnni")
AVX2 = ("avx2_vnni", "avx2")  # the same kernels, but for products
WITHOUT_BF16 = ("avx512_vnni", "avx512", "avx2_vnni", "avx2", "baseline")


class Figure(NamedTuple):
    """One measured ratio or time, and what was asked of it."""

    subject: str
    measure: str
    value: float
    bar: float
    at_most: bool

    @property
    def of_bar(self) -> float:
        """How far: 1 and more has reached it."""
        return self.bar / self.value if self.at_most else self.value / self.bar


class Bar(NamedTuple):
    """What the rows of one benchmark have to reach."""

    measure: str
    value: Callable[[Row], float | None]
    bar: Callable[[Row, str], float | None]  # of a row and an instruction set; None: not asked
    subject: Callable[[Row], str]
    at_most: bool = False

    def figures(self, rows: Iterable[Row], isa: str) -> Iterator[Figure]:
        """Yield the figures of those rows that have this bar."""
        for row in rows:
            bar = self.bar(row, isa)
            value = None if bar is None else self.value(row)
            if bar is not None and value is not None:
                yield Figure(self.subject(row), self.measure, value, bar, self.at_most)


def _block(bar: float) -> Callable[[Row, str], float | None]:
    return lambda row, isa: None if row["format"] not in BLOCKS else 0.7 if isa in AVX2 else bar


def _of(key: str, *within: str) -> Callable[[Row], float | None]:
    """Return what reads a value that each row has; it is None, or not within it, where there was no peer."""

    def value(row: Row) -> float | None:
        found: Any = row[key]
        for name in within:
            found = (found or {}).get(name)
        return None if found is None else float(found)

    return value


def _format(row: Row) -> str:
    return str(row["format"])


def _read_bar(row: Row) -> float:
    return 0.85 if row.get("activation") else 0.7


def _batch_bar(row: Row, isa: str) -> float | None:
    return 1.0 if row.get("batch", 1) > 1 else None


def _activations(row: Row) -> str:
    lines = ", lines of 4096" if row.get("columns") == 4096 else ""
    return f"{row['format']}, {row.get('activation') or 'float32'} activations{lines}"


def _ggml_bar(row: Row, isa: str) -> float | None:
    return 1.0 if row.get("activation") and row.get("times_faster_than_ggml") else None


def _batch(row: Row) -> str:
    return f"{row['format']}, batch {row['batch']} of {row.get('dtype') or 'float32'}"


def _sparse_bar(row: Row, isa: str) -> float | None:
    if row["batch"] != 1 or row["lines"] * row["columns"] < GIBIBYTE:
        return None
    return {"bf16": 1.6, "int8_channel": 1.4, "mxfp4": 1.15}.get(row["format"])


def _ternary_bar(bar: float) -> Callable[[Row, str], float | None]:
    def asked(row: Row, isa: str) -> float | None:
        large = row["lines"] * row["columns"] >= GIBIBYTE
        return bar if large and (row["weights"], row["bits"]) == ("ternary_channel", 8) else None

    return asked


def _ternary(row: Row) -> str:
    return f"{row['weights']}, {row['bits']}-bit x"


def _call(row: Row) -> str:
    return str(row["call"])


def _copy_bar(numpy: bool) -> Callable[[Row, str], float | None]:
    return lambda row, isa: 1.0 if row["call"].endswith("NumPy") == numpy else None


def _step_bar(row: Row, isa: str) -> float | None:
    if row["recipe"] in ("mxfp8", "mxfp6"):
        return 1.2 if isa in WITHOUT_BF16 else 0.7
    return 0.8 if isa in VNNI and row["recipe"] in ("mxint8", "mxfp4w-mxfp6_e2m3") else None


def _dense_bar(row: Row, isa: str) -> float | None:
    if row["n"] < 4000:
        return None
    tried = row["path"].split()  # each precision, with how it ended
    if "fp64" in row["path"]:
        return 0.97
    if isa == "amx":
        return 4.0 if len(tried) == 1 and tried[0].startswith("bf16:") else 2.5
    return 1.8


def _even_odd_bar(row: Row, isa: str) -> float | None:
    # Rows of other operators are compared by time alone.
    return 1.7 if "times_fewer_applications" in row and row["kind"].endswith("even-odd") else None


def _all_reduce_bar(link: str, bars: Mapping[str, float]) -> Callable[[Row, str], float | None]:
    return lambda row, isa: bars.get(row["codec"]) if (row["ranks"], row["link"]) == (4, link) else None


def _codec(row: Row) -> str:
    return str(row["codec"])


BARS: dict[str, tuple[Bar, ...]] = {
    "quantize": (
        Bar("nearest", _of("of_limit", "fake"), _block(0.95), _format),
        Bar("stochastic", _of("of_limit", "stochastic"), _block(0.9), _format),
        Bar("quantize", _of("of_limit", "quantize"), _block(0.9), _format),
        Bar("dequantize", _of("of_limit", "dequantize"), _block(0.9), _format),
    ),
    "matvec": (
        Bar(
            "of the read rate",
            _of("of_limit"),
            lambda row, isa: _read_bar(row) if (row["format"], row.get("batch", 1)) == ("mxfp4", 1) else None,
            _activations,
        ),
        Bar("times torch's bfloat16", _of("times_faster_than_bfloat16"), _batch_bar, _batch),
        Bar("times torch's float32", _of("times_faster_than_float32"), _batch_bar, _batch),
        Bar("times ggml's MXFP4", _of("times_faster_than_ggml", "mxfp4"), _ggml_bar, _format),
        Bar("times ggml's Q4_0", _of("times_faster_than_ggml", "q4_0"), _ggml_bar, _format),
    ),
    "sparse_matvec": (
        Bar(
            "times own dense product",
            _of("times_own_dense"),
            _sparse_bar,
            lambda row: f"{row['format']}, {row['activation']} x",
        ),
    ),
    "bit_planes": (
        Bar("times torch's bfloat16", _of("times_faster_than_bfloat16"), _ternary_bar(6.0), _ternary),
        Bar("times ggml's TQ2_0", _of("times_faster_than_ggml", "tq2_0"), _ternary_bar(1.0), _ternary),
    ),
    "matmul": (
        Bar(
            "times float32",
            _of("of_float32"),
            lambda row, isa: 1.8 if isa in VNNI and row["format"] in ("mxint8", "mxfp4") else None,
            _format,
        ),
        Bar(
            "of bfloat16 units",
            _of("of_bfloat16"),
            lambda row, isa: 0.9 if row["format"] in ("mxint8", "mxfp4") else None,
            _format,
        ),
    ),
    "small_calls": (
        Bar(
            "microseconds",
            _of("microseconds"),
            lambda row, isa: {"fb.matvec": 30.0, "x @ q.t()": 40.0, "fake_quantize": 20.0}.get(row["call"]),
            lambda row: f"{row['call']}, 64 x 128",
            at_most=True,
        ),
    ),
    "new_results": (
        Bar("of torch's copy", _of("times_torch"), _copy_bar(numpy=False), _call, at_most=True),
        Bar("of NumPy's copy", _of("times_numpy"), _copy_bar(numpy=True), _call, at_most=True),
    ),
    "compare_checkpoint": (
        Bar(
            "seconds",
            _of("seconds"),
            lambda row, isa: 25.0 if (row["job"], row["mebibytes"]) == ("measure", 1024) else None,
            lambda row: "1 GiB of bfloat16, 11 formats",
            at_most=True,
        ),
    ),
    "train_step": (
        Bar("of FP32's step", _of("of_fp32"), _step_bar, lambda r: str(r["recipe"]), at_most=True),
    ),
    "solve_dense": (
        Bar("times torch's double", _of("of_torch"), _dense_bar, lambda r: f"{r['matrix']}, n = {r['n']}"),
    ),
    "solve_krylov": (
        Bar(
            "times SciPy",
            _of("of_scipy"),
            lambda row, isa: 10.0 if row.get("fastest") and row.get("side") == 192 else None,
            lambda r: f"conjugate gradients, {r['side']}^3, {r['precision']}",
        ),
    ),
    "solve_wilson": (
        Bar(
            "times fewer applications",
            _of("times_fewer_applications"),
            _even_odd_bar,
            lambda r: str(r["kind"]),
        ),
    ),
    "all_reduce": (
        Bar(
            "times gloo's float32, loopback",
            _of("times_gloo"),
            _all_reduce_bar("loopback", {"mxfp8_e4m3": 1.3, "int8_256": 1.3}),
            _codec,
        ),
        Bar(
            "times gloo's float32, 1 Gbit/s",
            _of("times_gloo"),
            _all_reduce_bar("1", {"mxfp8_e4m3": 3.3, "int8_256": 3.3, "mxfp4": 6.0}),
            _codec,
        ),
    ),
    "top_k": (Bar("times torch.topk", _of("times_torch"), lambda row, isa: 5.0, lambda r: str(r["values"])),),
}


def figures(benchmark: str, rows: Iterable[Row], isa: str) -> list[Figure]:
    """Return the figures of one benchmark's rows that something was asked of."""
    rows = list(rows)
    return [figure for bar in BARS.get(benchmark, ()) for figure in bar.figures(rows, isa)]
