"""The stand-in for cost: a proxy that counts bits. Only its order is tested, and its unit."""

import pytest

from fewbits.formats import area_memory_proxy, parse
from tests import cases


def proxy(name: str) -> float:
    """Return the proxy of a named format."""
    return area_memory_proxy(parse(name))


def test_the_proxy_of_fp8_e4m3_is_one() -> None:
    assert proxy("fp8_e4m3") == 1
    assert proxy("fp8_e4m3_tensor") == pytest.approx(1, rel=0.01)


@pytest.mark.parametrize(
    "order",
    [
        ("binary", "int4", "int8", "fp8_e4m3", "fp16", "bf16", "tf32", "fp32"),
        ("fp4_e2m1", "fp6_e2m3", "fp6_e3m2", "fp8_e4m3"),
        ("mx4", "mx6", "mx9", "mxfp8_e4m3"),
        ("mx4", "mxfp4", "mxfp6_e2m3", "mxfp8_e4m3"),
        ("msfp12", "msfp13", "msfp14", "msfp15", "msfp16"),
        ("vsq4", "vsq6", "vsq8"),
    ],
)
def test_more_bits_of_the_same_kind_cost_more(order: tuple[str, ...]) -> None:
    costs = [proxy(name) for name in order]
    assert costs == sorted(costs)
    assert len(set(costs)) == len(costs)


def test_mx6_costs_at_most_half_of_fp8() -> None:
    # With Shared Microexponents, section 4: about twofold advantage in area times memory.
    assert proxy("mx6") < 0.5


@pytest.mark.parametrize("fmt", cases.FORMATS, ids=cases.label)
def test_every_format_has_a_positive_cost_and_its_scales_are_not_free(fmt: cases.Format) -> None:
    assert area_memory_proxy(fmt) > 0
    if isinstance(fmt, cases.Block) and isinstance(fmt.size, int):
        assert area_memory_proxy(fmt) > area_memory_proxy(fmt.element)


def test_a_scale_per_channel_counts_as_a_block_as_long_as_the_channel() -> None:
    channel = parse("int4_channel")
    block = "block(element={},scale=fp32,size={})"
    for length in (16, 64, 256):
        as_block = parse(block.format(channel.element, length))
        assert area_memory_proxy(channel, length) == area_memory_proxy(as_block) > area_memory_proxy(channel)
    assert area_memory_proxy(parse("int8_tensor"), 8) == area_memory_proxy(parse("int8_tensor"))


def test_a_channel_that_ends_within_a_block_pays_for_its_whole_scale() -> None:
    names = [f"block(element=int(4,coding=symmetric),scale=fp16,size={size})" for size in (8, 32, 128)]
    short = [area_memory_proxy(parse(name), 8) for name in names]
    assert short == [proxy(names[0])] * 3
    assert area_memory_proxy(parse("mxfp4"), 64) == proxy("mxfp4")


def test_a_table_costs_what_its_values_cost_and_not_its_codes() -> None:
    # The same three values as codes of an integer and of a table: 0 and 1 are one bit of a multiplier.
    assert proxy("lookup(-1,0,1)") == proxy("int(2,coding=symmetric)")
    assert proxy("lookup(-5,0,1,5)") == proxy("lookup(-0.625,0,0.125,0.625)")  # integers of a step of 1/8
    assert proxy("lookup(-1,0,0.9990234375,1)") > 10 * proxy("lookup(-1,0,0.5,1)")  # eleven bits, and two


def test_an_integer_scale_is_multiplied_with_as_a_float_is() -> None:
    shared = "block(element=int(4,coding=symmetric),scale={},size=16,outer=fp32)"
    assert proxy(shared.format("int(4,coding=unsigned)")) == proxy(shared.format("float(e=1,m=3)"))
