"""The config of a model from the metadata of its GGUF file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gagpo.model.gguf.file import ConversionError, GgufFile, reason_of
from gagpo.model.gguf.rope import rope_parameters

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

ARCHITECTURES = ("llama", "qwen2", "qwen3")
"""Families whose conversion is tested against the arithmetic of the file's own tensors."""

SIZES = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
}
EPSILON = "attention.layer_norm_rms_epsilon"
HEADS = ("attention.key_length", "attention.value_length", "rope.dimension_count")
_ROPE = ("rope.freq_base", "rope.scale_linear", "rope.scaling.")
_NEUTRAL = {
    "attention.causal": True,
    "attention.sliding_window": 0,
    "expert_count": 0,
    "expert_used_count": 0,
    "pooling_type": 0,
}
"""Keys that other values than these would give another model."""

_DESCRIPTIVE = ("tensor_data_layout", "attention.head_count_kv", "vocab_size")
_TOKENS = {"bos_token_id": "bos", "eos_token_id": "eos", "pad_token_id": "padding", "unk_token_id": "unknown"}


def config_of(file: GgufFile, vocabulary: int) -> PreTrainedConfig:
    """The config of the model.

    vocabulary: number of tokens.

    Raises: ConversionError for an architecture, or a property of it, that is not supported, naming the key.
    """
    from transformers import AutoConfig

    arch = file.architecture
    if arch not in ARCHITECTURES:
        raise ConversionError(
            f"architecture {arch!r:.40} is not supported",
            where=file.path,
            advice=(f"choose a file of {', '.join(ARCHITECTURES)}, or the Hugging Face folder of the model"),
        )
    values = {attribute: _size(file, key) for key, attribute in SIZES.items()}
    heads, width = values["num_attention_heads"], values["hidden_size"]
    values["num_key_value_heads"] = _size(file, "attention.head_count_kv", heads)
    lengths = [_size(file, key) for key in HEADS if f"{arch}.{key}" in file.metadata]
    head_dim = lengths[0] if lengths else width // heads
    if len(set(lengths)) > 1:
        raise ConversionError(
            f"{', '.join(f'{arch}.{key}' for key in HEADS)} must be equal (got {lengths})", where=file.path
        )
    if head_dim % 2 or heads % values["num_key_value_heads"]:
        raise ConversionError(
            (
                f"{heads} heads of {head_dim} numbers, {values['num_key_value_heads']} of them for keys, "
                "do not fit together"
            ),
            where=file.path,
        )
    if arch != "qwen2" or head_dim != width // heads:
        values["head_dim"] = head_dim
    _refuse_unknown(file, values["max_position_embeddings"])
    epsilon = file.metadata.get(f"{arch}.{EPSILON}")
    if not isinstance(epsilon, float) or not 0 < epsilon < 1:
        raise ConversionError(
            f"{arch}.{EPSILON} must be a number between 0 and 1 (got {epsilon!r:.40})",
            key=f"{arch}.{EPSILON}",
            where=file.path,
        )
    rope = rope_parameters(file, head_dim, values["max_position_embeddings"])
    tokens = _token_ids(file, vocabulary)
    try:
        return AutoConfig.for_model(
            arch,
            **values,
            rms_norm_eps=epsilon,
            vocab_size=vocabulary,
            rope_parameters=rope,
            tie_word_embeddings="output.weight" not in file.tensors,  # as in llama.cpp
            **tokens,
        )
    except Exception as error:  # whatever transformers' own checks raise
        raise ConversionError(f"cannot be converted: {reason_of(error)}", where=file.path) from error


def _size(file: GgufFile, name: str, default: int | None = None) -> int:
    """A whole number of the metadata, at least 1."""
    key = f"{file.architecture}.{name}"
    value = file.metadata.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ConversionError(
            f"{key} must be a whole number of at least 1 (got {value!r:.40})", key=key, where=file.path
        )
    return value


def _refuse_unknown(file: GgufFile, context: int) -> None:
    """Raise ConversionError for a key of the architecture that would give another model and is not converted."""
    arch = file.architecture
    read = {*SIZES, EPSILON, *HEADS, *_DESCRIPTIVE}
    for key, value in file.metadata.items():
        name = key.removeprefix(f"{arch}.")
        if name == key or name in read or name.startswith(_ROPE) or value == _NEUTRAL.get(name):
            continue
        if name == "attention.sliding_window" and isinstance(value, int) and value >= context:
            continue
        raise ConversionError(f"metadata {key} = {value!s:.40} is not supported", key=key, where=file.path)


def _token_ids(file: GgufFile, vocabulary: int) -> dict[str, Any]:
    """The ids of special tokens. Raises: ConversionError for tokens without an embedding."""
    if file.tokens > vocabulary or file.metadata.get(f"{file.architecture}.vocab_size", vocabulary) != vocabulary:
        raise ConversionError(
            (
                f"tensor token_embd.weight has {vocabulary} rows, its metadata says {file.tokens} tokens "
                f"and {file.architecture}.vocab_size "
                f"{file.metadata.get(f'{file.architecture}.vocab_size')}"
            ),
            where=file.path,
        )
    ids = {}
    for attribute, name in _TOKENS.items():
        key = f"tokenizer.ggml.{name}_token_id"
        number = file.metadata.get(key)
        if number is None:
            continue
        if not isinstance(number, int) or not 0 <= number < vocabulary:
            raise ConversionError(f"{key} must be below {vocabulary} (got {number!r:.40})", key=key, where=file.path)
        ids[attribute] = number
    return ids
