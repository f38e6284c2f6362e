"""PPO's learned value: a linear head on the policy's own backbone, or on one of its own."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor

from gagpo.algorithms import CriticSettings
from gagpo.distributed.sharding import within
from gagpo.learning.logprobs import hidden_of
from gagpo.learning.packing import MicroBatch


class Critic(torch.nn.Module):
    """Values of response tokens, read where the model predicts the token, that is before it is written.

    The value of a turn is that of its first response token: what the model expects having read the prompt. The head
    starts at zero, so the first advantages are the returns themselves.
    """

    def __init__(self, policy: torch.nn.Module, settings: CriticSettings):
        super().__init__()
        self.settings = settings
        config: Any = policy.config
        weight = next(policy.parameters())
        self.head = torch.nn.Linear(config.hidden_size, 1, device=weight.device, dtype=torch.float32)
        torch.nn.init.zeros_(self.head.weight)
        torch.nn.init.zeros_(self.head.bias)
        self.backbone = copy.deepcopy(policy) if settings.head == "separate" else None

    def values(self, batch: MicroBatch, hidden_UD: Tensor) -> Tensor:
        """``(K,)`` float32 from hidden states ``(U, D)``; see :class:`MicroBatch`."""
        return batch.each(self.head(hidden_UD.float())[:, 0])

    def read(self, policy: torch.nn.Module, batch: MicroBatch) -> Tensor:
        """Values of a micro-batch by a forward pass of the backbone (the policy's where it is shared)."""
        backbone = policy if self.backbone is None else self.backbone
        return within(backbone, lambda: self.values(batch, hidden_of(backbone, batch)))
