"""The precision of a run is that of what ran: asked of operands, never of the recipe."""

import gc
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from unittest import mock

import pytest
import torch
from torch import Tensor, distributed, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import fewbits as fb
from fewbits.distributed import Traffic, all_reduce, ddp_hook
from fewbits.errors import ArgumentError, FormatError
from fewbits.formats.narrowest import narrowest
from fewbits.kernels import ops
from fewbits.kernels.bits.options import Choices
from fewbits.nn import layer_precision, narrow_products
from fewbits.nn.layers.linear import NarrowLinear
from fewbits.recipes import Recipe
from fewbits.records import RanPrecision
from fewbits.train import PrecisionObserver, recipe_trainer
from fewbits.train.tasks import digits_task
from tests.processes import joined, run

E4M3 = "block(element=fp8_e4m3,scale=e8m0,size=tensor)"
E5M2 = "block(element=fp8_e5m2,scale=e8m0,size=tensor)"
TWELVE = "block(element=int(12),scale=fp32,size=32)"
# By hand: what each recipe's paper multiplies. Of FP8-LM's two formats E5M2 has the shorter mantissa.
LINEAR = {
    "fp32": "fp32",
    "tf32": "tf32",
    "amp-bf16": "bf16",
    "bf16-only": "bf16",
    "fp16-master": "fp16",
    "mxfp8": "mxfp8_e4m3",
    "mxfp4w-mxfp6": "mxfp4",
    "mx9": "mx9",
    "fp8-lm": E5M2,
    "posit8": "posit8_1",
    "fixed16": "fixed16_f10",
    "add-multiply": "fp32",
}
WIDE = {"mx9": ("attention",)}  # its paper leaves the gradient of the last layer wide
ATTENTION = LINEAR | {"mxfp4w-mxfp6": "mxfp6_e3m2"}  # which multiplies no weights


class Written(nn.Module):
    """Attention as a function, between layers."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.qkv = nn.Embedding(20, 32), nn.Linear(32, 96)
        self.out, self.head = nn.Linear(32, 32), nn.Linear(32, 20)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.table(x)).chunk(3, -1)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        y: Tensor = self.head(functional.relu(self.out(mixed)))
        return y


class Module(Written):
    """Attention as PyTorch's module."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(32, 2, batch_first=True)
        self.head = nn.Linear(32, 20)

    def forward(self, x: Tensor) -> Tensor:
        h = self.qkv(self.table(x)).chunk(3, -1)
        mixed, _ = self.attention(*h, need_weights=False)
        y: Tensor = self.head(functional.relu(self.out(mixed)))
        return y


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 8, 3), nn.Conv2d(8, 8, 3, groups=2)
        self.back, self.head = nn.ConvTranspose2d(8, 4, 3), nn.Linear(4, 20)

    def forward(self, x: Tensor) -> Tensor:
        image = functional.one_hot(x, 20).float()[:, None]
        y: Tensor = self.head(self.back(self.second(functional.relu(self.first(image)))).mean((2, 3)))
        return y


def made(kind: type[nn.Module] = Written) -> nn.Module:
    torch.manual_seed(0)
    return kind()


def step(model: nn.Module, *, width: int = 32) -> None:
    x = torch.randint(20, (4, width), generator=torch.Generator().manual_seed(1))
    logits = model(x).float()
    functional.cross_entropy(logits.flatten(0, -2), x.flatten()[: logits[..., 0].numel()]).backward()


def ran(model: nn.Module, communication: str | None = None) -> RanPrecision:
    observer = PrecisionObserver(model)
    with observer:
        step(model)
    return observer.found(communication)


def read(model: nn.Module) -> RanPrecision:
    """The negative control: what a recipe says, wherever it was followed."""
    said = model.fewbits_recipe
    assert isinstance(said, Recipe)
    dtype = said.autocast or said.vector
    weights, others = said.forward_weight, [said.forward_activation, said.dx_gradient]
    other = narrowest(dtype if f is None else str(f.format) for f in others) or dtype
    linear = narrowest([other, dtype if weights is None else str(weights.format)]) or dtype
    return RanPrecision(linear, other, None, ())


@pytest.mark.parametrize("name", LINEAR)
def test_each_recipe_ran_in_its_format(name: str) -> None:
    module = fb.prepare(made(Module), name)
    expected = RanPrecision(LINEAR[name], ATTENTION[name], None, WIDE.get(name, ()))
    assert ran(module) == expected
    assert ran(fb.prepare(made(), name)).linear == LINEAR[name]
    if name != "add-multiply":  # which knows no transposed convolution
        seen = ran(fb.prepare(made(Convolutions), name))
        assert (seen.linear, seen.attention) == (LINEAR[name], None)


def test_products_by_addition_have_operands_too() -> None:
    model = fb.prepare(made(Convolutions), "mxfp8:product=add,vector=fp32", exclude="back")
    assert ran(model) == RanPrecision("mxfp8_e4m3", None, None, ("back",))


@pytest.mark.parametrize("name", ["mxfp8", "mxfp4w-mxfp6", "mx9", "fp8-lm"])
def test_products_that_round_their_operands_themselves_count(name: str) -> None:
    with mock.patch.object(layer_precision, "_has_fast_bfloat16", return_value=False):
        expected = RanPrecision(LINEAR[name], ATTENTION[name], None, WIDE.get(name, ()))
        assert ran(fb.prepare(made(Module), name)) == expected


@pytest.mark.parametrize(("name", "flows"), [("mxfp8", "bf16"), ("fp8-lm", "bf16"), ("tf32", "fp32")])
def test_attention_as_a_function_is_narrow_only_where_it_was_made_so(name: str, flows: str) -> None:
    model = fb.prepare(made(), name)
    assert ran(model) == RanPrecision(LINEAR[name], flows, None, ())
    assert ran(model) != read(model)
    narrow_products(model)
    assert ran(model) == RanPrecision(LINEAR[name], ATTENTION[name], None, ())


def test_layers_left_out_are_named() -> None:
    model = fb.prepare(made(Module), "mxfp8", exclude=["out", "attention"])
    expected = RanPrecision("mxfp8_e4m3", "fp32", None, ("attention", "out"))
    assert ran(model) == expected
    assert read(model) != expected
    everything = fb.prepare(made(), "mxfp8", include="qkv")
    assert ran(everything).wide_layers == ("out", "head")


def exempted(layer: NarrowLinear) -> None:
    layer.precision.exempt = True


def of_wide_weights(layer: NarrowLinear) -> None:
    layer.precision.recipe = layer.precision.recipe.extended(weight=None)


def of_wide_activations(layer: NarrowLinear) -> None:
    layer.precision.recipe = layer.precision.recipe.extended(activation=None, gradient=None)


@pytest.mark.parametrize("name", ["mxfp8", "mxfp4w-mxfp6", "tf32"])
@pytest.mark.parametrize("widen", [exempted, of_wide_weights, of_wide_activations])
def test_one_layer_that_is_wide_in_silence_is_named(widen: Callable[[NarrowLinear], None], name: str) -> None:
    model = fb.prepare(made(Module), name)
    layer = model.get_submodule("out")
    assert isinstance(layer, NarrowLinear)
    widen(layer)
    expected = RanPrecision(LINEAR[name], ATTENTION[name], None, ("out",))
    assert ran(model) == expected
    assert read(model) == RanPrecision(LINEAR[name], ATTENTION[name], None, ())  # and does not know


class Changed(nn.Module):
    """A product by hand whose operands a function makes of rounded ones."""

    def __init__(self, change: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.change, self.weight = change, nn.Parameter(torch.randn(32, 32))

    def forward(self, x: Tensor) -> Tensor:
        rows = torch.sin(torch.arange(32.0) * x[..., None])
        a, b = (self.change(fb.fake_quantize(t, "mxfp8_e4m3")) for t in (rows, self.weight))
        return a @ b.t()


def added_to(x: Tensor) -> Tensor:
    return x + 0


def added_to_in_place(x: Tensor) -> Tensor:
    return x.clone().add_(0)


def part_of_it_written(x: Tensor) -> Tensor:
    y = x.clone()
    y[:1] = 0.1
    return y


@pytest.mark.parametrize(
    ("change", "format"),
    [
        (lambda x: x, "mxfp8_e4m3"),
        (lambda x: x.mT.contiguous().mT, "mxfp8_e4m3"),
        (lambda x: x.bfloat16(), "mxfp8_e4m3"),
        (lambda x: x.double(), "mxfp8_e4m3"),
        (lambda x: x * torch.tensor(0.25), "mxfp8_e4m3"),
        (lambda x: x * torch.tensor(0.3), "fp32"),
        (added_to, "fp32"),
        (added_to_in_place, "fp32"),
        (part_of_it_written, "fp32"),
        (torch.cos, "fp32"),
        (lambda x: fb.fake_quantize(x, TWELVE), TWELVE),
        (lambda x: fb.fake_quantize(x, TWELVE).double(), TWELVE),
        (lambda x: fb.fake_quantize(x, TWELVE).bfloat16(), "bf16"),  # which does not hold 12 bits
        (lambda x: (x / 3).bfloat16().float(), "bf16"),
    ],
)
def test_what_is_changed_after_rounding_is_wide_again(
    change: Callable[[Tensor], Tensor], format: str
) -> None:
    assert ran(Changed(change)).linear == format


def test_values_that_only_fit_a_format_are_not_in_it() -> None:
    model = made()
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(p.sign())  # which every format has
    assert ran(model) == RanPrecision("fp32", "fp32", None, ())
    # What was stored in 16 bits and is read for products with wide weights is no 16-bit product.
    head = nn.Linear(32, 20)
    observer = PrecisionObserver(head)
    with observer:
        head(torch.randn(4, 32).half().float()).sum().backward()
    assert observer.found().linear == "fp32"


def test_what_a_caller_says_of_its_operands_is_not_believed() -> None:
    class Believing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(32, 20))

        def forward(self, x: Tensor, rounds: Choices | None) -> Tensor:
            return ops.rounded_product(x, self.weight, (fb.mxfp8_e4m3,) * 2, (rounds, rounds))

    model = Believing()
    for rounds, format in ((None, "fp32"), (Choices(overflow="saturate"), "mxfp8_e4m3")):
        observer = PrecisionObserver(model)
        with observer, torch.no_grad():
            model(torch.randn(4, 32), rounds)
        assert observer.found().linear == format


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_of_torch_are_seen(kind: type[nn.Module]) -> None:
    class Recurrent(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.head = kind(20, 20), nn.Linear(20, 20)

        def forward(self, x: Tensor) -> Tensor:
            y: Tensor = self.head(self.cell(functional.one_hot(x, 20).float())[0])
            return y

    assert ran(made(Recurrent)) == RanPrecision("fp32", None, None, ())
    assert ran(fb.prepare(made(Recurrent), "mxfp8", exclude="cell")).wide_layers == ("cell",)
    assert ran(fb.prepare(made(Recurrent), "mxfp8")) == RanPrecision("mxfp8_e4m3", None, None, ())


@pytest.mark.parametrize("reentrant", [False, True])
def test_what_is_computed_again_for_the_backward_pass_belongs_to_its_layer(reentrant: bool) -> None:
    class Again(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 20))
            self.head = nn.Linear(20, 20)

        def forward(self, x: Tensor) -> Tensor:
            rows = functional.one_hot(x, 20).float().requires_grad_()
            y: Tensor = self.head(checkpoint(self.inner, rows, use_reentrant=reentrant))
            return y

    model = fb.prepare(made(Again), "mxfp8", exclude="inner.2")
    assert ran(model) == RanPrecision("mxfp8_e4m3", None, None, ("inner.2",))


def test_an_optimizer_and_its_products_do_not_count() -> None:
    head = fb.prepare(nn.Linear(32, 20), "mxfp8")
    observer = PrecisionObserver(head)
    with observer:
        head(torch.randn(4, 32)).sum().backward()
        with torch.no_grad():  # as an optimizer that orthogonalizes has it
            functional.linear(head.weight, head.weight)
    assert observer.found() == RanPrecision("mxfp8_e4m3", None, None, ())


def test_an_optimizer_within_the_backward_pass_does_not_count_either() -> None:
    model = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 20))

    def multiply(parameter: torch.Tensor) -> None:
        assert parameter.grad is not None
        gradient = parameter.grad.bfloat16()
        _ = gradient @ gradient.T

    for parameter in model.parameters():
        if parameter.ndim == 2:
            parameter.register_post_accumulate_grad_hook(multiply)
    observer = PrecisionObserver(model)
    with observer:
        model(torch.randn(64, 32)).sum().backward()
    assert observer.found() == RanPrecision("fp32", None, None)


def test_a_wide_backward_pass_is_named() -> None:
    wide = "mxfp6:gradient=fp32"
    model = fb.prepare(nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32)), wide)
    observer = PrecisionObserver(model)
    with observer:
        model(torch.randn(64, 32)).float().pow(2).sum().backward()
    assert observer.found() == RanPrecision("mxfp6_e3m2", None, None, ("0", "2"))


class OneRow(nn.Module):
    """A layer that rounds one row and multiplies the others as they are."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(20, 32))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        row = fb.fake_quantize(x[:1], "mxfp4") @ fb.fake_quantize(self.weight, "mxfp4").t()
        return torch.cat([row, x[1:] @ self.weight.t()])


def test_one_narrow_row_hides_no_wide_ones() -> None:
    model = nn.Sequential(OneRow())
    observer = PrecisionObserver(model)
    with observer:
        model(torch.randn(64, 32)).sum().backward()
    assert observer.found().wide_layers == ("0",)


class Packed(nn.Module):
    """A layer whose product is one of torch's that the observer does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(32, 32)
        self.codes = torch.ones(32, 32, dtype=torch.int8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            scales = torch.ones(32, dtype=torch.bfloat16)
            y: torch.Tensor = torch._weight_int8pack_mm(x.bfloat16(), self.codes, scales)
        return torch.add(self.layer(x), y.float())


def test_a_product_that_is_not_known_is_refused() -> None:
    model = Packed()
    observer = PrecisionObserver(model)
    with observer:
        model(torch.randn(64, 32)).sum().backward()
    with pytest.raises(ArgumentError, match=r"aten\._weight_int8pack_mm ran, whose operands"):
        observer.found()


def test_what_was_not_seen_is_refused() -> None:
    model = made()
    observer = PrecisionObserver(model)
    with pytest.raises(ArgumentError, match="no product with a weight of the model was seen"):
        observer.found()
    x = torch.randint(20, (2, 8))
    with observer:
        loss = model(x).sum()
    with pytest.raises(ArgumentError, match="no backward pass was seen"):
        observer.found()
    with observer:
        loss.backward()
    assert observer.found() == RanPrecision("fp32", "fp32", None, ())
    late, loss = PrecisionObserver(model), model(x).sum()
    with late:
        loss.backward()
    with pytest.raises(ArgumentError, match="no forward pass was seen"):
        late.found()
    with observer, pytest.raises(ArgumentError, match="looks already"), observer:
        pass
    with pytest.raises(FormatError, match="fp7"):
        observer.found("fp7")
    compiled = torch.compile(model, backend="eager")
    assert isinstance(compiled, nn.Module)
    with pytest.raises(ArgumentError, match="was compiled"), PrecisionObserver(compiled):
        pass


def test_a_forward_pass_in_another_thread_is_noticed() -> None:
    model = made()
    observer = PrecisionObserver(model)
    with observer:
        step(model)
        other = threading.Thread(target=step, args=(model,))
        other.start()
        other.join()
    with pytest.raises(ArgumentError, match="another thread"):
        observer.found()


def test_it_leaves_nothing_behind_and_changes_no_bit() -> None:
    trainer, other = (recipe_trainer(digits_task(), "mxfp4w-mxfp6", steps=6) for _ in range(2))
    observer = PrecisionObserver(trainer.model)
    for _ in range(3):
        with observer:
            loss = trainer.step().loss
        assert loss == other.step().loss
    hooks = [h for m in trainer.model.modules() for h in (m._forward_hooks, m._forward_pre_hooks)]
    before = sum(map(len, hooks))
    kept = []
    observer = PrecisionObserver(trainer.model)
    with observer:
        assert sum(map(len, hooks)) > before
        first = fb.fake_quantize(torch.randn(1 << 16), "mxfp4")
        memory = StorageWeakRef(first.untyped_storage())
        kept = [weakref.ref(first)]
        del first
        gc.collect()
        assert kept[0]() is None
        assert memory.expired()
        trainer.step()
    assert sum(map(len, hooks)) == before
    assert observer.found() == RanPrecision("mxfp4", None, None, ())


def between(rank: int, folder: str) -> None:
    with joined(rank, folder, 2, 120):
        for codec, format in (("int8_256", "int8_256"), ("topk:density=0.1", "fp32"), ("fp16", "fp16")):
            trainer = recipe_trainer(digits_task(), "mxfp8", steps=2, codec=codec)
            observer = PrecisionObserver(trainer.model)
            with observer:
                trainer.step()
            assert trainer.together is not None
            sent = trainer.together.traffic.narrowest
            assert observer.found(sent) == RanPrecision("mxfp8_e4m3", None, format, ()), codec
            with pytest.raises(ArgumentError, match="2 processes, and what travels between them"):
                observer.found()
        plain = made()
        observer = PrecisionObserver(plain)
        with observer:  # a loss in float32 does not speak for gradients in bytes
            step(plain)
            all_reduce(torch.randn(1024), "int8_256")
            distributed.all_reduce(torch.zeros(1))
        with pytest.raises(ArgumentError, match="2 processes, and what travels between them"):
            observer.found()
        for hook, format in ((None, "fp32"), (default_hooks.fp16_compress_hook, "fp16")):
            model = nn.parallel.DistributedDataParallel(made())
            if hook is not None:
                model.register_comm_hook(None, hook)
            assert ran(model) == RanPrecision("fp32", "fp32", format, ())
        model, own = nn.parallel.DistributedDataParallel(made()), ddp_hook("mxfp6_e3m2")
        model.register_comm_hook(None, own)
        step(model)
        assert own.traffic.narrowest == "mxfp6_e3m2"
        traffic = Traffic()
        all_reduce(torch.randn(100), "fp32", traffic=traffic)
        assert traffic.formats == {"fp32": 150}
        all_reduce(torch.randn(100), "mxfp4", traffic=traffic)
        assert traffic.formats == {"fp32": 150, "mxfp4": 164 if rank == 0 else 136}
        assert traffic.narrowest == "mxfp4"
        own.close()


def test_two_processes_say_what_travelled_between_them(tmp_path: Path) -> None:
    run(between, tmp_path, 2, 120)


def test_the_narrowest_format_has_the_fewest_bits_in_an_element() -> None:
    assert narrowest(["bf16", "mxfp8_e4m3", "mxfp4", "fp32"]) == "mxfp4"
    assert narrowest(["mxfp4", "nvfp4"]) == "mxfp4"  # 4.25 and 4.5 bits with scales
    assert narrowest(["fp8_e4m3", "fp8_e5m2"]) == narrowest(["fp8_e5m2", "fp8_e4m3"]) == "fp8_e5m2"
    assert narrowest(["fp64", "fp32"]) == "fp32"
    assert narrowest([]) is None
