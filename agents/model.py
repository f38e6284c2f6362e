"""Loading a causal language model and its tokenizer from a folder or a hub name, ready for flat attention."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from gagpo.agents.engines import attention
from gagpo.envs.errors import GagpoError


class ModelError(GagpoError, ValueError):
    """A model that cannot be used; the message says which folder and what to do."""


DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_tokenizer(name: str) -> Any:
    """The tokenizer of a folder or hub name; it needs a chat template and an end token."""
    from transformers import AutoTokenizer

    path = Path(name)
    if path.is_dir() and not any((path / f).exists() for f in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        raise ModelError(
            f"model folder {name} holds no tokenizer (tokenizer.json); save one there with save_pretrained"
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(name, local_files_only=path.is_dir())
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(_advice(name, "tokenizer", error)) from error
    if tokenizer.chat_template is None:
        raise ModelError(f"the tokenizer of {name} has no chat template; add chat_template.jinja to the folder")
    if tokenizer.eos_token_id is None:
        raise ModelError(f"the tokenizer of {name} has no end-of-sequence token; set eos_token in its config")
    return tokenizer


def load_model(name: str, dtype: str = "float32", device: str = "cpu") -> torch.nn.Module:
    """The causal language model of a folder or hub name, in eval mode."""
    from transformers import AutoModelForCausalLM

    path = Path(name)
    if path.is_dir() and not (path / "config.json").exists():
        raise ModelError(f"model folder {name} holds no config.json; is it a Hugging Face model folder?")
    try:
        model = AutoModelForCausalLM.from_pretrained(
            name,
            dtype=DTYPES[dtype],
            attn_implementation=attention.NAME,
            local_files_only=path.is_dir(),
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ModelError(_advice(name, "model", error)) from error
    return model.to(torch.device(device)).eval()  # type: ignore[arg-type]


def save(model: torch.nn.Module, tokenizer: Any, folder: Path) -> None:
    """Write an ordinary Hugging Face folder: weights as safetensors, config, tokenizer."""
    from transformers.utils import logging

    logging.disable_progress_bar()  # a bar for every checkpoint would drown the run's own lines
    model.save_pretrained(folder)  # type: ignore[operator]
    tokenizer.save_pretrained(folder)


def _advice(name: str, what: str, error: Exception) -> str:
    first = str(error).strip().splitlines()[0][:300] if str(error).strip() else type(error).__name__
    if os.sep in name and not Path(name).exists():
        first = "the folder does not exist"
    return (
        f"cannot load the {what} of {name!r}: {first}. Give a Hugging Face model folder (`gagpo warm-start` makes a "
        "small one) or the name of a hub model that is cached or can be downloaded"
    )
