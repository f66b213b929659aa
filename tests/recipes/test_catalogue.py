"""What each recipe of the catalogue holds in which format, by the paper it names, as a literal table.

Operands: forward activation, forward weight, then activation and gradient of the product that gives the
weight's gradient, then gradient and weight of the one that gives the input's.
"""

from dataclasses import fields
from typing import Any

import pytest

from fewbits.recipes import RECIPES, LossScaling, Recipe

E4M3 = "block(element=fp8_e4m3,scale=e8m0,size=tensor)/rceil"  # FP8-LM: one power of two for a tensor
E5M2 = "block(element=fp8_e5m2,scale=e8m0,size=tensor)/rceil"
FP16 = "block(element=fp16,scale=e8m0,size=tensor)/rceil"
DYNAMIC = LossScaling(
    65536.0, dynamic=True, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000, floors=()
)


def operands(activation: str, weight: str, gradient: str) -> dict[str, str]:
    return {
        "forward_activation": activation, "forward_weight": weight, "dw_activation": activation,
        "dw_gradient": gradient, "dx_gradient": gradient, "dx_weight": weight,
    }  # fmt: skip


def forward(fmt: str) -> dict[str, str]:
    return {"forward_activation": fmt, "forward_weight": fmt}


def stored(fmt: str) -> dict[str, str]:
    return {"parameter": fmt, "held_gradient": fmt, "first_moment": fmt, "second_moment": fmt}


MASTER: dict[str, Any] = {"vector": "fp16", "parameter": "fp16", "has_master": True}
BF16: dict[str, Any] = {"vector": "bf16", **stored("bf16")}
FP8_LM: dict[str, Any] = {"vector": "bf16", **operands(E4M3, E4M3, E5M2), "held_gradient": E4M3}
MX6 = "mxfp6_e3m2"
ALONE = {"logit_gradient": False}

TABLE: dict[str, dict[str, Any]] = {
    "fp32": {},
    "tf32": operands(*3 * ["tf32/nearest_away"]),
    "amp-bf16": {"autocast": "bf16"},
    "amp-fp16": {"autocast": "fp16", "scaling": DYNAMIC},
    # Micikevicius et al.: FP16 weights and activations, FP32 master weights, a loss scale.
    "fp16-master": {**MASTER, "scaling": DYNAMIC},
    "fp16-master-static": {**MASTER, "scaling": LossScaling(1024.0, dynamic=False)},
    "fp16-no-scaling": MASTER,
    "fp16-no-master": {**MASTER, "has_master": False, "scaling": DYNAMIC},
    # Jia et al.: FP16 forward and backward, LARS in FP32 on master weights, a loss scale, polynomial decay.
    "lars": {**MASTER, "scaling": DYNAMIC, "optimizer": "lars", "lr_schedule": "polynomial"},
    # Rouhani et al., MX: BF16 vectors; the scale rule of gradients never clamps.
    "mxfp8": {"vector": "bf16", **operands("mxfp8_e4m3", "mxfp8_e4m3", "mxfp8_e4m3/rceil")},
    "mxfp6": {"vector": "bf16", **operands(MX6, MX6, f"{MX6}/rceil")},
    "mxfp4w-mxfp6": {"vector": "bf16", **operands(MX6, "mxfp4", f"{MX6}/rceil")},
    "mxfp4": {"vector": "bf16", **operands("mxfp4", "mxfp4", "mxfp4/rceil"), **ALONE},
    "mxint8": {"vector": "bf16", **operands("mxint8", "mxint8", "mxint8/rceil")},
    "mxfp6-finetune": {"vector": "bf16", **forward(MX6)},
    # Rouhani et al., BDR.
    "mx9": {"vector": "bf16", **operands("mx9", "mx9", "mx9"), **ALONE},
    "mx6": {"vector": "bf16", **operands("mx6", "mx6", "mx6"), **ALONE},
    "mx4": {"vector": "bf16", **operands("mx4", "mx4", "mx4"), **ALONE},
    "mx6-finetune": {"vector": "bf16", **forward("mx6")},
    # Mellempudi et al.: E5M2, stochastic but for weights; FP16 master weights, first and last layer FP16.
    "fp8-stochastic": {
        **operands("fp8_e5m2/stochastic", "fp8_e5m2", "fp8_e5m2/stochastic"),
        "vector": "fp16", "keep_first": True, "keep_last": True, "parameter": "fp16",
        "held_gradient": "fp8_e5m2",
        "scaling": LossScaling(10000.0, True, 2.0, 0.5, 2000, ((40000, 8192.0), (150000, 32768.0))),
    },
    # Peng et al.: E4M3 but for output gradients; moments FP8 and FP16 with a scale, weights FP16.
    "fp8-lm-o1": FP8_LM,
    "fp8-lm-o2": {**FP8_LM, "first_moment": E4M3, "second_moment": FP16},
    "fp8-lm": {**FP8_LM, "first_moment": E4M3, "second_moment": FP16, "parameter": "fp16"},
    # Zamirai et al.: everything that is stored in BF16.
    "bf16-only": {**BF16, "update": "stochastic"},
    "bf16-only-kahan": {**BF16, "update": "kahan"},
    "bf16-only-nearest": BF16,
    "fp16-only": {
        "vector": "fp16", **stored("fp16"), "first_moment": FP16, "second_moment": FP16, "update": "kahan",
        "scaling": DYNAMIC,
    },
    # Gupta et al.: 16 bits, layer outputs <6, 10>, weights and gradients <2, 14>, stochastic rounding.
    "fixed16": {
        **operands("fixed16_f10/stochastic", "fixed16_f14/stochastic", "fixed16_f14/stochastic"),
        "parameter": "fixed16_f14", "update": "stochastic",
    },
    # Lu et al.: (8, 1) forward and (8, 2) backward, sigma = 2, a warm-up in FP32; (16, 1) and (16, 2).
    "posit8": {
        **operands("posit8_1/shift=2", "posit8_1/shift=2", "posit8_2/shift=2"), "schedule": "warm_up",
    },
    "posit16": operands("posit16_1", "posit16_1", "posit16_2"),
    # Raposo et al.: 12 bits for optimizer and loss, 8 elsewhere.
    "posit-stages": {**operands("posit8_2", "posit8_2", "posit8_2"), **ALONE, "parameter": "posit(12,es=1)"},
    "muppet": {"schedule": "muppet"},
    # Lee et al.: hybrid FP8 below, with a loss scale.
    "assigned": {
        **operands("hfp8_e4m3", "hfp8_e4m3", "fp8_e5m2"), "scaling": DYNAMIC, "schedule": "assigned",
    },
    "add-multiply": {"product": "add"},
    # Li et al., and Zhou et al. for binary weights: latent weights, one scale for a tensor; integers forward.
    "ternary": {
        "forward_weight": "ternary_tensor/twn", "dx_weight": "ternary_tensor/twn",
        "forward_activation": "int8_channel",
    },
    "binary": {
        "forward_weight": "binary_tensor/absmean", "dx_weight": "binary_tensor/absmean",
        "forward_activation": "int8_channel",
    },
}  # fmt: skip
CASTS = {"parameter", "master", "held_gradient", "first_moment", "second_moment", *operands("", "", "")}


def test_the_catalogue_has_these_recipes_and_no_other() -> None:
    assert list(RECIPES) == list(TABLE)


@pytest.mark.parametrize("name", TABLE)
def test_each_field_of_a_recipe_is_that_of_the_table_or_fp32s(name: str) -> None:
    found, plain = RECIPES[name], Recipe("fp32")
    for field in fields(Recipe):
        if field.name in ("name", "paper"):
            continue
        value = getattr(found, field.name)
        wanted = TABLE[name].get(field.name, getattr(plain, field.name))
        assert (str(value) if field.name in CASTS and value is not None else value) == wanted, field.name
    assert found.name == name


def test_the_fields_of_fp32_are_those_of_plain_training() -> None:
    plain = Recipe("fp32")
    assert all(getattr(plain, name) is None for name in (*CASTS, "scaling"))
    assert (plain.vector, plain.autocast, plain.product, plain.update, plain.schedule) == (
        "fp32", "", "exact", "nearest", "",
    )  # fmt: skip
    assert (plain.optimizer, plain.lr_schedule) == ("adamw", "cosine")
    assert (plain.keep_first, plain.keep_last, plain.has_master, plain.logit_gradient) == (
        False, False, False, True,
    )  # fmt: skip
