"""Experts of mixtures, which are no layers: what is measured is what cast stores, and what stays is named."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import fewbits as fb
from fewbits.compare import Perplexity, WeightCast, compare_text_model
from fewbits.compare.weight_cast import cast_weights
from fewbits.files import cast, restore
from fewbits.formats import parse
from fewbits.ptq import cast_model

pytest.importorskip("transformers")
from fewbits.integrations.language_model import load_language_model
from fewbits.integrations.stored_rows import stored_rows
from tests.integrations import tiny

pytestmark = pytest.mark.filterwarnings("ignore")  # of transformers


@pytest.mark.parametrize("kind", ["mixtral", "gpt_oss"])
@pytest.mark.parametrize("format", ["mxfp4", "nvfp4", "int8_channel", "int8_tensor"])
def test_every_matrix_is_that_of_cast(tmp_path: Path, kind: str, format: str) -> None:
    tiny.mixture(kind).save_pretrained(tmp_path / "a")
    cast(
        tmp_path / "a",
        tmp_path / "n",
        format=parse(format),
        exclude=("*embed*", "*norm*", "*k_proj*"),
    )
    restore(tmp_path / "n", tmp_path / "b")
    shutil.copy(tmp_path / "a" / "config.json", tmp_path / "b")
    model, stored = (load_language_model(tmp_path / name) for name in "ab")
    before = {name: p.clone() for name, p in model.named_parameters()}
    rows = stored_rows(tmp_path / "a", model)
    assert bool(rows) == (kind == "mixtral")
    weights = WeightCast(exclude=("*k_proj*",), stored_rows=rows)
    with cast_weights(model, parse(format), weights) as changed:
        found = {name: p.clone() for name, p in model.named_parameters()}
    assert found.keys() == before.keys()
    for name, p in stored.named_parameters():
        assert torch.equal(found[name], p), name
        assert torch.equal(model.get_parameter(name), before[name])
    experts = [n for n in before if n.endswith("gate_up_proj")]
    assert experts
    assert not torch.equal(found[experts[0]], before[experts[0]])
    wide = dict(changed.left_wide)
    assert {"model.embed_tokens.weight", "model.layers.0.self_attn.k_proj.weight"} <= wide.keys()
    assert experts[0] not in wide
    total = sum(p.numel() for p in before.values())
    assert changed.cast_parameters + changed.other_parameters == total
    assert wide["model.embed_tokens.weight"] == 128 * 64 / total
    assert {t.layer for t in changed.layers} >= set(experts)


def test_with_its_own_scale_each_expert_is_another_matrix(tmp_path: Path) -> None:
    tiny.mixture("mixtral").save_pretrained(tmp_path)
    model = load_language_model(tmp_path)
    found = []
    for rows in ({}, stored_rows(tmp_path, model)):
        with cast_weights(model, parse("int8_tensor"), WeightCast(stored_rows=rows)):
            found.append(model.get_parameter("model.layers.0.mlp.experts.down_proj").clone())
    assert not torch.equal(*found)  # the control: the stored tensors matter


def test_experts_are_selected_by_name_and_tensors_that_are_unknown_stay_and_are_named(tmp_path: Path) -> None:
    model = tiny.mixture("mixtral")
    up = "model.layers.0.mlp.experts.gate_up_proj"
    ids = torch.arange(64)[None]
    for weights in (WeightCast(exclude=("*.experts",)), WeightCast(stored_rows={up: None})):
        (score,) = compare_text_model(model, Perplexity(ids), formats=["mxfp4"], weights=weights)
        assert score.left_wide[0][0] == up
        assert score.left_wide[0][1] > 0.3
    with cast_weights(model, parse("mxfp4"), WeightCast(include=("*.experts",))) as changed:
        assert [t.layer for t in changed.layers] == [up, up.replace("gate_up", "down")]
    with pytest.raises(fb.ArgumentError, match="fits no module"):
        compare_text_model(model, Perplexity(ids), weights=WeightCast(include=("experts",)))


def test_gptq_names_the_experts_that_it_rounds(tmp_path: Path) -> None:
    tiny.mixture("mixtral").save_pretrained(tmp_path / "a")
    model: Any = load_language_model(tmp_path / "a")
    assert isinstance(model, nn.Module)
    batches = [{"input_ids": torch.arange(64)[None], "use_cache": False}]
    how = {"format": "mxfp4", "exclude": ("*embed*",)}
    _, report = cast_model(tmp_path / "a", tmp_path / "n", model, batches, **how)
    reasons = {x.layer: (x.reason, x.format, x.vectors) for x in report.layers}
    expected = ("of no such layer: rounded to nearest", "mxfp4", 0)
    assert reasons["model.layers.0.block_sparse_moe.experts.3.w2.weight"] == expected
    assert reasons["model.layers.0.self_attn.q_proj"][0] == ""
    assert "model.embed_tokens.weight" not in reasons
