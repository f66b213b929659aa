"""An exported program run on a mesh, operation by operation, each with its layer's split."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from hashlib import sha256
from operator import getitem
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed.tensor import DTensor
from torch.export.graph_signature import InputKind
from torch.fx import Node
from torch.utils import _pytree as pytree

from fewbits.errors import ArgumentError
from fewbits.planner.capture import Exported
from fewbits.planner.capture.arguments import extents, in_place, operation, tensors
from fewbits.planner.capture.values import Value
from fewbits.planner.capture.views import is_view, resized, seen, together
from fewbits.planner.capture.walk import Step
from fewbits.planner.execution.boundary import enter, leave, whole_tensor
from fewbits.planner.execution.gathering import Gathering, gathered
from fewbits.planner.execution.layout import Assignment, Layout, Places, places, summed, through
from fewbits.planner.execution.pieces import CONVOLUTIONS, Piece, run_piece
from fewbits.planner.graph import Layer


class Program:
    """What ``forward`` of a planned model does: the same operations in the same order, on DTensors.

    Args:
        exported: the model's program and graph.
        layout: which axis of the mesh shares out what.
        model: gives parameters and buffers by their names, at each call.
        mesh: the device mesh.
        gathering: parameters that are gathered while an operation reads them.
    """

    def __init__(
        self, exported: Exported, layout: Layout, model: nn.Module, mesh: Any, gathering: Gathering
    ) -> None:
        self.program, self.layers = exported.program, exported.walk.graph.layers
        self.steps: Mapping[Node, Step] = exported.walk.steps
        self.layout, self.model, self.mesh, self.gathering = layout, model, mesh, gathering
        self.training = model.training
        self._seed, self._calls = _common_seed(mesh), 0
        self._last = _last_uses(list(self.program.graph.nodes))

    def __call__(self, *args: object, **kwargs: object) -> Any:
        """Run on the whole batch, which every process gives; results that are split stay DTensors."""
        if self.model.training != self.training:
            modes = {True: "training", False: "evaluation"}
            raise ArgumentError(
                f"the model was planned for {modes[self.training]} and is set to {modes[not self.training]};"
                " plan a copy for each, or set it back"
            )
        values = self._inputs(args, kwargs)
        self._calls += 1
        for node in self.program.graph.nodes:
            if node.op == "get_attr":
                values[node] = getattr(self.program.graph_module, node.target)
            elif node.op == "call_function":
                values[node] = self._run(node, values)
            elif node.op == "output":
                found = [self._result(values[x] if isinstance(x, Node) else x) for x in node.args[0]]
                return self._structured(found)
            for done in self._last.get(node, ()):
                del values[done]
        raise AssertionError("a program without an output")

    def _structured(self, found: list[Any]) -> Any:
        specs = self.program.graph_signature.output_specs
        returned = [x for x, spec in zip(found, specs, strict=True) if spec.kind.name == "USER_OUTPUT"]
        return pytree.tree_unflatten(returned, self.program.call_spec.out_spec)

    def _inputs(self, args: tuple[object, ...], kwargs: dict[str, object]) -> dict[Node, Any]:
        flat, spec = pytree.tree_flatten((args, kwargs))
        if spec != self.program.call_spec.in_spec:
            raise ArgumentError(
                "the planned model is called with other arguments than the example inputs of its plan; call"
                " it in the same way"
            )
        given = iter(flat)
        values: dict[Node, Any] = {}
        names = {spec.arg.name: spec for spec in self.program.graph_signature.input_specs}
        for node in self.program.graph.nodes:
            if node.op != "placeholder":
                break
            kind, target = names[node.name].kind, names[node.name].target
            if kind is InputKind.USER_INPUT:
                values[node] = _checked(next(given), node)
            elif kind is InputKind.PARAMETER:
                values[node] = self.model.get_parameter(str(target))
            elif kind is InputKind.BUFFER:
                values[node] = self.model.get_buffer(str(target))
            else:
                values[node] = self.program.constants[str(target)]
        return values

    def _result(self, x: Any) -> Any:
        """Return a tensor that every process has whole as a plain one."""
        whole = isinstance(x, DTensor) and all(p.is_replicate() for p in x.placements)
        if not whole:
            return x
        return (
            x.to_local().clone() if self.gathering.modules else x.to_local()
        )  # a view has no hooks of FSDP2

    def _run(self, node: Node, values: dict[Node, Any]) -> Any:
        if node.target is getitem:
            return values[node.args[0]][node.args[1]]  # type: ignore[index]  # getitem's first argument is a node
        read = tensors(node)
        step = self.steps.get(node)
        if together(node):
            return [values[x] for x in read]
        if step is None and any(isinstance(values[x], DTensor) for x in read):
            if not is_view(node, operation(node)):
                return None  # an assertion: anything else that reads a layer has a step
            made = self._view(node, values)
        elif step is None:
            made = self._plain(node, values)
        else:
            made = self._step(node, step, values)
        if in_place(node):
            values[read[0]] = made
        return made

    def _plain(self, node: Node, values: dict[Node, Any]) -> Any:
        target: Any = node.target
        return target(*_filled(node.args, values.get), **_filled(node.kwargs, values.get))

    def _view(self, node: Node, values: dict[Node, Any]) -> Any:
        """Rearrange the pieces of a tensor, after gathering it along axes that pieces cannot follow."""
        (source, *_) = tensors(node)
        given: DTensor = values[source]
        shape = tuple(given.shape)
        held: Places = tuple(p.dim if p.is_shard() else None for p in given.placements)  # type: ignore[attr-defined]  # a Shard
        value = Value(shape, tuple(range(len(shape))), batch=(False,) * len(shape))
        made = seen(node, value)
        views = made if isinstance(made, tuple) else (made,)
        kept = list(held)
        for view in views:
            for m, axis in enumerate(through(held, view.axes)):
                if axis is None or view.shape[axis] % self._parts(through(held, view.axes)[: m + 1], axis):
                    kept[m] = None
        nothing = (False,) * self.mesh.ndim
        piece = enter(given, tuple(kept), nothing)
        after = [through(tuple(kept), view.axes) for view in views]
        sizes = [
            tuple(n // self._parts(at, i) for i, n in enumerate(view.shape))
            for view, at in zip(views, after, strict=True)
        ]
        found = None if isinstance(made, tuple) else resized(node, piece, sizes[0])
        if found is None:
            found = self._plain(node, {**values, source: piece})
        if not isinstance(made, tuple):
            return leave(found, self.mesh, after[0], nothing)
        return tuple(leave(x, self.mesh, at, nothing) for x, at in zip(found, after, strict=True))

    def _parts(self, held: Places, axis: int) -> int:
        """Return into how many parts an axis is split."""
        return math.prod(self.mesh.size(m) for m, p in enumerate(held) if p == axis)

    def _step(self, node: Node, step: Step, values: dict[Node, Any]) -> Any:
        """Run an operation of a layer: pieces of what it reads, the operation, the sums that are due."""
        assignment, layer = self._effective(node, step), self.layers[step.layer]
        read = tensors(node)
        contracted = tuple(step.whole and d is not None and d not in layer.output.axes for d in assignment)
        late = self._late(node, contracted)
        named = self.gathering.parameters
        pieces = [
            None if i in late or x in named else self._piece(values[x], layer, dims, assignment)
            for i, (x, dims) in enumerate(zip(read, step.reads, strict=True))
        ]

        def compute(*given: torch.Tensor | None) -> tuple[tuple[DTensor, ...], bool]:
            following = iter(given)

            def piece_of(x: Node) -> Any:
                if not isinstance(x.meta.get("val"), torch.Tensor):
                    return values[x]
                own = next(following)
                return self.model.get_parameter(named[x]) if x in named else own

            args, kwargs = _filled(node.args, piece_of), _filled(node.kwargs, piece_of)
            piece = Piece(self.mesh, assignment, contracted, self._random(node))
            made = run_piece(node, args, kwargs, piece)
            several = isinstance(made, (tuple, list))
            results = zip(made if several else (made,), step.writes, strict=True)
            # They leave here, as what a module of fully_shard returns may be no view.
            return tuple(leave(x, self.mesh, places(assignment, d), contracted) for x, d in results), several

        module = self.gathering.modules.get(node)
        if module is None:
            whole, several = compute(*pieces)
        else:
            whole, several = gathered(self.model.get_submodule(module), compute, pieces)
        for i in late:
            bias = self._piece(values[read[i]], layer, step.reads[i], assignment)
            whole = (self._added(node, whole[0], bias, places(assignment, step.writes[0]), step, i),)
        return whole if several else whole[0]

    def _added(
        self, node: Node, whole: DTensor, bias: torch.Tensor, held: Places, step: Step, i: int
    ) -> DTensor:
        """Add a bias behind the sum over processes."""
        if operation(node) in CONVOLUTIONS:
            (along,) = step.reads[i]
            bias = bias.view([-1 if d == along and d is not None else 1 for d in step.writes[0]])
        beta: Any = node.kwargs.get("beta", 1) if operation(node) == "addmm" else 1
        nothing = (False,) * self.mesh.ndim
        piece = enter(whole, held, nothing)
        return leave(torch.add(piece, bias, alpha=beta) if beta else piece, self.mesh, held, nothing)

    def _random(self, node: Node) -> int:
        """Return a seed of this operation in this step; pieces of a layer add their numbers to it."""
        text = f"{self._seed} {self._calls} {node.name}"
        return int.from_bytes(sha256(text.encode()).digest()[:6], "big") << 12

    def _effective(self, node: Node, step: Step) -> Assignment:
        """Return the layer's assignment, without what an operation behind its sum has nothing of."""
        assignment = self.layout.assignments[self.layers[step.layer].name]
        if step.whole:
            return assignment
        # The operation may run on a view, with an axis that not all parts divide.
        shape = dict(zip(step.writes[0], extents(node)[0], strict=True))
        kept: list[str | None] = []
        for m, d in enumerate(assignment):
            parts = self.mesh.size(m)
            parts *= math.prod(self.mesh.size(i) for i, other in enumerate(kept) if other == d)
            kept.append(d if d in shape and shape[d] % parts == 0 else None)
        return tuple(kept)

    def _late(self, node: Node, contracted: tuple[bool, ...]) -> tuple[int, ...]:
        """Return which tensors are added behind a sum over processes: the bias of a product."""
        name = operation(node)
        if not any(contracted) or len(tensors(node)) != 3:
            return ()
        return (0,) if name == "addmm" else (2,) if name == "linear" or name in CONVOLUTIONS else ()

    def _piece(
        self, x: Any, layer: Layer, dims: tuple[str | None, ...], assignment: Assignment
    ) -> torch.Tensor:
        return enter(whole_tensor(x, self.mesh), places(assignment, dims), summed(layer, dims, assignment))


def _common_seed(mesh: Any) -> int:
    """Return a number drawn by the first process, from its generator."""
    drawn = torch.randint(2**62, (1,))
    for m in range(mesh.ndim):
        group = mesh.get_group(m)
        drawn = drawn.to(mesh.device_type)
        distributed.broadcast(drawn, group=group, group_src=0)
    return int(drawn)


def _filled(given: Any, value: Callable[[Node], Any]) -> Any:
    """Return arguments with values in place of nodes, in the order in which they stand."""
    if isinstance(given, Node):
        return value(given)
    if isinstance(given, (list, tuple)):
        return [_filled(x, value) for x in given]
    if isinstance(given, dict):
        return {name: _filled(x, value) for name, x in given.items()}
    return given


def _checked(given: Any, node: Node) -> Any:
    expected = node.meta.get("val")
    if isinstance(expected, torch.Tensor) and not isinstance(given, torch.Tensor):
        raise ArgumentError(
            f"the plan is for the tensor {node.name}, and {given!r:.80} was given; every process gives the"
            " whole batch"
        )
    if isinstance(expected, torch.Tensor) and tuple(given.shape) != tuple(expected.shape):
        raise ArgumentError(
            f"the plan is for {node.name} of shape {tuple(expected.shape)}, {tuple(given.shape)} was given;"
            " every process gives the whole batch, of the shape of the example inputs"
        )
    return given


def _last_uses(nodes: list[Node]) -> dict[Node, list[Node]]:
    """Return which values no node needs after each one."""
    last: dict[Node, Node] = {}
    for node in nodes:
        last[node] = node
        for x in node.all_input_nodes:
            last[x] = node
    done: dict[Node, list[Node]] = {}
    for x, node in last.items():
        done.setdefault(node, []).append(x)
    return done
