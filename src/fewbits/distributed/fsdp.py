"""Codecs beneath fully_shard: weights are gathered narrow, gradients reduced and scattered narrow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import distributed, nn
from torch.distributed.fsdp import FSDPModule

from fewbits.distributed.arguments import checked_codec, is_finite, peers_of
from fewbits.distributed.collectives.all_gather import checked_copy
from fewbits.distributed.collectives.all_reduce import reduced
from fewbits.distributed.collectives.reduce_scatter import scattered
from fewbits.distributed.gathering import all_gathered
from fewbits.distributed.memory import lent
from fewbits.distributed.peers import Peers
from fewbits.distributed.state import CodecState, checked_seed, derived
from fewbits.distributed.traffic import Traffic
from fewbits.errors import ArgumentError
from fewbits.recipes import Codec
from fewbits.typing import ProcessGroup, StateDict


class FSDPCodecs:
    """What the modules of a model that fully_shard was applied to send; made by :func:`fsdp_codecs`.

    Attributes:
        traffic: counts the bytes that this process sends.
        states: of the codecs, by the names of the modules and what they send.
    """

    def __init__(self) -> None:
        self.traffic = Traffic()
        self.states: dict[str, CodecState] = {}

    def state_dict(self) -> StateDict:
        """Return what the codecs remember on this process."""
        return {name: state.state_dict() for name, state in self.states.items()}

    def load_state_dict(self, states: StateDict) -> None:
        """Take over what :meth:`state_dict` returned.

        Args:
            states: of this process. Gradients are cut for the number of processes, so that feedback of
                another number has no place.

        Raises:
            ArgumentError: no state, or that of other modules or codecs; nothing is changed then.
        """
        given: object = states  # whatever a caller without types passes
        if not isinstance(given, dict) or given.keys() != self.states.keys():
            what = f"the state of {list(given)!r:.200}" if isinstance(given, dict) else f"{given!r:.80}"
            raise ArgumentError(f"{what}; expected that of this process, for {sorted(self.states)}")
        for name, state in self.states.items():  # all of them are read before one is changed
            CodecState(state.codec).load_state_dict(cast(StateDict, states[name]))
        for name, state in self.states.items():
            state.load_state_dict(cast(StateDict, states[name]))


def fsdp_codecs(
    model: nn.Module,
    *,
    gradient: str | Codec | None = None,
    weight: str | Codec | None = None,
    between: str | Codec | None = None,
    group: ProcessGroup = None,
    seed: int = 0,
) -> FSDPCodecs:
    """Let a model that fully_shard was applied to send narrow numbers; call it once, before training.

    Each module with fully_shard sends its weights, and its gradients, in one message. Sums of gradients are
    float32 in the order of ranks.

    Args:
        model: with fully_shard applied to it or to modules in it.
        gradient: a codec or its text, for the sum that each process gets its part of; None: as torch does it.
        weight: for weights when they are gathered, as :func:`all_gather` takes it; forward and backward pass
            see the rounded ones, and each process keeps its part as it is.
        between: a codec for the mean over ``group``, after the sum above: for several nodes of which each
            holds the whole model, sharded within.
        group: the processes of all nodes with the same part: a process group, or a mesh of one dimension.
        seed: of stochastic rounding.

    Returns:
        The traffic, and what goes into a checkpoint.

    Raises:
        ArgumentError: no module with fully_shard, no process group, a seed that is no integer, or a codec
            that does not fit its place. The model is as it was then.
        FormatError: no such format; the same.
    """
    modules = {name: m for name, m in model.named_modules() if isinstance(m, FSDPModule)}
    if not modules:
        raise ArgumentError(
            "a model without fully_shard; call torch.distributed.fsdp.fully_shard(model) first"
        )
    if (between is None) != (group is None):
        raise ArgumentError("between= and group= go together: what travels between nodes, and who they are")
    seed = checked_seed(seed)
    found = FSDPCodecs()

    def state_of(name: str, role: str, codec: str | Codec) -> CodecState:
        state = found.states[f"{name}:{role}"] = CodecState(codec, seed=derived(seed, name, role))
        return state

    # All that can be wrong is found before the first module is changed.
    for codec in (gradient, weight, between):
        if codec is not None:
            checked_codec(codec, CodecState(codec))
    if weight is not None:
        values = checked_copy(weight, CodecState(weight)).values
        if values is not None and values.rounding == "stochastic":
            raise ArgumentError(
                f"weight={weight}: forward and backward pass gather weights anew, and would see other"
                " draws; take another rounding"
            )
    peers = None if between is None else peers_of(group, found.traffic)
    for name, module in modules.items():
        if gradient is not None:
            module.set_force_sum_reduction_for_comms(True)  # torch divides, before or after
            state = state_of(name, "gradient", gradient)
            module.set_custom_reduce_scatter(_ReduceScatter(state, found.traffic))  # type: ignore[arg-type]  # a class of torch's that is not public
        if weight is not None:
            state = state_of(name, "weight", weight)
            module.set_custom_all_gather(_AllGather(state, found.traffic))  # type: ignore[arg-type]  # as above
        if between is not None and peers is not None:
            module.set_all_reduce_hook(_mean_over(peers, state_of(name, "between", between)))
    return found


class _Comm:
    """What torch asks of a collective of one's own."""

    def __init__(self, state: CodecState, traffic: Traffic) -> None:
        self.state, self.traffic = state, traffic

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        return torch.empty(*size, dtype=dtype, device=device)


class _ReduceScatter(_Comm):
    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: distributed.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        if op not in (distributed.ReduceOp.SUM, distributed.ReduceOp.AVG):
            raise ArgumentError(f"reduce-scatter with {op}; a codec knows sums and means")
        place = lent(output_tensor)
        mine = scattered(
            input_tensor.detach(),
            [output_tensor.numel()] * distributed.get_world_size(group),
            self.state.codec,
            Peers(group, self.traffic),
            f"gradients of {input_tensor.dtype} ({input_tensor.numel()},) as {self.state.codec}",
            mean=op == distributed.ReduceOp.AVG,
            state=self.state,
            out=place,
        )
        if place is None:
            output_tensor.copy_(mine)


class _AllGather(_Comm):
    def __call__(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        group: distributed.ProcessGroup,
        async_op: bool = False,
    ) -> None:
        if not input_tensor.is_floating_point():
            raise ArgumentError(
                "parameters of several dtypes in one module with fully_shard; apply it to modules whose"
                " parameters have one dtype, or leave weight= out"
            )
        codec, peers = self.state.codec, Peers(group, self.traffic)
        n = input_tensor.numel()
        what = f"weights of {input_tensor.dtype} ({n},) as {codec}"
        told = peers.agree(what, [int(is_finite(input_tensor, codec))])
        peers.traffic.count("all_gather", 0, wide=(peers.size - 1) * n * input_tensor.element_size())
        finite = [flag for flag, *_ in told]
        own = input_tensor.detach()
        place = lent(output_tensor)
        found = all_gathered(own, codec, peers, [n] * peers.size, 0, finite=finite, out=place)
        if place is None:
            output_tensor.copy_(found)


def _mean_over(peers: Peers, state: CodecState) -> Callable[[torch.Tensor], None]:
    def hook(x: torch.Tensor) -> None:
        what = f"gradients between nodes, {x.dtype} ({x.numel()},), as {state.codec}"
        place = lent(x)
        found = reduced(x.detach(), state.codec, peers, what, mean=True, state=state, out=place)
        if place is None:
            x.copy_(found)

    return hook
