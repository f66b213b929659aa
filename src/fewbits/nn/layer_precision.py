"""How a prepared layer computes: its recipe, its exemptions and its observer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch

from fewbits import kernels
from fewbits.errors import ArgumentError
from fewbits.formats import Format
from fewbits.graphs import constant_in_graphs
from fewbits.kernels import ops
from fewbits.kernels.bits.options import Choices
from fewbits.recipes import Recipe, RoleFormat
from fewbits.recipes.rounding import round_as

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


class Observer(Protocol):
    """Is called with every tensor that a prepared layer rounds; :func:`fewbits.nn.prepare` takes one."""

    def observe(
        self, precision: LayerPrecision, role: str, x: torch.Tensor, rounded: torch.Tensor, axis: int
    ) -> None:
        """Look at a tensor and its rounded values.

        Args:
            precision: of the layer; ``precision.layer`` is its name.
            role: an operand of the recipe, as ``forward_weight``; or, where float16 flows between products,
                ``result_gradient``, ``input_gradient`` or ``weight_gradient``, a float32 gradient and what
                float16 makes of it, or ``arriving_gradient``, of the layer that gives the logits, which is
                float16 already.
            x: before rounding.
            rounded: after it, of the same shape.
            axis: along which blocks lie.
        """


class Operand(NamedTuple):
    """One factor of a product.

    Attributes:
        values: (..., rows, columns).
        format: of the values, with its blocks along the axis of the sum; None for any numbers.
        choices: how the product rounds them to it; None where they are rounded.
        parts: codes and scales of what they are rounded to along the axis of the sum, where those are there.
    """

    values: torch.Tensor
    format: Format | None
    choices: Choices | None = None
    parts: tuple[torch.Tensor | None, ...] = ()

    @property
    def rounding(self) -> tuple[Format, Choices]:
        """What the product rounds the values to, and how, where it does."""
        assert self.format is not None
        assert self.choices is not None
        return self.format, self.choices

    @property
    def mT(self) -> Operand:  # noqa: N802  # as torch names it
        """The transpose of each matrix."""
        return self._replace(values=self.values.mT)

    def rounded(self, axis: int) -> torch.Tensor:
        """Return the values as the product takes them, which sums along ``axis``."""
        if self.choices is None:
            return self.values
        assert self.format is not None
        axis %= self.values.ndim
        return ops.fake_quantize(self.values.detach(), self.format, axis, self.choices, 0, None)


@constant_in_graphs  # torch.compile cannot look into the questions
def _has_fast_bfloat16() -> bool:
    """Whether PyTorch's own products of bfloat16 run on units for them, which takes less than packing.

    Not with tiles, by which ours take less.
    """
    units = bool(torch.cpu._is_amx_tile_supported()) or kernels.has_bfloat16_products()
    return units and not kernels.has_tiles()


def goes_by_panels(x: torch.Tensor) -> bool:
    """Return whether fewbits multiplies ``x`` itself.

    It does on a CPU without units for bfloat16 or with tiles, and on a GPU that multiplies by block scales.
    """
    if x.dtype not in (torch.bfloat16, torch.float32):
        return False
    return (x.device.type == "cpu" and not _has_fast_bfloat16()) or ops.multiplies_rounded(x)


@dataclass(eq=False)
class LayerPrecision:
    """How one layer computes.

    Attributes:
        recipe: operands, vector format and kind of product.
        layer: the layer's name in its model.
        exempt: the operands are not rounded; only the vector format holds.
        last: the gradient that enters is that of the logits.
        packs_activations: they wait for the backward pass in the format that its product takes.
        observer: sees each operand; None for nobody.
    """

    recipe: Recipe
    layer: str = ""
    exempt: bool = False
    last: bool = False
    observer: Observer | None = None
    packs_activations: bool = True

    @property
    def dtype(self) -> torch.dtype:
        """The type that flows between products."""
        return DTYPES[self.recipe.vector]

    def from_flow(self, x: torch.Tensor) -> torch.Tensor:
        """Return what enters a product in the type that flows between products.

        Raises:
            ArgumentError: it is complex, and would lose its imaginary part.
        """
        if x.is_complex():
            raise ArgumentError(
                f"{self.layer or 'the product'} was given {str(x.dtype).removeprefix('torch.')}; expected"
                " real numbers: take x.abs() or torch.view_as_real(x), or exclude the layer"
            )
        return x.to(self.dtype)

    @property
    def is_observed(self) -> bool:
        """Whether the observer looks at operands of this step; one that does not say when looks at all."""
        # The number of a step is no constant: torch.compile would compile each step anew.
        if self.observer is None or torch.compiler.is_compiling():
            return self.observer is not None
        return bool(getattr(self.observer, "due", True))

    def format_of(self, role: str) -> RoleFormat | None:
        """Return what the operand ``role`` is rounded to in this layer; None if it is not."""
        if self.exempt or (self.last and role.endswith("gradient") and not self.recipe.logit_gradient):
            return None
        format: RoleFormat | None = getattr(self.recipe, role)
        return format

    def round(self, role: str, x: torch.Tensor, axis: int) -> torch.Tensor:
        """Return ``x`` as the operand ``role`` of a product that sums along ``axis``; same shape and dtype.

        Stochastic rounding takes its seed from torch's own generator: what ``torch.manual_seed`` repeats, it
        repeats.
        """
        target = self.format_of(role)
        if target is None:
            return x
        rounded = round_as(x, target, axis, overflow=self.overflow_of(role))
        self.report(role, x, rounded, axis)
        return rounded

    def operand(self, role: str, x: torch.Tensor, axis: int) -> Operand:
        """Return ``x`` as the operand ``role`` of a product that sums along ``axis``.

        It is rounded on its way into the product where nobody looks at it and nothing is drawn for it.
        """
        target = self.format_of(role)
        if target is None:
            return Operand(x, None)
        return self._rounded_in_product(role, target, x) or Operand(self.round(role, x, axis), target.format)

    def _rounded_in_product(self, role: str, target: RoleFormat, x: torch.Tensor) -> Operand | None:
        choices = Choices(target.rounding, target.scale_rule, self.overflow_of(role))
        alone = not self.is_observed and target.shift is None and self.recipe.product == "exact"
        alone = alone and goes_by_panels(x) and not torch.compiler.is_compiling()
        if alone and ops.rounds_in_product(target.format, choices):
            return Operand(x.detach(), target.format, choices)
        return None

    def packed_both(
        self, x: torch.Tensor, along_rows: tuple[str, str], along_columns: tuple[str, str]
    ) -> tuple[Operand, Operand] | None:
        """Return the matrix ``x`` as operands of products that sum along axis 1 and along axis 0.

        A device rounds and packs both from one read. None where it does not, or rounds on another way: each
        operand is then what :meth:`operand` returns, with the same bits.

        Args:
            x: (m, n).
            along_rows: the role of the first operand, and that of the other factor of its product.
            along_columns: likewise of the second.
        """
        if torch.compiler.is_compiling() or not ops.multiplies_rounded(x):
            return None
        found = []
        for role, other in (along_rows, along_columns):
            target, factor = self.format_of(role), self.format_of(other)
            if target is None or factor is None or not ops.multiplies_packed(target.format, factor.format):
                return None
            found.append(self._rounded_in_product(role, target, x))
        rows, columns = found
        if rows is None or columns is None:
            return None
        both = ops.quantize_both(rows.values, rows.rounding, columns.rounding)
        return None if both is None else (rows._replace(parts=both[0]), columns._replace(parts=both[1]))

    def overflow_of(self, role: str) -> str | None:
        """Return what becomes of values beyond the largest; None is the format's own way.

        A dynamic loss scale backs off where a gradient overflows: it has to see that.
        """
        scaled = role.endswith("gradient") and self.recipe.scaling is not None and self.recipe.scaling.dynamic
        return None if scaled else "saturate"

    def report(self, role: str, x: torch.Tensor, rounded: torch.Tensor, axis: int) -> None:
        """Let the observer see an operand."""
        if self.observer is not None:
            self.observer.observe(self, role, x, rounded, axis)

    def to_flow(self, role: str, gradient: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return a float32 gradient in the dtype in which it flows on to the layer before."""
        flowing = gradient.to(dtype)
        if dtype == torch.float16:
            self.report(role, gradient, flowing, -1)
        return flowing
