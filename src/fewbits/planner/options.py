"""What may be chosen for each layer, and what pins and prohibitions leave of that."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal, TypeGuard, get_args

import numpy as np
from numpy.typing import NDArray

from fewbits.errors import ArgumentError
from fewbits.planner.configurations import Splits, mesh_splits
from fewbits.planner.graph import Graph, Layer
from fewbits.planner.sharding import shardable

Pins = Mapping[str, Mapping[str, int] | Sequence[int]]
"""Splits that are fixed: of a layer, or of all that a glob fits, by dimension or for all dimensions."""
Forbidden = Mapping[str, Sequence[str]]
"""Dimensions that are not split, of a layer or of all that a glob fits."""
Sharded = Literal["never", "allowed", "always"]
"""Whether weights that are whole on all devices are sharded: allowed leaves it to the search."""


@dataclass(frozen=True)
class Options:
    """The options of one layer."""

    splits: Splits  # (k, d)
    formats: NDArray[np.int64]  # (k,), the index of a recipe; of layers without products the last
    sharded: NDArray[np.bool_]  # (k,)

    def where(self, kept: NDArray[np.bool_]) -> Options:
        """Return those that are kept."""
        return Options(self.splits[kept], self.formats[kept], self.sharded[kept])


def layer_options(
    graph: Graph, devices: int, formats: int, pins: Pins, forbid: Forbidden, sharded: Sharded = "never"
) -> list[Options]:
    """Return the options of each layer: products have so many formats, all others the one after these.

    Raises:
        ArgumentError: a pin or prohibition fits no layer, names no dimension, or leaves no option, or there
            is no such `sharded`.
    """
    if sharded not in get_args(Sharded):
        raise ArgumentError(f"sharded={sharded!r}; expected one of {', '.join(get_args(Sharded))}")
    for argument, globs in (("pins", pins), ("forbid", forbid)):
        for glob in globs:
            if not any(fnmatchcase(layer.name, glob) for layer in graph.layers):
                raise ArgumentError(
                    f"`{argument}` names {glob!r}, which fits no layer; the first of them are"
                    f" {', '.join(layer.name for layer in graph.layers[:5])}"
                )
    for glob, pin in pins.items():
        if not _is_pin(pin):
            raise ArgumentError(
                f"`pins` of {glob!r} is {pin!r}; expected whole numbers by dimension, as in {{'b': 8}}, or"
                " one for each"
            )
    for glob, names in forbid.items():
        if not _is_list(names):
            raise ArgumentError(
                f"`forbid` of {glob!r} is {names!r}; expected a list of dimensions, as in ('h', 'w')"
            )
        spaces = [layer.space for layer in graph.layers if fnmatchcase(layer.name, glob)]
        own = dict.fromkeys(d.name for space in spaces for d in space)
        for name in names:
            if name not in own:
                raise ArgumentError(
                    f"`forbid` names the dimension {name!r} of {glob!r}, which no such layer has; they have"
                    f" {', '.join(own)}"
                )
    known: dict[object, Options] = {}
    found = []
    for layer in graph.layers:
        own_pins = [pin for glob, pin in pins.items() if fnmatchcase(layer.name, glob)]
        own_forbidden = {d for glob, names in forbid.items() if fnmatchcase(layer.name, glob) for d in names}
        weights = tuple((w.shape, w.axes, w.trained) for w in layer.weights if sharded != "never")
        limits = (repr(own_pins), tuple(sorted(own_forbidden)))
        key = (layer.space, layer.product, layer.output.axes, weights, limits, layer.unsharded)
        if key not in known:
            splits = _splits(layer, devices, own_pins, own_forbidden)
            taken = range(formats) if layer.product else [formats]
            known[key] = _combined(splits, taken, shardable(layer, splits, devices), sharded)
        found.append(known[key])
    return found


def _is_pin(given: object) -> bool:
    """Return whether these are whole numbers, by name or in a row."""
    numbers = given.values() if isinstance(given, Mapping) else given
    return _is_list(numbers) and all(type(n) is int or isinstance(n, np.integer) for n in numbers)


def _is_list(given: object) -> TypeGuard[Iterable[object]]:
    return isinstance(given, Iterable) and not isinstance(given, str)


def _combined(splits: Splits, formats: Sequence[int], can: NDArray[np.bool_], sharded: Sharded) -> Options:
    """Return each split in each format, and sharded beside or in place of whole where it can be."""
    whole = splits[~can] if sharded == "always" else splits
    parts = splits[can] if sharded != "never" else splits[:0]
    both = np.concatenate([whole, parts])
    is_sharded = np.arange(len(both)) >= len(whole)
    n = len(formats)
    return Options(np.tile(both, (n, 1)), np.repeat(formats, len(both)), np.tile(is_sharded, n))


def _splits(
    layer: Layer,
    devices: int,
    pins: Sequence[Mapping[str, int] | Sequence[int]],
    forbidden: set[str],
) -> Splits:
    splits = mesh_splits(layer, devices)
    at = {d.name: i for i, d in enumerate(layer.space)}
    for pin in pins:
        for name, n in _fixed(layer, pin).items():
            if name not in at:
                raise ArgumentError(
                    f"`pins` fix {name!r} of the layer {layer.name!r}; its dimensions are {', '.join(at)}"
                )
            splits = splits[splits[:, at[name]] == n]
    for name in forbidden & set(at):
        splits = splits[splits[:, at[name]] == 1]
    if not len(splits):
        space = ", ".join(f"{d.name}={d.extent}" for d in layer.space)
        raise ArgumentError(
            f"`pins` {list(pins)} and `forbid` {sorted(forbidden)} leave the layer {layer.name!r} ({space})"
            f" no split over {devices} device{'s' * (devices > 1)}; a split divides its extent,"
            " and their product the devices"
        )
    return splits


def _fixed(layer: Layer, pin: Mapping[str, int] | Sequence[int]) -> Mapping[str, int]:
    if isinstance(pin, Mapping):
        return pin
    if len(pin) != len(layer.space):
        raise ArgumentError(
            f"`pins` fix {tuple(pin)} for the layer {layer.name!r}, which has the {len(layer.space)}"
            f" dimensions {', '.join(d.name for d in layer.space)}"
        )
    return {d.name: n for d, n in zip(layer.space, pin, strict=True)}
