"""Turn the layers of a model into narrow ones, in place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeVar

import torch
from torch import nn

from fewbits.errors import ArgumentError
from fewbits.names import Selection, check_fits, listed, parents, with_shared, within
from fewbits.nn.autocast import Autocast
from fewbits.nn.dtype_hooks import Arrivals, Float32Results, explain_dtypes, take_own_dtype
from fewbits.nn.layer_classes import become_narrow, narrow_class, own_matrices
from fewbits.nn.layer_precision import DTYPES, LayerPrecision, Observer
from fewbits.nn.layer_recipes import assigned
from fewbits.nn.layers import LAYERS
from fewbits.nn.left_wide import left_wide
from fewbits.nn.unsupported import check_supported
from fewbits.recipes import Recipe, RoleFormat
from fewbits.recipes import recipe as read
from fewbits.recipes.parameter_marks import RoundedParameters, is_rounded, set_pending
from fewbits.recipes.rounding import hold, round_as
from fewbits.recipes.step_checks import PreparedParameters

Model = TypeVar("Model", bound=nn.Module)


def prepare(
    model: Model,
    recipe: str | Recipe,
    *,
    include: str | Iterable[str] = "*",
    exclude: str | Iterable[str] = (),
    last: str | Iterable[str] = (),
    recipes: Mapping[str, str | Recipe] | None = None,
    pack_activations: bool = True,
    observer: Observer | None = None,
) -> Model:
    """Make a model train as a recipe says. Call it before the optimizer is made.

    Layers are changed in place: modules, parameters and the keys of ``state_dict`` keep their names. Whatever
    flows between them takes the recipe's vector format; what the model returns is float32 again. Layers left
    out compute in the dtype of their parameters or buffers, and excluded modules without either in float32.
    Torch's transformer layers lose their fused inference, which would read the weights as they are. A recipe
    whose formats change while it trains (posit8, muppet, assigned) also needs :func:`fewbits.train.schedule`
    in the loop. :func:`fewbits.nn.summary` says what has become of each layer.

    Args:
        model: any module. Its linear, convolution (transposed too), embedding, bilinear, attention, recurrent
            and PReLU layers are changed, subclasses of them that compute no other way, Hugging Face's Conv1D,
            and its experts and their routers.
        recipe: a recipe or its text, as in ``mxfp6`` or ``mx:weight=mxfp4,gradient=mxfp6_e3m2/rceil``.
        include: patterns of module names, as in ``"blocks.*"``: only layers of such a name, or within a
            module of such a name, are changed.
        exclude: patterns of module names to leave out, as in ``("lm_head", "blocks.0.*")``; what lies within
            a module of such a name is left out too. A matrix that a module of your own holds is left as it is
            by its own name: ``encoder.positions``.
        last: patterns of the layers that give the logits, which some recipes treat with more care. Default:
            the last layer in the order in which the model registered them.
        recipes: how some layers compute, by patterns of their names: ``{"lm_head": "mxfp8"}``; of several
            that fit the last counts. What is stored between steps stays that of ``recipe``, which is also the
            optimizer's.
        pack_activations: whether what a layer keeps of its input for the backward pass is packed in the
            recipe's format, which changes no bit of any result. It takes some time.
        observer: sees every operand that is rounded.

    Returns:
        The model itself.

    Raises:
        ArgumentError: no module, no such recipe, a pattern that fits no module, a model prepared before, a
            recipe that does not hold for single layers, an observer that cannot observe, or layers that
            cannot be changed: all of them are named with what to exclude.
    """
    chosen, logits = read(recipe), listed("last", last)
    names, every = _named(model), _named(model, remove_duplicate=False)
    included, excluded = listed("include", include), listed("exclude", exclude)
    selection = Selection(with_shared(included, every.items()), with_shared(excluded, every.items()))
    _check(model, chosen, selection, names, observer)
    computing = {n: m for n, m in names.items() if _around(n, names) is None}
    held = {f"{n}.{p}".lstrip("."): n for n, m in computing.items() for p in _loose_matrices(m)}
    check_fits("include", included, [*every, *held])
    check_fits("exclude", excluded, [*every, *held])
    check_fits("last", logits, list(every))
    logits = with_shared(logits, every.items())
    layers = {n: m for n, m in computing.items() if narrow_class(m) is not None}
    own = assigned(chosen, recipes or {}, every, [n for n in layers if n in selection])
    sixteen = any(r.vector != "fp32" for r in own.values()) or chosen.vector != "fp32"
    # Left-out layers count: the one before an excluded head does not give the logits.
    order = [n for n, m in layers.items() if not isinstance(m, nn.PReLU)]
    ends = _ends(order, logits, last)
    selected = {n: m for n, m in computing.items() if n in selection}
    narrow: dict[str, nn.Module] = {}
    if any(r.replaces_layers for r in own.values()) or chosen.replaces_layers:
        _check_parts(names, selection)
        recipe_of = {n: own.get(n, chosen) for n in selected}
        changed = {n: (m, recipe_of[n]) for n, m in selected.items() if recipe_of[n].replaces_layers}
        check_supported(changed, held, selection, list(names))
        narrow = {n: m for n, m in selected.items() if n in own and (sixteen or own[n].replaces_layers)}
        if not narrow:
            raise ArgumentError(
                f"{type(model).__name__} has no layer that {chosen.name} could change; expected one of"
                f" {', '.join(sorted(c.__name__ for c in LAYERS))} that is included and not excluded"
            )
    model.fewbits_wide = left_wide(computing, narrow, selection, held)  # type: ignore[assignment]  # torch types attributes as tensors or modules
    if narrow:
        for name, module in narrow.items():
            layer_recipe, first, gives_logits = own[name], [name] == order[:1], name in ends
            exempt = (first and layer_recipe.keep_first) or (gives_logits and layer_recipe.keep_last)
            become_narrow(module)
            module.precision = LayerPrecision(  # type: ignore[assignment]  # as above
                layer_recipe, name, exempt, gives_logits, observer, pack_activations
            )
        for name in parents(narrow):
            _unfuse(names[name])
        if sixteen or any(p.dtype in (torch.bfloat16, torch.float16) for p in model.parameters()):
            _keep_dtypes(names, selection, narrow, DTYPES[chosen.vector])
        if sixteen:
            explain_dtypes(model)
        model.register_forward_hook(Float32Results(LayerPrecision(chosen, observer=observer)))
        if chosen.parameter is not None:
            _hold_parameters(narrow.values(), chosen.parameter)
    if chosen.autocast:
        Autocast(DTYPES[chosen.autocast]).attach(model)
        model.register_forward_hook(Float32Results(LayerPrecision(chosen, observer=observer)))
    if observer is not None:
        for name in ends:
            names[name].register_forward_hook(Arrivals(LayerPrecision(chosen, name, observer=observer)))
    model.fewbits_recipe = chosen  # type: ignore[assignment]  # as above
    for module in model.modules():
        module.fewbits_prepared = PreparedParameters(module, chosen)  # type: ignore[assignment]  # as above
        module.register_load_state_dict_pre_hook(_before_loading)
        module.register_load_state_dict_post_hook(_hold_loaded)
    return model


def _named(model: object, *, remove_duplicate: bool = True) -> dict[str, nn.Module]:
    """Return the modules of a model, or of whatever a caller without types passes, by name."""
    if not isinstance(model, nn.Module):
        raise ArgumentError(f"model={f'{model!r}':.200}; expected a torch.nn.Module")
    return dict(model.named_modules(remove_duplicate=remove_duplicate))


def _before_loading(*_: object) -> None:
    """See to it that parameters without a mark are new ones."""
    set_pending()


@torch.no_grad()
def _hold_loaded(module: nn.Module, *_: object) -> None:
    """Hold parameters as the recipe says that ``load_state_dict`` filled, or put in the place of others."""
    prepared, narrowed = module.fewbits_prepared, getattr(module, "narrowed", None)
    assert isinstance(prepared, PreparedParameters)
    target = prepared.recipe.parameter
    if isinstance(narrowed, RoundedParameters) and target is not None:
        narrowed.unrounded |= _held(module, narrowed.new(module), target)
        narrowed.mark()
        for p in module.parameters():
            hold(p, target)
    prepared.mark()


def _check(
    model: nn.Module,
    chosen: Recipe,
    selection: Selection,
    names: dict[str, nn.Module],
    observer: object,  # whatever a caller without types passes
) -> None:
    if observer is not None and (isinstance(observer, type) or not hasattr(observer, "observe")):
        raise ArgumentError(f"observer={observer!r}; expected a RoundingObserver, or what has its observe()")
    if chosen.autocast and not selection.is_all:
        raise ArgumentError(
            f"{chosen.name} is torch.autocast around the whole model; leave include and exclude out, or"
            " disable autocast in the layer itself"
        )
    for name, module in names.items():
        if hasattr(module, "fewbits_recipe") or isinstance(
            getattr(module, "precision", None), LayerPrecision
        ):
            raise ArgumentError(
                f"{name or 'the model'} is prepared already; make the model anew, or load its state_dict into"
                " a new one"
            )
    for key, p in model.named_parameters():
        if p.dtype == torch.float64 and chosen.replaces_layers:
            raise ArgumentError(f"{key} is float64; recipes start from float32: call model.float() first")


def _ends(order: list[str], logits: tuple[str, ...], last: object) -> list[str]:
    """Return the names of the layers that give the logits, of all that multiply in their order."""
    ends = [n for n in order if within(n, logits)] if logits else order[-1:]
    if logits and not ends:
        raise ArgumentError(
            f"last={last!r} fits no layer that gives logits; expected names of layers that multiply, of which"
            f" the last are {', '.join(order[-3:]) or 'none'}"
        )
    return ends


def _around(name: str, names: dict[str, nn.Module]) -> str | None:
    """Return the name of the layer around this one, which computes for it, if there is one."""
    parts = name.split(".")
    outside = (".".join(parts[:i]) for i in range(len(parts) if name else 0))
    return next((n for n in outside if narrow_class(names[n]) is not None), None)


def _loose_matrices(module: nn.Module) -> list[str]:
    return [] if narrow_class(module) is not None else own_matrices(module)


def _check_parts(names: dict[str, nn.Module], selection: Selection) -> None:
    """Refuse patterns that leave out a part of a layer."""
    for name in names:
        outer = _around(name, names)
        if outer is not None and name not in selection and outer in selection:
            raise ArgumentError(
                f"exclude names {name}, which is a part of {outer or 'the model'}: leave out that layer or"
                " none of it"
            )


def _keep_dtypes(
    names: dict[str, nn.Module], selection: Selection, narrow: Mapping[str, nn.Module], flowing: torch.dtype
) -> None:
    """Let modules that are left out compute in their own dtype: the outermost ones without narrow layers."""
    wide = {n for n in names if n not in selection} - parents(narrow)
    for name, module in names.items():
        if name in selection and isinstance(module, nn.RMSNorm):  # warns of any other dtype, once
            take_own_dtype(module, flowing, result=True)
        elif name in selection and isinstance(module, (nn.LayerNorm, nn.GroupNorm)):
            take_own_dtype(module, flowing, result=True, mixes_on_cpu=True)
        elif name in wide and name.rpartition(".")[0] not in wide:
            take_own_dtype(module, flowing, bare_in_float32=within(name, selection.exclude))


def _unfuse(module: nn.Module) -> None:
    """Switch off torch's fused inference path, which reads the weights itself."""
    if isinstance(module, nn.TransformerEncoderLayer):
        module.activation_relu_or_gelu = 0  # read by nothing but the question whether to fuse
    elif isinstance(module, nn.TransformerEncoder):
        module.use_nested_tensor = False


def _hold_parameters(layers: Iterable[nn.Module], target: RoleFormat) -> None:
    """Make parameters what the recipe keeps them as; a 16-bit float is a dtype, other formats are values.

    Those of norms stay float32: there are few, and torch's norms refuse 16-bit ones beside other inputs. Each
    is marked for the optimizer, which makes a master copy of what a parameter was before.
    """
    for module in layers:
        # Two layers may share a parameter.
        own = [(name, p) for name, p in module.named_parameters() if not is_rounded(p)]
        module.narrowed = RoundedParameters(module, _held(module, own, target))  # type: ignore[assignment]  # as above


@torch.no_grad()
def _held(
    module: nn.Module, parameters: Iterable[tuple[str, torch.Tensor]], target: RoleFormat
) -> dict[str, torch.Tensor]:
    """Make parameters of a layer what they are kept as; return what they were, for master copies."""
    dtype, precision, wide = DTYPES.get(str(target.format)), module.precision, {}
    assert isinstance(precision, LayerPrecision)
    for name, p in parameters:
        if precision.recipe.has_master and p.requires_grad:
            wide[name] = p.data
        p.data = p.data.to(dtype) if dtype else round_as(p.data, target)
    return wide
