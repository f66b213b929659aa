"""Gradients that are packed as soon as autograd has them, so that no whole set of wide ones ever exists."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from weakref import WeakMethod

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from fewbits.errors import ArgumentError
from fewbits.kernels.ops.sharding import is_sharded
from fewbits.optim.packed_gradient import PackedGradient
from fewbits.optim.packing import pack, torch_dtype, unpack
from fewbits.optim.sharded import local, processes
from fewbits.recipes import RoleFormat

# Of each parameter that is watched: who packs its gradients.
_HOOKS = WeakTensorKeyDictionary()


def release(p: torch.Tensor) -> None:
    """Leave the gradients of ``p`` as autograd has them: no older optimizer packs them any more."""
    hook = _HOOKS.pop(p, None)
    if hook is not None:
        hook.remove()
        set_grad_dtype(p, p.dtype)


def set_grad_dtype(p: torch.Tensor, dtype: torch.dtype) -> bool:
    """Let the gradient of ``p`` be of a dtype, now and from now on; return whether this torch can do that."""
    if not hasattr(p, "grad_dtype"):  # an older torch, whose gradients are what their parameters are
        return p.dtype == dtype
    if p.grad_dtype != dtype:
        gradient, p.grad = p.grad, None
        p.grad_dtype = dtype
        p.grad = None if gradient is None else gradient.to(dtype)
    return True


def check_dense(p: torch.Tensor) -> None:
    """Raise an ArgumentError if the gradient of ``p`` is sparse."""
    if p.grad is not None and p.grad.layout != torch.strided:
        raise ArgumentError(
            f"a sparse gradient for a parameter of shape {tuple(p.shape)}; expected a dense one: make the"
            " embedding with sparse=False"
        )


class GradientPacker:
    """Packs the gradients of some parameters in one format: ``p.grad`` is a :class:`PackedGradient`.

    A gradient beyond the largest value becomes infinity where the format has it, for a dynamic loss scale to
    see. One process packs a gradient as soon as autograd has it. Of several each waits until they are
    averaged, which is after the backward pass: it packs when the optimizer asks. The part that a process has
    of a sharded gradient is rounded to the format, and stays in its dtype.
    """

    def __init__(self, target: RoleFormat) -> None:
        self.target = target
        self._watched: WeakTensorKeyDictionary = WeakTensorKeyDictionary()

    def watch(self, p: torch.Tensor) -> None:
        """Pack the gradients of ``p`` from now on; what is in the format already stays as it is."""
        if not p.is_floating_point() or p.dtype == torch_dtype(self.target):
            return
        self._watched[p] = None
        if is_sharded(p):
            return
        frozen = not p.requires_grad
        p.requires_grad_(True)  # a hook asks for it, and stays when the layer is frozen, and when it thaws
        _HOOKS[p] = p.register_post_accumulate_grad_hook(_weak(self._pack_at_once))
        p.requires_grad_(not frozen)
        if processes() == 1:  # which averages gradients in the dtype of their parameter
            set_grad_dtype(p, torch.float32)  # FP16 has too little range for what a scale would bring back

    def pack_rest(self, parameters: Iterable[torch.Tensor]) -> None:
        """Pack what waited for other processes, which have averaged it by now."""
        for p in parameters if processes() > 1 else ():  # of one process the rest was written by the user
            if p in self._watched:
                self._pack(p)

    def _pack_at_once(self, p: torch.Tensor) -> None:
        if processes() == 1:  # DistributedDataParallel looks at p.grad after this hook
            self._pack(p)

    @torch.no_grad()
    def _pack(self, p: torch.Tensor) -> None:
        if p.grad is None or isinstance(p.grad, PackedGradient):
            return
        check_dense(p)
        if is_sharded(p.grad):
            self._round_part(p.grad)
            return
        if p.grad.requires_grad:
            raise ArgumentError(
                f"backward(create_graph=True) with gradients that are packed in {self.target}, which would"
                " end their graph; take torch.autograd.grad(..., create_graph=True), or held_gradient=fp32"
            )
        p.grad = PackedGradient(p.grad.float(), self.target, p.grad.dtype)

    def _round_part(self, gradient: torch.Tensor) -> None:
        finite = gradient.isfinite().all().full_tensor()  # type: ignore[attr-defined]  # of a sharded tensor
        if finite.device.type == "cpu" and not finite:  # of a device nobody waits for the answer
            return
        values = unpack(pack(gradient.float().nan_to_num(), self.target, overflow=None), gradient)
        mine = local(gradient)
        mine.copy_(torch.where(finite, local(values), mine))


def _weak(method: Callable[[torch.Tensor], None]) -> Callable[[torch.Tensor], None]:
    """Return a hook that does nothing once its optimizer is gone: parameters outlive optimizers."""
    reference = WeakMethod(method)

    def hook(p: torch.Tensor) -> None:
        alive = reference()
        if alive is not None:
            alive(p)

    return hook
