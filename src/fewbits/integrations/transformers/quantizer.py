"""What makes ``from_pretrained`` of transformers read folders that ``fewbits cast`` wrote."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.core_model_loading import ConversionOps, WeightConverter
from transformers.quantizers import HfQuantizer, register_quantization_config, register_quantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from fewbits.errors import ArgumentError
from fewbits.files.byte_layout import SUFFIXES, part_name
from fewbits.files.checkpoint import StoredTensor, counting_order
from fewbits.files.contents import sound_contents
from fewbits.files.model_folder import METHOD
from fewbits.files.narrow_tensor import StoredNarrowTensor
from fewbits.files.places import Place, places
from fewbits.files.tensors import assembled, check
from fewbits.integrations.transformers.places import read_experts_packed, stays_packed
from fewbits.tensor import NarrowTensor


@register_quantization_config(METHOD)
class FewbitsConfig(QuantizationConfigMixin):  # type: ignore[misc]  # transformers is not typed for us
    """``quantization_config`` of a folder with narrow tensors; formats are in the files themselves."""

    def __init__(self, **_: object) -> None:
        self.quant_method = METHOD


@register_quantizer(METHOD)
class FewbitsQuantizer(HfQuantizer):  # type: ignore[misc]  # as above
    """Loads narrow tensors as they are, to be multiplied as they lie."""

    def __init__(self, quantization_config: FewbitsConfig, **more: Any) -> None:
        super().__init__(quantization_config, **more)
        if not self.pre_quantized:
            raise ArgumentError(
                "quantization_config=FewbitsConfig() of a model that is not narrow; write a narrow one by"
                " `fewbits cast` first, and load that"
            )
        self.stored: dict[str, StoredNarrowTensor] = {}  # by the names in the files
        self.narrow: dict[Place, list[StoredNarrowTensor]] = {}

    def _process_model_before_weight_loading(
        self, model: PreTrainedModel, checkpoint_files: list[str] | None = None, **_: Any
    ) -> None:
        self.model = model
        for file in checkpoint_files or ():
            for tensor in sound_contents(Path(file)).narrow:
                self.stored[tensor.name] = tensor

    def _process_model_after_weight_loading(self, model: PreTrainedModel, **_: Any) -> PreTrainedModel:
        read_experts_packed(model)
        return model

    def update_weight_conversions(self, weight_conversions: list[Any], *_: Any) -> list[Any]:
        """Return what transformers makes parameters by, with what makes them of parts."""
        found = places(self.model, self.stored, weight_conversions)
        for name in sorted(self.stored, key=counting_order):  # as transformers lists several of one parameter
            self.narrow.setdefault(found[name], []).append(self.stored[name])
        merging = [self._merging(t) if isinstance(t, WeightConverter) else t for t in weight_conversions]
        words = {name.rpartition(".")[2] for name in self.stored}
        return [*merging, *(WeightConverter(_ends(word), word, [_Packed(self)]) for word in sorted(words))]

    def _merging(self, converter: WeightConverter) -> WeightConverter:
        """Return what merges tensors, as those of all experts, with their parts in the place of each."""
        own = list(converter._original_source_patterns)
        if not any(
            pattern is not None and pattern in converter.source_patterns for _, pattern in self.narrow
        ):
            return converter
        parts = [part_name(pattern, suffix) for pattern in own for suffix in SUFFIXES]
        merging = WeightConverter(
            [*parts, *own],
            list(converter._original_target_patterns),
            [_Wide(self, own), *converter.operations],
        )
        for name in ("scope_prefix", "base_model_prefix"):
            setattr(merging, name, getattr(converter, name))
        return merging

    def get_new_dtype(self, converter: Any, param: Any, dtype: torch.dtype | None) -> torch.dtype | None:
        """Leave parts as they are: bytes, and float32 scales; what is whole is cast when all are there."""
        ours = any(isinstance(op, _OfParts) for op in getattr(converter, "operations", ()))
        return None if ours else super().get_new_dtype(converter, param, dtype)

    def is_serializable(self) -> bool:
        """Refuse ``save_pretrained``: `fewbits cast` writes such folders."""
        return False

    @property
    def is_trainable(self) -> bool:
        """Packed weights have no gradient."""
        return False


class _OfParts(ConversionOps):  # type: ignore[misc]  # as above
    """Makes tensors of the parts that the files of a quantizer hold."""

    def __init__(self, quantizer: FewbitsQuantizer) -> None:
        self.hf_quantizer = quantizer

    def __deepcopy__(self, _: object) -> _OfParts:
        """Return itself: transformers copies its converters for each parameter."""
        return self


class _Packed(_OfParts):
    """Makes a narrow tensor of its parts; what came whole stays as it is."""

    def convert(
        self,
        input_dict: dict[str, list[torch.Tensor]],
        *,
        full_layer_name: str,
        model: PreTrainedModel,
        **_: Any,
    ) -> dict[str, torch.Tensor]:
        found = {
            pattern.rstrip("$").rpartition(".")[2]: tensors[0] for pattern, tensors in input_dict.items()
        }
        own = model.get_parameter_or_buffer(full_layer_name)
        if "codes" not in found:
            (whole,) = found.values()
            return {full_layer_name: whole.to(own.dtype) if whole.is_floating_point() else whole}
        place = Place(full_layer_name, None)
        (stored,) = self.hf_quantizer.narrow[place]
        q = _assembled(stored, found)
        if stored.layout.view is None and stays_packed(model, place):
            return {full_layer_name: nn.Parameter(q.to(own.dtype), requires_grad=False)}
        return {full_layer_name: q.dense().to(own.dtype).reshape(stored.layout.shape)}


class _Wide(_OfParts):
    """Makes ordinary tensors of the parts of several, which others then make one parameter of."""

    def __init__(self, quantizer: FewbitsQuantizer, patterns: list[str]) -> None:
        super().__init__(quantizer)
        self.patterns = patterns

    def convert(
        self,
        input_dict: dict[str, list[torch.Tensor]],
        *,
        full_layer_name: str,
        model: PreTrainedModel,
        **_: Any,
    ) -> dict[str, list[torch.Tensor]]:
        dtype = model.get_parameter_or_buffer(full_layer_name).dtype
        made = {}
        for pattern in self.patterns:
            stored = iter(self.hf_quantizer.narrow.get(Place(full_layer_name, pattern), ()))
            parts = {suffix: iter(input_dict.get(part_name(pattern, suffix), ())) for suffix in SUFFIXES}
            made[pattern] = [
                (x if x.numel() else _next(next(stored), parts)).to(dtype) for x in input_dict[pattern]
            ]
        return made


def _ends(word: str) -> list[str]:
    """Return the patterns of the parts of a tensor whose name ends in this word, and of itself."""
    # A whole word, since one may end another, as a parameter r ends the part outer.
    names = (*(part_name(word, suffix) for suffix in SUFFIXES), word)
    return [rf"(?<![^.]){re.escape(name)}$" for name in names]


def _next(stored: StoredNarrowTensor, parts: Mapping[str, Iterator[torch.Tensor]]) -> torch.Tensor:
    """Return the values of a tensor, given the parts of it and of those behind it."""
    own = {suffix: next(parts[suffix]) for suffix in stored.parts}
    return _assembled(stored, own).dense().reshape(stored.layout.shape)


def _assembled(stored: StoredNarrowTensor, parts: Mapping[str, torch.Tensor]) -> NarrowTensor:
    """Return a narrow tensor of its parts by their suffixes."""

    def read(part: StoredTensor) -> torch.Tensor:
        tensor = parts[part.name.rpartition(".")[2]]
        check(part, tensor)
        return tensor

    return assembled(stored, read)
