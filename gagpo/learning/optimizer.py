"""The optimiser of a run, its parameter groups and its learning rate schedule.

The schedule is a function of the iteration and not torch's scheduler object. A resumed run has the right rate without
restoring anything, and controllers may scale it in each iteration.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from gagpo.settings import OptimizerSettings

Group = dict[str, Any]
"""A parameter group of a torch optimiser."""

EPSILON = 1e-8
"""AdamW's epsilon."""


def make_optimizer(groups: list[Group], settings: OptimizerSettings, offloaded: bool = False) -> torch.optim.AdamW:
    """AdamW; the groups hold their learning rates.

    offloaded: parameters are in host memory. A CPU is bound by its memory, so the step is one fused pass over it.
    """
    fused = True if offloaded else None
    decay, betas = settings.weight_decay, settings.betas
    return torch.optim.AdamW(groups, weight_decay=decay, betas=betas, eps=EPSILON, fused=fused)


def parameter_groups(module: torch.nn.Module, rate: float, weight_decay: float) -> list[Group]:
    """The trained parameters of a module; weight decay applies to matrices alone."""
    trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
    if not weight_decay:
        return [{"params": trained, "lr": rate}]
    return [
        {"params": [parameter for parameter in trained if parameter.ndim >= 2], "lr": rate},
        {"params": [parameter for parameter in trained if parameter.ndim < 2], "lr": rate, "weight_decay": 0.0},
    ]


def lr_scale(settings: OptimizerSettings, iteration: int, iterations: int) -> float:
    """Factor of the learning rate in ``iteration`` (from 0) of ``iterations``: linear warm-up, then the schedule."""
    if iteration < settings.warmup_iterations:
        return min(1.0, (iteration + 1) / settings.warmup_iterations)
    if settings.lr_scheduler == "constant":
        return 1.0
    progress = (iteration - settings.warmup_iterations) / max(1, iterations - settings.warmup_iterations)
    if settings.lr_scheduler == "linear":
        return 1.0 - progress
    return 0.5 * (1.0 + math.cos(math.pi * progress))
