"""The precision of training, from what ran."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import distributed, nn
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from fewbits.errors import ArgumentError
from fewbits.formats import parse
from fewbits.formats.narrowest import element_bits, narrowest
from fewbits.records import RanPrecision
from fewbits.tensor.narrow.torch_dtypes import dtype_name
from fewbits.train.operand_formats import Operand, OperandFormats, tensors_in

# Places of the factors among the arguments of torch's products.
_FACTORS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(("mm", "bmm", "mv", "dot", "vdot", "_int_mm", "_scaled_mm", "_grouped_mm"), (0, 1)),
    **dict.fromkeys(("linear", "matmul", "mkldnn_linear", "_sparse_mm", "_scaled_grouped_mm"), (0, 1)),
    **dict.fromkeys(("addmm", "baddbmm", "addbmm", "addmv", "_addmm_activation", "addr"), (1, 2)),
    **dict.fromkeys(("convolution", "_convolution", "convolution_overrideable"), (0, 1)),
    **dict.fromkeys(("mkldnn_convolution", "mkldnn_rnn_layer", "mkldnn_rnn_layer_backward"), (0, 1, 2)),
    **dict.fromkeys(("_cudnn_rnn", "_cudnn_rnn_backward", "miopen_rnn", "miopen_rnn_backward"), (0, 1)),
    "_trilinear": (0, 1, 2),
    "_native_multi_head_attention": (0, 1, 2, 5, 7),
    "_transformer_encoder_layer_fwd": (0, 3, 5, 14, 16),
}
_FUSED = ("_native_multi_head_attention", "_transformer_encoder_layer_fwd")  # attention too, in inference
_CONVOLUTION_MASK = 10  # of convolution_backward: whether it gives the gradients of input, weight and bias
_ATTENTION = ("_scaled_dot_product_", "_flash_attention", "_efficient_attention", "_cudnn_attention")
_LAYERS = (nn.Linear, nn.Bilinear, nn.RNNBase, nn.RNNCellBase, nn.modules.conv._ConvNd)
_COLLECTIVES = ("c10d", "_c10d_functional")
_REMEMBERED = 1 << 17  # products of forward passes whose backward pass may come

# Names of products: not of interpolation (upsample_linear1d), conversions, or functions like hamming.
_PRODUCT = re.compile(r"mm(?=_|$)|linear(?!\dd)|conv(?!ert)")
_ACCUMULATE = "torch::autograd::AccumulateGrad"  # whose hooks may run an optimizer within a backward pass


def _is_unknown(name: str) -> bool:
    known = name in _FACTORS or name == "convolution_backward"
    return not known and _PRODUCT.search(name) is not None


Place = tuple[str, str]
"""Class of a product, ``linear`` or ``attention``, and the name of the module whose ``forward`` it is of."""


class PrecisionObserver:
    """Finds the narrowest formats that operands had in training, from the operations that ran.

    Use it around any number of whole steps, forward and backward; outside of that it costs nothing::

        observer = PrecisionObserver(model)
        with observer:
            trainer.step()
        print(observer.found())

    It sees each product that PyTorch dispatches, and what each factor is: the format that an operation of
    fewbits rounded it to, if nothing has changed it since, or the one that the product itself rounds it to;
    else its dtype. What was cast from a narrower dtype counts as that where all factors of the product are.
    No recipe and no setting is asked. Products with a parameter or buffer of the model, with what was
    computed of these alone, and convolutions are `linear`; products of activations are `attention`. Products
    outside of the model without gradients, as an optimizer's, do not count. What is not dispatched as a
    product is not seen: sums of elementwise products, other libraries' operators, lookups in tables. Nor is
    what units make of float32 operands inside of a product where torch.backends allows them TF32.

    A layer is wide if any of its weights, or of its other operands, in a forward or backward product has
    elements of more bits than the narrowest weight, or other operand, of all layers had: one narrow product
    hides no wide one, and a recipe that leaves gradients wide names all its layers. Of attention that is so
    where all of them are wider. Of equally wide formats that with fewer bits of mantissa is named.

    A product that PyTorch dispatches and that is not known here, by its name, is refused by :meth:`found`.

    Args:
        model: whose training is observed.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._names = {module: name for name, module in model.named_modules()}
        self._formats = OperandFormats()
        self._modules: list[nn.Module] = []  # whose ``forward`` runs, from the outermost in
        # Of products of forward passes, in order: the newest autograd node at that time, and where they ran.
        self._nodes: list[int] = []
        self._places: list[Place] = []
        self._seen: dict[Place, dict[bool, set[str]]] = {}  # all formats of weights (True) and other operands
        self._unknown: set[str] = set()  # names of products whose factors are not known
        self._sent: set[str] = set()
        self._bytes = False  # whether a collective sent bytes, which may be codes
        self._elsewhere = False
        self._forward = self._backward = False  # whether there was a pass that needs, or gives, gradients
        self._hooks: list[torch.utils.hooks.RemovableHandle] = []
        self._mode: _Mode | None = None

    def __enter__(self) -> PrecisionObserver:
        """Begin to look.

        Raises:
            ArgumentError: it looks already, or the model is compiled.
        """
        if self._mode is not None:
            raise ArgumentError("this PrecisionObserver looks already; enter it once")
        for module in self._names:
            if isinstance(module, torch._dynamo.OptimizedModule) or module._compiled_call_impl is not None:
                raise ArgumentError(
                    f"{self._name(module)} was compiled, and a compiled model dispatches no products to look"
                    " at; observe some steps of the model before torch.compile"
                )
        for module in self._names:
            self._hooks.append(module.register_forward_pre_hook(self._begin, prepend=True))
            self._hooks.append(module.register_forward_hook(self._end, always_call=True))
        self._modules.clear()
        self._mode = _Mode(self)
        self._mode.__enter__()  # type: ignore[no-untyped-call]  # torch gives it no types
        return self

    def __exit__(self, *_: object) -> None:
        """Stop looking; what was seen stays."""
        assert self._mode is not None
        self._mode.__exit__(None, None, None)  # type: ignore[no-untyped-call]  # as above
        self._mode = None
        while self._hooks:
            self._hooks.pop().remove()

    def found(self, communication: str | None = None) -> RanPrecision:
        """Return what was seen so far.

        Args:
            communication: the format in which gradients or updates travelled, as
                ``fewbits.distributed.Traffic.narrowest`` counts it. None: the narrowest dtype of the
                collectives that PyTorch dispatched, which sees those of its own DistributedDataParallel.

        Raises:
            ArgumentError: no product with weights ran, or one that is not known here; only one of forward and
                backward pass was seen; or several processes run and nothing says what travelled.
            FormatError: communication is no format.
        """
        linear, attention = (
            narrowest(
                f for (kind, _), by in self._seen.items() if kind == one for s in by.values() for f in s
            )
            for one in ("linear", "attention")
        )
        if self._unknown:
            raise ArgumentError(
                f"{', '.join(sorted(self._unknown))} ran, whose operands this observer does not know; observe"
                " a model without it"
            )
        if linear is None:
            raise ArgumentError(
                "no product with a weight of the model was seen; run steps of training inside of `with"
                " observer:`"
            )
        if self._elsewhere or self._forward != self._backward:
            missing = "backward" if self._forward else "forward"
            what = "a module ran in another thread" if self._elsewhere else f"no {missing} pass was seen"
            raise ArgumentError(
                f"{what}; run forward and backward pass of whole steps inside of `with observer:`, in the"
                " thread that enters it"
            )
        return RanPrecision(linear, attention, self._communication(communication), self._wide())

    def _communication(self, given: str | None) -> str | None:
        if given is not None:
            return str(parse(given))
        several = distributed.is_available() and distributed.is_initialized()
        if several and distributed.get_world_size() > 1 and (self._bytes or not self._sent):
            raise ArgumentError(
                f"{distributed.get_world_size()} processes, and what travels between them are bytes, or was"
                " not seen; say it: communication=traffic.narrowest of the Traffic of the codec"
            )
        return narrowest(self._sent)

    def _wide(self) -> tuple[str, ...]:
        best: dict[tuple[str, bool], float] = {}
        for (kind, _), by in self._seen.items():
            for weight, formats in by.items():
                bits = min(map(element_bits, formats))
                best[kind, weight] = min(bits, best.get((kind, weight), bits))
        wide = {
            layer: None
            for (kind, layer), by in self._seen.items()
            for weight, formats in by.items()
            if (max if kind == "linear" else min)(map(element_bits, formats)) > best[kind, weight]
        }
        return tuple(wide)

    def _begin(self, module: nn.Module, *_: object) -> None:
        """Note that a module's ``forward`` begins, and what its weights are."""
        if self._mode not in _get_current_dispatch_mode_stack():
            self._elsewhere = True
            return
        outermost = not self._modules
        if not self._forward and torch.is_grad_enabled():
            self._forward = any(p.requires_grad for p in module.parameters())
        self._formats.weights(module.parameters(recurse=outermost))
        self._formats.weights(module.buffers(recurse=outermost))
        self._modules.append(module)

    def _end(self, module: nn.Module, *_: object) -> None:
        if module in self._modules:  # what was interrupted within it called no hooks
            del self._modules[len(self._modules) - 1 - self._modules[::-1].index(module) :]

    def _name(self, module: nn.Module) -> str:
        return self._names[module] or type(self.model).__name__

    def _look(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Take note of the operands of a product, or of what a collective sends."""
        if func.namespace in _COLLECTIVES:
            sent = tensors_in((args, kwargs)) if "barrier" not in func.__name__ else ()
            for x in sent:
                self._bytes |= x.dtype in (torch.uint8, torch.int8)
                self._sent.update([dtype_name(x.dtype)] if x.is_floating_point() else [])
            return
        name = func.__name__.partition(".")[0].rstrip("_")
        if func.namespace == "aten" and _is_unknown(name) and self._counts():
            self._unknown.add(f"{func.namespace}.{name}")
        for operands in self._products(func.namespace, name, args):
            self._count(name, operands)

    def _products(self, namespace: str, name: str, args: tuple[Any, ...]) -> Iterator[list[Operand]]:
        """Yield the operands of each product of an operation."""
        of = self._formats.operand
        if namespace == "fewbits":
            if name == "rounded_product":
                # Without options the product rounds nothing: its formats are what the caller believes.
                yield [of(x, args[2 + i] if args[4 + i] else "") for i, x in enumerate(args[:2])]
            elif name in ("gemv", "gemv_int8"):
                x, codes, format = args[0], args[1], args[5]
                weight = of(codes)._replace(format=str(parse(format)), rounded=True)
                yield [of(x, _INT8_32 if name == "gemv_int8" else ""), weight]
            elif name in ("bfloat16_product", "addition_product"):
                yield [of(args[0]), of(args[1])]
        elif name == "convolution_backward":
            gradient, x, weight = map(of, args[:3])
            yield from (
                [gradient, o] for o, w in zip((weight, x), args[_CONVOLUTION_MASK], strict=False) if w
            )
        elif name.startswith(_ATTENTION):
            yield [of(x) for x in tensors_in(args[: 4 if "backward" in name else 3])]
        elif name in _FACTORS:
            factors = [args[i] for i in _FACTORS[name] if i < len(args)]
            yield [of(x) for x in tensors_in(factors) if x.numel()]
            if name in _FUSED:
                yield [of(args[0])]

    def _count(self, name: str, operands: list[Operand]) -> None:
        node: Any = torch._C._current_autograd_node()  # None outside of a backward pass
        backward = node is not None and not self._modules
        if not self._counts():
            return
        if backward:
            self._backward = True
            place = self._place_of(node._sequence_nr())
        else:
            layer = self._name(self._modules[-1]) if self._modules else _OUTSIDE
            place = self._kind(name, operands), layer
        self._remember(place)
        narrow = all(o.rounded or o.cast for o in operands)
        by = self._seen.setdefault(place, {})
        for o in operands:
            format = o.format if narrow or o.cast is None else o.cast
            by.setdefault(o.weight, set()).add(format)

    def _counts(self) -> bool:
        """Whether what runs is of the model: no optimizer's, also where it runs within the backward pass."""
        if self._modules:
            return True
        node: Any = torch._C._current_autograd_node()
        return torch.is_grad_enabled() if node is None else node.name() != _ACCUMULATE

    def _remember(self, place: Place) -> None:
        """Note where a product ran, for that of its backward pass."""
        # With a gradient: the product's node, or a later one.
        newest = torch.autograd._get_sequence_nr() - 1  # type: ignore[attr-defined]  # imported there, not exported
        index = bisect_left(self._nodes, newest)
        if index == len(self._nodes) or self._nodes[index] != newest:
            self._nodes.insert(index, newest)
            self._places.insert(index, place)
        if len(self._nodes) > _REMEMBERED:
            del self._nodes[: _REMEMBERED // 2], self._places[: _REMEMBERED // 2]

    def _place_of(self, node: int) -> Place:
        """Return where the forward product of a node ran: the first after the node was made."""
        index = bisect_left(self._nodes, node)
        return self._places[index] if index < len(self._places) else ("linear", _OUTSIDE)

    def _kind(self, name: str, operands: list[Operand]) -> str:
        if name.startswith(_ATTENTION):
            return "attention"
        if "conv" in name or any(o.weight for o in operands):
            return "linear"
        return "linear" if self._modules and isinstance(self._modules[-1], _LAYERS) else "attention"


_OUTSIDE = "outside of the model"
# To which gemv_int8 rounds its vectors.
_INT8_32 = "block(element=int(8,coding=symmetric),scale=fp32,size=32)"


class _Mode(TorchDispatchMode):
    """Shows operations to an observer as they run."""

    def __init__(self, observer: PrecisionObserver) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch gives it no types
        self.observer = observer

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        named = dict(kwargs or {})
        self.observer._look(func, args, named)
        result = func(*args, **named)
        self.observer._formats.follow(func, args, named, result)
        return result
