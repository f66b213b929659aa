"""Calls that go straight to the compiled kernels: to the bits of all others, where nothing looks on."""

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo import compiled_autograd
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import fewbits as fb
from fewbits import kernels
from fewbits.errors import ArgumentError, DataError, FewbitsError
from fewbits.kernels.arrays import lent
from fewbits.kernels.ops import at_once
from tests import cases

ROUNDED = "block(element=int(8,coding=symmetric),scale=fp32,size=32)"
CHOICES = ("nearest_even", "floor", None, None, None, 16)
X = torch.randn(6, 64, generator=torch.Generator().manual_seed(0))
W = fb.quantize(torch.randn(5, 64, generator=torch.Generator().manual_seed(1)), "mxfp4")


class Subclass(torch.Tensor):
    """A tensor whose functions of torch see its type."""


class Modes(TorchDispatchMode):
    """A mode that changes nothing."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    """A mode of torch functions that changes nothing."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@contextmanager
def forced(name: str) -> Iterator[None]:
    kernels.force_backend(name)
    try:
        yield
    finally:
        kernels.force_backend(None)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the list to which each function here adds its name when it gave a result."""
    done: list[str] = []

    def watched(name: str) -> None:
        real = getattr(at_once, name)

        def call(*args: Any) -> Any:
            found = real(*args)
            if found is not None:
                done.append(name)
            return found

        monkeypatch.setattr(at_once, name, call)

    for name in ("fake_quantize", "quantize", "dequantize", "gemv"):
        watched(name)
    return done


def all_calls(x: torch.Tensor) -> list[Any]:
    """Return what each of the calls gives for ``x``, (6, 64)."""
    q = fb.quantize(x, "mxfp4")
    products = [x @ W.t(), fb.matvec(W, x), torch.nn.functional.linear(x, W)]
    return [fb.fake_quantize(x, "mxfp4"), *(p for p in q.pieces if p is not None), q.dequantize(), *products]


@pytest.mark.parametrize(
    "around",
    [nullcontext, torch.no_grad, torch.inference_mode],
    ids=["plain", "no_grad", "inference_mode"],
)
def test_plain_calls_go_straight_to_the_kernels(
    around: Callable[[], AbstractContextManager[Any]], calls: list[str]
) -> None:
    with around():
        all_calls(X)
        all_calls(torch.nn.Parameter(X, requires_grad=False))
    assert calls == ["quantize", *["gemv"] * 3, "fake_quantize", "dequantize"] * 2


def test_a_parameter_is_rounded_and_overwritten_as_its_tensor_is() -> None:
    w, q, wide = torch.nn.Linear(64, 6).weight, fb.quantize(X, "mxfp4"), torch.nn.Parameter(X.double())
    with torch.no_grad():
        assert torch.equal(
            fb.fake_quantize(w, "mxfp4", out=torch.empty_like(w)), fb.fake_quantize(w, "mxfp4")
        )
        assert fb.dequantize(q, out=w) is w
        assert torch.equal(w, q.dequantize())
        assert fb.fake_quantize(X.double() / 3, "mxfp4", out=wide) is wide
        assert torch.equal(wide, fb.fake_quantize(X.double() / 3, "mxfp4"))
    with pytest.raises(ArgumentError, match="requires a gradient"):
        fb.dequantize(q, out=w)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # torch's, when it first sees a dual
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_place_does_not_lose_a_tangent_in_silence(dtype: torch.dtype) -> None:
    x, ones = X.to(dtype), torch.ones_like(X, dtype=dtype)
    q = fb.quantize(x, "mxfp4")
    with forward_ad.dual_level():
        plain, dual = torch.empty_like(x), forward_ad.make_dual(torch.empty_like(x), ones)
        for given, out in ((forward_ad.make_dual(x, ones), plain), (x, dual)):
            with pytest.raises(ArgumentError, match="a tensor that has a tangent, which it cannot follow"):
                fb.fake_quantize(given, "mxfp4", out=out)
        with pytest.raises(ArgumentError, match="a tensor that has a tangent"):
            fb.dequantize(q, out=dual)
        assert torch.equal(fb.fake_quantize(x, "mxfp4", out=plain), fb.fake_quantize(x, "mxfp4"))
        assert torch.equal(fb.dequantize(q, out=plain), q.dequantize())


@pytest.mark.parametrize("rounding", ["nearest_even", "up"])
def test_what_a_refused_result_overwrote_is_known_to_autograd(rounding: str) -> None:
    kept, w = torch.ones_like(X), torch.ones_like(X, requires_grad=True)
    y = (w * kept).sum()
    bad = X.clone()
    bad[3, 3] = torch.nan
    with pytest.raises(DataError, match="nonfinite='raise' refuses"):
        fb.fake_quantize(bad, "int8", rounding=rounding, out=kept)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()
    q = fb.quantize(X, "int8")
    z = (w @ q.t()).sum()
    with pytest.raises(DataError, match="nonfinite='raise' refuses"):
        fb.quantize(bad, "int8", rounding=rounding, out=q)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        z.backward()


@pytest.mark.parametrize("around", [nullcontext, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_so_do_plain_calls_whose_result_has_a_place(
    dtype: torch.dtype, around: Callable[[], AbstractContextManager[Any]], calls: list[str]
) -> None:
    x = X.to(dtype)
    rounded, packed = fb.fake_quantize(x, "mxfp4"), fb.quantize(x, "mxfp4")
    calls.clear()
    with around():
        y, values = torch.full_like(x, torch.nan), torch.full_like(x, torch.nan)
        q = fb.quantize(torch.zeros_like(x), "mxfp4")
        assert fb.fake_quantize(x, "mxfp4", out=y) is y
        assert fb.quantize(x, "mxfp4", out=q) is q
        assert fb.dequantize(q, out=values) is values
        assert calls == ["quantize", "fake_quantize", "quantize", "dequantize"]
        assert torch.equal(y, rounded)
        assert torch.equal(values, rounded)
        for mine, theirs in zip(q.pieces, packed.pieces, strict=True):
            assert mine is theirs or torch.equal(mine, theirs)
    with pytest.raises(DataError, match="nonfinite='raise' refuses them for int8"):
        fb.fake_quantize(torch.full_like(x, torch.inf), "int8", out=torch.empty_like(x))


def test_places_of_another_kind_are_refused_as_ever(calls: list[str]) -> None:
    half = torch.empty_like(X, dtype=torch.float16)
    turned, subclass = torch.empty(64, 6), torch.empty_like(X).as_subclass(Subclass)
    for out in (subclass, X.numpy().copy(), turned, half):
        with pytest.raises(ArgumentError, match="out is not like the result"):
            fb.fake_quantize(X, "mxfp4", out=out)
        with pytest.raises(ArgumentError, match="out is not like the result"):
            fb.dequantize(W, out=out)
    assert calls == []
    q = fb.quantize(X.numpy(), "mxfp4")  # whose values are an array's
    with pytest.raises(ArgumentError, match="out is not like the result"):
        fb.dequantize(q, out=torch.empty_like(X))
    with pytest.raises(ArgumentError, match="as an earlier call returned it"):
        fb.quantize(X, "mxfp4", out=q)
    with pytest.raises(ArgumentError, match="as an earlier call returned it"):
        fb.quantize(X, "mxfp4", out=fb.quantize(X, "mxfp4").t())
    pruned = X * torch.tensor([1.0, 0.0, 1.0, 0.0]).repeat(16)
    sparse = fb.quantize(pruned, "mxfp4", sparsity="2:4")
    with pytest.raises(ArgumentError, match="as an earlier call returned it"):
        fb.quantize(pruned, "mxfp4", out=sparse)
    assert torch.equal(fb.dequantize(sparse, out=torch.empty_like(X)), fb.fake_quantize(pruned, "mxfp4"))
    requires = torch.empty_like(X, requires_grad=True)
    with pytest.raises(ArgumentError, match="requires a gradient"):
        fb.dequantize(fb.quantize(X, "mxfp4"), out=requires)


def test_a_place_that_shares_a_byte_with_the_codes_is_refused_and_one_beside_them_is_not() -> None:
    q, memory = fb.quantize(X, "fp8_e4m3"), torch.zeros(8192, dtype=torch.uint8)
    first, end = 4096, 4096 + q.codes.numel()
    codes = memory[first:end].view(q.codes.shape)
    codes.copy_(q.codes)
    lent = fb.NarrowTensor.from_parts(
        codes, None, None, None, format=q.format, shape=(6, 64), axis=1, dtype=torch.float32
    )

    def place(at: int) -> torch.Tensor:
        return memory[at : at + X.nbytes].view(torch.float32).view(6, 64)

    for at in (first - X.nbytes + 4, first, end - 4):
        with pytest.raises(ArgumentError, match="out overlaps what is read"):
            fb.dequantize(lent, out=place(at))
    for at in (first - X.nbytes, end):
        assert torch.equal(fb.dequantize(lent, out=place(at)), q.dequantize())


@pytest.mark.parametrize("rounding", ["nearest_even", "up"])  # at once, and the long way
@pytest.mark.parametrize("family", ["tensor", "array"])
def test_values_that_share_a_byte_with_the_codes_are_not_packed_there(rounding: str, family: str) -> None:
    memory = torch.zeros(8192, dtype=torch.uint8)
    given: Any = X if family == "tensor" else X.numpy()
    q = fb.quantize(given, "fp8_e4m3")
    first, end = 4096, 4096 + q.codes.numel()
    q.codes = memory[first:end].view(q.codes.shape)

    def place(at: int) -> Any:
        x = memory[at : at + X.nbytes].view(torch.float32).view(6, 64)
        return x if family == "tensor" else x.numpy()

    for at in (first - X.nbytes + 4, first, end - 4):
        with pytest.raises(ArgumentError, match="out overlaps what is read"):
            fb.quantize(place(at), "fp8_e4m3", rounding=rounding, out=q)
    for at in (first - X.nbytes, end):
        x = place(at)
        x[...] = given
        fb.quantize(x, "fp8_e4m3", rounding=rounding, out=q)
        assert torch.equal(q.codes, fb.quantize(given, "fp8_e4m3", rounding=rounding).codes)


@pytest.mark.parametrize(
    "around",
    [Modes, Functions, torch.profiler.profile, partial(forced, "portable")],
    ids=["modes", "functions", "profiler", "forced"],
)
def test_what_watches_or_forces_sees_every_call(
    around: Callable[[], AbstractContextManager[Any]], calls: list[str]
) -> None:
    expected = all_calls(X)
    calls.clear()
    with around():
        found = all_calls(X)
    assert set(calls) <= {"gemv"}  # within an operation of torch, which they saw
    calls.clear()
    with around():
        fb.matvec(W, X)
    assert calls == []
    for mine, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, theirs)


def others() -> Iterator[tuple[str, torch.Tensor]]:
    """Yield tensors that kernels cannot read as they lie, or that others than the kernels are to see."""
    yield "subclass", X.as_subclass(Subclass)
    yield "float64", X.double()
    yield "transposed", X.t().contiguous().t()
    yield "every second", torch.cat([X, X], 1)[:, ::2]
    yield "negated", torch.complex(X, X).conj().imag
    odd = torch.zeros(4 * X.numel() + 1, dtype=torch.uint8)
    yield "odd address", torch.frombuffer(odd.numpy()[1:], dtype=torch.float32).view(6, 64)
    yield "functional", torch._to_functional_tensor(X)


@pytest.mark.parametrize("x", [x for _, x in others()], ids=[name for name, _ in others()])
def test_any_other_tensor_goes_the_long_way(x: torch.Tensor, calls: list[str]) -> None:
    y = fb.fake_quantize(x, "mxfp4")
    assert calls == []
    if not torch._is_functional_tensor(x):
        assert torch.equal(y.float().as_subclass(torch.Tensor), fb.fake_quantize(x.float().clone(), "mxfp4"))
    fb.quantize(x, "mxfp4")
    assert "quantize" not in calls
    if x.dtype == torch.float32 and not torch._is_functional_tensor(x):
        calls.clear()
        torch.testing.assert_close(fb.matvec(W, x).as_subclass(torch.Tensor), x.clone() @ W.dequantize().t())
        assert calls[:-1] == []  # the dequantized W of the comparison


def test_transforms_and_tracers_see_every_call(calls: list[str]) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    assert torch.vmap(lambda row: fb.fake_quantize(row, "mxfp4"))(X).shape == X.shape
    torch.func.grad(lambda x: fb.fake_quantize(x, "mxfp4").sum())(X)
    torch.func.functionalize(lambda x: fb.fake_quantize(x, "mxfp4"))(X)
    fake = FakeTensorMode().from_tensor(X)
    assert fb.fake_quantize(fake, "mxfp4").shape == X.shape
    assert fb.fake_quantize(X.to("meta"), "mxfp4").is_meta
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of tracing, in favour of torch.compile
        traced = torch.jit.trace(lambda x: fb.fake_quantize(x, "mxfp4"), X, check_trace=False)
    assert "fewbits::fake_quantize" in str(traced.graph)
    assert calls == []


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # torch's, when it first sees a dual
def test_forward_mode_sees_every_call(calls: list[str]) -> None:
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(X, torch.ones_like(X))
        rounded = forward_ad.unpack_dual(fb.fake_quantize(dual, "mxfp4"))
        product = forward_ad.unpack_dual(dual @ W.t())
    assert torch.equal(rounded.tangent, torch.ones_like(X))
    torch.testing.assert_close(product.tangent, torch.ones_like(X) @ W.dequantize().t())
    assert set(calls) <= {"gemv", "dequantize"}  # of the tangent, and of W


def test_a_compiled_function_holds_the_operators(calls: list[str]) -> None:
    seen: list[str] = []

    def backend(graph: torch.fx.GraphModule, _: Any) -> Any:
        seen.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    fb.fake_quantize(X, "mxfp4")
    calls.clear()
    compiled = torch.compile(lambda x: fb.fake_quantize(x, "mxfp4"), backend=backend, fullgraph=True)
    assert torch.equal(compiled(X), fb.fake_quantize(X, "mxfp4"))
    assert any("fake_quantize" in name for name in seen)
    assert calls == ["fake_quantize"]  # of the comparison


def test_a_recorded_rounding_passes_gradients_straight_through(calls: list[str]) -> None:
    leaf = X.clone().requires_grad_()
    y = fb.fake_quantize(leaf, "mxfp4")
    assert calls == ["fake_quantize"]
    arguments = (1, fb.format("mxfp4").grammar, kernels.options(fb.format("mxfp4")).text, 0, None)
    operator = torch.ops.fewbits.fake_quantize(leaf, *arguments)
    assert torch.equal(y, operator)
    assert y.grad_fn is not None
    assert (y._is_view(), y.is_leaf, y.requires_grad) == (False, False, True)
    weights = torch.arange(X.numel(), dtype=torch.float32).view_as(X)
    (first,) = torch.autograd.grad((y**3).sum(), leaf, create_graph=True)
    assert torch.equal(first, 3 * y**2)
    (second,) = torch.autograd.grad((first * weights).sum(), leaf)
    assert torch.equal(second, 6 * y.detach() * weights)
    batch = torch.eye(3).repeat(1, 2)[:, :, None].expand(3, 6, 64)
    again = fb.fake_quantize(leaf, "mxfp4")
    (many,) = torch.autograd.grad(again, leaf, batch, is_grads_batched=True)
    assert torch.equal(many, batch)
    with torch.no_grad():
        assert not fb.fake_quantize(leaf, "mxfp4").requires_grad
    assert not fb.fake_quantize(X, "mxfp4").requires_grad


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # asked for by torch's own tracer
def test_a_compiler_of_backward_passes_takes_a_recorded_rounding(calls: list[str]) -> None:
    leaf = X.clone().requires_grad_()
    y = fb.fake_quantize(leaf, "mxfp4")
    assert calls == ["fake_quantize"]
    with compiled_autograd._enable(torch.compile(backend="eager")):
        (y * y).sum().backward()
    assert leaf.grad is not None
    assert torch.equal(leaf.grad, 2 * y.detach())


@pytest.mark.parametrize("made", [False, True], ids=["tensor", "inference tensor"])
@pytest.mark.parametrize("used", [False, True], ids=["outside", "in inference mode"])
def test_inference_mode_makes_what_it_makes_elsewhere(made: bool, used: bool, calls: list[str]) -> None:
    with torch.inference_mode(made):
        x = X.clone()
    kinds = []
    for backend in (None, "portable"):
        kernels.force_backend(backend)
        with torch.inference_mode(used):
            q = fb.quantize(x, "mxfp4")
            found = (fb.fake_quantize(x, "mxfp4"), q, *pieces(q), q.dequantize(), fb.matvec(W, x))
        kinds.append([y.is_inference() for y in found])
        kernels.force_backend(None)
    assert kinds[0] == kinds[1]
    assert {"fake_quantize", "quantize", "dequantize"} <= set(calls)


def test_a_thread_that_flushes_subnormals_gets_the_bits_of_others(calls: list[str]) -> None:
    x = X * 2.0**-130
    for name in ("mxfp8_e5m2", "bf16", "nvfp4"):
        results = []
        for flush in (False, True):
            torch.set_flush_denormal(flush)
            try:
                q = fb.quantize(x, name)
                values = torch.from_numpy(fb.fake_quantize(x.numpy(), name))
                results.append([fb.fake_quantize(x, name), values, q.dequantize(), *pieces(q)])
            finally:
                torch.set_flush_denormal(False)
        assert same(*results)
    assert {"fake_quantize", "quantize", "dequantize"} <= set(calls)


def test_a_recorded_product_has_its_gradient(calls: list[str]) -> None:
    for call in (lambda x: x @ W.t(), lambda x: fb.matvec(W, x), lambda x: fb.matvec(W, x[0])):
        leaf = X.clone().requires_grad_()
        call(leaf).sum().backward()
        assert leaf.grad is not None
        assert leaf.grad.count_nonzero() > 0
    assert "gemv" not in calls


def test_autocast_decides_about_an_operator_of_python() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        found = X @ W.t()
    assert torch.equal(found, X.bfloat16() @ W.to(torch.bfloat16).t())
    assert found.dtype == torch.bfloat16


SHAPES = ((3, 40), (1, 1), (2, 3, 64), (5,), ())


@pytest.mark.parametrize("fmt", cases.FORMATS, ids=str)
def test_every_format_has_the_bits_of_plain_operations(fmt: cases.Format, calls: list[str]) -> None:
    for shape in SHAPES:
        for dtype in (torch.float32, torch.float16, torch.bfloat16):
            x = (torch.randn(shape, generator=torch.Generator().manual_seed(2)) * 4).to(dtype)
            for axis in {-1, 0}:
                found = [fb.fake_quantize(x, fmt, axis=axis), *pieces(fb.quantize(x, fmt, axis=axis))]
                with forced("portable"):
                    wanted = [fb.fake_quantize(x, fmt, axis=axis), *pieces(fb.quantize(x, fmt, axis=axis))]
                assert same(found, wanted), (shape, dtype, axis)
                if dtype == torch.bfloat16:
                    continue
                values, q = (
                    fb.fake_quantize(x.numpy(), fmt, axis=axis),
                    fb.quantize(x.numpy(), fmt, axis=axis),
                )
                assert type(values) is np.ndarray
                assert values.shape == shape
                assert same([torch.from_numpy(np.asarray(values)), *pieces(q)], wanted), (shape, dtype, axis)
                back = torch.from_numpy(np.asarray(q.dequantize()))
                assert same([back], [fb.quantize(x, fmt, axis=axis).dequantize()])
    assert {"fake_quantize", "quantize"} <= set(calls)


def pieces(q: fb.NarrowTensor) -> list[torch.Tensor]:
    return [p for p in q.pieces if p is not None]


def same(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> bool:
    """Return whether tensors have the same dtypes, shapes and bytes."""
    return all(
        a.dtype == b.dtype
        and a.shape == b.shape
        and a.contiguous().flatten().view(torch.uint8).equal(b.contiguous().flatten().view(torch.uint8))
        for a, b in zip(found, wanted, strict=True)
    )


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_what_is_not_finite_is_treated_as_elsewhere(bad: float) -> None:
    x = X.clone()
    x[2, 3] = bad
    for name, nonfinite in (
        ("mxfp4", None),
        ("mxfp8_e4m3", "element"),
        ("mxfp4", "saturate"),
        ("nvfp4", None),
    ):
        for _ in range(2):
            for given in (x, x.numpy()):
                try:
                    found = torch.as_tensor(fb.fake_quantize(given, name, nonfinite=nonfinite))
                except DataError:
                    with forced("portable"), pytest.raises(DataError):
                        fb.fake_quantize(x, name, nonfinite=nonfinite)
                    with pytest.raises(DataError):
                        fb.quantize(given, name, nonfinite=nonfinite)
                    continue
                with forced("portable"):
                    wanted = fb.fake_quantize(x, name, nonfinite=nonfinite)
                assert torch.equal(found.view(torch.int32), wanted.view(torch.int32))
    for given in (x, x.numpy()):
        for _ in range(2):
            with pytest.raises(DataError, match="nonfinite"):
                fb.fake_quantize(given, "mxfp4", nonfinite="raise")
            with pytest.raises(DataError, match="nonfinite"):
                fb.quantize(given, "mxfp4", nonfinite="raise")


WRONG: tuple[tuple[dict[str, Any], str], ...] = (
    ({"axis": True}, "axis=True is not an integer"),
    ({"axis": 1.0}, r"axis=1\.0 is not an integer"),
    ({"axis": 2}, "axis=2 is out of range"),
    ({"axis": -3}, "axis=-3 is out of range"),
    ({"random_bits": 16.0}, r"random_bits=16\.0 is not one of"),
    ({"random_bits": 32}, "which draws nothing"),
    ({"rounding": "odd"}, "rounding='odd' is not one of"),
    ({"rounding": ["up"]}, r"rounding=\['up'\] is not one of"),
    ({"rounding": "stochastic"}, "needs a seed"),
    ({"scale_rule": "twn"}, "ternary"),
    ({"overflow": "nan"}, "has no NaN"),
    ({"generator": 3}, "draws nothing"),
    ({"amax": 1.0}, "only a scale of a whole tensor"),
)


@pytest.mark.parametrize(("given", "message"), WRONG, ids=[str(given) for given, _ in WRONG])
def test_a_wrong_argument_that_equals_a_right_one_is_refused_each_time(
    given: dict[str, Any], message: str
) -> None:
    for function in (fb.fake_quantize, fb.quantize):
        for x in (X, X.numpy()):
            for axis in (1, -1):
                function(x, "mxfp4", axis=axis)
            for _ in range(2):
                with pytest.raises(ArgumentError, match=message):
                    function(x, "mxfp4", **given)
    with pytest.raises(FewbitsError, match="mxfp3"):
        fb.fake_quantize(X, "mxfp3")


def test_arrays_of_other_kinds_go_the_long_way(monkeypatch: pytest.MonkeyPatch) -> None:
    x = X.numpy()
    other = [x.astype(np.float64), x.astype(">f4"), np.asfortranarray(x), x[:, ::2], x.view(np.recarray)]
    wanted = [fb.fake_quantize(np.ascontiguousarray(y, dtype=np.float32), "mxfp4") for y in other]
    taken = lent.rounding("mxfp4", -1, x.shape, CHOICES)
    assert taken is not None
    assert lent.lends(x)
    assert lent.rounding("int8_tensor", -1, x.shape, (*CHOICES[:3], "saturate", *CHOICES[4:])) is None
    for y, expected in zip(other, wanted, strict=True):
        assert not lent.lends(y)
        found = fb.fake_quantize(y, "mxfp4")
        assert found.dtype == y.dtype
        assert np.array_equal(found, expected)


@pytest.mark.parametrize("name", ["mxfp4", "int8_tensor", "fp8_e4m3"])
def test_draws_go_straight_to_the_kernels_and_advance_a_generator_once(name: str, calls: list[str]) -> None:
    how: dict[str, Any] = {"rounding": "stochastic"}
    x, wide = X.numpy(), X.double()  # other arrays go the long way, to the same bits
    for seed in (1, np.int64(2), 2**63 - 1):
        expected = fb.fake_quantize(wide, name, generator=seed, **how).float()
        place, packed = torch.empty_like(X), fb.quantize(X, name)
        calls.clear()
        results = [
            fb.fake_quantize(X, name, generator=seed, **how),
            fb.fake_quantize(X, name, generator=seed, out=place, **how),
            torch.from_numpy(fb.fake_quantize(x, name, generator=seed, **how)),
            torch.from_numpy(fb.fake_quantize(x, name, generator=seed, out=np.empty_like(x), **how)),
            fb.quantize(X, name, generator=seed, **how).dequantize(),
            fb.quantize(X, name, generator=seed, out=packed, **how).dequantize(),
        ]
        assert all(torch.equal(y, expected) for y in results)
        assert calls == ["fake_quantize"] * 2 + ["quantize", "dequantize"] * 2
    assert not torch.equal(expected, fb.fake_quantize(X, name, generator=1, **how))
    seeds = np.random.default_rng(5), torch.Generator().manual_seed(5)
    again = np.random.default_rng(5), torch.Generator().manual_seed(5)
    for drawn, second in zip(seeds, again, strict=True):
        for _ in range(3):
            quick, slow = (
                fb.fake_quantize(y, name, generator=g, **how) for y, g in ((X, drawn), (wide, second))
            )
            assert torch.equal(quick, slow.float())


def test_a_call_that_draws_is_refused_before_anything_is_overwritten() -> None:
    drawn, place = np.random.default_rng(5), X.clone()
    for given, message in (
        ({"rounding": "stochastic"}, "needs a seed"),
        ({"rounding": "stochastic", "generator": -1}, "needs a seed"),
        ({"generator": 1}, "draws nothing"),
        ({"rounding": "stochastic", "generator": drawn, "axis": 2}, "axis"),
        ({"rounding": "stochastic", "generator": drawn, "overflow": "no"}, "overflow"),
        ({"rounding": "stochastic", "generator": drawn, "out": X}, "overlaps|like"),
    ):
        for x, out in ((X, place), (X.numpy(), place.numpy())):
            with pytest.raises(ArgumentError, match=message):
                fb.fake_quantize(x, "mxfp4", **({"out": out} | given))
    assert torch.equal(place, X)


def test_vectors_meet_a_packed_matrix_to_the_bits_of_the_operator(calls: list[str]) -> None:
    for name in ("mxfp4", "mxfp6_e2m3", "mx9", "nvfp4", "int8_channel", "posit8_1"):
        w = fb.quantize(torch.randn(7, 96, generator=torch.Generator().manual_seed(3)), name)
        for shape in ((96,), (1, 96), (5, 96), (2, 3, 96)):
            x = torch.randn(shape, generator=torch.Generator().manual_seed(4))
            rows = x.reshape(-1, 96)
            wanted = torch.ops.fewbits.gemv(rows, *w.pieces, w.format.grammar, None, 7).view(*shape[:-1], 7)
            calls.clear()
            for found in (fb.matvec(w, x), x @ w.t(), fb.matmul(x, w.t()), torch.nn.functional.linear(x, w)):
                assert torch.equal(found, wanted)
                assert found.shape == wanted.shape
            assert calls == ["gemv"] * 4


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("activation", [None, "int8_32"])
def test_vectors_of_16_bits_and_rounded_ones_go_straight_to_the_kernels(
    dtype: torch.dtype, activation: str | None, calls: list[str]
) -> None:
    for name in ("mxfp4", "mxint8", "nvfp4", "posit8_1"):
        w = fb.quantize(torch.randn(7, 544, generator=torch.Generator().manual_seed(3)).to(dtype), name)
        for shape in ((544,), (3, 544), (2, 3, 544)):
            x = torch.randn(shape, generator=torch.Generator().manual_seed(4)).to(dtype)
            calls.clear()
            found = fb.matvec(w, x, activation=activation)
            assert calls == ["gemv"]
            operator = torch.ops.fewbits.gemv if activation is None else torch.ops.fewbits.gemv_int8
            rows = operator(x.reshape(-1, 544), *w.pieces, w.format.grammar, None, 7)
            assert torch.equal(found, rows.view(*shape[:-1], 7))
            rounded = x.double() if activation is None else fb.fake_quantize(x.float(), ROUNDED).double()
            values = w.to(torch.float32).dequantize().double()
            exact, bound = (a @ b.t() for a, b in ((rounded, values), (rounded.abs(), values.abs())))
            assert (
                (found.double() - exact).abs()
                <= torch.finfo(dtype).eps * exact.abs() + 546 * 2.0**-24 * bound
            ).all()


def test_other_operands_of_a_product_go_the_long_way(calls: list[str]) -> None:
    sparse = fb.quantize(torch.tensor([0.0, 1, 2, 0]).repeat(4, 16), "mxfp4", sparsity="2:4")
    by_columns = fb.quantize(torch.randn(5, 64), "mxfp4", axis=0)
    strided = fb.quantize(torch.randn(10, 64), "mxfp4")[::2]
    shapes = [fb.matvec(w, X).shape for w in (sparse, by_columns)]
    assert shapes == [(6, 4), (6, 5)]
    torch.testing.assert_close(fb.matvec(strided, X), X @ strided.dequantize().t())
    assert fb.matvec(W.to(torch.float64), X.double()).dtype == torch.float64
    assert fb.matvec(W, torch.randn(600, 64)).shape == (600, 5)
    assert fb.matvec(W, torch.randn(0, 64)).shape == (0, 5)
    assert fb.matvec(W[:0], X).shape == (6, 0)
    assert "gemv" not in calls
    with pytest.raises(ArgumentError, match="shapes"):
        fb.matvec(W, torch.randn(63))
    with pytest.raises(ArgumentError, match="shapes"):  # a number is no vector, nor one of no values
        fb.matvec(fb.quantize(torch.randn(5, 0), "mxfp4"), torch.tensor(1.0))
    with pytest.raises(FewbitsError, match="expected one dtype"):
        fb.matvec(W, X.bfloat16())


def test_parts_at_addresses_that_fit_no_number_are_copied_first(calls: list[str]) -> None:
    q = fb.quantize(torch.randn(5, 64, generator=torch.Generator().manual_seed(5)), "nvfp4")
    wanted, product = q.dequantize(), fb.matvec(q, X)
    *narrow, outer = q.pieces
    assert outer is not None
    assert outer.dtype == torch.float32
    octets = bytearray(b"." + outer.numpy().tobytes())  # as in a file whose header has an odd length
    moved = torch.frombuffer(octets, dtype=outer.dtype, offset=1).view(outer.shape)
    assert moved.data_ptr() % 4
    calls.clear()
    loaded = fb.NarrowTensor((*narrow, moved), q.format, q.shape, q.axis, q.dtype)
    assert torch.equal(loaded.dequantize(), wanted)
    assert torch.equal(fb.matvec(loaded, X), product)
    assert calls == []


def test_memory_that_was_given_back_is_refused() -> None:
    q = fb.quantize(X, "mxfp4")
    q.codes.untyped_storage().resize_(0)
    for call in (lambda: fb.matvec(q, X), lambda: X @ q.t(), q.dequantize):
        with pytest.raises(TypeError):
            call()
