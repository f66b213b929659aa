"""A model from a folder, with the packed weights as they lie in its files."""

from __future__ import annotations

import copy
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import torch
import transformers
from transformers import AutoConfig, AutoModel, GenerationConfig, PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping

from fewbits.errors import ArgumentError, DataError
from fewbits.files import load_file
from fewbits.files.contents import sound_contents
from fewbits.files.places import places
from fewbits.integrations.transformers.places import read_experts_packed, stays_packed
from fewbits.nn.layers.rounded_input import check_activation, round_inputs
from fewbits.tensor import NarrowTensor


def from_folder(
    path: str | os.PathLike[str], device: str | torch.device, activation: str | None
) -> PreTrainedModel:
    """Return the model of a folder; see :func:`fewbits.load`."""
    check_activation(activation)
    folder = Path(path)
    if not (folder / "config.json").is_file():
        raise DataError(
            f"{folder} has no config.json, which says what the model is; copy that of the model it was cast"
            " from, or use fewbits.files.load_file for the tensors alone"
        )
    with _said_of(folder, "config.json is of no model that transformers has"):
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    config.__dict__.pop("quantization_config", None)  # the files say it themselves
    state, kind = load_file(folder), _class_of(config, folder)
    dtype = _wide_dtype(state)
    _widen(state, folder, kind, config)
    # Shapes that do not fit are among what it found, then, and no error of its own.
    model, found = kind.from_pretrained(
        None,
        config=config,
        state_dict=state,
        dtype=dtype,
        output_loading_info=True,
        ignore_mismatched_sizes=True,
    )
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        names = sorted(key if isinstance(key, str) else key[0] for key in found[what])
        if names:
            raise DataError(
                f"{folder}: {len(names)} {what.replace('_', ' ')} for {type(model).__name__}, as"
                f" {names[0]}; expected the tensors of this model"
            )
    read_experts_packed(model)
    if (folder / "generation_config.json").is_file() and model.can_generate():
        with _said_of(folder, "generation_config.json cannot be read"):
            model.generation_config = GenerationConfig.from_pretrained(folder, local_files_only=True)
    if activation is not None:
        round_inputs(model)
    model.save_pretrained = _refuse_saving
    return cast("PreTrainedModel", model.to(device).eval())


def _refuse_saving(*_: object, **__: object) -> None:
    raise ArgumentError(
        "save_pretrained of a model with packed weights; `fewbits cast` writes its folder: copy that, or cast"
        " the wide model again"
    )


@contextmanager
def _said_of(folder: Path, what: str) -> Iterator[None]:
    """Raise DataError in the place of what transformers raises, which is of many kinds."""
    try:
        yield
    except Exception as error:
        lines = str(error).splitlines() or [""]
        raise DataError(
            f"{folder}: {what} ({type(error).__name__}: {lines[0]:.200}); copy that of the model"
            " it was cast from"
        ) from None


def _class_of(config: Any, folder: Path) -> Any:
    names = config.architectures or []
    for name in names:
        kind = getattr(transformers, name, None)
        if isinstance(kind, type) and issubclass(kind, PreTrainedModel):
            return kind
    if names:
        raise DataError(
            f"{folder}: transformers {transformers.__version__} has no {names[0]}, which config.json names;"
            " install a version that has it"
        )
    with _said_of(folder, "config.json makes no model"), torch.device("meta"):
        return type(AutoModel.from_config(copy.deepcopy(config)))


def _widen(state: dict[str, torch.Tensor | NarrowTensor], folder: Path, kind: Any, config: Any) -> None:
    """Make ordinary tensors, in place, of those that a model does not take packed."""
    shapes = {t.name: t.layout.shape for t in sound_contents(folder).narrow}
    with _said_of(folder, f"config.json makes no {kind.__name__}"), torch.device("meta"):  # names alone
        model = kind(copy.deepcopy(config))
    for name, place in places(model, shapes, get_model_conversion_mapping(model)).items():
        held = state[name]
        # The kernel of a convolution was quantized as a matrix.
        if isinstance(held, NarrowTensor) and (held.shape != shapes[name] or not stays_packed(model, place)):
            state[name] = held.dense().reshape(shapes[name])


def _wide_dtype(state: dict[str, torch.Tensor | NarrowTensor]) -> torch.dtype | str:
    """Return the dtype of what is not narrow, in which from_pretrained must leave it."""
    dtypes = {x.dtype for x in state.values() if x.is_floating_point() and not isinstance(x, NarrowTensor)}
    return dtypes.pop() if len(dtypes) == 1 else "auto"
