"""Networks written by hand as graphs, with the sizes of PaSE (Elango 2021, section IV)."""

from __future__ import annotations

from collections.abc import Callable

from fewbits.planner.graph import Graph
from fewbits.planner.networks.alexnet import alexnet
from fewbits.planner.networks.inception import inception_v3
from fewbits.planner.networks.resnet import resnet101
from fewbits.planner.networks.rnnlm import rnnlm
from fewbits.planner.networks.transformer import decoder_only, transformer

NETWORKS: dict[str, Callable[[int], Graph]] = {
    "alexnet": alexnet,
    "inception_v3": inception_v3,
    "resnet101": resnet101,
    "rnnlm": rnnlm,
    "transformer": transformer,
}
"""By name; each takes the number of samples in a batch, of all devices together, a whole number from 1 up."""

BATCH = {"alexnet": 128, "inception_v3": 128, "resnet101": 128, "rnnlm": 64, "transformer": 64}
"""Samples in a batch where none are given: those of the paper."""

__all__ = [
    "BATCH",
    "NETWORKS",
    "alexnet",
    "decoder_only",
    "inception_v3",
    "resnet101",
    "rnnlm",
    "transformer",
]
