"""What rounding does to a model while it trains: sampled, so that it costs next to nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import TypedDict

import torch
from torch import nn

from fewbits import kernels
from fewbits.errors import ArgumentError
from fewbits.formats import parse, shares_scale
from fewbits.kernels.bits.scale_rules import MEAN_RULES
from fewbits.kernels.ops.sharding import is_sharded
from fewbits.nn.layer_precision import LayerPrecision
from fewbits.recipes import RoleFormat
from fewbits.recipes.recipe import OPERANDS
from fewbits.recipes.rounding import round_as
from fewbits.tensor.inputs import is_count

_SAMPLE = 16384  # values of a tensor that are looked at
CLAMPED = 0.05  # of the largest entry: the mean by which a row of the logits' gradient misses its sum
LOST = 0.25  # of the sum of magnitudes of a gradient
LOST_UPDATES = 0.5  # of all weights
_FLOAT16 = RoleFormat(parse("fp16"))
# Those that are no operands: what flows between products.
_GRADIENTS = {
    "result_gradient": "the gradient of the model's result",
    "input_gradient": "the gradient that {} passes back",
    "weight_gradient": "the gradient of the weight of {}",
}


@dataclass(frozen=True)
class Seen:
    """One operand of one layer in one step."""

    step: int
    layer: str
    role: str
    format: str
    largest: float  # magnitude before rounding
    saturated_fraction: float  # of all values: cut off at the largest that the format and scale could keep
    flushed_fraction: float  # of the values that were not zero: zero now
    lost_fraction: float  # of the sum of magnitudes: that of values that are zero now
    row_drift: (
        float  # by how much the rounded rows' sums moved, in units of the rows' largest entries; the mean
    )


class ObserverState(TypedDict):
    """What a resumed run needs of an observer."""

    step: int
    said: list[str]  # the beginnings of the warnings given so far


class RoundingObserver:
    """Looks at every operand in one step of ``every``, and says in words when a known failure begins.

    Pass it to :func:`prepare` and call :meth:`next_step` after each step of the optimizer. What it sees is
    numbers of the host: in a step that it looks at, the host waits for a device at each operand, and a sample
    of the operand is copied to it.

    Args:
        every: steps from one look to the next, at least one.

    Raises:
        ArgumentError: ``every`` is no whole number above 0.
    """

    def __init__(self, every: int = 50) -> None:
        if not is_count(every):
            raise ArgumentError(f"every={every!r}; expected steps from one look to the next, at least 1")
        self.every = every
        self.step = 0
        self.seen: list[Seen] = []  # since the last call of drained()
        self.warnings: list[str] = []  # likewise; each is said once
        self._said: set[str] = set()
        self._looked: set[tuple[str, str]] = set()  # in this step: micro-batches and evaluations add nothing

    @property
    def due(self) -> bool:
        """Whether this step is one that it looks at; in others, layers need not prepare what it would see."""
        return self.step % self.every == 0

    def observe(
        self, precision: LayerPrecision, role: str, x: torch.Tensor, rounded: torch.Tensor, axis: int
    ) -> None:
        """Record what rounding did to ``x``, if this step is observed."""
        place = (precision.layer, role)
        flows = role not in OPERANDS
        if not self.due or torch.compiler.is_compiling() or place in self._looked:
            return
        self._looked.add(place)
        if role == "arriving_gradient":
            self._arrived(precision, x)
            return
        target = _FLOAT16 if flows else getattr(precision.recipe, role)
        largest = float(x.abs().max()) if x.numel() else 0.0
        part, after = _sample(x, axis), _sample(rounded, axis)
        if part.numel() == 0:
            return
        seen = _looked_at(self.step, precision.layer, role, target, largest, part, after)
        self.seen.append(seen)
        clamped = seen.saturated_fraction > 0 and abs(seen.row_drift) > CLAMPED
        if precision.last and role == "dx_gradient" and clamped:
            self.say(
                f"the gradient of the logits is clamped in {precision.layer}: under {target} its rows no"
                f" longer sum to zero (they miss it by {abs(seen.row_drift):.0%} of their largest entry), and"
                " logits will drift until training diverges; use the scale rule rceil, as in"
                f" gradient={target.format}/rceil, or logit_gradient=no"
            )
        if role.endswith("gradient") and seen.lost_fraction > LOST:
            what = _GRADIENTS.get(role, f"the gradient in {{}} ({role})").format(precision.layer)
            by = f"{target}, the format that flows between products" if flows else str(target)
            self.say(
                f"{seen.lost_fraction:.0%} of {what} is flushed to zero by {by}:"
                f" {_remedy(precision, target, part)}"
            )

    def _arrived(self, precision: LayerPrecision, gradient: torch.Tensor) -> None:
        """Say where float16 flushed a gradient before any layer saw it: in a loss that the model computes."""
        named = any("the gradient of the model's result" in said for said in self._said)
        if not named and not gradient.any():
            self.say(
                f"the gradient that reaches {precision.layer} is zero throughout: {_FLOAT16}, the format that"
                f" flows between products, flushed it, unless the loss has none; {_scaled(precision)}"
            )

    @contextmanager
    def update_of(self, model: nn.Module) -> Iterator[None]:
        """Look, around the optimizer's step, at how many weights of narrow layers it leaves as they were.

        Only where a recipe adds updates by rounding to nearest: other ways keep what is left of them. Of
        sharded weights it looks at this process's shards, and asks no other process.
        """
        weights = [
            p.to_local() if is_sharded(p) else p
            for m in model.modules()
            if isinstance(precision := getattr(m, "precision", None), LayerPrecision)
            and not isinstance(m, nn.Embedding)
            if precision.recipe.update == "nearest" and not precision.recipe.has_master
            for p in m.parameters(recurse=False)
            if p.ndim > 1
        ]
        before = [p.detach().clone() for p in weights] if self.due else []
        yield
        if not before:
            return
        same = sum(int((p == b).sum()) for p, b in zip(weights, before, strict=True))
        lost = same / sum(b.numel() for b in before)
        if LOST_UPDATES < lost < 1:  # all of them: the step was skipped
            dtype = str(before[0].dtype).removeprefix("torch.")
            self.say(
                f"{lost:.0%} of the weights did not move in a step: updates are lost to rounding in {dtype};"
                " use update=stochastic, update=kahan or a master copy"
            )

    def next_step(self) -> None:
        """Count a step of the optimizer."""
        self.step += 1
        self._looked.clear()

    def say(self, warning: str) -> None:
        """Add a warning, unless one with the same beginning was added before."""
        key = warning.split(":", 1)[0].lstrip("0123456789% ")
        if key not in self._said:
            self._said.add(key)
            self.warnings.append(warning)

    def drained(self) -> tuple[list[dict[str, object]], list[str]]:
        """Return and clear the records, as JSON takes them, and the new warnings."""
        seen, warnings = [asdict(s) for s in self.seen], self.warnings
        self.seen, self.warnings = [], []
        return seen, warnings

    def state_dict(self) -> ObserverState:
        """Return the step and the warnings given so far, so that a resumed run repeats none."""
        return {"step": self.step, "said": sorted(self._said)}

    def load_state_dict(self, state_dict: ObserverState) -> None:
        """Take over what :meth:`state_dict` returned."""
        self.step, self._said = state_dict["step"], set(state_dict["said"])


def _remedy(precision: LayerPrecision, target: RoleFormat, x: torch.Tensor) -> str:
    """Return a remedy for values of ``x``, (lines, n), that ``target`` flushes; it is tried out first."""
    largest = x.abs().max()
    if not 0 < largest < torch.inf:
        return "use a format with more range"
    # As large as a loss scale could make it; blocks have scales of their own.
    top = target.format.element.max if target.format.groups.scales is None else 1.0
    lifted = x * torch.exp2(torch.floor(torch.log2(top / largest)))
    lost = lifted.abs()[round_as(lifted, target) == 0].sum() / lifted.abs().sum()
    if lost > LOST:
        return "no loss scale helps, for values lie too far apart; use a format with more range or precision"
    return _scaled(precision)


def _scaled(precision: LayerPrecision) -> str:
    if precision.recipe.scaling is None:
        return (
            f"scale the loss, {precision.recipe.name} does not: take it with scaling=dynamic and its scaler"
        )
    return f"scale the loss with fewbits.optim.scaler, as {precision.recipe.name} asks for"


def _limits(x: torch.Tensor, target: RoleFormat, largest: float) -> torch.Tensor:
    """Return the largest magnitude each of the values could have kept."""
    chosen = kernels.options(
        target.format, rounding=target.rounding, scale_rule=target.scale_rule, overflow="saturate"
    )
    amax = largest if shares_scale(target.format, "tensor") else None
    limits = kernels.limits(x.cpu().numpy(), target.format, 1, chosen, amax)
    return torch.from_numpy(limits).float().to(x.device)


def _sample(x: torch.Tensor, axis: int) -> torch.Tensor:
    """Return whole lines along ``axis``, moved to the end: (lines, n), at most _SAMPLE values or one line."""
    lines = x.detach().movedim(axis, -1)
    lines = lines.reshape(-1, lines.shape[-1])
    return lines[: max(1, _SAMPLE // max(1, lines.shape[-1]))].float()


def _looked_at(
    step: int,
    layer: str,
    role: str,
    target: RoleFormat,
    largest: float,
    x: torch.Tensor,
    after: torch.Tensor,
) -> Seen:
    finite = torch.isfinite(x)
    x, after = torch.where(finite, x, 0.0), torch.where(finite, after, 0.0)
    magnitude, nonzero = x.abs(), x != 0
    saturated = 0.0
    if target.shift is None and target.scale_rule not in MEAN_RULES:  # whose ends are meant to be passed
        saturated = float((magnitude > _limits(x, target, largest)).float().mean())
    flushed = float((nonzero & (after == 0)).sum() / nonzero.sum().clamp(min=1))
    lost = float(magnitude[after == 0].sum() / magnitude.sum().clamp(min=torch.finfo(torch.float32).tiny))
    rows = magnitude.amax(1).clamp(min=torch.finfo(torch.float32).tiny)
    drift = float(((after - x).sum(1) / rows).mean())
    return Seen(step, layer, role, str(target), largest, saturated, flushed, lost, drift)
