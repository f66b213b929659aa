"""Kernels are called without torch's dispatcher exactly where it would call nothing else."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import fewbits as fb
from fewbits.kernels.ops.direct import is_ordinary, is_recorded

X = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))


class Seen(TorchDispatchMode):
    """Notes the operators that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


class SeenFunctions(TorchFunctionMode):
    """Notes the functions that are called."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    "around",
    [
        nullcontext,
        torch.no_grad,
        torch.inference_mode,
        partial(torch.autocast, "cpu", torch.bfloat16),
    ],
    ids=["plain", "no_grad", "inference_mode", "autocast"],
)
def test_an_ordinary_tensor_needs_no_dispatcher(around: Callable[[], AbstractContextManager[Any]]) -> None:
    with around():
        inside = torch.randn(4, 64)
        for x in (X, X.t(), X[::2], X.bfloat16(), inside, torch.nn.Parameter(X)):
            assert is_ordinary(x)
        assert is_ordinary(X, inside)


def others() -> Iterator[tuple[str, torch.Tensor]]:
    """Yield tensors that are not ordinary, with what they are."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    yield "meta", X.to("meta")
    yield "sparse", X.to_sparse()
    yield "negated", torch.complex(X, X).conj().imag
    yield "of zeros", torch._efficientzerotensor((4, 64))
    yield "functional", torch._to_functional_tensor(X)
    yield "fake", FakeTensorMode().from_tensor(X)
    yield "packed", fb.quantize(X, "mxfp4")


@pytest.mark.parametrize("x", [x for _, x in others()], ids=[name for name, _ in others()])
def test_any_other_tensor_needs_it(x: torch.Tensor) -> None:
    assert not is_ordinary(x)
    assert not is_ordinary(X, x)


def test_a_transform_a_mode_a_tracer_and_a_profiler_need_it() -> None:
    found: list[bool] = []

    def note(x: torch.Tensor) -> torch.Tensor:
        found.extend((is_ordinary(x), is_ordinary(X)))
        return x * 1

    torch.vmap(note)(X)
    torch.func.grad(lambda x: note(x).sum())(X)
    torch.func.functionalize(note)(X)
    make_fx(note)(X)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of tracing, in favour of torch.compile
        torch.jit.trace(note, X, check_trace=False)
    for around in (Seen(), SeenFunctions(), torch.profiler.profile(), torch.device("meta")):
        with around:
            note(X)
    assert not any(found)
    assert len(found) >= 18
    note(X)
    assert found[-2:] == [True, True]


def test_modes_and_the_profiler_see_the_operators() -> None:
    def call() -> None:
        fb.quantize(fb.fake_quantize(X, "mxfp4"), "mxfp4").dequantize()

    with Seen() as seen, SeenFunctions() as functions:
        call()
    with torch.profiler.profile() as profile:
        call()
    for name in ("fake_quantize", "quantize", "dequantize"):
        assert f"fewbits::{name}" in seen.names
        assert any(name in called for called in functions.names)
        assert f"fewbits::{name}" in {event.name for event in profile.events()}


def test_what_autograd_notes_is_recorded() -> None:
    leaf = X.clone().requires_grad_()
    assert is_recorded(leaf)
    assert not is_recorded(X)
    with torch.no_grad():
        assert not is_recorded(leaf)
    with forward_ad.dual_level():
        assert is_recorded(X)
    assert fb.fake_quantize(leaf, "mxfp4").requires_grad
    assert not fb.fake_quantize(leaf.detach(), "mxfp4").requires_grad


def test_results_are_those_of_the_operator() -> None:
    for x in (X, X.t(), X[1:, ::3], X.half(), X.bfloat16(), X.double(), X[:0], X[0, 0]):
        text = fb.format("mxfp4").grammar
        arguments = (max(x.ndim - 1, 0), text, fb.kernels.options(fb.format(text)).text, 0, None)
        direct, called = fb.fake_quantize(x, "mxfp4"), torch.ops.fewbits.fake_quantize(x, *arguments)
        assert torch.equal(direct, called)
        assert (direct.dtype, direct.stride()) == (called.dtype, called.stride())
        parts = [p for p in fb.quantize(x, "mxfp4").pieces if p is not None]
        for mine, theirs in zip(parts, torch.ops.fewbits.quantize(x, *arguments), strict=True):
            assert torch.equal(mine, theirs)


def test_a_tensor_at_an_odd_address_is_read() -> None:
    octets = torch.zeros(4 * 64 + 1, dtype=torch.uint8)
    odd = torch.frombuffer(octets.numpy()[1:], dtype=torch.float32)
    odd.copy_(X[0])
    assert odd.data_ptr() % 4
    assert torch.equal(fb.fake_quantize(odd, "nvfp4"), fb.fake_quantize(X[0], "nvfp4"))
    assert torch.equal(fb.quantize(odd, "nvfp4"), fb.quantize(X[0], "nvfp4"))


def test_memory_that_was_given_back_is_refused_by_the_kernels() -> None:
    q = fb.quantize(X, "mxfp4")
    q.codes.untyped_storage().resize_(0)
    with pytest.raises(TypeError):
        q.dequantize()
