"""Forward passes of an update: log-probabilities and values of a micro-batch's response tokens."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gagpo.algorithms import CriticSettings
from gagpo.distributed.sharding import within
from gagpo.learning.logprobs import Entropy, hidden_of, token_logprobs
from gagpo.learning.packing import MicroBatch
from gagpo.settings import RunSettings

Scope = Callable[[], AbstractContextManager[object]]
"""Returns a context manager."""


def autocast(settings: RunSettings) -> torch.autocast:
    """Mixed precision according to ``training.dtype``."""
    half = settings.training.dtype == "bfloat16"
    return torch.autocast(torch.device(settings.device).type, torch.bfloat16, enabled=half)


class Outputs(NamedTuple):
    """For each response token, float32[K]: the policy's log-probability and entropy, the value and the reference's."""

    logprob_K: Tensor
    entropy_K: Tensor
    value_K: Tensor | None = None
    reference_K: Tensor | None = None

    def nothing(self) -> Tensor:
        """A loss of 0 that has gradients for all weights."""
        made = (x for x in (self.logprob_K, self.entropy_K, self.value_K) if x is not None)
        return torch.stack([(x * 0.0).sum() for x in made]).sum()


class Critic(torch.nn.Module):
    """PPO's learned value: a linear head on the policy's backbone, one value per response token.

    A token's value is read where the model predicts it. A turn's value is that of its first response token, when the
    model has read the prompt. The head starts at zero, so the first advantages are the returns.
    """

    def __init__(self, policy: torch.nn.Module, settings: CriticSettings):
        super().__init__()
        self.settings = settings
        config: Any = policy.config
        weight = next(policy.parameters())
        self.head = torch.nn.Linear(config.hidden_size, 1, device=weight.device, dtype=torch.float32)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)

    def values(self, batch: MicroBatch, hidden_UD: Tensor) -> Tensor:
        """Values, float32[K], from hidden states ``(U, D)``."""
        return batch.each(self.head(hidden_UD.float())[:, 0])


@dataclass(frozen=True)
class Networks:
    """The policy and, where the algorithm has them, the critic and the KL reference.

    reference_scope: context in which ``reference`` is the reference (for LoRA, the policy without its adapter).
    autocast: context for forward passes.
    """

    policy: torch.nn.Module
    critic: Critic | None = None
    reference: torch.nn.Module | None = None
    reference_scope: Scope = nullcontext
    autocast: Scope = nullcontext

    def train(self, on: bool) -> None:
        """Begin or end an update."""
        set_checkpointing_mode(self.policy, on)

    def logprobs(self, batch: MicroBatch, entropy: Entropy = "none") -> tuple[Tensor, Tensor | None]:
        """The policy's log-probabilities and, unless ``entropy`` is ``none``, entropies."""
        with self.autocast():
            return within(self.policy, lambda: token_logprobs(self.policy, batch, entropy))

    def values(self, batch: MicroBatch) -> tuple[Tensor]:
        """The critic's values."""
        critic = self.critic
        assert critic is not None
        with self.autocast():
            return (within(self.policy, lambda: critic.values(batch, hidden_of(self.policy, batch))),)

    def outputs(self, batch: MicroBatch, entropy: Entropy = "value") -> Outputs:
        """All inputs of the loss, with gradients of the policy and the critic."""
        critic, reference_K = self.critic, self._reference_logprobs(batch)

        def policy() -> tuple[Tensor, Tensor | None, Tensor | None]:
            hidden_UD = hidden_of(self.policy, batch)
            logprob_K, entropy_K = token_logprobs(self.policy, batch, entropy, hidden_UD)
            return logprob_K, entropy_K, None if critic is None else critic.values(batch, hidden_UD)

        with self.autocast():
            logprob_K, entropy_K, value_K = within(self.policy, policy)
        assert entropy_K is not None
        return Outputs(logprob_K, entropy_K, value_K, reference_K)

    @torch.no_grad()
    def _reference_logprobs(self, batch: MicroBatch) -> Tensor | None:
        reference = self.reference
        if reference is None:
            return None
        with self.autocast(), self.reference_scope():
            return within(reference, lambda: token_logprobs(reference, batch, entropy="none"))[0]


# Gradient checkpointing ---------------------------------------------------------------------------------------


def set_checkpointing_mode(model: torch.nn.Module, on: bool) -> None:
    """Set the training mode of layers with gradient checkpointing, which recompute their activations in it.

    All others stay in evaluation mode: dropout would make ratios of an unchanged policy differ from 1.
    """
    for module in model.modules():
        module.training = on and getattr(module, "gradient_checkpointing", False)


def checkpoint_activations(model: Any) -> None:
    """Enable gradient checkpointing."""
    model.gradient_checkpointing_enable()
    for module in model.modules():
        kept = vars(module).get("_gradient_checkpointing_func")
        if kept is not None:
            module._gradient_checkpointing_func = _EvaluationMode(kept)


@dataclass(frozen=True)
class _EvaluationMode:
    """Runs checkpointed layers in evaluation mode, in the forward pass and the recomputation."""

    checkpoint: Callable[..., Any]

    def __call__(self, function: Any, *arguments: Any) -> Any:
        layer = getattr(getattr(function, "func", function), "__self__", None)

        def compute(*given: Any) -> Any:
            before = getattr(layer, "training", False)
            if layer is not None:
                layer.training = False
            try:
                return function(*given)
            finally:
                if layer is not None:
                    layer.training = before

        return self.checkpoint(compute, *arguments)
