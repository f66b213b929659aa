"""Error feedback by the portable backend has the bits of the definition."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from fewbits.formats import Format
from fewbits.kernels import force_backend, ops
from fewbits.kernels.bits.layout import packed
from fewbits.kernels.bits.options import Choices, Options
from fewbits.kernels.bits.reals import BFLOAT16
from fewbits.kernels.ops.tensors import array
from fewbits.kernels.reference.feedback.feedback import quantize_with_feedback as defined
from tests import cases
from tests.kernels.ops.test_flat import views
from tests.native.definition import difference, possible
from tests.native.feedback.test_feedback import TYPES, inputs


def tensor(x: Any) -> torch.Tensor:
    """Return an array as a tensor; uint16 is bfloat16."""
    made = torch.from_numpy(x.copy())
    return made.view(torch.bfloat16) if x.dtype == BFLOAT16 else made


def rounded(
    x: torch.Tensor, residual: torch.Tensor, fmt: Format, chosen: Options
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Return the pieces that are written and the residual that is left."""
    pieces = views(fmt, x.numel())
    choices = Choices(chosen.rounding, nonfinite=chosen.nonfinite)
    ops.quantize_with_feedback(x, residual, fmt, choices, chosen.seed, pieces)
    return [piece for piece in pieces if piece is not None], residual


@pytest.fixture(autouse=True)
def _forced() -> Iterator[None]:
    force_backend("portable")
    yield
    force_backend(None)


@pytest.mark.parametrize(
    ("fmt", "rows"), cases.by_first(cases.pairs(cases.FORMATS, (0, 1, 33, 1025), TYPES, cases.ROUNDINGS))
)
def test_every_format_equals_the_definition(fmt: Format, rows: list[Any]) -> None:
    for n, dtype, rounding in rows:
        chosen = possible(fmt, rounding=rounding)
        if chosen is None:
            continue
        x, residual = inputs(fmt, n, dtype, chosen)
        parts, left = defined(x, residual, fmt, chosen)
        found, rest = rounded(tensor(x), tensor(residual), fmt, chosen)
        wanted = [part for part in packed(parts, fmt) if part is not None]
        for mine, theirs in zip((*found, rest), (*wanted, left), strict=True):
            assert difference(None, array(mine), theirs, f"{n} {dtype} {rounding}") is None


def test_what_an_infinity_leaves_over_is_zero() -> None:
    """The control: infinity less infinity would be NaN for ever after."""
    chosen = possible(cases.FORMATS[0], rounding="nearest_even")
    assert chosen is not None
    x = torch.tensor([torch.inf, 1.03, -torch.inf])
    _, left = rounded(x, torch.zeros(3), cases.FORMATS[0], chosen)
    assert left[0] == left[2] == 0
