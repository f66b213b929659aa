"""Measure formats on models, checkpoints, matrices and linear systems, pruning on models, and codecs.

The functions return records of :mod:`fewbits.records`. ``fewbits compare``, ``fewbits prune`` and ``fewbits
solve`` call them and print a report; see docs/compare.md and docs/solving.md; ``fewbits explore`` measures
whole design spaces of formats, docs/exploring.md.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fewbits.compare.casting import direct_cast
    from fewbits.compare.checkpoint import CHECKPOINT_FORMATS, measure_checkpoint
    from fewbits.compare.codecs import CODECS, compare_codecs
    from fewbits.compare.exploring import best_format, design_space, explore_formats
    from fewbits.compare.matrix import MATRIX_FORMATS, measure_matrix
    from fewbits.compare.models import TASK_FORMATS, compare_models
    from fewbits.compare.pruned_checkpoint import prune_checkpoint
    from fewbits.compare.pruning import prune_task
    from fewbits.compare.scaling import predict_steps, read_rates
    from fewbits.compare.subbands import SubbandModel, band_shares, haar_bands
    from fewbits.compare.systems import measure_system
    from fewbits.compare.text_models import Classification, Perplexity, compare_text_model
    from fewbits.compare.weight_cast import WeightCast

# Imported on first use: checkpoints and matrices are measured without PyTorch.
_HOMES = {
    "CHECKPOINT_FORMATS": "checkpoint",
    "CODECS": "codecs",
    "Classification": "text_models",
    "MATRIX_FORMATS": "matrix",
    "WeightCast": "weight_cast",
    "Perplexity": "text_models",
    "SubbandModel": "subbands",
    "TASK_FORMATS": "models",
    "band_shares": "subbands",
    "best_format": "exploring",
    "compare_codecs": "codecs",
    "compare_models": "models",
    "compare_text_model": "text_models",
    "design_space": "exploring",
    "direct_cast": "casting",
    "haar_bands": "subbands",
    "explore_formats": "exploring",
    "measure_checkpoint": "checkpoint",
    "measure_matrix": "matrix",
    "measure_system": "systems",
    "predict_steps": "scaling",
    "prune_checkpoint": "pruned_checkpoint",
    "prune_task": "pruning",
    "read_rates": "scaling",
}

__all__ = [
    "CHECKPOINT_FORMATS",
    "CODECS",
    "MATRIX_FORMATS",
    "TASK_FORMATS",
    "Classification",
    "Perplexity",
    "SubbandModel",
    "WeightCast",
    "band_shares",
    "best_format",
    "compare_codecs",
    "compare_models",
    "compare_text_model",
    "design_space",
    "direct_cast",
    "explore_formats",
    "haar_bands",
    "measure_checkpoint",
    "measure_matrix",
    "measure_system",
    "predict_steps",
    "prune_checkpoint",
    "prune_task",
    "read_rates",
]


def __getattr__(name: str) -> object:
    if name in _HOMES:
        return getattr(import_module(f"fewbits.compare.{_HOMES[name]}"), name)
    raise AttributeError(f"fewbits.compare has no name {name!r}; it has {', '.join(__all__)}")
