"""Two runs do not write to one folder at once."""

from dataclasses import replace
from pathlib import Path
from statistics import fmean

import pytest

from fewbits.errors import ArgumentError
from fewbits.train import Settings, run
from fewbits.train.step import Step

SETTINGS = Settings("digits", "fp32", steps=4)


def test_a_second_run_is_refused_and_the_first_one_reports_its_own_losses(tmp_path: Path) -> None:
    losses: list[float] = []

    def begin_another(step: Step) -> None:
        losses.append(step.loss)
        with pytest.raises(ArgumentError, match=f"another run is writing to {tmp_path}; wait for it, or"):
            run(replace(SETTINGS, steps=2), tmp_path)

    first = run(SETTINGS, tmp_path, callback=begin_another)
    assert first.losses == tuple(losses)
    assert first.final_loss == pytest.approx(fmean(losses))
    assert run(SETTINGS, tmp_path).losses == first.losses  # the folder is free again, and the bits are those
