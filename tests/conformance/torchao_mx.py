"""torchao's conversion to MX as an oracle: codes and scales of a format, unpacked, as NumPy arrays."""

import logging
import warnings
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from tests import cases

NAMES = ("mxfp8_e4m3", "mxfp8_e5m2", "mxfp6_e3m2", "mxfp6_e2m3", "mxfp4")
MODES = ("floor", "rceil", "ceil", "even")


@lru_cache(maxsize=1)
def _torchao() -> Any:
    # It warns on import about CUDA extensions that this machine cannot load and about its own registrations.
    logging.disable(logging.WARNING)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from torchao.prototype.mx_formats import mx_tensor
    logging.disable(logging.NOTSET)
    return mx_tensor


def to_mx(x: torch.Tensor, name: str, mode: str) -> tuple[cases.Codes, cases.Codes]:
    """Return (codes, scale codes) of ``x``, shapes (..., n) and (..., n / 32), uint8."""
    mx = _torchao()
    dtype = {
        "mxfp8_e4m3": torch.float8_e4m3fn,
        "mxfp8_e5m2": torch.float8_e5m2,
        "mxfp6_e3m2": mx.DTYPE_FP6_E3M2,
        "mxfp6_e2m3": mx.DTYPE_FP6_E2M3,
        "mxfp4": torch.float4_e2m1fn_x2,
    }[name]
    scales, data = mx.to_mx(x, dtype, 32, mx.ScaleCalculationMode[mode.upper()])
    codes = data.view(torch.uint8).numpy()
    if name == "mxfp4":
        codes = np.stack([codes & 15, codes >> 4], axis=-1).reshape(x.shape)
    return codes, scales.view(torch.uint8).numpy()
