"""The base of the optimizers here: steps in float32, on states that are held in a recipe's formats."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from itertools import chain
from numbers import Real
from typing import Any, ClassVar, TypedDict, cast

import torch
from torch.optim.optimizer import ParamsT

from fewbits.errors import ArgumentError
from fewbits.kernels.ops.sharding import is_sharded
from fewbits.optim import parameters
from fewbits.optim.gradients import GradientPacker, check_dense, release, set_grad_dtype
from fewbits.optim.packed_gradient import PackedGradient
from fewbits.optim.packing import bytes_of, from_plain, pack, to_plain, unpack
from fewbits.optim.parameter_state import Moment, Options, ParameterState
from fewbits.optim.sharded import processes
from fewbits.optim.skipped_steps import Before
from fewbits.recipes import Recipe
from fewbits.recipes import recipe as read
from fewbits.recipes.rounding import drawing_from, joint_seed
from fewbits.tensor import NarrowTensor
from fewbits.typing import StateDict

_COUNTS = ("step",)
# Options that only torch's optimizers have, with the value at which they do nothing.
_NOT_HERE: dict[str, object] = {
    "amsgrad": False,
    "maximize": False,
    "dampening": 0,
    "decoupled_weight_decay": True,
    "nesterov": False,
}
_STATES = ("first_moment", "second_moment", "master", "compensation")


class _Saved(TypedDict):
    """What ``state_dict`` returns."""

    state: dict[int, dict[str, object]]
    param_groups: list[dict[str, Any]]


class Optimizer(torch.optim.Optimizer):
    """An optimizer whose parameters, states and gradients are held as a recipe says.

    Arithmetic is float32: a step widens one parameter's state at a time and rounds it back. On a device all
    of a step is computed there, and the host waits for nothing: whether a loss scaler skips it is decided
    there too. Parameters that a
    recipe keeps as bfloat16 or float16 are those of that dtype; those in other formats are the ones that
    :func:`fewbits.nn.prepare` rounded.
    With ``held_gradient`` each gradient is packed as soon as autograd has it, or, where several processes
    average it, in :meth:`clip_` or :meth:`step`. It lies in ``p.grad`` as ever: it reads as float32, and loss
    scalers and clipping multiply it without a second rounding. Of sharded gradients the values are rounded,
    and they stay in their dtype.
    """

    moments: ClassVar[tuple[Moment, ...]] = ("first_moment",)

    # torch.amp.GradScaler then hands over its scale, and gradients are divided by it in float32.
    _step_supports_amp_scaling: ClassVar[bool] = True

    def __init__(self, params: ParamsT, defaults: Mapping[str, object], recipe: str | Recipe) -> None:
        self.recipe = read(recipe)
        for role in (*_STATES[:3], "held_gradient"):
            target = getattr(self.recipe, role)
            if target is not None and target.shift is not None:
                raise ArgumentError(
                    f"{role}={target} in recipe {self.recipe.name!r}; what is stored has no room for a shift:"
                    " leave it out, or take a block format"
                )
        self._packer = self._new_packer()
        self._widened: list[torch.Tensor] = []  # FP16 parameters whose gradients are float32
        self._were_wide: list[
            torch.Tensor
        ] = []  # parameters that were not narrow when added; cleared by the first step
        self._check_ranges(defaults)
        super().__init__(params, dict(defaults))

    def add_param_group(self, param_group: dict[str, object]) -> None:
        """Add parameters with options of their own, as torch's optimizers do.

        An optimizer that packs gradients takes those of its parameters from the ones before it.

        Raises:
            ArgumentError: a parameter of float64, a complex one, an option that only torch's have, one out of
                its range, or a recipe, of which an optimizer has one.
        """
        self._check_options(param_group, "a group of parameters")
        if "recipe" in param_group:
            kind = type(self).__name__
            raise ArgumentError(
                f"recipe={param_group['recipe']!r} in a group of parameters; {kind} has one for all: give it"
                f" to {kind}(params, recipe=...), or make an optimizer for each"
            )
        self._check_ranges({**self.defaults, **param_group})
        super().add_param_group(param_group)
        for p in self.param_groups[-1]["params"]:
            if p.dtype == torch.float64 or p.is_complex():
                self.param_groups.pop()
                remedy = "give it to torch.optim" if p.is_complex() else "call .float() of the model first"
                raise ArgumentError(
                    f"a parameter of shape {tuple(p.shape)} is {str(p.dtype).removeprefix('torch.')}, and"
                    f" steps are computed in float32; {remedy}"
                )
        self._watch(self.param_groups[-1])

    def _check_options(self, group: Mapping[str, object], where: str) -> None:
        for option, idle in _NOT_HERE.items():
            if option not in self.defaults and group.get(option, idle) != idle:
                raise ArgumentError(
                    f"{option}={group[option]!r} in {where}; {type(self).__name__} of fewbits has no such"
                    " option: leave it out, or take torch.optim"
                )

    def _check_ranges(self, options: Mapping[str, Any]) -> None:
        """Raise where an option is out of its range; of a base without options nothing.

        Args:
            options: those of a group, or the defaults.
        """

    def __getstate__(self) -> dict[str, Any]:
        """Return the state of copies and pickles; gradients are left out, as torch leaves out ``p.grad``."""
        return {**super().__getstate__(), "recipe": self.recipe}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore a copy, whose parameters have no hooks yet, or the part of a state that torch passes."""
        super().__setstate__(state)
        if "recipe" in state:
            self._packer, self._widened, self._were_wide = self._new_packer(), [], []
            for group in self.param_groups:
                self._watch(group)

    def __deepcopy__(self, memo: dict[int, Any]) -> Optimizer:
        """Return a copy for copied parameters: those in ``memo``, if the model is copied with it."""
        copy = memo[id(self)] = type(self).__new__(type(self))
        copy.__setstate__(deepcopy(self.__getstate__(), memo))
        return copy

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle the optimizer unless it holds packed tensors, which are not pickled."""
        if any(isinstance(x, NarrowTensor) for state in self.state.values() for x in state.values()):
            raise ArgumentError(
                f"an optimizer with packed states (recipe {self.recipe.name!r}) is not pickled: save its"
                " state_dict(), by torch.save or by fewbits.optim.save_state"
            )
        return super().__reduce_ex__(protocol)

    def _new_packer(self) -> GradientPacker | None:
        return None if self.recipe.held_gradient is None else GradientPacker(self.recipe.held_gradient)

    def _watch(self, group: dict[str, Any]) -> None:
        for p in group["params"]:
            release(p)
            if self.recipe.parameter is not None and parameters.parameter_format(p, self.recipe) is None:
                self._were_wide.append(p)
            if self._packer is not None and (
                self.recipe.parameter is None or parameters.parameter_format(p, self.recipe) is not None
            ):
                self._packer.watch(p)

    def update(
        self,
        values: torch.Tensor,
        gradient: torch.Tensor,
        state: ParameterState,
        group: Options,
    ) -> torch.Tensor:
        """Return the update of one parameter: what is added to its values.

        Args:
            values: of the parameter, float32.
            gradient: float32, of the same shape, unscaled.
            state: of the parameter; its moments are read by :meth:`load` and written by :meth:`keep`.
            group: the options of the parameter's group.
        """
        raise NotImplementedError

    def _before_updates(self, unscale: float | torch.Tensor) -> None:
        """Compute what the updates of a step need of all parameters together; nothing, of most optimizers.

        Args:
            unscale: what gradients have to be multiplied by.
        """

    @torch.no_grad()
    def step(  # type: ignore[override]  # torch overloads it; this is the union
        self, closure: Callable[[], float] | None = None
    ) -> float | None:
        """Update every parameter that has a gradient.

        Args:
            closure: computes the loss anew, with gradients; what it returns is returned.

        Raises:
            ArgumentError: a sparse gradient, or a model that was prepared after the optimizer was made.
        """
        self._check_order()
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for p in self._parameters():
            check_dense(p)
        self._hold_gradients()
        unscale = self._unscale()
        if unscale is not None:
            self._before_updates(unscale)
            steps = self._count_common_step()
            pairs = [(p, group) for group in self.param_groups for p in group["params"]]
            skip = self._overflow_on_device()
            for number, (p, group) in enumerate(pairs):
                with drawing_from(_common_draws(steps, number)):
                    self._step_one(p, unscale, skip, cast(Options, group))
        self._narrow_gradients()
        return loss

    def _count_common_step(self) -> int:
        """Return the number of this step among several processes, 0 if there is one; state_dict keeps it."""
        if processes() == 1:
            return 0
        first = self.param_groups[0]
        first["steps"] = first.get("steps", 0) + 1
        return int(first["steps"])

    def _hold_gradients(self) -> None:
        """Hold gradients as the recipe says, now that the processes have averaged them."""
        if self._packer is not None:
            self._packer.pack_rest(self._parameters())

    def _check_order(self) -> None:
        for p in self._were_wide:
            if parameters.parameter_format(p, self.recipe) is not None:
                raise ArgumentError(
                    f"a parameter of shape {tuple(p.shape)} became {self.recipe.parameter} after"
                    f" {type(self).__name__} was made; call prepare(model, {self.recipe.name!r}) first, then"
                    " make the optimizer"
                )
        self._were_wide.clear()

    def _step_one(
        self, p: torch.Tensor, unscale: float | torch.Tensor, skip: torch.Tensor | None, group: Options
    ) -> None:
        gradient = self._gradient(p)
        if gradient is not None:
            state = self.state[p]
            now = parameters.current(p, state, self.recipe)
            before = None if skip is None else Before.of(p, state)
            scaled = unscaled(gradient, unscale)
            parameters.add_(p, now, self.update(now, scaled, state, group), state, self.recipe)
            if before is not None and skip is not None:
                before.restore_where(skip.to(p.device), p, state)

    def widen_gradients(self) -> None:
        """Make FP16 gradients float32 until the step; for a loss scaler that unscales before it.

        Raises:
            ArgumentError: torch is too old for gradients of another dtype than their parameter's.
        """
        for p in self._parameters():
            if not self._widen(p):
                raise ArgumentError(
                    "this version of torch cannot unscale FP16 gradients before the step; leave out"
                    " unscale_ and clip with optimizer.clip_(max_norm, loss_scale=scaler.get_scale())"
                )

    def _widen(self, p: torch.Tensor) -> bool:
        """Make an FP16 gradient float32 until the step; return whether this torch can do that."""
        if p.grad is None or isinstance(p.grad, PackedGradient) or p.grad.dtype != torch.float16:
            return True
        if not set_grad_dtype(p, torch.float32):
            return False
        self._widened.append(p)
        return True

    def _scale_gradients(self, factor: float) -> None:
        """Multiply all gradients; FP16 ones become float32 before, where torch can, so that none vanishes."""
        for p in self._parameters():
            self._widen(p)
            if p.grad is not None:
                p.grad.mul_(factor)

    def _narrow_gradients(self) -> None:
        for p in self._widened:
            set_grad_dtype(p, p.dtype)
        self._widened.clear()

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop all gradients."""
        super().zero_grad(set_to_none)
        self._narrow_gradients()

    def gradients(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield each parameter that has a gradient, and that gradient in float32."""
        self._hold_gradients()
        for p in self._parameters():
            gradient = self._gradient(p)
            if gradient is not None:
                yield p, gradient

    @torch.no_grad()
    def clip_(self, max_norm: float, *, loss_scale: float = 1.0) -> float:
        """Shrink all gradients together so that their norm is at most ``max_norm``.

        FP16 gradients that are shrunk are float32 from here to the step, as :meth:`widen_gradients` has it.

        Args:
            max_norm: of all gradients as one vector, above 0.
            loss_scale: what the loss was multiplied by, where gradients are not unscaled yet:
                ``scaler.get_scale()``.

        Returns:
            The norm before, of unscaled gradients; computed in float32. It is a number of Python, for which
            the host waits once where gradients lie on a device.

        Raises:
            ArgumentError: ``max_norm`` is not above 0, or ``loss_scale`` not above 0 and finite.
        """
        if not _is_above_zero(max_norm):
            raise ArgumentError(f"max_norm={max_norm!r}; expected a norm above 0")
        if not (_is_above_zero(loss_scale) and loss_scale < math.inf):
            raise ArgumentError(
                f"loss_scale={loss_scale!r}; expected a number above 0 and finite, as scaler.get_scale()"
                " returns"
            )
        norms = [torch.linalg.vector_norm(g) for _, g in self.gradients()]
        together = [norm.to(norms[0].device) for norm in norms]
        norm = float(torch.linalg.vector_norm(torch.stack(together))) / float(loss_scale) if norms else 0.0
        if not norm <= max_norm:  # NaN too
            self._scale_gradients(max_norm / norm)
        return norm

    def nbytes(self) -> dict[str, float]:
        """Return the bytes held now by role, and as ``per_value`` their sum per value of the parameters."""
        values = sum(p.numel() for p in self._parameters())
        gradients = [p.grad for p in self._parameters() if p.grad is not None]
        sizes: dict[str, float] = {
            "parameters": sum(map(bytes_of, self._parameters())),
            "gradients": sum(map(bytes_of, gradients)),
        }
        for role in _STATES:
            sizes[role] = sum(bytes_of(state[role]) for state in self.state.values() if role in state)
        sizes["per_value"] = sum(sizes.values()) / max(values, 1)
        return sizes

    def state_dict(self) -> StateDict:
        """Return options and states as torch's optimizers do; a packed state is a dict of its parts.

        torch.save and other checkpoints thus preserve every bit.

        Raises:
            ArgumentError: a packed state of a sharded parameter.
        """
        for p, entries in self.state.items():
            packed = [name for name, x in entries.items() if isinstance(x, NarrowTensor)]
            if packed and is_sharded(p):  # a distributed checkpoint would keep one process's part
                raise ArgumentError(
                    f"{', '.join(packed)} of a sharded parameter, packed by each process for its own part, in"
                    f" a checkpoint; take the recipe with {','.join(f'{n}=fp32' for n in packed)} to save it"
                )
        wide: dict[str, Any] = super().state_dict()
        states = wide["state"].items()
        return {
            **wide,
            "state": {i: {name: to_plain(x) for name, x in entries.items()} for i, entries in states},
        }

    def load_state_dict(self, state_dict: StateDict) -> None:
        """Take over a state exactly: each tensor keeps its own dtype, and packed ones stay packed.

        Raises:
            ArgumentError: the state is one of another optimizer, of another recipe, or with an option that
                only torch's have.
        """
        saved = cast(_Saved, state_dict)
        for group in saved["param_groups"]:
            lacking = [option for option in self.defaults if option not in group]
            if lacking not in ([], ["differentiable"]):  # which torch adds to copies
                raise ArgumentError(f"the state has no option {lacking[0]!r}; {self._expected()}")
            self._check_options(group, "the state")
        keys = chain.from_iterable(group["params"] for group in saved["param_groups"])
        pairs = zip(keys, self._parameters(), strict=False)
        states = {p: saved["state"][key] for key, p in pairs if key in saved["state"]}
        for p, entries in states.items():
            self._check_names(p, set(entries))
        # torch would turn every state into the dtype of its parameter.
        super().load_state_dict({**state_dict, "state": {}})
        for p, entries in states.items():
            self.state[p] = {name: _own(name, from_plain(value), p) for name, value in entries.items()}

    def _check_names(self, p: torch.Tensor, names: set[str]) -> None:
        narrow = parameters.parameter_format(p, self.recipe) is not None
        wanted = {"master"} if narrow and self.recipe.has_master else set()
        if narrow and self.recipe.update == "kahan" and not wanted:
            wanted = {"compensation"}
        moments = {*self.moments, *_COUNTS}
        # Without momentum there is no moment, and without a step no state at all.
        lacking = wanted - names | ({*self.moments} - names if len(self.moments) > 1 else set())
        other = names - wanted - moments
        if names and (lacking or other):
            said = [f"no {name}" for name in sorted(lacking)] + sorted(other)
            raise ArgumentError(
                f"the state has {' and '.join(said)} for a parameter of shape {tuple(p.shape)};"
                f" {self._expected()}"
            )

    def _expected(self) -> str:
        return (
            f"expected one that fewbits.optim.{type(self).__name__} with recipe={self.recipe.name!r} saved:"
            " load it into the class and recipe that it is of, or begin without it"
        )

    def _parameters(self) -> Iterator[torch.Tensor]:
        return chain.from_iterable(group["params"] for group in self.param_groups)

    def _gradient(self, p: torch.Tensor) -> torch.Tensor | None:
        if p.grad is None:
            return None
        if isinstance(p.grad, PackedGradient):
            return p.grad.values()
        check_dense(p)
        return p.grad.float()

    def _unscale(self) -> float | torch.Tensor | None:
        """Return the factor that unscales gradients, or None if a loss scaler is known to see an overflow."""
        overflow: torch.Tensor | None = getattr(self, "found_inf", None)
        if overflow is None:
            return 1.0
        scale: torch.Tensor | None = getattr(self, "grad_scale", None)
        if self._overflow_on_device() is not None:
            return 1.0 if scale is None else scale.reciprocal()
        if overflow:
            return None
        return 1.0 if scale is None else 1.0 / float(scale)

    def _overflow_on_device(self) -> torch.Tensor | None:
        """Return whether the loss scaler saw an overflow, () bool, where the host would wait for the answer.

        The step is then computed and taken back where it is to be skipped, all of it on the device.
        """
        overflow: torch.Tensor | None = getattr(self, "found_inf", None)
        return None if overflow is None or overflow.device.type == "cpu" else overflow != 0

    def load(self, state: ParameterState, role: Moment, like: torch.Tensor) -> torch.Tensor:
        """Return a moment as a float32 tensor that the caller may change; zeros before the first step."""
        if role not in state:
            return torch.zeros_like(like)
        return unpack(state[role], like)

    def keep(self, state: ParameterState, role: Moment, x: torch.Tensor) -> None:
        """Store a moment until the next step, in the recipe's format."""
        state[role] = pack(x, getattr(self.recipe, role))


def unscaled(gradient: torch.Tensor, by: float | torch.Tensor) -> torch.Tensor:
    """Return a gradient times what unscales it, which may lie on another device of the model."""
    if isinstance(by, torch.Tensor):
        return gradient * by.to(gradient.device)
    return gradient if by == 1 else gradient * by


def _own(name: str, value: Any, p: torch.Tensor) -> Any:
    if name in _COUNTS and p.device.type == "cpu":  # a device where steps may be skipped counts in a tensor
        return int(value)
    return value.detach().clone().to(p.device) if isinstance(value, torch.Tensor) else value


def checked(name: str, value: float, *, least: float = 0.0, below: float | None = None) -> float:
    """Return the value of an option after checking its range.

    Raises:
        ArgumentError: the value is not a finite number of at least ``least`` and below ``below``.
    """
    given: Any = value  # whatever a caller without types passes
    number = isinstance(given, (Real, torch.Tensor)) and getattr(given, "ndim", 0) == 0
    if not (number and least <= value < math.inf and (below is None or value < below)):
        wanted = f"at least {least:g} and " + ("finite" if below is None else f"below {below:g}")
        raise ArgumentError(f"{name}={value!r}; expected a number, {wanted}")
    return value


def _is_above_zero(value: object) -> bool:
    """Whether a value, whatever a caller without types passes, is a number above 0; NaN is not."""
    return isinstance(value, (Real, torch.Tensor)) and float(value) > 0


def _common_draws(step: int, number: int) -> torch.Generator | None:
    """Return a generator of a step and a parameter, equal in all processes as replicas are."""
    return torch.Generator().manual_seed(joint_seed(step, number)) if step else None
