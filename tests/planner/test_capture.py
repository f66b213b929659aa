"""Captured graphs against PyTorch's counts of FLOP and parameters, and against shapes worked out by hand."""

import math
import resource
from collections import Counter
from collections.abc import Callable
from unittest import mock

import pytest
import torch
from torch import nn
from torch.fx import Node
from torch.utils.flop_counter import FlopCounterMode

from fewbits.errors import ArgumentError
from fewbits.planner import plan
from fewbits.planner.capture import capture, walk
from fewbits.planner.capture.draft import Draft, Use
from fewbits.planner.capture.values import reshaped
from fewbits.planner.graph import Graph
from tests.planner.networks import GPT, RNN, Block, Sum, cnn, mlp, tokens

Case = Callable[[], tuple[nn.Module, tuple[torch.Tensor, ...]]]


def _transformer() -> nn.Module:
    with pytest.warns(UserWarning, match="nested"):
        return nn.Transformer(16, 4, 2, 2, 32)


NETWORKS: dict[str, Case] = {
    "MLP": lambda: (mlp(), (torch.zeros(8, 32),)),
    "GPT": lambda: (GPT(100, 32, 4, 2, 16), (tokens(4, 16, 100), tokens(4, 16, 100))),
    "GPT, products apart": lambda: (GPT(100, 32, 4, 1, 16, fused=False), (tokens(4, 16, 100),)),
    "TransformerEncoder": lambda: (
        nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2),
        (torch.zeros(4, 7, 16),),
    ),
    "Transformer": lambda: (_transformer(), (torch.zeros(7, 4, 16), torch.zeros(5, 4, 16))),
    "CNN": lambda: (cnn(), (torch.zeros(4, 3, 16, 16),)),
    "einsum": lambda: (Sum(), (torch.zeros(6, 3),)),
}


@pytest.fixture(params=NETWORKS)
def case(request: pytest.FixtureRequest) -> tuple[nn.Module, tuple[torch.Tensor, ...], Graph]:
    with torch.device("meta"):
        model, inputs = NETWORKS[request.param]()
    inputs = tuple(x.to("meta") for x in inputs)
    return model, inputs, capture(model, inputs)


def check_graph(graph: Graph) -> None:
    """Axes run along dimensions of the space, and edges join axes that exist, in the order of the layers."""
    assert len({layer.name for layer in graph.layers}) == len(graph.layers)
    for layer in graph.layers:
        extents = {d.name: d.extent for d in layer.space}
        assert len(extents) == len(layer.space)
        for operand in (*layer.inputs, *layer.weights, layer.output):
            assert len(operand.axes) == len(operand.shape)
            assert set(operand.axes) - {None} <= set(extents)
            assert len(operand.halos) in {0, len(operand.shape)}
        for extent, axis in zip(layer.output.shape, layer.output.axes, strict=True):
            assert axis is None or extent % extents[axis] == 0
    fed = set()
    for edge in graph.edges:
        assert edge.producer < edge.consumer
        assert (edge.consumer, edge.operand) not in fed
        fed.add((edge.consumer, edge.operand))
        made, read = graph.layers[edge.producer].output, graph.layers[edge.consumer].inputs[edge.operand]
        if not edge.axes:
            assert made.shape == read.shape
            continue
        assert len(edge.axes) == len(read.shape)
        joined = [a for a in edge.axes if a is not None]
        assert len(set(joined)) == len(joined)
        assert all(0 <= a < len(made.shape) for a in joined)


def test_flops_are_those_that_torch_counts(case: tuple[nn.Module, tuple[torch.Tensor, ...], Graph]) -> None:
    model, inputs, graph = case
    with FlopCounterMode(display=False) as counter:
        model(*inputs)
    assert sum(layer.flops for layer in graph.layers if layer.product) == counter.get_total_flops() > 0


def test_parameters_are_all_there(case: tuple[nn.Module, tuple[torch.Tensor, ...], Graph]) -> None:
    model, _, graph = case
    found: Counter[str] = Counter()
    for layer in graph.layers:
        found.update({weight.name: math.prod(weight.shape) for weight in layer.weights})
    assert found == {name: p.numel() for name, p in model.named_parameters()}


def test_edges_and_axes_agree(case: tuple[nn.Module, tuple[torch.Tensor, ...], Graph]) -> None:
    check_graph(case[2])


def test_an_mlp_is_its_products_in_a_row() -> None:
    graph = capture(mlp((32, 64, 16)), (torch.zeros(8, 32),))
    assert [layer.name for layer in graph.layers] == ["0", "2"]  # GELU belongs to the product before it
    first = graph.layers[0]
    assert {d.name: d.extent for d in first.space} == {"b": 8, "n": 64, "k": 32}
    assert first.weights[0].axes == ("n", "k")
    assert first.flops == 2 * 8 * 64 * 32
    assert first.saved == 8 * 64  # what GELU was given
    assert [(e.producer, e.consumer, e.axes) for e in graph.edges] == [(0, 1, ())]
    assert graph.warnings == ()


def test_heads_follow_the_columns_of_their_products() -> None:
    graph = capture(Block(32, 4, fused=False), (torch.zeros(2, 8, 32),))
    at = {layer.name: i for i, layer in enumerate(graph.layers)}
    attention = at["scaled_dot_product_attention"]
    read = [e for e in graph.edges if e.consumer == attention]
    assert [graph.layers[e.producer].name for e in read] == ["q", "k", "v"]
    assert all(e.axes == (0, 2, 1, None) for e in read)  # (b, s, n) is (b, h, s, d): heads lead the columns
    (after,) = (e for e in graph.edges if e.producer == attention)
    assert (graph.layers[after.consumer].name, after.axes) == ("proj", (0, 2, 1))
    assert not {d.name: d.splittable for d in graph.layers[attention].space}["s"]  # causal


def test_a_convolution_needs_its_neighbours_rows() -> None:
    model = nn.Sequential(nn.Conv2d(3, 8, (5, 3), padding=(2, 1)), nn.Conv2d(8, 4, 3, stride=3))
    first, second = capture(model, (torch.zeros(2, 3, 12, 12),)).layers
    assert first.inputs[0].halos == (0, 0, 4, 2)
    assert second.inputs[0].halos == (0, 0, 0, 0)  # windows do not overlap
    assert {d.name: d.extent for d in second.space} == {
        "b": 2,
        "c": 8,
        "h": 4,
        "w": 4,
        "n": 4,
        "r": 3,
        "s": 3,
    }
    depthwise = capture(nn.Conv2d(8, 16, 3, groups=8), (torch.zeros(2, 8, 5, 5),)).layers[0]
    assert depthwise.weights[0].axes[0] == depthwise.inputs[0].axes[1] == depthwise.output.axes[1] == "g"


def test_an_lstm_shares_out_its_batch_only() -> None:
    graph = capture(RNN(50, 8), (tokens(4, 7, 50),))
    check_graph(graph)
    (cells,) = (layer for layer in graph.layers if layer.kind == "lstm")
    assert [d.name for d in cells.space if d.splittable] == ["b"]
    assert cells.flops == 2 * 4 * 7 * 4 * 16 * (8 + 16 + 16 + 16)
    assert [layer.kind for layer in graph.layers] == ["embedding", "lstm", "product"]


@pytest.mark.parametrize("name", ["llama", "bert"])
def test_models_of_hugging_face(name: str) -> None:
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    if name == "llama":
        config = transformers.LlamaConfig(
            **sizes, intermediate_size=48, num_key_value_heads=2, use_cache=False
        )
        model = transformers.LlamaForCausalLM(config)
    else:
        config = transformers.BertConfig(**sizes, intermediate_size=48)
        model = transformers.BertForMaskedLM(config)
    graph = capture(model, {"input_ids": tokens(2, 8, 100), "labels": tokens(2, 8, 100)})
    check_graph(graph)
    weights = {w.name: math.prod(w.shape) for layer in graph.layers for w in layer.weights}
    assert sum(weights.values()) == sum(p.numel() for p in model.parameters())
    linear = sum(math.prod(w.shape) for layer in graph.layers if layer.product for w in layer.weights[:1])
    assert (
        sum(layer.flops for layer in graph.layers if layer.product)
        == 2 * 16 * linear + 2 * 2 * 4 * 16 * 8 * 16
    )
    tied = [name for name, n in Counter(_whole(graph)).items() if n > 1]
    assert len(tied) == (0 if name == "llama" else 1) == len(graph.warnings)
    assert all(
        text.startswith(f"{one}: a parameter of 2 layers (")
        for text, one in zip(graph.warnings, tied, strict=True)
    )


def _whole(graph: Graph) -> list[str]:
    return [w.name for layer in graph.layers for w in layer.weights]


def test_a_part_of_a_parameter_counts_at_its_own_size() -> None:
    class Cross(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attention = nn.MultiheadAttention(16, 4, batch_first=True)

        def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.attention(q, k, v)[0]
            return y

    graph = capture(Cross(), tuple(torch.zeros(2, s, 16) for s in (3, 5, 5)))
    slices = [w for layer in graph.layers for w in layer.weights if w.name == "attention.in_proj_weight"]
    assert [(w.shape, w.axes) for w in slices] == [((16, 16), ("n", "k"))] * 3
    assert graph.warnings == ()


def test_frozen_parameters_are_not_trained() -> None:
    model = mlp((8, 8, 8))
    model[0].weight.requires_grad_(False)
    first, second = capture(model, (torch.zeros(2, 8),)).layers
    assert [w.trained for w in (*first.weights, *second.weights)] == [False, True, True, True]


def test_blocks_repeat_with_the_same_layers() -> None:
    graph = capture(GPT(100, 32, 4, 3, 16), (tokens(4, 16, 100),))
    shapes = {}
    for layer in graph.layers:
        if layer.name.startswith("blocks."):
            _, i, name = layer.name.split(".", 2)
            shapes.setdefault(i, []).append((name, layer.space, layer.kind, layer.flops, layer.saved))
    assert shapes["0"] == shapes["1"] == shapes["2"]


@pytest.mark.parametrize("llama", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_seven_billion_parameters_take_seconds_and_no_memory(llama: bool) -> None:
    with torch.device("meta"):
        if llama:
            transformers = pytest.importorskip("transformers")
            model: nn.Module = transformers.LlamaForCausalLM(transformers.LlamaConfig(use_cache=False))
        else:
            model = GPT(50304, 4096, 32, 32, 2048)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    graph = capture(model, (torch.zeros(8, 2048, dtype=torch.long),))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert sum(math.prod(w.shape) for layer in graph.layers for w in layer.weights) > 6.6e9
    assert len(graph.layers) < 16 * 32
    assert peak * 1024 < 1e9  # the weights alone would be 26 GB
    assert graph.warnings == ()


def test_weights_are_not_copied() -> None:
    model = nn.Linear(4096, 4096)
    before = model.weight.data_ptr(), model.weight._version
    with mock.patch.object(torch.Tensor, "clone", side_effect=AssertionError("a copy")):
        capture(model, (torch.zeros(2, 4096),))
    assert (model.weight.data_ptr(), model.weight._version) == before
    assert type(model.weight) is nn.Parameter


class Unknown(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.first, self.dim = nn.Linear(6, 6), dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        return torch.cdist(y, y) if self.dim else torch.linalg.svdvals(y)


def test_what_is_not_known_is_named_and_splits_its_batch_at_most() -> None:
    graph = capture(Unknown(1), (torch.zeros(4, 6, 6),))
    assert [d.name for d in graph.layers[-1].space] == ["b"]
    assert any("cdist" in text and "batch" in text for text in graph.warnings)
    inverse = capture(Unknown(0), (torch.zeros(2, 6, 6),)).layers[-1]
    assert {d.name for d in inverse.space} == {"b"}
    assert inverse.kind == "unknown"


def test_writing_into_a_part_is_seen() -> None:
    class Write(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = super().forward(x)
            y[:, 0] = 1
            y += 2
            return y * y.sum()

    graph = capture(Write(4, 4), (torch.zeros(3, 4),))
    kinds = [layer.kind for layer in graph.layers]
    assert kinds[:2] == ["product", "unknown"]
    assert [(e.producer, e.consumer) for e in graph.edges] == [(0, 1), (1, 2), (1, 3), (2, 3)]
    assert "part of a tensor" in graph.warnings[0]


def test_writing_into_one_of_several_results_is_writing_into_all_of_it() -> None:
    class Write(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            values, places = super().forward(x).topk(2, -1)
            values.div_(values.sum(-1, keepdim=True))
            return values * places

    graph = capture(Write(4, 4), (torch.zeros(3, 4),))
    check_graph(graph)
    assert "unknown" not in [layer.kind for layer in graph.layers]
    assert (graph.warnings, graph.unrunnable) == ((), "")


def test_a_model_that_cannot_be_exported_says_why(capfd: pytest.CaptureFixture[str]) -> None:
    class Branch(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) if x.sum() > 0 else x

    with pytest.raises(ArgumentError, match=r"Branch cannot be captured: .*must not depend on values"):
        capture(Branch(4, 4), (torch.zeros(3, 4),))
    assert capfd.readouterr() == ("", "")

    class Chosen(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x)[x > 0].sum()

    with pytest.raises(ArgumentError, match=r"Chosen cannot be captured: the shape of \w+ depends on values"):
        capture(Chosen(4, 4), (torch.zeros(3, 4),))
    with pytest.raises(ArgumentError, match=r"too many positional arguments; its forward takes \(input"):
        capture(mlp(), (torch.zeros(8, 32), torch.zeros(8)))
    with pytest.raises(ArgumentError, match="as a tuple or a dict"):
        capture(nn.Linear(4, 4), torch.zeros(3, 4))


@pytest.mark.parametrize(
    ("old", "new", "axes"),
    [
        ((2, 3, 12), (2, 3, 4, 3), (0, 1, 2, None)),
        ((2, 3, 4, 3), (2, 3, 12), (0, 1, 2)),
        ((8, 16, 5), (128, 5), (0, 2)),
        ((6, 4), (8, 3), (0, None)),
        ((4, 1, 5), (4, 5), (0, 2)),
        ((1, 4), (4, 1), (1, None)),
        ((6,), (2, 1, 3), (0, None, None)),
    ],
)
def test_reshapes_keep_the_leading_axis(
    old: tuple[int, ...], new: tuple[int, ...], axes: tuple[int | None, ...]
) -> None:
    assert reshaped(old, new) == axes
    x = torch.arange(math.prod(old)).reshape(old)
    for parts in (2, 3, 4):  # a piece of the one is the piece of the other
        for to, source in enumerate(axes):
            if source is None or old[source] % parts or new[to] % parts:
                continue
            for a, b in zip(x.chunk(parts, source), x.reshape(new).chunk(parts, to), strict=True):
                assert sorted(a.flatten().tolist()) == sorted(b.flatten().tolist())


def _last(function: Callable[[torch.Tensor], torch.Tensor], *shape: int) -> Graph:
    class Behind(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return function(super().forward(x))

    graph = capture(Behind(4, 4), (torch.zeros(*shape, 4),))
    check_graph(graph)
    return graph


def _written(values: torch.Tensor) -> torch.Tensor:
    values.clamp_(max=1.0)
    return values * 2


@pytest.mark.parametrize(
    "function",
    [
        lambda y: _written(y.sort(-1).values),
        lambda y: _written(y.max(0, keepdim=True)[0]),
        lambda y: y + _written(y.clone()),
        lambda y: y + _written(y.repeat(1, 1)),
        lambda y: y + _written(y.repeat_interleave(1, 1)),
    ],
    ids=["sort", "max", "clone", "repeat", "interleave"],
)
def test_one_of_several_results_and_a_copy_are_written_into_as_tensors_of_their_own(
    function: Callable[[torch.Tensor], torch.Tensor],
) -> None:
    graph = _last(function, 8)
    assert not graph.warnings
    assert "unknown" not in {layer.kind for layer in graph.layers}


def test_a_part_of_one_of_several_results_is_a_part() -> None:
    def of_the_largest(y: torch.Tensor) -> torch.Tensor:
        values = y.topk(3, -1).values
        values[:, :2].mul_(2)
        return values * 2

    assert "part of a tensor" in _last(of_the_largest, 8).warnings[0]
    assert "part of a tensor" in _last(lambda y: _written(y.view(-1)) + y.sum(), 8).warnings[0]


@pytest.mark.parametrize(
    ("function", "output", "free"),
    [
        (lambda y: y.norm(dim=1), ("b",), {"b"}),
        (lambda y: y.norm(1, 0), ("d",), {"d"}),
        (lambda y: torch.linalg.vector_norm(y, 2.0, dim=-1), ("b",), {"b"}),
        (torch.linalg.vector_norm, (), set()),
        (lambda y: y.var(True), (), set()),
        (lambda y: y.std(0), ("d",), {"d"}),
        (lambda y: y.argmax(), (), set()),
        (lambda y: y.argmax(1), ("b",), {"b"}),
        (lambda y: y.roll(1), (None, None), set()),
        (lambda y: y.roll(1, 1), ("b", None), {"b"}),
        (lambda y: y.flip(0), (None, "d"), {"d"}),
        (lambda y: y.cumsum(0), (None, "d"), {"d"}),
        (lambda y: y.sort()[0], ("b", None), {"b"}),
        (lambda y: y.sort(stable=True, dim=0)[0], (None, "d"), {"d"}),
        (lambda y: y.topk(2)[0], ("b", None), {"b"}),
    ],
)
def test_operations_along_an_axis_keep_it_whole(
    function: Callable[[torch.Tensor], torch.Tensor], output: tuple[str | None, ...], free: set[str]
) -> None:
    graph = _last(function, 8)
    assert graph.layers[-1].output.axes == output
    assert {d.name for d in graph.layers[-1].space if d.splittable} == free
    assert graph.warnings == ()


@pytest.mark.parametrize("function", [torch.sort, torch.cumsum, torch.softmax, torch.topk, torch.flip])
def test_a_number_has_no_axis_to_run_along(function: Callable[..., torch.Tensor]) -> None:
    arguments = {torch.topk: (1, 0), torch.flip: ((0,),)}.get(function, (0,))

    class Summed(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            made = function(super().forward(x).sum(), *arguments)
            return made if isinstance(made, torch.Tensor) else made[0]

    graph = capture(Summed(4, 4), (torch.zeros(3, 4),))
    check_graph(graph)
    assert graph.layers[-1].space == ()


def test_bits_in_another_dtype_keep_the_axes_that_stay_as_long() -> None:
    class Bits(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = super().forward(x).detach()
            return y.view(torch.int32).sum(0) + y.view(torch.uint8).sum()

    graph = capture(Bits(4, 6), (torch.zeros(3, 4),))
    check_graph(graph)
    assert [(e.producer, e.consumer, e.axes) for e in graph.edges[:2]] == [(0, 1, ()), (0, 2, (0, None))]


def test_neighbours_that_repeat_unevenly_follow_no_split() -> None:
    class Repeat(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = super().forward(x)
            told = y.repeat_interleave(torch.tensor([2, 0, 1]), 0, output_size=3).softmax(1)
            return told + y.repeat_interleave(1, dim=0).softmax(1)

    graph = capture(Repeat(4, 6), (torch.zeros(3, 4),))
    check_graph(graph)
    assert [e.axes for e in graph.edges if e.producer == 0] == [(None, 1), ()]


def test_means_and_counts_over_all_samples_keep_them_whole() -> None:
    x, indices = torch.zeros(4, 2, 3, 3), torch.zeros(4, 6, dtype=torch.int64)

    def free(model: nn.Module, given: torch.Tensor) -> set[str]:
        return {d.name for d in capture(model, (given,)).layers[0].space if d.splittable}

    assert free(nn.InstanceNorm2d(2, affine=True), x) == {"b"}
    running = nn.InstanceNorm2d(2, track_running_stats=True)
    assert free(running, x) == set()
    assert free(running.eval(), x) == {"b"}
    assert free(nn.Embedding(8, 6), indices) == {"b", "s", "d", "v"}
    assert free(nn.Embedding(8, 6, scale_grad_by_freq=True), indices) == {"d"}


def test_an_operation_read_wrongly_is_planned_as_not_known() -> None:
    def wrong(node: Node) -> Draft:
        return Draft(
            "elementwise", [Use(node.all_input_nodes[0], ("d", "b"))], [("b", "d")], {"b": 8, "d": 4}
        )

    with mock.patch.dict(walk._KNOWN, {"cumsum": wrong}):
        graph = _last(lambda y: y.cumsum(1), 8)
    assert graph.layers[-1].kind == "unknown"
    assert "cumsum: not known" in graph.warnings[0]


def test_layers_of_the_model_itself_have_its_name() -> None:
    assert [layer.name for layer in capture(nn.Linear(4, 4), (torch.zeros(2, 4),)).layers] == ["Linear"]


def test_layers_on_inputs_alone_are_there() -> None:
    x = torch.zeros(2, 3, 8, 8)
    for module in (nn.LayerNorm(8, elementwise_affine=False), nn.Softmax(-1), nn.MaxPool2d(2)):
        (layer,) = capture(module, (x,)).layers
        assert layer.space[0].name == "b"
    assert "upsample" in capture(nn.Upsample(scale_factor=2), (x,)).warnings[0]


def test_a_sample_alone_is_pooled() -> None:
    graph = capture(nn.Sequential(nn.Conv2d(3, 4, 3), nn.MaxPool2d(3, 2)), (torch.zeros(3, 9, 9),))
    check_graph(graph)
    pooled = graph.layers[-1]
    assert pooled.output.axes == ("c", "h", "w")
    assert pooled.inputs[0].halos == (0, 1, 1)


def test_an_einsum_without_its_result_is_a_product() -> None:
    graph = _last(lambda y: torch.einsum("kj,ji", y.t(), y), 8)
    assert (graph.layers[-1].kind, graph.layers[-1].flops) == ("product", 2 * 4 * 8 * 4)
    assert "one FLOP for each value" in _last(lambda y: torch.cdist(y, y), 8).warnings[0]


def test_an_einsum_of_several_operands_multiplies_two_at_a_time() -> None:
    b, c = torch.zeros(4, 5), torch.zeros(5, 7)
    chain = _last(lambda y: torch.einsum("ij,jk,kl->il", y, b, c), 8).layers[-1]
    assert (chain.kind, chain.flops) == ("product", 2 * 8 * 4 * 5 + 2 * 8 * 5 * 7)
    gates, experts = torch.zeros(8, 3), torch.zeros(3, 4, 5)
    mixed = _last(lambda y: torch.einsum("bd,be,edf->bf", y, gates, experts), 8).layers[-1]
    assert mixed.flops == 8 * 4 * 3 + 2 * 8 * 3 * 4 * 5  # the first two have nothing to sum


def test_axes_of_one_value_are_no_dimensions_of_weights() -> None:
    class Gated(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.gain = nn.Linear(8, 1), nn.Parameter(torch.ones(1))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.tanh(self.one(x)) * self.gain

    graph = capture(Gated(), (torch.ones(4, 8),))
    for layer in graph.layers:
        known = {d.name for d in layer.space}
        assert all(axis is None or axis in known for w in layer.weights for axis in w.axes)
    assert [w.axes for w in graph.layers[0].weights][:2] == [(None, "k"), (None,)]
    made = plan(graph, devices=4, pins={"one": {"b": 4}}, memory=math.inf)
    assert made.layers[0].sent_bytes == 2 * 3 / 4 * 4 * (8 + 1)


def test_a_warning_names_an_operation_once() -> None:
    class Spectrum(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.fft.rfft(super().forward(x)).abs()

    (warning,) = capture(Spectrum(16, 16), (torch.zeros(8, 16),)).warnings
    assert warning.startswith("fft_rfft: not known; planned as split by its leading axis")
