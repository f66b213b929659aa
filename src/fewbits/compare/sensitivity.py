"""The sensitivity of the outputs of a model to the noise of each weight."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf, isfinite, isnan

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from fewbits import kernels
from fewbits.errors import ArgumentError, DataError
from fewbits.files.matrix_view import matrix_shape
from fewbits.formats import Format
from fewbits.tensor import fake_quantize
from fewbits.train.tasks.user_model import UserBatch, call_model
from fewbits.typing import Progress


@dataclass(frozen=True)
class Probe:
    """A model with the inputs on which its outputs are compared."""

    model: nn.Module
    batches: Sequence[UserBatch]

    @torch.no_grad()
    def outputs(self) -> list[Tensor]:
        """Return the first floating-point tensor of what the model returns for each batch."""
        return [_first(call_model(self.model, batch)) for batch in self.batches]

    def noise(self, exact: Sequence[Tensor], rounded: Mapping[str, Format], scale_rule: str) -> float:
        """Return the relative power of the change of the outputs if some weights are rounded.

        It is infinite where outputs are NaN then, or change from nothing but zeros.

        Args:
            exact: the outputs of the unrounded model.
            rounded: formats of parameters, by name.
            scale_rule: how power-of-two scales are chosen.
        """
        with _rounded(dict(self.model.named_parameters(remove_duplicate=False)), rounded, scale_rule):
            outputs = self.outputs()
        pairs = [(new.double(), old.double()) for new, old in zip(outputs, exact, strict=True)]
        change = sum(float((new - old).square().sum()) for new, old in pairs)
        power = sum(float(old.square().sum()) for _, old in pairs)
        if isnan(change):
            return inf
        return change / power if power else inf if change else 0.0


def sensitivities(
    probe: Probe,
    shapes: Mapping[str, tuple[int, ...]],
    formats: Sequence[Format],
    scale_rule: str,
    progress: Progress | None = None,
) -> dict[str, float]:
    """Return, for each weight rounded alone, the relative noise of the outputs over that of the weight.

    Args:
        probe: the model.
        shapes: those of the tensors of a checkpoint, by the name of the parameter.
        formats: those to which they are rounded, one tensor after the other: to the first that changes it by
            an amount that can be measured. One that holds a tensor exactly says nothing of the others.
        scale_rule: how power-of-two scales are chosen.
        progress: called as ``progress("measuring the model", tensors done, all tensors)``; None for no
            reports.

    Returns:
        Ratios of relative powers by name; tensors that the model does not have are left out.

    Raises:
        DataError: the model has none of them or one of another shape, or its outputs are not finite, or all
            zero.
    """
    parameters = {n: p for n, p in probe.model.named_parameters(remove_duplicate=False) if n in shapes}
    if not parameters:
        raise DataError(
            f"the model has no parameter of the checkpoint's names, such as {next(iter(shapes), '')!r}"
        )
    for name, parameter in parameters.items():
        if tuple(parameter.shape) != shapes[name]:
            raise DataError(
                f"the model's {name!r:.200} is {tuple(parameter.shape)}; the checkpoint's {shapes[name]}"
            )
    exact = probe.outputs()
    if not all(bool(torch.isfinite(out).all()) for out in exact):
        raise DataError("the model's outputs are not finite before anything is rounded; check its inputs")
    if not any(bool(out.any()) for out in exact):
        raise DataError(
            "the model's outputs are all zero before anything is rounded, and no noise is relative to them;"
            " train it first, or check its inputs"
        )
    ratios = {}
    for done, (name, parameter) in enumerate(parameters.items()):
        if progress is not None:
            progress("measuring the model", done, len(parameters))
        ratios[name] = 0.0  # no format changes it
        for format in formats:
            own = _relative_noise(parameter.detach(), format, scale_rule)
            if own:
                ratios[name] = probe.noise(exact, {name: format}, scale_rule) / own
            if own and isfinite(ratios[name]):
                break
    if progress is not None:
        progress("measuring the model", len(parameters), len(parameters))
    return ratios


def _relative_noise(w: Tensor, format: Format, scale_rule: str) -> float:
    power = float(w.double().square().sum())
    return (
        float((_round(w, format, scale_rule).double() - w.double()).square().sum()) / power if power else 0.0
    )


def _round(w: Tensor, format: Format, scale_rule: str) -> Tensor:
    rule = scale_rule if kernels.has_scale_rule(format) else "floor"
    rows: Tensor = fake_quantize(
        w.detach().reshape(matrix_shape(tuple(w.shape))), format, axis=1, scale_rule=rule
    )
    return rows.reshape(w.shape)


@contextmanager
def _rounded(
    parameters: Mapping[str, nn.Parameter], formats: Mapping[str, Format], scale_rule: str
) -> Iterator[None]:
    originals = {name: parameters[name].detach().clone() for name in formats}
    try:
        for name, w in originals.items():
            parameters[name].data.copy_(_round(w, formats[name], scale_rule))
        yield
    finally:
        for name, w in originals.items():
            parameters[name].data.copy_(w)


def _first(returned: object) -> Tensor:
    leaves = tree_leaves(dict(returned) if isinstance(returned, Mapping) else returned)
    output = next((x for x in leaves if isinstance(x, Tensor) and x.is_floating_point()), None)
    if output is None:
        raise ArgumentError("the model returns no floating-point tensor; wrap it in one that does")
    return output
