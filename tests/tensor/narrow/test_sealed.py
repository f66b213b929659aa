"""Ways out of a packed tensor: each gives its values or a packed tensor again, or refuses in one sentence."""

import copy
import io
import multiprocessing
import os
import pickle
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

import fewbits as fb
from fewbits.errors import FewbitsError

Q = fb.NarrowTensor


def packed(name: str = "mxfp8_e4m3") -> Q:
    return fb.quantize(torch.randn(4, 64, generator=torch.Generator().manual_seed(0)), name)


REFUSED: dict[str, Callable[[Q], Any]] = {
    "from_dlpack": torch.from_dlpack,
    "np.from_dlpack": np.from_dlpack,
    "__dlpack__": lambda q: q.__dlpack__(),
    "__dlpack_device__": lambda q: q.__dlpack_device__(),
    "numpy": lambda q: q.numpy(),
    "numpy(force=True)": lambda q: q.numpy(force=True),
    "np.asarray": np.asarray,
    "np.array": lambda q: np.array(q, np.float64),
    "a ufunc": lambda q: np.add(q, 1),
    "np.copyto": lambda q: np.copyto(np.ones(q.shape, np.float32), q),
    "np.save": lambda q: np.save(io.BytesIO(), q),
    "tolist": lambda q: q.tolist(),
    "data_ptr": lambda q: q.data_ptr(),
    "storage": lambda q: q.storage(),
    "apply_": lambda q: q.apply_(abs),
    "map_": lambda q: q.map_(torch.ones(4, 64), max),
    "view(dtype)": lambda q: q.view(torch.uint8),
    "as_strided": lambda q: q.as_strided((2, 2), (1, 1)),
    "set_": lambda q: torch.empty(0).set_(q),
    "resize_": lambda q: q.resize_(2, 2),
    "to_sparse": lambda q: q.to_sparse(),
    "to_mkldnn": lambda q: q.to_mkldnn(),
    "pin_memory": lambda q: q.pin_memory(),
    "item": lambda q: fb.quantize(torch.ones(1), "fp8_e4m3").item(),
    "float": lambda q: float(fb.quantize(torch.ones(1), "fp8_e4m3")),
    "copy_ out of it": lambda q: torch.ones(4, 64).copy_(q),
    "torch.save": lambda q: torch.save(q, io.BytesIO()),
    "pickle": pickle.dumps,
    "safetensors": lambda q: safetensors.torch.save({"a": q}),
    "cat": lambda q: torch.cat([q, q]),
    "sum": lambda q: q.sum(),
}
KEPT: dict[str, Callable[[Q], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "clone": lambda q: q.clone(),
    "data": lambda q: q.data,
    "detach": lambda q: q.detach(),
    "as_tensor": torch.as_tensor,
    "asarray": torch.asarray,
    "torch.Tensor": torch.Tensor,
    "as_subclass": lambda q: q.as_subclass(torch.Tensor),
    "cpu": lambda q: q.cpu(),
    "share_memory_": lambda q: q.share_memory_(),
}
WITHOUT_ASKING: dict[str, Callable[[Q], Any]] = {  # functions in C that never see the class
    "to_dlpack": torch.utils.dlpack.to_dlpack,
    "a pointer to the storage": lambda q: q.untyped_storage().data_ptr(),
    "frombuffer": lambda q: torch.frombuffer(q, dtype=torch.uint8),
    "from_numpy": torch.from_numpy,
    "memoryview": memoryview,
}


@pytest.mark.parametrize("name", ["mxfp8_e4m3", "mx6", "nvfp4", "fp16"])
@pytest.mark.parametrize("way", REFUSED)
def test_what_would_read_codes_as_values_refuses_in_one_line(way: str, name: str) -> None:
    with pytest.raises(FewbitsError, match="dequantize") as refused:
        REFUSED[way](packed(name))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("way", WITHOUT_ASKING)
def test_what_does_not_ask_the_class_is_refused_by_torch(way: str) -> None:
    with pytest.raises((RuntimeError, TypeError, ValueError)):
        WITHOUT_ASKING[way](packed())


def test_the_storage_that_torch_sees_is_empty_and_can_be_shared() -> None:
    storage = packed().untyped_storage()
    assert bytes(storage) == b""
    assert storage.share_memory_().nbytes() == 0


@pytest.mark.parametrize("way", KEPT)
def test_what_keeps_the_codes_keeps_the_values(way: str) -> None:
    q = packed("nvfp4")
    kept = KEPT[way](q)
    assert isinstance(kept, Q)
    assert torch.equal(kept.dequantize(), q.dequantize())


def test_no_way_out_of_numpy_or_dlpack_is_left_that_the_class_inherits() -> None:
    for name in ("__array__", "__dlpack__", "__dlpack_device__", "numpy", "tolist", "data_ptr", "storage"):
        assert getattr(Q, name) is not getattr(torch.Tensor, name)
    assert not hasattr(packed(), "__array_interface__")


def test_shared_memory_holds_the_packed_parts() -> None:
    q = packed("mx6")
    assert not q.is_shared()
    q.share_memory_()
    assert q.is_shared()
    assert all(part.is_shared() for part in q.pieces if part is not None)
    model = torch.nn.Linear(64, 4)
    model.weight = torch.nn.Parameter(packed(), requires_grad=False)
    model.share_memory()
    assert model.weight.is_shared()


def _answer(here: Connection) -> None:
    """Send back what comes, and the values that the child sees; zero the codes that it was given."""
    q = here.recv()
    here.send((q, q.dequantize(), isinstance(q, torch.nn.Parameter)))
    here.recv()
    q.codes.zero_()
    here.send("done")


@pytest.mark.parametrize(
    "method",
    [
        pytest.param("fork", marks=pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")),
        pytest.param("spawn", marks=pytest.mark.slow),
    ],
)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("name", ["mx6", "nvfp4"])
def test_another_process_gets_the_same_codes_in_shared_memory(name: str, method: str) -> None:
    context = multiprocessing.get_context(method)
    here, there = context.Pipe()
    child = context.Process(target=_answer, args=(there,))
    child.start()
    try:
        q = torch.nn.Parameter(packed(name), requires_grad=False)
        here.send(q)
        assert here.poll(60)
        back, values, is_parameter = here.recv()
        assert is_parameter
        assert torch.equal(back, q)
        assert torch.equal(values, q.dequantize())
        here.send("zero them")
        assert here.poll(60)
        assert here.recv() == "done"
        assert not q.codes.any()  # one memory, seen by both
    finally:
        child.join(60)
        child.kill()


def test_a_sparse_tensor_and_a_parameter_are_sent_whole() -> None:
    here, there = multiprocessing.Pipe()
    x = torch.randn(4, 64)
    x[:, ::2] = 0
    for q in (fb.quantize(x, "mxfp4", sparsity="2:4"), torch.nn.Parameter(packed(), requires_grad=False)):
        there.send(q)
        back = here.recv()
        assert torch.equal(back, q)
        assert isinstance(back, torch.nn.Parameter) == isinstance(q, torch.nn.Parameter)
        assert torch.equal(back.dequantize(), q.dequantize())
