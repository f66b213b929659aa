"""The learning rates of each step, against torch's scheduler and against literals."""

import pytest
import torch

from fewbits.train.learning_rates import linear_warm_up, one_cycle, polynomial


# With 10 steps torch's own scheduler divides zero by zero.
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize("steps", [1, 2, 9, 11, 57, 400, 2000])
@pytest.mark.parametrize("peak", [1e-2, 1.4e-2, 0.37])
def test_one_cycle_is_torchs_own_bit_for_bit(peak: float, steps: int) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=peak)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, peak, total_steps=steps, pct_start=0.1, cycle_momentum=False
    )
    for step in range(steps):
        assert one_cycle(peak, step, steps) == optimizer.param_groups[0]["lr"]
        if step < steps - 1:
            scheduler.step()


def test_one_cycle_of_ten_steps_starts_at_its_peak() -> None:
    assert one_cycle(0.5, 0, 10) == 0.5
    assert one_cycle(0.5, 9, 10) == pytest.approx(0.5 / 25 / 1e4)


def test_the_linear_warm_up_reaches_its_peak_after_a_tenth_and_ends_near_zero() -> None:
    rates = [linear_warm_up(2.0, step, 40) for step in range(40)]
    assert rates[:4] == [0.5, 1.0, 1.5, 2.0]
    assert rates[4] == 2.0
    assert rates[22] == pytest.approx(1.0)
    assert rates[39] == pytest.approx(0.0038, abs=1e-4)
    assert linear_warm_up(2.0, 0, 1) == 2.0


def test_polynomial_decay_warms_up_for_a_tenth_and_falls_as_the_square_of_what_is_left() -> None:
    rates = [polynomial(2.0, step, 40) for step in range(40)]
    assert rates[:5] == [0.5, 1.0, 1.5, 2.0, 2.0]
    assert rates[4:] == pytest.approx([2.0 * ((40 - step) / 36) ** 2 for step in range(4, 40)])
    assert rates[39] == pytest.approx(2.0 / 36**2)
    assert polynomial(2.0, 0, 1) == 2.0
