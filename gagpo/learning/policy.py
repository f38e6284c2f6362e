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
from typing import TYPE_CHECKING, Any

import torch

from gagpo.agents.engines.base import write_stop_tokens
from gagpo.controllers.average import shard_like
from gagpo.distributed.ranks import Ranks
from gagpo.model import adapters
from gagpo.model.activation_checkpointing import checkpoint_activations
from gagpo.model.loading import load_model, load_tokenizer
from gagpo.model.slices import StoredTensors, empty_model, files_of, stand_ins, unread_files
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
    average: the trained parameters of the checkpoint's average, unsharded, or the folder that each rank reads its
        shards from; None without an average.
    """

    model: torch.nn.Module
    tokenizer: PreTrainedTokenizerBase
    base: adapters.Base | None = None
    reference: torch.nn.Module | None = None
    reference_scope: Callable[[], AbstractContextManager[None]] = nullcontext
    average: list[torch.Tensor] | Path | None = None

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


def load_policy(
    settings: RunSettings, checkpoint: Checkpoint | None, commit: str | None = None, ranks: Ranks | None = None
) -> TrainedPolicy:
    """Load the policy of a run, from ``checkpoint`` if given.

    Several ranks get models without weights where slices can be read (:mod:`gagpo.model.slices`), and read their shards
    once the models are sharded.

    commit: of a hub model.
    ranks: that train together; all call it.
    """
    policy = _load(settings, checkpoint, commit, ranks or Ranks())
    if checkpoint is None or checkpoint.average is None or not settings.training.ema:
        return policy
    if unread_files(policy.model) is not None:
        return replace(policy, average=Path(checkpoint.average))
    averaged = _load(settings, replace(checkpoint, weights=AVERAGE), commit, Ranks())
    return replace(policy, average=[parameter.detach() for parameter in averaged.trained()])


def average_shards(policy: TrainedPolicy) -> list[torch.Tensor] | None:
    """This rank's shards of the average, in the order of the trained parameters; None without an average.

    Raises: ModelError for a damaged folder.
    """
    average = policy.average
    if isinstance(average, Path):
        if policy.base is None:
            return files_of(str(average)).host_shards(dict(policy.model.named_parameters()))
        names = adapters.adapter_parameters(policy.model)
        return StoredTensors(str(average), dict.fromkeys(names, average / adapters.WEIGHTS)).host_shards(names)
    if average is None:
        return None
    return [shard_like(tensor, parameter) for tensor, parameter in zip(average, policy.trained(), strict=True)]


def _load(settings: RunSettings, checkpoint: Checkpoint | None, commit: str | None, ranks: Ranks) -> TrainedPolicy:
    def load(name: str, dtype: str, device: str = settings.device, revision: str | None = None) -> torch.nn.Module:
        options: dict[str, Any] = {"trust_remote_code": settings.trust_remote_code, "revision": revision}
        # A whole model in every process would not fit the host memory of a machine with many GPUs.
        empty = None if ranks.alone else empty_model(name, dtype, **options)
        return load_model(name, dtype, device, **options) if empty is None else empty

    tokenizer = load_tokenizer(settings.model, commit, trust_remote_code=settings.trust_remote_code)
    base = None
    if settings.lora is None:
        model = load(checkpoint.model, "float32") if checkpoint else load(settings.model, "float32", revision=commit)
    else:
        revision = adapters.base_of(Path(checkpoint.model))[1] if checkpoint else commit
        # A smaller base is converted on the host, because the GPU may have no room for it in float32.
        in_float32 = settings.lora.base_dtype == "float32"
        model = load(settings.model, "float32", settings.device if in_float32 else "cpu", revision)
        base = _base_of(settings.model, model, ranks)
        with stand_ins(model):
            adapters.inject(model, settings.lora.rank, settings.lora.alpha, settings.lora.targets, settings.seed)
        if not in_float32:
            adapters.halve_base(model)
        if unread_files(model) is None:
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


def _base_of(name: str, model: torch.nn.Module, ranks: Ranks) -> adapters.Base:
    """The identity of an adapter's base; of a model without weights, from its files."""
    files = unread_files(model)
    if files is None:
        return adapters.Base.of(name, model)
    names = [tensor_name for tensor_name, _ in adapters.base_tensors(model)]
    # The first rank alone reads all weights, one at a time: the others would read the same files.
    digest = ranks.of_first(lambda: adapters.digest_of(files.tensors(names)))
    return adapters.Base(name, getattr(model.config, "_commit_hash", None), digest)
