"""Load a causal language model and its tokenizer from a folder or a hub name, ready for flat attention."""

from __future__ import annotations

import copy
import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from gagpo.base import manifest
from gagpo.base.errors import GagpoError
from gagpo.base.hub import why_unavailable
from gagpo.model import adapters, attention_check
from gagpo.model.disk_errors import disk_errors
from gagpo.model.dtypes import bound_kernels, dtype_of
from gagpo.model.exact_merge import merge_exactly
from gagpo.model.flat import attention
from gagpo.model.pretrained import base_of, folder_of, place_of
from gagpo.model.starters import find, is_starter

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase


ALIGNMENT = 64  # bytes; what torch's own allocator gives


class ModelError(GagpoError, ValueError):
    """A model cannot be used."""


def load_tokenizer(name: str, revision: str | None = None, *, trust_remote_code: bool = False) -> Any:
    """The tokenizer of a folder, a starter or a hub name; it needs a chat template and an end token.

    An adapter without a tokenizer has that of its base model.
    """
    from transformers import AutoTokenizer

    name = folder_of(name)
    _require_available(name, "tokenizer", revision)
    path = Path(name)
    if path.is_dir() and not any((path / f).exists() for f in ("tokenizer.json", "tokenizer.model", "vocab.json")):
        if adapters.is_adapter(path):
            base, of_base = adapters.base_of(path)
            return load_tokenizer(base, of_base, trust_remote_code=trust_remote_code)
        raise ModelError(
            f"model folder {name} has no tokenizer (tokenizer.json)", advice="save one there with save_pretrained"
        )
    try:
        tokenizer = AutoTokenizer.from_pretrained(
            name, local_files_only=path.is_dir(), trust_remote_code=trust_remote_code, revision=revision or "main"
        )
    except Exception as error:  # damaged files fail anywhere in transformers
        raise _not_loaded(name, "tokenizer", error) from error
    if tokenizer.chat_template is None:
        raise ModelError(
            f"the tokenizer of {name} has no chat template", advice="add chat_template.jinja to the folder"
        )
    if tokenizer.eos_token_id is None:
        raise ModelError(f"the tokenizer of {name} has no end-of-sequence token", advice="set eos_token in its config")
    return tokenizer


def load_model(
    name: str,
    dtype: str = "float32",
    device: str = "cpu",
    *,
    trust_remote_code: bool = False,
    revision: str | None = None,
) -> torch.nn.Module:
    """The causal language model of a folder, starter or hub name, in eval mode.

    Every model is checked when it is loaded. If flat attention does not reproduce its log-probabilities, it reads
    padded rows with its own attention (see ``is_flat``). A folder with a LoRA adapter in peft's format is loaded as its
    base model with the adapter merged.

    revision: of a hub model; ``model.config._commit_hash`` is the commit that was loaded.

    Raises: ModelError for files that are missing or damaged, and for a model that neither way reproduces.
    """
    from transformers import AutoModelForCausalLM

    bound_kernels()
    if is_starter(name) and find(name).base is not None:
        return _starter_on_base(name, device).to(dtype_of(dtype)).eval()
    resolved = available_name(name, revision, trust_remote_code)
    if resolved is None:
        return _merged_adapter(Path(folder_of(name)), device, trust_remote_code).to(dtype_of(dtype)).eval()
    name = resolved
    path = Path(name)
    try:
        model, info = with_attention(
            lambda attention_name: AutoModelForCausalLM.from_pretrained(
                name,
                dtype=dtype_of(dtype),
                attn_implementation=attention_name,
                local_files_only=path.is_dir(),
                trust_remote_code=trust_remote_code,
                revision=revision or "main",
                output_loading_info=True,
                ignore_mismatched_sizes=True,  # refused below, by name
            )
        )
    except Exception as error:  # a config.json with values of the wrong type fails anywhere in transformers
        raise _not_loaded(name, "model", error) from error
    require_whole(name, model, info)
    ready: torch.nn.Module = align(model.to(torch.device(device)).eval())
    choose_path(name, ready)
    if not path.is_dir():
        ready.config._commit_hash = commit_of(name, revision)  # type: ignore[union-attr]
    return ready


def available_name(name: str, revision: str | None, trust_remote_code: bool) -> str | None:
    """The folder or hub name of a model, found to be there, undamaged and without code of its own; None for an adapter.

    Raises: ModelError.
    """
    name = folder_of(name)
    _require_available(name, "model", revision)
    path = Path(name)
    if adapters.is_adapter(path):
        return None
    if path.is_dir() and not (path / "config.json").exists():
        raise ModelError(f"model folder {name} has no config.json", advice="is it a Hugging Face model folder?")
    if path.is_dir() and manifest.has_one(path):
        try:
            manifest.verify(path)
        except manifest.ManifestError as error:
            raise ModelError(
                error, advice="make the model again, or delete its manifest.json if you changed it"
            ) from None
    if not trust_remote_code:
        refuse_remote_code(name, revision)
    return name


def _merged_adapter(folder: Path, device: str, trust_remote_code: bool) -> torch.nn.Module:
    """The base of the adapter in ``folder``, with the adapter merged, in float32."""
    base, revision = adapters.base_of(folder)
    model = load_model(base, device=device, trust_remote_code=trust_remote_code, revision=revision)
    adapters.read_into(model, folder)
    return adapters.merge(model)


def _starter_on_base(name: str, device: str) -> torch.nn.Module:
    """The base of a starter that is an adapter, with the adapter merged, in float32."""
    folder = Path(folder_of(name))
    base = base_of(name)
    model = load_model(base, device=device)
    expected = adapters.digest_of_base(folder)
    if adapters.digest(model) != expected:
        raise ModelError(
            f"holds another model than {base}, which {name} is an adapter on (SHA-256 of the weights differs)",
            where=place_of(base),
            advice=f"remove the folder, then run `gagpo models get {base}`",
        )
    return merge_exactly(model, folder)


def align(model: torch.nn.Module) -> torch.nn.Module:
    """Move parameters and buffers on the CPU to addresses that are multiples of ``ALIGNMENT``, in place.

    Safetensors files are mapped at the offset that their header leaves, and matrix kernels round differently at another
    alignment: saved and loaded weights could give other bits.
    """
    for tensor in (*model.parameters(), *model.buffers()):
        if tensor.device.type == "cpu" and tensor.data_ptr() % ALIGNMENT:
            tensor.data = tensor.data.clone()
    return model


def with_attention(build: Callable[[str], Any]) -> Any:
    """Build a model with flat attention, or with eager attention if its code does not take attention by name."""
    try:
        built = build(attention.NAME)
        model = built[0] if isinstance(built, tuple) else built
        if model._can_set_attn_implementation():
            return built
    except KeyError as error:  # from the family's own table of attention functions
        if attention.NAME not in str(error):
            raise
    return build("eager")


def untrained(config: PreTrainedConfig, **options: object) -> torch.nn.Module:
    """A model of this config with arbitrary weights; the config is not changed."""
    from transformers import AutoModelForCausalLM

    config = copy.deepcopy(config)  # transformers writes the attention's name into it
    build = functools.partial(AutoModelForCausalLM.from_config, config, **options)
    model: torch.nn.Module = with_attention(lambda name: build(attn_implementation=name))
    return model


def commit_of(name: str, revision: str | None = None) -> str | None:
    """The commit of a hub name at ``revision``, offline that of the local cache; None for a folder or a starter.

    Raises: ModelError for an unknown name, and for a revision of a folder.
    """
    from transformers.utils.hub import cached_file, extract_commit_hash

    name = folder_of(name)
    _require_available(name, "model", revision)
    if not Path(name).is_dir():
        try:
            return extract_commit_hash(cached_file(name, "config.json", revision=revision or "main"), None)
        except (OSError, ValueError) as error:
            raise _not_loaded(name, "model", error) from error
    if revision is not None:
        raise ModelError(
            f"is a folder, which has no revision {revision!r}",
            key="revision",
            where=f"model {name}",
            advice="remove revision",
        )
    return None


def width_of(name: str, revision: str | None = None) -> int | None:
    """The hidden size in a model's config.json; None where the config names none.

    Raises: ModelError for an unknown name, and for a folder without config.
    """
    from transformers import PretrainedConfig

    name = folder_of(base_of(name))
    if adapters.is_adapter(Path(name)):
        base, revision = adapters.base_of(Path(name))
        name = folder_of(base)
    try:
        # The plain dictionary: building the config would run the code of a model that brings its own.
        values, _ = PretrainedConfig.get_config_dict(
            name, local_files_only=Path(name).is_dir(), revision=revision or "main"
        )
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise _not_loaded(name, "model", error) from error
    text = values.get("text_config") or values
    width = next((text[key] for key in ("hidden_size", "n_embd", "d_model") if key in text), None)
    return width if isinstance(width, int) else None


def refuse_remote_code(name: str, revision: str | None = None) -> None:
    """Raise ModelError if the repository has model code of its own; transformers would ask on standard input."""
    from transformers import PretrainedConfig

    local = Path(name).is_dir()
    try:
        config, _ = PretrainedConfig.get_config_dict(name, local_files_only=local, revision=revision or "main")
        remote_code = dict(config.get("auto_map") or {})
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise _not_loaded(name, "model", error) from error
    if "AutoModelForCausalLM" in remote_code:
        raise ModelError(
            f"brings its own code ({remote_code['AutoModelForCausalLM']}), which is not run by default",
            key="trust_remote_code",
            where=f"model {name}",
            advice="read it, then set trust_remote_code=true (--trust-remote-code for gagpo eval and export)",
        )


def require_whole(name: str, model: torch.nn.Module, info: dict[str, Any]) -> None:
    """Raise ModelError unless model and files have the same tensors, all of them finite."""
    for problem, keys in (("missing", info["missing_keys"]), ("unexpected", info["unexpected_keys"])):
        if keys:
            first = min(map(str, keys))
            raise ModelError(
                (
                    f"{len(keys)} tensors are {problem}, the first {first!r}; the folder is incomplete or of "
                    "another architecture"
                ),
                where=f"model {name}",
                advice="save it again with save_pretrained",
            )
    if info["mismatched_keys"]:
        first, stored, expected = min(info["mismatched_keys"])
        raise ModelError(
            f"tensor {first!r} has shape {tuple(stored)}, its config says {tuple(expected)}", where=f"model {name}"
        )
    require_finite(name, model)


def require_finite(name: str, model: torch.nn.Module) -> None:
    """Raise ModelError naming the first parameter that is not finite."""
    for parameter_name, parameter in model.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            raise ModelError(
                f"parameter {parameter_name} is not finite: the weights are damaged", where=f"model {name}"
            )


def choose_path(name: str, model: torch.nn.Module) -> str:
    """Choose flat attention or padded rows for the model; returns why it is not flat, '' if it is.

    Raises: ModelError if neither gives the model's log-probabilities.
    """
    settable = model._can_set_attn_implementation()  # type: ignore[operator]
    reason = attention_check.flat_error(model) if settable else "its attention cannot be replaced"
    if not reason:
        return ""
    if settable:
        model.set_attn_implementation("sdpa" if getattr(model, "_supports_sdpa", False) else "eager")  # type: ignore[operator]
    worse = attention_check.padded_error(model)
    if worse:
        raise ModelError(
            f"cannot be trained here: flat attention fails ({reason}), and so do padded rows ({worse})",
            where=f"model {name} ({type(model).__name__})",
        )
    return reason


def save(
    model: torch.nn.Module,
    tokenizer: PreTrainedTokenizerBase,
    folder: Path,
    tensors: dict[str, torch.Tensor] | None = None,
) -> None:
    """Write a Hugging Face folder: weights as safetensors, config, tokenizer.

    tensors: to write instead of the model's weights; tied ones are one tensor.
    """
    from transformers.utils import logging

    logging.disable_progress_bar()  # one bar per checkpoint would hide the run's output
    with disk_errors(folder):
        model.save_pretrained(folder, state_dict=tensors)  # type: ignore[operator]
    tokenizer.save_pretrained(str(folder))


def _require_available(name: str, part: str, revision: str | None) -> None:
    """Raise ModelError at once for a hub name that is not cached, if the hub cannot be reached."""
    reason = why_unavailable(name, revision)
    if reason:
        raise ModelError(f"cannot load the {part} of {name!r}: {reason}", advice="or name a folder that exists")


def _not_loaded(name: str, part: str, error: Exception) -> ModelError:
    reason = " ".join(str(error).split())[:200] or type(error).__name__
    if os.sep in name and not Path(name).exists():
        reason = "the folder does not exist"
    return ModelError(
        f"cannot load the {part} of {name!r}: {reason}",
        advice="give a Hugging Face model folder (`gagpo sft` makes a small one) or the name of a hub model that is "
        "cached or can be downloaded",
    )
