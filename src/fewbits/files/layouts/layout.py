"""What the layouts of other programs have in common: what they are asked, and how they answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from fewbits.errors import ArgumentError, MissingDependencyError
from fewbits.files.byte_layout import TensorLayout
from fewbits.files.checkpoint import StoredTensor
from fewbits.files.encoding import Plan
from fewbits.files.model_folder import ModelFolder, model_folder
from fewbits.files.narrow_tensor import StoredNarrowTensor
from fewbits.formats import Block, Element, Float, Format

BF16, FP32 = Float(8, 7, 127, "ieee"), Float(8, 23, 127, "ieee")  # as the catalogue has them

# Names of two-axis weights that are no Linear weights, or that every program keeps wide.
KEPT = (
    *("*embed*", "*wte.weight", "*wpe.weight", "shared.weight", "model.shared.weight"),
    *("*relative_attention_bias*", "*lm_head*", "*norm*", "*router*"),
    *("*.gate.weight", "*score.weight", "*classifier*"),
)
# Heads that are tied: a file has no tensor of theirs, and a program takes them for any other Linear.
_TIED = (
    *("lm_head", "proj_out", "generator_lm_head", "lm_head.decoder", "cls.predictions.decoder"),
    *("predictions.decoder", "vocab_projector", "embed_out"),
)
_INPUTS_FIRST = ("gpt2", "openai-gpt", "imagegpt", "decision_transformer", "clvp")  # Conv1D, no Linear


@dataclass(frozen=True)
class Request:
    """A checkpoint that is to be written in a layout."""

    source: Path
    tensors: Sequence[StoredTensor]  # all
    becomes: Mapping[str, TensorLayout]  # of the tensors that are cast
    fuse: bool  # whether tensors that are one product share an outer scale
    destination: Path  # the file or folder, symbolic links resolved


@dataclass(frozen=True)
class Reading:
    """The narrow tensors that a layout finds in a checkpoint."""

    narrow: tuple[StoredNarrowTensor, ...]
    claimed: frozenset[str]  # names of the stored tensors that belong to narrow ones
    problems: tuple[str, ...] = ()


class Layout(NamedTuple):
    """A pair of functions, and what they take."""

    name: str  # of ``layout=``
    stored: Callable[[Format], Format | None]  # the format as it is stored, or None if it has no place
    formats: tuple[str, ...]  # that it has a place for
    can_cast: Callable[[StoredTensor], bool]
    write: Callable[[Request], Plan]
    read: Callable[[ModelFolder | None, Mapping[str, StoredTensor]], Reading | None]  # None: another layout
    suffix: str = ""  # of the one file that is written; "": a folder of safetensors files
    check: Callable[[Path], None] = lambda source: None  # raises ArgumentError for a source of another kind

    def accept(self, format: Format) -> Format:
        """Return a format as this layout stores it.

        Raises:
            ArgumentError: the layout has no place for it.
        """
        stored = self.stored(format)
        if stored is None:
            raise ArgumentError(
                f"layout={self.name!r} has no {format.name:.100}; it has {', '.join(self.formats)}"
            )
        return stored


def is_linear(tensor: StoredTensor) -> bool:
    """Return whether a tensor is, by its name and shape, the weight of a Linear layer that may be narrow."""
    named = tensor.name.endswith(".weight") and not any(fnmatchcase(tensor.name, kept) for kept in KEPT)
    return named and tensor.is_float and len(tensor.shape) == 2 and tensor.count > 0


def left_wide(request: Request) -> list[str]:
    """Return the modules that stay as they are, and the heads that may be tied.

    A name does not tell an embedding from the Linear behind it, as ELECTRA's ``embeddings_project``, so both
    are listed but for the one name that is no Linear anywhere.
    """
    wide = [t.name for t in request.tensors if t.name not in request.becomes and len(t.shape) == 2]
    modules = {name.removesuffix(".weight") for name in wide if name.endswith(".weight")}
    heads = ("lm_head",) if "lm_head" in modules else _TIED
    return sorted({m for m in modules if not m.endswith("embed_tokens")} | {*heads})


def with_scale(format: Format, scale: Element) -> Format:
    """Return a block format whose scales, FP32 or BF16, have the format that a layout stores."""
    if isinstance(format, Block) and format.outer is None and format.scale in (FP32, BF16):
        return replace(format, scale=scale)
    return format


def needs_multiple(layout: str, becomes: Mapping[str, TensorLayout], multiple: int | None = None) -> None:
    """Check that every row is whole blocks.

    Args:
        layout: its name, for the message.
        becomes: the tensors that are cast.
        multiple: of values that a row needs; None for the block size of each format.

    Raises:
        ArgumentError: a row is not; the message names the tensor.
    """
    for name, tensor in becomes.items():
        size = getattr(tensor.format, "size", 1) if multiple is None else multiple
        if isinstance(size, int) and tensor.shape[-1] % size:
            raise ArgumentError(
                f"{name!r:.200} has rows of {tensor.shape[-1]} values, and {tensor.format.name:.100} in"
                f" layout={layout!r} takes multiples of {size}; name it in `exclude`"
            )


def folder_of(layout: str, source: Path) -> ModelFolder:
    """Return the folder of the model, which a layout needs.

    Raises:
        ArgumentError: the source is a single file or has no config.json, or its model no Linear layers.
    """
    folder = model_folder(source) if source.is_dir() or source.suffix == ".json" else None
    if folder is None:
        raise ArgumentError(
            f"layout={layout!r} writes a folder that loads, with its config.json, and {source} is no folder"
            " with one; give the folder of the model"
        )
    kind = folder.config.get("model_type")
    if kind in _INPUTS_FIRST:
        raise ArgumentError(
            f"layout={layout!r} takes the weights of Linear layers, and those of {kind} are Conv1D, whose"
            " inputs come first; cast without a layout"
        )
    return folder


def package(name: str, layout: str) -> None:
    """Check that the package whose program reads a layout is there.

    Raises:
        MissingDependencyError: it is not installed.
    """
    from importlib.util import find_spec

    if find_spec(name.replace("-", "_")) is None:
        raise MissingDependencyError(
            f"layout={layout!r} needs the package {name}, which is not installed; install it with"
            " `pip install 'fewbits[export]'`"
        )


_ONE_PRODUCT = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"), ("w1", "w3"))


def fused(tensors: Iterable[StoredTensor]) -> dict[str, tuple[StoredTensor, ...]]:
    """Return the groups of weights that programs multiply as one, by the name of each tensor in a group.

    q, k, v of an attention and gate, up of a gated layer have one input, so vLLM and TensorRT-LLM stack
    them, and a stacked weight has one outer scale.
    """
    groups: dict[tuple[str, tuple[str, ...]], list[StoredTensor]] = {}
    for tensor in tensors:
        module, _, leaf = tensor.name.removesuffix(".weight").rpartition(".")
        for together in _ONE_PRODUCT:
            if leaf in together:
                groups.setdefault((module, together), []).append(tensor)
    return {t.name: tuple(group) for group in groups.values() if len(group) > 1 for t in group}
