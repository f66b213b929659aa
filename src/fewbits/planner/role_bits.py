"""How many bits each value of a training step takes, by what a recipe and a codec say of its role."""

from __future__ import annotations

from dataclasses import dataclass

from fewbits.errors import ArgumentError
from fewbits.formats import CATALOGUE
from fewbits.recipes import RECIPES, Codec, Recipe, RoleFormat, uniform_recipe
from fewbits.recipes import codec as read_codec
from fewbits.recipes import recipe as read_recipe

_RUN = 1 << 20  # values of a run whose bytes tell the bits of a codec
_MOMENTS = {"adamw": 2, "sgd": 1, "lars": 1}  # values that an optimizer keeps for each parameter


@dataclass(frozen=True)
class RoleBits:
    """Bits per value in a layer's roles, scales counted, and the width of its products' elements."""

    name: str  # of the recipe
    vector: float  # results, sums of products, and gradients between layers
    activation: float  # as a product reads it: what is sent to it, if that is less
    gradient: float  # of a result, as a product reads it in the backward pass
    weight_gradient: float  # on the wire
    parameter: float  # parameter, master copy, held gradient and moments together
    frozen: float  # a parameter that is not trained
    kept: float | None  # an input that a product keeps for itself; None: as it is
    products: tuple[float, float, float]  # widest element of forward, weight's and input's gradient
    gathered: Codec | None = None  # of weights' gradients that each sends to all others: one with a density


def role_bits(recipe: str | Recipe, codec: str | Codec | None = None) -> RoleBits:
    """Return the bits of a recipe, which may also be the name of one format for all products.

    Args:
        recipe: of the layer.
        codec: in what the gradients of weights travel; None: as the recipe holds them, float32 by default.

    Raises:
        ArgumentError: no such recipe, or a hook of torch's, whose bytes are not counted.
        FormatError: no such format.
    """
    found = read_layer_recipe(recipe)
    vector = 16.0 if found.autocast or found.vector != "fp32" else 32.0
    held = _bits(found.held_gradient, 32.0)
    return RoleBits(
        name=found.name,
        vector=vector,
        activation=_bits(found.forward_activation, vector),
        gradient=_bits(found.dx_gradient, vector),
        weight_gradient=held if codec is None else codec_bits(codec),
        parameter=_parameter_bits(found, held),
        frozen=_bits(found.parameter, 32.0),
        kept=None if found.dw_activation is None else _bits(found.dw_activation, vector),
        products=(
            _widest(vector, found.forward_activation, found.forward_weight),
            _widest(vector, found.dw_activation, found.dw_gradient),
            _widest(vector, found.dx_gradient, found.dx_weight),
        ),
        gathered=_with_density(codec),
    )


def read_layer_recipe(text: str | Recipe) -> Recipe:
    """Return a recipe by its name and changes, or the one that rounds all operands to one format.

    Raises:
        ArgumentError: no such recipe.
        FormatError: no such format.
    """
    if isinstance(text, Recipe) or text.partition(":")[0] in RECIPES or ":" in text:
        return read_recipe(text)
    if "(" in text or text.strip() in CATALOGUE:
        return uniform_recipe(text)
    try:
        return read_recipe(text)
    except ArgumentError as error:  # a name that is neither
        raise ArgumentError(f"{error}, and `fewbits formats` the formats") from error


def codec_bits(codec: str | Codec) -> float:
    """Return the bits of a value on the wire: values, scales and indices.

    Raises:
        ArgumentError: a hook of torch's, whose bytes are not counted.
        FormatError: no such format.
    """
    from fewbits.distributed.cost import counted

    return 8 * run_bytes(counted(codec), _RUN) / _RUN


def run_bytes(codec: Codec, n: int) -> int:
    """Return the bytes of ``n`` values on the wire."""
    from fewbits.distributed.wire import nbytes

    return nbytes(codec, n)


def _with_density(codec: str | Codec | None) -> Codec | None:
    read = None if codec is None else read_codec(codec)
    return None if read is None or read.density is None else read


def _bits(role: RoleFormat | None, default: float) -> float:
    return default if role is None else role.format.bits_per_value


def _widest(vector: float, *operands: RoleFormat | None) -> float:
    return max(vector if role is None else float(role.format.element.bits) for role in operands)


def _parameter_bits(recipe: Recipe, held: float) -> float:
    parameter = _bits(recipe.parameter, 32.0)
    master = _bits(recipe.master, 32.0) if recipe.has_master else 0.0
    moments = [_bits(recipe.first_moment, 32.0), _bits(recipe.second_moment, 32.0)]
    return parameter + master + held + sum(moments[: _MOMENTS[recipe.optimizer]])
