"""What makes ``from_pretrained`` of transformers read folders that ``fewbits cast`` wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.core_model_loading import ConversionOps
from transformers.quantizers import HfQuantizer, register_quantization_config, register_quantizer
from transformers.utils.quantization_config import QuantizationConfigMixin

from fewbits.errors import ArgumentError, DataError
from fewbits.files.byte_layout import SUFFIXES, part_name
from fewbits.files.checkpoint import StoredTensor
from fewbits.files.contents import sound_contents
from fewbits.files.model_folder import METHOD
from fewbits.files.narrow_tensor import StoredNarrowTensor
from fewbits.files.tensors import assembled, check


@register_quantization_config(METHOD)
class FewbitsConfig(QuantizationConfigMixin):  # type: ignore[misc]  # transformers is not typed for us
    """``quantization_config`` of a folder with narrow tensors; formats are in the files themselves."""

    def __init__(self, **_: Any) -> None:
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
        self.narrow: dict[str, StoredNarrowTensor] = {}

    def _process_model_before_weight_loading(
        self, model: PreTrainedModel, checkpoint_files: list[str] | None = None, **_: Any
    ) -> None:
        for file in checkpoint_files or ():
            for tensor in sound_contents(Path(file)).tensors:
                if isinstance(tensor, StoredNarrowTensor):
                    self.narrow[tensor.name] = tensor

    @property
    def serialized_names(self) -> dict[str, list[str]]:
        """Of the last word of each narrow name, those of its parts."""
        words = {name.rpartition(".")[2] for name in self.narrow}
        return {word: [word, *(part_name(word, suffix) for suffix in SUFFIXES)] for word in words}

    def get_load_operations(self) -> dict[str, type[ConversionOps]]:
        """Return what makes a parameter of what the files hold of it."""
        return {"deserialize": _Packed}

    def get_new_dtype(self, converter: Any, param: Any, dtype: torch.dtype | None) -> torch.dtype | None:
        """Leave parts as they are: bytes, and float32 scales; what is whole is cast when all are there."""
        ours = any(isinstance(op, _Packed) for op in getattr(converter, "operations", ()))
        return None if ours else super().get_new_dtype(converter, param, dtype)

    def is_serializable(self) -> bool:
        """Refuse ``save_pretrained``: `fewbits cast` writes such folders."""
        return False

    @property
    def is_trainable(self) -> bool:
        """Packed weights have no gradient."""
        return False


class _Packed(ConversionOps):  # type: ignore[misc]  # as above
    """Makes a narrow tensor of its parts; what came whole stays as it is."""

    def __init__(self, quantizer: FewbitsQuantizer) -> None:
        self.hf_quantizer = quantizer

    def __deepcopy__(self, _: object) -> _Packed:
        """Return itself: transformers copies its converters for each parameter."""
        return self

    def convert(
        self,
        input_dict: dict[str, list[torch.Tensor]],
        *,
        full_layer_name: str,
        model: PreTrainedModel,
        **_: Any,
    ) -> dict[str, torch.Tensor]:
        found = {pattern.rpartition(".")[2]: tensors[0] for pattern, tensors in input_dict.items()}
        stored = self._stored(full_layer_name) if "codes" in found else None
        if stored is None:
            (whole,) = found.values()
            own = model.get_parameter_or_buffer(full_layer_name)
            return {full_layer_name: whole.to(own.dtype) if whole.is_floating_point() else whole}

        def read(part: StoredTensor) -> torch.Tensor:
            tensor = found[part.name.rpartition(".")[2]]
            check(part, tensor)
            return tensor

        q = assembled(stored, read)
        return {full_layer_name: nn.Parameter(q, requires_grad=False)}

    def _stored(self, name: str) -> StoredNarrowTensor:
        """Return what the files call this parameter: with the prefix of a whole model, or without."""
        narrow = self.hf_quantizer.narrow
        for own, stored in narrow.items():
            if own == name or own.endswith(f".{name}") or name.endswith(f".{own}"):
                return stored
        raise DataError(f"{name} is narrow in no file of the folder; cast the model again")
