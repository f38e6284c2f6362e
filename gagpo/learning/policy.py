"""The model that a run trains (all weights or an adapter) and the policy that KL is measured to.

With an adapter the reference policy is the model itself with the adapter switched off: it needs no second copy in
memory. Weights that are trained are float32 even where the forward pass computes in half precision, because a step is
often smaller than the distance of two bfloat16 numbers.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from gagpo.agents.engines.base import write_stop_tokens
from gagpo.model import adapters
from gagpo.model.activation_checkpointing import checkpoint_activations
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
                f"model {settings.model} is an adapter already", advice="merge it first: gagpo export RUN FOLDER"
            )


def load_policy(settings: RunSettings, checkpoint: Checkpoint | None, commit: str | None = None) -> TrainedPolicy:
    """Load the policy of a run, from ``checkpoint`` if given. commit: of a hub model."""
    policy = _load(settings, checkpoint, commit)
    if checkpoint is None or checkpoint.average is None or not settings.training.ema:
        return policy
    averaged = _load(settings, replace(checkpoint, weights=AVERAGE), commit)
    return replace(policy, average=[parameter.detach() for parameter in averaged.trained()])


def _load(settings: RunSettings, checkpoint: Checkpoint | None, commit: str | None) -> TrainedPolicy:
    load = functools.partial(load_model, device=settings.device, trust_remote_code=settings.trust_remote_code)
    tokenizer = load_tokenizer(settings.model, commit, trust_remote_code=settings.trust_remote_code)
    base = None
    if settings.lora is None:
        if checkpoint:
            model = load(checkpoint.model, "float32")
        else:
            model = load(settings.model, "float32", revision=commit)
    else:
        revision = adapters.base_of(Path(checkpoint.model))[1] if checkpoint else commit
        # A smaller base is converted on the host, because the GPU may have no room for it in float32.
        in_float32 = settings.lora.base_dtype == "float32"
        model = load(settings.model, "float32", revision=revision, device=settings.device if in_float32 else "cpu")
        base = adapters.Base.of(settings.model, model)
        adapters.inject(model, settings.lora.rank, settings.lora.alpha, settings.lora.targets, settings.seed)
        if not in_float32:
            adapters.halve_base(model)
        model.to(torch.device(settings.device))
        if checkpoint:
            adapters.load(model, Path(checkpoint.model), base)
    write_stop_tokens(model, tokenizer)
    if settings.training.gradient_checkpointing:
        checkpoint_activations(model)
    if settings.algorithm.kl.coefficient <= 0:
        return TrainedPolicy(model, tokenizer, base)
    if base is not None:
        return TrainedPolicy(model, tokenizer, base, model, functools.partial(adapters.disabled, model))
    reference = load(settings.model, settings.engine.dtype, revision=commit).requires_grad_(False)
    return TrainedPolicy(model, tokenizer, base, reference)
