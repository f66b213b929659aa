"""Turn the layers of a model into narrow ones, in place."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

import torch
from torch import nn

from fewbits.errors import ArgumentError
from fewbits.names import check_fits, listed, within
from fewbits.nn.autocast import Autocast
from fewbits.nn.layers import LAYERS
from fewbits.nn.layers.input_first import NarrowInputFirstLinear
from fewbits.nn.own_dtype import take_own_dtype, widened
from fewbits.nn.rules import DTYPES, Rules, Watcher, cast
from fewbits.recipes import Cast, Recipe
from fewbits.recipes import recipe as read
from fewbits.recipes.narrowed import Narrowed, Prepared, is_narrow

Model = TypeVar("Model", bound=nn.Module)

# Layers that multiply by their own matrices and that no narrow layer stands for.
_REFUSED = (
    nn.ConvTranspose1d,
    nn.ConvTranspose2d,
    nn.ConvTranspose3d,
    nn.Conv3d,
    nn.RNN,
    nn.RNNCell,
    nn.LSTMCell,
    nn.GRUCell,
    nn.EmbeddingBag,
)
# By name: to import the package of such a class would take seconds, and not everybody has it.
_ELSEWHERE: dict[str, type[nn.Module]] = {"transformers.pytorch_utils.Conv1D": NarrowInputFirstLinear}


def prepare(
    model: Model,
    recipe: str | Recipe,
    *,
    exclude: str | Iterable[str] = (),
    last: str | Iterable[str] = (),
    watcher: Watcher | None = None,
) -> Model:
    """Make a model train as a recipe says. Call it before the optimizer is made.

    Layers are changed in place: modules, parameters and the keys of ``state_dict`` keep their names. Whatever
    flows between them takes the recipe's vector format; what the model returns is float32 again. Layers left
    out compute in the dtype of their parameters. Torch's transformer layers lose their fused inference, which
    would read the weights as they are. A recipe whose formats change while it trains (posit8, muppet,
    assigned) also needs :func:`fewbits.train.schedule` in the loop.

    Args:
        model: any module. Its Linear, Conv1d, Conv2d, Embedding, Bilinear, MultiheadAttention, LSTM, GRU and
            PReLU layers are changed, and Hugging Face's Conv1D.
        recipe: a recipe or its text, as in ``mxfp6`` or ``mx:weight=mxfp4,gradient=mxfp6_e3m2/rceil``.
        exclude: patterns of module names to leave out, as in ``("lm_head", "blocks.0.*")``; what lies within
            a module of such a name is left out too.
        last: patterns of the layers that give the logits, which some recipes treat with more care. Default:
            the last layer in the order in which the model registered them.
        watcher: sees every operand that is rounded.

    Returns:
        The model itself.

    Raises:
        ArgumentError: no such recipe, a pattern that fits no module, a model prepared before, or a layer that
            cannot be changed: exclude it by name.
    """
    chosen, patterns, logits = read(recipe), listed(exclude), listed(last)
    names = dict(model.named_modules())
    _check(model, chosen, patterns, names)
    check_fits("exclude", patterns, list(names))
    check_fits("last", logits, list(names))
    found = {n: m for n, m in names.items() if not within(n, patterns)}
    if chosen.swaps_layers:
        around = {name: _around(name, names, patterns) for name in names}
        for name, outer in around.items():
            if outer is not None and name not in found:
                raise ArgumentError(
                    f"exclude names {name}, which is a part of {outer or 'the model'}: leave out that"
                    " layer or none of it"
                )
        whole = {n: m for n, m in found.items() if around[n] is None}
        narrow = {n: m for n, m in whole.items() if _narrow_class(m) is not None}
        for name, module in whole.items():
            _refuse(name, module)
            _unfuse(module)
        if not narrow:
            raise ArgumentError(
                f"{type(model).__name__} has no layer that {chosen.name} could change; expected one of"
                f" {', '.join(sorted(c.__name__ for c in LAYERS))} that is not excluded"
            )
        # Left-out layers count: the one before an excluded head does not give the logits.
        order = [n for n, m in names.items() if _narrow_class(m) is not None and not isinstance(m, nn.PReLU)]
        ends = [n for n in order if within(n, logits)] if logits else order[-1:]
        for name, module in narrow.items():
            first, gives_logits = [name] == order[:1], name in ends
            kept = (first and chosen.keep_first) or (gives_logits and chosen.keep_last)
            _become(module, Rules(chosen, name, kept, gives_logits, watcher))
        if chosen.vector != "fp32":
            _keep_dtypes(names, found, chosen)
        model.register_forward_hook(_float32_results)
        if chosen.parameter is not None:
            _hold_parameters(narrow.values(), chosen.parameter)
    if chosen.autocast:
        Autocast(DTYPES[chosen.autocast]).attach(model)
        model.register_forward_hook(_float32_results)
    model.fewbits_recipe = chosen  # type: ignore[assignment]
    for module in model.modules():
        module.fewbits_prepared = Prepared(list(module.parameters(recurse=False)), chosen)  # type: ignore[assignment]
    return model


def _check(model: nn.Module, chosen: Recipe, patterns: tuple[str, ...], names: dict[str, nn.Module]) -> None:
    if chosen.autocast and patterns:
        raise ArgumentError(
            f"{chosen.name} is torch.autocast around the whole model; leave exclude out, or disable autocast"
            " in the layer itself"
        )
    for name, module in names.items():
        if hasattr(module, "fewbits_recipe") or isinstance(getattr(module, "rules", None), Rules):
            raise ArgumentError(
                f"{name or 'the model'} is prepared already; make the model anew, or load its state_dict into"
                " a new one"
            )
    for key, p in model.named_parameters():
        if p.dtype == torch.float64 and chosen.swaps_layers:
            raise ArgumentError(f"{key} is float64; recipes start from float32: call model.float() first")


def _around(name: str, names: dict[str, nn.Module], patterns: tuple[str, ...]) -> str | None:
    """Return the name of the narrow layer around this one, which computes for it, if there is one."""
    parts = name.split(".")
    outside = (".".join(parts[:i]) for i in range(len(parts) if name else 0))
    found = (n for n in outside if _narrow_class(names[n]) is not None and not within(n, patterns))
    return next(found, None)


def _narrow_class(module: nn.Module) -> type[nn.Module] | None:
    kind = type(module)
    return LAYERS.get(kind) or _ELSEWHERE.get(f"{kind.__module__}.{kind.__qualname__}")


def _refuse(name: str, module: nn.Module) -> None:
    if _narrow_class(module) is not None:
        return
    if isinstance(module, (*_REFUSED, *LAYERS)) or _has_own_matrices(module):
        advice = f"leave it as it is with exclude={name!r}" if name else "train it by another recipe"
        raise ArgumentError(
            f"{name or 'the model'} is a {type(module).__name__}, which has no narrow form; {advice}"
        )


def _has_own_matrices(module: nn.Module) -> bool:
    """Whether a layer that is not torch's own may multiply by matrices that no narrow layer would see."""
    own = list(module.parameters(recurse=False))
    # With further parameters below it, a tensor of its own is more likely added than multiplied by.
    if type(module).__module__.startswith("torch.") or len(own) < len(list(module.parameters())):
        return False
    return any(p.dim() > 1 and p.is_floating_point() for p in own)


def _keep_dtypes(names: dict[str, nn.Module], found: dict[str, nn.Module], chosen: Recipe) -> None:
    for name, module in names.items():
        if name in found and isinstance(module, nn.RMSNorm):  # warns of any other dtype, once
            take_own_dtype(module, DTYPES[chosen.vector])
        elif name not in found and name.rpartition(".")[0] in found:
            take_own_dtype(module)


def _unfuse(module: nn.Module) -> None:
    """Say that torch's fused inference, which reads the weights itself, does not apply."""
    if isinstance(module, nn.TransformerEncoderLayer):
        module.activation_relu_or_gelu = 0  # read by nothing but the question whether to fuse
    elif isinstance(module, nn.TransformerEncoder):
        module.use_nested_tensor = False


def _become(module: nn.Module, rules: Rules) -> None:
    narrow = _narrow_class(module)
    assert narrow is not None
    module.__class__ = narrow
    module.rules = rules  # type: ignore[assignment]


def _float32_results(module: nn.Module, given: Any, results: Any) -> Any:
    return widened(results)


def _hold_parameters(layers: Iterable[nn.Module], how: Cast) -> None:
    """Make parameters what the recipe keeps them as; a 16-bit float is a dtype, other formats are values.

    Those of norms stay float32: there are few, and torch's norms refuse 16-bit ones beside other inputs. Each
    is marked for the optimizer, which makes a master copy of what a parameter was before.
    """
    dtype = DTYPES.get(str(how.format))
    with torch.no_grad():
        for module in layers:
            rules = module.rules
            assert isinstance(rules, Rules)
            given, wide = list(module.parameters()), []
            for p in given:
                again = is_narrow(p)  # two layers share it
                wide.append(p.data if rules.recipe.has_master and p.requires_grad and not again else None)
                if not again:
                    p.data = p.data.to(dtype) if dtype else cast(p.data, how, -1)
            module.narrowed = Narrowed(given, wide)  # type: ignore[assignment]
