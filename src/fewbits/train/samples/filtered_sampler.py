"""Epochs of the samples that still teach the model something, and scores that say which these are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from numbers import Real
from typing import TypedDict

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Sampler

from fewbits.errors import ArgumentError, DataError
from fewbits.recipes.rounding import joint_seed
from fewbits.tensor.evaluation import evaluated
from fewbits.tensor.inputs import is_count


class SamplerState(TypedDict):
    """What a resumed run needs of a sampler."""

    epoch: int
    kept: Tensor


class FilteredSampler(Sampler[int]):
    """Draws only the samples with the largest scores, which are computed anew as the model learns.

    Give it to a DataLoader as its ``sampler``. Fewer samples that matter less leave room for larger batches:
    the idea of Gahlot et al., Data Optimization for Large Batch Distributed Training of Deep Neural Networks,
    2020, whose scorer is not published; :func:`el2n_scores` and :func:`loss_scores` are scorers of others.
    Large scores are of hard samples, of wrong labels too: where labels are noisy, negate the scores.

    Args:
        length: samples of the data set.
        scores: is called where scores are due, and returns (length,) numbers, the largest to be kept.
        keep: share of the samples that an epoch has, above 0 and up to 1.
        warm_up: epochs of all samples before the first scores.
        refresh_every: epochs from one call of ``scores`` to the next.
        seed: of the order of samples; the same on all processes.
        num_replicas: processes that share out each epoch. An epoch has as many samples for each; what is
            left over is left out, another part each time.
        rank: of this process.

    Raises:
        ArgumentError: a number out of its range.
    """

    def __init__(
        self,
        length: int,
        scores: Callable[[], Tensor],
        *,
        keep: float = 0.75,
        warm_up: int = 1,
        refresh_every: int = 1,
        seed: int = 0,
        num_replicas: int = 1,
        rank: int = 0,
    ) -> None:
        counts = {"length": length, "refresh_every": refresh_every, "num_replicas": num_replicas}
        for what, count in counts.items():
            if not is_count(count):
                raise ArgumentError(f"{what}={count!r}; expected 1 or more, a whole number")
        for what, number in {"warm_up": warm_up, "seed": seed, "rank": rank}.items():
            if not is_count(number, 0):
                raise ArgumentError(f"{what}={number!r}; expected 0 or more, a whole number")
        share: object = keep
        if not (isinstance(share, Real) and 0 < float(share) <= 1) or round(keep * length) < 1:
            raise ArgumentError(f"keep={keep!r} of {length} samples; expected a share up to 1 of one or more")
        if not 0 <= rank < num_replicas:
            raise ArgumentError(f"rank={rank!r} of num_replicas={num_replicas!r}; expected 0 up to that")
        if round(keep * length) < num_replicas:
            raise ArgumentError(
                f"keep={keep!r} of {length} samples, {round(keep * length)}, for num_replicas="
                f"{num_replicas!r}; expected one or more for each: keep more, or take fewer processes"
            )
        self.length, self.scores, self.keep = length, scores, keep
        self.warm_up, self.refresh_every, self.seed = warm_up, refresh_every, seed
        self.num_replicas, self.rank = num_replicas, rank
        self.epoch = 0  # how many began
        self.kept = torch.arange(length)  # samples of the newest epoch, in rising order

    def __len__(self) -> int:
        """Return how many samples the next epoch has for this process."""
        count = self.length if self.epoch < self.warm_up else round(self.keep * self.length)
        return count // self.num_replicas

    def __iter__(self) -> Iterator[int]:
        """Begin an epoch, with new scores where they are due."""
        count = len(self)
        since = self.epoch - self.warm_up
        if since >= 0 and since % self.refresh_every == 0:
            self.kept = self._largest()
        drawn = torch.Generator().manual_seed(joint_seed(self.seed, self.epoch))
        self.epoch += 1
        order = self.kept[torch.randperm(len(self.kept), generator=drawn)]
        return iter(order[self.rank :: self.num_replicas][:count].tolist())

    def _largest(self) -> Tensor:
        """Return the samples with the largest scores; of equal ones those that come first."""
        scores = torch.as_tensor(self.scores()).detach().cpu()
        if scores.shape != (self.length,):
            raise DataError(
                f"scores of shape {tuple(scores.shape)}; expected one for each of {self.length} samples"
            )
        if not scores.isfinite().all():
            raise DataError(
                f"{int((~scores.isfinite()).sum())} of {self.length} scores are not finite; the model may"
                " have diverged: score with an earlier one, or keep all samples"
            )
        order = scores.argsort(descending=True, stable=True)
        return order[: round(self.keep * self.length)].sort().values

    def state_dict(self) -> SamplerState:
        """Return what a run that is resumed between epochs goes on from."""
        return {"epoch": self.epoch, "kept": self.kept.clone()}

    def load_state_dict(self, state: SamplerState) -> None:
        """Take over what :meth:`state_dict` returned.

        Raises:
            DataError: it is of a sampler of another data set, or that keeps another share.
        """
        epoch, kept = state["epoch"], state["kept"]
        count = self.length if epoch <= self.warm_up else round(self.keep * self.length)
        if epoch < 0 or kept.shape != (count,) or not ((kept >= 0) & (kept < self.length)).all():
            raise DataError(
                f"a state of epoch {epoch} with {kept.numel()} samples up to"
                f" {int(kept.max()) if kept.numel() else None}; expected {count} of {self.length}: resume"
                " with the data set, the share and the warm-up that it was saved with"
            )
        self.epoch, self.kept = epoch, kept.clone()


def el2n_scores(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """Return the error norm of each sample: |softmax(logits) - one-hot label|, 2-norm, from 0 to sqrt(2).

    EL2N of Paul, Ganguli and Dziugaite, Deep Learning on a Data Diet, NeurIPS 2021, section 2, of one model.

    Args:
        model: gives logits (n, classes); it is in eval mode meanwhile.
        batches: of (inputs, labels), labels int64 (n,), all samples of the data set in its order.

    Returns:
        (samples,) float32.

    Raises:
        DataError: logits or labels of another shape, or labels that are no classes.
    """

    def score(logits: Tensor, labels: Tensor) -> Tensor:
        errors = logits.softmax(1) - functional.one_hot(labels, logits.shape[1])
        return errors.square().sum(1).sqrt()

    return _scored(model, batches, score)


def loss_scores(model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]]) -> Tensor:
    """Return the cross-entropy of each sample in nats; all else is as with :func:`el2n_scores`."""

    def score(logits: Tensor, labels: Tensor) -> Tensor:
        return functional.cross_entropy(logits, labels, reduction="none")

    return _scored(model, batches, score)


def _scored(
    model: nn.Module, batches: Iterable[tuple[Tensor, Tensor]], score: Callable[[Tensor, Tensor], Tensor]
) -> Tensor:
    found = []
    with evaluated(model):
        for inputs, labels in batches:
            logits = model(inputs)
            if logits.ndim != 2 or labels.shape != logits.shape[:1]:
                raise DataError(
                    f"logits of shape {tuple(logits.shape)} and labels of {tuple(labels.shape)}; expected"
                    " (n, classes) and (n,): write scores of your own for another kind of model"
                )
            _check_labels(labels, logits.shape[1])
            found.append(score(logits.float(), labels).cpu())
    if not found:
        raise DataError("there is no batch to score; give all samples of the data set in its order")
    return torch.cat(found)


def _check_labels(labels: Tensor, classes: int) -> None:
    """Raise where a label is no class; -100 would be a loss of zero, as PyTorch leaves such samples out."""
    if labels.dtype != torch.int64 or not ((labels >= 0) & (labels < classes)).all():
        ends = [] if not labels.numel() else [labels.min().item(), labels.max().item()]
        raise DataError(
            f"labels of {str(labels.dtype).removeprefix('torch.')} from {' to '.join(map(str, ends))};"
            f" expected int64 from 0 to {classes - 1}"
        )
