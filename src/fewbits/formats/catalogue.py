"""The catalogue: every published format that fewbits knows by name, with its source.

Numbers in ``source`` name the document; "as reported" marks facts taken from a secondary source.
"""

from __future__ import annotations

from types import MappingProxyType

from fewbits.formats.blocks import Bdr, Block
from fewbits.formats.elements import Exponent, Fixed, Float, Lookup, Posit
from fewbits.formats.format import Element, Entry, Format, enter

_IEEE = "IEEE 754-2019, table 3.5"
_OFP8 = "OCP 8-bit Floating Point (OFP8) v1.0, tables 1 and 2"
_MX = "OCP Microscaling Formats (MX) v1.0, section 5.2 and table 1"
_FNUZ = "Noune et al., 8-bit Numerical Formats for Deep Neural Networks, 2022; AMD CDNA3"
_BDR = "Darvish Rouhani et al., With Shared Microexponents, ISCA 2023, table 2"
_POSIT = "Standard for Posit Arithmetic, 2022; before it Gustafson and Yonemoto, 2017"
_MSFP = (
    "Darvish Rouhani et al., Pushing the Limits of Narrow Precision Inferencing, NeurIPS 2020, as reported"
)
_VSQ = "Dai et al., VS-Quant: Per-Vector Scaled Quantization, MLSys 2021, as reported"
_QUDA = "QUDA, Clark et al., Comput. Phys. Commun. 181, 2010; its source, color_spinor_field_order.h"
_HFP8 = "Sun et al., Hybrid 8-bit Floating Point Training, NeurIPS 2019, as reported"
_TWN = "Li et al., Ternary Weight Networks, 2016"
_XNOR = "Rastegari et al., XNOR-Net, ECCV 2016"
_INT = "two's complement integer"
_GUPTA = "Gupta et al., Deep Learning with Limited Numerical Precision, ICML 2015"

_FP32 = Float(8, 23, 127, "ieee")
_E4M3 = Float(4, 3, 7, "fn")
_E5M2 = Float(5, 2, 15, "ieee")
_E3M2, _E2M3, _E2M1 = Float(3, 2), Float(2, 3), Float(2, 1)
_E8M0 = Exponent(8, 127)
_BINARY = Lookup((1.0, -1.0))


def _magnitude(bits: int) -> Fixed:
    return Fixed(bits, bits - 2, "sign_magnitude")


def _integer(bits: int) -> Fixed:
    return Fixed(bits, 0, "symmetric")


_TABLE: tuple[tuple[str, Format, str, str], ...] = (
    # scalar: IEEE and its neighbours
    ("fp32", _FP32, _IEEE + " (binary32)", "single precision"),
    ("tf32", Float(8, 10, 127, "ieee"), "NVIDIA A100 Tensor Core GPU Architecture, 2020",
     "fp32 range, fp16 mantissa; 19 bits"),
    ("bf16", Float(8, 7, 127, "ieee"), "Intel, BFLOAT16 Hardware Numerics Definition, 2018",
     "fp32 range, 8 significant bits"),
    ("fp16", Float(5, 10, 15, "ieee"), _IEEE + " (binary16)", "half precision"),
    ("fp16_e6m9", Float(6, 9, 31, "ieee"), _HFP8, "16 bits for updates beside hybrid FP8 (1-6-9)"),
    # scalar: 8 bits
    ("fp8_e4m3", _E4M3, _OFP8, "no infinity, one NaN, largest 448"),
    ("fp8_e5m2", _E5M2, _OFP8, "IEEE-like, largest 57344"),
    ("fp8_e4m3_ieee", Float(4, 3, 7, "ieee"), "IEEE 754-2019, section 3.4, applied to 1-4-3",
     "with infinities, largest 240"),
    ("fp8_e3m4", Float(3, 4, 3, "ieee"), "IEEE 754-2019, section 3.4, applied to 1-3-4",
     "with infinities, largest 15.5"),
    ("fp8_e4m3fnuz", Float(4, 3, 8, "fnuz"), _FNUZ, "no infinity, no minus zero, largest 240"),
    ("fp8_e5m2fnuz", Float(5, 2, 16, "fnuz"), _FNUZ, "no infinity, no minus zero, largest 57344"),
    ("fp8_e4m3b11fnuz", Float(4, 3, 11, "fnuz"), "ml_dtypes, float8_e4m3b11fnuz", "bias 11, largest 30"),
    ("hfp8_e4m3", Float(4, 3, 11), _HFP8, "forward half of hybrid FP8 (1-4-3), exponents shifted by 4"),
    ("hfp8_e5m2", _E5M2, _HFP8, "backward half of hybrid FP8 (1-5-2); the same as fp8_e5m2"),
    # scalar: 6 bits and fewer
    ("fp6_e3m2", _E3M2, _MX, "every code a number, largest 28"),
    ("fp6_e2m3", _E2M3, _MX, "every code a number, largest 7.5"),
    ("fp4_e2m1", _E2M1, _MX, "0 0.5 1 1.5 2 3 4 6"),
    ("fp4_e3m0", Float(3, 0), "Han, Demmel, You, Auto-Precision Scaling, 2021", "powers of two and zero"),
    ("e8m0", _E8M0, _MX + ", section 5.4.1", "a power of two; the scale of every MX format"),
    ("int8", Fixed(8), _INT, "-128 to 127"),
    ("int4", Fixed(4), _INT, "-8 to 7"),
    ("int2", Fixed(2), _INT, "-2 to 1"),
    ("uint8", Fixed(8, 0, "unsigned"), "unsigned integer", "0 to 255"),
    ("uint4", Fixed(4, 0, "unsigned"), "unsigned integer", "0 to 15"),
    ("uint2", Fixed(2, 0, "unsigned"), "unsigned integer", "0 to 3"),
    ("ternary", _integer(2), _TWN, "-1 0 1"),
    ("binary", _BINARY, "Courbariaux et al., BinaryConnect, 2015", "1 -1"),
    ("fixed16_f14", Fixed(16, 14), _GUPTA, "weights: 2 integer and 14 fraction bits"),
    ("fixed16_f10", Fixed(16, 10), _GUPTA, "layer outputs: 6 integer and 10 fraction bits"),
    *((f"posit{n}_{es}", Posit(n, es), _POSIT, f"{n} bits, es = {es}") for n, es in
      ((5, 2), (6, 2), (8, 0), (8, 1), (8, 2), (16, 1), (16, 2))),
    # blocked: OCP MX
    ("mxfp8_e4m3", Block(_E4M3, _E8M0, 32), _MX, "32 E4M3 share a power of two"),
    ("mxfp8_e5m2", Block(_E5M2, _E8M0, 32), _MX, "32 E5M2 share a power of two"),
    ("mxfp6_e3m2", Block(_E3M2, _E8M0, 32), _MX, "32 E3M2 share a power of two"),
    ("mxfp6_e2m3", Block(_E2M3, _E8M0, 32), _MX, "32 E2M3 share a power of two"),
    ("mxfp4", Block(_E2M1, _E8M0, 32), _MX, "32 E2M1 share a power of two"),
    ("mxint8", Block(Fixed(8, 6, "symmetric"), _E8M0, 32), _MX, "32 fixed-point values share a power of two"),
    # blocked: shared microexponents and block floating point
    ("mx9", Bdr(7), _BDR, "16 values share an exponent, pairs a one-bit shift; 7 magnitude bits"),
    ("mx6", Bdr(4), _BDR, "as mx9 with 4 magnitude bits"),
    ("mx4", Bdr(2), _BDR, "as mx9 with 2 magnitude bits; not OCP's MXFP4"),
    *((f"msfp{n}", Block(_magnitude(n - 8), _E8M0, 16), _MSFP, f"block floating point, sign and {n - 9} bits")
      for n in range(12, 17)),
    # blocked: real scales
    ("nvfp4", Block(_E2M1, _E4M3, 16, _FP32), "NVIDIA, Pretraining LLMs with NVFP4, 2025; Transformer Engine",
     "16 E2M1 share an E4M3, the tensor an FP32"),
    *((f"vsq{n}", Block(_integer(n), Fixed(n, 0, "unsigned"), 16, _FP32, "channel"), _VSQ,
       f"16 integers of {n} bits share an integer scale of {n} bits, the channel an FP32")
      for n in (4, 6, 8)),
    *((f"int{n}_{size}", Block(_integer(n), _FP32, size),
       "symmetric integer quantization; Jacob et al., CVPR 2018",
       f"{n}-bit integers, one FP32 scale per {size}") for n in (8, 4) for size in ("tensor", "channel")),
    *((f"ternary_{size}", Block(_integer(2), _FP32, size), _TWN, f"-1 0 1 with one FP32 scale per {size}")
      for size in ("tensor", "channel")),
    *((f"binary_{size}", Block(_BINARY, _FP32, size), _XNOR, f"1 -1 with one FP32 scale per {size}")
      for size in ("tensor", "channel")),
    ("int8_256", Block(_integer(8), _FP32, 256),
     "Dettmers et al., 8-bit Optimizers via Block-wise Quantization, ICLR 2022, with blocks of 256",
     "8-bit integers, one FP32 scale per 256 values"),
    *((f"fp8_{e}_{size}", Block(f, _FP32, size), "Micikevicius et al., FP8 Formats for Deep Learning, 2022",
       f"{e.upper()} with one FP32 scale per {size}") for e, f in (("e4m3", _E4M3), ("e5m2", _E5M2))
      for size in ("tensor", "channel")),
    ("quda_half", Block(_integer(16), _FP32, 24), _QUDA,
     "16-bit integers, an FP32 norm per site of 24 reals"),
    ("quda_quarter", Block(_integer(8), _FP32, 24), _QUDA,
     "8-bit integers, an FP32 norm per site of 24 reals"),
)  # fmt: skip

CATALOGUE = MappingProxyType({row[0]: Entry(*row) for row in _TABLE})

for _entry in CATALOGUE.values():
    enter(_entry)


def elements() -> tuple[Element, ...]:
    """Return every distinct scalar format of the catalogue."""
    formats = (entry.format for entry in CATALOGUE.values())
    return tuple(dict.fromkeys(f for f in formats if isinstance(f, Element)))
