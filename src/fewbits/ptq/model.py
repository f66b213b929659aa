"""Choose the weights of a model's layers, one after the other, for the inputs that they will take."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from itertools import chain
from math import inf, nan
from numbers import Real
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from fewbits.errors import ArgumentError, DataError
from fewbits.formats import Format, parse
from fewbits.kernels import check_scale_rule, has_scale_rule
from fewbits.names import Selection, check_fits, with_shared, within
from fewbits.ptq.choosing import METHODS, SCALES, Choice, ChosenWeight, choose_each, choose_rotation
from fewbits.ptq.data_flow import Batch, Seen, Stage, call, run_to, stages
from fewbits.ptq.grid import Target
from fewbits.ptq.hadamard import BlockHadamard, check_size, fitting
from fewbits.ptq.layer_input import Arguments, with_input
from fewbits.ptq.layers import (
    ConvolutionLayer,
    LinearLayer,
    ProductLayer,
    holds_weight,
    is_plain,
    product_layer,
)
from fewbits.ptq.loaded_weights import LoadedWeights, NothingUnloaded, PartialLoadError
from fewbits.ptq.moments import Moments
from fewbits.ptq.passes import Passes
from fewbits.ptq.rotation import fold
from fewbits.ptq.stored_choices import StoredChoices, job_of
from fewbits.records import QuantizedLayer, QuantizeReport
from fewbits.tensor import fake_quantize
from fewbits.tensor.memory import overlap, valueless
from fewbits.typing import Progress
from fewbits.versions import release

Model = TypeVar("Model", bound=nn.Module)


@dataclass(frozen=True)
class RoundedInput:
    """A forward pre-hook, with keyword arguments, that rounds the input of a layer, nearest even."""

    format: Format
    axis: int
    scale_rule: str

    def __call__(self, module: nn.Module, inputs: tuple[Tensor, ...], named: dict[str, Tensor]) -> Arguments:
        """Return the arguments of the layer with its input rounded."""
        return with_input(inputs, named, self.rounded)

    def rounded(self, x: Tensor) -> Tensor:
        """Return a tensor rounded."""
        y: Tensor = fake_quantize(x, self.format, axis=self.axis, scale_rule=self.scale_rule)
        return y


def quantize_model(
    model: Model,
    batches: Sequence[Batch],
    format: str | Format | None,
    *,
    method: str = "gptq",
    scale: str = "amax",
    scale_rule: str = "floor",
    map: Mapping[str, str | Format] | None = None,
    activation: str | Format | None = None,
    hadamard: int = 0,
    damping: float = 0.01,
    include: str | Iterable[str] = "*",
    exclude: str | Iterable[str] = (),
    folder: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> tuple[Model, QuantizeReport]:
    """Give the layers of a trained model weights that a format holds, chosen for its inputs, in place.

    Every linear and convolution layer is changed, in the order in which data flows: a layer is calibrated on
    what the chosen weights before it give. Transposed convolutions, and matrices of attention, recurrent and
    other modules, are left as they are; the output projection of ``nn.MultiheadAttention`` is a linear layer
    that is never called, and is rounded to nearest. Weights keep their dtype, and quantizing them as
    :func:`fewbits.files.cast` does gives these very values: what is stored is what was chosen. Weights beyond
    the largest value of a format become that one, also where the format has infinities. Of each output
    of a layer the values of the method are kept only where they lose less than rounding does on these inputs.
    Layers that take the same tensor are calibrated together: memory holds the model, what it holds of each
    batch at these layers, and one matrix of the size of their inputs, three with ``activation``; with
    ``hadamard`` as many for each size. Each layer is computed once for a batch, and once more where a
    rotation may be folded.

    Args:
        model: any module, in the mode in which it will be used.
        batches: what the model takes, without labels: tensors, tuples of arguments or mappings of them.
        format: a format or its text; None leaves layers that no key of ``map`` fits as they are.
        method: ``round`` to nearest, ``gptq`` (Frantar et al., ICLR 2023) or ``gpfq``, error diffusion
            (Lybrand and Saab, JMLR 2021).
        scale: ``amax``: the scale of a block follows from its largest value; ``search``: it is the one that
            loses least, with errors weighted by the mean squares of the inputs.
        scale_rule: how power-of-two scales are chosen; formats with other scales keep their own rule.
        map: formats by patterns of layers' names; the first that fits decides.
        activation: the format to which the inputs of the layers are rounded, here and in later calls.
        hadamard: rotate the inputs of layers in blocks of up to so many values, 16, 32, 64 or 128; 0 for no
            rotation. Of these sizes a layer takes the one with which its outputs lose least on the batches,
            or none. The rotation is folded into the linear layer before where there is one, else it is a
            forward pre-hook of the layer.
        damping: what GPTQ adds to the diagonal of its Hessian, as a fraction of the mean.
        include: patterns of module names, as in ``"blocks.*"``: only layers within them are changed.
        exclude: patterns of module names to leave out.
        folder: where the weight of each layer is stored once it is chosen; the same call with the same model
            and batches goes on from there, and gives the same bits. None stores nothing.
        progress: called as ``progress("calibrating layers", done, all)``.

    Returns:
        The model, and a record of each layer. A layer that the first batch does not reach is rounded to
        nearest; one that shares its weight with another module is left as it is, and so are other modules'
        matrices, but for embeddings. The record says so.

    Raises:
        ArgumentError: no such method, no batches, a pattern that fits no layer, a model prepared before, or
            weights without values or with several values in one place of memory.
        FormatError: no such format.
        DataError: a weight or an input is not finite, a layer's input is no tensor, or a batch calls a layer
            more often than the first does.
    """
    targets = _Targets.read(format, map or {}, scale_rule, model)
    rounding = None if activation is None else parse(activation)
    choice = _checked(method, scale, damping, batches)
    check_size(hadamard)
    check_scale_rule(scale_rule, [*targets.formats, *([rounding] if rounding else [])])
    layers, left = _layers(model, targets, include, exclude)
    settings = {"versions": [release("fewbits"), release("torch")], **asdict(choice), "hadamard": hadamard}
    settings["formats"] = [str(rounding), scale_rule, *(f"{name} {targets[name].format}" for name in layers)]
    weights = getattr(model, "fewbits_weights", None)
    weights = weights if isinstance(weights, LoadedWeights) else None
    held = model.state_dict().items() if weights is None else chain(weights.values(), model.named_buffers())
    job = "" if folder is None else job_of(settings, held, list(batches))
    stored = StoredChoices(None if folder is None else Path(folder), job)
    work = _Work(model, batches, layers, targets, choice, stored, rounding, scale_rule, progress)
    work.weights = weights
    with torch.no_grad():
        flow = work.flow()
        if hadamard:
            work.hadamard = hadamard
            work.folded = fold(layers, flow, work.best_size, lambda: call(model, batches[0]))
        modules = {name: layer.module for name, layer in layers.items()}
        work.passes = Passes(model, flow, modules, batches, weights)
        try:
            for stage in flow:
                work.quantize(stage)
            work.passes.finish()
        finally:
            work.passes.close()
        work.round_the_rest()
    activations = None if rounding is None else str(rounding)
    return model, QuantizeReport(method, scale, scale_rule, activations, (*work.records.values(), *left))


@dataclass(frozen=True)
class _Targets:
    """The format of each layer, by patterns of names."""

    rules: tuple[tuple[str, Target], ...]

    @classmethod
    def read(
        cls, format: str | Format | None, map: Mapping[str, str | Format], scale_rule: str, model: nn.Module
    ) -> _Targets:
        if not hasattr(map, "items") or not all(isinstance(glob, str) for glob in map):
            raise ArgumentError(
                f"map={map!r} is no mapping of names of layers, or patterns, to formats: {{'head': 'mxfp8'}}"
            )
        rules = [*map.items(), *([("*", format)] if format is not None else [])]
        if not rules:
            raise ArgumentError("no format was given; expected `format`, as in 'mxfp4', or `map`")
        read = [(glob, Target(parse(f), scale_rule)) for glob, f in rules]
        named = list(model.named_modules(remove_duplicate=False))
        return cls(tuple((own, target) for glob, target in read for own in with_shared([glob], named)))

    @property
    def formats(self) -> list[Format]:
        return [target.format for _, target in self.rules]

    def get(self, name: str) -> Target | None:
        return next((target for glob, target in self.rules if within(name, [glob])), None)

    def __getitem__(self, name: str) -> Target:
        target = self.get(name)
        assert target is not None
        return target


@dataclass
class _Work:
    """A model whose layers get their weights."""

    passes: Passes = field(init=False)
    weights: LoadedWeights | None = field(init=False)  # None: all of them are in memory
    model: nn.Module
    batches: Sequence[Batch]
    layers: Mapping[str, ProductLayer]
    targets: _Targets
    choice: Choice
    stored: StoredChoices
    rounding: Format | None  # of the layers' inputs
    scale_rule: str
    progress: Progress | None
    hadamard: int = 0  # the largest size of blocks
    folded: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    records: dict[str, QuantizedLayer] = field(default_factory=dict)

    def flow(self) -> list[Stage]:
        """Return the order in which data flows through the layers."""
        modules = {name: layer.module for name, layer in self.layers.items()}
        try:
            with nullcontext() if self.weights is None else NothingUnloaded():  # type: ignore[no-untyped-call]  # torch gives a mode no types
                found = stages(self.model, modules, self.batches[0])
        except (NotImplementedError, RuntimeError) as error:
            if self.weights is None:
                raise
            raise PartialLoadError(
                f"{type(self.model).__name__} cannot be run with one layer in memory at a time"
                f" ({str(error).splitlines()[0]:.200}); load it whole"
            ) from None
        if self.weights is not None:
            self.weights.release()
            self.weights.at_once = False
        return found

    def quantize(self, stage: Stage) -> None:
        """Choose the weights of layers that take the same input, or take those that are stored."""
        known = {name: self.stored.load(name) for name in stage.layers}
        names = [name for name, found in known.items() if found is None]
        sums = self._sums(stage, names, lambda seen: self.passes.reach(stage, seen))
        for name, found in known.items():
            if found is None:
                chosen = self._chosen(name, sums[name]), sums[name][0].count
                self.stored.save(name, *chosen)
            else:
                chosen = found
            self._set(name, *chosen)
            self._change_input(self.layers[name], chosen[0].hadamard, self._hook(name))

    def round_the_rest(self) -> None:
        """Round the weights of layers that the first batch, which tells the order, has not reached."""
        for name, layer in self.layers.items():
            if name in self.records:
                continue
            if self.weights is not None:
                self.weights.release()
                self.weights.load(layer.module)
            values = self.targets[name].nearest(layer.in_blocks)
            if values is None:
                raise DataError(
                    f"{self.targets[name].format} has no values for the weight of {name}; exclude it"
                )
            chosen = ChosenWeight(values.reshape(layer.weight.shape), nan, nan, nan)
            self._set(name, chosen, 0, "the first batch does not reach it: rounded to nearest")

    def best_size(self, stage: Stage) -> int:
        """Return the size of blocks with which the layers of a stage, as they are, lose least; 0 for none."""
        modules = {name: self.layers[name].module for name in stage.layers}

        def reach(seen: Seen) -> Iterator[int]:
            return run_to(self.model, stage, modules, self.batches, seen)

        lost: dict[int, float] = defaultdict(float)
        for name, moments in self._sums(stage, stage.layers, reach).items():
            for chosen in choose_each(self.layers[name], moments, self.targets[name], self.choice):
                lost[chosen.hadamard] += chosen.loss / (chosen.power or 1.0)
        return min(lost, key=lambda size: (lost[size], size))

    def _change_input(self, layer: ProductLayer, size: int, rounding: RoundedInput | None) -> None:
        """Rotate and round the input of a layer whose weight is chosen, in calls that are under way too."""
        changes: list[tuple[BlockHadamard | RoundedInput, Callable[[Tensor], Tensor]]] = []
        if size:
            rotation = BlockHadamard(size, layer.input_axis)
            changes.append((rotation, rotation.rotated))
        if rounding is not None:
            changes.append((rounding, rounding.rounded))
        for hook, _ in changes:
            layer.module.register_forward_pre_hook(hook, with_kwargs=True)

        def changed(x: Tensor) -> Tensor:
            for _, change in changes:
                x = change(x)
            return x

        if changes:
            self.passes.changed[layer.module] = changed

    def _sums(
        self, stage: Stage, names: Sequence[str], reach: Callable[[Seen], Iterable[int]]
    ) -> dict[str, list[Moments]]:
        """Return the moments of the inputs of some layers of a stage, in each rotation that is offered.

        Linear ones share theirs.
        """
        first: dict[object, str] = {}
        for name in names:
            first.setdefault(self._inputs(stage, name), name)
        own = {name: self._moments(name) for name in first.values()}
        seen = {self.layers[name].module: moments for name, moments in own.items()}

        def add(module: nn.Module, x: Tensor) -> None:
            for moments in seen.get(module, ()):
                moments.add(x)

        for done in reach(add) if names else ():
            self._advance(done / len(self.batches))
        if self.weights is not None:
            self.weights.release()  # of the layers before
        for name, (plain, *others) in own.items():
            if not others:
                own[name] = [plain, *(plain.rotated(size) for size in self._sizes(name)[1:])]
        return {name: own[first[self._inputs(stage, name)]] for name in names}

    def _sizes(self, name: str) -> tuple[int, ...]:
        """Return the rotations that a layer is offered."""
        return (0,) if name in self.folded else fitting(self.layers[name], self.hadamard)

    def _moments(self, name: str) -> list[Moments]:
        """Return the moments to be summed; the others follow from those of a linear layer's wide inputs."""
        layer, rounded = self.layers[name], self._rounded(name)
        alone = rounded is None and not isinstance(layer, ConvolutionLayer)
        return [Moments(layer, rounded, size) for size in ((0,) if alone else self._sizes(name))]

    def _inputs(self, stage: Stage, name: str) -> object:
        """Return what is equal for layers whose inputs have the same moments."""
        return LinearLayer if isinstance(self.layers[name], LinearLayer) and stage.calls[name] == 1 else name

    def _chosen(self, name: str, moments: Sequence[Moments]) -> ChosenWeight:
        if not all(offered.is_finite for offered in moments):
            raise DataError(f"{name} takes NaN, infinity or huge numbers; check the batches, or exclude it")
        if self.weights is not None:
            self.weights.load(self.layers[name].module)
            _check_finite(name, self.layers[name].weight)
        return choose_rotation(self.layers[name], moments, self.targets[name], self.choice)

    def _hook(self, name: str) -> RoundedInput | None:
        if self.rounding is None:
            return None
        rule = self.scale_rule if has_scale_rule(self.rounding) else "floor"
        return RoundedInput(self.rounding, self.layers[name].input_axis, rule)

    def _rounded(self, name: str) -> Callable[[Tensor], Tensor] | None:
        hook = self._hook(name)
        return None if hook is None else hook.rounded

    def _set(self, name: str, chosen: ChosenWeight, vectors: int, reason: str = "") -> None:
        layer, folded = self.layers[name], self.folded.get(name)
        if self.weights is None:
            layer.weight.copy_(chosen.weight)
        elif vectors:
            self.weights.choose(layer.module, lambda: self._stored(name))
        power = chosen.power or 1.0  # no output: nothing is lost either
        self.records[name] = QuantizedLayer(
            layer=name,
            shape=tuple(layer.weight.shape),
            format=str(self.targets[name].format),
            vectors=vectors,
            rounding_loss=chosen.rounding_loss / power,
            loss=chosen.loss / power,
            hadamard=folded[0] if folded else chosen.hadamard,
            folded=folded[1] if folded else None,
            reason=reason,
        )
        self._advance(0.0)

    def _stored(self, name: str) -> Tensor:
        found = self.stored.load(name)
        if found is None:
            raise DataError(f"the weight that was chosen for {name} was removed meanwhile; start again")
        return found[0].weight

    def _advance(self, part: float) -> None:
        if self.progress is not None:
            self.progress("calibrating layers", len(self.records) + part, len(self.layers))


def _checked(method: str, scale: str, damping: float, batches: Sequence[Batch]) -> Choice:
    for what, given, names in (("method", method, METHODS), ("scale", scale, SCALES)):
        if given not in names:
            raise ArgumentError(f"{what}={given!r} is not one of {', '.join(names)}")
    number = isinstance(damping, Real)
    if not (number and 0 <= damping < inf):
        raise ArgumentError(
            f"damping={damping!r} is no part of a mean; expected 0.01 or another number from 0"
        )
    # They are read once for each stage: what can be read once only, or is one batch itself, is no list.
    if isinstance(batches, (Tensor, Mapping, str)) or not isinstance(batches, Sized):
        raise ArgumentError(
            f"batches is of type {type(batches).__name__}; expected a list of batches, as in [x]"
        )
    if not hasattr(batches, "__getitem__"):
        raise ArgumentError(
            f"batches is of type {type(batches).__name__}; expected a list, as list(batches) gives"
        )
    if len(batches) == 0:
        raise ArgumentError("there is no batch to calibrate on; give a list of one at least")
    return Choice(method, scale, damping)


def _layers(
    model: nn.Module, targets: _Targets, include: str | Iterable[str], exclude: str | Iterable[str]
) -> tuple[dict[str, ProductLayer], list[QuantizedLayer]]:
    """Return the layers to change, and records of those that are left for a reason."""
    named = dict(model.named_modules(remove_duplicate=False))
    selection = Selection.of(include, exclude, named)
    check_fits("map", [glob for glob, _ in targets.rules], list(named))
    if any(hasattr(module, "fewbits_recipe") for module in model.modules()):
        raise ArgumentError("the model was prepared by fewbits.prepare; give it as it was before")
    _check_sizes(model)
    read_later = isinstance(getattr(model, "fewbits_weights", None), LoadedWeights)
    layers: dict[str, ProductLayer] = {}
    left: list[QuantizedLayer] = []
    users = Counter(_memory(p) for m in model.modules() for p in m.parameters(recurse=False))
    for name, module in model.named_modules():
        if name not in selection or targets.get(name) is None:
            continue
        layer = product_layer(module)
        if layer is None:
            left += _others(name, module)
            continue
        reason = _obstacle(layer, users)
        if reason:
            left.append(QuantizedLayer(name, tuple(layer.weight.shape), None, 0, nan, nan, reason=reason))
        else:
            if why := overlap(layer.weight) or ("" if read_later else valueless(layer.weight)):
                raise ArgumentError(f"{name}.weight".lstrip(".") + f" {why}")
            _check_finite(name, layer.weight)
            layers[name] = layer
    if not layers:
        raise ArgumentError(
            f"{type(model).__name__} has no linear or convolution layer to change; check include and exclude"
        )
    return layers, left


def _others(name: str, module: nn.Module) -> Iterator[QuantizedLayer]:
    """Yield records of the matrices of a module that is no layer to be changed, unless it is an embedding."""
    if isinstance(module, (nn.Embedding, nn.EmbeddingBag, parametrize.ParametrizationList)):
        return
    # What torch computes from parameters that lie elsewhere.
    computed = list(getattr(module, "parametrizations", ())) if parametrize.is_parametrized(module) else []
    held = [*module.named_parameters(recurse=False), *((key, getattr(module, key)) for key in computed)]
    for key, p in held:
        if p.is_floating_point() and sum(n > 1 for n in p.shape) > 1 and not key.endswith("bias"):
            where = f"{name}.{key}".removesuffix(".weight").lstrip(".")
            reason = f"{type(module).__name__} is no linear or convolution layer that is known: left as it is"
            yield QuantizedLayer(where, tuple(p.shape), None, 0, nan, nan, reason=reason)


def _check_sizes(model: nn.Module) -> None:
    """Raise where a lazy layer has no sizes yet, so that nobody can tell what it multiplies."""
    for name, p in model.named_parameters():
        if is_lazy(p):
            raise ArgumentError(f"{name} {valueless(p)}")


def _check_finite(name: str, weight: Tensor) -> None:
    """Raise where a weight cannot be chosen; one that is not in memory yet is checked when it is."""
    if not weight.is_meta and not bool(torch.isfinite(weight).all()):
        raise DataError(f"the weight of {name or 'the model'} holds NaN or infinity; exclude the layer")


def _memory(p: object) -> int:
    """Return what tells the memory of parameters apart: where values lie, of a tensor that has some."""
    if isinstance(p, Tensor) and type(p) in (Tensor, nn.Parameter) and not p.is_meta and p.numel():
        return p.data_ptr()
    return id(p)


def _obstacle(layer: ProductLayer, users: Mapping[int, int]) -> str:
    """Return why a layer is left as it is; "" if it is not."""
    if not holds_weight(layer.module):
        return "its weight is computed from others: left as it is"
    if users[_memory(layer.module.weight)] > 1:
        return "it shares its weight with another module: left as it is"
    return "" if is_plain(layer.module.weight) else "its weight is no ordinary tensor: left as it is"
