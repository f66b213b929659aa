"""The precision in which a run of training computed and sent, as it was seen."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RanPrecision:
    """The narrowest formats that operands of a run really had, by class of operation.

    Formats are written as fewbits prints them: ``fp32``, ``bf16``, ``mxfp8_e4m3``, ``int8_256``, ...
    """

    linear: str  # products with weights: linear layers, convolutions, embeddings by product
    attention: str | None  # products of attention among activations; None: there are none
    communication: str | None  # what gradients or updates travelled in; None: one process
    wide_layers: tuple[str, ...] = ()  # names of modules whose operands were wider than others of a class
