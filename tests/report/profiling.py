"""Profiles that look like real ones."""

from dataclasses import replace

from fewbits.records import FlameNode, MachineLimits, ProfiledOperation, StepProfile
from fewbits.records.profiling import REST

LIMITS = MachineLimits(2, 20e9, 25e9, {"float32": 1e11, "bfloat16": 4e11}, 2e-6)
LAYER = "decoder.stages.17.feed_forward.experts.17.down_projection"


def record(recipe: str = "mxfp8") -> StepProfile:
    """A step of ten milliseconds: all classes, one product that rounds inside, one operation in a cache."""
    rows = (
        ProfiledOperation("aten::mm", "forward", LAYER, 3, 3e-3, 1e6, 6e8, 1.5e-3, "compute", "bfloat16"),
        ProfiledOperation("fewbits::rounded_product", "backward", LAYER, 2, 2.5e-3, 1e6, 4e8, 1e-3, "compute",
                          "float32", rounds_inside=True),
        ProfiledOperation("aten::_scaled_dot_product_flash_attention_for_cpu_backward", "backward", "mix", 1,
                          1e-3, 1e6, 1e8, 1e-3, "compute", "float32"),
        ProfiledOperation("fewbits::fake_quantize", "rounding", LAYER, 9, 1.5e-3, 4e6, 1e6, 2e-4, "memory",
                          "float32", strided=True),
        ProfiledOperation("aten::add_", "optimizer", "", 17, 1e-3, 4e7, 1e6, 2e-3, "memory", "float32"),
        ProfiledOperation("waiting and Python", "communication", "", 0, 5e-4),
        ProfiledOperation("Python", "forward", LAYER, 0, 2e-4),
        ProfiledOperation("aten::index", "data", "", 1, 1e-4, 100.0, 4.0, 2e-6, "calls", ""),
        ProfiledOperation("Python", REST, "", 0, 2e-4),
    )  # fmt: skip
    flame = (
        FlameNode("forward", -1, "forward", 3.2e-3),
        FlameNode(LAYER, 0, "forward", 3.2e-3),
        FlameNode("aten::mm", 1, "forward", 3e-3),
        FlameNode("backward", -1, "backward", 3.5e-3),
        FlameNode("fewbits::fake_quantize", 3, "rounding", 1.5e-3),
    )
    advice = ("fewbits::fake_quantize (rounding): 1.50 ms, 15% of the step, in 9 calls, 13% of the limit",)
    return StepProfile("bytes", recipe, 2, 10, 8, 8e-3, 1.2e-2, 1e-2, rows, flame, LIMITS, 4e-4, advice)


def beside() -> list[StepProfile]:
    """The same step by two recipes, one of which rounds nothing."""
    plain = record("fp32")
    rows = tuple(o for o in plain.operations if o.kind != "rounding")
    return [replace(plain, operations=rows, seconds=sum(o.seconds for o in rows), advice=()), record()]
