"""The model that a run trains (all weights or an adapter) and the policy that KL is measured to."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from gagpo.learning.forward import checkpoint_activations
from gagpo.model import adapters
from gagpo.model.loading import load_model, load_tokenizer
from gagpo.runs.checkpoint import AVERAGE, Checkpoint
from gagpo.settings import RunSettings, SettingsError
from gagpo.settings.machine import require_device

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class TrainedPolicy:
    """A model in training.

    model: float32, or ``lora.base_dtype`` with an adapter.
    base: of the adapter; None if all weights are trained.
    reference: the policy that KL is measured to, None without a KL term; it may be the model itself.
    reference_scope: a context in which the adapter is switched off in the reference.
    average: the trained parameters of the checkpoint's average, unsharded; None without an average.
    """

    model: torch.nn.Module
    tokenizer: PreTrainedTokenizerBase
    base: adapters.Base | None = None
    reference: torch.nn.Module | None = None
    reference_scope: Callable[[], AbstractContextManager[None]] = nullcontext
    average: list[torch.Tensor] | None = None

    def trained(self) -> list[torch.nn.Parameter]:
        return [parameter for parameter in self.model.parameters() if parameter.requires_grad]


def require_trainable(settings: RunSettings) -> None:
    """Raise SettingsError, before anything is loaded, if device or adapter cannot be used."""
    require_device(settings.device)
    if settings.lora is not None:
        adapters.require_peft()
        if adapters.is_adapter(Path(settings.model)):
            raise SettingsError(
                f"model {settings.model} is an adapter already; merge it first: gagpo export RUN FOLDER"
            )


def load_policy(settings: RunSettings, saved: Checkpoint | None, commit: str | None = None) -> TrainedPolicy:
    """Load the policy of a run, from ``saved`` if given. commit: of a hub model."""
    policy = _load(settings, saved, commit)
    if saved is None or saved.average is None or not settings.training.ema:
        return policy
    averaged = _load(settings, replace(saved, weights=AVERAGE), commit)
    return replace(policy, average=[parameter.detach() for parameter in averaged.trained()])


def _load(settings: RunSettings, saved: Checkpoint | None, commit: str | None) -> TrainedPolicy:
    load = functools.partial(load_model, device=settings.device, trust_remote_code=settings.trust_remote_code)
    tokenizer = load_tokenizer(settings.model, commit, trust_remote_code=settings.trust_remote_code)
    base = None
    if settings.lora is None:
        model = load(saved.model, "float32") if saved else load(settings.model, "float32", revision=commit)
    else:
        revision = adapters.base_of(Path(saved.model))[1] if saved else commit
        # A smaller base is converted on the host, because the GPU may have no room for it in float32.
        whole = settings.lora.base_dtype == "float32"
        model = load(settings.model, "float32", revision=revision, device=settings.device if whole else "cpu")
        base = adapters.Base.of(settings.model, model)
        adapters.inject(model, settings.lora.rank, settings.lora.alpha, settings.lora.targets, settings.seed)
        if not whole:
            adapters.halve_base(model)
        model.to(torch.device(settings.device))
        if saved:
            adapters.load(model, Path(saved.model), base)
    if settings.training.gradient_checkpointing:
        checkpoint_activations(model)
    if settings.algorithm.kl.coefficient <= 0:
        return TrainedPolicy(model, tokenizer, base)
    if base is not None:
        return TrainedPolicy(model, tokenizer, base, model, functools.partial(adapters.disabled, model))
    reference = load(settings.model, settings.engine.dtype, revision=commit).requires_grad_(False)
    return TrainedPolicy(model, tokenizer, base, reference)
