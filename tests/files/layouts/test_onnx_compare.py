"""What is measured on a model in ONNX is what a cast of it does."""

from pathlib import Path

import numpy as np
import pytest

from fewbits.cli import main as cli
from fewbits.compare import measure_checkpoint
from fewbits.files import cast, inspect
from tests.files.layouts.onnx_models import SUMS, initializers, saved, weights

onnx = pytest.importorskip("onnx", minversion="1.23")

pytestmark = pytest.mark.filterwarnings("ignore")


def test_errors_are_those_of_the_cast_along_the_sums_of_products(tmp_path: Path) -> None:
    values = weights()
    values["up"] *= np.float32(8) ** np.arange(-4, 4).repeat(8)[:, None]  # the rows differ: the axis matters
    wide = saved(tmp_path / "wide.onnx", values=values)
    for fmt in ("mxfp4", "int4_channel", "nvfp4"):
        told = cast(wide, tmp_path / "narrow.onnx", format=fmt, layout="onnx")
        done = {t.tensor: t.error for t in told.tensors if t.format is not None}
        report = measure_checkpoint(wide, [fmt])
        measured = {score.tensor: score for score in report.scores}
        assert set(measured) == set(done) == set(SUMS)
        for name, score in measured.items():
            error = done[name]
            assert error is not None
            assert score.error.qsnr_db == pytest.approx(error.qsnr_db, abs=1e-9)
            assert score.shape == values[name].shape
        kept = {t.tensor: t for t in report.tensors if t.tensor not in SUMS}
        assert not any(t.castable for t in kept.values())
        assert "does not multiply it as a weight" in kept["ids"].reason


def test_the_proposal_for_a_model_is_a_map_that_its_cast_takes(tmp_path: Path) -> None:
    wide, choice = str(saved(tmp_path / "wide.onnx")), tmp_path / "c.json"
    assert cli.run(["compare", wide, "--formats", "mxfp4,int8_channel", "--json", str(choice)]) == 0
    assert set(SUMS) <= {name for name in initializers(Path(wide)) if name in choice.read_text()}
    to = str(tmp_path / "narrow.onnx")
    assert cli.run(["cast", wide, to, "--layout", "onnx", "--map", str(choice)]) == 0
    assert {t.tensor for t in inspect(to).tensors if t.format is not None} == set(SUMS)
