"""Packed tensors under torch.compile and torch.export: one graph, the same bits."""

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

import fewbits as fb
from fewbits.formats import CATALOGUE
from tests import cases
from tests.tensor.packed import packed

NAMES = ("mxfp4", "nvfp4", "mx6", "int8_tensor", "fp8_e4m3")
Function = Callable[[torch.Tensor, fb.NarrowTensor], torch.Tensor]
FUNCTIONS: dict[str, Function] = {
    "linear": lambda x, q: functional.linear(x, q) * 2,
    "matmul": lambda x, q: x @ q.t() + 1,
    "dequantize": lambda x, q: x[0] + q.dequantize()[0],
    "slice": lambda x, q: x[0] * q[2:, :64].dequantize()[0],
    "reshape": lambda x, q: x[0] + q.view(2, 2, 64).transpose(0, 1).reshape(4, 64).dequantize()[1],
    "to": lambda x, q: x.double() @ q.double().t(),
    "embedding": lambda x, q: x[0] + functional.embedding(torch.tensor([1, 2]), q)[0],
    "fb.matvec": lambda x, q: fb.matvec(q, x) * 2,
    "fb.matvec in int8": lambda x, q: fb.matvec(q, x, activation="int8_32") * 2,
    "fb.matmul": lambda x, q: fb.matmul(x, q.t(), "mxfp4") + fb.matmul(x, x.t(), "mxint8")[0, 0],
    "fb.matmul of packed ones": lambda x, q: fb.matmul(q, q.t()) + x[0, 0],
    "quantize": lambda x, q: fb.quantize(x, "mxfp4").dequantize(),
    "quantize and fb.matvec": lambda x, q: fb.matvec(fb.quantize(x, "mxfp4"), x) + q.dequantize()[0, 0],
}


@pytest.fixture(autouse=True)
def _fresh() -> None:
    torch._dynamo.reset()


# Each function meets two of the formats; all by all are slow.
@pytest.mark.parametrize(
    ("called", "name"),
    [
        pytest.param(called, name, marks=() if (i - j) % len(NAMES) in (0, 2) else pytest.mark.slow)
        for i, called in enumerate(FUNCTIONS)
        for j, name in enumerate(NAMES)
    ],
)
def test_compiled_without_a_break_it_gives_the_same_bits(called: str, name: str) -> None:
    function = FUNCTIONS[called]
    q, x = packed(name, (4, 64)), torch.randn(3, 64, generator=torch.Generator().manual_seed(1))
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x, q), function(x, q))
    other = packed(name, (4, 64), seed=5)
    assert torch.equal(compiled(x, other), function(x, other))  # the weight is an input, not a constant


PACKED_INSIDE: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "fb.matmul": lambda x, w: fb.matmul(x, fb.quantize(w, "mxfp4").t()),
    "fb.matmul in a format": lambda x, w: fb.matmul(fb.quantize(w, "nvfp4"), x.t(), "mxfp4"),
    "fb.matmul in integers": lambda x, w: fb.matmul(x, fb.quantize(w, "ternary_channel").t(), "int8_channel"),
    "fb.matvec": lambda x, w: fb.matvec(fb.quantize(w, "mx6"), x),
    "fb.matvec in blocks": lambda x, w: fb.matvec(fb.quantize(w, "mx6"), x, activation="int8_32"),
    "fb.matvec in integers": lambda x, w: fb.matvec(
        fb.quantize(w, "binary_channel"), x, activation="int4_channel"
    ),
}


@pytest.mark.parametrize("function", PACKED_INSIDE.values(), ids=PACKED_INSIDE)
def test_products_with_what_the_graph_packs_have_the_bits_and_gradients_of_those_without_one(
    function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
) -> None:
    x, w = (torch.randn(n, 64, generator=torch.Generator().manual_seed(n)) for n in (3, 8))
    results, gradients = [], []
    for call in (function, torch.compile(function, fullgraph=True, backend="aot_eager")):
        results.append(call(x.requires_grad_(), w))
        gradients.append(torch.autograd.grad(results[-1].sum(), x)[0])
    assert torch.equal(*results)
    assert torch.equal(*gradients)


def test_integers_times_a_view_of_a_packed_tensor_are_one_graph() -> None:
    q, x = packed("int4_channel", (8, 64)), torch.randn(3, 64)
    compiled = torch.compile(
        lambda x: fb.matmul(x, q.t(), "int4_channel"), fullgraph=True, backend="aot_eager"
    )
    assert torch.equal(compiled(x), fb.matmul(x, q.t(), "int4_channel"))


def test_a_largest_magnitude_that_changes_is_one_graph_too() -> None:
    def function(x: torch.Tensor, amax: float) -> torch.Tensor:
        return fb.fake_quantize(x, "int8_tensor", amax=amax) + fb.quantize(x, "nvfp4", amax=amax).dequantize()

    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for x, amax in ((torch.randn(4, 64), 4.0), (torch.randn(4, 64), 5.5), (torch.randn(4, 64).half(), 3)):
        assert torch.equal(compiled(x, amax), function(x, amax))


@pytest.mark.parametrize("text", ["bdr(m=5,k1=64)", "block(element=float(e=3,m=1),scale=e8m0,size=16)"])
def test_a_format_of_ones_own_compiles_before_anything_of_it_is_known(text: str) -> None:
    fmt, x = fb.format(text), torch.randn(4, 64)
    compiled = torch.compile(lambda x: fb.quantize(x, fmt).dequantize(), fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), fb.quantize(x, text).dequantize())


def test_formats_of_the_catalogue_compile_together_before_anything_of_them_is_known() -> None:
    names = ("mxfp4", "mx6", "int4_channel")
    for name in names:
        for known in ("groups", "grammar"):
            vars(CATALOGUE[name].format).pop(known, None)
    compiled = torch.compile(
        lambda x: [fb.quantize(x, name).dequantize() for name in names], fullgraph=True, backend="aot_eager"
    )
    x = torch.randn(4, 64)
    for found, name in zip(compiled(x), names, strict=True):
        assert torch.equal(found, fb.quantize(x, name).dequantize())


def test_what_the_cache_of_graphs_is_asked_with_tells_every_difference_but_the_values() -> None:
    def key(q: fb.NarrowTensor) -> str:
        return q._stable_hash_for_caching()

    q = packed("mxfp8_e4m3", (64, 64))
    assert key(q) == key(packed("mxfp8_e4m3", (64, 64), seed=1))
    others = (
        packed("mxfp8_e5m2", (64, 64)),
        packed("mxfp8_e4m3", (64, 32)),
        q.t(),
        q.double(),
        q[:, 32:],
        q.view(8, 8, 64).transpose(0, 1).reshape(64, 64)[1:],
        fb.quantize(q.dequantize().numpy(), "mxfp8_e4m3"),
    )
    assert len({key(q), *map(key, others)}) == 1 + len(others)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchs_own_compiler_takes_it() -> None:
    q, x = packed("nvfp4", (8, 64)), torch.randn(3, 64)
    compiled = torch.compile(lambda x, q: functional.linear(x, q) * 2, fullgraph=True)
    torch.testing.assert_close(compiled(x, q), functional.linear(x, q) * 2)


@pytest.mark.parametrize("dynamic", [None, True])
def test_batches_and_packed_tensors_of_changing_size_compile(dynamic: bool | None) -> None:
    compiled = torch.compile(
        lambda x, q: functional.linear(x, q) + q.dequantize().sum(),
        fullgraph=True,
        backend="aot_eager",
        dynamic=dynamic,
    )
    for batch, n in ((3, 8), (5, 8), (5, 24), (2, 40)):
        q, x = packed("mxfp4", (n, 64)), torch.randn(batch, 64)
        torch.testing.assert_close(compiled(x, q), functional.linear(x, q) + q.dequantize().sum())


def test_any_number_of_vectors_takes_two_graphs_and_one_exported() -> None:
    layer = torch.nn.Linear(128, 64)
    layer.weight = torch.nn.Parameter(fb.quantize(layer.weight.detach(), "mxfp4"), requires_grad=False)
    counted = torch._dynamo.testing.CompileCounter()
    compiled = torch.compile(layer, backend=counted, dynamic=True)
    sizes = (*range(40, 50), 600, 700)
    assert all(torch.equal(compiled(x), layer(x)) for x in (torch.ones(n, 128) for n in sizes))
    assert counted.frame_count == 2  # few vectors, and many
    for first in (3, 700):
        rows = {0: torch.export.Dim("rows")}
        whole = torch.export.export(layer, (torch.ones(first, 128),), dynamic_shapes=(rows,)).module()
        for n in (2, 5, 900):
            x = torch.randn(n, 128)
            torch.testing.assert_close(whole(x), layer(x))


def test_values_that_are_an_array_are_refused_in_a_graph_and_dense_gives_a_tensor() -> None:
    q = fb.quantize(packed("mxfp4", (4, 64)).dequantize().numpy(), "mxfp4")
    compiled = torch.compile(lambda q: q.dequantize(), fullgraph=True, backend="aot_eager")
    with pytest.raises(
        RuntimeError, match=r"which a compiled graph cannot hold: call .dense\(\) for a tensor"
    ):
        compiled(q)
    found = torch.compile(lambda q: q.dense(), fullgraph=True, backend="aot_eager")(q)
    assert torch.equal(found, torch.from_numpy(q.dequantize()))


def test_another_format_compiles_anew() -> None:
    compiled = torch.compile(lambda q: q.dequantize(), fullgraph=True, backend="aot_eager")
    for name in ("mxfp8_e4m3", "mxfp8_e5m2"):
        q = packed(name, (4, 64))
        assert torch.equal(compiled(q), q.dequantize())


def test_a_packed_tensor_can_leave_the_graph() -> None:
    x = torch.randn(4, 64)
    q = torch.compile(lambda x: fb.quantize(x, "nvfp4"), fullgraph=True, backend="aot_eager")(x)
    assert torch.equal(q, fb.quantize(x, "nvfp4"))
    assert repr(q) == repr(fb.quantize(x, "nvfp4"))


VIEWS: dict[str, Callable[[fb.NarrowTensor], torch.Tensor]] = {
    "select": lambda q: q[0],
    "slice": lambda q: q[1:, :128],
    "t": lambda q: q.t(),
    "view": lambda q: q.view(2, 2, 256),
    "expand": lambda q: q[None].expand(2, -1, -1),
    "detach": lambda q: q.detach(),
}


@pytest.mark.parametrize(("viewed", "name", "dynamic"), cases.pairs(VIEWS, NAMES, [None, True]))
def test_a_view_that_leaves_the_graph_shares_bytes_and_scales_as_without_one(
    viewed: str, name: str, dynamic: bool | None
) -> None:
    view = VIEWS[viewed]
    compiled = torch.compile(view, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for n in (4, 8):
        q = packed(name, (n, 256)) if viewed != "view" else packed(name, (4, 256))
        found, wanted = compiled(q), view(q)
        assert torch.equal(found, wanted)
        assert found.stride() == wanted.stride()
        assert found.codes.data_ptr() == wanted.codes.data_ptr()
        assert found._shares_its_scale == wanted._shares_its_scale


@pytest.mark.parametrize("name", ["mxfp4", "mx6"])
def test_what_a_graph_writes_into_a_view_is_in_the_whole(name: str) -> None:
    def write(q: fb.NarrowTensor, x: torch.Tensor) -> torch.Tensor:
        piece = q[1:3]
        piece.copy_(x)
        return piece[:1]

    q, x = packed(name, (4, 64)), torch.ones(2, 64)
    wanted = q.clone()
    write(wanted, x)
    found = torch.compile(write, fullgraph=True, backend="aot_eager")(q, x)
    assert torch.equal(q, wanted)
    assert torch.equal(found, wanted[1:2])


@pytest.mark.parametrize("name", NAMES)
def test_a_module_with_a_packed_weight_compiles_with_gradients_and_exports(name: str) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    model[0].weight = torch.nn.Parameter(packed(name, (8, 64)), requires_grad=False)
    x = torch.randn(5, 64).requires_grad_()
    wanted = model(x)
    (gradient,) = torch.autograd.grad(wanted.sum(), x)
    found = torch.compile(model, fullgraph=True, backend="aot_eager")(x)
    assert torch.equal(found, wanted)
    assert torch.equal(torch.autograd.grad(found.sum(), x)[0], gradient)
    exported = torch.export.export(model, (x.detach(),))
    assert torch.equal(exported.module()(x.detach()), wanted)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # of torch's own
def test_a_packed_buffer_and_what_is_rounded_on_the_way_are_exported() -> None:
    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("q", packed("mxfp4", (8, 64)))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return fb.matmul(fb.fake_quantize(x, "mx6"), self.q.t(), "mxfp8_e4m3")

    module, x = Module(), torch.randn(3, 64)
    assert torch.equal(torch.export.export(module, (x,)).module()(x), module(x))
