"""Sizes and times of pruned tensors as they are stored."""

from typing import Any

import pytest
import torch

import fewbits as fb
from fewbits.compare.sparse_products import sparse_products
from fewbits.errors import DataError
from fewbits.records import PrunedTensor, PruneReport
from fewbits.sparsity import mask


def pruned(**tensors: tuple[torch.Tensor, int]) -> tuple[dict[str, torch.Tensor], PruneReport]:
    weights = {name: w * mask(w, "2:4", axis=axis) for name, (w, axis) in tensors.items()}
    about = tuple(PrunedTensor(n, tuple(w.shape), axis, 0.5, 0.7) for n, (w, axis) in tensors.items())
    return weights, PruneReport("2:4", about, ())


@pytest.mark.parametrize(
    ("name", "bits"), [("bf16", 16), ("fp16", 16), ("mxfp8_e4m3", 8.25), ("mxfp4", 4.25)]
)
def test_a_compressed_tensor_takes_half_of_its_codes_and_one_bit_more(name: str, bits: Any) -> None:
    weights, report = pruned(w=(torch.randn(64, 512), 1))
    (found,) = sparse_products(weights, report, fb.format(name))
    assert (found.tensor, found.format) == ("w", name)
    assert found.dense_bytes == 64 * 512 * bits / 8
    element, scale = int(bits), bits - int(bits)
    assert found.sparse_bytes == 64 * 512 * (element / 2 + 1 + scale) / 8
    assert found.dense_seconds > 0 < found.sparse_seconds


def test_every_kind_of_tensor_is_the_matrix_of_its_product() -> None:
    weights, report = pruned(
        kernel=(torch.randn(6, 8, 3, 3), 1),
        inputs_first=(torch.randn(40, 24), 0),
        experts=(torch.randn(3, 8, 64), 2),
    )
    found = sparse_products(weights, report, fb.format("bf16"))
    assert [p.dense_bytes for p in found] == [2 * w.numel() for w in weights.values()]


def test_a_tensor_that_is_not_sparse_is_refused() -> None:
    _, report = pruned(w=(torch.randn(8, 64), 1))
    with pytest.raises(DataError):
        sparse_products({"w": torch.randn(8, 64)}, report, fb.format("bf16"))
