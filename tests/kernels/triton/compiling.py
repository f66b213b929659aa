"""Compiles kernels of Triton for chips that are not here, in a process of its own: ``CHIP:CASE ...``.

Prints a line of JSON for each kernel that the cases launch: its name, its assembly, and how long its machine
code is. No launch reaches a device: what the library would launch is recorded and handed to the compiler.
"""

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from fewbits.formats import parse
from fewbits.kernels.bits.options import options
from fewbits.kernels.triton.dequantize.dequantize import dequantize, dequantize_add
from fewbits.kernels.triton.gemm.product import product
from fewbits.kernels.triton.gemv.gemv import gemv
from fewbits.kernels.triton.quantize.both_axes import quantize_both
from fewbits.kernels.triton.quantize.quantize import empty, fake_quantize, quantize, quantize_with_feedback
from fewbits.kernels.triton.top_k.top_k import top_k

_CHIPS = {
    "sm_80": GPUTarget("cuda", 80, 32),
    "sm_90": GPUTarget("cuda", 90, 32),
    "sm_100": GPUTarget("cuda", 100, 32),
    "gfx942": GPUTarget("hip", "gfx942", 64),
    "gfx950": GPUTarget("hip", "gfx950", 64),
}
_TYPES = {
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float64: "*fp64",
    torch.uint8: "*u8",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
_OPTIONS = ("enable_fp_fusion", "num_warps", "num_stages")


def _rounded(name: str, dtype: torch.dtype = torch.float32, **choices: Any) -> None:
    fmt = parse(name)
    chosen = options(fmt, seed=3, **choices)
    x = torch.zeros(64, 4096, dtype=dtype)
    fake_quantize(x, fmt, 1, chosen)
    dequantize(quantize(x, fmt, 0, chosen), fmt, (64, 4096), 0, dtype)


def _flat(name: str) -> None:
    fmt = parse(name)
    x, parts = torch.zeros(4096), empty(parse(name), (4096,), 0, torch.device("cpu"))
    quantize_with_feedback(x, x.clone(), fmt, options(fmt), parts)
    dequantize_add(parts, fmt, x)
    top_k(x, 7)


def _both(name: str) -> None:
    one = parse(name), options(parse(name), rounding="stochastic")
    quantize_both(torch.zeros(128, 128), one, one)


def _vectors(name: str) -> None:
    gemv(torch.zeros(1, 4096), empty(parse(name), (64, 4096), 1, torch.device("cpu")), parse(name), 64)


def _matrices(a: str, b: str, *, by_chip: bool) -> None:
    left, right = (empty(parse(name), (128, 4096), 1, torch.device("cpu")) for name in (a, b))
    product(left, parse(a), right, parse(b), (1, 128, 128, 4096), torch.float32, by_chip=by_chip)


CASES: dict[str, Callable[[], None]] = {
    "mxfp4": lambda: _rounded("mxfp4"),
    "mxfp6": lambda: _rounded("mxfp6_e2m3", torch.bfloat16, rounding="stochastic", scale_rule="rceil"),
    "mx9": lambda: _rounded("mx9", torch.float16, rounding="up"),
    "nvfp4": lambda: _rounded("nvfp4", torch.bfloat16, rounding="stochastic", random_bits=32),
    "int8_tensor": lambda: _rounded("int8_tensor"),
    "vsq6": lambda: _rounded("vsq6"),
    "quda_half": lambda: _rounded("quda_half", nonfinite="saturate"),
    "posit8_1": lambda: _rounded("posit8_1", rounding="stochastic"),
    "fp8_e5m2": lambda: _rounded("fp8_e5m2", overflow="inf"),
    "tf32": lambda: _rounded("tf32"),
    "flat": lambda: _flat("mxfp4"),
    "both": lambda: _both("mxfp4"),
    "gemv": lambda: _vectors("mxfp4"),
    "decoded_mxfp4": lambda: _matrices("mxfp4", "mxfp4", by_chip=False),
    "decoded_nvfp4": lambda: _matrices("nvfp4", "nvfp4", by_chip=False),
    "scaled_mxfp4": lambda: _matrices("mxfp4", "mxfp4", by_chip=True),
    "scaled_mxfp8": lambda: _matrices("mxfp8_e4m3", "mxfp8_e5m2", by_chip=True),
}


def _signature(function: Any, given: dict[str, Any]) -> tuple[dict[str, str], dict[str, Any]]:
    signature, constants = {}, {}
    for parameter in function.params:
        value = given[parameter.name]
        # As a launch does it: None and 1 are compiled in.
        if (
            parameter.is_constexpr
            or value is None
            or (isinstance(value, int) and value == 1 and not parameter.do_not_specialize)
        ):
            signature[parameter.name], constants[parameter.name] = "constexpr", value
        else:
            signature[parameter.name] = _TYPES[value.dtype] if isinstance(value, torch.Tensor) else "i32"
    return signature, constants


def compiled(case: str, target: GPUTarget) -> Iterator[dict[str, Any]]:
    """Yield what the compiler makes of each kernel that a case launches."""
    launches: list[tuple[Any, dict[str, Any]]] = []

    def record(self: Any, *args: Any, grid: Any, warmup: bool, **named: Any) -> None:
        launches.append((self, {**dict(zip(self.arg_names, args, strict=False)), **named}))

    run, JITFunction.run = JITFunction.run, record
    try:
        CASES[case]()
    finally:
        JITFunction.run = run
    for function, given in launches:
        signature, constants = _signature(function, given)
        settings = {name: given[name] for name in _OPTIONS if name in given}
        source = ASTSource(function, signature, constants)
        found = triton.compile(source, target=target, options=settings).asm
        text, binary = ("ptx", "cubin") if target.backend == "cuda" else ("amdgcn", "hsaco")
        yield {
            "case": case,
            "kernel": function.fn.__name__,
            "text": found[text],
            "bytes": len(found[binary]),
        }


if __name__ == "__main__":
    for asked in sys.argv[1:]:
        chip, case = asked.split(":")
        # No E4M3 in tensor cores before sm_89: there, and up to sm_100, products are of decoded tiles.
        every = [one for one in CASES if (chip, one) != ("sm_80", "scaled_mxfp8")]
        for one in every if case == "all" else (case,):
            for row in compiled(one, _CHIPS[chip]):
                print(json.dumps({"chip": chip, **row}))
