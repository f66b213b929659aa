"""Refuse, all at once, the layers of a model that multiply by matrices and have no narrow form."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase

from torch import nn

from fewbits.errors import ArgumentError
from fewbits.names import Selection
from fewbits.nn.layer_classes import obstacle
from fewbits.recipes import Recipe


def check_supported(
    modules: Mapping[str, tuple[nn.Module, Recipe]],
    held: Mapping[str, str],
    selection: Selection,
    names: Collection[str],
) -> None:
    """Raise one error that names every layer that has to be excluded.

    Args:
        modules: those that are to become narrow, and their recipes, by name.
        held: matrices that modules without a narrow form hold, and the names of those modules.
        selection: what is not excluded already, modules or such matrices.
        names: of all modules.

    Raises:
        ArgumentError: there is such a layer.
    """
    reasons: dict[str, str] = {}
    advice: list[str] = []
    for name, (module, chosen) in modules.items():
        mine = [key for key, owner in held.items() if owner == name]
        loose = [key for key in mine if key in selection]
        why = obstacle(module, chosen)
        if why is None or (mine and not loose):
            continue
        reasons[name] = f"is a {type(module).__name__}, which has no narrow form ({why})"
        # Of a module with layers below it only the matrices are left out: the layers can be narrow.
        alone = name and next(module.children(), None) is None
        advice += [name] if alone or not loose else loose
    if not reasons:
        return
    said = _grouped(reasons)
    if "" in advice:
        raise ArgumentError(f"{'; '.join(said)}; train it by another recipe")
    wanted = (*selection.exclude, *_patterns(advice, [*names, *held]))
    written = repr(wanted[0]) if len(wanted) == 1 else repr(wanted)
    if len(reasons) == 1:
        raise ArgumentError(f"{said[0]}; leave it as it is with exclude={written}")
    raise ArgumentError("\n".join((*said, f"leave them as they are with exclude={written}")))


def _grouped(reasons: Mapping[str, str]) -> list[str]:
    """Return a sentence for each reason: layers that differ in numbers only share one."""
    names_of: dict[tuple[str, str], list[str]] = {}
    for name, why in reasons.items():
        names_of.setdefault((_starred(name), why), []).append(name or "the model")
    return [
        f"{group[0]} {why}" if len(group) == 1 else f"{starred} {why}; {len(group)} of them"
        for (starred, why), group in names_of.items()
    ]


def _patterns(advice: list[str], everything: Collection[str]) -> list[str]:
    """Return patterns that fit ``advice`` and nothing else, short where numbers are all that differs."""
    patterns: list[str] = []
    for name in advice:
        starred = _starred(name)
        covers = [n for n in everything if fnmatchcase(n, starred)]
        pattern = starred if len(covers) > 1 and set(covers) <= set(advice) else name
        patterns += [pattern] if pattern not in patterns else []
    return patterns


def _starred(name: str) -> str:
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", name)
