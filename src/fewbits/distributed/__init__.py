"""Narrow numbers between processes, on PyTorch's own engine.

A :class:`~fewbits.recipes.Codec` says what travels: a format, and what pays back the rounding. Collectives
take it, and hooks put it beneath DistributedDataParallel and fully_shard. Process groups, meshes and torchrun
are torch's.
"""

from __future__ import annotations

from fewbits.distributed.collectives.all_gather import all_gather
from fewbits.distributed.collectives.all_reduce import all_reduce
from fewbits.distributed.collectives.all_to_all import all_to_all
from fewbits.distributed.collectives.reduce_scatter import reduce_scatter
from fewbits.distributed.cost import sent_bytes
from fewbits.distributed.ddp import DDPHook, ddp_hook
from fewbits.distributed.fsdp import FSDPCodecs, fsdp_codecs
from fewbits.distributed.gradients import average_gradients
from fewbits.distributed.local_steps import LocalSteps
from fewbits.distributed.state import CodecState
from fewbits.distributed.traffic import Traffic
from fewbits.distributed.zero import ZeroOptimizer
from fewbits.recipes import Codec, codec

__all__ = [
    "Codec",
    "CodecState",
    "DDPHook",
    "FSDPCodecs",
    "LocalSteps",
    "Traffic",
    "ZeroOptimizer",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "average_gradients",
    "codec",
    "ddp_hook",
    "fsdp_codecs",
    "reduce_scatter",
    "sent_bytes",
]
