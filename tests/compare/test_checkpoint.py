import json
import os
import subprocess
import sys
from math import inf, isnan, nan, prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import fewbits as fb
from fewbits.compare import checkpoint as module
from fewbits.compare.checkpoint import CHECKPOINT_FORMATS, measure_checkpoint
from fewbits.errors import ArgumentError, FormatError
from fewbits.files.matrix_view import matrix_shape
from fewbits.kernels.arrays import tally

# One format of every way to scale: none, block, two levels, tensor, channel, and each of these above blocks.
EVERY_SCALE = (
    "bf16", "posit8_1", "mxfp4", "mx6", "quda_quarter", "int8_tensor", "fp8_e4m3_tensor", "int4_channel",
    "fp8_e4m3_channel", "nvfp4", "vsq4",
)  # fmt: skip


def normal(*shape: int, seed: int = 1) -> torch.Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed))
    # Magnitudes over six binades, so that scales differ, values saturate and values vanish.
    return x * 2.0 ** torch.randint(-3, 3, shape, generator=torch.Generator().manual_seed(seed))


def measured(
    folder: Path, formats: Any = ("mxfp4",), min_qsnr_db: Any = 20.0, tensors: Any = None, **options: Any
) -> Any:
    save_file(tensors, folder / "m.safetensors")
    return measure_checkpoint(folder / "m.safetensors", formats, min_qsnr_db=min_qsnr_db, **options)


def small_pieces(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(module, "CHUNK_VALUES", chunk)
    monkeypatch.setattr(tally, "PIECE", chunk // 4)


def test_the_default_formats_exist_and_are_few_bits() -> None:
    assert all(4 <= fb.format(f).bits_per_value <= 9 for f in CHECKPOINT_FORMATS)


@pytest.mark.parametrize("chunk", [96, 480, 1 << 20])
@pytest.mark.parametrize("shape", [(), (1,), (1000,), (12, 40), (3, 333), (2, 3, 160), (6, 5, 3, 3)])
def test_measuring_in_pieces_equals_measuring_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chunk: Any, shape: Any
) -> None:
    small_pieces(monkeypatch, chunk)
    x = normal(*shape)
    matrix = x.reshape(matrix_shape(shape)).numpy()
    for score in measured(tmp_path, EVERY_SCALE, tensors={"x": x}).scores:
        whole = fb.measure(matrix, score.format)
        assert score.error.qsnr_db == pytest.approx(whole.qsnr_db, rel=1e-12)
        assert score.error.mean_relative_error == pytest.approx(whole.mean_relative_error, rel=1e-12)
        assert score.error.max_relative_error == whole.max_relative_error
        assert score.error.saturated_fraction == whole.saturated_fraction
        assert score.error.flushed_fraction == whole.flushed_fraction


def test_a_cut_through_a_block_would_be_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The negative control of the test above: a block size that the cuts do not respect changes the result.
    small_pieces(monkeypatch, 96)
    x = normal(1000)
    right = measured(tmp_path, ["mxfp4"], tensors={"x": x}).scores[0].error
    monkeypatch.setattr(module, "_block_size", lambda fmt: 7)
    assert measured(tmp_path, ["mxfp4"], tensors={"x": x}).scores[0].error != right


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]
)
def test_every_stored_float_is_measured_as_the_values_it_stands_for(tmp_path: Path, dtype: Any) -> None:
    x = normal(8, 64).to(dtype)
    score = measured(tmp_path, ["mxfp6_e2m3"], tensors={"x": x}).scores[0]
    values = x.double().numpy() if dtype == torch.float64 else x.float().numpy()
    assert score.error.qsnr_db == pytest.approx(fb.measure(values, "mxfp6_e2m3").qsnr_db, rel=1e-12)


def test_sizes_without_a_common_multiple_that_fits_get_a_reading_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_pieces(monkeypatch, 64)
    formats = [f"block(element=float(e=2,m=1),scale=e8m0,size={size})" for size in (31, 32, 16, 29)]
    x, seen = normal(500), []
    report = measured(
        tmp_path, formats, tensors={"x": x}, progress=lambda what, done, total: seen.append(done)
    )
    for score in report.scores:
        assert score.error.qsnr_db == pytest.approx(fb.measure(x.numpy(), score.format).qsnr_db, rel=1e-12)
    assert seen == sorted(seen)
    trials = [module._Trial(fb.format(f), "floor") for f in formats]
    assert [(m, len(group)) for m, group in module._groups(trials, 500)] == [(31, 1), (32, 2), (29, 1)]
    assert [(m, len(group)) for m, group in module._groups(trials, 64)] == [(1, 4)]


def test_the_number_of_threads_does_not_change_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_pieces(monkeypatch, 2000)
    tensors = {"x": normal(90, 70), "y": normal(5000)}
    reports = []
    for threads in (1, 3):
        monkeypatch.setattr(tally, "threads", lambda count=threads: count)
        reports.append(measured(tmp_path, EVERY_SCALE, tensors=tensors))
    assert reports[0] == reports[1]


def test_packed_bytes_count_scales_and_partial_blocks(tmp_path: Path) -> None:
    report = measured(tmp_path, ["mxfp4", "mx9", "int8_channel"], tensors={"x": normal(3, 33)})
    assert [s.packed_bytes for s in report.scores] == [
        3 * (17 + 2),  # each of three lines begins at a byte, and has two blocks
        3 * (33 + 3 + 3),  # three scales, and 17 shifts of a bit
        99 + 3 * 4,
    ]


def test_the_narrowest_format_above_the_bound_is_proposed(tmp_path: Path) -> None:
    formats = ["mxfp8_e4m3", "mx4", "mxfp6_e2m3", "mxint8", "mxfp4"]
    for bound, proposed in [(5, "mx4"), (17.5, "mxfp4"), (25, "mxfp6_e2m3"), (35, "mxint8")]:
        report = measured(
            tmp_path, formats, bound, {"x": torch.randn(64, 64, generator=torch.Generator().manual_seed(0))}
        )
        (tensor,) = report.tensors
        scores = {s.format: s for s in report.scores}
        assert tensor.proposed == proposed
        assert tensor.proposed_bytes == scores[proposed].packed_bytes == report.proposed_bytes
        assert tensor.reason.startswith(f"{scores[proposed].error.qsnr_db:.1f} dB at ")
        assert report.weight_qsnr_db == pytest.approx(scores[proposed].error.qsnr_db)
        assert all(
            s.packed_bytes >= tensor.proposed_bytes
            for s in report.scores
            if s.error.qsnr_db >= report.min_qsnr_db
        )


def test_of_two_formats_with_as_many_bytes_the_better_is_proposed(tmp_path: Path) -> None:
    for formats in (["mxint8", "mxfp8_e4m3"], ["mxfp8_e4m3", "mxint8"]):
        assert measured(tmp_path, formats, 20, {"x": normal(64, 64)}).tensors[0].proposed == "mxint8"


def test_a_tensor_that_no_format_keeps_well_enough_is_kept(tmp_path: Path) -> None:
    report = measured(tmp_path, ["mxfp4", "mx4"], 60, {"x": normal(64, 64)})
    (tensor,) = report.tensors
    assert tensor.proposed is None
    assert tensor.proposed_bytes == tensor.stored_bytes == 64 * 64 * 4
    assert (
        tensor.reason
        == f"no format is good enough, the best has {report.scores[0].error.qsnr_db:.1f} dB: kept"
    )


def test_a_proposal_that_saves_nothing_is_not_made(tmp_path: Path) -> None:
    report = measured(tmp_path, ["mxfp8_e4m3"], 20, {"x": normal(8, 64).to(torch.float8_e4m3fn)})
    assert report.tensors[0].proposed is None
    assert report.tensors[0].reason == "no format saves bytes: kept"
    assert report.proposed_bytes == report.stored_bytes == 512
    as_many = measured(tmp_path, ["fp16"], 20, {"x": normal(8, 64).bfloat16()})
    assert as_many.tensors[0].reason == "no format saves bytes: kept"


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (torch.arange(6), "I64 is not floating point: kept"),
        (torch.tensor([True]), "BOOL is not floating point: kept"),
        (torch.ones(2, dtype=torch.complex64), "C64 is not floating point: kept"),
        (torch.ones(2).to(torch.float8_e8m0fnu), "F8_E8M0 is not floating point: kept"),
        (torch.zeros(0, 7), "no values: kept"),
        (torch.tensor([1, nan, inf, -inf, nan, 2]), "2 NaN and 2 infinite values: kept"),
        (torch.full((3,), nan, dtype=torch.bfloat16), "3 NaN and 0 infinite values: kept"),
    ],
)
def test_what_cannot_be_measured_is_kept_and_says_why(tmp_path: Path, tensor: Any, reason: Any) -> None:
    report = measured(tmp_path, EVERY_SCALE, tensors={"t": tensor})
    (kept,) = report.tensors
    assert (kept.reason, kept.proposed) == (reason, None)
    assert kept.proposed_bytes == kept.stored_bytes == tensor.nbytes
    assert isnan(kept.outlier_ratio)
    assert report.scores == ()


def test_zeros_and_constants_are_exact(tmp_path: Path) -> None:
    report = measured(
        tmp_path,
        ["mxfp4", "mx4", "int4_channel", "nvfp4"],
        tensors={"a": torch.zeros(3, 40), "b": torch.ones(5)},
    )
    assert {s.error.qsnr_db for s in report.scores} == {inf}
    zeros, ones = report.tensors
    assert isnan(zeros.outlier_ratio)
    assert ones.outlier_ratio == 1


def test_the_outlier_ratio_is_the_largest_over_the_root_mean_square(tmp_path: Path) -> None:
    x = torch.ones(10_000)
    x[77] = -100
    (tensor,) = measured(tmp_path, tensors={"x": x}).tensors
    assert tensor.outlier_ratio == pytest.approx(100 / np.sqrt(1.9999))


@pytest.mark.parametrize("scale", [1e300, 1e-160, 1e-300])
def test_where_squares_leave_the_range_no_outlier_ratio_is_told(scale: float, tmp_path: Path) -> None:
    x = torch.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=torch.float64) * scale
    (tensor,) = measured(tmp_path, tensors={"x": x}).tensors
    assert isnan(tensor.outlier_ratio)


def test_a_scale_rule_reaches_the_formats_that_have_one(tmp_path: Path) -> None:
    x = normal(16, 64)
    formats = ["mxfp4", "nvfp4", "int8_channel", "bf16"]
    report = measured(tmp_path, formats, tensors={"x": x}, scale_rule="ceil")
    rules = ["ceil", "floor", "floor", "floor"]
    for score, rule in zip(report.scores, rules, strict=True):
        assert score.error == fb.measure(x.numpy(), score.format, scale_rule=rule)


def test_progress_reaches_the_whole_and_never_goes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small_pieces(monkeypatch, 128)
    seen = []
    tensors = {"a": normal(10, 40), "b": torch.arange(50), "c": normal(77)}
    report = measured(tmp_path, ["mxfp4"], tensors=tensors, progress=lambda *told: seen.append(told))
    done = [at for _, at, _ in seen]
    assert done == sorted(done)
    assert seen[-1] == ("measuring tensors", report.stored_bytes, report.stored_bytes)
    assert {total for _, _, total in seen} == {report.stored_bytes}
    assert len(seen) > 6


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        ({"formats": []}, ArgumentError, "no formats"),
        ({"formats": ["mxfp3"]}, FormatError, "mxfp3"),
        ({"min_qsnr_db": nan}, ArgumentError, "`min_qsnr_db` is NaN"),
        ({"scale_rule": "round", "formats": ["bf16"]}, ArgumentError, "scale_rule='round'"),
        ({"scale_rule": "ceil", "formats": ["nvfp4", "bf16"]}, ArgumentError, "nvfp4.* has none: leave"),
    ],
)
def test_misuse_is_refused_before_anything_is_read(
    tmp_path: Path, options: Any, error: Any, told: Any
) -> None:
    given = {"formats": ["mxfp4"], "min_qsnr_db": 20.0} | options
    with pytest.raises(error, match=told):
        measure_checkpoint(tmp_path / "none.safetensors", **given)


MEASURE = """
import json, re, sys
import torch, fewbits, fewbits.metrics
from fewbits.compare.checkpoint import measure_checkpoint
# Not ru_maxrss: a child starts with its parent's, and nothing it does afterwards shows.
def peak(): return int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024
before = peak()
whole = sys.argv[2] == "whole"
if whole:
    from safetensors.numpy import load_file
    x = next(iter(load_file(sys.argv[1]).values()))
    fewbits.qsnr(x, fewbits.fake_quantize(x, "mxfp4"))
else:
    measure_checkpoint(sys.argv[1], ["mxfp4"], min_qsnr_db=20)
print(json.dumps({"before": before, "after": peak()}))
"""


def peaks(path: Path, how: str) -> tuple[int, int]:
    """Return the peak memory of a fresh process, in bytes, before and after it measures a file."""
    run = subprocess.run(
        [sys.executable, "-c", MEASURE, str(path), how],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    told = json.loads(run.stdout)
    return told["before"], told["after"]


def write_large(path: Path, shape: tuple[int, ...]) -> int:
    """Write one F32 tensor piece by piece and return its bytes."""
    size = 4 * prod(shape)
    header = json.dumps({"x": {"dtype": "F32", "shape": shape, "data_offsets": [0, size]}}).encode()
    piece = normal(1 << 18).numpy().tobytes()
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for _ in range(size // len(piece)):
            file.write(piece)
    return size


@pytest.mark.parametrize("shape", [(1 << 12, 1 << 12), (1 << 24,)])
def test_measuring_64_mib_takes_less_than_64_mib_more(tmp_path: Path, shape: Any) -> None:
    size = write_large(tmp_path / "m.safetensors", shape)
    assert size == 64 << 20
    before, after = peaks(tmp_path / "m.safetensors", "pieces")
    assert after - before < size


def test_measuring_a_tensor_whole_would_exceed_that_bound(tmp_path: Path) -> None:
    size = write_large(tmp_path / "m.safetensors", (1 << 11, 1 << 11))
    before, after = peaks(tmp_path / "m.safetensors", "whole")
    assert after - before > size


@pytest.mark.slow
def test_measuring_1_gib_takes_less_than_4_gib(tmp_path: Path) -> None:
    assert write_large(tmp_path / "m.safetensors", (1 << 14, 1 << 14)) == 1 << 30
    assert peaks(tmp_path / "m.safetensors", "pieces")[1] < 4 << 30
