"""Products of compressed rows: all instruction sets equal the definition, and that equals the matrix."""

from itertools import product
from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp

from fewbits.kernels import native
from fewbits.kernels.bits.sparse_rows import SparseRows, compress
from fewbits.kernels.bits.stencil import TYPES
from fewbits.kernels.reference.sparse.rows import multiply
from tests import cases


def matrices() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    wide = sp.random(50, 2_000_000, 2e-6, random_state=rng, format="csr")
    banded = sp.diags(rng.standard_normal((3, 70_000)), [-1, 0, 1], shape=(70_000, 70_000), format="csr")
    return {
        "uneven": sp.random(300, 300, 0.05, random_state=rng, format="csr"),
        "one": sp.csr_array(np.array([[2.0]])),
        "empty rows": sp.csr_array(np.diag([1.0, 0.0, 3.0])),
        "no entries": sp.csr_array((20, 20)),
        "wide": wide,
        "crosses a window": banded[65_500:65_600],
        "diagonals": sp.diags(
            rng.standard_normal((4, 100)), [-17, -1, 0, 30], shape=(100, 100), format="csr"
        ),
    }


def held(a: Any, storage: str) -> SparseRows:
    a.sum_duplicates()
    values = (a.data * (1000 if storage == "i16" else 1)).astype(TYPES[storage])
    unit = np.random.default_rng(1).uniform(0.5, 2, a.shape[0]).astype(np.float32)
    return compress(a.indptr, a.indices, values, unit, storage, a.shape[1])


ROWS = (matrices(), ("f32", "f16", "i16"), native.available_isas())


@pytest.mark.parametrize(("name", "storage", "isa"), cases.pairs(*ROWS))
def test_every_instruction_set_equals_the_definition(name: str, storage: str, isa: str) -> None:
    native.force_isa(isa)
    a = matrices()[name]
    rows = held(a, storage)
    x = np.random.default_rng(2).standard_normal(a.shape[1]).astype(np.float32)
    expected = multiply(rows, x)
    product = native.RowProduct(rows)
    assert all(product(x, threads).tobytes() == expected.tobytes() for threads in (1, 2))
    unit = np.random.default_rng(1).uniform(0.5, 2, a.shape[0])
    factor = 1000 if storage == "i16" else 1
    kept = sp.csr_array(
        ((a.data * factor).astype(TYPES[storage]).astype(float), a.indices, a.indptr), shape=a.shape
    )
    assert np.allclose(expected, (kept @ x.astype(float)) * unit, rtol=1e-5, atol=1e-4 * factor)


@pytest.mark.slow
def test_every_instruction_set_equals_the_definition_in_every_combination() -> None:
    for row in product(*ROWS):
        test_every_instruction_set_equals_the_definition(*row)


def test_columns_take_16_bits_where_that_is_shorter() -> None:
    found = {name: held(a, "f16").columns.dtype for name, a in matrices().items()}
    assert found["crosses a window"] == np.uint16
    assert found["uneven"] == np.uint16
    assert found["wide"] == np.int32


def test_columns_that_follow_each_other_are_not_read() -> None:
    rows = held(matrices()["diagonals"], "f16")
    assert (rows.runs >= 0).mean() > 0.5
    rows.columns[rows.runs >= 0] = 50  # the control: nothing of them is seen
    x = np.random.default_rng(2).standard_normal(100).astype(np.float32)
    expected = held(matrices()["diagonals"], "f16")
    assert native.RowProduct(rows)(x, 1).tobytes() == multiply(expected, x).tobytes()
    whole = sum(part.nbytes for part in (rows.values, rows.columns, rows.place, rows.unit))
    assert rows.nbytes < whole


def test_what_would_read_beyond_x_is_refused() -> None:
    rows = held(matrices()["uneven"], "f32")
    with pytest.raises(ValueError, match="a value for each column"):
        native.RowProduct(rows)(np.zeros(200, np.float32), 1)
    rows.columns[0, 0] = 60_000
    with pytest.raises(ValueError, match="a value for each column"):
        native.RowProduct(rows)(np.zeros(300, np.float32), 1)
    rows.place[0] = 300
    with pytest.raises(ValueError, match="places are rows"):
        native.RowProduct(rows)
    rows.start[1] = -1
    with pytest.raises(ValueError, match="segments rise"):
        native.RowProduct(rows)
