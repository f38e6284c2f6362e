"""Training an adapter instead of the weights: the ``lora`` section."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch

from gagpo.agents.engines import adapters
from gagpo.agents.engines.adapters import Base, merged_tensors
from gagpo.agents.model import load_model
from gagpo.settings import LoraSettings, RunSettings, SettingsError
from gagpo.training import checkpoint as checkpoints

__all__ = ["check", "inject", "load_policy", "merged_tensors", "reference_scope"]


def check(settings: RunSettings) -> None:
    """SettingsError, before anything is loaded, where the settings ask for an adapter that cannot be."""
    if settings.lora is None:
        return
    adapters.require_peft()
    if adapters.is_adapter(Path(settings.model)):
        raise SettingsError(f"model {settings.model} is an adapter already; merge it first: gagpo export RUN FOLDER")


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
