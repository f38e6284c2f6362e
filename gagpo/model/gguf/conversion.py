"""Convert a GGUF file to a Hugging Face model folder."""

from __future__ import annotations

import io
import sys
from contextlib import nullcontext, redirect_stderr
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from gagpo.model.disk_errors import disk_errors
from gagpo.model.gguf.file import ConversionError, GgufFile, read, reason_of, require_convertible
from gagpo.model.gguf.rope import FACTORS
from gagpo.model.gguf.shape import config_of

if TYPE_CHECKING:
    import torch

TOKENS = {"eos_token": "eos", "pad_token": "padding"}  # attributes of a tokenizer, and their names in a file
SUFFIXES = (".weight", ".bias")


def convert(path: Path, folder: Path) -> None:
    """Write the model and the tokenizer of the GGUF file ``path`` into ``folder``, with weights in float32.

    Quantised weights become the numbers that they stand for; nothing is rounded again. Of a split file ``path`` is any
    part.

    Raises: ConversionError for a missing package, a damaged or incomplete file, an architecture that is not supported,
        and a file with other tensors than its architecture has.
    """
    require_convertible(path)
    # transformers draws its bars wherever standard error goes
    with nullcontext() if sys.stderr.isatty() else redirect_stderr(io.StringIO()):
        file = read(path)
        _require_blocks(file)
        config = config_of(file, len(_embeddings(file)))
        tokenizer = _tokenizer(file)
        model = _model(file, config)
        try:
            with disk_errors(folder):
                model.save_pretrained(folder)
            tokenizer.save_pretrained(folder)
        except (TypeError, ValueError, AttributeError) as error:  # values that JSON or transformers' checks refuse
            raise ConversionError(f"cannot be converted: {reason_of(error)}", where=file.path) from error


def _embeddings(file: GgufFile) -> np.ndarray:
    """The entry of the embeddings, one row a token."""
    entry = file.tensors.get("token_embd.weight")
    if entry is None or len(entry.data.shape) != 2:
        raise ConversionError("tensor token_embd.weight is missing: the file is incomplete", where=file.path)
    data: np.ndarray = entry.data
    return data


def _require_blocks(file: GgufFile) -> None:
    """Raise ConversionError if a block has no tensors at all, before a model of so many blocks is made."""
    count = file.metadata.get(f"{file.architecture}.block_count")
    numbers = {name.split(".")[1] for name in file.tensors if name.startswith("blk.")}
    for number in range(min(count, len(numbers) + 1) if isinstance(count, int) else 0):
        if str(number) not in numbers:
            raise ConversionError(
                f"the tensors of block {number} (blk.{number}.*) are missing: the file is incomplete", where=file.path
            )


def _model(file: GgufFile, config: Any) -> Any:
    """The model with the weights of the file. Raises: ConversionError naming tensors that are missing or too many."""
    import torch
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"):  # weights are not drawn: all come from the file
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    except Exception as error:  # sizes that do not fit together fail anywhere in transformers
        raise ConversionError(f"cannot be converted: {reason_of(error)}", where=file.path) from error
    shapes = {name: tuple(parameter.shape) for name, parameter in model.state_dict().items()}
    names = _names(file, [name for name in shapes if name != "lm_head.weight" or not config.tie_word_embeddings])
    if missing := sorted(names.keys() - file.tensors.keys()):
        raise ConversionError(
            f"tensor {missing[0]} is missing: the file is incomplete{_more(missing)}", where=file.path
        )
    if surplus := sorted(file.tensors.keys() - names.keys() - {FACTORS}):
        raise ConversionError(
            (
                f"tensor {surplus[0]} does not belong to a model of the architecture {file.architecture} "
                f"with {config.num_hidden_layers} blocks{_more(surplus)}"
            ),
            where=file.path,
        )
    weights = {name: _weights(file, stored, shapes[name], config) for stored, name in names.items()}
    model.load_state_dict(weights, strict=False, assign=True)
    model.tie_weights()
    return model


def _names(file: GgufFile, parameters: list[str]) -> dict[str, str]:
    """The names of parameters, by those of their tensors in the file."""
    from gguf import MODEL_ARCH, MODEL_ARCH_NAMES, get_tensor_name_map

    (family,) = (architecture for architecture in MODEL_ARCH if MODEL_ARCH_NAMES[architecture] == file.architecture)
    table = get_tensor_name_map(family, len(parameters))
    return {str(table.get_name(name, SUFFIXES)): name for name in parameters}


def _weights(file: GgufFile, stored: str, shape: tuple[int, ...], config: Any) -> torch.Tensor:
    """The tensor called ``stored`` as a parameter of the given shape."""
    import torch

    numbers = file.numbers(stored)
    if numbers.shape != shape:
        raise ConversionError(
            f"tensor {stored} has shape {list(numbers.shape)}, its metadata says {list(shape)}", where=file.path
        )
    if file.architecture == "llama" and stored.endswith(("attn_q.weight", "attn_k.weight")):
        heads = config.num_attention_heads if "attn_q" in stored else config.num_key_value_heads
        numbers = _unpaired(numbers, heads)
    return torch.tensor(numbers)


def _unpaired(weights: np.ndarray, heads: int) -> np.ndarray:
    """Queries or keys [heads * head_dim, width] in the order of transformers.

    llama.cpp turns numbers 2 i and 2 i + 1 of a Llama's head together, transformers i and i + head_dim / 2.
    """
    pairs = weights.reshape(heads, -1, 2, weights.shape[-1])
    return pairs.swapaxes(1, 2).reshape(weights.shape)


def _more(names: list[str]) -> str:
    return f" ({len(names)} tensors in all)" if len(names) > 1 else ""


def _tokenizer(file: GgufFile) -> Any:
    """The tokenizer, with the end and the padding of the file; transformers 5.17 ends a turn with its first token."""
    from transformers import AutoTokenizer

    path = file.path
    try:
        tokenizer = AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name, local_files_only=True)
    except Exception as error:  # damaged files fail anywhere in gguf and transformers
        raise ConversionError(f"cannot be converted: {reason_of(error)}", where=path) from error
    if tokenizer.chat_template is None:
        raise ConversionError(
            "has no chat template", where=path, advice="convert the instruction-tuned version of the model"
        )
    for attribute, name in TOKENS.items():
        number = file.metadata.get(f"tokenizer.ggml.{name}_token_id")
        if number is not None:
            setattr(tokenizer, attribute, tokenizer.convert_ids_to_tokens(int(number)))
    return tokenizer
