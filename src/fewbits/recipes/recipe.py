"""A recipe: which role is held in which format, and which stabilizers pay back what the rounding took."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from typing import Any

from fewbits.errors import ArgumentError
from fewbits.recipes.loss_scaling import LossScaling
from fewbits.recipes.role_format import RoleFormat, read_role_format

# The operands of the three products of a layer y = x W^T with gradient g: x W^T, g^T x and g W.
OPERANDS = (
    "forward_activation",
    "forward_weight",
    "dw_activation",
    "dw_gradient",
    "dx_gradient",
    "dx_weight",
)
_STORED = ("parameter", "master", "held_gradient", "first_moment", "second_moment")
_GROUPS = {
    "weight": ("forward_weight", "dx_weight"),
    "activation": ("forward_activation", "dw_activation"),
    "gradient": ("dw_gradient", "dx_gradient"),
    "backward": ("dw_activation", "dw_gradient", "dx_gradient", "dx_weight"),
}
VECTORS = ("fp32", "bf16", "fp16")
AUTOCASTS = ("", "bf16", "fp16")
_SWITCHES = ("keep_first", "keep_last", "logit_gradient", "has_master")
UPDATES = ("nearest", "stochastic", "kahan")
PRODUCTS = ("exact", "add")
SCHEDULES = ("", "warm_up", "muppet", "assigned")
OPTIMIZERS = ("adamw", "sgd", "lars")
LR_SCHEDULES = ("cosine", "polynomial")
FieldValue = RoleFormat | LossScaling | str | bool | None  # what a field takes; formats also as text


@dataclass(frozen=True, repr=False)
class Recipe:
    """Everything that turns a training loop into a narrow one. Frozen, comparable; prints itself as a table.

    A role whose format is None stays as it is. Operands are rounded along the reduction axis of the product
    that they enter, each from the tensor as the layer has it.
    """

    name: str
    paper: str = ""
    forward_activation: RoleFormat | None = None
    forward_weight: RoleFormat | None = None
    dw_activation: RoleFormat | None = None  # of the product that gives the weight's gradient
    dw_gradient: RoleFormat | None = None
    dx_gradient: RoleFormat | None = None  # of the product that gives the input's gradient
    dx_weight: RoleFormat | None = None
    vector: str = "fp32"  # what flows between products: their results and everything computed on them
    autocast: str = ""  # "bf16" or "fp16": PyTorch's own autocast instead of all of the above
    product: str = "exact"  # or "add": integer sums of bit patterns in the place of multiplications
    keep_first: bool = False  # the first layer keeps its operands as they are
    keep_last: bool = False
    logit_gradient: bool = True  # whether the gradient that enters the last layer is cast like the others
    parameter: RoleFormat | None = None  # what parameters are between steps
    master: RoleFormat | None = None  # with `parameter`: what the update is added to; None without has_master
    has_master: bool = False  # a parameter that is float32 is its own
    update: str = "nearest"  # how an update is added to a parameter without a master copy
    held_gradient: RoleFormat | None = None  # what a weight's gradient is between backward and update
    first_moment: RoleFormat | None = None
    second_moment: RoleFormat | None = None
    scaling: LossScaling | None = None
    schedule: str = ""  # what changes formats on the way
    optimizer: str = "adamw"  # what `fewbits train` takes steps by; in a loop of your own, your choice
    lr_schedule: str = "cosine"  # or "polynomial", of power 2: how the learning rate falls after its warm-up

    def __post_init__(self) -> None:
        """Raise if a field has a value that is not allowed."""
        for name, allowed in (
            ("autocast", AUTOCASTS),
            ("vector", VECTORS),
            ("update", UPDATES),
            ("product", PRODUCTS),
            ("schedule", SCHEDULES),
            ("optimizer", OPTIMIZERS),
            ("lr_schedule", LR_SCHEDULES),
        ):
            if getattr(self, name) not in allowed:
                raise ArgumentError(
                    f"{name}={getattr(self, name)!r} in recipe {self.name!r}; expected one of"
                    f" {', '.join(repr(a) for a in allowed)}"
                )
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise ArgumentError(
                    f"{name}={getattr(self, name)!r} in recipe {self.name!r}; expected yes or no"
                )
        for name in (*OPERANDS, *_STORED):
            role = getattr(self, name)
            if role is not None and not isinstance(role, RoleFormat):
                raise ArgumentError(
                    f"{name}={role} in recipe {self.name!r}; expected a fewbits.recipes.RoleFormat or None;"
                    " for extended also a text, as 'mxfp6_e3m2/rceil'"
                )
        if self.scaling is not None and not isinstance(self.scaling, LossScaling):
            raise ArgumentError(
                f"scaling={self.scaling!r} in recipe {self.name!r}; expected none, dynamic or a number"
            )
        if self.autocast and self.replaces_layers:
            raise ArgumentError(
                f"autocast={self.autocast} in recipe {self.name!r}, which changes layers itself: autocast"
                " would change none of their products; leave it out, as with vector=bf16, or take it alone"
            )
        if self.master is not None and not self.has_master:
            raise ArgumentError(
                f"master={self.master} in recipe {self.name!r}, which keeps no master copy; add"
                " has_master=yes"
            )

    @property
    def operands(self) -> dict[str, RoleFormat | None]:
        """The six operands."""
        return {name: getattr(self, name) for name in OPERANDS}

    @property
    def replaces_layers(self) -> bool:
        """Whether prepared layers compute differently from torch's."""
        changes = (self.vector, self.product, self.schedule) != ("fp32", "exact", "")
        return changes or self.parameter is not None or any(self.operands.values())

    def extended(self, name: str | None = None, /, **changes: FieldValue) -> Recipe:
        """Return the recipe with some fields changed.

        Args:
            name: of the new recipe; the old one's by default.
            changes: fields of the recipe, or ``weight``, ``activation``, ``gradient`` and ``backward``, which
                stand for all their operands. A role's format may be given as text.

        Raises:
            ArgumentError: no such field, or a value that means nothing there; an ``update`` that nothing is
                added by, since no parameter is narrow or the update goes to a master copy.
            FormatError: a text that is no format of a role.
        """
        known = {f.name for f in fields(self)}
        values: dict[str, Any] = {}
        for key, value in changes.items():
            if (key not in known and key not in _GROUPS) or key == "name":
                roles = (*_GROUPS, *(f.name for f in fields(self)[2:]))
                raise ArgumentError(f"a recipe has no {key!r}; expected {', '.join(roles)}")
            for field in _GROUPS.get(key, (key,)):
                is_format = field in OPERANDS or field in _STORED
                values[field] = _from_text(field, value, is_format) if isinstance(value, str) else value
        changed = replace(self, name=name or self.name, **values)
        if values.get("update", "nearest") != "nearest" and (changed.has_master or changed.parameter is None):
            why, instead = (
                ("adds updates to a master copy", "has_master=no")
                if changed.has_master
                else ("holds no parameter in fewer bits", "parameter=FORMAT")
            )
            raise ArgumentError(
                f"update={changed.update} in recipe {changed.name!r}, which {why}; add {instead}, or leave it"
                " out"
            )
        return changed

    def __repr__(self) -> str:
        """Return a table: each field that differs from plain FP32 training."""
        shown = [
            (f.name, getattr(self, f.name)) for f in fields(self)[1:] if getattr(self, f.name) != f.default
        ]
        width = max((len(name) for name, _ in shown), default=0)
        return "\n".join([self.name, *(f"  {name:<{width}}  {value}" for name, value in shown)])


def _from_text(field: str, value: str, is_format: bool) -> FieldValue:
    if is_format:
        return read_role_format(value)
    if field == "scaling" and value in ("none", "dynamic"):
        return LossScaling() if value == "dynamic" else None
    if field == "scaling" and re.fullmatch(r"\d+(\.\d*)?(e[+-]?\d+)?", value):
        return LossScaling(float(value), dynamic=False)
    return {"yes": True, "true": True, "no": False, "false": False}.get(value, value)
