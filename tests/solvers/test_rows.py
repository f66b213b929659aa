"""Compressed rows in the solvers: 16 bits for values and columns, and the accuracy of double precision."""

from typing import Any

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from fewbits.errors import ArgumentError, DataError
from fewbits.solvers import CompressedRows, bicgstab, cg
from fewbits.tensor import format as read

HALF = "block(element=fp16,scale=e8m0,size=channel)"
INTEGER = "block(element=int(16,coding=symmetric),scale=fp32,size=channel)"


def laplacian(side: int = 40) -> Any:
    line = sp.diags([-1.0, 2.0, -1.0], [-1, 0, 1], shape=(side, side))
    one = sp.identity(side)
    weights = sp.diags(np.exp(np.random.default_rng(0).standard_normal(side**2) / 4))
    return (
        weights @ (sp.kron(line, one) + sp.kron(one, line) + 0.05 * sp.identity(side**2)) @ weights
    ).tocsr()


@pytest.mark.parametrize(
    ("matrix", "error"), [("fp32", 1e-6), (HALF, 1e-3), (INTEGER, 1e-3), ("mxfp8_e4m3", 0.1)]
)
def test_products_are_those_of_the_matrix_rounded(matrix: str, error: float) -> None:
    a = laplacian()
    rows = CompressedRows(a)
    v = torch.randn(a.shape[0], generator=torch.Generator().manual_seed(0))
    found = rows.rounded(None if matrix == "fp32" else read(matrix))(v).numpy()
    size = abs(a) @ np.abs(v.numpy())
    assert (np.abs(found - a @ v.numpy()) <= error * size).all()
    assert np.array_equal(rows.exact(v.double()).numpy(), a @ v.double().numpy())


def test_sixteen_bits_take_a_third_of_the_bytes() -> None:
    a = laplacian()
    double = a.data.nbytes + a.indices.nbytes + a.indptr.nbytes
    assert CompressedRows(a).compressed(read(HALF)).nbytes < 0.5 * double  # short rows: pointers weigh


@pytest.mark.parametrize(
    "precision", ["auto", "scaled_fp16", "site_int16", f"{HALF}/quda_half", "single", "double"]
)
def test_solvers_reach_the_true_residual(precision: str) -> None:
    a = laplacian()
    b = np.random.default_rng(0).standard_normal(a.shape[0])
    for solver in (cg, bicgstab):
        found = solver(CompressedRows(a, symmetric=True), b, precision=precision)
        assert found.converged
        assert np.linalg.norm(b - a @ found.x) <= 1.0001e-10 * np.linalg.norm(b)
        double = solver(a, b, precision="double")
        assert found.iterations <= (1.3 if solver is cg else 2) * double.iterations


def test_bad_input_is_refused() -> None:
    with pytest.raises(ArgumentError, match="dense"):
        CompressedRows(np.eye(3))
    with pytest.raises(ArgumentError, match="square"):
        CompressedRows(sp.csr_array(np.ones((2, 3))))
    with pytest.raises(DataError, match="NaN"):
        CompressedRows(sp.csr_array(np.diag([1.0, np.nan])))
