"""Keys and values of attention in a narrow format, for generation."""

from __future__ import annotations

from typing import Any

import torch
from transformers import PretrainedConfig
from transformers.cache_utils import Cache, DynamicLayer

from fewbits.errors import ArgumentError
from fewbits.formats import Format, parse, shares_scale
from fewbits.tensor import NarrowTensor, quantize

_FIRST = 64  # positions that a layer makes room for at first


class NarrowCache(Cache):  # type: ignore[misc]  # transformers is not typed for us
    """A cache for ``generate`` that holds keys and values packed: ``past_key_values=NarrowCache(config, f)``.

    Each position is rounded once, when it is added, in blocks along the head's features; attention sees what
    is held, in the prompt too. Layers with a sliding window hold all positions. It is for inference: what is
    held has no gradient.

    Args:
        config: of the model, as ``model.config``.
        format: of keys and values; one whose scales do not span positions.
        values: of the values, if they have another one.

    Raises:
        ArgumentError: no configuration, a format with one scale for all positions, or a model with layers
            that have no keys.
        FormatError: no such format.
    """

    def __init__(
        self, config: PretrainedConfig, format: str | Format, values: str | Format | None = None
    ) -> None:
        if not isinstance(config, PretrainedConfig):
            raise ArgumentError(
                f"config is a {type(config).__name__}; expected that of the model, model.config"
            )
        formats = parse(format), parse(format if values is None else values)
        for fmt in formats:
            if shares_scale(fmt, "tensor"):
                raise ArgumentError(
                    f"{fmt} has one scale for all positions, and they come one by one; take a block format,"
                    " as mxfp8_e4m3"
                )
        text = config.get_text_config(decoder=True)
        kinds = set(getattr(text, "layer_types", None) or ())
        others = sorted(kind for kind in kinds if "attention" not in kind or kind.startswith("linear"))
        if others:
            raise ArgumentError(
                f"layers of {', '.join(others)} in {type(config).__name__}, which have no keys and values to"
                " hold; leave past_key_values out for this model"
            )
        # As T5 calls them: its num_hidden_layers are the encoder's.
        count = getattr(text, "num_decoder_layers", None) or text.num_hidden_layers
        super().__init__(layers=[_NarrowLayer(*formats) for _ in range(count)])

    def nbytes(self) -> int:
        """Return the bytes that keys and values take, without the room for more."""
        return sum(
            x.nbytes for layer in self.layers if layer.is_initialized for x in (layer.keys, layer.values)
        )


class _NarrowLayer(DynamicLayer):  # type: ignore[misc]  # as above
    """One layer: ``keys`` and ``values`` are what is held, (batch, heads, positions, features)."""

    def __init__(self, of_keys: Format, of_values: Format) -> None:
        super().__init__()
        self.formats = (of_keys, of_values)
        self._room: list[NarrowTensor] = []  # whose first positions are keys and values; empty: not any more

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Hold no position yet."""
        self.dtype, self.device = key_states.dtype, key_states.device
        self.keys: torch.Tensor = quantize(key_states[:, :, :0], self.formats[0])
        self.values: torch.Tensor = quantize(value_states[:, :, :0], self.formats[1])
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Add positions, and return all keys and values as they are held, in the model's dtype.

        Raises:
            ArgumentError: other samples, heads or features than those held, which are not broadcast.
        """
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        for held, x in ((self.keys, key_states), (self.values, value_states)):
            if (held.shape[:2], held.shape[3:]) != (x.shape[:2], x.shape[3:]):
                raise ArgumentError(
                    f"positions of shape {tuple(x.shape)} for a cache of {tuple(held.shape)}; expected"
                    " the same samples, heads and features: make a new cache for another batch"
                )
        before = self.keys.shape[-2]
        after = before + key_states.shape[-2]
        if not self._room or after > self._room[0].shape[-2]:
            room = max(_FIRST, 2 * after)
            self._room = [_grown(self.keys, key_states, room), _grown(self.values, value_states, room)]
        for held, x in zip(self._room, (key_states, value_states), strict=True):
            _write(held, before, quantize(x, held.format))
        self.keys, self.values = (held[:, :, :after] for held in self._room)
        return _dense(self.keys), _dense(self.values)

    def crop(self, *arguments: Any) -> None:
        """Forget positions, as transformers says which."""
        super().crop(*arguments)
        self._room = []

    def reorder_cache(self, beam_idx: torch.Tensor) -> None:
        """Take other beams in the place of these."""
        if self.get_seq_length():
            self.keys, self.values = (
                x.index_select(0, beam_idx.to(x.device)) for x in (self.keys, self.values)
            )
            self._room = []

    def batch_select_indices(self, indices: torch.Tensor) -> None:
        """Keep some samples of the batch."""
        if self.get_seq_length():
            self.reorder_cache(torch.arange(self.keys.shape[0])[indices.cpu()])

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat each sample of the batch."""
        if self.get_seq_length():
            self.reorder_cache(torch.arange(self.keys.shape[0]).repeat_interleave(repeats))

    def reset(self) -> None:
        """Forget all."""
        super().reset()
        self._room = []


def _grown(held: torch.Tensor, new: torch.Tensor, room: int) -> NarrowTensor:
    """Return room for positions that begins with those held."""
    assert isinstance(held, NarrowTensor)
    grown = quantize(new.new_zeros(1).expand(*new.shape[:2], room, new.shape[-1]), held.format)
    _write(grown, 0, held)
    return grown


def _write(held: NarrowTensor, start: int, positions: NarrowTensor) -> None:
    """Overwrite some positions, each of which has scales of its own."""
    for mine, theirs in zip(held.pieces, positions.pieces, strict=True):
        if mine is not None and theirs is not None:
            mine[:, :, start : start + theirs.shape[2]].copy_(theirs)


def _dense(x: torch.Tensor) -> torch.Tensor:
    assert isinstance(x, NarrowTensor)
    return x.dense()
