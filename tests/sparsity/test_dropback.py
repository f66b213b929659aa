"""A fixed budget of weights: equal to the dense definition, exact, small, resumable, and it learns."""

import copy
import gc
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional

from fewbits.errors import ArgumentError, DataError
from fewbits.sparsity import DropBack
from tests.sparsity.dense_dropback import DenseDropBack, published


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))


class Images(nn.Module):
    """A convolution, a norm with running statistics, and a layer that is never used."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8)
        self.unused, self.last = nn.Linear(3, 3), nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(functional.relu(self.norm(self.first(x.view(-1, 1, 8, 8)))).mean((2, 3)))


class Words(nn.Module):
    """An embedding, attention and a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(17, 16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.norm, self.last = nn.LayerNorm(16), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.table((x * 16).long())
        return self.last(self.norm(x + self.attention(x, x, x)[0]).mean(1))


def digits() -> tuple[Tensor, Tensor]:
    data = pytest.importorskip("sklearn.datasets").load_digits()
    return torch.tensor(data.data, dtype=torch.float32) / 16, torch.tensor(data.target)


def batches(n: int, size: int = 32) -> Iterator[tuple[Tensor, Tensor]]:
    x, y = digits()
    for i in range(n):
        yield x[size * i : size * (i + 1)], y[size * i : size * (i + 1)]


def train(model: nn.Module, optimizer: Any, steps: int, first: int = 0) -> None:
    for i, (x, y) in enumerate(batches(first + steps)):
        if i >= first:
            optimizer.zero_grad()
            functional.cross_entropy(model(x), y).backward()
            optimizer.step()


def flat(optimizer: DropBack) -> np.ndarray:
    return torch.cat([v.flatten() for v in optimizer.dense_parameters().values()]).numpy()


@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(
    ("make", "budget"), [(perceptron, 700), (perceptron, 30_000), (Images, 60), (Words, 300)]
)
def test_it_is_the_dense_definition_bit_for_bit(
    make: Callable[[], nn.Module], budget: int, momentum: float
) -> None:
    mine, plain = make(), make()
    how = {"lr": 0.2 if momentum == 0 else 0.02, "momentum": momentum, "seed": 3, "gain": 1.4}
    optimizer, dense = DropBack(mine, budget, **how), DenseDropBack(plain, budget, **how)
    for first in range(4):
        train(mine, optimizer, 1, first)
        train(plain, dense, 1, first)
        assert (flat(optimizer) == dense.initial + dense.change).all()
        assert optimizer.tracked == (dense.change != 0).sum() <= budget
    optimizer.freeze()
    dense.frozen = dense.kept & (dense.change != 0)
    train(mine, optimizer, 2, 4)
    train(plain, dense, 2, 4)
    assert (flat(optimizer) == dense.initial + dense.change).all()
    assert all(torch.equal(*pair) for pair in zip(mine.buffers(), plain.buffers(), strict=True))


def test_the_budget_is_exact_and_shared_by_all_layers() -> None:
    model = perceptron()
    optimizer = DropBack(model, 1000, lr=0.2)
    initial = flat(optimizer)
    for first in range(5):
        train(model, optimizer, 1, first)
        assert optimizer.tracked == 1000
        assert (flat(optimizer) != initial).sum() <= 1000
    control = DenseDropBack(perceptron(), 1000, lr=0.2)
    control.choose = published
    plain = perceptron()
    control.parameters = list(plain.parameters())
    train(plain, control, 2)
    assert control.kept.sum() != 1000


def accuracy_of(choice: str, seed: int) -> float:
    x, y = digits()
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    seen, held = order[:1347], order[1347:]
    model = perceptron()
    optimizer = DenseDropBack(model, 2000, lr=0.2, seed=seed)
    if choice == "zero":
        optimizer.rest = -optimizer.initial
    for _ in range(5):
        for part in seen.split(32):
            optimizer.zero_grad()
            functional.cross_entropy(model(x[part]), y[part]).backward()
            optimizer.step()
    with torch.no_grad():
        return float((model(x[held]).argmax(1) == y[held]).float().mean())


def test_a_reset_to_zero_collapses_where_initial_values_learn() -> None:
    for seed in range(3):
        assert accuracy_of("initial", seed) > 0.8
        assert accuracy_of("zero", seed) < 0.2


def test_it_learns_with_one_weight_in_thirteen() -> None:
    x, y = digits()
    model = perceptron()
    optimizer = DropBack(model, 2000, lr=0.2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.8)
    for _ in range(3):
        train(model, optimizer, 42)
        schedule.step()
    with torch.no_grad():
        assert float((model(x[1347:]).argmax(1) == y[1347:]).float().mean()) > 0.8
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.2 * 0.8**3)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_seed_and_pairs_are_a_checkpoint(tmp_path: Path, momentum: float) -> None:
    model, again = perceptron(), perceptron()
    optimizer = DropBack(model, 500, lr=0.1, momentum=momentum, seed=2**63 + 5)
    train(model, optimizer, 3)
    optimizer.save(tmp_path / "w.safetensors")
    assert (tmp_path / "w.safetensors").stat().st_size < 500 * (12 if momentum else 8) + 1000
    other = DropBack(again, 500, lr=0.3, momentum=momentum)
    other.load(tmp_path / "w.safetensors")
    assert flat(other).tobytes() == flat(optimizer).tobytes()
    train(model, optimizer, 3, 3)
    train(again, other, 3, 3)
    assert flat(other).tobytes() == flat(optimizer).tobytes()
    unlike = DropBack(perceptron(), 500, lr=0.1, seed=1)
    assert flat(unlike).tobytes() != flat(optimizer).tobytes()


@pytest.mark.parametrize("make", [Images, Words])
def test_a_dense_copy_of_the_model_has_the_same_outputs(make: Callable[[], nn.Module]) -> None:
    model, plain = make(), make()
    optimizer = DropBack(model, 100, lr=0.1)
    train(model, optimizer, 2)
    plain.load_state_dict({**dict(model.named_buffers()), **optimizer.dense_parameters()})
    x, _ = next(batches(1))
    with torch.no_grad():
        assert torch.equal(model.eval()(x), plain.eval()(x))


def test_no_dense_tensor_is_left_between_steps() -> None:
    def odd() -> nn.Module:
        return nn.Sequential(nn.Linear(64, 131), nn.ReLU(), nn.Linear(131, 10))

    def found() -> list[Tensor]:
        gc.collect()
        tensors = [x for x in gc.get_objects() if type(x) in (Tensor, nn.Parameter)]
        return [x for x in tensors if x.numel() in (64 * 131, 131 * 10, 75 * 131 + 10)]

    model = odd()
    optimizer = DropBack(model, 100, lr=0.1)
    train(model, optimizer, 2)
    assert not found()
    assert optimizer.nbytes() == 100 * 8 + 4 * 4
    held = odd()  # the control
    assert len(found()) == 2
    del held


MEASURED = """
import torch
from torch import nn
from fewbits.sparsity import DropBack

torch.set_num_threads(1)
WIDTH = 1024  # a layer has 4 MiB

def resident(what):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith(what))

def more(depth, device, budget):
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # the peak starts here
    before = resident("VmRSS")
    with torch.device(device):
        model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(depth)))
    optimizer = DropBack(model, budget, lr=0.1) if budget else torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(torch.ones(2, WIDTH)).square().mean().backward()
        optimizer.step()
    return resident("VmHWM") - before

more(2, "meta", 1000)  # what is loaded when first used
print(more(4, "meta", 1000), more(20, "meta", 1000), more(4, "meta", 3_000_000), more(20, "cpu", 0))
"""


@pytest.mark.peak_memory
def test_memory_grows_with_the_budget_and_not_with_the_model() -> None:
    """Peaks of one process in MiB: of 16 and of 80 MiB of weights, of a larger budget, of a plain model."""
    if not Path("/proc/self/clear_refs").exists():
        pytest.skip("this system does not start the peak of a process anew")
    # Memory that is freed goes back at once: else the peak would be one of the allocator.
    environment = {
        "MALLOC_MMAP_THRESHOLD_": "65536",
        "MALLOC_TRIM_THRESHOLD_": "65536",
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, "-c", MEASURED], capture_output=True, text=True, check=True, env=environment
    )
    small, deep, large, plain = map(float, done.stdout.split())
    assert deep < 40, done.stdout  # half of its weights
    assert deep - small < 8, done.stdout
    assert large - small > 30, done.stdout  # 3 million pairs are 34 MiB
    assert plain > 100, done.stdout  # the control


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": 0}, "budget=0"),
        ({"budget": 2.5}, "budget=2.5"),
        ({"budget": "10"}, "budget='10'"),
        ({"lr": "0.1"}, "lr='0.1'"),
        ({"momentum": None}, "momentum=None"),
        ({"seed": 1.0}, "as seed an integer from 0"),
        ({"lr": 0.0}, "learning rate"),
        ({"momentum": 1.0}, "momentum from 0"),
        ({"seed": -1}, "seed=-1"),
        ({"gain": 0.0}, "gain above 0"),
        ({"lr": torch.ones(2)}, "a learning rate and a gain above 0"),
    ],
)
def test_values_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ArgumentError, match=message):
        DropBack(perceptron(), **{"budget": 10, "lr": 0.1, **options})


def test_models_that_cannot_be_are_refused() -> None:
    tied = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    tied[1].weight = tied[0].weight
    with pytest.raises(ArgumentError, match=r"1\.weight is tied"):
        DropBack(tied, 5, lr=0.1)
    with pytest.raises(ArgumentError, match=r"torch\.float64; expected float32"):
        DropBack(nn.Linear(2, 2).double(), 5, lr=0.1)
    with pytest.raises(ArgumentError, match="no parameters"):
        DropBack(nn.ReLU(), 5, lr=0.1)


class Frozen(nn.Module):
    """A frozen embedding, one with padding that is trained, and a layer of which the weight is frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.fixed = nn.Embedding(17, 64).requires_grad_(False)
        self.table = nn.Embedding(17, 64, padding_idx=3)
        self.first, self.last = nn.Linear(64, 64), nn.Linear(64, 10)
        self.first.weight.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        words = (x * 16).long()
        return self.last(functional.relu(self.first(self.fixed(words) + self.table(words)).mean(1)))


def test_frozen_parameters_keep_their_values_and_padding_is_zero() -> None:
    model = Frozen()
    frozen = {name: p.clone() for name, p in model.named_parameters() if not p.requires_grad}
    optimizer = DropBack(model, 400, lr=0.5)
    assert optimizer.weights == 17 * 64 + 64 + 64 * 10 + 10
    start = optimizer.dense_parameters()["table.weight"]
    for i in range(3):
        assert not model.table.weight[3].any()
        assert all(torch.equal(model.get_parameter(name), value) for name, value in frozen.items())
        train(model, optimizer, 1, i)
    words = torch.arange(17) != 3
    assert not torch.equal(model.table.weight[words], start[words])
    assert (model.table.weight != start).sum() <= optimizer.tracked == 400
    spread = start[words].std() * 17**0.5  # of fan_in 64: 1 / 8
    assert float(spread) == pytest.approx(17**0.5 / 8, rel=0.1)

    plain = Frozen()
    plain.load_state_dict(optimizer.dense_parameters())
    x, _ = next(batches(1))
    with torch.no_grad():
        assert torch.equal(model(x), plain(x))
    other, second = copy.deepcopy((model, optimizer))
    train(other, second, 1, 3)
    train(model, optimizer, 1, 3)
    assert all(torch.equal(v, second.dense_parameters()[k]) for k, v in optimizer.dense_parameters().items())


def test_what_would_not_be_trained_is_refused() -> None:
    model = perceptron()
    optimizer = DropBack(model, 50, lr=0.1)
    with pytest.raises(ArgumentError, match="a second group of parameters"):
        optimizer.add_param_group({"params": [nn.Parameter(torch.ones(3))]})
    assert len(optimizer.param_groups) == 1
    with pytest.raises(ArgumentError, match="0 has sparse gradients; make the embedding with sparse=False"):
        DropBack(nn.Sequential(nn.Embedding(4, 4, sparse=True)), 5, lr=0.1)
    with pytest.raises(ArgumentError, match="no parameters to train; expected some that are not frozen"):
        DropBack(nn.Linear(4, 4).requires_grad_(False), 5, lr=0.1)
    meta = nn.Sequential(nn.Linear(4, 4, device="meta").requires_grad_(False), nn.Linear(4, 4))
    with pytest.raises(ArgumentError, match=r"0\.weight is frozen and on the meta device"):
        DropBack(meta, 5, lr=0.1)


def test_a_second_gradient_is_refused_and_a_forgotten_one_is_forgotten() -> None:
    model = perceptron()
    optimizer = DropBack(model, 50, lr=0.1)
    before = flat(optimizer)
    x, y = next(batches(1))
    functional.cross_entropy(model(x), y).backward()
    with pytest.raises(ArgumentError, match="second gradient before a step"):
        functional.cross_entropy(model(x), y).backward()
    optimizer.zero_grad()
    optimizer.step()
    assert flat(optimizer).tobytes() == before.tobytes()

    def closure() -> float:
        loss = functional.cross_entropy(model(x), y)
        loss.backward()
        return loss.item()

    assert optimizer.step(closure) > 0
    assert optimizer.tracked == 50


def test_states_of_other_models_and_damaged_ones_are_refused(tmp_path: Path) -> None:
    model = perceptron()
    optimizer = DropBack(model, 50, lr=0.1)
    train(model, optimizer, 1)
    state = optimizer.state_dict()
    with pytest.raises(ArgumentError, match="a state of 50 among 26122 weights"):
        DropBack(nn.Linear(3, 3), 50, lr=0.1).load_state_dict(state)
    with pytest.raises(ArgumentError, match="for a budget of"):
        DropBack(perceptron(), 49, lr=0.1).load_state_dict(state)
    for index in (state["index"].flip(0), state["index"][1:], state["index"] + 26_122):
        with pytest.raises(DataError, match="damaged"):
            optimizer.load_state_dict({**state, "index": index})
    save_file({"w": torch.ones(2)}, tmp_path / "w.safetensors")
    with pytest.raises(DataError, match=r"expected a file that DropBack\.save wrote"):
        optimizer.load(tmp_path / "w.safetensors")
    for about in ("no JSON", "[]", "{}"):
        save_file({"index": state["index"]}, tmp_path / "d.safetensors", {"dropback": about})
        with pytest.raises(DataError, match=r"damaged; expected a file that DropBack\.save wrote"):
            optimizer.load(tmp_path / "d.safetensors")
    for nothing in (
        {},
        None,
        {**state, "param_groups": []},
        {**state, "change": None},
        {**state, "gain": "1"},
    ):
        with pytest.raises(ArgumentError, match=r"is no state; expected what state_dict"):
            optimizer.load_state_dict(nothing)
    assert str(optimizer.state_dict()) == str(state)


@pytest.mark.parametrize(
    "options",
    [
        {"lr": torch.tensor(0.25)},
        {"lr": np.float32(0.25), "seed": np.int64(7), "budget": np.int32(50)},
        {"lr": 0.25, "gain": torch.tensor(2.0), "momentum": np.float32(0.5)},
    ],
)
def test_numbers_of_torch_and_numpy_are_saved_as_any_others(tmp_path: Path, options: dict[str, Any]) -> None:
    model, again, plain = perceptron(), perceptron(), perceptron()
    optimizer = DropBack(model, **{"budget": 50, **options})
    train(model, optimizer, 2)
    optimizer.save(tmp_path / "w.safetensors")
    momentum = float(options.get("momentum", 0.0))
    other = DropBack(again, 50, lr=0.1, momentum=momentum)
    other.load(tmp_path / "w.safetensors")
    numbers = {name: float(x) if name not in ("seed", "budget") else int(x) for name, x in options.items()}
    alike = DropBack(plain, **{"budget": 50, **numbers})
    train(plain, alike, 2)
    assert flat(other).tobytes() == flat(optimizer).tobytes() == flat(alike).tobytes()
    assert (other.param_groups[0]["lr"], other.param_groups[0]["momentum"]) == (0.25, momentum)


def some() -> tuple[nn.Module, DropBack, Tensor]:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))
    return model, DropBack(model, 20, lr=0.1, momentum=0.5), torch.randn(5, 8)


def scaler() -> torch.amp.GradScaler:
    made = torch.amp.GradScaler("cpu")
    made.scale(torch.ones(()))  # makes its lazily initialized state, as a loop does
    return made


@pytest.mark.parametrize(
    "use",
    [
        lambda ps, _: nn.utils.clip_grad_norm_(ps, 1e-3),
        lambda ps, _: nn.utils.clip_grad_norm_(ps, 1e-3, foreach=False),
        lambda ps, _: nn.utils.clip_grad_value_(ps, 1e-3),
        lambda ps, _: nn.utils.get_total_norm([p.grad for p in ps]),
        lambda ps, _: ps[0].grad.mul_(0.5),
        lambda ps, _: ps[0].grad / 2,
        lambda _, o: scaler().unscale_(o),
        lambda _, o: scaler().step(o),
    ],
)
def test_whatever_would_read_or_change_a_gradient_is_refused(use: Callable[..., Any]) -> None:
    model, optimizer, x = some()
    for _ in range(2):
        model(x).sum().backward()
        with pytest.raises(
            ArgumentError, match="cannot be read, clipped, unscaled or averaged; leave clip_grad"
        ):
            use(list(model.parameters()), optimizer)
        optimizer.step()
        assert all(p.grad is None for p in model.parameters())


def test_gradients_of_several_processes_are_not_left_apart() -> None:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    model, optimizer, x = some()
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        model(x).sum().backward()
        with pytest.raises(ArgumentError, match="group of 2 processes"):
            optimizer.step()
    finally:
        torch.distributed.destroy_process_group()


def test_a_copy_of_a_model_computes_the_same_and_keeps_its_values() -> None:
    model, optimizer, x = some()
    model(x).sum().backward()
    optimizer.step()
    twin, before = copy.deepcopy(model), model(x).detach()
    assert torch.equal(twin(x), before)
    model(x).sum().backward()
    optimizer.step()
    assert torch.equal(twin(x), before)
    assert not torch.equal(model(x), before)


class Sequence(nn.Module):
    """A recurrent layer, all of it trained or its biases alone."""

    def __init__(self, kind: type[nn.RNNBase], matrices: bool) -> None:
        super().__init__()
        self.layer, self.last = kind(16, 137), nn.Linear(137, 3)
        for name, p in self.layer.named_parameters():
            p.requires_grad_(matrices or "bias" in name)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.layer(x)[0])


@pytest.mark.parametrize(("kind", "matrices"), [(nn.GRU, False), (nn.LSTM, True), (nn.RNN, True)])
def test_recurrent_layers_list_no_weights_between_steps_and_are_copied(
    kind: type[nn.RNNBase], matrices: bool
) -> None:
    model, x = Sequence(kind, matrices), torch.randn(5, 2, 16)
    optimizer = DropBack(model, 50, lr=0.1)
    sizes = {p.numel() for p in Sequence(kind, matrices).layer.parameters() if p.requires_grad}

    def listed() -> list[Tensor]:
        gc.collect()
        return [t for t in gc.get_objects() if type(t) in (Tensor, nn.Parameter) and t.numel() in sizes]

    assert not listed()  # what the layer was made with is gone
    model(x).square().sum().backward()
    optimizer.step()
    assert not listed()
    twin, before = copy.deepcopy(model), model(x).detach()
    assert torch.equal(twin(x), before)
    model(x).square().sum().backward()
    optimizer.step()
    assert torch.equal(twin(x), before)
    assert not torch.equal(model(x), before)


def test_a_copy_of_model_and_optimizer_trains_on_as_they_do() -> None:
    model, optimizer, x = some()
    model(x).sum().backward()  # a copy between the gradient and its step has the gradient too
    pairs = [(model, optimizer), copy.deepcopy((model, optimizer))]
    for one, own in pairs:
        own.step()
        for _ in range(3):
            one(x).square().sum().backward()
            own.step()
    assert torch.equal(pairs[0][0](x), pairs[1][0](x))
    assert np.array_equal(flat(pairs[0][1]), flat(pairs[1][1]))
    assert pairs[1][1].param_groups[0]["params"][0] is next(pairs[1][0].parameters())


def test_a_second_optimizer_of_one_model_is_refused() -> None:
    model, _, _ = some()
    with pytest.raises(ArgumentError, match="has a DropBack optimizer"):
        DropBack(model, 20, lr=0.1)


class Dropped(nn.Module):
    """A matrix of its own, and draws in the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, 16))

    def forward(self, x: Tensor) -> Tensor:
        return functional.dropout(x @ self.weight)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.GRU(16, 16, 2, dropout=0.5),
        lambda: nn.LSTM(16, 8, 3, dropout=0.3, bidirectional=True),
        Dropped,
        lambda: nn.TransformerEncoderLayer(16, 2, 16, dropout=0.4),
        lambda: nn.MultiheadAttention(16, 2, dropout=0.5),
    ],
    ids=["gru", "lstm", "own", "transformer", "attention"],
)
def test_what_a_layer_draws_is_drawn_again_in_backward(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(0)
    model, dense, x = make(), make(), torch.randn(5, 3, 16)
    optimizer = DropBack(model, sum(p.numel() for p in model.parameters()), lr=0.5)
    dense.load_state_dict(optimizer.dense_parameters())
    for module in (model, dense):
        torch.manual_seed(1)
        y = module(x, x, x) if isinstance(module, nn.MultiheadAttention) else module(x)
        (y[0] if isinstance(y, tuple) else y).square().sum().backward()
    optimizer.step()
    stepped = optimizer.dense_parameters()
    for name, p in dense.named_parameters():
        torch.testing.assert_close(stepped[name], (p - 0.5 * p.grad).detach(), rtol=1e-4, atol=1e-4)
