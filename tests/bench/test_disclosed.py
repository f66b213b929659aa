"""Names of precision in logs, and claims that are held to what ran."""

import importlib.util
from pathlib import Path

import pytest

from fewbits.bench.disclosed import ACCEPTED, check_claim, claimed_linear, logged_name, merged, never_ran
from fewbits.errors import ArgumentError
from fewbits.recipes import RECIPES, recipe
from fewbits.records import RanPrecision


def test_the_list_is_that_of_the_official_checker() -> None:
    found = importlib.util.find_spec("mlperf_logging")
    assert found is not None
    assert found.origin is not None
    folder = Path(found.origin).parent / "compliance_checker" / "training_6.1.0"
    assert f"v['value'] in {list(ACCEPTED)}" in (folder / "common.yaml").read_text("utf-8")


@pytest.mark.parametrize(
    ("format", "name"),
    [
        ("fp64", "fp64"), ("fp32", "fp32"), ("tf32", "tf32"), ("bf16", "bfloat16"), ("fp16", "fp16"),
        ("mxfp8_e4m3", "fp8"), ("fp8_e5m2", "fp8"), ("fp8_e4m3_tensor", "fp8"), ("mxfp6_e2m3", "mxfp6"),
        ("block(element=fp8_e4m3,scale=e8m0,size=tensor)", "fp8"), ("mxfp4", "mxfp4"), ("nvfp4", "nvfp4"),
        ("int8_256", "int8"), ("mxint8", "int8"), ("int(8)", "int8"), ("hfp8_e4m3", "fp8"),
    ],
)  # fmt: skip
def test_formats_have_the_names_of_the_list(format: str, name: str) -> None:
    assert logged_name(format) == name
    assert name in ACCEPTED


@pytest.mark.parametrize("format", ["posit8_1", "posit16_1", "mx9", "fixed16_f14", "fp6_e3m2", "fp16_e6m9"])
def test_a_format_without_a_name_is_refused_by_its_own(format: str) -> None:
    with pytest.raises(ArgumentError, match=f"format {format} has no name in the list"):
        logged_name(format)


@pytest.mark.parametrize(
    ("name", "format"),
    [
        ("fp32", "fp32"), ("mxfp6", "mxfp6_e3m2"), ("mxfp4w-mxfp6", "mxfp4"), ("fp16-master", "fp16"),
        ("amp-bf16", "bf16"), ("tf32", "tf32"), ("mxfp6-finetune", "mxfp6_e3m2"),
    ],
)  # fmt: skip
def test_a_recipe_claims_its_narrowest_operand(name: str, format: str) -> None:
    assert claimed_linear(recipe(name)) == [format]
    check_claim(recipe(name), RanPrecision(format, None, None))


def test_a_claim_that_did_not_run_is_refused() -> None:
    with pytest.raises(ArgumentError, match="mxfp6 claims products in mxfp6_e3m2, and what ran had fp32"):
        check_claim(RECIPES["mxfp6"], RanPrecision("fp32", None, None))
    with pytest.raises(ArgumentError, match="fp32 claims products in fp32, and what ran had mxfp4"):
        check_claim(RECIPES["fp32"], RanPrecision("mxfp4", None, None))
    check_claim(RECIPES["muppet"], RanPrecision("bf16", None, None))  # which changes its formats


def test_a_format_that_is_spelled_out_is_the_one_that_is_claimed() -> None:
    spelled = RanPrecision("block(element=fp6_e3m2,scale=e8m0,size=32)", None, None)
    check_claim(RECIPES["mxfp6"], spelled)


def test_of_equally_wide_formats_each_may_be_named() -> None:
    claimed = claimed_linear(RECIPES["fp8-lm"])
    assert claimed == [f"block(element=fp8_{e},scale=e8m0,size=tensor)" for e in ("e4m3", "e5m2")]
    for format in claimed:
        check_claim(RECIPES["fp8-lm"], RanPrecision(format, None, None))
    with pytest.raises(ArgumentError, match=r"claims products in block.* or block"):
        check_claim(RECIPES["fp8-lm"], RanPrecision("bf16", None, None))


def test_what_was_seen_at_several_steps_is_its_narrowest() -> None:
    seen = [
        RanPrecision("fp32", None, "fp32", ("a",)),
        RanPrecision("mxfp4", "bf16", None, ("b", "a")),
        RanPrecision("bf16", "mxfp8_e4m3", "int8", ()),
    ]
    steps = (
        "linear in some steps: fp32, bf16",
        "attention in some steps: bf16",
        "communication in some steps: fp32",
    )
    assert merged(seen) == RanPrecision("mxfp4", "mxfp8_e4m3", "int8", ("a", "b", *steps))
    assert merged(seen[1:2] * 2) == seen[1]


def test_a_recipe_whose_format_never_ran_says_so() -> None:
    warm_up = recipe("posit8")
    assert warm_up.schedule
    assert "has posit8_1 or posit8_2, which never ran: products were in fp32" in never_ran(
        warm_up, RanPrecision("fp32", None, None)
    )
    assert never_ran(warm_up, RanPrecision("posit8_1", None, None)) == ""
    assert never_ran(recipe("mxfp6"), RanPrecision("mxfp6_e3m2", None, None)) == ""
