"""Convert a GGUF file to a Hugging Face model folder."""

from __future__ import annotations

import io
import sys
from contextlib import nullcontext, redirect_stderr
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gagpo.base.errors import GagpoError

MAGIC = b"GGUF"
PACKAGES = ("gguf", "accelerate")
TOKENS = {"eos_token": "eos", "pad_token": "padding"}  # attributes of a tokenizer, and their names in a file


class ConversionError(GagpoError, ValueError):
    """A GGUF file cannot be converted."""


def require_packages() -> None:
    """Raise ConversionError if a package is missing."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise ConversionError(f"GGUF files require {' and '.join(missing)}: pip install 'gagpo[gguf]'")


def require_convertible(path: Path) -> None:
    """Raise ConversionError if a package is missing, or ``path`` is no GGUF file."""
    require_packages()
    try:
        with path.open("rb") as file:
            begin = file.read(len(MAGIC))
    except OSError as error:
        raise ConversionError(f"{path} cannot be read ({error.strerror})") from None
    if begin != MAGIC:
        raise ConversionError(f"{path} is not a GGUF file: it begins with {begin!r}")


def convert(path: Path, folder: Path) -> None:
    """Write the model and the tokenizer of the GGUF file ``path`` into ``folder``, with weights in float32.

    Quantised weights become the numbers that they stand for; nothing is rounded again.

    Raises: ConversionError for a missing package, a damaged file and a family that transformers does not convert.
    """
    require_convertible(path)
    # transformers draws its bars wherever standard error goes
    with nullcontext() if sys.stderr.isatty() else redirect_stderr(io.StringIO()):
        tokenizer, read = _read(path)
        if tokenizer.chat_template is None:
            raise ConversionError(f"{path} has no chat template: convert the instruction-tuned version of the model")
        _set_tokens(tokenizer, path)
        config = read.config
        del config.quantization_config  # with it, transformers refuses to save
        model = type(read)(config)
        model.load_state_dict(read.state_dict())
        model.generation_config = read.generation_config
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)


def _read(path: Path) -> tuple[Any, Any]:
    """The tokenizer and the model of a GGUF file. Raises: ConversionError for a damaged file."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where: dict[str, Any] = {"gguf_file": path.name, "local_files_only": True}
    try:
        tokenizer = AutoTokenizer.from_pretrained(path.parent, **where)
        return tokenizer, AutoModelForCausalLM.from_pretrained(path.parent, dtype=torch.float32, **where)
    except Exception as error:  # damaged files fail anywhere in gguf and transformers
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ConversionError(f"{path} cannot be converted: {reason}") from error


def _set_tokens(tokenizer: Any, path: Path) -> None:
    """Give the tokenizer the end and the padding of the file; transformers 5.17 ends a turn with its first token."""
    from gguf import GGUFReader

    fields = GGUFReader(path).fields
    for attribute, name in TOKENS.items():
        field = fields.get(f"tokenizer.ggml.{name}_token_id")
        if field is not None:
            setattr(tokenizer, attribute, tokenizer.convert_ids_to_tokens(int(field.contents())))
