"""The proposal for a checkpoint: what cast would write, and what a model says."""

import itertools
import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import fewbits as fb
from fewbits.cli import main as cli
from fewbits.compare.checkpoint import decibels, measure_checkpoint
from fewbits.compare.sensitivity import Probe, sensitivities
from fewbits.errors import ArgumentError, DataError
from fewbits.files import cast
from fewbits.formats import parse
from fewbits.report.tensor_kinds import by_kind

FORMATS = ("mx9", "mxfp8_e4m3", "int8_channel", "mxfp6_e2m3", "mx6", "nvfp4", "mxfp4", "int4_channel", "mx4")

MODULE = """
import torch
from safetensors.torch import load_file
from tests.compare.test_proposal import network

def load():
    model = network()
    model.load_state_dict(load_file({path!r}))
    return model, [torch.randn(32, 64, generator=torch.Generator().manual_seed(1))]
"""
_NUMBERS = itertools.count()


class Gated(nn.Module):
    """A large table that its outputs hardly depend on, and a small matrix that they hang on."""

    def __init__(self) -> None:
        super().__init__()
        self.wide = nn.Linear(64, 512)
        self.back = nn.Linear(512, 64)
        self.blocks = nn.ModuleList(nn.Linear(64, 64) for _ in range(4))
        self.norm = nn.LayerNorm(64)
        self.head = nn.Linear(64, 48)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        x = x + 0.01 * self.back(torch.relu(self.wide(x)))
        for block in self.blocks:
            x = self.norm(x + torch.relu(block(x)))
        return {"ids": torch.arange(3), "hidden": self.head(x)}


def network() -> Gated:
    torch.manual_seed(0)
    return Gated().eval()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save_file(network().state_dict(), "m.safetensors")
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


@pytest.fixture
def own(place: Path) -> str:
    """MODULE:FUNCTION in the current folder; each has a name of its own, as Python keeps what it imported."""
    name = f"proposal_models_{next(_NUMBERS)}"
    Path(f"{name}.py").write_text(MODULE.format(path=str(place / "m.safetensors")))
    return f"{name}:load"


def output_qsnr(path: str) -> float:
    """What a file's weights do to the outputs, by loading it back."""
    model, exact = network(), network()
    model.load_state_dict(load_file(path))
    x = torch.randn(32, 64, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        new, old = model(x)["hidden"].double(), exact(x)["hidden"].double()
    return float(10 * torch.log10(old.square().sum() / (new - old).square().sum()))


@pytest.mark.parametrize("formats", [("mxfp4", "bf16"), ("mxfp4", "int8_channel", "bf16", "fp32")])
def test_a_format_that_holds_the_weights_exactly_does_not_make_narrow_ones_free(
    own: Any, formats: tuple[str, ...]
) -> None:
    weights = load_file("m.safetensors")
    save_file({name: w.bfloat16().float() for name, w in weights.items()}, "m.safetensors")
    report = measure_checkpoint("m.safetensors", formats, min_qsnr_db=40, model=own)
    assert report.output_qsnr_db >= 40
    assert all(t.sensitivity > 0 for t in report.tensors if t.castable)


@pytest.mark.parametrize("bound", [12.0, 20.0, 30.0])
@pytest.mark.parametrize("through", [False, True])
def test_what_is_proposed_is_what_cast_writes_and_what_its_outputs_keep(
    own: Any, capsys: pytest.CaptureFixture[str], bound: Any, through: Any
) -> None:
    asked = ["compare", "m.safetensors", "--formats", ",".join(FORMATS), "--min-qsnr", str(bound)]
    asked += ["--json", "p.json", *(["--model", own] if through else [])]
    assert cli.run(asked) == 0, capsys.readouterr().err
    told = json.loads(Path("p.json").read_text())["checkpoint"]
    assert cli.run(["cast", "m.safetensors", "n.safetensors", "--map", "p.json", "--json", "c.json"]) == 0
    written = json.loads(Path("c.json").read_text())["cast"]
    assert {t["tensor"]: t["format"] for t in written["tensors"]} == {
        t["tensor"]: t["proposed"] for t in told["tensors"]
    }
    assert {t["tensor"]: t["bytes_after"] for t in written["tensors"]} == {
        t["tensor"]: t["proposed_bytes"] for t in told["tensors"]
    }
    assert written["bytes_after"] == told["proposed_bytes"]
    assert cli.run(["cast", "--back", "n.safetensors", "b.safetensors"]) == 0
    if through:
        assert told["output_qsnr_db"] >= bound
        assert output_qsnr("b.safetensors") == pytest.approx(told["output_qsnr_db"], abs=0.1)
    else:
        assert told["weight_qsnr_db"] >= bound
        assert told["output_qsnr_db"] == "nan"


def test_at_as_many_bytes_the_model_keeps_more_of_its_outputs_than_a_bound_for_each_tensor(own: Any) -> None:
    each = {}
    for bound in (25.0, 30.0):
        scores = measure_checkpoint("m.safetensors", FORMATS, min_qsnr_db=bound)
        rules = {}
        for t in (t for t in scores.tensors if t.castable):
            good = [s for s in scores.scores if s.tensor == t.tensor and s.error.qsnr_db >= bound]
            rules[t.tensor] = min(good, key=lambda s: s.packed_bytes).format
        size = cast("m.safetensors", f"e{bound:g}.safetensors", map=rules).bytes_after
        from fewbits.files import restore

        restore(f"e{bound:g}.safetensors", f"r{bound:g}.safetensors")
        each[size] = output_qsnr(f"r{bound:g}.safetensors")
    for size, qsnr in each.items():
        fit = measure_checkpoint("m.safetensors", FORMATS, min_qsnr_db=qsnr, model=own)
        assert fit.output_qsnr_db >= qsnr
        assert fit.proposed_bytes < 0.9 * size
    # The large table, which the outputs hardly see, takes the fewest bits.
    bits = {t.tensor: 8 * t.proposed_bytes / max(t.stored_bytes // 4, 1) for t in fit.tensors if t.castable}
    assert bits["wide.weight"] < bits["head.weight"]


def test_vectors_and_what_the_model_does_not_have_are_kept(own: Any) -> None:
    save_file(network().state_dict() | {"extra": torch.randn(32, 32)}, "m2.safetensors")
    report = measure_checkpoint("m2.safetensors", ["mxfp4"], min_qsnr_db=5, model=own)
    reasons = {t.tensor: (t.reason, t.proposed, t.castable) for t in report.tensors}
    assert reasons["norm.weight"] == ("fewer than two axes: kept, as fewbits cast does", None, False)
    assert reasons["extra"] == ("the model has no parameter of this name: kept", None, True)
    assert reasons["head.weight"][1] == "mxfp4"


def test_a_weight_that_the_middle_format_holds_exactly_is_not_taken_for_one_without_effect(own: Any) -> None:
    state = network().state_dict()
    save_file(state | {"head.weight": fb.fake_quantize(state["head.weight"], "mx6")}, "m.safetensors")
    report = measure_checkpoint("m.safetensors", ["mx4", "mx6", "mx9"], min_qsnr_db=25, model=own)
    assert report.output_qsnr_db >= 25
    assert next(t.proposed for t in report.tensors if t.tensor == "head.weight") == "mx6"


def test_a_model_is_measured_where_only_some_formats_have_the_scale_rule(own: Any) -> None:
    formats = ["mxfp4", "int8_channel"]
    report = measure_checkpoint("m.safetensors", formats, min_qsnr_db=20, model=own, scale_rule="ceil")
    assert report.output_qsnr_db >= 20


def test_a_format_in_which_a_weight_overflows_does_not_measure_it() -> None:
    model, x = nn.Linear(4, 4, bias=False), torch.ones(2, 4)
    nn.init.constant_(model.weight, 1e5)
    found = sensitivities(Probe(model, [x]), {"weight": (4, 4)}, [parse("fp16"), parse("mx4")], "floor")
    assert math.isfinite(found["weight"])


def test_outputs_that_are_all_zero_are_refused() -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4, bias=False))
    nn.init.zeros_(model[1].weight)
    probe, shapes = Probe(model, [torch.ones(2, 4)]), {"0.weight": (4, 4)}
    with pytest.raises(DataError, match="outputs are all zero before anything is rounded"):
        sensitivities(probe, shapes, [parse("mx4")], "floor")
    assert probe.noise(probe.outputs(), {"0.weight": parse("mx4")}, "floor") == 0  # bit for bit the same
    nn.init.ones_(model[1].weight)
    assert sensitivities(probe, shapes, [parse("mx4")], "floor")["0.weight"] > 0


def test_outputs_that_become_nan_are_not_taken_for_exact() -> None:
    class Cancels(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = super().forward(x)  # FP16 makes infinity of the weights
            return y - y + 1.0

    model = Cancels(4, 4, bias=False)
    nn.init.constant_(model.weight, 1e5)
    probe = Probe(model, [torch.ones(2, 4)])
    noise = probe.noise(probe.outputs(), {"weight": parse("fp16")}, "floor")
    assert decibels(noise) == -math.inf


def test_the_model_is_what_it_was_after_it_was_measured(place: Path) -> None:
    model = network()
    x = torch.randn(4, 64)
    probe = Probe(model, [x, (x,), {"x": x}])
    before = {name: w.clone() for name, w in model.state_dict().items()}
    assert probe.noise(probe.outputs(), {"head.weight": parse("mx4")}, "floor") > 0
    assert all(torch.equal(w, before[name]) for name, w in model.state_dict().items())


def test_a_model_with_other_values_is_measured_with_those_of_the_checkpoint(own: Any, place: Path) -> None:
    name = f"proposal_models_{next(_NUMBERS)}"
    text = MODULE.format(path="m.safetensors")
    Path(f"{name}.py").write_text(
        text.replace("model.load_state_dict", "for p in model.parameters(): p.data.fill_(0.5)\n    len")
    )
    kept, told = (
        measure_checkpoint("m.safetensors", FORMATS, min_qsnr_db=20, model=model)
        for model in (own, f"{name}:load")
    )
    assert [t.sensitivity for t in told.tensors if t.castable] == [
        t.sensitivity for t in kept.tensors if t.castable
    ]
    assert told.output_qsnr_db == kept.output_qsnr_db
    assert {t.proposed for t in told.tensors} == {t.proposed for t in kept.tensors} != {None}


def test_a_function_that_gives_no_model_of_the_checkpoint_is_refused(place: Path) -> None:
    name = f"proposal_models_{next(_NUMBERS)}"
    Path(f"{name}.py").write_text(
        "import torch\ndef other(): return torch.nn.Linear(2, 2), [torch.ones(2)]\nnone = lambda: 1\n"
    )
    for function, error, said in (
        ("other", DataError, "no tensor of a name of the model's"),
        ("none", ArgumentError, "has to return"),
        ("gone", ArgumentError, "has no function gone"),
    ):
        with pytest.raises(error, match=said):
            measure_checkpoint("m.safetensors", ["mxfp4"], min_qsnr_db=5, model=f"{name}:{function}")


def test_tensors_that_are_left_out_by_name_are_neither_measured_nor_proposed(place: Path) -> None:
    report = measure_checkpoint(
        "m.safetensors", ["mxfp4"], min_qsnr_db=5, include=["blocks.*"], exclude=["*.0.*"]
    )
    assert {s.tensor for s in report.scores if s.tensor.endswith("weight")} == {
        f"blocks.{i}.weight" for i in (1, 2, 3)
    }
    reasons = {t.tensor: t.reason for t in report.tensors if t.proposed is None}
    assert reasons["head.weight"] == reasons["blocks.0.weight"] == "left out by name: kept"
    with pytest.raises(ArgumentError, match="include='q' matches no tensor"):
        measure_checkpoint("m.safetensors", ["mxfp4"], include=["q"])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[]", "no report of a checkpoint"),
        ("{", "is not JSON"),
        ('{"checkpoint": {"tensors": []}}', "no report"),
        (
            '{"checkpoint": {"tensors": [{"tensor": "w", "proposed": "mx5"}], "scale_rule": "floor"}}',
            "p.json: there is no format named 'mx5'",
        ),
    ],
)
def test_a_map_that_is_no_proposal_is_refused(
    place: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    Path("p.json").write_text(text)
    assert cli.run(["cast", "m.safetensors", "n.safetensors", "--map", "p.json"]) == 2
    assert said in capsys.readouterr().err
    assert cli.run(["cast", "m.safetensors", "n.safetensors", "--map", "gone.json"]) == 2
    assert "is no file, and not PATTERN=FORMAT" in capsys.readouterr().err


def test_the_scale_rule_of_a_proposal_is_taken_over_and_no_other_is_mixed_in(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["compare", "m.safetensors", "--formats", "mxfp4", "--min-qsnr", "10", "--scale-rule", "ceil"]
    assert cli.run([*asked, "--json", "p.json"]) == 0
    words = ["cast", "m.safetensors", "n.safetensors", "--map", "p.json", "--json", "c.json"]
    assert cli.run([*words, "--scale-rule", "floor"]) == 2
    assert "measured with --scale-rule ceil" in capsys.readouterr().err
    assert cli.run(words) == 0
    assert json.loads(Path("c.json").read_text())["cast"]["scale_rule"] == "ceil"


def test_tensors_of_one_kind_are_one_row_with_the_worst_of_them(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = measure_checkpoint("m.safetensors", ["mxfp4"], min_qsnr_db=5)
    kinds = by_kind(report)
    names = [t.tensor for t in kinds.tensors]
    assert "blocks.*.weight (4)" in names
    assert "head.weight" in names
    assert len(set(names)) == len(names) == 8 + 2
    assert kinds.proposed_bytes == report.proposed_bytes
    assert kinds.stored_bytes == report.stored_bytes
    worst = min(s.error.qsnr_db for s in report.scores if s.tensor.startswith("blocks") and len(s.shape) == 2)
    assert [s.error.qsnr_db for s in kinds.scores if s.tensor == "blocks.*.weight (4)"] == [worst]
    assert cli.run(["compare", "m.safetensors", "--formats", "mxfp4", "--min-qsnr", "5"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "That does not say what its outputs lose" in said
    assert "is one kind of 16 tensors in all" in said
