"""How much the outputs of a model change with the noise of each of its weights."""

from __future__ import annotations

import os
import runpy
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from fewbits import kernels
from fewbits.errors import ArgumentError, DataError
from fewbits.files.lines import lines
from fewbits.formats import Format
from fewbits.tensor import fake_quantize

Progress = Callable[[float, float, str], None]


@dataclass(frozen=True)
class Probe:
    """A model, and inputs by which its outputs are judged."""

    model: nn.Module
    batches: Sequence[Any]  # each what the model takes: a tensor, a tuple of arguments, or a mapping of them

    @torch.no_grad()
    def outputs(self) -> list[Tensor]:
        """Return the first floating-point tensor of what the model returns for each batch."""
        return [_first(_called(self.model, batch)) for batch in self.batches]

    def noise(self, exact: Sequence[Tensor], rounded: Mapping[str, Format], scale_rule: str) -> float:
        """Return the power of the change of the outputs over theirs, with some weights rounded.

        Args:
            exact: the outputs as they are.
            rounded: formats of parameters, by name.
            scale_rule: how power-of-two scales are chosen.
        """
        with _rounded(dict(self.model.named_parameters(remove_duplicate=False)), rounded, scale_rule):
            found = self.outputs()
        pairs = [(new.double(), old.double()) for new, old in zip(found, exact, strict=True)]
        change = sum(float((new - old).square().sum()) for new, old in pairs)
        power = sum(float(old.square().sum()) for _, old in pairs)
        return change / power if power else inf


def load(path: str | os.PathLike[str]) -> Probe:
    """Run a Python file whose function ``load`` returns a model and a list of batches.

    Raises:
        ArgumentError: it has no such function, or that returns something else.
    """
    found = runpy.run_path(os.fspath(path)).get("load")
    if not callable(found):
        raise ArgumentError(f"{path} has no function load; write one that returns (model, batches)")
    told = found()
    if not (isinstance(told, tuple) and len(told) == 2 and isinstance(told[0], nn.Module) and list(told[1])):
        raise ArgumentError(
            f"load of {Path(path).name} has to return (model, batches), with one batch at least"
        )
    return Probe(told[0].eval(), list(told[1]))


def sensitivities(
    probe: Probe, shapes: Mapping[str, tuple[int, ...]], fmt: Format, scale_rule: str, progress: Progress
) -> dict[str, float]:
    """Return the noise of the outputs over that of each weight, where the weight alone is rounded.

    Args:
        probe: the model.
        shapes: of the tensors of a checkpoint, by the names that the model's parameters have.
        fmt: in which they are rounded, one after the other.
        scale_rule: as in :func:`fewbits.fake_quantize`.
        progress: called with (tensors done, all tensors, name).

    Returns:
        Ratios of relative powers; nothing for tensors that the model does not have.

    Raises:
        DataError: the model has none of them, or one of another shape, or outputs that are not finite.
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
    found = {}
    for done, (name, parameter) in enumerate(parameters.items()):
        progress(done, len(parameters), name)
        own = _relative_noise(parameter.detach(), fmt, scale_rule)
        found[name] = probe.noise(exact, {name: fmt}, scale_rule) / own if own else 0.0
    progress(len(parameters), len(parameters), "")
    return found


def _relative_noise(w: Tensor, fmt: Format, scale_rule: str) -> float:
    power = float(w.double().square().sum())
    return (
        float((_narrowed(w, fmt, scale_rule).double() - w.double()).square().sum()) / power if power else 0.0
    )


def _narrowed(w: Tensor, fmt: Format, scale_rule: str) -> Tensor:
    rule = scale_rule if kernels.has_scale_rule(fmt) else "floor"
    rows: Tensor = fake_quantize(w.detach().reshape(lines(tuple(w.shape))), fmt, axis=1, scale_rule=rule)
    return rows.reshape(w.shape)


@contextmanager
def _rounded(
    parameters: Mapping[str, nn.Parameter], formats: Mapping[str, Format], scale_rule: str
) -> Iterator[None]:
    kept = {name: parameters[name].detach().clone() for name in formats}
    try:
        for name, w in kept.items():
            parameters[name].data.copy_(_narrowed(w, formats[name], scale_rule))
        yield
    finally:
        for name, w in kept.items():
            parameters[name].data.copy_(w)


def _called(model: nn.Module, batch: Any) -> Any:
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(*batch) if isinstance(batch, tuple | list) else model(batch)


def _first(returned: Any) -> Tensor:
    leaves = tree_leaves(dict(returned) if isinstance(returned, Mapping) else returned)
    found = next((x for x in leaves if isinstance(x, Tensor) and x.is_floating_point()), None)
    if found is None:
        raise ArgumentError("the model returns no floating-point tensor; wrap it in one that does")
    return found
