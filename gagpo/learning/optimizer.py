"""The optimiser of a run, its parameter groups and its learning rate schedule."""

from __future__ import annotations

import math
from typing import Any

import torch

from gagpo.settings import OptimizerSettings

Group = dict[str, Any]
"""A parameter group of a torch optimiser."""

EPSILON = 1e-8
"""AdamW's epsilon."""


def make_optimizer(groups: list[Group], settings: OptimizerSettings) -> torch.optim.AdamW:
    """AdamW; the groups hold their learning rates."""
    return torch.optim.AdamW(groups, weight_decay=settings.weight_decay, betas=settings.betas, eps=EPSILON)


def moment_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of all moments on all ranks; before the first step, an upper bound."""
    held = [x for state in optimizer.state.values() for x in state.values() if isinstance(x, torch.Tensor)]
    if held:
        return sum(x.numel() * x.element_size() for x in held)
    trained: list[torch.Tensor] = [p for group in optimizer.param_groups for p in group["params"]]
    return 2 * sum(p.numel() * p.element_size() for p in trained)


def parameter_groups(model: torch.nn.Module, settings: OptimizerSettings) -> list[Group]:
    """The trained parameters; weight decay applies to matrices alone."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    rate = settings.learning_rate
    if not settings.weight_decay:
        return [{"params": trained, "lr": rate}]
    return [
        {"params": [parameter for parameter in trained if parameter.ndim >= 2], "lr": rate},
        {"params": [parameter for parameter in trained if parameter.ndim < 2], "lr": rate, "weight_decay": 0.0},
    ]


def lr_scale(settings: OptimizerSettings, iteration: int, iterations: int) -> float:
    """Factor of the learning rate in ``iteration`` (from 0) of ``iterations``: linear warm-up, then the schedule."""
    if iteration < settings.warmup_iterations:
        return min(1.0, (iteration + 1) / settings.warmup_iterations)
    done = (iteration - settings.warmup_iterations) / max(1, iterations - settings.warmup_iterations)
    if settings.lr_scheduler == "constant":
        return 1.0
    return 1.0 - done if settings.lr_scheduler == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
