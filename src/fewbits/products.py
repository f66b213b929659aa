"""The arithmetic of products, convolutions and attention: the FLOP of an operator as PyTorch dispatches it.

The formulas are PyTorch's own, `torch.utils.flop_counter`, or ours where it has none, or one that leaves
groups out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

_LAYOUTS = (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc)
_FLASH = "aten::_scaled_dot_product_flash_attention_for_cpu"


def call_flops(func: Any, args: Any, kwargs: Any, result: Any) -> float | None:
    """Return the FLOP of a call of an operator that is a product; None of what is none.

    A product of complex numbers takes four times as many, one of a sparse matrix those of the values that are
    there.
    """
    own, formula = _FORMULAS.get(func._schema.name), flop_registry.get(func._overloadpacket)
    if own is not None:
        flops = float(own(args, result))
    elif formula is not None:
        flops = float(formula(*args, **kwargs, out_val=result))
    else:
        return None
    sparse = [x for x in args if isinstance(x, torch.Tensor) and x.layout in _LAYOUTS]
    if len(sparse) > 1:
        return None  # it depends on which values meet
    for x in sparse:  # each value takes the same share, on whichever side the matrix stands
        flops = flops * stored_values(x) / max(x.numel(), 1)
    complex_ = any(x.is_complex() for x in tree_leaves((args, result)) if isinstance(x, torch.Tensor))
    return flops * (product_flop(torch.complex64) / 2 if complex_ else 1)


def product_flop(dtype: torch.dtype) -> int:
    """Return the FLOP of one multiplication and addition: of complex numbers, four of each."""
    return 8 if dtype.is_complex else 2


def stored_values(x: torch.Tensor) -> int:
    """Return how many values of a tensor are there: of a sparse one those that it holds."""
    if x.layout not in _LAYOUTS:
        return x.numel()
    return (x._values() if x.layout == torch.sparse_coo else x.values()).numel()


def _times(args: Any, result: Any) -> float:
    """Return the FLOP of a product of matrices, or of stacks of them."""
    return float(2 * result.numel() * args[0].shape[-1])


def _convolved(args: Any, result: Any) -> float:
    """Return the FLOP of a convolution of x and weight: each result sums a window of weights."""
    return float(2 * result.numel() * args[1][0].numel())


def _convolved_back(args: Any, result: Any) -> float:
    """Return the FLOP of a convolution's backward pass: as many as forward for each of x and weight."""
    gradient, x, weight, is_transposed, wanted = args[0], args[1], args[2], args[7], args[10]
    of = x if is_transposed else gradient  # each value of it meets the window of one channel
    return float(2 * of.numel() * weight[0].numel() * sum(wanted[:2]))


def _convolved_in_time(args: Any, result: Any) -> float:
    """Return the FLOP of torch.conv_tbc: (times, samples, channels) and (taps, channels, results)."""
    return float(2 * result.numel() * args[1][:, :, :1].numel())


def _grouped(args: Any, result: Any) -> float:
    """Return the FLOP of products of groups: of stacks of matrices, or of parts of one along an extent."""
    x, y = args[:2]
    stacks = x.shape[0] if x.ndim == y.ndim == 3 else 1
    return float(2 * stacks * x.shape[-2] * x.shape[-1] * y.shape[-1])


def _trilinear(args: Any, result: Any) -> float:
    """Return the FLOP of a sum of products of three, as of nn.Bilinear: one joins when two are summed."""
    shapes = []
    for x, new in zip(args[:3], args[3:6], strict=True):
        shape = list(x.shape)
        for axis in sorted(new):
            shape.insert(axis, 1)
        shapes.append(shape)
    return float(2 * math.prod(torch.broadcast_shapes(*shapes)))


def _recurrent(args: Any, result: Any) -> float:
    """Return the FLOP of a layer of an LSTM: each step multiplies by the weights of inputs and of states."""
    x, of_inputs, of_states = args[:3]
    steps = math.prod(x.shape[:2])
    return float(2 * steps * (of_inputs.numel() + of_states.numel()))


def _attended(query: torch.Tensor, key: torch.Tensor) -> float:
    """Return the FLOP of attention between its projections: each query meets each key, and each value."""
    return float(2 * 2 * query.numel() * key.shape[-2])


def _multi_head(args: Any, result: Any) -> float:
    """Return the FLOP of fused attention: its operands and its result are projected, to the same width."""
    query, key, value, width = args[:4]
    projected = 2 * query.numel() + key.numel() + value.numel()
    return float(2 * projected * width) + _attended(query, key)


def _encoder_layer(args: Any, result: Any) -> float:
    """Return the FLOP of a fused layer of a transformer: attention to itself, and four linear layers."""
    x, weights = args[0], (args[3], args[5], args[14], args[16])
    tokens = math.prod(x.shape[:-1])
    return float(2 * tokens * sum(weight.numel() for weight in weights)) + _attended(x, x)


_FORMULAS: dict[str, Callable[[Any, Any], float]] = {
    "fewbits::rounded_product": _times,
    "fewbits::bfloat16_product": _times,
    "fewbits::addition_product": _times,
    "fewbits::gemv": _times,
    "fewbits::gemv_int8": _times,
    "aten::dot": _times,
    "aten::vdot": _times,
    "aten::mv": _times,
    # Whole where autograd does not take them apart: below it, as of packed operands, and in inference mode.
    "aten::matmul": _times,
    "aten::linear": _times,
    # Their namesakes that make a new tensor are in PyTorch's registry.
    "aten::addmm_": lambda args, result: 2 * args[1].numel() * args[2].shape[-1],
    "aten::baddbmm_": lambda args, result: 2 * args[1].numel() * args[2].shape[-1],
    "aten::addmv": lambda args, result: 2 * args[1].numel(),
    "aten::addmv_": lambda args, result: 2 * args[1].numel(),
    "aten::addbmm": lambda args, result: 2 * args[1].numel() * args[2].shape[-1],
    "aten::addbmm_": lambda args, result: 2 * args[1].numel() * args[2].shape[-1],
    "aten::_sparse_mm": _times,
    "aten::_sparse_addmm": lambda args, result: 2 * result.numel() * args[1].shape[-1],
    "aten::sparse_sampled_addmm": lambda args, result: 2 * result.numel() * args[1].shape[-1],
    "aten::_int_mm": _times,
    "aten::_weight_int8pack_mm": _times,
    "aten::_weight_int4pack_mm_for_cpu": _times,
    "aten::_scaled_mm_v2": _times,
    "aten::_addmm_activation": lambda args, result: 2 * args[1].numel() * args[2].shape[-1],
    "aten::_grouped_mm": _grouped,
    "aten::conv_tbc": _convolved_in_time,
    "aten::convolution_backward": _convolved_back,
    "aten::mkldnn_convolution": _convolved,
    "aten::_trilinear": _trilinear,
    "aten::mkldnn_rnn_layer": _recurrent,
    "aten::mkldnn_rnn_layer_backward": lambda args, result: 2 * _recurrent(args, result),
    "aten::_native_multi_head_attention": _multi_head,
    "aten::_transformer_encoder_layer_fwd": _encoder_layer,
    _FLASH: lambda args, result: sdpa_flop_count(*(x.shape for x in args[:3])),
    f"{_FLASH}_backward": lambda args, result: sdpa_backward_flop_count(*(x.shape for x in args[:4])),
}
