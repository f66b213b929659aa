"""The published recipes, by name."""

from __future__ import annotations

from fewbits.recipes.recipe import Recipe
from fewbits.recipes.scaling import Scaling

_MX = "Rouhani et al., Microscaling Data Formats for Deep Learning, 2023, section 4"
_BDR = "Rouhani et al., With Shared Microexponents, A Little Shifting Goes a Long Way, ISCA 2023, section 6"
_MIXED = "Micikevicius et al., Mixed Precision Training, ICLR 2018"
_FP8 = "Mellempudi et al., Mixed Precision Training With 8-bit Floating Point, 2019"
_FP8_LM = "Peng et al., FP8-LM: Training FP8 Large Language Models, 2023"
_BF16 = "Zamirai et al., Revisiting BFloat16 Training, 2020"
_POSIT = "Lu et al., Evaluations on Deep Neural Networks Training Using Posit Number System, 2019"
_STAGES = (
    "Raposo, Tomas and Roma, PositNN: Training Deep Neural Networks with Mixed Low-Precision Posit, 2021"
)
_FP32 = Recipe("fp32", "plain training; the baseline")

# One power of two for the whole tensor, the smallest that does not saturate: 1 / 2^floor(log2(largest/amax)).
_E4M3 = "block(element=fp8_e4m3,scale=e8m0,size=tensor)/rceil"
_E5M2 = "block(element=fp8_e5m2,scale=e8m0,size=tensor)/rceil"
_FP16 = "block(element=fp16,scale=e8m0,size=tensor)/rceil"


def _mx(name: str, weight: str, other: str, **more: object) -> Recipe:
    """Return a recipe of microscaling: gradients take the scale rule that never clamps.

    Under the rule ``floor`` the gradient of the logits, just below a power of two where the batch is one, is
    clamped, its sum is no longer zero, and training diverges.
    """
    return _FP32.extended(
        name, paper=_MX, weight=weight, activation=other, gradient=f"{other}/rceil", vector="bf16", **more
    )


def _bdr(name: str, **more: object) -> Recipe:
    return _FP32.extended(
        name,
        paper=_BDR,
        weight=name,
        activation=name,
        gradient=name,
        vector="bf16",
        logit_gradient=False,
        **more,
    )


def _narrow_only(name: str, fmt: str, paper: str, **more: object) -> Recipe:
    stored = {"parameter": fmt, "held_gradient": fmt, "first_moment": fmt, "second_moment": fmt}
    return _FP32.extended(name, paper=paper, vector=fmt, **(stored | more))


def _all() -> tuple[Recipe, ...]:
    dynamic = Scaling()
    master = _FP32.extended(
        "fp16-master", paper=_MIXED, vector="fp16", parameter="fp16", has_master=True, scaling=dynamic
    )
    o1 = _FP32.extended(
        "fp8-lm-o1",
        paper=_FP8_LM,
        weight=_E4M3,
        activation=_E4M3,
        gradient=_E5M2,
        vector="bf16",
        held_gradient=_E4M3,
    )
    o2 = o1.extended("fp8-lm-o2", first_moment=_E4M3, second_moment=_FP16)
    mxfp6 = _mx("mxfp6", "mxfp6_e3m2", "mxfp6_e3m2")
    bf16 = _narrow_only("bf16-only", "bf16", _BF16, update="stochastic")
    posit = _FP32.extended(
        "posit8",
        paper=_POSIT,
        weight="posit8_1/shift=2",
        activation="posit8_1/shift=2",
        gradient="posit8_2/shift=2",
        schedule="warm-up",
    )
    return (
        _FP32,
        _FP32.extended(
            "tf32",
            paper="NVIDIA A100 Tensor Core GPU Architecture, 2020",
            weight="tf32/nearest_away",
            activation="tf32/nearest_away",
            gradient="tf32/nearest_away",
        ),
        _FP32.extended("amp-bf16", paper="torch.autocast", autocast="bf16"),
        _FP32.extended("amp-fp16", paper=f"{_MIXED}; torch.autocast", autocast="fp16", scaling=dynamic),
        master,
        master.extended("fp16-master-static", scaling=Scaling(1024.0, dynamic=False)),
        master.extended("fp16-no-scaling", scaling=None),
        master.extended("fp16-no-master", has_master=False),
        _mx("mxfp8", "mxfp8_e4m3", "mxfp8_e4m3"),
        mxfp6,
        _mx("mxfp4w-mxfp6", "mxfp4", "mxfp6_e3m2"),
        _mx("mxfp4", "mxfp4", "mxfp4", logit_gradient=False),
        _mx("mxint8", "mxint8", "mxint8"),
        mxfp6.extended("mxfp6-finetune", backward=None),
        _bdr("mx9"),
        _bdr("mx6"),
        _bdr("mx4"),
        _FP32.extended(
            "mx6-finetune", paper=_BDR, weight="mx6", activation="mx6", backward=None, vector="bf16"
        ),
        _FP32.extended(
            "fp8-stochastic",
            paper=_FP8,
            weight="fp8_e5m2",
            activation="fp8_e5m2/stochastic",
            gradient="fp8_e5m2/stochastic",
            vector="fp16",
            keep_first=True,
            keep_last=True,
            parameter="fp16",
            held_gradient="fp8_e5m2",
            scaling=Scaling(10000.0, floors=((40000, 8192.0), (150000, 32768.0))),
        ),
        o1,
        o2,
        o2.extended("fp8-lm", parameter="fp16"),
        bf16,
        bf16.extended("bf16-only-kahan", update="kahan"),
        bf16.extended("bf16-only-nearest", update="nearest"),
        _narrow_only(
            "fp16-only",
            "fp16",
            "Cheng et al., end-to-end FP16: storage, computation and communication",
            update="kahan",
            scaling=dynamic,
            first_moment=_FP16,
            second_moment=_FP16,
        ),
        _FP32.extended(
            "fixed16",
            paper="Gupta et al., Deep Learning with Limited Numerical Precision, ICML 2015",
            weight="fixed16_f14/stochastic",
            activation="fixed16_f10/stochastic",
            gradient="fixed16_f14/stochastic",
            parameter="fixed16_f14",
            update="stochastic",
        ),
        posit,
        posit.extended(
            "posit16", weight="posit16_1", activation="posit16_1", gradient="posit16_2", schedule=""
        ),
        posit.extended(
            "posit-stages",
            paper=_STAGES,
            weight="posit8_2",
            activation="posit8_2",
            gradient="posit8_2",
            logit_gradient=False,
            parameter="posit(12,es=1)",
            schedule="",
        ),
        _FP32.extended(
            "muppet",
            paper="Rajagopal et al., MuPPET: A precision-switching strategy, ICML 2020",
            schedule="muppet",
        ),
        _FP32.extended(
            "assigned",
            paper="Lee, Sharma and Aiken, Training with Mixed-Precision Floating-Point Assignments, 2023",
            weight="hfp8_e4m3",
            activation="hfp8_e4m3",
            gradient="hfp8_e5m2",
            scaling=dynamic,
            schedule="assigned",
        ),
        _FP32.extended(
            "add-multiply",
            paper="Mogami, Deep Neural Network Training Without Multiplications, 2020",
            product="add",
        ),
    )


RECIPES: dict[str, Recipe] = {r.name: r for r in _all()}
