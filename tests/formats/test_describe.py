"""A format as text: every fact that a reader of its specification would look up."""

import pytest

from fewbits.formats import describe, facts, parse
from tests import cases


@pytest.mark.parametrize("fmt", [*cases.FORMATS, *cases.MADE], ids=cases.label)
def test_a_format_prints_its_own_table_one_fact_to_a_line(fmt: cases.Format) -> None:
    lines = repr(fmt).splitlines()
    assert repr(fmt) == describe(fmt)
    assert len(lines) == len(facts(fmt))
    for line, (what, value) in zip(lines, facts(fmt), strict=True):
        assert line.startswith(what)
        assert line.endswith(value)
        assert "\n" not in value


def test_a_catalogued_format_names_its_source_and_a_new_one_has_none() -> None:
    assert dict(facts(parse("mxfp4")))["source"].startswith("OCP Microscaling Formats (MX) v1.0")
    assert "source" not in dict(facts(parse("float(e=3,m=4)")))


def test_the_facts_of_nvfp4_and_e4m3_are_these() -> None:
    nvfp4 = dict(facts(parse("nvfp4")))
    assert nvfp4["scale"] == "fp8_e4m3, one per 16 values"
    assert nvfp4["outer scale"] == "fp32, one per tensor"
    e4m3 = dict(facts(parse("fp8_e4m3")))
    assert {k: e4m3[k] for k in ("largest", "smallest normal", "smallest subnormal", "not numbers")} == {
        "largest": "448",
        "smallest normal": "0.015625",
        "smallest subnormal": "0.001953125",
        "not numbers": "one NaN",
    }
    assert dict(facts(parse("mx9")))["microexponent"] == "a shift by 0 to 1, one per 2 values"
