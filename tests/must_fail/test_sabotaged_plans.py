"""Plans for the compiled kernels with one wrong number each: the comparison reports them all."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fewbits import _native
from fewbits.formats import parse
from fewbits.kernels import native
from fewbits.kernels.bits.options import options
from fewbits.kernels.native.jobs import plan
from fewbits.kernels.native.jobs.kernel_format import kernel_format
from tests.native import inputs
from tests.native.definition import CONVERTING, defined, difference, differences


def changed(field: str, by: Callable[[Any], Any]) -> Callable[[_native.Format], None]:
    """Return what changes one field of a plan."""

    def change(p: _native.Format) -> None:
        owner: Any = p
        *path, last = field.split(".")
        for step in path:
            owner = getattr(owner, step)
        setattr(owner, last, by(getattr(owner, last)))

    return change


WRONG: tuple[tuple[str, dict[str, str], str, Callable[[Any], Any]], ...] = (
    ("fp8_e4m3", {}, "grid.limit_above", lambda v: v - 1),
    ("fp8_e4m3", {}, "grid.limit_below", lambda v: v + 1),
    ("fp8_e4m3", {}, "grid.emin", lambda v: v + 1),
    ("fp8_e4m3", {}, "grid.nan", lambda v: v - 1),
    ("fp8_e4m3", {}, "grid.signed_zero", lambda v: not v),
    ("fp8_e5m2", {}, "grid.inf", lambda v: v + 1),
    ("fp8_e5m2", {}, "overflow", lambda _: _native.Overflow.saturate),
    ("int8", {}, "grid.sign", lambda _: _native.Sign.bit),
    ("int8", {}, "rounding", lambda _: _native.Rounding.nearest_away),
    ("int8", {"rounding": "stochastic"}, "seed", lambda v: v + 1),
    ("posit8_1", {"rounding": "stochastic"}, "seed", lambda v: v ^ 2**40),
    ("mxfp4", {"scale_rule": "rceil"}, "rule_first", lambda v: v - 1),
    ("mxfp8_e4m3", {"scale_rule": "midmax"}, "rule_first", lambda v: v + 1),
    ("mxfp8_e4m3", {"scale_rule": "even"}, "rule_first", lambda v: v - 1),
    ("mxfp8_e4m3", {"scale_rule": "double_floor"}, "rule_plus", lambda _: 0),
    ("mxfp6_e2m3", {"scale_rule": "oas"}, "rule_first", lambda v: v + 1),
    ("mxfp4", {}, "emax", lambda v: v + 1),
    ("mxfp4", {}, "scale_emin", lambda v: v + 1),
    ("mxfp4", {}, "scale_emax", lambda v: v - 8),
    ("mxfp4", {}, "scale_zero", lambda v: v + 1),
    ("mxfp4", {}, "scale_nan", lambda v: v - 1),
    ("mxfp4", {}, "nonfinite", lambda _: _native.Nonfinite.saturate),
    ("mx6", {}, "largest_shift", lambda _: 0),
    ("nvfp4", {}, "fill", lambda v: v * (1 + 2.0**-7)),
    ("nvfp4", {}, "scale_smallest", lambda v: v + 1),
    ("nvfp4", {}, "scale_of_zeros", lambda v: v + 1),
    ("int8_channel", {}, "scale_of_zeros", lambda v: v + 1),
    ("int8_channel", {}, "element_max", lambda v: v + 1),
)


@pytest.mark.parametrize(("name", "choice", "field", "by"), WRONG, ids=[f"{w[0]}-{w[2]}" for w in WRONG])
def test_a_plan_with_one_wrong_number_is_reported(
    name: str,
    choice: dict[str, str],
    field: str,
    by: Callable[[Any], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fmt = parse(name)
    chosen = options(fmt, seed=3, **choice)
    x = inputs.single(fmt, True)
    x = inputs.finite(x) if chosen.nonfinite == "raise" else x
    if name == "nvfp4":  # one scale serves all: with magnitudes of every size there would be little but zeros
        x = np.random.default_rng(0).standard_normal((300, 97)).astype(np.float32)
        x *= np.exp2(np.random.default_rng(1).integers(-25, 1, (300, 1))).astype(np.float32)
    x = np.concatenate([x, np.zeros((1, x.shape[1]), np.float32)])
    expected = defined(x, fmt, 1, chosen)
    try:
        assert differences(x, fmt, 1, chosen, expected=expected) == []
        right = kernel_format(fmt, chosen)
        assert right is not None
        wrong = _native.Format(right)
        changed(field, by)(wrong)
        plan.plan.cache_clear()
        monkeypatch.setattr(plan, "kernel_format", lambda *_: wrong)
        # The seed comes with the options and overwrites the plan's own.
        asked = options(fmt, seed=by(3), **choice) if field == "seed" else chosen
        assert differences(x, fmt, 1, asked, expected=expected) != []
    finally:
        plan.plan.cache_clear()
        native.force_isa(None)


@pytest.mark.parametrize("part", ["codes", "scales", "shifts"])
def test_one_flipped_bit_of_a_packed_part_is_reported(part: str) -> None:
    fmt = parse("mx6")
    chosen = options(fmt)
    x = inputs.single(fmt, False)
    expected = defined(x, fmt, 1, chosen)
    flipped = getattr(expected.parts, part).copy()
    flipped.flat[1234] ^= 0x10
    wrong = expected._replace(parts=expected.parts._replace(**{part: flipped}))
    try:
        found = differences(x, fmt, 1, chosen, expected=wrong)
    finally:
        native.force_isa(None)
    told = f": {part}: 1 of {flipped.size} differ, first at 1234"
    named = [sentence for sentence in found if told in sentence]
    assert len(named) == len(CONVERTING)


def test_one_flipped_bit_of_the_values_is_reported() -> None:
    x = inputs.finite(inputs.single(parse("mxfp4"), False))
    values = defined(x, parse("mxfp4"), 1, options(parse("mxfp4"))).values
    wrong = values.copy()
    wrong.view(np.uint32).flat[1234] ^= 1
    said = difference(x, wrong, values, "values")
    assert said is not None
    place = f"first at 1234 ({float(x.flat[1234]).hex()})"
    assert said.startswith(f"values: 1 of {x.size} differ, {place} became")


def test_a_lost_sign_of_zero_and_another_shape_are_reported() -> None:
    zeros = np.zeros(3, np.float32)
    assert difference(zeros, zeros, -zeros, "values") is not None
    assert difference(None, zeros, zeros[:2], "values") is not None
    assert difference(zeros, np.full(3, np.nan, np.float32), np.full(3, -np.nan, np.float32), "v") is None
