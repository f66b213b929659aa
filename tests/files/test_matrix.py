from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fewbits.files.matrix import read_matrix


def written(folder: Path, kind: Any, body: Any) -> Any:
    path = folder / "m.mtx"
    path.write_text(f"%%MatrixMarket matrix {kind}\n{body}")
    return path


@pytest.mark.parametrize(
    ("kind", "body", "dense"),
    [
        ("coordinate real general", "2 3 2\n1 1 1.5\n2 3 -2\n", [[1.5, 0, 0], [0, 0, -2]]),
        ("coordinate integer general", "1 2 1\n1 2 7\n", [[0, 7]]),
        ("coordinate real symmetric", "2 2 2\n1 1 4\n2 1 5\n", [[4, 5], [5, 0]]),
        ("coordinate real skew-symmetric", "2 2 1\n2 1 5\n", [[0, -5], [5, 0]]),
        ("coordinate real general", "% a comment\n1 1 2\n1 1 3\n1 1 4\n", [[7]]),
        ("array real general", "2 2\n1\n0\n3\n4\n", [[1, 3], [0, 4]]),
        ("array real symmetric", "2 2\n1\n2\n3\n", [[1, 2], [2, 3]]),
    ],
)
def test_real_matrices_of_every_storage_are_read(tmp_path: Path, kind: Any, body: Any, dense: Any) -> None:
    matrix = read_matrix(written(tmp_path, kind, body))
    assert matrix.format == "csr"
    assert matrix.dtype == np.float64
    assert matrix.has_sorted_indices
    np.testing.assert_array_equal(matrix.toarray(), dense)


def test_an_array_keeps_its_nonzero_entries_only(tmp_path: Path) -> None:
    assert read_matrix(written(tmp_path, "array real general", "2 2\n1\n0\n3\n4\n")).nnz == 3


def test_a_long_symmetric_array_of_short_numbers_is_not_taken_for_a_cut_one(tmp_path: Path) -> None:
    n = 90
    body = f"{n} {n}\n" + "1\n" * (n * (n + 1) // 2)
    assert read_matrix(written(tmp_path, "array integer symmetric", body)).nnz == n * n
