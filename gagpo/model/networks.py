"""Forward passes of policy, critic and reference: log-probabilities and values of a micro-batch's response tokens."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from gagpo.model.activation_checkpointing import set_checkpointing_mode
from gagpo.model.logprobs import Entropy, hidden_of, token_logprobs
from gagpo.model.microbatch import MicroBatch
from gagpo.model.sharding import with_gathered_weights

Scope = Callable[[], AbstractContextManager[object]]
"""Returns a context manager."""


class Outputs(NamedTuple):
    """For each response token, float32[K]: the policy's log-probability and entropy, the value and the reference's."""

    logprob_K: Tensor
    entropy_K: Tensor
    value_K: Tensor | None = None
    reference_K: Tensor | None = None

    def zero_loss(self) -> Tensor:
        """A loss of 0 that has gradients for all weights, for padding.

        FSDP reduces gradients in hooks of the backward pass, so a rank without a loss still has to make one.
        """
        with_gradient = [self.logprob_K, self.entropy_K]
        if self.value_K is not None:
            with_gradient.append(self.value_K)
        return torch.stack([(column_K * 0.0).sum() for column_K in with_gradient]).sum()


class Critic(torch.nn.Module):
    """PPO's learned value: a linear head on the policy's backbone, one value per response token.

    A token's value is read where the model predicts it. A turn's value is that of its first response token, when the
    model has read the prompt. The head starts at zero, so the first advantages are the returns.

    device: of the head; by default that of the policy.
    """

    def __init__(self, policy: torch.nn.Module, device: torch.device | None = None):
        super().__init__()
        config: Any = policy.config
        # The policy's own weights may not be there yet: each rank reads them when they are sharded.
        device = device or next(policy.parameters()).device
        self.head = torch.nn.Linear(config.hidden_size, 1, device=device, dtype=torch.float32)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)

    def values(self, batch: MicroBatch, hidden_UD: Tensor) -> Tensor:
        """Values, float32[K], from hidden states ``(U, D)``."""
        return batch.per_token(self.head(hidden_UD.float())[:, 0])


@dataclass(frozen=True)
class Networks:
    """The policy and, where the algorithm has them, the critic and the KL reference.

    reference_scope: context in which ``reference`` is the reference (for LoRA, the policy without its adapter).
    autocast: context for forward passes.
    offloaded_from: the device that computes, if the weights are in host memory between passes.
    """

    policy: torch.nn.Module
    critic: Critic | None = None
    reference: torch.nn.Module | None = None
    reference_scope: Scope = nullcontext
    autocast: Scope = nullcontext
    offloaded_from: torch.device | None = None

    @property
    def device(self) -> torch.device:
        """The device that computes."""
        return self.offloaded_from or next(self.policy.parameters()).device

    def train(self, on: bool) -> None:
        """Begin or end an update."""
        set_checkpointing_mode(self.policy, on)

    def logprobs(self, batch: MicroBatch, entropy: Entropy = "none") -> tuple[Tensor, Tensor | None]:
        """The policy's log-probabilities and, unless ``entropy`` is ``none``, entropies."""
        with self.autocast():
            return with_gathered_weights(self.policy, lambda: token_logprobs(self.policy, batch, entropy))

    def values(self, batch: MicroBatch) -> tuple[Tensor]:
        """The critic's values."""
        critic = self.critic
        assert critic is not None
        with self.autocast():
            return (with_gathered_weights(self.policy, lambda: critic.values(batch, hidden_of(self.policy, batch))),)

    def outputs(self, batch: MicroBatch, entropy: Entropy = "value") -> Outputs:
        """All inputs of the loss, with gradients of the policy and the critic."""
        critic = self.critic
        reference_K = self._reference_logprobs(batch)

        def policy() -> tuple[Tensor, Tensor | None, Tensor | None]:
            hidden_UD = hidden_of(self.policy, batch)
            logprob_K, entropy_K = token_logprobs(self.policy, batch, entropy, hidden_UD)
            return logprob_K, entropy_K, None if critic is None else critic.values(batch, hidden_UD)

        with self.autocast():
            logprob_K, entropy_K, value_K = with_gathered_weights(self.policy, policy)
        assert entropy_K is not None
        return Outputs(logprob_K, entropy_K, value_K, reference_K)

    @torch.no_grad()
    def _reference_logprobs(self, batch: MicroBatch) -> Tensor | None:
        reference = self.reference
        if reference is None:
            return None
        with self.autocast(), self.reference_scope():
            return with_gathered_weights(reference, lambda: token_logprobs(reference, batch, entropy="none"))[0]
