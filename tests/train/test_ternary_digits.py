"""What ternary weights cost a model that is trained with them."""

from pathlib import Path
from statistics import fmean

import pytest

from fewbits.train import Settings, run

SEEDS = (0, 1, 2)


def accuracy(recipe: str, folder: Path) -> float:
    """Return the mean accuracy on held-out digits, in percent."""
    return fmean(run(Settings("digits", recipe, seed=s), folder / f"{hash(recipe)}-{s}").value for s in SEEDS)


@pytest.mark.slow
def test_ternary_weights_are_within_two_points_of_fp32_on_digits(tmp_path: Path) -> None:
    wide = accuracy("fp32", tmp_path)
    assert wide > 95
    assert accuracy("ternary", tmp_path) > wide - 2
    # The control: without a scale, weights below a half are zero, and nothing is learnt.
    assert accuracy("ternary:weight=ternary", tmp_path) < wide - 2
