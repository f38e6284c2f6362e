"""The optimiser of a run: which parameters decay, and how the learning rate rises and falls."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from gagpo.settings import OptimizerSettings


def parameter_groups(model: torch.nn.Module, settings: OptimizerSettings) -> list[dict[str, Any]]:
    """The trained parameters; with weight decay, gains and biases (whatever is no matrix) in a group without it."""
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    rate = settings.learning_rate
    if not settings.weight_decay:
        return [{"params": trained, "lr": rate}]
    return [
        {"params": list(_of_shape(trained, matrices=True)), "lr": rate},
        {"params": list(_of_shape(trained, matrices=False)), "lr": rate, "weight_decay": 0.0},
    ]


def _of_shape(parameters: Iterable[torch.nn.Parameter], matrices: bool) -> Iterable[torch.nn.Parameter]:
    return (parameter for parameter in parameters if (parameter.ndim >= 2) == matrices)


def rate_scale(settings: OptimizerSettings, iteration: int, iterations: int) -> float:
    """Share of the learning rate in ``iteration`` (counted from 0) of ``iterations``.

    It rises linearly over the warm-up; a linear or cosine schedule then falls from 1 towards 0 after the last one.
    """
    if iteration < settings.warmup:
        return (iteration + 1) / settings.warmup
    if settings.schedule == "constant":
        return 1.0
    done = min(1.0, (iteration - settings.warmup) / max(1, iterations - settings.warmup))
    return 1.0 - done if settings.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
