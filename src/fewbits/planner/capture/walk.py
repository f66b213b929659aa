"""An exported graph walked in its order: operations become layers, or vanish into the axes of others."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass
from operator import getitem

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Node

from fewbits.planner.capture.arguments import argument, extents, in_place, operation, tensors
from fewbits.planner.capture.draft import Draft, Names, Use
from fewbits.planner.capture.indexing import INDEXING
from fewbits.planner.capture.kept import Kept, KeptOfLayer, pointwise, storage
from fewbits.planner.capture.others import (
    OTHERS,
    POINTWISE,
    batch_norm,
    elementwise,
    group_norm,
    layer_norm,
    lstm,
    pooling,
    softmax,
)
from fewbits.planner.capture.products import PRODUCTS, aligned, shape_of
from fewbits.planner.capture.runnable import why_lost, why_not_here, why_not_run
from fewbits.planner.capture.values import Axes, Value
from fewbits.planner.capture.views import base_of, is_view, seen, together
from fewbits.planner.graph import Dimension, Edge, Graph, Layer, Operand


@dataclass(frozen=True)
class Step:
    """How an operation runs as part of a layer: the dimension that each axis of each tensor runs along."""

    layer: int
    reads: tuple[Names, ...]  # of each tensor among the arguments, in their order
    writes: tuple[Names, ...]  # of each result
    whole: bool = True  # whether the layer's sums are due here; no: it runs on the layer's output


class Walk:
    """Layers, edges and, for each node of the exported graph, its value and the step that makes it."""

    def __init__(self, program: ExportedProgram, root: str, unrunnable: str = "") -> None:
        self.layers: list[Layer] = []
        self.edges: list[Edge] = []
        self.warnings: list[str] = []
        self.values: dict[Node, Value | tuple[Value, ...]] = {}
        self.steps: dict[Node, Step] = {}
        self._kept: list[KeptOfLayer] = []  # of each layer
        self._kept_inputs: set[Node] = set()  # what operations value by value keep of no layer
        self._names: dict[str, int] = {}
        self._written: dict[Node, Value] = {}  # what stands where an operation wrote
        self._shapes: dict[str, tuple[int, ...]] = {}  # of parameters
        self._frozen = {name for name, p in program.named_parameters() if not p.requires_grad}
        self._inputs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
        self._held = {
            name: str(spec.target)
            for name, spec in self._inputs.items()
            if spec.kind in (InputKind.BUFFER, InputKind.PARAMETER)
        }
        self._root, self._unrunnable = root, unrunnable or why_not_run(program)
        for node in program.graph.nodes:
            self._visit(node)
        for i, kept in enumerate(self._kept):
            layer = self.layers[i]
            beside, keeps_output = kept.beside(math.prod(layer.output.shape))
            self.layers[i] = dataclasses.replace(layer, saved=layer.saved + beside, keeps_output=keeps_output)

    @property
    def graph(self) -> Graph:
        """The graph as the planner sees it."""
        warnings = tuple(dict.fromkeys((*self.warnings, *self._shared())))
        return Graph(tuple(self.layers), tuple(self.edges), warnings, self._unrunnable)

    def _shared(self) -> list[str]:
        """Return a warning for each parameter that several layers use whole."""
        users: dict[str, list[str]] = {}
        for layer in self.layers:
            for weight in layer.weights:
                if weight.shape == self._shapes[weight.name]:
                    users.setdefault(weight.name, []).append(layer.name)
        return [
            f"{name}: a parameter of {len(layers)} layers"
            f" ({', '.join(layers[:3])}{', ...' * (len(layers) > 3)}); its memory and the sum of its"
            " gradient are counted in each"
            for name, layers in users.items()
            if len(layers) > 1
        ]

    def _visit(self, node: Node) -> None:
        if node.op == "placeholder":
            self.values[node] = self._given(node)
        elif node.op == "get_attr":
            self.values[node] = _outside(node)
        elif node.op == "call_function":
            self._operation(node)

    def _given(self, node: Node) -> Value | tuple[Value, ...]:
        spec, made = self._inputs[node.name], node.meta.get("val")
        if not isinstance(made, torch.Tensor):
            return ()
        shape = shape_of(node)
        axes: Axes = tuple(range(len(shape)))
        if spec.kind is InputKind.PARAMETER:
            self._shapes[str(spec.target)] = shape
            return Value(shape, axes, None, str(spec.target), (False,) * len(shape))
        user = spec.kind is InputKind.USER_INPUT
        return Value(shape, axes, batch=tuple(user and i == 0 for i in axes))

    def value(self, node: Node) -> Value:
        """Return what a node that is one tensor stands for."""
        found = self._written.get(node, self.values[node])
        assert isinstance(found, Value), node
        return found

    def _operation(self, node: Node) -> None:
        if node.target is getitem:
            whole = self.values[node.args[0]]  # type: ignore[index]  # getitem's first argument is a node
            assert isinstance(whole, tuple)
            self.values[node] = whole[int(str(node.args[1]))] if whole else _outside(node)
            return
        name, read = operation(node), tensors(node)
        if not all(self.value(x).outside for x in read):
            self._unrunnable = self._unrunnable or why_not_here(node)
        if not extents(node):
            return  # an assertion
        if in_place(node) and base_of(read[0]) is not read[0]:
            self._write_part(node, read)
        elif together(node):
            self.values[node] = tuple(self.value(x) for x in read)
        elif is_view(node, name) and read:
            self.values[node] = seen(node, self.value(read[0]))
        elif all(self.value(x).outside for x in read) and not self._counts(node, name, read):
            self.values[node] = _outside(node, read and self._leading(node, read))
        elif (name in POINTWISE or name in {"cat", "stack"}) and self._join(node, name, read):
            pass
        elif name in POINTWISE:
            self._layer(node, elementwise(node, pointwise(node, self._has_gradient)))
        else:
            known = _KNOWN.get(name)
            draft = known(node) if known else None
            fits = draft is not None and draft.fits(extents(node))
            self._layer(node, draft if draft is not None and fits else self._unknown(node, name, read))
        if in_place(node) and base_of(read[0]) is read[0]:
            self._written[read[0]] = self.value(node)
            if self.value(node).source is not None:
                self._unrunnable = self._unrunnable or why_lost(node, self._held)

    def _counts(self, node: Node, name: str, read: list[Node]) -> bool:
        """Tell whether an operation on inputs alone is a layer: no mask, no place, no change of units."""
        if not read or not self._leading(node, read) or not read[0].meta["val"].is_floating_point():
            return name in PRODUCTS
        return name in PRODUCTS or name in _LAYERS or name.startswith("upsample")

    def _leading(self, node: Node, read: list[Node]) -> bool:
        """Tell whether the first axis of a result is that of the model's inputs, as far as can be seen."""
        shape = extents(node)[0]
        firsts = [self.value(x) for x in read]
        return bool(shape) and any(
            v.batch[:1] == (True,) and v.shape[0] == shape[0] and len(v.shape) == len(shape) for v in firsts
        )

    def _has_gradient(self, node: Node) -> bool:
        value = self.value(node)
        trained = bool(value.parameter) and value.parameter not in self._frozen
        return node.meta["val"].is_floating_point() and (trained or value.source is not None)

    def _write_part(self, node: Node, read: list[Node]) -> None:
        """Make a layer of the whole tensor of which an operation writes a part."""
        base, target = base_of(read[0]), shape_of(read[0])
        whole = shape_of(base)
        parts = [Use(x, (None,) * len(shape_of(x))) for x in dict.fromkeys((base, *read[1:]))]
        draft = Draft("unknown", parts, [(None,) * len(whole)], {}, flops=float(math.prod(target)))
        draft.warning = f"{node.target}: it writes into a part of a tensor; planned as replicated"
        made = self._added(node, draft, [whole])[0]
        self._written[base] = made
        self.values[node] = made.seen_as(target, (None,) * len(target))

    def _join(self, node: Node, name: str, read: list[Node]) -> bool:
        """Let an operation belong to the layer that it follows, where only constants or its weights go in.

        Weights join a layer without sums only: behind a sum their gradients would not be like the others.
        """
        shape = extents(node)[0]
        values = [self.value(x) for x in read]
        made = [v for v in values if v.source is not None]
        sources = {v.source for v in made}
        if len(sources) != 1 or len(extents(node)) != 1:
            return False
        (source,) = sources
        assert source is not None
        layer, joint = self.layers[source], name not in POINTWISE
        gone = _along(node, len(shape)) if joint else None
        if any(len(v.shape) != len(shape) or (v.shape != shape and not joint) for v in made):
            return False
        axes = tuple(
            a if i != gone and all(v.axes[i] == a for v in made) else None for i, a in enumerate(made[0].axes)
        )
        dims: Names = tuple(None if a is None else layer.output.axes[a] for a in axes)
        reads = [dims if joint else aligned(shape_of(x), dims, shape) for x in read]
        weights = [self._weight(v, dim) for v, dim in zip(values, reads, strict=True) if v.parameter]
        if weights and (joint or dims != layer.output.axes or not _sumless(layer)):
            return False
        if joint and len(made) != len(read):
            return False
        self.values[node] = dataclasses.replace(made[0], shape=shape, axes=axes)
        self.steps[node] = Step(source, tuple(reads), (dims,), whole=False)
        kept = Kept() if joint else pointwise(node, self._has_gradient)
        self.layers[source] = dataclasses.replace(
            layer,
            weights=(*layer.weights, *weights),
            saved=layer.saved + kept.own + self._keep(source, node, kept),
            flops=layer.flops + (0 if layer.product else math.prod(shape)),
        )
        return True

    def _keep(self, layer: int, node: Node, kept: Kept) -> int:
        """Note what an operation of a layer keeps of it; return the values that come from outside."""
        if kept.made:
            self._kept[layer].inside.add(storage(node))
        before = {storage(x): self.value(x) for x in kept.read}
        self._kept[layer].inside.update(x for x, value in before.items() if value.source is not None)
        given = {x for x, value in before.items() if value.outside} - self._kept_inputs
        self._kept_inputs |= given
        return sum(math.prod(shape_of(x)) for x in given)

    def _unknown(self, node: Node, name: str, read: list[Node]) -> Draft:
        """Plan what is not known as replicated, or as split by its leading axis if that is the batch."""
        shapes = extents(node)
        follows = [x for x in read if shape_of(x) and self.value(x).batch[:1] == (True,)]
        batch = bool(follows) and all(
            s[:1] == shape_of(follows[0])[:1] and shape_of(x)[:1] == s[:1] for s in shapes for x in follows
        )
        draft = Draft(
            "unknown",
            [],
            [],
            {},
            warning=f"{name}: not known; planned as replicated, with one FLOP for each value it makes",
        )
        if batch:
            draft.warning = (
                f"{name}: not known; planned as split by its leading axis, the batch, or replicated,"
                " with one FLOP for each value it makes"
            )
        draft.uses = [Use(x, _first(shape_of(x), batch and x in follows)) for x in read]
        draft.outputs = [_first(shape, batch) for shape in shapes]
        draft.run_along(shapes[0], draft.outputs[0])
        draft.flops = float(math.prod(shapes[0]))
        return draft

    def _layer(self, node: Node, draft: Draft) -> None:
        made = self._added(node, draft, extents(node))
        if draft.keeps_output:
            self._kept[-1].inside.add(node)
        reads = tuple(_real(use.dims, draft) for use in draft.uses)
        self.steps[node] = Step(
            len(self.layers) - 1, reads, tuple(_real(one, draft) for one in draft.outputs)
        )
        self.values[node] = made if isinstance(node.meta["val"], (list, tuple)) else made[0]

    def _added(self, node: Node, draft: Draft, shapes: list[tuple[int, ...]]) -> tuple[Value, ...]:
        """Add a layer and the edges that lead to it; return its results."""
        index = len(self.layers)
        inputs: list[Operand] = []
        weights: list[Operand] = []
        for use in draft.uses:
            value = self.value(use.node)
            if value.parameter:
                weights.append(self._weight(value, _real(use.dims, draft)))
                continue
            if value.source is not None:
                if use.kept:
                    self._kept[value.source].outside.add(storage(use.node))
                self.edges.append(Edge(value.source, index, len(inputs), _edge(value, self.layers)))
            inputs.append(
                Operand(use.node.name, value.shape, _real(use.dims, draft), use.halos, kept=use.kept)
            )
        space = tuple(
            Dimension(name, extent, name not in draft.whole)
            for name, extent in draft.extents.items()
            if extent > 1
        )
        dims = [_real(one, draft) for one in draft.outputs]
        path = _module(node)
        name = self._name(node, path, weights)
        output = Operand("output", shapes[0], dims[0])
        self.layers.append(
            Layer(
                name,
                draft.kind,
                space,
                draft.flops,
                tuple(inputs),
                tuple(weights),
                output,
                draft.product,
                draft.saved,
                path,
                tuple(Operand("moments", shape, _real(one, draft)) for shape, one in draft.statistics),
            )
        )
        self._kept.append(KeptOfLayer())
        if draft.warning:
            own = draft.warning.partition(":")[0] == name
            self.warnings.append(draft.warning if own else f"{name}: {draft.warning}")
        batch = self._batch(draft)
        return tuple(
            _made(index, shape, one, dims[0], batch) for shape, one in zip(shapes, dims, strict=True)
        )

    def _weight(self, value: Value, dims: Names) -> Operand:
        """Return the parameter that a view shows, or the part of it, which counts at its own size."""
        shape, trained = self._shapes[value.parameter], value.parameter not in self._frozen
        if math.prod(value.shape) < math.prod(shape):
            return Operand(value.parameter, value.shape, dims, trained=trained)
        axes: list[str | None] = [None] * len(shape)
        for dim, axis in zip(dims, value.axes, strict=True):
            if axis is not None:
                axes[axis] = dim
        return Operand(value.parameter, shape, tuple(axes), trained=trained)

    def _batch(self, draft: Draft) -> set[str]:
        return {
            dim
            for use in draft.uses
            for dim, batch in zip(use.dims, self.value(use.node).batch, strict=True)
            if batch and dim is not None
        }

    def _name(self, node: Node, path: str, weights: list[Operand]) -> str:
        owner = weights[0].name.rpartition(".")[0] if weights else ""
        inside = owner == path or owner.startswith(f"{path}.") or not path
        name = owner if weights and inside else ".".join(filter(None, (path, operation(node))))
        if weights and not inside:
            name = path  # a parameter that two modules share
        name = name or self._root
        self._names[name] = self._names.get(name, 0) + 1
        return name if self._names[name] == 1 else f"{name}#{self._names[name]}"


_KNOWN = {**PRODUCTS, **OTHERS, **INDEXING}
_LAYERS = frozenset(
    name
    for name, made in OTHERS.items()
    if made in {layer_norm, group_norm, batch_norm, softmax, pooling, lstm}
)  # of what is known, the layers that networks begin with


def _sumless(layer: Layer) -> bool:
    return all(d.name in layer.output.axes for d in layer.space)


def _along(node: Node, rank: int) -> int:
    """Return the axis along which tensors are joined."""
    return int(str(argument(node, 1, "dim", 0))) % rank


def _outside(node: Node, batch: object = False) -> Value | tuple[Value, ...]:
    def one(shape: tuple[int, ...]) -> Value:
        axes = tuple(range(len(shape)))
        return Value(shape, axes, batch=tuple(bool(batch) and i == 0 for i in axes))

    made = node.meta.get("val")
    values = tuple(one(shape) for shape in extents(node))
    return values[0] if isinstance(made, torch.Tensor) else values


def _first(shape: tuple[int, ...], batch: bool) -> Names:
    return tuple("b" if batch and i == 0 else None for i in range(len(shape)))


def _real(dims: Names, draft: Draft) -> Names:
    return tuple(None if d is None or draft.extents[d] <= 1 else d for d in dims)


def _edge(value: Value, layers: list[Layer]) -> Axes:
    assert value.source is not None
    output = layers[value.source].output.shape
    same = value.shape == output and value.axes == tuple(range(len(output)))
    return () if same else value.axes


def _made(index: int, shape: tuple[int, ...], dims: Names, first: Names, batch: set[str]) -> Value:
    """Return one of the results; axes of the others are found in the first one by their dimension."""
    same = dims == first
    axes = tuple(
        i if same else (first.index(d) if d is not None and d in first else None) for i, d in enumerate(dims)
    )
    return Value(shape, axes, index, "", tuple(d in batch for d in dims))


def _module(node: Node) -> str:
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    return str(stack[-1][0]) if stack else ""
