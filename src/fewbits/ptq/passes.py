"""Forward passes of several batches that go through a model side by side, and wait before its layers."""

from __future__ import annotations

import contextvars
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from fewbits.errors import DataError
from fewbits.ptq.data_flow import Batch, Enough, Seen, Stage, call, inputs_seen, run_to
from fewbits.ptq.loaded_weights import LoadedWeights


class Passes:
    """One forward pass for each batch, in the order of the stages: each layer is computed once for a batch.

    A pass waits in the call of the first layer of a stage until the weights of that stage are chosen. What
    waits with it are the tensors that the model itself holds there. Each pass has a thread, and one runs at
    a time. Where a layer is called several times in a pass, or torch has modes that threads do not share, the
    passes begin anew for that stage: with the same result, in the time of all layers before.

    A batch that calls layers in another order than the first one, as where control flow depends on data, is
    past a stage when it is asked for: it begins anew for that stage, alone. Of layers that take one tensor in
    the first batch the input is known before they are called; a batch that gives one of them another is
    refused, and so is one that calls a layer more often than the first.
    """

    def __init__(
        self,
        model: nn.Module,
        flow: Sequence[Stage],
        modules: Mapping[str, nn.Module],
        batches: Sequence[Batch],
        weights: LoadedWeights | None = None,
    ) -> None:
        """Set what is run; nothing is, until :meth:`reach`. ``weights`` reads what is not in memory."""
        self._weights = weights
        self._model, self._modules, self._batches = model, modules, batches
        self._stage_of = {modules[name]: i for i, stage in enumerate(flow) for name in stage.layers}
        self._number = {id(stage): i for i, stage in enumerate(flow)}
        self._names = {module: name for name, module in modules.items() if module in self._stage_of}
        self._most = {modules[name]: count for stage in flow for name, count in stage.calls.items()}
        self._together = {  # of a layer, those that take the same tensor
            modules[name]: [modules[other] for other in stage.layers]
            for stage in flow
            for name in stage.layers
        }
        self._passes: list[_Pass] = []
        self._hooks = ExitStack()
        self._own = threading.local()  # the pass of a thread
        self._next = 0  # the stage that passes run to
        self._has_run = False
        self.changed: dict[nn.Module, Callable[[Tensor], Tensor]] = {}
        """What rotates and rounds the inputs of layers that are chosen, for the calls that are under way."""

    def reach(self, stage: Stage, seen: Seen) -> Iterator[int]:
        """Run all batches as far as a stage, and show the input of its layers; yield how many are done."""
        self._next, self._has_run = self._number[id(stage)], True
        modules = {name: self._modules[name] for name in stage.layers}
        if any(count > 1 for count in stage.calls.values()) or _has_modes():
            self.close()
            with self._keeping_one(True):
                yield from run_to(self._model, stage, modules, self._batches, seen)
            return
        if not self._passes:
            self._start()
        for done, (one, batch) in enumerate(zip(self._passes, self._batches, strict=True), 1):
            here = -1 if one.at is None else self._stage_of[one.at[0]]
            with self._keeping_one(here < self._next - 1):
                while not one.done and (one.at is None or self._stage_of[one.at[0]] < self._next):
                    one.resume()
            if one.at is not None and self._stage_of[one.at[0]] == self._next:
                for module in modules.values():
                    seen(module, one.at[1])
            elif one.at is not None:
                with self._keeping_one(True):
                    for _ in run_to(self._model, stage, modules, [batch], seen):
                        pass
            yield done

    def finish(self) -> None:
        """Run all batches to their end, where nothing of them was missed.

        Raises:
            DataError: a batch calls a layer more often than the first does.
        """
        self._next = len(self._number)
        with self._keeping_one(True):
            for one in self._passes:
                while not one.done:
                    one.resume()
            if self._has_run and not self._passes:
                self._count_calls()

    def close(self) -> None:
        """End all passes where they are."""
        for one in self._passes:
            one.close()
        self._passes = []
        self._hooks.close()

    @contextmanager
    def _keeping_one(self, many: bool) -> Iterator[None]:
        """Where a pass goes through many stages, hold the weights of one layer at a time.

        Through one stage each batch needs the same weights, which are kept for the next.
        """
        if self._weights is not None:
            self._weights.at_once = many
        try:
            yield
        finally:
            if self._weights is not None:
                self._weights.at_once = False

    def _count_calls(self) -> None:
        """Run all batches, in the thread of the caller."""
        for batch in self._batches:
            calls: Counter[nn.Module] = Counter()
            with inputs_seen(self._names, partial(self._count, calls)), torch.no_grad():
                call(self._model, batch)

    def _count(self, calls: Counter[nn.Module], module: nn.Module, _: Tensor) -> None:
        """Count a call of a layer, and raise if the first batch has fewer: what it takes would be missed."""
        calls[module] += 1
        if calls[module] > self._most[module]:
            raise DataError(
                f"{self._names[module]} is called more often by a later batch than by the first (there"
                f" {self._most[module]}x); put the batch that calls it most often first, or exclude it"
            )

    def _start(self) -> None:
        self._hooks.enter_context(inputs_seen(self._names, self._wait))
        self._passes = [_Pass(partial(self._run, batch)) for batch in self._batches]

    def _run(self, batch: Batch, own: _Pass) -> None:
        self._own.value = own
        call(self._model, batch)
        self._check_called(own)

    def _check_called(self, own: _Pass) -> None:
        """Raise if a pass was shown for a layer that it did not call with that input."""
        if own.shown:
            name = self._names[next(iter(own.shown))]
            raise DataError(
                f"{name} takes the same tensor as other layers in the first batch, and not in a later one;"
                " exclude it, or calibrate on batches that the model treats alike"
            )

    def _wait(self, module: nn.Module, x: Tensor) -> Tensor | None:
        """Wait where the stage of a layer is to be chosen; return its input, changed, if it is by now."""
        own = getattr(self._own, "value", None)
        if not isinstance(own, _Pass):  # a pass that begins anew, in the thread of the caller
            return None
        self._count(own.calls, module, x)
        expected = own.shown.get(module)
        if expected is not None and (x is expected or torch.equal(x, expected)):
            del own.shown[module]
        if self._stage_of[module] < self._next:
            return None
        self._check_called(own)
        own.wait(module, x)
        own.shown = {other: x for other in self._together[module] if other is not module}
        if self._weights is not None:
            self._weights.load(module)
        changed = self.changed.get(module)
        return None if changed is None else changed(x)


class _Pass:
    """A function in a thread of its own, which runs only while somebody waits for it."""

    def __init__(self, run: Callable[[_Pass], None]) -> None:
        self.at: tuple[nn.Module, Tensor] | None = None  # the call in which it waits
        self.done = False
        self.shown: dict[nn.Module, Tensor] = {}  # layers that still have to be called, and with what
        self.calls: Counter[nn.Module] = Counter()
        self._closed = False
        self._failed: BaseException | None = None
        self._go, self._came = threading.Semaphore(0), threading.Semaphore(0)
        context, same = contextvars.copy_context(), _as_here()
        self._threads = torch.get_num_threads()
        self._thread = threading.Thread(target=context.run, args=(self._all, run, same), daemon=True)
        self._thread.start()

    def resume(self) -> None:
        """Let it run until it waits or is done; raise what it raises."""
        self.at = None
        self._go.release()
        self._came.acquire()
        if self._failed is not None:
            raise self._failed

    def close(self) -> None:
        """End it, and wait until it has ended."""
        self._closed, self.at = True, None
        self._go.release()
        self._thread.join()

    def wait(self, module: nn.Module, x: Tensor) -> None:
        """In its thread: stop in the call of a module, until it is resumed."""
        if not self._closed:
            self.at = module, x
            self._came.release()
            self._go.acquire()
        if self._closed:
            raise Enough

    def _all(self, run: Callable[[_Pass], None], same: Sequence[AbstractContextManager[object]]) -> None:
        self._go.acquire()
        try:
            torch.set_num_threads(self._threads)  # or MKL takes others, and other bits
            with ExitStack() as stack, torch.no_grad():
                for state in same:
                    stack.enter_context(state)
                if not self._closed:
                    run(self)
        except Enough:
            pass
        except BaseException as error:
            self._failed = error
        finally:
            self.done = True
            self._came.release()


def _as_here() -> list[AbstractContextManager[object]]:
    """Return what gives another thread the state that torch keeps for each."""
    states: list[AbstractContextManager[object]] = [
        torch.autocast(kind, torch.get_autocast_dtype(kind))
        for kind in ("cpu", "cuda")
        if torch.is_autocast_enabled(kind)
    ]
    if torch.is_inference_mode_enabled():
        states.append(torch.inference_mode())
    if torch.cuda.is_initialized():
        states.append(torch.cuda.device(torch.cuda.current_device()))
    return states


def _has_modes() -> bool:
    """Return whether torch's functions are looked at in this thread, as under torch.set_default_device."""
    return bool(_get_current_function_mode_stack() or _get_current_dispatch_mode_stack())
