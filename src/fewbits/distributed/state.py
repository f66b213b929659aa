"""What a codec remembers from call to call: what rounding took, a scale, and where random draws stand."""

from __future__ import annotations

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from numbers import Integral
from typing import TypedDict, cast

import torch

from fewbits.errors import ArgumentError
from fewbits.recipes import Codec
from fewbits.recipes import codec as read
from fewbits.typing import StateDict

_CLIPPED = 1e-5  # share of the values that may be clipped before the automatic scale halves
_GROWTH = 1e-3  # of its logarithm to base 2, with each call that clips less
_LIMIT = 100.0
_CPU = torch.device("cpu")


class _Saved(TypedDict):
    """What ``state_dict`` returns."""

    codec: str
    seed: int
    calls: int
    log2_scale: float
    residuals: dict[str, torch.Tensor]
    velocities: dict[str, torch.Tensor]


_KINDS: dict[str, type | tuple[type, ...]] = {
    "codec": str,
    "seed": int,
    "calls": int,
    "log2_scale": (int, float),
    "residuals": dict,
    "velocities": dict,
}


def _is_state(given: object) -> bool:
    """Return whether something has all that ``state_dict`` returns."""
    if not isinstance(given, dict) or not all(isinstance(given.get(k), kind) for k, kind in _KINDS.items()):
        return False
    rows = [*given["residuals"].values(), *given["velocities"].values()]
    return all(isinstance(x, torch.Tensor) for x in rows)


class _Rows:
    """Values of tensors, kept from call to call and zero at first; those that come together lie in a row."""

    def __init__(self) -> None:
        self.by_key: dict[Hashable, torch.Tensor] = {}  # views of the rows
        self._rows: dict[tuple[Hashable, ...], torch.Tensor] = {}

    def row(self, keys: Sequence[Hashable], lengths: Sequence[int], device: torch.device) -> torch.Tensor:
        """Return the row of some tensors of these lengths; raise if one had another length before.

        It lies on ``device``: what was there before, or was loaded, is moved there once.
        """
        row = tuple(keys)
        for key, n in zip(row, lengths, strict=True):
            known = self.by_key.get(key)
            if known is not None and known.numel() != n:
                raise ArgumentError(
                    f"feedback of {known.numel()} values for {key!r}, which has {n} now; take another key for"
                    " another tensor, or a new state"
                )
        if row not in self._rows or self._rows[row].device != device:
            parts = [self.by_key.get(key) for key in row]
            flat = torch.zeros(sum(lengths), dtype=torch.float32, device=device)
            for key, old, new in zip(row, parts, flat.split(list(lengths)), strict=True):
                if old is not None:
                    new.copy_(old)
                self.by_key[key] = new
            self._rows = {other: x for other, x in self._rows.items() if not set(other) & set(row)}
            self._rows[row] = flat
        return self._rows[row]

    def saved(self) -> dict[Hashable, torch.Tensor]:
        return {key: value.clone() for key, value in self.by_key.items()}

    def add(self, saved: Mapping[str, torch.Tensor], keys: Mapping[str, Hashable] | None) -> None:
        """Add saved values, of tensors that are called by other keys now."""
        for name, x in saved.items():
            key = name if keys is None else keys[name]
            old = self.by_key.get(key)
            self.by_key[key] = x.clone() if old is None else old + x


class CodecState:
    """The memory of a codec with feedback, an automatic scale or stochastic rounding; one on each process.

    Args:
        codec: a codec or its text.
        seed: of stochastic rounding, an integer; processes draw different numbers from the same seed.

    Raises:
        ArgumentError: a seed that is no integer, or an option of a codec that does not exist or does not fit.
        FormatError: no such format.
    """

    def __init__(self, codec: str | Codec, *, seed: int = 0) -> None:
        self.codec, self.seed = read(codec), checked_seed(seed)
        self.calls = 0
        self.log2_scale = 0.0  # of auto_scale
        self._residuals, self._velocities = _Rows(), _Rows()

    def residual(
        self, keys: Sequence[Hashable], lengths: Sequence[int], device: torch.device = _CPU
    ) -> torch.Tensor | None:
        """Return what rounding took so far of some tensors, in a row, float32, to be overwritten.

        Args:
            keys: one for each tensor; it may come with other neighbours than before.
            lengths: values of each.
            device: where the tensors lie.

        Raises:
            ArgumentError: a tensor has another length than before.
        """
        return self._residuals.row(keys, lengths, device) if self.codec.feedback else None

    def velocity(
        self, keys: Sequence[Hashable], lengths: Sequence[int], device: torch.device = _CPU
    ) -> torch.Tensor | None:
        """Return the momentum of what waits, as :meth:`residual` does; None of a codec without."""
        return self._velocities.row(keys, lengths, device) if self.codec.momentum else None

    def __str__(self) -> str:
        """Return what has to be the same on all processes."""
        return f"{self.codec}, call {self.calls}, scale 2^{self.log2_scale:.6g}"

    def next_call(self) -> int:
        """Return the seed of the next call."""
        self.calls += 1
        return derived(self.seed, self.calls)

    def clipped(self, count: int, n: int) -> None:
        """Adapt the automatic scale to how many values of all processes were clipped."""
        self.log2_scale += -1.0 if count > _CLIPPED * n else _GROWTH
        self.log2_scale = min(max(self.log2_scale, -_LIMIT), _LIMIT)

    def state_dict(self) -> StateDict:
        """Return everything, for a checkpoint of this process."""
        return {
            "codec": str(self.codec),
            "seed": self.seed,
            "calls": self.calls,
            "log2_scale": self.log2_scale,
            "residuals": self._residuals.saved(),
            "velocities": self._velocities.saved(),
        }

    def load_state_dict(
        self,
        states: StateDict | Sequence[StateDict],
        keys: Mapping[str, Hashable] | None = None,
        rank: int = 0,
        size: int = 1,
    ) -> None:
        """Take over a state.

        Feedback is what is missing in the sum over all processes: with another number of them the old
        residuals are dealt out, and their sum stays.

        Args:
            states: what :meth:`state_dict` of this process returned, or, where the number of processes has
                changed, the states of all old processes in the order of their ranks.
            keys: what residuals are called here, by their names in the state; None: the same.
            rank: of this process, with the states of all.
            size: how many processes there are now, with the states of all.

        Raises:
            ArgumentError: no state, that of another codec or of tensors without a key, states whose tensors
                differ in length, or a rank that is none of ``size``. Nothing is changed then.
        """
        found = list(states) if isinstance(states, Sequence) else [states]
        if not found or not all(map(_is_state, found)):
            raise ArgumentError(f"{states!r:.200} is no state; expected what state_dict() returned")
        given = cast("list[_Saved]", found)
        if not 0 <= rank < size:
            raise ArgumentError(f"rank={rank} of size={size}; expected a rank from 0 to {size - 1}")
        for state in given:
            if state["codec"] != str(self.codec):
                raise ArgumentError(
                    f"the state of codec {state['codec']} for {self.codec}; load it into its own codec, or"
                    " begin without"
                )
            names = [*state["residuals"], *state["velocities"]]
            unknown = [] if keys is None else [name for name in names if name not in keys]
            if unknown:
                raise ArgumentError(
                    f"feedback of {unknown[0]!r}, which is no parameter here; load the state of this model"
                )
        _check_lengths(given)
        self.seed, self.calls = given[0]["seed"], given[0]["calls"]
        self.log2_scale = given[0]["log2_scale"]
        self._residuals, self._velocities = _Rows(), _Rows()
        for state in given if isinstance(states, dict) else given[rank::size]:
            self._residuals.add(state["residuals"], keys)
            self._velocities.add(state["velocities"], keys)


def _check_lengths(states: Sequence[_Saved]) -> None:
    """Raise unless each tensor is a row, and of one length in all states: their sum is what is kept.

    Raises:
        ArgumentError: another shape.
    """
    known: dict[str, tuple[int, ...]] = {}
    for state in states:
        for name, x in (*state["residuals"].items(), *state["velocities"].items()):
            shape = tuple(x.shape)
            if len(shape) != 1 or known.setdefault(name, shape) != shape:
                raise ArgumentError(
                    f"feedback of shape {shape} for {name!r}; expected a row, as long in every state: load"
                    " those of one run"
                )


def checked_seed(seed: object) -> int:
    """Return a seed of stochastic rounding.

    Raises:
        ArgumentError: it is no integer.
    """
    if isinstance(seed, bool) or not isinstance(seed, Integral):
        raise ArgumentError(f"seed={seed!r:.80}; expected an integer")
    return int(seed)


def derived(*parts: object) -> int:
    """Return a seed that depends on all parts."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
