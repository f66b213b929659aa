"""What people do in training loops works on a prepared model: accumulate, clip, recompute, compile."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from fewbits.nn import prepare
from fewbits.optim import AdamW, scaler

MX = "mx:weight=mxfp6_e3m2,activation=mxfp6_e3m2,gradient=mxfp6_e3m2/rceil,vector=fp32"


def mlp(chosen: str) -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(40, 64), nn.GELU(), nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 10)
    )
    return prepare(model, chosen)


def batch(rows: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    return torch.randn(rows, 40, generator=draw), torch.randint(10, (rows,), generator=draw)


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return nn.functional.cross_entropy(model(x), y)


def gradients(model: nn.Module) -> list[torch.Tensor]:
    return [p.grad for p in model.parameters() if p.grad is not None]


# Blocks of a weight's gradient run along the batch: half of 64 rows is one whole block, half of 32 is not.
_CASES = [("fp32", 64, 1e-6), (MX, 64, 1e-6), (MX, 32, 0.05)]


@pytest.mark.parametrize(("chosen", "rows", "tolerance"), _CASES)
def test_gradients_of_two_half_batches_add_up(chosen: str, rows: int, tolerance: float) -> None:
    once, twice = mlp(chosen), mlp(chosen)
    x, y = batch(rows)
    loss_of(once, x, y).backward()
    for half, labels in zip(x.chunk(2), y.chunk(2), strict=True):
        (loss_of(twice, half, labels) / 2).backward()
    apart = [float((a - b).norm() / a.norm()) for a, b in zip(gradients(once), gradients(twice), strict=True)]
    assert max(apart) < tolerance
    assert rows == 64 or max(apart) > 1e-3


@pytest.mark.parametrize("chosen", ["fp32", "mxfp6", "fp16-master"])
def test_torchs_clipping_and_the_optimizers_own_agree(chosen: str) -> None:
    ours, theirs = mlp(chosen), mlp(chosen)
    x, y = batch()
    optimizer, amount = AdamW(ours.parameters(), recipe=chosen), 0.1
    for model in (ours, theirs):
        loss_of(model, x, y).backward()
    before = optimizer.clip_(amount)
    wanted = nn.utils.clip_grad_norm_(theirs.parameters(), amount)
    assert before == pytest.approx(float(wanted), rel=1e-3)
    for a, b in zip(gradients(ours), gradients(theirs), strict=True):
        # What is shrunk stays in float32 until the step, where torch rounds it to the parameter's dtype.
        torch.testing.assert_close(a, b.float(), rtol=2e-3, atol=1e-6)
    norm = torch.linalg.vector_norm(torch.stack([g.float().norm() for g in gradients(ours)]))
    assert float(norm) == pytest.approx(amount, rel=2e-3)


def test_packed_gradients_are_clipped_and_unscaled_together() -> None:
    model, (x, y) = mlp("fp8-stochastic"), batch()
    optimizer, scale = AdamW(model.parameters(), recipe="fp8-stochastic"), scaler("fp8-stochastic")
    scale.scale(loss_of(model, x, y)).backward()
    norm = optimizer.clip_(0.1, loss_scale=scale.get_scale())
    assert norm > 0.1
    after = torch.stack([g.norm() for _, g in optimizer.gradients()]).norm() / scale.get_scale()
    assert float(after) == pytest.approx(0.1, rel=1e-3)
    before = [p.detach().clone() for p in model.parameters()]
    scale.step(optimizer)
    assert all(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize("chosen", ["mxfp8", "mx6", "posit8"])
def test_recomputing_activations_changes_no_bit(chosen: str) -> None:
    plain, recomputed = mlp(chosen), mlp(chosen)
    x, y = batch()
    loss_of(plain, x, y).backward()
    hidden = checkpoint(recomputed[:3], x, use_reentrant=False)
    nn.functional.cross_entropy(recomputed[3:](hidden).float(), y).backward()
    for a, b in zip(gradients(plain), gradients(recomputed), strict=True):
        assert torch.equal(a, b)


def losses(model: nn.Module, chosen: str, steps: int = 5) -> list[float]:
    x, y = batch()
    optimizer, found = AdamW(model.parameters(), lr=3e-3, recipe=chosen), []
    for _ in range(steps):
        loss = loss_of(model, x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(float(loss.detach()))
    return found


@pytest.mark.slow  # it compiles C++
@pytest.mark.filterwarnings("ignore")  # the compiler's own, of any autograd.Function
def test_a_compiled_model_trains_as_an_eager_one_does() -> None:
    torch._dynamo.reset()
    wanted = losses(mlp("mxfp8"), "mxfp8")
    found = losses(torch.compile(mlp("mxfp8")), "mxfp8")
    # Inductor keeps what it fuses in float32 where eager torch rounds to bfloat16 in between.
    assert found == pytest.approx(wanted, rel=5e-3)
    assert found[-1] < 0.9 * found[0]
