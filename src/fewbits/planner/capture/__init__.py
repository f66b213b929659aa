"""The graph of a model: exported without computing anything, and read layer by layer."""

from __future__ import annotations

import contextlib
import inspect
import io
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.export import ExportedProgram
from torch.fx import Node
from torch.utils import _pytree as pytree

from fewbits.errors import ArgumentError
from fewbits.planner.capture.gatherable import why_whole
from fewbits.planner.capture.walk import Walk
from fewbits.planner.graph import Graph

__all__ = ["capture"]

Inputs: TypeAlias = "Sequence[object] | Mapping[str, object]"


@dataclass(frozen=True)
class Exported:
    """A model as a list of operations, and what each of them is in the planner's graph."""

    program: ExportedProgram
    walk: Walk


def capture(model: nn.Module, example_inputs: Inputs) -> Graph:
    """Return the layers of a model, their iteration spaces, and the tensors between them.

    The model is exported, not run: nothing is computed, no weight is copied, and a model built under
    ``torch.device("meta")`` needs no memory for its weights. A model that is to be trained returns its loss.
    Operations that follow another one value by value belong to its layer, and add no FLOP to a product.

    Args:
        model: in the mode, training or evaluation, in which it will run.
        example_inputs: arguments of ``model``: a sequence of positional ones or a mapping of named ones, of
            the shapes and dtypes that a step has. On a meta model they are taken for meta tensors.

    Raises:
        ArgumentError: torch.export cannot follow the model.
    """
    return export(model, example_inputs).walk.graph


def export(model: nn.Module, example_inputs: Inputs) -> Exported:
    """Return the exported program and what each operation is in the graph; arguments as :func:`capture`."""
    if isinstance(example_inputs, (torch.Tensor, str)):
        raise ArgumentError(
            f"example_inputs is a {type(example_inputs).__name__}; give the arguments of the model as a tuple"
            " or a dict, (x,) for one tensor"
        )
    device = next((p.device for p in model.parameters()), torch.device("cpu"))
    moved = example_inputs
    if device.type == "meta":
        moved = pytree.tree_map_only(torch.Tensor, lambda x: x.to("meta"), example_inputs)
    args = () if isinstance(moved, Mapping) else tuple(moved)
    kwargs = dict(moved) if isinstance(moved, Mapping) else {}
    try:
        inspect.signature(model.forward).bind(*args, **kwargs)
    except TypeError as error:
        raise ArgumentError(
            f"{type(model).__name__} cannot be called with these example inputs: {error}; its forward takes"
            f" {inspect.signature(model.forward)}; give these arguments, and a model of inputs and targets"
            " that returns its loss"
        ) from error
    try:
        with warnings.catch_warnings(), _quiet(), _own_derivatives() as named:
            warnings.simplefilter("ignore")  # of torch, about its own modules
            program = torch.export.export(model, args, kwargs, strict=False)
    except Exception as error:
        raise ArgumentError(
            f"{type(model).__name__} cannot be captured: torch.export stops with {type(error).__name__}:"
            f" {_reason(error)}; operations and shapes must not depend on values: use torch.where, torch.cond"
            " or fixed shapes there, or plan the part of the model that can be exported"
        ) from error
    unknown = next((node.name for node in program.graph.nodes if not _has_extents(node)), "")
    if unknown:
        raise ArgumentError(
            f"{type(model).__name__} cannot be captured: the shape of {unknown} depends on values; use"
            " torch.where or fixed shapes there, or plan the part of the model that has them"
        )
    walk = Walk(program, type(model).__name__, _lost(named) if model.training else "")
    reasons = why_whole(model, program, walk.layers, walk.steps)
    walk.layers = [replace(x, unsharded=why) for x, why in zip(walk.layers, reasons, strict=True)]
    return Exported(program, walk)


def _has_extents(node: Node) -> bool:
    """Return whether all extents of the tensors that an operation makes are numbers."""
    made = pytree.tree_leaves(node.meta.get("val"))
    return all(isinstance(n, int) for x in made if isinstance(x, torch.Tensor) for n in x.shape)


@contextlib.contextmanager
def _own_derivatives() -> Iterator[list[str]]:
    """Name the functions called that have a derivative of their own, which an exported program leaves out."""
    found: list[str] = []
    below: Any = torch.autograd.function._SingleLevelFunction  # whose `apply` each Function's calls

    def noted(function: Any, /, *args: object, **kwargs: object) -> object:
        if function.__module__ != "torch._library.autograd":  # of an operator, which a program has whole
            found.append(function.__name__)
        return super(below, function).apply(*args, **kwargs)

    below.apply = classmethod(noted)
    try:
        yield found
    finally:
        del below.apply


def _lost(functions: Sequence[str]) -> str:
    """Return why a model with such functions cannot be trained as planned; empty without any."""
    if not functions:
        return ""
    return (
        f"{functions[0].lstrip('_')} has a backward pass of its own, as layers of a prepared model have, and"
        " torch.export leaves that out: gradients would be lost; plan the model in evaluation, or without it"
    )


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep torch from printing the operations it has seen where it stops at one: the error says which."""
    logger = logging.getLogger("torch.fx.experimental.symbolic_shapes")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            yield
    finally:
        logger.setLevel(before)


def _reason(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2])[:400] or "no reason given"
