"""Training an adapter instead of the weights: the ``lora`` section, and what leaves a run that used it."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch

from gagpo.agents.engines import adapters
from gagpo.agents.engines.adapters import Base, merged_tensors
from gagpo.agents.model import load_model, load_tokenizer, save
from gagpo.envs import durable
from gagpo.settings import LoraSettings, RunSettings, SettingsError, load
from gagpo.training import checkpoint as checkpoints
from gagpo.training import keeping

__all__ = ["check", "export_adapter", "export_merged", "inject", "load_policy", "merged_tensors", "reference_scope"]


def check(settings: RunSettings) -> None:
    """SettingsError, before anything is loaded, where the settings ask for an adapter that cannot be."""
    if settings.lora is None:
        return
    adapters.require_peft()
    if adapters.is_adapter(Path(settings.model)):
        raise SettingsError(
            f"model {settings.model} is an adapter already; merge it first: gagpo export-model RUN FOLDER"
        )


def inject(model: torch.nn.Module, settings: LoraSettings, seed: int = 0) -> None:
    """Put a new adapter into ``model``, the same for the same ``seed``; only its parameters require gradients."""
    adapters.inject(model, settings.rank, settings.alpha, settings.targets, seed)


def load_policy(
    settings: RunSettings, saved: checkpoints.Checkpoint | None, commit: str | None = None
) -> tuple[torch.nn.Module, adapters.Base | None]:
    """The model that a run trains, as ``saved`` left it, and the base of its adapter where it has one.

    commit: of a hub model, which the run began with.
    """
    trust = settings.trust_remote_code
    if settings.lora is None:
        name, revision = (saved.model, None) if saved else (settings.model, commit)
        return load_model(name, "float32", settings.device, trust_remote_code=trust, revision=revision), None
    revision = adapters.base_of(Path(saved.model))[1] if saved else commit
    model = load_model(settings.model, "float32", settings.device, trust_remote_code=trust, revision=revision)
    base = Base.of(settings.model, model)
    inject(model, settings.lora, settings.seed)
    if saved:
        adapters.load(model, Path(saved.model), base)
    return model, base


def reference_scope(model: torch.nn.Module) -> Callable[[], AbstractContextManager[None]]:
    """A context in which ``model`` is the one it started from: without its adapter, if it has one."""
    return functools.partial(adapters.switched_off, model) if adapters.is_adapted(model) else nullcontext


def export_merged(run: Path, folder: Path) -> Path:
    """Write the last checkpoint of a run (``runs/X@best``: its best) as an ordinary Hugging Face folder in float32.

    An adapter is merged. Raises SettingsError where there is no checkpoint, or something at ``folder``.
    """
    source, trust = _source(run, folder)
    model = load_model(source, trust_remote_code=trust)
    tokenizer = load_tokenizer(source, trust_remote_code=trust)
    return _placed(folder, lambda temporary: save(model, tokenizer, temporary))


def export_adapter(run: Path, folder: Path) -> Path:
    """Write the adapter of a run's last checkpoint alone, as peft reads it; SettingsError where it has none."""
    source, _ = _source(run, folder)
    if not adapters.is_adapter(Path(source)):
        raise SettingsError(f"run {run} trains all weights and has no adapter; export it without --adapter")
    return _placed(folder, lambda temporary: shutil.copytree(source, temporary))


def _source(run: Path, folder: Path) -> tuple[str, bool]:
    """The model folder of the checkpoint that ``run`` names, verified, and whether its own code is trusted."""
    run, which = keeping.named(run)
    if not (run / "config.yaml").is_file():
        raise SettingsError(f"{run} is not a run: it holds no config.yaml")
    if folder.exists():
        raise SettingsError(f"{folder} exists; name a folder that is to be made")
    settings = load(run / "config.yaml")
    return keeping.chosen(run, which, settings.training).model, settings.trust_remote_code


def _placed(folder: Path, write: Callable[[Path], object]) -> Path:
    """``folder`` as ``write`` fills it: whole, or absent."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = folder.with_name(f".{folder.name}.part")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        write(temporary)
        for path in [*temporary.rglob("*"), temporary]:
            durable.flush(path)
        temporary.rename(folder)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return folder
