"""Which of a trainer's models are sharded over its ranks, and with what."""

from __future__ import annotations

import torch

from gagpo.distributed.ranks import Ranks
from gagpo.distributed.sharding import shard
from gagpo.learning.critic import Critic
from gagpo.settings import RunSettings


def shard_all(
    model: torch.nn.Module,
    critic: Critic | None,
    reference: torch.nn.Module | None,
    ranks: Ranks,
    settings: RunSettings,
) -> None:
    """Shard what a trainer computes with; a reference that is the model itself, its adapter off, only once."""
    precision, device = settings.training.precision, settings.device
    shared = critic is not None and critic.backbone is None
    shard(model, ranks, precision, device, critic.head if critic is not None and shared else None)
    if critic is not None and critic.backbone is not None:
        shard(critic.backbone, ranks, precision, device, critic.head)
    if reference is not None and reference is not model:
        shard(reference, ranks, settings.engine.dtype, device)
