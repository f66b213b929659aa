"""What GGUF says about a model beside its tensors: names, sizes, order of rows, and the tokenizer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fewbits.errors import ArgumentError
from fewbits.files.model_folder import ModelFolder, read_json_object

if TYPE_CHECKING:
    from gguf import GGUFWriter


class Architecture(NamedTuple):
    """A family of models whose tensors differ from those of the checkpoint only in their names and order."""

    name: str  # in GGUF
    permuted: bool  # rotary pairs of q and k lie side by side, not in halves
    epsilon: str = (
        "rms_norm_eps"  # of the norms, in the config; those that have another are of mean and variance
    )
    leaves: tuple[str, ...] = (
        "input_layernorm", "post_attention_layernorm", "self_attn.q_proj", "self_attn.k_proj",
        "self_attn.v_proj", "self_attn.o_proj", "self_attn.q_norm", "self_attn.k_norm", "mlp.gate_proj",
        "mlp.up_proj", "mlp.down_proj", "post_feedforward_layernorm",
    )  # fmt: skip
    activations: tuple[str, ...] = ("silu", "swish")  # names of the one that llama.cpp computes


# By the ``model_type`` of the config. Others change values or shapes, as llama.cpp's own converter does.
ARCHITECTURES = {
    "llama": Architecture("llama", True),
    "mistral": Architecture("llama", True),
    "qwen2": Architecture("qwen2", False),
    "qwen3": Architecture("qwen3", False),
    "olmo2": Architecture("olmo2", False),
    "seed_oss": Architecture("seed_oss", False),
    "starcoder2": Architecture(
        "starcoder2",
        False,
        "norm_epsilon",
        (
            "input_layernorm",
            "post_attention_layernorm",
            "self_attn.q_proj",
            "self_attn.k_proj",
            "self_attn.v_proj",
            "self_attn.o_proj",
            "mlp.c_fc",
            "mlp.c_proj",
        ),
        ("gelu_pytorch_tanh", "gelu_new"),
    ),
}
# Whose layers attend to a window unless it is null, and what it is where the config has none.
_WINDOWS = {"mistral": 4096, "starcoder2": None}
# The pattern that splits a text into words, which tells tokenizers of byte pairs apart, and llama.cpp's name.
_SPLITS = {
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+": "llama-bpe",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+": "qwen2",
}


def architecture(folder: ModelFolder) -> Architecture:
    """Return the architecture of a model.

    Raises:
        ArgumentError: it is none that this layout has, or its positions or its activation are other ones.
    """
    kind = folder.config.get("model_type")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        raise ArgumentError(
            f"layout='gguf' has no model_type {kind!r:.60}; it has {', '.join(ARCHITECTURES)}: convert others"
            " with the converter of llama.cpp"
        )
    rope = _rope(folder.config)
    if rope.get("rope_type", rope.get("type", "default")) != "default":
        raise ArgumentError(
            f"layout='gguf' has no rotary positions of type {rope.get('rope_type', rope.get('type'))!r:.60};"
            " it has default: convert the model with the converter of llama.cpp"
        )
    arch = ARCHITECTURES[kind]
    activation = folder.config.get("hidden_act", arch.activations[0])
    if activation not in arch.activations:  # which no file says: llama.cpp would compute its own
        raise ArgumentError(
            f"config.json has hidden_act={activation!r:.60}, and llama.cpp computes {arch.activations[0]} in"
            f" models of type {kind}; no layout of weights can change that"
        )
    return arch


def heads_of(config: Mapping[str, Any]) -> tuple[int, int]:
    """Return how many heads queries have, and keys and values.

    Raises:
        ArgumentError: config.json has no count there.
    """
    heads = _size(config, "num_attention_heads")
    is_told = config.get("num_key_value_heads") is not None
    return heads, _size(config, "num_key_value_heads") if is_told else heads


def _rope(config: Mapping[str, Any]) -> Mapping[str, Any]:
    told = config.get("rope_parameters") or config.get("rope_scaling")
    return told if isinstance(told, dict) else {}


def model_names(arch: Architecture, blocks: int) -> list[str]:
    """Return the names of all tensors that an architecture may have."""
    modules = ["model.embed_tokens", "model.norm", "lm_head"]
    modules += [f"model.layers.{i}.{leaf}" for i in range(blocks) for leaf in arch.leaves]
    return [module + end for module in modules for end in (".weight", ".bias")]


def gguf_names(arch: str, blocks: int, names: Iterable[str]) -> dict[str, str]:
    """Return the names in GGUF, by the package's own map; a name that it lacks is left out."""
    import gguf

    kinds = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}
    table = gguf.get_tensor_name_map(kinds[arch], blocks)
    found = {name: table.get_name(name, try_suffixes=(".weight", ".bias")) for name in names}
    return {name: there for name, there in found.items() if there is not None}


def add_metadata(writer: GGUFWriter, folder: ModelFolder, arch: Architecture) -> None:
    """Write the sizes of a model and its tokenizer.

    Raises:
        ArgumentError: the config lacks a size, or the tokenizer is of a kind that is not written.
    """
    config = folder.config
    (heads, of_keys), width = heads_of(config), _size(config, "hidden_size")
    head = width // heads if config.get("head_dim") is None else _size(config, "head_dim")
    writer.add_name(folder.path.resolve().name)
    writer.add_context_length(_context(config))
    writer.add_embedding_length(width)
    writer.add_block_count(_size(config, "num_hidden_layers"))
    writer.add_feed_forward_length(_size(config, "intermediate_size"))
    writer.add_head_count(heads)
    writer.add_head_count_kv(of_keys)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_rope_dimension_count(head)
    writer.add_rope_freq_base(_number({**config, **_rope(config)}, "rope_theta", 10000.0))
    if arch.epsilon == "rms_norm_eps":
        writer.add_layer_norm_rms_eps(_number(config, arch.epsilon, 1e-6))
    else:
        writer.add_layer_norm_eps(_number(config, arch.epsilon, 1e-5))
    writer.add_vocab_size(_size(config, "vocab_size"))
    _add_tokenizer(writer, folder.path, _size(config, "vocab_size"))


def _context(config: Mapping[str, Any]) -> int:
    """Return how many positions a text may have: in these architectures each attends to all before it.

    Within one window a model whose layers attend to no more than that gives the same.
    """
    positions, kind = _size(config, "max_position_embeddings"), config["model_type"]
    has_window = config.get("use_sliding_window", False) if kind in ("qwen2", "qwen3") else kind in _WINDOWS
    window = config.get("sliding_window", _WINDOWS.get(kind)) if has_window else None
    return (
        positions if window is None else min(positions, _size({"sliding_window": window}, "sliding_window"))
    )


def _size(config: Mapping[str, Any], key: str) -> int:
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**31:
        raise ArgumentError(f"config.json has {key}={value!r:.60}; layout='gguf' needs a count there")
    return value


def _number(config: Mapping[str, Any], key: str, default: float) -> float:
    value = config.get(key, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e30:
        raise ArgumentError(f"config.json has {key}={value!r:.60}; layout='gguf' needs a number there")
    return float(value)


def blocks_of(folder: ModelFolder) -> int:
    """Return the number of layers."""
    return _size(folder.config, "num_hidden_layers")


def _add_tokenizer(writer: GGUFWriter, folder: Path, vocab_size: int) -> None:
    import gguf

    file = folder / "tokenizer.json"
    if not file.is_file():
        if (folder / "tokenizer.model").is_file():
            raise ArgumentError(
                f"{folder} has a tokenizer.model and no tokenizer.json, which layout='gguf' reads; write it"
                " with AutoTokenizer.from_pretrained(folder).save_pretrained(folder) of transformers"
            )
        writer.add_tokenizer_model("none")
        return
    told = read_json_object(file)
    if told.get("model", {}).get("byte_fallback"):
        vocabulary = gguf.LlamaHfVocab(folder)
        tokens, scores, kinds = (list(column) for column in zip(*vocabulary.all_tokens(), strict=True))
        writer.add_tokenizer_model("llama")
        writer.add_tokenizer_pre("default")
        writer.add_token_scores(scores)
    else:
        tokens, kinds = _byte_pairs(told, vocab_size)
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre(_pre(told))
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    merged = gguf.SpecialVocab(folder, load_merges=not told["model"].get("byte_fallback"), n_vocab=vocab_size)
    merged.add_to_gguf(writer, quiet=True)


def _byte_pairs(told: Mapping[str, Any], vocab_size: int) -> tuple[list[str], list[int]]:
    """Return the tokens in the order of their numbers, and what kind each is; gaps are unused."""
    from gguf import TokenType

    if told["model"].get("type") != "BPE":
        raise ArgumentError(
            f"tokenizer.json is of type {told['model'].get('type')!r:.60}; layout='gguf' writes BPE: convert"
            " the model with the converter of llama.cpp"
        )
    tokens = [f"[PAD{i}]" for i in range(vocab_size)]
    kinds = [int(TokenType.UNUSED)] * vocab_size
    added = {entry["id"]: entry for entry in told.get("added_tokens", [])}
    numbered = {number: token for token, number in told["model"]["vocab"].items()}
    for number, token in {**numbered, **{i: entry["content"] for i, entry in added.items()}}.items():
        if number >= vocab_size:
            raise ArgumentError(
                f"tokenizer.json has token {number}, and config.json a vocab_size of {vocab_size}"
            )
        kind = TokenType.NORMAL
        if number in added:
            kind = TokenType.CONTROL if added[number].get("special") else TokenType.USER_DEFINED
        tokens[number], kinds[number] = token, int(kind)
    return tokens, kinds


def _pre(told: Mapping[str, Any]) -> str:
    """Return llama.cpp's name for the way that a text is split.

    Raises:
        ArgumentError: it has none that is known here.
    """
    steps = _steps(told.get("pre_tokenizer"))
    kinds, last = [step.get("type") for step in steps], steps[-1] if steps else {}
    by_its_own = last.get("use_regex", True) is True  # whether ByteLevel splits, too
    name = None
    if last.get("add_prefix_space") is True:
        pass  # llama.cpp puts no space there
    elif kinds == ["ByteLevel"] and by_its_own:
        name = "gpt-2"
    elif kinds == ["Digits", "ByteLevel"] and steps[0].get("individual_digits") is True and by_its_own:
        name = "starcoder"
    elif kinds == ["Split", "ByteLevel"] and not by_its_own:
        pattern, behavior = steps[0].get("pattern"), steps[0].get("behavior")
        regex = pattern.get("Regex") if isinstance(pattern, dict) else None
        is_plain = behavior == "Isolated" and steps[0].get("invert", False) is False
        name = _SPLITS.get(regex) if is_plain and isinstance(regex, str) else None
    if name is None:
        raise ArgumentError(
            "tokenizer.json splits texts in a way that layout='gguf' has no name for; convert the model with"
            " the converter of llama.cpp"
        )
    return name


def _steps(told: object) -> list[dict[str, Any]]:
    if not isinstance(told, dict):
        return []
    among = told.get("pretokenizers", [told])
    return [step for step in among if isinstance(step, dict)]
