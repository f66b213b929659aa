"""The published recipes, by name: a table, and the papers it is from."""

from __future__ import annotations

from collections.abc import Mapping

from fewbits.recipes.loss_scaling import LossScaling
from fewbits.recipes.recipe import FieldValue, Recipe

_MX = "Rouhani et al., Microscaling Data Formats for Deep Learning, 2023, section 4"
_BDR = "Rouhani et al., With Shared Microexponents, A Little Shifting Goes a Long Way, ISCA 2023, section 6"
_MIXED = "Micikevicius et al., Mixed Precision Training, ICLR 2018"
_LARGE = (
    "Jia et al., Highly Scalable Deep Learning Training System with Mixed-Precision: Training ImageNet in"
    " Four Minutes, 2018"
)
_FP8 = "Mellempudi et al., Mixed Precision Training With 8-bit Floating Point, 2019"
_FP8_LM = "Peng et al., FP8-LM: Training FP8 Large Language Models, 2023"
_BF16 = "Zamirai et al., Revisiting BFloat16 Training, 2020"
_FP16 = "Cheng et al., end-to-end FP16: storage, computation and communication"
_POSIT = "Lu et al., Evaluations on Deep Neural Networks Training Using Posit Number System, 2019"
_STAGES = (
    "Raposo, Tomas and Roma, PositNN: Training Deep Neural Networks with Mixed Low-Precision Posit, 2021"
)
_FIXED = "Gupta et al., Deep Learning with Limited Numerical Precision, ICML 2015"
_MUPPET = "Rajagopal et al., MuPPET: A precision-switching strategy, ICML 2020"
_ASSIGNED = "Lee, Sharma and Aiken, Training with Mixed-Precision Floating-Point Assignments, 2023"
_TERNARY = (
    "Colangelo et al., Exploration of Low Numeric Precision Deep Learning Inference Using Intel FPGAs, FCCM"
    " 2018; Li et al., Ternary Weight Networks, 2016"
)
_BINARY = (
    "Colangelo et al., FCCM 2018; Zhou et al., DoReFa-Net: Training Low Bitwidth Convolutional Neural"
    " Networks with Low Bitwidth Gradients, 2016"
)
_ADDITION = "Mogami, Deep Neural Network Training Without Multiplications, 2020"

# One power of two for the whole tensor, the smallest that does not saturate: 1 / 2^floor(log2(largest/amax)).
_E4M3_TENSOR = "block(element=fp8_e4m3,scale=e8m0,size=tensor)/rceil"
_E5M2_TENSOR = "block(element=fp8_e5m2,scale=e8m0,size=tensor)/rceil"
_FP16_TENSOR = "block(element=fp16,scale=e8m0,size=tensor)/rceil"


def _operands(weight: str, activation: str, gradient: str) -> dict[str, FieldValue]:
    return {"weight": weight, "activation": activation, "gradient": gradient}


def _mx(weight: str, other: str) -> dict[str, FieldValue]:
    """Return microscaled operands; gradients take the scale rule that never clamps.

    Under the rule ``floor`` the gradient of the logits, just below a power of two where the batch is one, is
    clamped, its sum is no longer zero, and training diverges.
    """
    return {**_operands(weight, other, f"{other}/rceil"), "vector": "bf16"}


def _bdr(format: str) -> dict[str, FieldValue]:
    return {**_operands(format, format, format), "vector": "bf16", "logit_gradient": False}


def _narrow_only(format: str) -> dict[str, FieldValue]:
    """Return one 16-bit format for everything that flows between products and lies between steps."""
    roles = ("vector", "parameter", "held_gradient", "first_moment", "second_moment")
    return dict.fromkeys(roles, format)


# Name, the recipe that it changes, paper ("": that of the recipe it changes), changes.
_TABLE: tuple[tuple[str, str, str, Mapping[str, FieldValue]], ...] = (
    (
        "tf32",
        "fp32",
        "NVIDIA A100 Tensor Core GPU Architecture, 2020",
        _operands("tf32/nearest_away", "tf32/nearest_away", "tf32/nearest_away"),
    ),
    ("amp-bf16", "fp32", "torch.autocast", {"autocast": "bf16"}),
    ("amp-fp16", "fp32", f"{_MIXED}; torch.autocast", {"autocast": "fp16", "scaling": "dynamic"}),
    (
        "fp16-master",
        "fp32",
        _MIXED,
        {"vector": "fp16", "parameter": "fp16", "has_master": True, "scaling": "dynamic"},
    ),
    ("fp16-master-static", "fp16-master", "", {"scaling": "1024"}),
    ("fp16-no-scaling", "fp16-master", "", {"scaling": "none"}),
    ("fp16-no-master", "fp16-master", "", {"has_master": False}),
    ("lars", "fp16-master", _LARGE, {"optimizer": "lars", "lr_schedule": "polynomial"}),
    ("mxfp8", "fp32", _MX, _mx("mxfp8_e4m3", "mxfp8_e4m3")),
    ("mxfp6", "fp32", _MX, _mx("mxfp6_e3m2", "mxfp6_e3m2")),
    ("mxfp4w-mxfp6", "fp32", _MX, _mx("mxfp4", "mxfp6_e3m2")),
    ("mxfp4", "fp32", _MX, {**_mx("mxfp4", "mxfp4"), "logit_gradient": False}),
    ("mxint8", "fp32", _MX, _mx("mxint8", "mxint8")),
    ("mxfp6-finetune", "mxfp6", "", {"backward": None}),
    ("mx9", "fp32", _BDR, _bdr("mx9")),
    ("mx6", "fp32", _BDR, _bdr("mx6")),
    ("mx4", "fp32", _BDR, _bdr("mx4")),
    ("mx6-finetune", "mx6", "", {"backward": None, "logit_gradient": True}),
    (
        "fp8-stochastic",
        "fp32",
        _FP8,
        {
            **_operands("fp8_e5m2", "fp8_e5m2/stochastic", "fp8_e5m2/stochastic"),
            "vector": "fp16",
            "keep_first": True,
            "keep_last": True,
            "parameter": "fp16",
            "held_gradient": "fp8_e5m2",
            "scaling": LossScaling(10000.0, floors=((40000, 8192.0), (150000, 32768.0))),
        },
    ),
    (
        "fp8-lm-o1",
        "fp32",
        _FP8_LM,
        {
            **_operands(_E4M3_TENSOR, _E4M3_TENSOR, _E5M2_TENSOR),
            "vector": "bf16",
            "held_gradient": _E4M3_TENSOR,
        },
    ),
    ("fp8-lm-o2", "fp8-lm-o1", "", {"first_moment": _E4M3_TENSOR, "second_moment": _FP16_TENSOR}),
    ("fp8-lm", "fp8-lm-o2", "", {"parameter": "fp16"}),
    ("bf16-only", "fp32", _BF16, {**_narrow_only("bf16"), "update": "stochastic"}),
    ("bf16-only-kahan", "bf16-only", "", {"update": "kahan"}),
    ("bf16-only-nearest", "bf16-only", "", {"update": "nearest"}),
    (
        "fp16-only",
        "fp32",
        _FP16,
        {
            **_narrow_only("fp16"),
            "update": "kahan",
            "scaling": "dynamic",
            "first_moment": _FP16_TENSOR,
            "second_moment": _FP16_TENSOR,  # squares of gradients lie below what FP16 has without a scale
        },
    ),
    (
        "fixed16",
        "fp32",
        _FIXED,
        {
            **_operands("fixed16_f14/stochastic", "fixed16_f10/stochastic", "fixed16_f14/stochastic"),
            "parameter": "fixed16_f14",
            "update": "stochastic",
        },
    ),
    (
        "posit8",
        "fp32",
        _POSIT,
        {
            **_operands("posit8_1/shift=2", "posit8_1/shift=2", "posit8_2/shift=2"),
            "schedule": "warm_up",
        },
    ),
    ("posit16", "fp32", _POSIT, _operands("posit16_1", "posit16_1", "posit16_2")),
    (
        "posit-stages",
        "fp32",
        _STAGES,
        {
            **_operands("posit8_2", "posit8_2", "posit8_2"),
            "logit_gradient": False,
            "parameter": "posit(12,es=1)",
        },
    ),
    ("muppet", "fp32", _MUPPET, {"schedule": "muppet"}),
    (
        "assigned",
        "fp32",
        _ASSIGNED,
        {
            **_operands("hfp8_e4m3", "hfp8_e4m3", "hfp8_e5m2"),
            "scaling": "dynamic",
            "schedule": "assigned",
        },
    ),
    ("add-multiply", "fp32", _ADDITION, {"product": "add"}),
    ("ternary", "fp32", _TERNARY, {"weight": "ternary_tensor/twn", "forward_activation": "int8_channel"}),
    ("binary", "fp32", _BINARY, {"weight": "binary_tensor/absmean", "forward_activation": "int8_channel"}),
)

RECIPES: dict[str, Recipe] = {"fp32": Recipe("fp32", "plain training; the baseline")}
for _name, _base, _paper, _changes in _TABLE:
    RECIPES[_name] = RECIPES[_base].extended(_name, paper=_paper or RECIPES[_base].paper, **_changes)
