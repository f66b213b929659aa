"""Compiled without a break, the plain operations give the bits that they give when they run one by one."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch._inductor.utils import run_and_get_code
from torch.func import grad, jvp, vmap

import fewbits as fb
from fewbits.formats import Format, parse
from fewbits.kernels import force_backend, ops
from fewbits.kernels.bits.options import Choices
from tests import cases
from tests.kernels.portable.compiling import inductor_loads
from tests.kernels.portable.conversions import as_bytes, differing
from tests.kernels.portable.test_quantize import FORMATS, inputs

# torch scripts a few of its own formulas when forward mode is first used.
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")


@pytest.fixture(autouse=True)
def _portable() -> Iterator[None]:
    torch._dynamo.reset()
    force_backend("portable")
    yield
    force_backend(None)
    torch._dynamo.reset()


def compiled_equals_cpu(x: torch.Tensor, fmt: Format, axis: int = -1, **choices: Any) -> None:
    """Round, quantize and dequantize in one graph, and compare each with the compiled kernels of the CPU."""
    given = Choices(nonfinite=choices.pop("nonfinite", "saturate"), **choices)

    def every(x: torch.Tensor) -> Any:
        parts = ops.quantize(x, fmt, axis % x.ndim, given, 7, None)
        groups = iter(parts)
        whole = tuple(None if group is None else next(groups) for group in fmt.groups)
        rounded = ops.fake_quantize(x, fmt, axis % x.ndim, given, 7, None)
        return rounded, ops.dequantize(whole, fmt, x.shape, axis % x.ndim, x.dtype), parts

    rounded, back, parts = torch.compile(every, fullgraph=True)(x)
    force_backend("native")
    wanted, wanted_back, wanted_parts = every(x)
    force_backend("portable")
    assert not any(
        differing(as_bytes([rounded, back, *parts]), as_bytes([wanted, wanted_back, *wanted_parts]))
    )


@inductor_loads
@pytest.mark.parametrize(
    ("name", "dtype", "loops"),
    [
        ("mxfp4", torch.bfloat16, 3),  # blocks; their largest values; their rounded ones
        pytest.param("mx9", torch.float32, 3, marks=pytest.mark.slow),
        pytest.param("mx6", torch.bfloat16, 4, marks=pytest.mark.slow),  # first, memory of its own
    ],
)
def test_a_graph_of_inductor_is_one_loop_of_vectors_with_the_bits_of_the_cpu(
    name: str, dtype: torch.dtype, loops: int
) -> None:
    # Booleans in memory, loops of pairs and integers of 16 bits each made a graph ten times slower.
    rounded = torch.compile(lambda x: fb.fake_quantize(x, name, nonfinite="saturate"), fullgraph=True)
    x = inputs(parse(name), (64, 96), dtype)
    found, (code, *_) = run_and_get_code(rounded, x)
    assert "Vectorized<int32_t>" in code
    assert "VectorizedN<int32_t" not in code  # bits of 16 values at once go through memory
    assert "bool* local_buffer" not in code
    assert "Vectorized<int32_t>::loadu(in_ptr" not in code  # the processor waits for such vectors
    assert name == "mx9" or "_inner" not in code  # neighbours one by one
    assert code.count("for(int64_t") == loops
    force_backend("native")
    assert not any(differing(as_bytes([found]), as_bytes([fb.fake_quantize(x, name, nonfinite="saturate")])))


@inductor_loads
def test_a_graph_of_inductor_comes_to_the_last_part_of_a_block() -> None:
    fmt = parse("mxint8")
    compiled_equals_cpu(inputs(fmt, (40, 67), torch.float32), fmt)


@inductor_loads
@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("fmt", FORMATS, ids=cases.label)
def test_every_format_compiled(fmt: Format, dtype: torch.dtype) -> None:
    compiled_equals_cpu(inputs(fmt, (40, 67), dtype), fmt)


@inductor_loads
@pytest.mark.slow
@pytest.mark.parametrize("rounding", cases.ROUNDINGS)
@pytest.mark.parametrize("name", ["mxfp6_e3m2", "mx6", "nvfp4", "posit8_1", "int8_channel", "bf16"])
def test_every_rounding_compiled(name: str, rounding: str) -> None:
    fmt = parse(name)
    for dtype in (torch.float32, torch.float16, torch.float64):
        compiled_equals_cpu(inputs(fmt, (33, 40), dtype), fmt, 0, rounding=rounding)


@pytest.mark.parametrize("name", ["fp8_e4m3", "nvfp4", "mx6", "posit8_1", "int8_channel"])
def test_a_graph_has_no_break_and_the_bits(name: str) -> None:
    rounded = torch.compile(lambda x: fb.fake_quantize(x, name), fullgraph=True, backend="aot_eager")
    x = inputs(parse(name), (6, 41), torch.bfloat16, special=False)  # half a pair at the end of a line
    found = rounded(x)
    force_backend("native")
    assert not any(differing(as_bytes([found]), as_bytes([fb.fake_quantize(x, name)])))


@pytest.mark.parametrize(
    ("name", "nonfinite"), [("mx9", "block_nan"), ("bdr(m=5,d1=6,k1=8,d2=3,k2=2)", "saturate")]
)
def test_words_of_two_bfloat16_have_the_bits_wherever_they_begin(name: str, nonfinite: str) -> None:
    rounded = torch.compile(
        lambda x, rounding, axis: fb.fake_quantize(
            x, name, axis=axis, rounding=rounding, nonfinite=nonfinite
        ),
        fullgraph=True,
        backend="aot_eager",
    )
    flat = inputs(parse(name), (6 * 44 + 1,), torch.bfloat16)
    for first, rounding, axis in ((1, "nearest_even", 1), (0, "down", 1), (0, "up", 0)):
        x = flat[first : first + 6 * 44].reshape(6, 44)  # the last block of a line is not full
        found = rounded(x, rounding, axis)
        force_backend("native")
        wanted = fb.fake_quantize(x, name, axis=axis, rounding=rounding, nonfinite=nonfinite)
        force_backend("portable")
        assert not any(differing(as_bytes([found]), as_bytes([wanted])))


@inductor_loads
@pytest.mark.slow
def test_a_graph_of_inductor_keeps_memory_of_its_own_for_words() -> None:
    # Without it, words would be read from an input that begins between two of them, which torch refuses.
    rounded = torch.compile(lambda x: fb.fake_quantize(x, "mx6"), fullgraph=True)
    x = inputs(parse("mx6"), (64 * 32 + 1,), torch.bfloat16)[1:].reshape(64, 32)
    found = rounded(x)
    force_backend("native")
    assert not any(differing(as_bytes([found]), as_bytes([fb.fake_quantize(x, "mx6")])))


def test_a_graph_holds_plain_operations_and_none_of_ours() -> None:
    targets: list[str] = []

    def record(graph: torch.fx.GraphModule, _: Any) -> Any:
        targets.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    from torch._dynamo.backends.common import aot_autograd

    x = torch.randn(4, 64)
    backend = aot_autograd(fw_compiler=record)
    torch.compile(lambda x: fb.fake_quantize(x, "mxfp4"), fullgraph=True, backend=backend)(x)
    assert len(targets) > 20
    assert all(target.startswith("aten.") for target in targets)
    targets.clear()
    force_backend("native")
    torch.compile(lambda x: fb.fake_quantize(x, "mxfp4"), fullgraph=True, backend=backend)(x)
    assert targets == ["fewbits.fake_quantize.default"]


def test_forcing_another_backend_compiles_again() -> None:
    graphs = []

    def count(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    rounded = torch.compile(lambda x: fb.fake_quantize(x, "mxfp4"), fullgraph=True, backend=count)
    x = torch.randn(4, 64)
    found = [rounded(x), rounded(x)]
    assert len(graphs) == 1
    force_backend(None)
    found.append(rounded(x))
    assert len(graphs) == 2
    assert all(torch.equal(y, found[0]) for y in found)


def test_the_gradient_passes_straight_through_a_graph() -> None:
    x = torch.randn(4, 64, requires_grad=True)
    torch.compile(lambda x: fb.fake_quantize(x, "mxfp4") * 3, fullgraph=True, backend="aot_eager")(
        x
    ).sum().backward()
    assert x.grad is not None
    assert (x.grad == 3).all()


@pytest.mark.parametrize("name", ["mxfp4", "int8_tensor"])
def test_graphs_for_whole_blocks_partial_blocks_and_one_block_serve_every_length(name: str) -> None:
    graphs = []

    def count(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    rounded = torch.compile(
        lambda x: fb.fake_quantize(x, name, nonfinite="saturate"), fullgraph=True, backend=count, dynamic=True
    )
    for shape in ((4, 64), (7, 33), (64, 4), (3, 100), (9, 128), (2, 7), (5, 70), (300, 32 * 5)):
        x = torch.randn(shape)
        found = rounded(x)
        force_backend("native")
        assert torch.equal(found, fb.fake_quantize(x, name))
        force_backend("portable")
    assert len(graphs) <= 4


@pytest.mark.parametrize("name", ["mxfp4", "posit8_1"])
def test_torch_export_records_plain_operations(name: str) -> None:
    class Rounded(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return fb.fake_quantize(x, name, nonfinite="saturate")

    x = torch.randn(5, 40)
    program = torch.export.export(Rounded(), (x,), dynamic_shapes=({0: torch.export.Dim("lines")},))
    targets = {str(node.target) for node in program.graph.nodes if node.op == "call_function"}
    assert not any("fewbits" in target for target in targets)
    force_backend("native")
    for lines in (5, 9):
        y = torch.randn(lines, 40)
        assert torch.equal(program.module()(y), fb.fake_quantize(y, name, nonfinite="saturate"))


@pytest.mark.parametrize("name", ["int8", "mxfp4", "nvfp4"])
def test_a_graph_refuses_nan(name: str) -> None:
    x = torch.ones(3, 8)
    for function in (fb.fake_quantize, lambda x, *args, **given: fb.quantize(x, *args, **given).codes):
        rounded = torch.compile(
            lambda x, f=function: f(x, name, nonfinite="raise"), fullgraph=True, backend="aot_eager"
        )
        assert torch.equal(rounded(x), function(x, name))
        damaged = x.clone()
        damaged[1, 2] = torch.nan
        for each in (rounded, lambda x, f=function: f(x, name, nonfinite="raise")):
            with pytest.raises(fb.DataError, match="the array holds 1 NaN and 0 infinities"):
                each(damaged)


def test_one_graph_draws_by_every_seed() -> None:
    graphs = []

    def count(graph: torch.fx.GraphModule, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    def both(x: torch.Tensor, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        given: Any = {"rounding": "stochastic", "generator": seed}
        return fb.fake_quantize(x, "mxfp4", **given), fb.quantize(x, "int8_channel", **given).codes + 0

    drawn = torch.compile(both, fullgraph=True, backend=count)
    x = torch.randn(3, 40)
    for seed in (1, 2, 3, 2**62 + 5, 0):
        found = drawn(x, seed)
        force_backend("native")
        assert all(map(torch.equal, found, both(x, seed)))
        force_backend("portable")
    assert len(graphs) <= 4  # of one seed, of any, and of 0 and 1, which torch makes constants


@pytest.mark.parametrize("name", ["mxfp4", "block(element=fp4_e2m1,scale=e8m0,size=tensor)"])
def test_transforms_within_a_graph_pass_straight_through(name: str) -> None:
    x, along = torch.randn(2, 40), torch.randn(2, 40)
    rounded = partial(fb.fake_quantize, format=name)
    force_backend("native")
    y, each = rounded(x), torch.stack([rounded(row) for row in x])
    force_backend("portable")

    def derivatives(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        def loss(x: torch.Tensor) -> torch.Tensor:
            return (rounded(x) ** 2).sum()

        return grad(loss)(x), jvp(rounded, (x,), (along,))[1], vmap(rounded)(x), vmap(grad(loss))(x)

    found = torch.compile(derivatives, fullgraph=True, backend="eager")(x)
    assert all(map(torch.equal, found, (2 * y, along, each, 2 * each)))


def test_what_a_graph_rounds_may_change_in_place() -> None:
    x = torch.randn(4, 64, requires_grad=True)
    within = torch.compile(
        lambda x: fb.fake_quantize(x, "mxfp4").mul_(3), fullgraph=True, backend="aot_eager"
    )
    behind = torch.compile(lambda x: fb.fake_quantize(x, "mxfp4"), fullgraph=True, backend="aot_eager")
    for y in (within(x), behind(x).mul_(3)):
        (found,) = torch.autograd.grad(y.sum(), x)
        assert (found == 3).all()
