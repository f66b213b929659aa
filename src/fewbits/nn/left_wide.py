"""What stays wide in a prepared model, listed so that no product does so unnoticed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from torch import nn

from fewbits.names import Selection, parents
from fewbits.nn.layer_classes import narrow_class, obstacle
from fewbits.recipes import Recipe


class LeftWide(NamedTuple):
    """A module, or a tensor of one, whose products are not narrow."""

    name: str
    kind: str
    why: str


_PLAIN = Recipe("fp32")


def left_wide(
    modules: Mapping[str, nn.Module],
    narrow: Collection[str],
    selection: Selection,
    held: Mapping[str, str],
) -> tuple[LeftWide, ...]:
    """Return what does not become narrow and may multiply.

    Args:
        modules: all that are no part of a layer, by name.
        narrow: names of those that become narrow.
        selection: what was to become narrow.
        held: matrices that modules without a narrow form hold, and the names of those modules.
    """
    left, around = [], parents(narrow)
    for name, module in modules.items():
        kind = type(module).__name__
        matrices = [key for key, owner in held.items() if owner == name]
        if name not in selection and name not in around:
            multiplies = narrow_class(module) is not None or obstacle(module, _PLAIN) is not None
            left += [LeftWide(name, kind, "excluded")] if multiplies else []
            continue
        left += [LeftWide(key, f"matrix of {kind}", "excluded") for key in matrices]
        if narrow_class(module) is not None and name not in narrow:
            left.append(LeftWide(name, kind, "its recipe leaves it to PyTorch"))
        elif "attention" in kind.lower() and name not in narrow:
            left.append(LeftWide(name, kind, "products of activations in its forward are not seen"))
        for key, buffer in module.named_buffers(recurse=False):
            if buffer.is_floating_point() and sum(n > 1 for n in buffer.shape) > 1:
                place = f"{name}.{key}".lstrip(".")
                left.append(LeftWide(place, f"buffer of {kind}", "products with it are not seen"))
    return tuple(left)
