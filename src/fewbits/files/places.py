"""Where transformers puts the tensors of a file: under other names, and some of them several in one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fewbits.files.model_folder import ModelFolder

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Place(NamedTuple):
    """Where a tensor goes."""

    name: str  # of the model's parameter or buffer
    pattern: str | None  # of the converter that makes others of its values, as one of all experts; None: none


def places(model: PreTrainedModel, names: Iterable[str], transforms: Sequence[Any]) -> dict[str, Place]:
    """Return the places of tensors by the names in their files, as transformers itself finds them.

    Args:
        model: of which only names are read; it may be on the meta device.
        names: of tensors in files.
        transforms: of ``get_model_conversion_mapping``.
    """
    from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

    renamings = [t for t in transforms if isinstance(t, WeightRenaming)]
    converters = [t for t in transforms if isinstance(t, WeightConverter)]
    own, prefix = model.state_dict(), model.base_model_prefix
    found = {}
    for name in names:
        place = Place(*rename_source_key(name, renamings, converters, prefix, own))
        if place.name not in own and name in own:
            place = Place(*rename_source_key(name, [], [], prefix, own))
        found[name] = place
    return found


def places_in(folder: ModelFolder, names: Iterable[str]) -> dict[str, Place]:
    """Return the places of tensors in the model that a folder's config.json names.

    Where transformers is not installed or has no such model, tensors are where their names say.
    """
    try:
        import torch
        import transformers
        from transformers.conversion_mapping import get_model_conversion_mapping

        config = transformers.AutoConfig.from_pretrained(
            folder.path, local_files_only=True, trust_remote_code=False
        )
        (kind,) = config.architectures
        with torch.device("meta"):  # names alone
            model = getattr(transformers, kind)(config)
        return places(model, names, get_model_conversion_mapping(model))
    except Exception:  # of many kinds; the model itself is not what a cast needs
        return {name: Place(name, None) for name in names}
