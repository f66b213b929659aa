from math import inf, isnan
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
from scipy import io, sparse

import fewbits as fb
from fewbits import kernels
from fewbits.compare import matrix as module
from fewbits.compare.matrix import MATRIX_FORMATS, condition_estimate, measure_matrix
from fewbits.errors import ArgumentError, DataError, FormatError
from fewbits.formats import packed_bits


def random_matrix(n: int, seed: int = 0, density: Any = 0.2, columns: Any = None) -> Any:
    """A sparse matrix with entries over many binades, a full diagonal and rows of very different length."""
    rng = np.random.default_rng(seed)
    columns = columns or n
    dense = np.where(
        rng.random((n, columns)) < density * rng.random((n, 1)) * 2, rng.standard_normal((n, columns)), 0
    )
    dense *= 2.0 ** rng.integers(-6, 6, dense.shape)
    np.fill_diagonal(dense, rng.standard_normal(min(n, columns)) + 3)
    return sparse.csr_array(dense)


def written(folder: Path, matrix: Any, name: str = "m.mtx") -> Any:
    io.mmwrite(folder / name, sparse.coo_array(matrix), precision=17, symmetry="general")
    return folder / name


def one(folder: Path, matrix: Any, fmt: Any) -> Any:
    (score,) = measure_matrix(written(folder, matrix), [fmt])
    return score


def test_the_default_formats_exist() -> None:
    assert len({fb.format(f) for f in MATRIX_FORMATS}) == len(MATRIX_FORMATS)


@pytest.mark.parametrize("n", [1, 2, 3, 5, 20, 100, 300, 512])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("density", [0.02, 0.2, 1.0])
def test_the_condition_of_a_small_matrix_is_exact(n: int, seed: int, density: float) -> None:
    matrix = random_matrix(n, seed, density)
    true = np.linalg.cond(matrix.toarray(), 1)
    assert condition_estimate(matrix) == pytest.approx(true, rel=1e-6)


@pytest.mark.parametrize("seed", range(4))
def test_the_estimate_of_a_large_matrix_is_within_a_factor_of_three_of_the_condition(seed: int) -> None:
    matrix = random_matrix(513, seed, 0.02)
    true = np.linalg.cond(matrix.toarray(), 1)
    assert true / 3 <= condition_estimate(matrix) <= true * (1 + 1e-6)


@pytest.mark.parametrize("n", [40, 520])
@pytest.mark.parametrize("density", [0.02, 1.0])
@pytest.mark.parametrize("unit", [2.0**-1040, 2.0**-1000, 2.0**1018])
def test_the_condition_is_the_same_in_any_unit(tmp_path: Path, n: int, density: float, unit: float) -> None:
    signs = np.sign(random_matrix(n, 3, density).toarray())  # so that no unit rounds an entry
    np.fill_diagonal(signs, n if n < 100 else 32)
    matrix = sparse.csr_array(signs)
    true = np.linalg.cond(signs, 1)
    assert true / 3 <= condition_estimate(matrix * unit) == condition_estimate(matrix) <= true * (1 + 1e-6)
    assert "nan" not in one(tmp_path, matrix * unit, "fp8_e4m3").note


def test_the_error_of_entries_whose_norm_leaves_the_range_is_a_number(tmp_path: Path) -> None:
    largest = sparse.csr_array(np.full((3, 3), 1e308))
    assert one(tmp_path, largest, "fp8_e4m3").frobenius_error == 1.0  # all that is left is 448
    assert one(tmp_path, largest, "bf16").frobenius_error == inf


def test_an_error_beyond_the_range_is_infinite_without_a_warning(tmp_path: Path) -> None:
    io.mmwrite(tmp_path / "a.mtx", sparse.coo_matrix(np.diag([1e-320, 3e-320])))
    (score,) = measure_matrix(tmp_path / "a.mtx", ["posit16_1"])  # whose smallest value is 3.7e-9
    assert score.frobenius_error == score.error.max_relative_error == inf
    assert score.note == "perturbation is inf times the distance to singularity"


@pytest.mark.parametrize("n", [1, 2, 5, 80, 520])
def test_a_full_matrix_is_not_factored_as_a_sparse_one(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scipy.sparse.linalg.splu", None)
    dense = np.random.default_rng(n).standard_normal((n, n))
    true = np.linalg.cond(dense, 1)
    assert true / 3 <= condition_estimate(sparse.csr_array(dense)) <= true * (1 + 1e-6)
    assert condition_estimate(sparse.csr_array(1e-200 * dense)) == pytest.approx(
        condition_estimate(sparse.csr_array(dense))
    )
    if n > 1:
        dense[:, 0] = 2 * dense[:, 1]
        assert condition_estimate(sparse.csr_array(dense)) > 1e15


@pytest.mark.parametrize("condition", [1.0, 1e3, 1e8, 1e14])
def test_the_condition_of_a_diagonal_matrix_is_exact(condition: Any) -> None:
    assert condition_estimate(sparse.diags_array([condition, 2.0, 1.0], format="csr")) == pytest.approx(
        max(condition, 2)
    )


def test_a_solve_that_overflows_is_singular() -> None:
    assert condition_estimate(sparse.diags_array([1e300, 1e-300], format="csr")) == inf


@pytest.mark.parametrize(
    "dense",
    [
        [[1, 2], [2, 4]],  # by its numbers
        [[1, 1, 1], [1, 0, 0], [1, 0, 0]],  # by its pattern
        [[0, 1], [0, 1]],  # an empty column
    ],
)
def test_a_singular_matrix_has_infinite_condition(dense: Any, capfd: pytest.CaptureFixture[str]) -> None:
    assert condition_estimate(sparse.csr_array(np.array(dense, float))) == inf
    assert capfd.readouterr() == ("", "")  # BLAS complains when it is asked to factor such a pattern


def test_entries_stored_as_zero_count_as_absent() -> None:
    matrix = sparse.csr_array((np.array([1.0, 0.0]), np.array([0, 1]), np.array([0, 1, 2])), shape=(2, 2))
    assert condition_estimate(matrix) == inf


def test_the_estimate_is_repeatable_and_leaves_the_global_generator_alone() -> None:
    matrix = random_matrix(600, 3, 0.02)
    np.random.seed(7)  # noqa: NPY002 - the generator that SciPy's estimator uses
    before = np.random.get_state()[1].copy()  # noqa: NPY002
    first = condition_estimate(matrix)
    np.testing.assert_array_equal(np.random.get_state()[1], before)  # noqa: NPY002
    np.random.seed(8)  # noqa: NPY002
    assert condition_estimate(matrix) == first


@pytest.mark.parametrize("fmt", ["fp32", "posit8_1", "mxfp4", "mx6", "quda_half", "int8_tensor", "nvfp4"])
@pytest.mark.parametrize("piece", [64, 1 << 16])
def test_blocks_run_along_the_entries_row_by_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fmt: Any, piece: Any
) -> None:
    monkeypatch.setattr(module, "_PIECE", piece)
    matrix = random_matrix(40)
    score = one(tmp_path, matrix, fmt)
    rounded = fb.fake_quantize(matrix.data, fmt)
    error = fb.measure(matrix.data, fmt)
    assert score.frobenius_error == pytest.approx(
        np.linalg.norm(rounded - matrix.data) / np.linalg.norm(matrix.data)
    )
    assert score.error.qsnr_db == pytest.approx(error.qsnr_db, rel=1e-12)
    assert score.error.max_relative_error == error.max_relative_error
    assert score.error.flushed_fraction == error.flushed_fraction
    assert score.error.saturated_fraction == error.saturated_fraction
    assert score.values_bytes == -(-packed_bits(fb.format(fmt), (matrix.nnz,)) // 8)
    assert score.bits_per_value == fb.format(fmt).bits_per_value


@pytest.mark.parametrize("fmt", ["int8_channel", "fp8_e4m3_channel", "vsq4"])
@pytest.mark.parametrize("piece", [64, 1 << 16])
def test_a_scale_per_channel_is_shared_by_the_entries_of_a_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fmt: Any, piece: Any
) -> None:
    monkeypatch.setattr(module, "_PIECE", piece)
    matrix = random_matrix(70, density=0.5)
    rows = [matrix.data[a:b] for a, b in zip(matrix.indptr, matrix.indptr[1:], strict=False)]
    assert len({row.size for row in rows}) > 10
    rounded = np.concatenate([fb.fake_quantize(row, fmt) for row in rows])
    score = one(tmp_path, matrix, fmt)
    assert score.frobenius_error == pytest.approx(
        np.linalg.norm(rounded - matrix.data) / np.linalg.norm(matrix.data)
    )
    assert score.error.flushed_fraction == np.count_nonzero((rounded == 0) & (matrix.data != 0)) / matrix.nnz
    assert score.values_bytes == -(-sum(packed_bits(fb.format(fmt), row.shape) for row in rows) // 8)
    there = sparse.csr_array((rounded, matrix.indices, matrix.indptr), shape=matrix.shape)
    assert score.condition == condition_estimate(there)


def test_rows_without_entries_have_no_scale(tmp_path: Path) -> None:
    matrix = sparse.csr_array(np.array([[1.0, 2, 3], [0, 0, 0], [0, 4, 0]]))
    score = one(tmp_path, matrix, "int8_channel")
    assert score.values_bytes == 4 + 2 * 4
    assert score.condition_fp64 == inf
    assert score.note == "singular before rounding"


def test_a_format_that_keeps_every_entry_changes_nothing(tmp_path: Path) -> None:
    matrix = sparse.csr_array(np.array([[2.0, 1], [1, 4]]))
    score = one(tmp_path, matrix, "bf16")
    assert (score.error.qsnr_db, score.frobenius_error, score.note) == (inf, 0, "")
    assert score.condition == score.condition_fp64 == pytest.approx(np.linalg.cond(matrix.toarray(), 1))
    assert (score.matrix, score.format, score.values_bytes) == ("m.mtx", "bf16", 8)


def test_entries_beyond_the_format_are_told(tmp_path: Path) -> None:
    matrix = sparse.csr_array(np.array([[1e6, 1e-9], [2e6, 1.0]]))
    score = one(tmp_path, matrix, "fp16")
    assert score.note == "2 entries overflow to infinity; 1 entry becomes zero"
    assert score.frobenius_error == inf
    assert isnan(score.condition)
    assert one(tmp_path, matrix, "fp8_e4m3").note.startswith("2 entries saturate; 1 entry becomes zero")


def test_rounding_to_a_singular_matrix_is_told(tmp_path: Path) -> None:
    matrix = sparse.csr_array(np.array([[1.0, 1.0], [1.0, 1.0 + 2**-12]]))
    score = one(tmp_path, matrix, "bf16")
    assert score.condition == inf
    assert score.condition_fp64 == pytest.approx(2.0**14, rel=1e-3)
    assert score.note == "singular"


@pytest.mark.parametrize(
    ("corner", "note"),
    [
        (1.0045, "perturbation is 1.5 times the distance to singularity"),  # bf16: 1.0078125, 0.0045 from 1
        (1.00625, ""),  # a perturbation of 0.0016, and 0.00625 from 1
    ],
)
def test_a_perturbation_beyond_the_distance_to_singularity_is_told(
    tmp_path: Path, corner: Any, note: Any
) -> None:
    # The condition is (1 + c)^2 / (c - 1), and the relative perturbation (1.0078125 - c) / (1 + c).
    score = one(tmp_path, sparse.csr_array(np.array([[corner, 1.0], [1.0, 1.0]])), "bf16")
    assert score.condition_fp64 == pytest.approx((1 + corner) ** 2 / (corner - 1))
    assert score.note == note


def test_a_matrix_that_is_not_square_has_no_condition(tmp_path: Path) -> None:
    score = one(tmp_path, random_matrix(10, columns=7), "fp32")
    assert isnan(score.condition)
    assert isnan(score.condition_fp64)
    assert score.note == "10 x 7 has no condition number"
    assert score.frobenius_error < 1e-7


def test_a_very_large_matrix_is_not_factored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_ROWS_FACTORED", 9)
    score = one(tmp_path, random_matrix(10), "fp32")
    assert isnan(score.condition)
    assert score.note == "condition not estimated beyond 9 rows"


def test_norms_of_very_large_and_small_entries_do_not_overflow(tmp_path: Path) -> None:
    for scale in (1e-300, 1e300):
        score = one(tmp_path, sparse.csr_array(np.array([[1.0, 1 / 3], [0, 1]]) * scale), "int8_tensor")
        assert 0 < score.frobenius_error <= 1


def factored(monkeypatch: pytest.MonkeyPatch, log: Any) -> None:
    """Note in a list whenever a matrix is factored."""
    whole = module._estimate
    monkeypatch.setattr(module, "_estimate", lambda *args: (log.append("factored"), whole(*args))[1])


def test_progress_is_told_before_the_first_work_and_after_each_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = []
    path = written(tmp_path, random_matrix(5))
    read = module.read_matrix
    monkeypatch.setattr(module, "read_matrix", lambda path: (log.append("read"), read(path))[1])
    monkeypatch.setattr(kernels, "threads", lambda: 1)
    factored(monkeypatch, log)
    measure_matrix(path, ["bf16", fb.fp16], progress=lambda *step: log.append(step))
    what = "measuring formats"
    assert log[:4] == [(what, 0, 3), "read", "factored", (what, 1, 3)]
    assert [step for step in log[4:] if step != "factored"] == [(what, 2, 3), (what, 3, 3)]
    assert log.count("factored") == 3


def test_a_matrix_that_rounding_leaves_as_it_is_or_makes_twice_is_factored_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = []
    factored(monkeypatch, log)
    whole = sparse.diags_array([[-1.0] * 29, [4.0] * 30, [-1.0] * 29], offsets=[-1, 0, 1])
    measure_matrix(written(tmp_path, whole), MATRIX_FORMATS)
    assert len(log) < len(MATRIX_FORMATS) / 2  # bf16, fp16, fp32 and others hold four and one
    log.clear()
    found = measure_matrix(written(tmp_path, whole * 1.1), ["bf16", "bf16", "float(e=6,m=7)", "fp16", "fp32"])
    assert len(log) == 4
    assert found[0].condition == found[1].condition == found[2].condition != found[3].condition


@pytest.mark.parametrize("threads", [2, 5])
def test_several_at_once_give_the_same_estimates_as_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, threads: Any
) -> None:
    path = written(tmp_path, random_matrix(120, seed=3, density=0.05))
    reports = []
    for count in (1, threads):
        monkeypatch.setattr(kernels, "threads", lambda count=count: count)
        reports.append(measure_matrix(path, MATRIX_FORMATS))
    assert reports[0] == reports[1]
    assert [score.format for score in reports[1]] == list(MATRIX_FORMATS)


def test_factors_that_fill_the_memory_are_made_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "threads", lambda: 8)
    matrix = random_matrix(50)
    assert module._Conditions(matrix).at_once == 8
    monkeypatch.setattr(module, "_FACTOR_BYTES", 100)
    assert module._Conditions(matrix).at_once == 1


def test_an_error_in_one_format_is_raised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(matrix: Any) -> NoReturn:
        raise MemoryError("no room")

    path = written(tmp_path, random_matrix(5))
    monkeypatch.setattr(module, "condition_estimate", failing)
    with pytest.raises(MemoryError, match="no room"):
        measure_matrix(path, ["bf16", "bf16", "fp16"])


@pytest.mark.parametrize(
    ("formats", "error", "told"),
    [
        ([], ArgumentError, "no formats"),
        (["fp31"], FormatError, "fp31"),
        (["fp32"], DataError, "is not a file"),
    ],
)
def test_misuse_is_refused(tmp_path: Path, formats: Any, error: Any, told: Any) -> None:
    with pytest.raises(error, match=told):
        measure_matrix(tmp_path / "none.mtx", formats)


# 1-norm condition numbers of numpy.linalg.cond(A.toarray(), 1), in double precision.
REAL = {"bcsstk13": 4.570e10, "rajat19": 9.173e10, "watt_2": 1.374e12, "cryg2500": 4.350e17}


@pytest.mark.parametrize("name", REAL)
def test_the_condition_of_real_matrices(shared_data: Path, name: str) -> None:
    path = shared_data / "matrices" / f"{name}.mtx"
    if not path.is_file():
        pytest.skip(f"no {path.name} in {path.parent}")
    fp32, narrow = measure_matrix(path, ["fp32", "mxint8"])
    factor = 3 if REAL[name] < 1e15 else 30  # beyond 1/eps even the digits of LU are lost
    assert REAL[name] / factor < fp32.condition_fp64 < REAL[name] * factor
    assert fp32.error.max_relative_error <= 2.0**-24
    assert fp32.frobenius_error < 2.0**-24
    assert narrow.condition == inf
    assert "become zero; singular" in narrow.note
