"""Weights of trained models in narrow formats, chosen better than by rounding each of them.

:func:`quantize_model` changes a model layer by layer on calibration batches; docs/quantizing.md says which
method costs and gives what. ``fewbits cast --method`` does the same for a checkpoint.
"""

from __future__ import annotations

from fewbits.ptq.checkpoint import cast_model
from fewbits.ptq.hadamard import BlockHadamard
from fewbits.ptq.model import quantize_model

__all__ = ["BlockHadamard", "cast_model", "quantize_model"]
